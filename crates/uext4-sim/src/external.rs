//! A file system and its journal on another device, in one image.
//!
//! # What
//! The form `external` has its journal on a device of its own. For recordings, snapshots and
//! digests both devices are one image: the file system, and from the next MiB on the journal. Here
//! such an image is taken apart again, for those that open it. Other images have one part.
//!
//! # Invariants
//! Over a recording device each part has a write cache of its own ([`PartDevice::recorded`]).

use crate::run::Shape;
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{
    Access, Device, FileDevice, MemoryDevice, PartDevice, RecordingDevice, SharedDevice,
};
use uext4_mkfs::{JournalDevice, Options, format, format_with_journal};
use uext4_ondisk::RawSuperblock;
use uext4_ondisk::features::external_journal;
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

const MIB: u64 = 1 << 20;

/// Bytes of the journal device of a shape. The kernel wants a log of 1024 blocks behind the
/// superblocks.
pub(crate) fn journal_bytes(shape: &Shape) -> u64 {
    if shape.format.has_journal_device { log_bytes(shape.journal_mib) } else { 0 }
}

/// Bytes of a journal device with a log of so many MiB.
pub(crate) fn log_bytes(journal_mib: u32) -> u64 {
    u64::from(journal_mib) * MIB + (64 << 10)
}

/// Makes a file system and its journal in an image that has room for both.
pub(crate) fn make(memory: &MemoryDevice, shape: &Shape, options: &Options) -> Result<(), String> {
    let failed = |error: uext4_mkfs::MkfsError| format!("mkfs: {error}");
    let whole: SharedDevice = Arc::new(memory.snapshot());
    let border = shape.image_mib * MIB;
    let data = PartDevice::new(whole.clone(), 0..border);
    let log = PartDevice::new(whole.clone(), border..memory.len());
    let words = Options {
        block_size: options.block_size,
        features: "journal_dev".to_owned(),
        discard: Some(false),
        ..Options::default()
    };
    format(&log, &words).map_err(failed)?;
    let journal = JournalDevice::read(&log, 0).map_err(failed)?;
    let options = Options { journal_mib: None, ..options.clone() };
    format_with_journal(&data, &options, Some(&journal)).map_err(failed)?;
    copy(&*whole, memory).map_err(|error| error.to_string())
}

/// Copies the bytes of one device to the begin of another.
pub(crate) fn copy(from: &dyn Device, to: &dyn Device) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    for at in (0..from.len()).step_by(bytes.len()) {
        let part = bytes.len().min((from.len() - at) as usize);
        from.read_at(at, &mut bytes[..part])?;
        to.write_at(at, &bytes[..part])?;
    }
    Ok(())
}

/// The bytes of the file system and of its journal, if that is on another device.
#[must_use]
pub fn parts(device: &dyn Device) -> Option<[Range<u64>; 2]> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).ok()?;
    let raw = RawSuperblock::read(&bytes).ok()?;
    external_journal(&raw)?;
    let block_size = 1024_u64.checked_shl(raw.s_log_block_size.get())?;
    let border = raw.blocks_count().checked_mul(block_size)?.checked_next_multiple_of(MIB)?;
    (border < device.len()).then(|| [0..border, border..device.len()])
}

/// The devices of an image.
#[must_use]
pub fn split(device: &SharedDevice) -> (SharedDevice, Option<SharedDevice>) {
    match parts(&**device) {
        None => (device.clone(), None),
        Some(ranges) => {
            let [data, log] = ranges.map(|range| PartDevice::new(device.clone(), range));
            (Arc::new(data), Some(Arc::new(log)))
        }
    }
}

/// The devices of an image that is recorded.
#[must_use]
pub fn split_recorded(device: &Arc<RecordingDevice>) -> (SharedDevice, Option<SharedDevice>) {
    match parts(&**device) {
        None => (device.clone(), None),
        Some(ranges) => {
            let [data, log] = ranges.map(|range| PartDevice::recorded(device.clone(), range));
            (Arc::new(data), Some(Arc::new(log)))
        }
    }
}

/// Opens the volume of an image.
///
/// # Errors
/// Those of [`Volume::open`].
pub fn open(
    (device, journal): (SharedDevice, Option<SharedDevice>),
    options: MountOptions,
) -> uext4::Result<Volume> {
    match journal {
        None => Volume::open(device, options),
        Some(journal) => Volume::open_with_journal(device, journal, options),
    }
}

/// Where the journal of the image file `path` is put.
#[must_use]
pub fn journal_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".journal");
    PathBuf::from(name)
}

/// Opens the image file `path`, and the journal that was put beside it.
///
/// # Errors
/// Those of opening them.
pub fn open_files(
    path: &Path,
    access: Access,
) -> Result<(SharedDevice, Option<SharedDevice>), String> {
    let open = |path: &Path| -> Result<SharedDevice, String> {
        let device = FileDevice::open(path, access, 0);
        Ok(Arc::new(device.map_err(|error| error.to_string())?))
    };
    let journal = journal_path(path);
    let journal = journal.exists().then(|| open(&journal)).transpose()?;
    Ok((open(path)?, journal))
}
