//! Ageing: a file system is filled and rewritten at random.
//!
//! What: files of 4 KiB to 64 MiB (as many between one and two KiB as between one and two MiB) are
//! written eight at a time in pieces of up to 256 KiB, until the file system is as full as wanted;
//! then files are removed at random and others written in their place, until so many times the
//! bytes that were filled have been rewritten.
//! Invariants: what is done follows from the seed and the number of free bytes alone, in one
//! thread: every target gets the same calls. Space is allocated, no data is written.

use crate::bench::files::{FileSystem, LoadFile};
use crate::error::{Error, Result};
use crate::tree::Random;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a file system is aged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ageing {
    /// Part of the free space that is filled.
    pub full: f64,
    /// Bytes that are rewritten, by those that were filled.
    pub churn: f64,
    /// Where chance begins.
    pub seed: u64,
}

impl Default for Ageing {
    fn default() -> Self {
        Self { full: 0.85, churn: 1.0, seed: 5 }
    }
}

const DIRS: u64 = 16;
const WRITERS: usize = 8;
const BLOCK: u64 = 4096;
const PIECE_BLOCKS: u64 = 64;
/// Largest file at full size; no file is larger than this part of the space.
const FILE_MAX: u64 = 64 << 20;
const SHARE_MAX: u64 = 200;

/// A file that exists.
struct Aged {
    path: String,
    bytes: u64,
}

/// A file that is being written.
struct Writer<'a> {
    file: Aged,
    open: Box<dyn LoadFile + 'a>,
    goal: u64,
}

struct Churn<'a> {
    files: &'a dyn FileSystem,
    random: Random,
    file_max: u64,
    made: u64,
    there: Vec<Aged>,
    writers: Vec<Writer<'a>>,
    /// Bytes allocated now, and ever.
    used: u64,
    written: u64,
}

/// Directories of the files.
pub(crate) fn dirs() -> impl Iterator<Item = String> {
    (0..DIRS).map(|number| format!("aged{number}"))
}

/// Ages an empty file system with that many bytes free.
///
/// # Errors
/// A call failed; somebody wants the run to end.
pub(crate) fn age(
    files: &dyn FileSystem,
    free_bytes: u64,
    ageing: &Ageing,
    stop: &AtomicBool,
) -> Result<()> {
    for dir in dirs() {
        files.make_dir(&dir)?;
    }
    let full = (free_bytes as f64 * ageing.full) as u64;
    let total = full.saturating_add((full as f64 * ageing.churn) as u64);
    let mut churn = Churn {
        files,
        random: Random(ageing.seed),
        file_max: FILE_MAX.min(full / SHARE_MAX).max(2 * BLOCK),
        made: 0,
        there: Vec::new(),
        writers: Vec::new(),
        used: 0,
        written: 0,
    };
    while churn.written < total {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::new("interrupted"));
        }
        if churn.used + PIECE_BLOCKS * BLOCK > full {
            churn.remove_one()?;
        } else {
            churn.write_piece()?;
        }
    }
    Ok(())
}

impl Churn<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end.max(1))
    }

    /// As many files in each power of two.
    fn size(&mut self) -> u64 {
        let blocks_max = self.file_max / BLOCK;
        let order = self.below(u64::from(blocks_max.ilog2()));
        let least = 1 << order;
        (least + self.below(least)) * BLOCK
    }

    fn write_piece(&mut self) -> Result<()> {
        if self.writers.len() < WRITERS {
            let path = format!("aged{}/f{}", self.made % DIRS, self.made);
            self.made += 1;
            let (open, goal) = (self.files.create(&path)?, self.size());
            self.writers.push(Writer { file: Aged { path, bytes: 0 }, open, goal });
        }
        let chosen = self.below(self.writers.len() as u64) as usize;
        let piece = (1 + self.below(PIECE_BLOCKS)) * BLOCK;
        let writer = &mut self.writers[chosen];
        let piece = piece.min(writer.goal - writer.file.bytes);
        writer.open.allocate(writer.file.bytes, piece)?;
        writer.file.bytes += piece;
        self.used += piece;
        self.written += piece;
        if writer.file.bytes == writer.goal {
            let done = self.writers.swap_remove(chosen);
            self.there.push(done.file);
        }
        Ok(())
    }

    fn remove_one(&mut self) -> Result<()> {
        if self.there.is_empty() {
            return Err(Error::new("too small to be aged: use a larger --scale"));
        }
        let chosen = self.below(self.there.len() as u64) as usize;
        let gone = self.there.swap_remove(chosen);
        self.files.remove(&gone.path)?;
        self.used -= gone.bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// Sizes of files, and every call in order.
    #[derive(Default)]
    struct Log {
        files: Mutex<BTreeMap<String, u64>>,
        calls: Mutex<Vec<String>>,
    }

    struct Entry<'a>(&'a Log, String);

    impl FileSystem for Log {
        fn make_dir(&self, name: &str) -> Result<()> {
            self.calls.lock().unwrap().push(format!("dir {name}"));
            Ok(())
        }
        fn create(&self, path: &str) -> Result<Box<dyn LoadFile + '_>> {
            assert!(self.files.lock().unwrap().insert(path.to_owned(), 0).is_none());
            self.calls.lock().unwrap().push(format!("make {path}"));
            Ok(Box::new(Entry(self, path.to_owned())))
        }
        fn remove(&self, path: &str) -> Result<()> {
            self.calls.lock().unwrap().push(format!("remove {path}"));
            self.files.lock().unwrap().remove(path).map(|_| ()).ok_or(Error::new("is not there"))
        }
    }

    impl LoadFile for Entry<'_> {
        fn allocate(&self, offset: u64, len: u64) -> Result<()> {
            self.0.calls.lock().unwrap().push(format!("grow {} {offset} {len}", self.1));
            let mut files = self.0.files.lock().unwrap();
            let size = files.get_mut(&self.1).expect("there");
            assert_eq!(*size, offset);
            *size += len;
            Ok(())
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_system_is_as_full_as_wanted_after_the_churn() {
        let (log, stop) = (Log::default(), AtomicBool::new(false));
        let free = 1 << 30;
        age(&log, free, &Ageing::default(), &stop).unwrap();
        let used: u64 = log.files.lock().unwrap().values().sum();
        let part = used as f64 / free as f64;
        assert!((0.80..=0.85).contains(&part), "{part}");
        let calls = log.calls.lock().unwrap();
        assert!(calls.iter().any(|call| call.starts_with("remove ")));
    }

    #[test]
    fn every_target_gets_the_same_calls() {
        let stop = AtomicBool::new(false);
        let calls = |seed| {
            let log = Log::default();
            let ageing = Ageing { seed, ..Ageing::default() };
            age(&log, 300 << 20, &ageing, &stop).unwrap();
            log.calls.into_inner().unwrap()
        };
        assert_eq!(calls(1), calls(1));
        assert_ne!(calls(1), calls(2));
    }
}
