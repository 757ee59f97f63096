//! Options of the file system itself as variants: what mke2fs is called with, and what the kernel
//! is mounted with.
//!
//! What: `mkfs.b=1024` of a variant is `-b 1024` of mke2fs, and every target that works on an image
//! is run on one that is made so, beside the usual one. Options of the kernel's mount are tried on
//! a small image before anything runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use crate::command;
use crate::error::{Doing, Error, Result};
use crate::leftovers::Watch;
use crate::load::{How, Load, Work};
use crate::stage::{self, Loop, Medium, Stage, Store};
use crate::target::{Opened, Target};
use crate::{Plan, machine};

/// Options of mke2fs that say what the file system is like, and nothing else.
const LETTERS: &str = "bCEgGiIJmNOT";
/// What options are tried on: large enough for a journal of the usual size.
const TRIED_BYTES: u64 = 256 << 20;
/// Before an option of a file system in the name of a variant.
pub(crate) const PREFIX: &str = "mkfs.";

/// Options of which mke2fs takes several words.
const LISTS: &str = "EO";

/// Options of mke2fs with their values: a kind of file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MkfsOptions(Vec<(char, String)>);

impl MkfsOptions {
    /// The option of that letter.
    ///
    /// # Errors
    /// mke2fs is not installed, does not know it, or rejects the value.
    pub fn new(letter: &str, value: &str) -> Result<Self> {
        let known = letter.parse().ok().filter(|letter| LETTERS.contains(*letter));
        let Some(known) = known else {
            let text = format!("no option of a file system: mkfs. goes before one of {LETTERS}");
            return Err(Error::new(format!("{letter}: {text}")));
        };
        if letter == "J" && value.contains("device") {
            return Err(Error::new(format!("{value}: the journal is in the image")));
        }
        Self(vec![(known, value.to_owned())]).tried()
    }

    /// These and others together.
    ///
    /// # Errors
    /// An option is in both and has one value only; mke2fs rejects them together.
    pub fn with(&self, others: &Self) -> Result<Self> {
        let is_twice = |(letter, _): &&(char, String)| {
            !LISTS.contains(*letter) && self.value(*letter).is_some()
        };
        if let Some((letter, _)) = others.0.iter().find(is_twice) {
            let text = format!("{PREFIX}{letter} cannot be combined with itself");
            return Err(Error::new(text));
        }
        Self([&*self.0, &*others.0].concat()).tried()
    }

    /// Itself, if mke2fs takes it.
    fn tried(self) -> Result<Self> {
        let file = tempfile::NamedTempFile::new().doing("a file to try mke2fs on")?;
        file.as_file().set_len(TRIED_BYTES).doing("a file to try mke2fs on")?;
        let tried = mke2fs(file.path(), &[], Some(&self));
        tried.map_err(|error| Error::new(format!("{}: {error}", self.name())))?;
        Ok(self)
    }

    /// The option, whatever mke2fs says of it.
    #[cfg(test)]
    pub(crate) fn untried(letter: char, value: &str) -> Self {
        Self(vec![(letter, value.to_owned())])
    }

    /// The value of an option; several words are separated by commas.
    fn value(&self, letter: char) -> Option<String> {
        let values = self.0.iter().filter(|(of, _)| *of == letter);
        let words: Vec<&str> = values.map(|(_, value)| &**value).collect();
        (!words.is_empty()).then(|| words.join(","))
    }

    /// A file's name for what is made with it, or without.
    pub(crate) fn file_name(name: &str, option: Option<&Self>) -> String {
        // Different options have different names: `^quota`, `-quota` and `quota` do.
        let plain = |c: char| match c {
            c if c.is_ascii_alphanumeric() => c.to_string(),
            c => format!("_{:x}", u32::from(c)),
        };
        let more = option.map(|option| option.name().chars().map(plain).collect::<String>());
        more.map_or_else(|| name.to_owned(), |more| format!("{name}-{more}"))
    }

    /// Its name as a variant: that of each option, separated by commas.
    #[must_use]
    pub fn name(&self) -> String {
        let names = self.0.iter().map(|(letter, value)| format!("{PREFIX}{letter}={value}"));
        names.collect::<Vec<_>>().join(",")
    }

    /// The words of mke2fs, but for `-E`, which has others already.
    fn words(&self) -> Vec<String> {
        let letters: BTreeSet<char> = self.0.iter().map(|(letter, _)| *letter).collect();
        let values = letters.into_iter().filter(|letter| *letter != 'E');
        let words = values.filter_map(|letter| Some([format!("-{letter}"), self.value(letter)?]));
        words.flatten().collect()
    }
}

/// Makes a file system in a file of a length, by mke2fs with these arguments besides.
pub(crate) fn mke2fs(image: &Path, arguments: &[&str], of: Option<&MkfsOptions>) -> Result<()> {
    let owner = machine::caller();
    let mut extended =
        format!("lazy_itable_init=0,lazy_journal_init=0,root_owner={}:{}", owner.uid, owner.gid);
    // mke2fs takes the last -E alone.
    if let Some(value) = of.and_then(|of| of.value('E')) {
        extended.push(',');
        extended.push_str(&value);
    }
    let usual = ["-q", "-F", "-E", &extended, "-t", "ext4", "-b", "4096"];
    // -J makes a journal whatever -O says.
    let features = of.and_then(|of| of.value('O'));
    let arguments = match arguments {
        [rest @ .., "-J", _] if !features.is_none_or(|words| leaves_journal(&words)) => rest,
        all => all,
    };
    let more = of.map_or_else(Vec::new, MkfsOptions::words);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let image = &*image.to_string_lossy();
    command::run("mke2fs", &[&usual, arguments, &more, &[image]].concat()).map(|_| ())
}

