//! A process of M4 to M6 on a mount.
//!
//! What: `uext4 lab worker VERB DIR DIRS FILES PART PARTS` does one pass over its part of the small
//! files for each byte that it reads, and answers each with a byte. So processes start before the
//! clock does, and all at once. `uext4 lab worker guard ...` is what callgrind looks at, and
//! `uext4 lab worker watch ...` cleans up after a run that was killed, and
//! `uext4 lab worker slow ...` shows an image whose flushes take long.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat, unlinkat};

use crate::error::{Doing, Error, Result};
use crate::load::{SMALL_FILE_BYTES, SmallFiles};

/// What a worker does with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Stat,
    Unlink,
}

impl Verb {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
        }
    }
}

/// Name of a directory of small files.
pub(crate) fn dir_name(number: u32) -> String {
    format!("p{number}")
}

/// Name of a small file.
pub(crate) fn file_name(number: u32) -> String {
    format!("file-{number:06}")
}

/// Runs a worker until its input ends. `args` are those after `lab worker`.
///
/// # Errors
/// Wrong arguments; a failure of the file system.
pub fn serve(args: &[OsString]) -> Result<()> {
    if let [first, rest @ ..] = args
        && first == "guard"
    {
        return crate::guard::serve(rest);
    }
    if let [first, rest @ ..] = args
        && first == "watch"
    {
        return crate::leftovers::watch(rest);
    }
    if let [first, rest @ ..] = args
        && first == "slow"
    {
        return crate::slow_file::serve(rest);
    }
    let wrong = || Error::new("worker: wrong arguments");
    let [verb, dir, numbers @ ..] = args else { return Err(wrong()) };
    let verb = [Verb::Create, Verb::Stat, Verb::Unlink]
        .into_iter()
        .find(|known| verb == known.name())
        .ok_or_else(wrong)?;
    let numbers: Option<Vec<u32>> =
        numbers.iter().map(|number| number.to_str()?.parse().ok()).collect();
    let Some(&[dirs, per_dir, part, parts]) = numbers.as_deref() else { return Err(wrong()) };
    let files = SmallFiles { dirs, per_dir };
    let dir = PathBuf::from(dir);
    let mut byte = [0];
    while io::stdin().read(&mut byte).doing("worker: input")? == 1 {
        pass(verb, &dir, files, part, parts)?;
        let mut answer = io::stdout();
        answer.write_all(&byte).and_then(|()| answer.flush()).doing("worker: answer")?;
    }
    Ok(())
}

fn pass(verb: Verb, top: &Path, files: SmallFiles, part: u32, parts: u32) -> Result<()> {
    let data = [0x5a; SMALL_FILE_BYTES];
    for (number, files) in files.part(part, parts) {
        let path = top.join(dir_name(number));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty())
            .doing(format_args!("opening {}", path.display()))?;
        for file in files {
            let name = file_name(file);
            one(verb, &dir, &name, &data).doing(format_args!(
                "{} {}/{name}",
                verb.name(),
                path.display()
            ))?;
        }
    }
    Ok(())
}

fn one(verb: Verb, dir: &OwnedFd, name: &str, data: &[u8]) -> io::Result<()> {
    match verb {
        Verb::Create => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
            if rustix::io::write(&file, data)? != data.len() {
                return Err(io::Error::other("short write"));
            }
        }
        Verb::Stat => {
            let found = statat(dir, name, AtFlags::empty())?;
            if found.st_size != data.len() as i64 {
                return Err(io::Error::other(format!("{} bytes", found.st_size)));
            }
        }
        Verb::Unlink => unlinkat(dir, name, AtFlags::empty())?,
    }
    Ok(())
}
