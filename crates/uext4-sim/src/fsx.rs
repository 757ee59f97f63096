//! The file system exerciser in a process: random operations on the bytes of one file.
//!
//! # What
//! [`run`] does with the engine what the program fsx does with a mount: each operation is done to
//! the file and to a vector of bytes, and every read is compared with the vector. On top of fsx:
//! zeroing of ranges, preallocation beyond the end, SEEK_DATA and SEEK_HOLE, closing the volume and
//! opening it again, and a crash right after a sync.
//!
//! # Fault model
//! A byte that is not the last one written there, a size that is not the last one set, a hole that
//! hides data, data that is shown beyond the end, an error on a device that has none, an image that
//! e2fsck finds fault with. Not covered: several files or threads, mmap(2) (the engine has none),
//! operations that are in flight at a crash.

use crate::oracle::{JUNK, Oracle};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::Arc;
use uext4::config::DataMode;
use uext4::{
    AllocateMode, ErrorKind, FileKind, MountOptions, NewInode, OpenFile, Owner, SetAttr, Volume,
};
use uext4_device::{Device, MemoryDevice, SharedDevice};

/// Name of the file, at the root.
const NAME: &[u8] = b"file";
/// Operations kept to be printed with a fault.
const HISTORY: usize = 40;

/// A file system, a mount and a file.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What it is called in reports.
    pub name: &'static str,
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks are allocated at write-back.
    pub delalloc: bool,
    /// `data=`.
    pub data_mode: DataMode,
    /// Dirty data is written back after this time, in milliseconds.
    pub dirty_expire_ms: u64,
    /// Longest file, in bytes.
    pub file_max: u64,
    /// Longest operation, in bytes.
    pub operation_max: u64,
    /// Everything begins and ends at a multiple of this, in bytes.
    pub align: u64,
}

/// The shapes that a run goes through.
pub const SHAPES: [Shape; 7] = [
    Shape { name: "4 KiB blocks", ..PLAIN },
    Shape { name: "1 KiB blocks, eager write-back", block_size: 1024, dirty_expire_ms: 1, ..PLAIN },
    Shape { name: "no delayed allocation", delalloc: false, ..PLAIN },
    Shape {
        name: "a long sparse file",
        block_size: 1024,
        file_max: 6 << 20,
        operation_max: 300_000,
        ..PLAIN
    },
    Shape { name: "whole blocks", align: 4096, dirty_expire_ms: 5, ..PLAIN },
    Shape { name: "journaled data", data_mode: DataMode::Journal, ..PLAIN },
    Shape {
        name: "journaled data, a long sparse file",
        data_mode: DataMode::Journal,
        block_size: 1024,
        file_max: 6 << 20,
        operation_max: 300_000,
        ..PLAIN
    },
];

const PLAIN: Shape = Shape {
    name: "",
    block_size: 4096,
    delalloc: true,
    data_mode: DataMode::Ordered,
    dirty_expire_ms: 100,
    file_max: 256 << 10,
    operation_max: 64 << 10,
    align: 1,
};

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    operations: u64,
    bytes_compared: u64,
    reopened: u64,
    crashes: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} MiB compared, volume reopened {} times, {} of them after a crash",
            self.operations,
            self.bytes_compared >> 20,
            self.reopened,
            self.crashes,
        )
    }
}

/// One operation, with what it needs.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Read { at: u64, len: u64 },
    Write { at: u64, len: u64, fill: u8 },
    Append { len: u64, fill: u8 },
    Copy { from: u64, to: u64, len: u64 },
    Truncate { to: u64 },
    Punch { at: u64, len: u64 },
    Allocate { at: u64, len: u64, keep_size: bool },
    Zero { at: u64, len: u64, keep_size: bool },
    Collapse { at: u64, len: u64 },
    Insert { at: u64, len: u64 },
    Seek { at: u64 },
    Sync { data_only: bool },
    Reopen,
    Remount { crash: bool },
}

/// Does `operations` random operations on a fresh volume of `shape`.
///
/// # Errors
/// The first fault, with the operations before it.
pub fn run(shape: &Shape, seed: u64, operations: u64) -> Result<Tally, String> {
    exercise(shape, seed, operations, false)
}

