//! Opening a volume, step by step.

use super::flusher::Flusher;
use super::superblock::{self, LiveSuperblock};
use super::{Inner, RecoveryReport, Volume};
use crate::alloc::Space;
use crate::cache::{Cache, PageBudget};
use crate::config::{MountOptions, OnError};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{Files, Orphans};
use crate::inode::InodeTable;
use crate::journal::{Journal, JournalConfig, LogLocation, Recovered, recover};
use crate::sync::{LockRank, Mutex};
use crate::vfs::Vfs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use uext4_device::{OverlayDevice, SharedDevice};
use uext4_ondisk::features::support;
use uext4_ondisk::{BlockNo, Compat, GroupNo, Incompat, Layout, RawSuperblock, Support};

/// Part of the cache budget that metadata blocks get: a quarter, half of it for images that are in
/// the log and not at home yet.
const METADATA_SHARE: u64 = 4;
/// Part of the cache budget that inodes get: a quarter. The rest is for pages.
const INODE_SHARE: u64 = 4;
/// Memory of an inode in the table, about, in bytes.
const INODE_BYTES: u64 = 1024;

/// What is known of a device after its journal has been dealt with.
struct Opened {
    device: SharedDevice,
    superblock: RawSuperblock,
    layout: Arc<Layout>,
    recovered: Option<Recovered>,
    /// Why the volume cannot be changed although it was not asked to be read-only.
    reason: Option<String>,
    read_only: bool,
}

pub(super) fn open(device: SharedDevice, options: MountOptions) -> Result<Volume> {
    let opened = open_device(device, &options)?;
    let report = RecoveryReport {
        transactions: opened.recovered.as_ref().map_or(0, |r| r.transactions),
        blocks: opened.recovered.as_ref().map_or(0, |r| r.blocks),
        orphans: 0,
    };
    assemble(opened, options, report)
}

/// Reads the superblock and replays the journal.
fn open_device(device: SharedDevice, options: &MountOptions) -> Result<Opened> {
    let raw = superblock::read(&*device)?;
    let reason = match support(&raw) {
        Support::ReadWrite => None,
        Support::ReadOnly(reasons) => Some(reasons.join(", ")),
        Support::Refused(names) => {
            let context = format!("file system uses {}", names.join(" "));
            return Err(Error::new(ErrorKind::RefusedFeatures, context));
        }
    };
    let layout = Layout::new(&raw, Some(device.len()))?;
    let read_only = options.read_only || reason.is_some() || device.read_only();
    let needs_recovery = layout.features.incompat.contains(Incompat::RECOVER);
    if !layout.features.compat.contains(Compat::HAS_JOURNAL)
        || (options.no_recovery && needs_recovery)
    {
        if !read_only {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "norecovery needs a read-only mount (-o ro)",
            ));
        }
        let layout = Arc::new(layout);
        return Ok(Opened { device, superblock: raw, layout, recovered: None, reason, read_only });
    }
    // A read-only volume is replayed into memory.
    let device: SharedDevice =
        if read_only && needs_recovery { Arc::new(OverlayDevice::new(device)) } else { device };
    let location = LogLocation::find(&*device, &layout, &raw)?;
    let recovered = recover(&device, &layout, location, needs_recovery)?;
    if recovered.damaged > 0 {
        let context = format!(
            "{} blocks of the journal are damaged and could not be replayed; run e2fsck",
            recovered.damaged
        );
        return Err(Error::new(ErrorKind::NeedsRecovery, context));
    }
    // The replay may have brought a newer superblock.
    let raw = superblock::read(&*device)?;
    let layout = Arc::new(Layout::new(&raw, Some(device.len()))?);
    let recovered = Some(recovered);
    Ok(Opened { device, superblock: raw, layout, recovered, reason, read_only })
}

fn assemble(opened: Opened, options: MountOptions, report: RecoveryReport) -> Result<Volume> {
    let Opened { device, superblock: raw, layout, recovered, reason, read_only } = opened;
    let metadata_bytes = options.cache_bytes / METADATA_SHARE;
    let cache = Arc::new(Cache::new(device, Arc::clone(&layout), metadata_bytes / 2));
    let overhead = overhead_blocks(&layout, recovered.as_ref());
    let live = LiveSuperblock::open(&cache, read_only, overhead)?;
    let journal_runs = journal_runs(recovered.as_ref());
    let journal = open_journal(&cache, &live, recovered, &options, read_only)?;
    let space = Space::open(Arc::clone(&cache), journal, &raw, &journal_runs)?;
    let inode_bytes = options.cache_bytes / INODE_SHARE;
    let page_bytes = options.cache_bytes - metadata_bytes - inode_bytes;
    let budget = Arc::new(PageBudget::new(page_bytes, layout.block_size));
    let inodes = usize::try_from(inode_bytes / INODE_BYTES).unwrap_or(usize::MAX);
    let table = InodeTable::new(Arc::clone(&space), budget, inodes);
    let (orphans, found) = if read_only {
        (Orphans::none(&space)?, Vec::new())
    } else {
        Orphans::open(&space, &table, &raw)?
    };
    let on_error = options.errors.unwrap_or(match raw.s_errors.get() {
        2 => OnError::RemountReadOnly,
        3 => OnError::Panic,
        _ => OnError::Continue,
    });
    let files = Arc::new(Files::new(space, table, orphans, options, read_only));
    let orphans = found.len();
    files.clean_orphans(found)?;
    let flusher = if read_only { None } else { Some(Flusher::start(&files)?) };
    Ok(Volume {
        inner: Arc::new(Inner {
            vfs: Arc::new(Vfs::new(files)),
            superblock: live,
            on_error,
            read_only_reason: reason,
            flusher: Mutex::new(LockRank::Leaf, flusher),
            recovery: RecoveryReport { orphans, ..report },
            closed: AtomicBool::new(false),
        }),
    })
}

fn open_journal(
    cache: &Arc<Cache>,
    live: &LiveSuperblock,
    recovered: Option<Recovered>,
    options: &MountOptions,
    read_only: bool,
) -> Result<Arc<Journal>> {
    let Some(recovered) = recovered.filter(|_| !read_only) else {
        return Ok(Journal::read_only(cache));
    };
    live.mark_in_use(recovered.recorded_error)?;
    let metadata_blocks =
        options.cache_bytes / METADATA_SHARE / u64::from(cache.layout().block_size);
    let config = JournalConfig {
        commit_interval: Duration::from_millis(options.commit_interval_ms),
        images_max: usize::try_from(metadata_blocks / 2).unwrap_or(usize::MAX),
    };
    recovered.open(cache, config)
}

fn journal_runs(recovered: Option<&Recovered>) -> Vec<(BlockNo, u32)> {
    let runs = recovered.map_or(&[][..], |recovered| &recovered.location().runs);
    runs.iter().map(|&(_, start, len)| (start, len)).collect()
}

/// Blocks that hold the file system's own structures, as `s_overhead_clusters` counts them.
fn overhead_blocks(layout: &Layout, recovered: Option<&Recovered>) -> u64 {
    let journal: u64 = journal_runs(recovered).iter().map(|&(_, len)| u64::from(len)).sum();
    let per_group = u64::from(layout.inode_table_blocks()) + 2;
    let groups: u64 = (0..layout.group_count)
        .map(|group| per_group + u64::from(layout.base_meta_blocks(GroupNo(group))))
        .sum();
    journal + groups + layout.first_data_block.get()
}
