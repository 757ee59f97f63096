//! Reading a folder that anybody may have made.
//!
//! Invariants:
//! - Below the folder no symbolic link is followed and nothing but a regular file is read: a FIFO
//!   or a device cannot hold the reader up, and no file from elsewhere comes into a page.
//! - Everything has a bound: bytes of a file, bytes of all, names of a folder, remarks. What is
//!   left out is a remark.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags};
use serde::de::DeserializeOwned;

/// Bytes of a file that are read at most, and of all files together.
const FILE_MAX: u64 = 64 << 20;
const ALL_MAX: u64 = 192 << 20;
/// The same of files that are one value of JSON, and of a line that is one: in memory a value takes
/// thirty times the bytes of its text and more.
const JSON_MAX: u64 = 8 << 20;
const ALL_JSON_MAX: u64 = 32 << 20;
const LINE_MAX: usize = 1 << 20;
/// Names of a folder that are looked at.
const NAMES_MAX: usize = 20_000;
/// Lines of a file that are told as broken, each.
const BROKEN_MAX: usize = 5;
/// Remarks, and characters of one: a message about a value may hold the value.
const REMARKS_MAX: usize = 200;
const REMARK_MAX: usize = 300;

/// A folder being read, and what there is to say about it.
pub(super) struct Reading {
    folder: OwnedFd,
    /// Bytes that may still be read, and those of files that are JSON.
    left: u64,
    json_left: u64,
    remarks: Vec<String>,
    /// How many remarks were too many.
    untold: usize,
}

impl Reading {
    pub(super) const fn new(folder: OwnedFd) -> Self {
        let (left, json_left) = (ALL_MAX, ALL_JSON_MAX);
        Self { folder, left, json_left, remarks: Vec::new(), untold: 0 }
    }

    /// What was remarked.
    pub(super) fn into_remarks(mut self) -> Vec<String> {
        if self.untold > 0 {
            self.remarks.push(format!("{} more remarks are left out", self.untold));
        }
        self.remarks
    }

    pub(super) fn remark(&mut self, text: impl Into<String>) {
        if self.remarks.len() == REMARKS_MAX {
            self.untold += 1;
            return;
        }
        let mut text: String = text.into();
        if let Some((end, _)) = text.char_indices().nth(REMARK_MAX) {
            text.truncate(end);
            text.push_str(" ...");
        }
        self.remarks.push(text);
    }

