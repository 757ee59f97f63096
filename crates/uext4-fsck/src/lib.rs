//! Checks ext2, ext3 and ext4 file systems, as e2fsck -fn does.
//!
//! What: [`check`] reads a file system and returns a [`Report`] of [`Finding`]s. It never writes,
//! and it does not replay the journal. A dirty journal is a warning, and what its transactions
//! would still change may be reported as findings. Replay the journal first if that matters.
//!
//! The passes are those of e2fsck: superblock and descriptors; inodes and their blocks;
//! directories; connectivity; link counts; bitmaps and counts. Inodes and bitmaps are checked by
//! group and directories one by one, by `Options::threads` threads.
//!
//! | module | what it is |
//! |---|---|
//! | `problem`, `report`, `log` | what can be wrong; what was found |
//! | `volume`, `claims`, `work` | what is known so far; blocks in use; threads |
//! | `super_block`, `hidden`, `external` | before the passes |
//! | `inode`, `content`, `map`, `xattr` | pass 1 |
//! | `dir`, `htree` | pass 2 |
//! | `connect` | passes 3 and 4 |
//! | `summary`, `quota` | pass 5; usage of owners |
//!
//! Invariants: the engine is never used, so that a bug there cannot hide from its own checker. No
//! image makes a check panic or loop, or use memory out of proportion to the device.

#![forbid(unsafe_code)]

mod claims;
mod connect;
mod content;
mod dir;
mod external;
mod hidden;
mod htree;
mod inode;
mod log;
mod map;
mod problem;
mod quota;
mod report;
mod summary;
mod super_block;
mod volume;
mod work;
mod xattr;

use std::io;
use std::sync::atomic::Ordering;

use uext4_device::Device;
use uext4_ondisk::{Ino, RawInode, RoCompat};

use crate::inode::Scan;
use crate::log::Log;
use crate::volume::{Inodes, Volume, kind};

pub use crate::problem::{CODES, Code, Place, Problem, Severity};
pub use crate::report::{Counts, Finding, Report};

/// How to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads. With 0 or 1 the calling thread does all work.
    pub threads: usize,
    /// Findings that are kept. Further ones are only counted.
    pub findings_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 1, findings_max: 10_000 }
    }
}

/// A pass over the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Inodes, their blocks and attributes; in groups.
    Inodes,
    /// Directories; one by one.
    Directories,
    /// Connectivity of directories.
    Connectivity,
    /// Link counts; in groups.
    Links,
    /// Bitmaps and counts; in groups.
    Bitmaps,
}

impl Pass {
    /// What the pass checks.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inodes => "inodes, blocks and sizes",
            Self::Directories => "directory structure",
            Self::Connectivity => "directory connectivity",
            Self::Links => "reference counts",
            Self::Bitmaps => "group summary information",
        }
    }

    /// Number of the pass, from 1.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Inodes => 1,
            Self::Directories => 2,
            Self::Connectivity => 3,
            Self::Links => 4,
            Self::Bitmaps => 5,
        }
    }
}

/// Receives the progress of a check.
pub trait Progress: Send {
    /// A pass of `steps` steps starts.
    fn pass(&mut self, _pass: Pass, _steps: u64) {}
    /// About `done` steps of the pass are done.
    fn advance(&mut self, _done: u64) {}
}

/// Progress is not reported.
impl Progress for () {}

/// Why a file system cannot be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// There is no superblock, nor a backup of one.
    #[error("no ext2, ext3 or ext4 superblock")]
    NoFileSystem,
    /// Features that the checker does not know.
    #[error("features that cannot be checked: {names}")]
    Refused {
        /// Their names in e2fsprogs spelling, separated by blanks.
        names: String,
    },
    /// Its journal is on another device, which is not at hand.
    #[error("its journal is on another device: name it (-j)")]
    JournalElsewhere,
    /// Reading the superblock failed.
    #[error("cannot read the superblock: {0}")]
    Device(#[source] io::Error),
}

