//! Growths of a file system (`uext4 resize`), cut by a loss of power.
//!
//! # Fault model
//! The power fails at any moment of a growth. The medium then holds what a completed flush or FUA
//! promises, and of the other writes any subset, torn ([`crate::crash`]).
//!
//! # What each state must show
//! [`judge`] has it: a whole file system of the old size, of the new one or of a step between, for
//! this engine, for e2fsck, and for the kernel, which may also refuse it.
//!
//! # Not covered
//! Failing reads and writes; crashes while a state is recovered.

mod cases;
mod judge;

pub use cases::{CASES, Case};
pub use judge::{Effort, Judged, judge};

use crate::broken_syncs::FlushDropper;
use crate::external;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use uext4::{MountOptions, NewInode, Owner, Volume};
use uext4_device::{Device, MemoryDevice, PartDevice, Recording, RecordingDevice, SharedDevice};
use uext4_mkfs::{JournalDevice, Options};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{FileKind, RawSuperblock};

const MIB: u64 = 1 << 20;
const CONTENT: usize = 300_000;

/// Opens the file system for a step.
pub type Open<'a> = &'a mut dyn FnMut() -> uext4::Result<Volume>;

/// Grows a file system with this superblock to so many blocks or a few fewer; returns the blocks
/// that it has before, between steps and afterwards. Not a dependency, as the tests of what grows
/// use this crate.
pub type Grow = fn(&RawSuperblock, u64, Open<'_>) -> Result<BTreeSet<u64>, String>;

/// A growth that was recorded.
pub struct Growth {
    case: &'static Case,
    /// The blocks that the file system may have: before, between steps, afterwards.
    pub sizes: BTreeSet<u64>,
    /// What was written.
    pub recording: Recording,
}

/// The bytes of the one file.
fn content() -> Vec<u8> {
    (0..CONTENT).map(|at| ((at * 31) ^ (at >> 9)) as u8).collect()
}

fn superblock(device: &dyn Device) -> RawSuperblock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let read = device.read_at(SUPERBLOCK_OFFSET, &mut bytes).ok();
    read.and_then(|()| RawSuperblock::from_prefix(&bytes)).unwrap_or_else(RawSuperblock::zeroed)
}

fn options() -> MountOptions {
    MountOptions { cache_bytes: 16 << 20, ..MountOptions::default() }
}

impl Case {
    /// The bytes of the file system's device on the medium, and of the journal's, if there is one.
    fn parts(&self) -> (Range<u64>, Option<Range<u64>>) {
        let border = (self.to << 10).next_multiple_of(MIB);
        let log = border..border + external::log_bytes(self.journal_mib());
        (0..border, self.has_journal_device.then_some(log))
    }

    fn devices(&self, whole: &SharedDevice) -> (SharedDevice, Option<SharedDevice>) {
        let (data, log) = self.parts();
        let part = |range| Arc::new(PartDevice::new(whole.clone(), range)) as SharedDevice;
        (part(data), log.map(part))
    }

    fn recorded_devices(
        &self,
        whole: &Arc<RecordingDevice>,
    ) -> (SharedDevice, Option<SharedDevice>) {
        let (data, log) = self.parts();
        let part = |range| Arc::new(PartDevice::recorded(whole.clone(), range)) as SharedDevice;
        // Of one device a flush is one of the whole.
        match log {
            None => (whole.clone(), None),
            Some(log) => (part(data), Some(part(log))),
        }
    }

    /// A medium with a file system that holds a file.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn image(&self, grow: Grow) -> Result<MemoryDevice, String> {
        let (data, log) = self.parts();
        let memory = MemoryDevice::new(log.map_or(data.end, |log| log.end));
        let memory = Arc::new(memory);
        let whole: SharedDevice = memory.clone();
        self.make(&self.devices(&whole))?;
        let told = |error: uext4::Error| error.to_string();
        let volume = external::open(self.devices(&whole), options()).map_err(told)?;
        let root = volume.root().map_err(told)?;
        let (owner, rdev) = (Owner::default(), uext4::Device::default());
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, owner, rdev };
        let file = volume.create(&root, b"content", &new).map_err(told)?;
        let file = volume.open_file(&file).map_err(told)?;
        file.write_at(0, &content()).map_err(told)?;
        drop(file);
        volume.close().map_err(told)?;
        if let Some(kib) = self.first_to {
            self.grow(grow, &|| self.devices(&whole), kib)?;
        }
        Ok(memory.snapshot())
    }

    fn make(&self, (data, log): &(SharedDevice, Option<SharedDevice>)) -> Result<(), String> {
        let failed = |error: uext4_mkfs::MkfsError| format!("mkfs: {error}");
        let options = self.options();
        let Some(log) = log else {
            return uext4_mkfs::format(&**data, &options).map(drop).map_err(failed);
        };
        let words = Options {
            block_size: options.block_size,
            features: "journal_dev".to_owned(),
            discard: Some(false),
            ..Options::default()
        };
        uext4_mkfs::format(&**log, &words).map_err(failed)?;
        let journal = JournalDevice::read(&**log, 0).map_err(failed)?;
        let options = Options { journal_mib: None, ..options };
        uext4_mkfs::format_with_journal(&**data, &options, Some(&journal)).map_err(failed)?;
        Ok(())
    }

    fn grow(
        &self,
        grow: Grow,
        devices: &dyn Fn() -> (SharedDevice, Option<SharedDevice>),
        kib: u64,
    ) -> Result<BTreeSet<u64>, String> {
        let sb = superblock(&*devices().0);
        let blocks = (kib << 10) >> (10 + sb.s_log_block_size.get());
        grow(&sb, blocks, &mut || external::open(devices(), options()))
    }

    /// Grows a copy of an image over a device that records.
    ///
    /// # Errors
    /// It does not grow.
    pub fn record(&'static self, image: &MemoryDevice, grow: Grow) -> Result<Growth, String> {
        let recorder = Arc::new(RecordingDevice::over(image.snapshot()));
        let sizes = self.grow(grow, &|| self.recorded_devices(&recorder), self.to)?;
        Ok(Growth { case: self, sizes, recording: recorder.recording() })
    }

    /// As [`Case::record`], on a device that answers flushes without doing them.
    ///
    /// # Errors
    /// It does not grow.
    pub fn record_without_flushes(
        &'static self,
        image: &MemoryDevice,
        grow: Grow,
    ) -> Result<Growth, String> {
        let recorder = Arc::new(RecordingDevice::over(image.snapshot()));
        let device: SharedDevice = Arc::new(FlushDropper::new(recorder.clone()));
        let sizes = self.grow(grow, &|| (device.clone(), None), self.to)?;
        Ok(Growth { case: self, sizes, recording: recorder.recording() })
    }
}