    /// Whether there is something of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.kind_of(name).is_some()
    }

    fn is_link(&self, name: &str) -> bool {
        self.kind_of(name) == Some(FileType::Symlink)
    }

    fn kind_of(&self, name: &str) -> Option<FileType> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(&self.folder, name, flags).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// A file; `None` where there is none.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.text_within(name, FILE_MAX)
    }

    /// A file of so many bytes at most.
    pub(super) fn text_within(&mut self, name: &str, most: u64) -> Option<String> {
        let file = self.open(name)?;
        let length = file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        let most = most.min(self.left);
        if length > most {
            self.remark(format!("{name}: {length} bytes are too many, it is left out"));
            return None;
        }
        // A file that grows meanwhile is not read beyond that.
        self.read(name, &file, most)
    }

    /// The beginning of a file, and whether there is more.
    pub(super) fn beginning(&mut self, name: &str, most: u64) -> Option<(String, bool)> {
        let file = self.open(name)?;
        let is_cut = file.metadata().is_ok_and(|metadata| metadata.len() > most);
        let most = most.min(self.left);
        Some((self.read(name, &file, most)?, is_cut))
    }

    /// An object, or `None` and a remark.
    pub(super) fn json<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let text = self.text_within(name, JSON_MAX.min(self.json_left))?;
        self.json_left = self.json_left.saturating_sub(text.len() as u64);
        match serde_json::from_str(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.remark(format!("{name}: {error}"));
                None
            }
        }
    }

    /// So many objects at most, one a line; lines of another form are told.
    pub(super) fn lines<T: DeserializeOwned>(
        &mut self,
        name: &str,
        text: &str,
        most: usize,
    ) -> Vec<T> {
        let mut all = Vec::new();
        self.each_line(name, text, most, |value| all.push(value));
        all
    }

    /// The same, one after the other.
    pub(super) fn each_line<T: DeserializeOwned>(
        &mut self,
        name: &str,
        text: &str,
        most: usize,
        mut take: impl FnMut(T),
    ) {
        let (mut broken, mut taken) = (0, 0);
        for (line, number) in text.lines().zip(1..) {
            if line.trim().is_empty() {
                continue;
            }
            if taken == most {
                self.remark(format!("{name}: the report has its first {most} lines"));
                break;
            }
            let value = match line.len() {
                0..=LINE_MAX => serde_json::from_str(line).map_err(|error| error.to_string()),
                length => Err(format!("{length} bytes are too many")),
            };
            match value {
                Ok(value) => {
                    taken += 1;
                    take(value);
                }
                Err(error) => {
                    broken += 1;
                    if broken <= BROKEN_MAX {
                        self.remark(format!("{name}, line {number}: {error}"));
                    }
                }
            }
        }
        if broken > BROKEN_MAX {
            self.remark(format!("{name}: {broken} lines are broken"));
        }
    }

    /// What lies in a folder below with that ending: name without it, and path.
    pub(super) fn files(&mut self, folder: &str, ending: &str) -> Vec<(String, String)> {
        if !self.has(folder) {
            return Vec::new();
        }
        let opened = self.open_folder(folder).and_then(Dir::new);
        let entries = match opened {
            Ok(entries) => entries,
            Err(rustix::io::Errno::NOTDIR) => {
                // A file beside folders is of no concern.
                if self.is_link(folder) {
                    self.remark(format!("{folder}: a symbolic link, it is left out"));
                }
                return Vec::new();
            }
            Err(error) => {
                self.remark(format!("{folder}: {error}"));
                return Vec::new();
            }
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> =
            names.filter(|name| name != "." && name != "..").take(NAMES_MAX + 1).collect();
        if names.len() > NAMES_MAX {
            self.remark(format!("{folder}: more than {NAMES_MAX} names, the others are left out"));
            names.truncate(NAMES_MAX);
        }
        names.sort();
        let of = |name: String| {
            let key = name.strip_suffix(ending)?.to_owned();
            Some((key, format!("{folder}/{name}")))
        };
        names.into_iter().filter_map(of).collect()
    }

    /// The regular file of that name; anything else that is there is a remark.
    fn open(&mut self, name: &str) -> Option<File> {
        let (folder, file) = match name.rsplit_once('/') {
            Some((folder, file)) => (self.open_folder(folder).ok()?, file),
            None => (self.folder.try_clone().ok()?, name),
        };
        // A FIFO is opened without waiting for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&folder, file, flags | OFlags::CLOEXEC, Mode::empty());
        let why = match opened {
            Ok(file) => match kind(&file) {
                Ok(FileType::RegularFile) => return Some(File::from(file)),
                Ok(_) => "no regular file, it is left out".to_owned(),
                Err(error) => error.to_string(),
            },
            Err(rustix::io::Errno::NOENT) => return None,
            Err(rustix::io::Errno::LOOP) => "a symbolic link, it is left out".to_owned(),
            Err(error) => error.to_string(),
        };
        self.remark(format!("{name}: {why}"));
        None
    }

    /// A folder below, each part of its path without a symbolic link.
    fn open_folder(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut parts = path.split('/');
        let first = parts.next().unwrap_or_default();
        let mut folder = rustix::fs::openat(&self.folder, first, flags, Mode::empty())?;
        for part in parts {
            folder = rustix::fs::openat(&folder, part, flags, Mode::empty())?;
        }
        Ok(folder)
    }

    fn read(&mut self, name: &str, file: &File, most: u64) -> Option<String> {
        let mut bytes = Vec::new();
        if let Err(error) = file.take(most).read_to_end(&mut bytes) {
            self.remark(format!("{name}: {error}"));
            return None;
        }
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn kind(file: &impl AsFd) -> rustix::io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode))
}
