//! The verbs that take archives, on ones that GNU tar wrote and that were changed since, and on
//! ones that were made to do harm.
//!
//! # What else is judged
//! The image that was filled is as e2fsck wants it, whatever came in.

mod craft;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use uext4_device::MemoryDevice;
use uext4_fsck::Options;

use self::craft::{BLOCK, crafted, seal};
use crate::hostile::{Effect, Outcome, Yard};
use crate::oracle::image_folder;
use crate::shape::{fill, image};
use crate::structure_damage::Mutator;

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
/// Bytes of an archive that are looked at for headers: the rest is content.
const DAMAGED_MAX: usize = 1 << 20;

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
        let image = image("-t ext4 -b 1024 -N 1024", 24)?;
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
        for (words, from_pipe) in [
            ("import a.tar i.img:/", false),
            ("import - i.img:/in", true),
            ("import --absolute-names --numeric a.tar i.img:/", false),
            ("mkfs -q -d a.tar i.img 24M", false),
        ] {
            self.image.save(&path)?;
            let input = from_pipe.then_some(archive.as_path());
            self.yard.call(words, input, ("i.img", Effect::Changes), &mut outcome)?;
            if let Some(fault) = unsound(&path) {
                outcome.faults.push(format!("uext4 {words}: {fault}"));
            }
        }
        Ok(outcome)
    }

    /// The archive of a case, and what it is.
    fn archive(&self, case: u64) -> io::Result<(Vec<u8>, String)> {
        let mut mutator = Mutator::new(case);
        let (mut bytes, mut what) = if mutator.below(3) == 0 {
            crafted(&mut mutator)
        } else {
            let (format, bytes) = mutator.pick(&self.bases);
            let mut bytes = bytes.clone();
            let done = damage(&mut bytes, &mut mutator);
            (bytes, format!("{format}, {done}"))
        };
        if mutator.below(8) == 0 {
            let program = *mutator.pick(&COMPRESSIONS);
            bytes = compressed(program, &bytes)?;
            what = format!("{what}, {program}");
            if mutator.below(2) == 0 {
                let at = mutator.below(bytes.len());
                bytes[at] ^= 1 << mutator.below(8);
                what = format!("{what}, a bit of byte {at}");
            }
        }
        Ok((bytes, format!("case {case}: {what}")))
    }
}

/// Changes an archive in up to three places; tells where.
fn damage(bytes: &mut Vec<u8>, mutator: &mut Mutator) -> String {
    let mut done = Vec::new();
    for _ in 0..=mutator.below(3) {
        let blocks = bytes.len().min(DAMAGED_MAX) / BLOCK;
        let block = mutator.below(blocks);
        let (at, other) = (block * BLOCK, mutator.below(blocks) * BLOCK);
        done.push(match mutator.below(6) {
            0 => {
                let len = mutator.below(bytes.len());
                bytes.truncate(len.max(BLOCK));
                format!("cut at {len}")
            }
            1 => {
                bytes.copy_within(other..other + BLOCK, at);
                format!("block at {other} written to {at}")
            }
            2 => {
                // What the rest says is taken for something else: headers are out of step.
                bytes.drain(at..at + BLOCK / 2);
                format!("half a block less at {at}")
            }
            _ => {
                let field = mutator.below(BLOCK);
                for byte in bytes[at + field..].iter_mut().take(1 + mutator.below(12)) {
                    *byte = u8::try_from(mutator.below(256)).unwrap_or(0);
                }
                let is_sealed = mutator.below(4) != 0;
                if is_sealed {
                    seal(&mut bytes[at..at + BLOCK]);
                }
                format!("bytes at {at}+{field}{}", if is_sealed { ", sealed" } else { "" })
            }
        });
        if bytes.len() < 2 * BLOCK {
            break;
        }
    }
    done.join("; ")
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

/// What is wrong with the image at `path`, in words.
fn unsound(path: &Path) -> Option<String> {
    let device = match MemoryDevice::load(path) {
        Ok(device) => device,
        Err(error) => return Some(error.to_string()),
    };
    match uext4_fsck::check(&device, &Options::default(), &mut ()) {
        Ok(report) if report.is_clean() => None,
        Ok(report) => Some(format!("the image is damaged: {}", report.findings[0])),
        Err(error) => Some(format!("the image cannot be checked: {error}")),
    }
}
