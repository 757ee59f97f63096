//! The verbs that take archives, on ones that GNU tar wrote and that were changed since, and on
//! well-formed ones that were made to do harm.
//!
//! # What else is judged
//! The image that was filled is sound for both checkers, whatever came in. After status 0 it is
//! listed and exported as well, without a failure, and GNU tar reads what was exported.

mod craft;
mod entry;
mod mutate;

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use uext4_device::MemoryDevice;

use self::craft::crafted;
use self::entry::BLOCK;
use crate::hostile::sound::unsound;
use crate::hostile::yard::{Call, Ended};
use crate::hostile::{Effect, Outcome, Yard};
use crate::oracle::image_folder;
use crate::shape::{fill, image};
use crate::structure_damage::Mutator;

/// A call on `a.tar`.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveCall {
    /// Its words; `i.img` has a tree in it.
    pub words: &'static str,
    /// The archive is what it reads from a pipe.
    pub from_pipe: bool,
}

const fn call(words: &'static str) -> ArchiveCall {
    ArchiveCall { words, from_pipe: false }
}

/// Calls that take an archive: by default, and with the options that allow more.
pub const CALLS: &[ArchiveCall] = &[
    call("import a.tar i.img:/"),
    ArchiveCall { words: "import - i.img:/in", from_pipe: true },
    call("import --absolute-names --follow-links --numeric a.tar i.img:/"),
    call("import --absolute-names --follow-links --threads 1 --map-owner *:7 a.tar i.img:/dir1"),
    call("mkfs -q -F -d a.tar i.img 32M"),
    ArchiveCall { words: "mkfs -q -F --shrink -d - i.img", from_pipe: true },
];

/// What is called on an image into which an archive went with status 0.
const AFTERWARDS: &[&str] = &["find i.img -ls", "export --access-times i.img out.tar"];

/// Formats of GNU tar.
const FORMATS: [&[&str]; 5] = [
    &["--format=gnu", "--sparse"],
    &["--format=v7"],
    &["--format=ustar"],
    &["--format=posix", "--xattrs", "--acls", "--sparse"],
    &["--format=posix", "--sparse", "--sparse-version=0.0"],
];
/// Compressions, by the option of GNU tar; most archives have none, so that damage reaches what is
/// behind the headers.
const COMPRESSIONS: [&str; 3] = ["gzip", "zstd", "xz"];
/// Archives by number, and where the command is called on them.
#[derive(Debug)]
pub struct Trial {
    bases: Vec<(&'static str, Vec<u8>)>,
    image: MemoryDevice,
    yard: Yard,
}

impl Trial {
    /// Makes the sound archives and an image, for calls of `binary`.
    ///
    /// # Errors
    /// tar or e2fsprogs are missing or fail.
    pub fn new(binary: &Path) -> io::Result<Self> {
        let folder = image_folder()?;
        let tree = folder.path().join("tree");
        fill(&tree)?;
        let mut bases = Vec::new();
        for options in FORMATS {
            let mut command = Command::new("tar");
            command.args(options).args(["--sort=name", "-cf", "-", "."]).current_dir(&tree);
            let output = command.output()?;
            if output.stdout.len() < BLOCK {
                return Err(io::Error::other(format!("tar {options:?} wrote nothing")));
            }
            bases.push((options[0], output.stdout));
        }
        let image = image("-t ext4 -b 1024 -N 4096", 32)?;
        Ok(Self { bases, image, yard: Yard::new(binary)? })
    }

    /// Calls every verb that takes an archive on that of a case.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn case(&self, case: u64) -> io::Result<Outcome> {
        let (bytes, what) = self.archive(case)?;
        let mut outcome = Outcome { what, ..Outcome::default() };
        let work = self.yard.work();
        let archive = work.join("a.tar");
        fs::write(&archive, bytes)?;
        let path = work.join("i.img");
        for ArchiveCall { words, from_pipe } in CALLS {
            self.image.save(&path)?;
            let input = from_pipe.then_some(archive.as_path());
            let call = Call { material: "archive", words, input, effect: Effect::Changes };
            let ended = self.yard.call(&call, &mut outcome)?;
            if let Some(fault) = unsound(&path) {
                outcome.faults.push(format!("uext4 {words}: {fault}"));
            }
            let what = &outcome.what;
            if ended == Ended::Well && what.contains(craft::PARENTS) && !what.contains(craft::CUT) {
                outcome.faults.push(format!("uext4 {words}: took a name with .."));
            }
            if ended == Ended::Well {
                self.look(words, &mut outcome)?;
            }
        }
        Ok(outcome)
    }

    /// Lists and exports what came in by a call.
    fn look(&self, after: &str, outcome: &mut Outcome) -> io::Result<()> {
        for words in AFTERWARDS {
            let material = "image of an archive";
            let call = Call { material, words, input: None, effect: Effect::Reads };
            let ended = self.yard.call_and_keep(&call, outcome)?;
            // Verbs that walk enter no path of more than 16 KiB.
            let is_deep = outcome.what.contains(craft::TOO_DEEP);
            if ended != Ended::Well && !is_deep {
                outcome.faults.push(format!("uext4 {after}: then {words} failed"));
            }
        }
        let out = self.yard.work().join("out.tar");
        let read = Command::new("tar").arg("-tf").arg(&out).stdout(Stdio::null()).output()?;
        if !read.status.success() {
            let said = String::from_utf8_lossy(&read.stderr);
            outcome.faults.push(format!("uext4 {after}: exported, tar -t: {}", said.trim()));
        }
        self.yard.clear()
    }

    /// The archive of a case, and what it is.
    fn archive(&self, case: u64) -> io::Result<(Vec<u8>, String)> {
        let mut mutator = Mutator::new(case);
        let outside = self.yard.sentinel();
        let (mut bytes, mut what) = match mutator.below(8) {
            0..5 => crafted(&mut mutator, outside.as_os_str().as_encoded_bytes()),
            sort => {
                let (format, bytes) = mutator.pick(&self.bases);
                let mut bytes = bytes.clone();
                let done = match sort {
                    7 => mutate::damage(&mut bytes, &mut mutator),
                    _ => {
                        let headers = mutate::headers(&bytes);
                        mutate::change_fields(&mut bytes, &headers, &mut mutator)
                    }
                };
                (bytes, format!("{format}, {done}"))
            }
        };
        if mutator.below(8) == 0 {
            let program = *mutator.pick(&COMPRESSIONS);
            bytes = compressed(program, &bytes)?;
            what = format!("{what}, {program}");
            if mutator.below(4) == 0 {
                let at = mutator.below(bytes.len());
                bytes[at] ^= 1 << mutator.below(8);
                what = format!("{what}, a bit of byte {at}");
            }
        }
        Ok((bytes, format!("case {case}: {what}")))
    }
}

/// What a program makes of bytes.
fn compressed(program: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let folder = image_folder()?;
    let path = folder.path().join("plain");
    fs::write(&path, bytes)?;
    let output = Command::new(program).arg("-c").arg(&path).output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(io::Error::other("not compressed"))
    }
}