/// Likewise, on a model that forgets every 500th write: the run must end with a fault.
///
/// # Errors
/// As [`run`].
pub fn run_with_injected_fault(shape: &Shape, seed: u64, operations: u64) -> Result<Tally, String> {
    exercise(shape, seed, operations, true)
}

fn exercise(shape: &Shape, seed: u64, operations: u64, forgets: bool) -> Result<Tally, String> {
    let mut rig = Rig::new(shape, seed)?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut history: Vec<String> = Vec::new();
    for number in 0..operations {
        let operation = pick(shape, rig.model.len() as u64, &mut rng);
        if history.len() == HISTORY {
            history.remove(0);
        }
        history.push(format!("{number}: size {:#x}, {operation:x?}", rig.model.len()));
        let before = (forgets && number % 500 == 499).then(|| rig.model.clone());
        if let Err(fault) = rig.act(operation) {
            return Err(format!("operation {number}: {fault}\n  {}", history.join("\n  ")));
        }
        if let Some(before) = before {
            rig.model = before;
        }
        rig.tally.operations += 1;
    }
    rig.finish()
}

fn pick(shape: &Shape, size: u64, rng: &mut StdRng) -> Operation {
    let aligned = |n: u64| n / shape.align * shape.align;
    // Some that are refused, too.
    let block = if rng.random_bool(0.9) { u64::from(shape.block_size) } else { shape.align };
    let blocks = |n: u64| n / block * block;
    let at = aligned(rng.random_range(0..shape.file_max));
    let most = shape.operation_max.min(shape.file_max - at);
    // Short ones, too, at which most edges are.
    let len = if rng.random_bool(0.3) { most.min(5000) } else { most };
    let len = aligned(rng.random_range(1..=len)).max(shape.align).min(shape.file_max - at);
    let inside = aligned(rng.random_range(0..size.max(1)));
    let fill = rng.random_range(1..=255);
    let keep_size = rng.random();
    match rng.random_range(0..1000) {
        0..240 => Operation::Read { at: inside, len },
        240..480 => Operation::Write { at, len, fill },
        480..530 if size + shape.operation_max < shape.file_max => Operation::Append { len, fill },
        480..600 => Operation::Copy { from: inside, to: at, len },
        600..700 => Operation::Truncate { to: at },
        700..780 => Operation::Punch { at: inside, len },
        780..850 => Operation::Allocate { at, len, keep_size },
        890..905 => Operation::Collapse { at: blocks(inside), len: blocks(len) },
        905..920 if size + len < shape.file_max => {
            Operation::Insert { at: blocks(inside), len: blocks(len) }
        }
        850..920 => Operation::Zero { at, len, keep_size },
        920..960 => Operation::Seek { at: inside },
        960..980 => Operation::Sync { data_only: rng.random() },
        980..994 => Operation::Reopen,
        994..998 => Operation::Remount { crash: false },
        _ => Operation::Remount { crash: true },
    }
}

/// The file, and what it should hold.
struct Rig {
    device: Arc<MemoryDevice>,
    options: MountOptions,
    /// Absent only while the volume is reopened.
    open: Option<(Volume, OpenFile)>,
    model: Vec<u8>,
    block_size: u32,
    tally: Tally,
}