/// Checks the file system on a device. Nothing is written.
///
/// # Errors
/// [`CheckError`] if there is nothing that can be checked. Damage of the file system is a finding
/// of the report, not an error.
pub fn check(
    device: &dyn Device,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, CheckError> {
    check_with_journal(device, None, options, progress)
}

/// As [`check`], of a file system whose journal is on `journal`, if it is on another device.
///
/// # Errors
/// Those of [`check`].
pub fn check_with_journal(
    device: &dyn Device,
    journal: Option<&dyn Device>,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, CheckError> {
    let mut log = Log::new(options.findings_max);
    let mut counts = Counts::default();
    if let Some(volume) = super_block::open(device, journal, options, &mut log)?
        && !log.is_fatal()
    {
        counts = passes(&volume, progress, &mut log);
    }
    let stopped = log.is_fatal();
    let (problems, errors, warnings) = log.finish();
    let findings = problems.into_iter().map(Finding::from).collect();
    Ok(Report { findings, errors, warnings, stopped, counts })
}

fn passes(volume: &Volume<'_>, progress: &mut dyn Progress, log: &mut Log) -> Counts {
    let fixed = summary::fixed_in_uninit(volume);
    match volume.journal {
        Some(device) => external::journal(volume, device, log),
        None => hidden::journal(volume, log),
    }
    hidden::orphan_file(volume, log);
    hidden::resize(volume, log);

    let xattrs = xattr::Table::default();
    let groups = volume.groups.len();
    progress.pass(Pass::Inodes, groups as u64);
    let scans = work::map(volume.options.threads, groups, progress, |index| {
        let scan = inode::scan(volume, &xattrs, uext4_ondisk::GroupNo(index as u32));
        Scanned::from(scan)
    });
    let (inodes, mut counts, usage) = gather(volume, scans, log);
    xattrs.refcounts(log);
    shared_blocks(volume, &inodes, log);

    progress.pass(Pass::Directories, inodes.dirs.len() as u64);
    let logs = work::map(volume.options.threads, inodes.dirs.len(), progress, |index| {
        dir::check(volume, &inodes, &inodes.dirs[index])
    });
    logs.into_iter().for_each(|found| log.absorb(found));

    progress.pass(Pass::Connectivity, 1);
    connect::directories(&inodes, log);
    progress.advance(1);
    progress.pass(Pass::Links, groups as u64);
    connect::links(volume, &inodes, &xattrs, log);
    progress.advance(groups as u64);

    progress.pass(Pass::Bitmaps, groups as u64);
    let sums = work::map(volume.options.threads, groups, progress, |index| {
        summary::group(volume, &inodes, &fixed, index)
    });
    summary::total(volume, sums, &mut counts, log);
    quota::check(volume, &usage, log);
    counts
}

/// The result of a scan when its worker is done.
struct Scanned {
    inodes: volume::GroupInodes,
    dirs: Vec<volume::Dir>,
    log: Log,
    counts: Counts,
    has_large_file: bool,
    usage: quota::Usage,
}

impl From<Scan<'_, '_>> for Scanned {
    fn from(scan: Scan<'_, '_>) -> Self {
        let Scan { inodes, dirs, log, counts, has_large_file, usage, .. } = scan;
        Self { inodes, dirs, log, counts, has_large_file, usage }
    }
}

fn gather(
    volume: &Volume<'_>,
    scans: Vec<Scanned>,
    log: &mut Log,
) -> (Inodes, Counts, quota::Usage) {
    let mut inodes = Inodes { per_group: volume.layout.inodes_per_group, ..Inodes::default() };
    let mut counts = Counts::default();
    let (mut has_large_file, mut usage) = (false, quota::Usage::default());
    for scan in scans {
        log.absorb(scan.log);
        inodes.groups.push(scan.inodes);
        inodes.dirs.extend(scan.dirs);
        counts.inodes_used += scan.counts.inodes_used;
        counts.fragmented += scan.counts.fragmented;
        counts.files += scan.counts.files;
        counts.directories += scan.counts.directories;
        counts.symlinks += scan.counts.symlinks;
        counts.special += scan.counts.special;
        has_large_file |= scan.has_large_file;
        usage.merge(scan.usage);
    }
    if has_large_file && !volume.ro_compat(RoCompat::LARGE_FILE) {
        log.add(Problem::SuperLargeFile {});
    }
    if let Some(root) = inodes.dir(Ino::ROOT) {
        // No entry names the root; it is its own parent.
        root.parent.store(Ino::ROOT.get(), Ordering::Relaxed);
    }
    (inodes, counts, usage)
}

/// Pass 1B: reports all owners of multiply-claimed blocks.
fn shared_blocks(volume: &Volume<'_>, inodes: &Inodes, log: &mut Log) {
    let shared = volume.claims.shared();
    if shared.is_empty() || volume.ro_compat(RoCompat::SHARED_BLOCKS) {
        return;
    }
    let before = log.errors();
    for (group, found) in volume.group_numbers().zip(&inodes.groups) {
        for (index, bits) in (0..).zip(&found.kinds) {
            let ino = volume.layout.ino_of(group, index);
            let mapped = matches!(bits & kind::TYPE, 1 | 2 | 7);
            if bits & kind::USED == 0 || !mapped || ino == Ino::RESIZE {
                continue;
            }
            let Some(slot) = volume.slot(ino, log) else { continue };
            let Ok(raw) = RawInode::read(&slot) else { continue };
            if content::has_blocks(&raw) {
                content::shared(volume, &shared, ino, &raw, log);
            }
        }
    }
    // The sharing is reported even if an owner cannot be found again.
    if log.errors() == before
        && let Some((block, count)) = shared.in_run(0, u64::MAX >> 1)
    {
        log.add(Problem::BlockShared { ino: Ino(0), block, count });
    }
}
