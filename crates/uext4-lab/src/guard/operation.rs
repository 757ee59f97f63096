//! The operations whose cost is guarded.

use std::sync::Arc;

use uext4::{
    AllocateMode, Device, FileKind, InodeRef, IoBuf, MountOptions, NewInode, OpenFile, Owner,
    Volume,
};
use uext4_device::{MemoryDevice, MeteredDevice};

use crate::error::{Doing, Result};

const DEVICE_BYTES: u64 = 256 << 20;
/// So large that no checkpoint comes by itself.
const JOURNAL_MIB: u32 = 64;
/// Bytes of a block.
const BLOCK: usize = 4096;
const APPEND: usize = 16 << 10;
/// Blocks of the file that is overwritten.
const BLOCKS: u32 = 64;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Lookup,
    Unlink,
    Write,
    Allocate,
    WriteSync,
    AppendSync,
    WriteDirect,
}

impl Operation {
    pub(super) const ALL: [Self; 8] = [
        Self::Create,
        Self::Lookup,
        Self::Unlink,
        Self::Write,
        Self::Allocate,
        Self::WriteSync,
        Self::AppendSync,
        Self::WriteDirect,
    ];

    /// Its name in a baseline.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Lookup => "lookup",
            Self::Unlink => "unlink",
            Self::Write => "write",
            Self::Allocate => "fallocate",
            Self::WriteSync => "overwrite and fdatasync",
            Self::AppendSync => "append and fsync",
            Self::WriteDirect => "direct overwrite",
        }
    }
}

/// A volume in memory on which an operation can be performed.
pub(super) struct Prepared {
    operation: Operation,
    pub(super) volume: Volume,
    pub(super) meter: Arc<MeteredDevice>,
    root: InodeRef,
    file: OpenFile,
    data: IoBuf,
}

impl Prepared {
    /// Prepares for numbers below `times`. Everything is in memory and durable.
    pub(super) fn new(operation: Operation, times: u32) -> Result<Self> {
        let device = MemoryDevice::new(DEVICE_BYTES);
        let options = uext4_mkfs::Options {
            block_size: Some(BLOCK as u32),
            journal_mib: Some(JOURNAL_MIB),
            // Hashes decide where a name lies.
            uuid: Some([0x75; 16]),
            hash_seed: Some([0x5a; 16]),
            ..Default::default()
        };
        uext4_mkfs::format(&device, &options).doing("mkfs")?;
        let meter = Arc::new(MeteredDevice::new(Arc::new(device)));
        // Nothing comes by itself while the operations run.
        let never = 3_600_000;
        let options = MountOptions {
            commit_interval_ms: never,
            dirty_expire_ms: never,
            ..MountOptions::default()
        };
        let volume = Volume::open(meter.clone(), options)?;
        let root = volume.root()?;
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            owner: Owner::default(),
            rdev: Device::default(),
        };
        let file = volume.open_file(&volume.create(&root, b"file", &new)?)?;
        let mut data = IoBuf::new(APPEND).doing("a buffer")?;
        data.fill(0x5a);
        for block in 0..BLOCKS {
            file.write_at(u64::from(block) * BLOCK as u64, &data[..BLOCK])?;
        }
        if matches!(operation, Operation::Lookup | Operation::Unlink) {
            (0..times).try_for_each(|n| volume.create(&root, &name(n), &new).map(|_| ()))?;
        }
        if operation == Operation::WriteDirect {
            file.sync(false)?;
            file.drop_cached()?;
        }
        volume.sync()?;
        Ok(Self { operation, volume, meter, root, file, data })
    }

    /// Performs the operation; `n` counts up from 0.
    pub(super) fn perform(&self, n: u32) -> Result<()> {
        let block = u64::from(n * 37 % BLOCKS) * BLOCK as u64;
        let data = &self.data[..BLOCK];
        match self.operation {
            Operation::Create => {
                let new = NewInode {
                    kind: FileKind::Regular,
                    mode: 0o644,
                    owner: Owner::default(),
                    rdev: Device::default(),
                };
                self.volume.create(&self.root, &name(n), &new)?;
            }
            Operation::Lookup => {
                let inode = self.volume.lookup(&self.root, &name(n))?;
                let _ = self.volume.attr(&inode);
            }
            Operation::Unlink => self.volume.unlink(&self.root, &name(n))?,
            Operation::Write => {
                self.file.write_at(block, data)?;
            }
            Operation::Allocate => {
                let at = u64::from(BLOCKS + 2 * n) * BLOCK as u64;
                self.file.allocate(
                    AllocateMode::Allocate { keep_size: false },
                    at,
                    2 * BLOCK as u64,
                )?;
            }
            Operation::WriteSync => {
                self.file.write_at(block, data)?;
                self.file.sync(true)?;
            }
            Operation::AppendSync => {
                self.file.append(&self.data)?;
                self.file.sync(false)?;
            }
            Operation::WriteDirect => {
                self.file.write_direct_at(block, data)?;
            }
        }
        Ok(())
    }
}

fn name(n: u32) -> Vec<u8> {
    format!("file-{n:06}").into_bytes()
}