impl Rig {
    fn new(shape: &Shape, seed: u64) -> Result<Rig, String> {
        // Free blocks hold junk: what is shown without having been written is seen.
        let device = MemoryDevice::new(32 << 20);
        let junk = vec![JUNK; 1 << 20];
        for mib in 0..32 {
            device.write_at(mib << 20, &junk).map_err(|error| error.to_string())?;
        }
        let format = uext4_mkfs::Options {
            block_size: Some(shape.block_size),
            hash_seed: Some([seed as u8; 16]),
            discard: false,
            ..uext4_mkfs::Options::default()
        };
        uext4_mkfs::format(&device, &format).map_err(|error| format!("mkfs: {error}"))?;
        let options = MountOptions {
            delalloc: shape.delalloc,
            data_mode: shape.data_mode,
            dirty_expire_ms: shape.dirty_expire_ms,
            commit_interval_ms: 200,
            cache_bytes: MountOptions::CACHE_BYTES_MIN,
            ..MountOptions::default()
        };
        let mut rig = Rig {
            device: Arc::new(device),
            options,
            open: None,
            model: Vec::new(),
            block_size: shape.block_size,
            tally: Tally::default(),
        };
        let volume = rig.volume()?;
        let root = volume.root().map_err(say)?;
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            owner: Owner::default(),
            rdev: uext4::Device::default(),
        };
        let inode = volume.create(&root, NAME, &new).map_err(say)?;
        let file = volume.open_file(&inode).map_err(say)?;
        rig.open = Some((volume, file));
        Ok(rig)
    }

    fn volume(&self) -> Result<Volume, String> {
        let device: SharedDevice = self.device.clone();
        Volume::open(device, self.options.clone()).map_err(|error| format!("open: {error}"))
    }

    fn file(&self) -> Result<&OpenFile, String> {
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| "no volume".to_owned())
    }

    fn act(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Read { at, len } => return self.compare(at, len),
            Operation::Write { at, len, fill } => self.write(at, &pattern(len, fill))?,
            Operation::Append { len, fill } => {
                let bytes = pattern(len, fill);
                let (at, written) = self.file()?.append(&bytes).map_err(say)?;
                if (at, written) != (self.model.len() as u64, bytes.len()) {
                    return Err(format!("append came to {at:#x} and wrote {written:#x}"));
                }
                self.model.extend_from_slice(&bytes);
            }
            Operation::Copy { from, to, len } => {
                let mut bytes = vec![0; len as usize];
                let read = self.file()?.read_at(from, &mut bytes).map_err(say)?;
                bytes.truncate(read);
                self.write(to, &bytes)?;
            }
            Operation::Truncate { to } => {
                let (volume, file) = self.open.as_ref().ok_or("no volume")?;
                let change = SetAttr { size: Some(to), ..SetAttr::default() };
                volume.set_attr(file.inode(), &change).map_err(say)?;
                self.model.resize(to as usize, 0);
            }
            Operation::Punch { at, len } => {
                self.file()?.allocate(AllocateMode::PunchHole, at, len).map_err(say)?;
                self.clear(at, len);
            }
            Operation::Allocate { at, len, keep_size } => {
                let mode = AllocateMode::Allocate { keep_size };
                self.file()?.allocate(mode, at, len).map_err(say)?;
                self.extend(at + len, keep_size);
            }
            Operation::Zero { at, len, keep_size } => {
                let mode = AllocateMode::ZeroRange { keep_size };
                self.file()?.allocate(mode, at, len).map_err(say)?;
                self.extend(at + len, keep_size);
                self.clear(at, len);
            }
            Operation::Collapse { at, len } => {
                let size = self.model.len() as u64;
                if self.shift(AllocateMode::CollapseRange, at, len, at + len < size)? {
                    self.model.drain(at as usize..(at + len) as usize);
                }
            }
            Operation::Insert { at, len } => {
                let size = self.model.len() as u64;
                if self.shift(AllocateMode::InsertRange, at, len, at < size)? {
                    let at = at as usize;
                    self.model.splice(at..at, std::iter::repeat_n(0, len as usize));
                }
            }
            Operation::Seek { at } => return self.seek(at),
            Operation::Sync { data_only } => self.file()?.sync(data_only).map_err(say)?,
            Operation::Reopen => {
                let (volume, file) = self.open.take().ok_or("no volume")?;
                file.flush().map_err(say)?;
                drop(file);
                self.find(volume)?;
            }
            Operation::Remount { crash } => self.remount(crash)?,
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

    /// Whether the range was moved, which it must be if `fits` and it consists of whole blocks.
    fn shift(&self, mode: AllocateMode, at: u64, len: u64, fits: bool) -> Result<bool, String> {
        let block = u64::from(self.block_size);
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
        let root = volume.root().map_err(say)?;
        let inode = volume.lookup(&root, NAME).map_err(say)?;
        let file = volume.open_file(&inode).map_err(say)?;
        self.open = Some((volume, file));
        Ok(())
    }

    /// Compares the whole file once more, closes, and asks e2fsck where there is one.
    fn finish(mut self) -> Result<Tally, String> {
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
