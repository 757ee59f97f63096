//! Files of listed directories that a reader of the tree will read soon.
//!
//! What: a program that reads a tree lists a directory and then reads its files in that order. Once
//! some were read so, the next ones are named before they are asked for, and those of the next
//! directory as soon as it is listed. A walk that reads no file is not taken for a reader: what is
//! known of one halves with each directory.

use std::collections::VecDeque;
use uext4_ondisk::Ino;

/// Most directories that are remembered, and files of each.
const LISTINGS_MAX: usize = 16;
pub(super) const FILES_MAX: usize = 16 << 10;
/// Files that are named before they are read.
const WINDOW: usize = 32;
/// Files of a directory, or lately of all, that were read in order before others are named, and how
/// many count.
const READS_MIN: u32 = 2;
const READS_MAX: u32 = 64;

/// What was listed last, and how far it was read.
#[derive(Debug, Default)]
pub(super) struct ListedFiles {
    /// The newest first.
    listings: VecDeque<Listing>,
    /// Files that were read in order, lately.
    reads: u32,
}

#[derive(Debug)]
struct Listing {
    directory: Ino,
    files: Vec<Ino>,
    /// Where in `files` the next read is expected, and how many were named.
    next: usize,
    named: usize,
    reads: u32,
}

impl ListedFiles {
    /// Files of a directory were listed, from its start or from where the last call ended. Returns
    /// the files to read now.
    pub(super) fn listed(&mut self, directory: Ino, from_start: bool, files: &[Ino]) -> Vec<Ino> {
        let newest = self.listings.front_mut().filter(|newest| newest.directory == directory);
        if let Some(newest) = newest.filter(|_| !from_start) {
            let room = FILES_MAX.saturating_sub(newest.files.len());
            newest.files.extend(files.iter().take(room));
            return Vec::new();
        }
        self.reads /= 2;
        let files = files[..files.len().min(FILES_MAX)].to_vec();
        let mut listing = Listing { directory, files, next: 0, named: 0, reads: 0 };
        let now = if self.reads >= READS_MIN { listing.name() } else { Vec::new() };
        self.listings.truncate(LISTINGS_MAX - 1);
        self.listings.push_front(listing);
        now
    }

    /// A file is read from its start. Returns the files to read now.
    pub(super) fn read(&mut self, file: Ino) -> Vec<Ino> {
        for listing in &mut self.listings {
            let expected = listing.files[listing.next..].iter().take(WINDOW);
            if let Some(skipped) = expected.enumerate().find(|(_, ino)| **ino == file) {
                listing.next += skipped.0 + 1;
                listing.reads += 1;
                self.reads = (self.reads + 1).min(READS_MAX);
                let is_reader = listing.reads.max(self.reads) >= READS_MIN;
                return if is_reader { listing.name() } else { Vec::new() };
            }
        }
        // Somebody else's, or once more.
        Vec::new()
    }
}

impl Listing {
    /// The next files that are not named yet, once half a window of them can be.
    fn name(&mut self) -> Vec<Ino> {
        let end = (self.next + WINDOW).min(self.files.len());
        let begin = self.named.max(self.next);
        if begin + WINDOW / 2 > end && end < self.files.len() {
            return Vec::new();
        }
        self.named = self.named.max(end);
        self.files.get(begin..end).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inos(range: std::ops::Range<u32>) -> Vec<Ino> {
        range.map(Ino).collect()
    }

    /// Fault model: files that nobody reads are read ahead, of a walk or of single reads.
    #[test]
    fn a_walk_names_no_file() {
        let mut listed = ListedFiles::default();
        for directory in 0..100 {
            let files = inos(1000 * directory + 100..1000 * directory + 200);
            assert!(listed.listed(Ino(directory), true, &files).is_empty());
        }
        assert!(listed.read(Ino(99_100)).is_empty());
        assert!(listed.read(Ino(99_199)).is_empty(), "far from the last");
        assert!(listed.read(Ino(99_100)).is_empty(), "once more");
        assert!(listed.read(Ino(7)).is_empty());
    }

    /// Fault model: a file is named twice, or left out, or only when it is read.
    #[test]
    fn each_file_is_named_once_before_it_is_read() {
        let mut listed = ListedFiles::default();
        listed.listed(Ino(1), true, &inos(100..150));
        listed.listed(Ino(1), false, &inos(150..300));
        let mut named = Vec::new();
        for file in 100..300 {
            assert!(file < 102 || named.contains(&Ino(file)), "{file}");
            named.extend(listed.read(Ino(file)));
        }
        assert_eq!(named, inos(102..300));
        // The next directory's are named when it is listed.
        assert_eq!(listed.listed(Ino(2), true, &inos(500..510)), inos(500..510));
        // All of them are named.
        assert!(listed.read(Ino(500)).is_empty());
    }

    /// Fault model: a second program that reads other files, or walks, ends the reading ahead.
    #[test]
    fn a_reader_is_told_from_others() {
        let mut listed = ListedFiles::default();
        listed.listed(Ino(1), true, &inos(100..200));
        let mut named = Vec::new();
        for at in 0..100 {
            named.extend(listed.read(Ino(100 + at)));
            assert!(listed.read(Ino(7)).is_empty());
            if at % 10 == 0 {
                listed.listed(Ino(2), true, &inos(1000..1001));
            }
        }
        assert_eq!(named, inos(102..200));
    }

    /// Fault model: what is remembered grows without bound, or a walk is still taken for a reader.
    #[test]
    fn what_is_known_is_forgotten() {
        let mut listed = ListedFiles::default();
        listed.listed(Ino(1), true, &inos(100..300));
        (100..300).for_each(|file| drop(listed.read(Ino(file))));
        let naming =
            (0..100).filter(|at| !listed.listed(Ino(at + 2), true, &inos(0..9)).is_empty());
        assert_eq!(naming.count(), 5);
        assert_eq!(listed.listings.len(), LISTINGS_MAX);
        listed.listed(Ino(500), true, &[]);
        for _ in 0..10 {
            listed.listed(Ino(500), false, &inos(0..10_000));
        }
        assert_eq!(listed.listings[0].files.len(), FILES_MAX);
    }
}
