//! The file beside its model: each operation is done to both.

use super::{DIRECTORY, FsxOperation, FsxShape, FsxTally, NAME};
use crate::encrypted;
use crate::oracle::{JUNK, Oracle};
use std::sync::Arc;
use uext4::{
    AllocateMode, ErrorKind, FileKind, MountOptions, NewInode, OpenFile, Owner, SetAttr, Volume,
};
use uext4_device::{Device, MemoryDevice, SharedDevice};

/// The file, and what it should hold.
pub(super) struct Harness {
    device: Arc<MemoryDevice>,
    options: MountOptions,
    /// Absent only while the volume is reopened.
    open: Option<(Volume, OpenFile)>,
    pub(super) model: Vec<u8>,
    /// Ranges are collapsed and inserted in multiples of so many bytes.
    shift_unit: u32,
    pub(super) tally: FsxTally,
}

impl Harness {
    pub(super) fn new(shape: &FsxShape, seed: u64) -> Result<Harness, String> {
        // Free blocks hold junk: what is shown without having been written is seen.
        let device = MemoryDevice::new(32 << 20);
        let junk = vec![JUNK; 1 << 20];
        for mib in 0..32 {
            device.write_at(mib << 20, &junk).map_err(|error| error.to_string())?;
        }
        let format = uext4_mkfs::Options {
            block_size: Some(shape.block_size),
            cluster_size: shape.cluster_size,
            inode_size: shape.inode_size,
            features: shape.features.to_owned(),
            hash_seed: Some([seed as u8; 16]),
            discard: Some(false),
            ..uext4_mkfs::Options::default()
        };
        uext4_mkfs::format(&device, &format).map_err(|error| format!("mkfs: {error}"))?;
        let options = encrypted::with_key(MountOptions {
            delalloc: shape.delalloc,
            data_mode: shape.data_mode,
            dirty_expire_ms: shape.dirty_expire_ms,
            commit_interval_ms: 200,
            cache_bytes: MountOptions::CACHE_BYTES_MIN,
            ..MountOptions::default()
        });
        let mut harness = Harness {
            device: Arc::new(device),
            options,
            open: None,
            model: Vec::new(),
            shift_unit: shape.cluster_size.unwrap_or(shape.block_size),
            tally: FsxTally::default(),
        };
        let volume = harness.volume()?;
        let root = volume.root().map_err(say)?;
        let new = |kind| NewInode {
            kind,
            mode: 0o755,
            owner: Owner::default(),
            rdev: uext4::Device::default(),
        };
        let dir = volume.create(&root, DIRECTORY, &new(FileKind::Directory)).map_err(say)?;
        encrypted::encrypt(&volume, &dir).map_err(say)?;
        let inode = volume.create(&dir, NAME, &new(FileKind::Regular)).map_err(say)?;
        let file = volume.open_file(&inode).map_err(say)?;
        harness.open = Some((volume, file));
        Ok(harness)
    }

    fn volume(&self) -> Result<Volume, String> {
        let device: SharedDevice = self.device.clone();
        Volume::open(device, self.options.clone()).map_err(|error| format!("open: {error}"))
    }