/// Whether features of `mke2fs -O` leave the journal that ext4 has: the last word wins.
fn leaves_journal(features: &str) -> bool {
    let says = |word: &str| match word.trim().to_ascii_lowercase().as_str() {
        "has_journal" | "+has_journal" => Some(true),
        "^has_journal" | "-has_journal" | "none" => Some(false),
        _ => None,
    };
    features.split(',').filter_map(says).next_back().unwrap_or(true)
}

/// The same in a new file of that length.
pub(crate) fn make(image: &Path, bytes: u64, of: &MkfsOptions) -> Result<()> {
    File::create(image).and_then(|file| file.set_len(bytes)).doing("making an image")?;
    mke2fs(image, &[], Some(of))
}

impl Load {
    /// Whether it is run on file systems that are made in other ways.
    #[must_use]
    pub fn takes_mkfs_options(&self) -> bool {
        self.on_device && self.sizes.is_empty() && !matches!(self.how, How::Tree(Work::Build, _))
    }
}

/// Whether the kernel mounts ext4 with these options, separated by commas; `None` where that cannot
/// be tried: as an ordinary user, or without loop devices. `command` is uext4's, which cleans up
/// should this be ended meanwhile.
///
/// # Errors
/// Says what the kernel refuses.
pub fn try_kernel_options(options: &str, command: Option<&Path>) -> Option<Result<()>> {
    let plan = Plan::default();
    if Target::Kernel.obstacle(&plan).is_some() {
        return None;
    }
    let tried = || {
        let _watch = Watch::start(command)?;
        let stage = Stage::new(Store::Ram, None, TRIED_BYTES)?;
        let image = stage.image("tried");
        stage::format(&image, TRIED_BYTES)?;
        let medium = Medium::new(&image, Loop::Cached)?;
        let opened: Opened = Target::Kernel.start(&plan, &stage, &medium, options)?;
        opened.end()?;
        medium.release()
    };
    let refused = |why| Error::new(format!("kernel.{options}: this kernel's ext4: {why}"));
    Some(tried().map_err(refused))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_mke2fs_does_not_take_is_refused() {
        if command::find("mke2fs").is_none() {
            return;
        }
        for (letter, value) in [("b", "1024"), ("O", "^has_journal"), ("E", "stride=4")] {
            let option = MkfsOptions::new(letter, value).unwrap();
            assert_eq!(option.name(), format!("mkfs.{letter}={value}"));
        }
        // Both ways to say it.
        for words in ["^has_journal", "-has_journal"] {
            let option = MkfsOptions::new("O", words).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(TRIED_BYTES).unwrap();
            mke2fs(file.path(), &["-m", "1", "-J", "size=16"], Some(&option)).unwrap();
            // `s_feature_compat` of the superblock, COMPAT_HAS_JOURNAL.
            let mut features = [0; 4];
            file.as_file().read_exact_at(&mut features, 1024 + 0x5c).unwrap();
            assert_eq!(features[0] & 4, 0, "{words}: a journal all the same");
        }
        for (letter, value) in [("b", "1000"), ("O", "frobnicate"), ("d", "/"), ("", "1")] {
            assert!(MkfsOptions::new(letter, value).is_err(), "{letter} {value}");
        }
    }

    /// Fault model: of two options the second is forgotten; features that were named before it.
    #[test]
    fn options_are_combined() {
        if command::find("mke2fs").is_none() {
            return;
        }
        let new = |letter, value| MkfsOptions::new(letter, value).unwrap();
        let both = new("b", "1024").with(&new("O", "^has_journal")).unwrap();
        let all = both.with(&new("O", "quota")).unwrap();
        assert_eq!(all.name(), "mkfs.b=1024,mkfs.O=^has_journal,mkfs.O=quota");
        assert_eq!(all.words(), ["-O", "^has_journal,quota", "-b", "1024"]);
        let twice = new("b", "1024").with(&new("b", "2048")).unwrap_err().to_string();
        assert!(twice.contains("cannot be combined with itself"), "{twice}");
        // Each is well by itself: blocks of 1 KiB have no inodes of 2.
        assert!(new("I", "2048").with(&new("b", "1024")).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(TRIED_BYTES).unwrap();
        mke2fs(file.path(), &["-J", "size=16"], Some(&all)).unwrap();
        let mut superblock = [0; 1024];
        file.as_file().read_exact_at(&mut superblock, 1024).unwrap();
        // `s_log_block_size`, `s_feature_compat` and `s_feature_ro_compat` (QUOTA).
        assert_eq!((superblock[0x18], superblock[0x5c] & 4, superblock[0x65] & 1), (0, 0, 1));
    }

    #[test]
    fn loads_that_need_the_usual_file_system_have_no_other() {
        let takes = |id| Load::find(id).unwrap().takes_mkfs_options();
        assert!(["E0", "E1a", "E1b", "E3", "S1", "M1", "M6"].into_iter().all(takes));
        assert!(!["E2", "E4", "M7"].into_iter().any(takes));
    }
}
