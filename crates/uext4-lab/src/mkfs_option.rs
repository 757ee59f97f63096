//! Options of the file system itself as variants: what mke2fs is called with, and what the kernel
//! is mounted with.
//!
//! What: `mkfs.b=1024` of a variant is `-b 1024` of mke2fs, and every target that works on an image
//! is run on one that is made so, beside the usual one. Options of the kernel's mount are tried on
//! a small image before anything runs.

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

/// An option of mke2fs with its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MkfsOption {
    letter: String,
    value: String,
}

impl MkfsOption {
    /// The option of that letter.
    ///
    /// # Errors
    /// mke2fs is not installed, does not know it, or rejects the value.
    pub fn new(letter: &str, value: &str) -> Result<Self> {
        let option = Self { letter: letter.to_owned(), value: value.to_owned() };
        if letter.len() != 1 || !LETTERS.contains(letter) {
            let text = format!("no option of a file system: mkfs. goes before one of {LETTERS}");
            return Err(Error::new(format!("{letter}: {text}")));
        }
        if letter == "J" && value.contains("device") {
            return Err(Error::new(format!("{value}: the journal is in the image")));
        }
        let file = tempfile::NamedTempFile::new().doing("a file to try mke2fs on")?;
        file.as_file().set_len(TRIED_BYTES).doing("a file to try mke2fs on")?;
        let tried = mke2fs(file.path(), &[], Some(&option));
        tried.map_err(|error| Error::new(format!("{}: {error}", option.name())))?;
        Ok(option)
    }

    /// The option, whatever mke2fs says of it.
    #[cfg(test)]
    pub(crate) fn untried(letter: &str, value: &str) -> Self {
        Self { letter: letter.to_owned(), value: value.to_owned() }
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

    /// Its name as a variant.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{PREFIX}{}={}", self.letter, self.value)
    }
}

/// Makes a file system in a file of a length, by mke2fs with these arguments besides.
pub(crate) fn mke2fs(image: &Path, arguments: &[&str], option: Option<&MkfsOption>) -> Result<()> {
    let owner = machine::caller();
    let mut extended =
        format!("lazy_itable_init=0,lazy_journal_init=0,root_owner={}:{}", owner.uid, owner.gid);
    let mut more = Vec::new();
    match option {
        // mke2fs takes the last -E alone.
        Some(MkfsOption { letter, value }) if letter == "E" => {
            extended.push(',');
            extended.push_str(value);
        }
        Some(MkfsOption { letter, value }) => more = vec![format!("-{letter}"), value.clone()],
        None => {}
    }
    let usual = ["-q", "-F", "-E", &extended, "-t", "ext4", "-b", "4096"];
    // -J makes a journal whatever -O says.
    let has_journal = option.is_none_or(|of| of.letter != "O" || leaves_journal(&of.value));
    let arguments = match arguments {
        [rest @ .., "-J", _] if !has_journal => rest,
        all => all,
    };
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
pub(crate) fn make(image: &Path, bytes: u64, option: &MkfsOption) -> Result<()> {
    File::create(image).and_then(|file| file.set_len(bytes)).doing("making an image")?;
    mke2fs(image, &[], Some(option))
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
        let _watch = command.map(Watch::start).transpose()?;
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
            let option = MkfsOption::new(letter, value).unwrap();
            assert_eq!(option.name(), format!("mkfs.{letter}={value}"));
        }
        // Both ways to say it.
        for words in ["^has_journal", "-has_journal"] {
            let option = MkfsOption::new("O", words).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(TRIED_BYTES).unwrap();
            mke2fs(file.path(), &["-m", "1", "-J", "size=16"], Some(&option)).unwrap();
            // `s_feature_compat` of the superblock, COMPAT_HAS_JOURNAL.
            let mut features = [0; 4];
            file.as_file().read_exact_at(&mut features, 1024 + 0x5c).unwrap();
            assert_eq!(features[0] & 4, 0, "{words}: a journal all the same");
        }
        for (letter, value) in [("b", "1000"), ("O", "frobnicate"), ("d", "/"), ("", "1")] {
            assert!(MkfsOption::new(letter, value).is_err(), "{letter} {value}");
        }
    }

    #[test]
    fn loads_that_need_the_usual_file_system_have_no_other() {
        let takes = |id| Load::find(id).unwrap().takes_mkfs_options();
        assert!(["E0", "E1a", "E1b", "E3", "S1", "M1", "M6"].into_iter().all(takes));
        assert!(!["E2", "E4", "M7"].into_iter().any(takes));
    }
}
