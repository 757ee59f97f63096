//! Journals on a device of their own: the one that the command line names, and what a journal
//! device says of itself.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uext4_device::{FileOptions, SharedDevice};
use uext4_ondisk::journal::{JournalDeviceLayout, RawJournalSuperblock, is_journal_device};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{RawSuperblock, uuid_text};

use crate::failure::{Result, Why};
use crate::image;
use crate::place::Place;
use crate::spec::Image;

static PATH: OnceLock<PathBuf> = OnceLock::new();

/// Takes what `--journal-device` names, once.
pub(crate) fn give(path: Option<PathBuf>) {
    if let Some(path) = path {
        // Nobody has given another before.
        let _ = PATH.set(path);
    }
}

/// What `--journal-device` names.
pub(crate) fn given() -> Option<PathBuf> {
    PATH.get().cloned()
}

/// Opens the journal device at `path` for `image`, locked as that is.
pub(crate) fn open(
    verb: &str,
    image: &Image,
    path: &Path,
    options: &FileOptions,
) -> Result<SharedDevice> {
    let journal = Image::parse(path.as_os_str());
    if is_same(&journal.path, &image.path) {
        let path = image.path.display();
        // One file is opened and locked once.
        let why = format!(
            "its journal needs a file or device of its own, not {path} again, nor a partition of it"
        );
        return Err(Why::new(why).at(verb, image));
    }
    image::any_device(verb, &journal, Place::of(verb, &journal)?, options)
}

/// Whether two names are those of one file or device.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| {
        let found = path.metadata().ok()?;
        let is_device = found.file_type().is_block_device();
        Some(if is_device { (true, found.rdev(), 0) } else { (false, found.dev(), found.ino()) })
    };
    of(one).is_some_and(|file| Some(file) == of(other))
}

/// The host's number of a block device, as the superblock of a file system has it; 0 for a file.
pub(crate) fn number(path: &Path) -> u32 {
    let found = path.metadata().ok().filter(|found| found.file_type().is_block_device());
    found.map_or(0, |found| u32::try_from(found.rdev()).unwrap_or(0))
}

/// A journal device, as it says of itself.
pub(crate) struct JournalDevice {
    pub(crate) superblock: RawSuperblock,
    pub(crate) layout: JournalDeviceLayout,
    pub(crate) journal: RawJournalSuperblock,
}

impl JournalDevice {
    /// Reads one; `None` if the device is something else.
    pub(crate) fn read(device: &SharedDevice) -> std::result::Result<Option<Self>, Why> {
        if device.len() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
            return Ok(None);
        }
        let why = |error: &dyn std::fmt::Display| Why::new(error.to_string());
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        let Ok(superblock) = RawSuperblock::read(&bytes) else { return Ok(None) };
        if !is_journal_device(&superblock) {
            return Ok(None);
        }
        let layout =
            JournalDeviceLayout::read(&bytes, device.len()).map_err(|error| why(&error))?;
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(layout.superblock_offset(), &mut bytes)?;
        let journal = RawJournalSuperblock::read(&bytes).map_err(|error| why(&error))?;
        Ok(Some(Self { superblock, layout, journal }))
    }

    /// What it is, and whose, in a line.
    pub(crate) fn sentence(&self) -> String {
        let users: Vec<String> = self.journal.users().iter().map(uuid_text).collect();
        let of = match &users[..] {
            [] => "of no file system yet".to_owned(),
            users => format!("of the file system {}", users.join(" and ")),
        };
        format!("is the journal {} {of}, not a file system", uuid_text(&self.layout.uuid))
    }
}

/// Refuses a journal device where a file system is wanted.
pub(crate) fn refuse(verb: &str, image: &Image, device: SharedDevice) -> Result<SharedDevice> {
    match JournalDevice::read(&device) {
        Ok(Some(journal)) => Err(Why::new(journal.sentence()).at(verb, image)),
        // What else is wrong is told by what reads it.
        Ok(None) | Err(_) => Ok(device),
    }
}