    fn file(&self) -> Result<&OpenFile, String> {
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| "no volume".to_owned())
    }

    pub(super) fn act(&mut self, operation: FsxOperation) -> Result<(), String> {
        match operation {
            FsxOperation::Read { at, len } => return self.compare(at, len),
            FsxOperation::Write { at, len, fill } => self.write(at, &pattern(len, fill))?,
            FsxOperation::Append { len, fill } => {
                let bytes = pattern(len, fill);
                let (at, written) = self.file()?.append(&bytes).map_err(say)?;
                if (at, written) != (self.model.len() as u64, bytes.len()) {
                    return Err(format!("append came to {at:#x} and wrote {written:#x}"));
                }
                self.model.extend_from_slice(&bytes);
            }
            FsxOperation::Copy { from, to, len } => {
                let mut bytes = vec![0; len as usize];
                let read = self.file()?.read_at(from, &mut bytes).map_err(say)?;
                bytes.truncate(read);
                self.write(to, &bytes)?;
            }
            FsxOperation::Truncate { to } => {
                let (volume, file) = self.open.as_ref().ok_or("no volume")?;
                let change = SetAttr { size: Some(to), ..SetAttr::default() };
                volume.set_attr(file.inode(), &change).map_err(say)?;
                self.model.resize(to as usize, 0);
            }
            FsxOperation::Punch { at, len } => {
                self.file()?.allocate(AllocateMode::PunchHole, at, len).map_err(say)?;
                self.clear(at, len);
            }
            FsxOperation::Allocate { at, len, keep_size } => {
                let mode = AllocateMode::Allocate { keep_size };
                self.file()?.allocate(mode, at, len).map_err(say)?;
                self.extend(at + len, keep_size);
            }
            FsxOperation::Zero { at, len, keep_size } => {
                let mode = AllocateMode::ZeroRange { keep_size };
                self.file()?.allocate(mode, at, len).map_err(say)?;
                self.extend(at + len, keep_size);
                self.clear(at, len);
            }
            FsxOperation::Collapse { at, len } => {
                let size = self.model.len() as u64;
                if self.shift(AllocateMode::CollapseRange, at, len, at + len < size)? {
                    self.model.drain(at as usize..(at + len) as usize);
                }
            }
            FsxOperation::Insert { at, len } => {
                let size = self.model.len() as u64;
                if self.shift(AllocateMode::InsertRange, at, len, at < size)? {
                    let at = at as usize;
                    self.model.splice(at..at, std::iter::repeat_n(0, len as usize));
                }
            }
            FsxOperation::Seek { at } => return self.seek(at),
            FsxOperation::Sync { data_only } => self.file()?.sync(data_only).map_err(say)?,
            FsxOperation::Reopen => {
                let (volume, file) = self.open.take().ok_or("no volume")?;
                file.flush().map_err(say)?;
                drop(file);
                self.find(volume)?;
            }
            FsxOperation::Remount { crash } => self.remount(crash)?,
        }
        self.check_size()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let written = self.file()?.write_at(at, bytes).map_err(say)?;
        if written != bytes.len() {
            return Err(format!("{written} of {} bytes written", bytes.len()));
        }
        if !bytes.is_empty() {
            let (at, end) = (at as usize, at as usize + bytes.len());
            self.model.resize(self.model.len().max(end), 0);
            self.model[at..end].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Whether the range was moved, which it must be if `fits` and it consists of whole blocks, or
    /// clusters.
    fn shift(&self, mode: AllocateMode, at: u64, len: u64, fits: bool) -> Result<bool, String> {
        let block = u64::from(self.shift_unit);
        let allowed = fits && len > 0 && at.is_multiple_of(block) && len.is_multiple_of(block);
        match self.file()?.allocate(mode, at, len) {
            Ok(()) if allowed => Ok(true),
            Err(error) if !allowed && *error.kind() == ErrorKind::InvalidArgument => Ok(false),
            other => Err(format!("{mode:?}, allowed {allowed}: {other:?}")),
        }
    }

    fn extend(&mut self, end: u64, keep_size: bool) {
        if !keep_size {
            self.model.resize(self.model.len().max(end as usize), 0);
        }
    }

    fn clear(&mut self, at: u64, len: u64) {
        let end = self.model.len().min((at + len) as usize);
        if (at as usize) < end {
            self.model[at as usize..end].fill(0);
        }
    }

    fn check_size(&self) -> Result<(), String> {
        let (volume, file) = self.open.as_ref().ok_or("no volume")?;
        let size = volume.attr(file.inode()).size;
        if size == self.model.len() as u64 {
            return Ok(());
        }
        Err(format!("size {size:#x} instead of {:#x}", self.model.len()))
    }

    /// Reads and compares, one byte past the end as well.
    fn compare(&mut self, at: u64, len: u64) -> Result<(), String> {
        let mut bytes = vec![JUNK; len as usize];
        let read = self.file()?.read_at(at, &mut bytes).map_err(say)?;
        let from = self.model.len().min(at as usize);
        let want = &self.model[from..self.model.len().min((at + len) as usize)];
        if read != want.len() {
            return Err(format!("read {read:#x} bytes instead of {:#x}", want.len()));
        }
        self.tally.bytes_compared += read as u64;
        match bytes.iter().zip(want).position(|(one, other)| one != other) {
            None => Ok(()),
            Some(index) => {
                let place = at + index as u64;
                let (got, want) = (bytes[index], want[index]);
                Err(format!("byte {place:#x} is {got:#x} instead of {want:#x}"))
            }
        }
    }

    /// What is in a hole is zero, and the two questions agree.
    fn seek(&self, at: u64) -> Result<(), String> {
        let size = self.model.len() as u64;
        if at >= size {
            return Ok(());
        }
        let file = self.file()?;
        let data = file.seek_data(at).unwrap_or(size).min(size);
        if let Some(byte) = self.model[at as usize..data as usize].iter().position(|b| *b != 0) {
            return Err(format!("byte {:#x} is data in a hole", at + byte as u64));
        }
        let hole = file.seek_hole(at).map_err(say)?;
        if hole > size || (data > at && hole != at) || (data == at && hole == at) {
            return Err(format!("from {at:#x} data at {data:#x}, hole at {hole:#x}"));
        }
        Ok(())
    }

    fn remount(&mut self, crash: bool) -> Result<(), String> {
        let (volume, file) = self.open.take().ok_or("no volume")?;
        if crash {
            file.sync(false).map_err(say)?;
        }
        drop(file);
        self.tally.reopened += 1;
        self.tally.crashes += u64::from(crash);
        if crash {
            volume.abandon();
        } else {
            volume.close().map_err(|error| format!("close: {error}"))?;
        }
        let volume = self.volume()?;
        self.find(volume)?;
        self.check_size()?;
        self.compare(0, self.model.len() as u64 + 1)
    }

    fn find(&mut self, volume: Volume) -> Result<(), String> {
        let dir = volume.lookup(&volume.root().map_err(say)?, DIRECTORY).map_err(say)?;
        let inode = volume.lookup(&dir, NAME).map_err(say)?;
        let file = volume.open_file(&inode).map_err(say)?;
        self.open = Some((volume, file));
        Ok(())
    }

    /// Compares the whole file once more, closes, and asks e2fsck where there is one.
    pub(super) fn finish(mut self) -> Result<FsxTally, String> {
        self.remount(false)?;
        if let Some((volume, file)) = self.open.take() {
            drop(file);
            volume.close().map_err(|error| format!("close: {error}"))?;
        }
        if crate::oracle::e2fsck().is_some() {
            let oracle = Oracle::new().map_err(|error| error.to_string())?;
            let path = oracle.put(&self.device, "fsx").map_err(|error| error.to_string())?;
            crate::oracle::expect_clean(&path)?;
        }
        Ok(self.tally)
    }
}

/// Bytes that tell their place, so that a shifted block is seen.
fn pattern(len: u64, fill: u8) -> Vec<u8> {
    (0..len).map(|n| (n >> 3) as u8 ^ fill).collect()
}

fn say(error: uext4::Error) -> String {
    format!("{error} ({:?})", error.kind())
}
