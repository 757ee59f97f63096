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

mod harness;

use harness::Harness;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use uext4::config::DataMode;

/// Name of the file, at the root.
const NAME: &[u8] = b"file";
/// The directory that it is in.
const DIRECTORY: &[u8] = b"directory";
/// Operations kept to be printed with a fault.
const HISTORY: usize = 40;

/// A file system, a mount and a file.
#[derive(Clone, Copy, Debug)]
pub struct FsxShape {
    /// What it is called in reports.
    pub name: &'static str,
    /// Bytes per block.
    pub block_size: u32,
    /// Bytes per cluster (bigalloc).
    pub cluster_size: Option<u32>,
    /// Bytes per inode.
    pub inode_size: Option<u32>,
    /// Features that edit the default set (`mkfs -O`).
    pub features: &'static str,
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
pub const SHAPES: [FsxShape; 13] = [
    FsxShape { name: "4 KiB blocks", ..PLAIN },
    FsxShape {
        name: "1 KiB blocks, eager write-back",
        block_size: 1024,
        dirty_expire_ms: 1,
        ..PLAIN
    },
    FsxShape { name: "no delayed allocation", delalloc: false, ..PLAIN },
    FsxShape {
        name: "a long sparse file",
        block_size: 1024,
        file_max: 6 << 20,
        operation_max: 300_000,
        ..PLAIN
    },
    FsxShape { name: "whole blocks", align: 4096, dirty_expire_ms: 5, ..PLAIN },
    FsxShape { name: "journaled data", data_mode: DataMode::Journal, ..PLAIN },
    FsxShape {
        name: "journaled data, a long sparse file",
        data_mode: DataMode::Journal,
        block_size: 1024,
        file_max: 6 << 20,
        operation_max: 300_000,
        ..PLAIN
    },
    FsxShape {
        name: "block maps",
        block_size: 1024,
        features: "^extent,^64bit",
        dirty_expire_ms: 5,
        file_max: 6 << 20,
        operation_max: 300_000,
        ..PLAIN
    },
    FsxShape {
        name: "in the inode and out of it",
        inode_size: Some(1024),
        features: "inline_data",
        file_max: 1800,
        operation_max: 900,
        ..PLAIN
    },
    FsxShape { name: "encrypted", features: "encrypt", dirty_expire_ms: 5, ..PLAIN },
    FsxShape {
        name: "clusters of 16 KiB",
        block_size: 1024,
        features: "bigalloc",
        cluster_size: Some(16384),
        dirty_expire_ms: 5,
        ..PLAIN
    },
    FsxShape {
        name: "clusters of 8 KiB, whole clusters, no delayed allocation",
        features: "bigalloc",
        cluster_size: Some(8192),
        delalloc: false,
        align: 8192,
        ..PLAIN
    },
    FsxShape {
        name: "clusters of 16 KiB, journaled data",
        features: "bigalloc",
        cluster_size: Some(16384),
        data_mode: DataMode::Journal,
        ..PLAIN
    },
];

const PLAIN: FsxShape = FsxShape {
    name: "",
    block_size: 4096,
    cluster_size: None,
    inode_size: None,
    features: "",
    delalloc: true,
    data_mode: DataMode::Ordered,
    dirty_expire_ms: 100,
    file_max: 256 << 10,
    operation_max: 64 << 10,
    align: 1,
};

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsxTally {
    operations: u64,
    bytes_compared: u64,
    reopened: u64,
    crashes: u64,
}

impl fmt::Display for FsxTally {
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
enum FsxOperation {
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
pub fn run(shape: &FsxShape, seed: u64, operations: u64) -> Result<FsxTally, String> {
    exercise(shape, seed, operations, false)
}

/// As [`run`], on a model that forgets every 500th write: the run must end with a fault.
///
/// # Errors
/// As [`run`].
pub fn run_with_injected_fault(
    shape: &FsxShape,
    seed: u64,
    operations: u64,
) -> Result<FsxTally, String> {
    exercise(shape, seed, operations, true)
}

fn exercise(
    shape: &FsxShape,
    seed: u64,
    operations: u64,
    forgets: bool,
) -> Result<FsxTally, String> {
    let mut harness = Harness::new(shape, seed)?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut history: Vec<String> = Vec::new();
    for number in 0..operations {
        let operation = pick(shape, harness.model.len() as u64, &mut rng);
        if history.len() == HISTORY {
            history.remove(0);
        }
        history.push(format!("{number}: size {:#x}, {operation:x?}", harness.model.len()));
        let before = (forgets && number % 500 == 499).then(|| harness.model.clone());
        if let Err(fault) = harness.act(operation) {
            return Err(format!("operation {number}: {fault}\n  {}", history.join("\n  ")));
        }
        if let Some(before) = before {
            harness.model = before;
        }
        harness.tally.operations += 1;
    }
    harness.finish()
}

fn pick(shape: &FsxShape, size: u64, rng: &mut StdRng) -> FsxOperation {
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
        0..240 => FsxOperation::Read { at: inside, len },
        240..480 => FsxOperation::Write { at, len, fill },
        480..530 if size + shape.operation_max < shape.file_max => {
            FsxOperation::Append { len, fill }
        }
        480..600 => FsxOperation::Copy { from: inside, to: at, len },
        600..700 => FsxOperation::Truncate { to: at },
        700..780 => FsxOperation::Punch { at: inside, len },
        // Files with block maps have none of these, and encrypted ones are not shifted.
        780..920 if shape.features.contains("^extent") => FsxOperation::Punch { at: inside, len },
        890..920 if shape.features.contains("encrypt") => FsxOperation::Punch { at: inside, len },
        780..850 => FsxOperation::Allocate { at, len, keep_size },
        890..905 => FsxOperation::Collapse { at: blocks(inside), len: blocks(len) },
        905..920 if size + len < shape.file_max => {
            FsxOperation::Insert { at: blocks(inside), len: blocks(len) }
        }
        850..920 => FsxOperation::Zero { at, len, keep_size },
        920..960 => FsxOperation::Seek { at: inside },
        960..980 => FsxOperation::Sync { data_only: rng.random() },
        980..994 => FsxOperation::Reopen,
        994..998 => FsxOperation::Remount { crash: false },
        _ => FsxOperation::Remount { crash: true },
    }
}
