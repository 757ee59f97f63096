//! Opening a volume, step by step.

use super::fast_commit;
use super::flusher::Flusher;
use super::mmp::Claim;
use super::superblock::{self, LiveSuperblock};
use super::walk_ahead::WalkAhead;
use super::{Inner, RecoveryReport, Volume};
use crate::alloc::Space;
use crate::cache::{Cache, PageBudget};
use crate::config::{DataMode, DaxMode, MountOptions, OnError};
use crate::crypt::KeyRing;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{Damage, FileContext, Files, FoundOrphans, Orphans};
use crate::injected_faults::Fault;
use crate::inode::{ENCRYPTION_BYTES, InodeContext, InodeTable, ValueInodes};
use crate::journal::{Journal, LeftLog, LogLocation, Recovered, recover};
use crate::sync::state::AtomicBool;
use crate::sync::time::Instant;
use crate::sync::{LockRank, Mutex};
use crate::vfs::Vfs;
use std::sync::Arc;
use uext4_device::{OverlayDevice, SharedDevice};
use uext4_ondisk::features::{external_journal, support};
use uext4_ondisk::superblock::STATE_ERROR;
use uext4_ondisk::{
    BlockNo, Compat, CorruptKind, GroupNo, Incompat, Layout, Place, RawSuperblock, Support,
};

/// Share of metadata blocks in the cache budget: a quarter, half of it for block images that are in
/// the log and not checkpointed yet.
const METADATA_SHARE: u64 = 4;
/// Share of the maps of groups in the cache budget: a sixteenth.
const MAP_SHARE: u64 = 16;
/// Share of inodes in the cache budget: a quarter. The rest is for pages.
const INODE_SHARE: u64 = 4;
/// Approximate memory of an inode in the table, in bytes, without its encryption.
const INODE_BYTES: u64 = 1024;

/// Memory that is counted for an inode in the table. Any of them may have a cipher.
fn bytes_per_inode(layout: &Layout) -> u64 {
    let is_encrypted = layout.features.incompat.contains(Incompat::ENCRYPT);
    INODE_BYTES + if is_encrypted { ENCRYPTION_BYTES as u64 } else { 0 }
}

/// A device after its journal has been replayed or wiped.
struct Opened {
    device: SharedDevice,
    claim: Option<Claim>,
    superblock: RawSuperblock,
    layout: Arc<Layout>,
    recovered: Option<Recovered>,
    /// Why the volume is read-only although it was not asked to be.
    reason: Option<String>,
    read_only: bool,
}

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For everybody.
    Use,
    /// To repeat fast commits on a copy in memory. Orphans stay: the records may name them.
    RepeatFastCommits,
}

pub(super) fn open(
    device: SharedDevice,
    journal: Option<SharedDevice>,
    options: MountOptions,
) -> Result<Volume> {
    open_as(device, journal, options, Purpose::Use)
}

pub(super) fn open_as(
    device: SharedDevice,
    journal: Option<SharedDevice>,
    options: MountOptions,
    purpose: Purpose,
) -> Result<Volume> {
    options.check().map_err(|why| Error::new(ErrorKind::InvalidArgument, why))?;
    if options.journal_path.is_some() && journal.is_none() {
        let why = "mount option 'journal_path': the device was not opened";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let can_dax = device.dax().is_some();
    if options.dax == DaxMode::Always && !can_dax {
        let why = "mount option 'dax=always': the device is not byte-addressable";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let opened = open_device(device, journal, &options, purpose)?;
    assemble(opened, options, purpose)
}

/// Reads the superblock and replays the journal.
fn open_device(
    device: SharedDevice,
    journal: Option<SharedDevice>,
    options: &MountOptions,
    purpose: Purpose,
) -> Result<Opened> {
    let first = examine(&device, journal, options)?;
    // A copy in memory is nobody else's.
    let is_shared = first.layout.has_mmp() && purpose == Purpose::Use;
    if first.is_read_only(&device, options) || !is_shared {
        return replay(device, None, first, options);
    }
    if options.dax == DaxMode::Always {
        // Stores into the mapped device would not look at the lease.
        let why = "mount option 'dax=always': a file system with mmp has no DAX mode";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let Examined { raw, layout, journal, .. } = first;
    let claim = Claim::take(&device, &raw, &layout, options)?;
    // Another host may have changed both devices before it let go. Nothing of the journal counts
    // that was read before, by this process or another of this host.
    if let Some(journal) = &journal {
        journal.drop_cached();
    }
    let examined = examine(&device, journal.map(|journal| claim.guard(journal)), options)?;
    let is_same = examined.layout.has_mmp() && examined.raw.s_mmp_block == raw.s_mmp_block;
    if !is_same {
        let why = "the superblock changed while the file system was claimed";
        return Err(Error::new(ErrorKind::InUse, why));
    }
    replay(claim.device(), Some(claim), examined, options)
}

/// A superblock and what it says.
struct Examined {
    raw: RawSuperblock,
    reason: Option<String>,
    layout: Layout,
    /// The journal's device, if that is another and at hand. Nothing has been read of it.
    journal: Option<SharedDevice>,
}

impl Examined {
    fn is_read_only(&self, device: &SharedDevice, options: &MountOptions) -> bool {
        options.read_only || self.reason.is_some() || device.read_only()
    }
}

fn examine(
    device: &SharedDevice,
    journal: Option<SharedDevice>,
    options: &MountOptions,
) -> Result<Examined> {
    let raw = superblock::read(&**device)?;
    let mut reason = reason_to_read_only(&raw, journal.is_some())?;
    let layout = Layout::new(&raw, Some(device.len()))?;
    if let Some(journal) = &journal {
        if external_journal(&raw).is_none() {
            let why = "a journal device was named, but the file system has its journal inside";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if journal.read_only() && !device.read_only() && !options.read_only {
            reason.get_or_insert_with(|| "its journal device is read-only".to_owned());
        }
    }
    Ok(Examined { raw, reason, layout, journal })
}

/// Replays the journal of a device that is ours, or that is only read.
fn replay(
    device: SharedDevice,
    claim: Option<Claim>,
    examined: Examined,
    options: &MountOptions,
) -> Result<Opened> {
    let read_only = examined.is_read_only(&device, options);
    let Examined { raw, reason: first_reason, layout, journal } = examined;
    let needs_recovery = layout.features.incompat.contains(Incompat::RECOVER);
    // With norecovery a damaged journal, or another one, is no obstacle.
    let is_left = read_only && options.no_recovery;
    let log = journal.filter(|_| !is_left).map(|journal| LogLocation::on(&journal, &raw));
    let log = log.transpose()?;
    let has_journal = layout.features.compat.contains(Compat::HAS_JOURNAL);
    // Without a log to replay a journal on another device is not needed to read.
    let is_elsewhere = external_journal(&raw).is_some() && log.is_none() && !needs_recovery;
    if !has_journal || is_elsewhere || (options.no_recovery && needs_recovery) {
        if has_journal && !read_only {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "norecovery needs a read-only mount (-o ro)",
            ));
        }
        let layout = Arc::new(layout);
        let (superblock, recovered, reason) = (raw, None, first_reason);
        return Ok(Opened { device, claim, superblock, layout, recovered, reason, read_only });
    }
    let has_log = log.is_some();
    let mut location = match log {
        Some(log) => log,
        None => LogLocation::find(&*device, &layout, &raw)?,
    };
    // A read-only volume is replayed into memory.
    let copied = |device| Arc::new(OverlayDevice::new(device)) as SharedDevice;
    let device = if read_only && needs_recovery { copied(device) } else { device };
    if read_only {
        location.device = location.device.map(copied);
    }
    let left = match () {
        () if needs_recovery => LeftLog::Replay,
        () if read_only || Fault::UnwipedLog.is_injected() => LeftLog::Keep,
        () => LeftLog::Wipe,
    };
    let recovered = recover_all(&device, &layout, location, left)?;
    // The replay may have brought a newer superblock, which is checked like the first.
    let replayed = superblock::read(&*device)?;
    let replayed_layout = Layout::new(&replayed, Some(device.len()))?;
    let same_journal = replayed.s_journal_inum.get() == raw.s_journal_inum.get()
        && replayed.s_journal_uuid == raw.s_journal_uuid
        && replayed_layout.block_size == layout.block_size
        && replayed_layout.features.compat.contains(Compat::HAS_JOURNAL);
    if !same_journal {
        let why = "has another journal after the replay";
        let kind = CorruptKind::Rule { what: "superblock", why };
        return Err(kind.at(Place::Superblock).into());
    }
    let reason = reason_to_read_only(&replayed, has_log)?.or(first_reason);
    let read_only = read_only || reason.is_some();
    let (raw, layout, recovered) = (replayed, Arc::new(replayed_layout), Some(recovered));
    Ok(Opened { device, claim, superblock: raw, layout, recovered, reason, read_only })
}

/// Replays the log, and what a kernel left behind it.
fn recover_all(
    device: &SharedDevice,
    layout: &Layout,
    location: LogLocation,
    left: LeftLog,
) -> Result<Recovered> {
    let first = recover(device, layout, location, left)?;
    let Some(fast_commits) = first.fast_commits else { return Ok(first) };
    // The replay may have brought a newer superblock.
    let layout = Layout::new(&superblock::read(&**device)?, Some(device.len()))?;
    let changed = fast_commit::changes(device, &layout, &fast_commits)?;
    fast_commits.log(device, changed)?;
    let mut last = recover(device, &layout, first.location, left)?;
    if last.fast_commits.is_some() {
        let why = "fast commits are left after their replay";
        return Err(Error::new(ErrorKind::Internal, why));
    }
    last.transactions += first.transactions;
    last.blocks += first.blocks;
    last.repeated = fast_commits.commits;
    Ok(last)
}

/// Why a file system can only be read, if it can only be read. `has_log`: its journal is on a
/// device of its own that is at hand.
fn reason_to_read_only(raw: &RawSuperblock, has_log: bool) -> Result<Option<String>> {
    let elsewhere = external_journal(raw).filter(|_| !has_log);
    let elsewhere = elsewhere.map(|uuid| {
        format!(
            "its journal {uuid} is on another device: name it (--journal-device, journal_path=)"
        )
    });
    match support(raw) {
        Support::ReadWrite => Ok(elsewhere),
        Support::ReadOnly(mut reasons) if elsewhere.is_some() => {
            reasons.extend(elsewhere);
            Ok(Some(reasons.join(", ")))
        }
        Support::ReadOnly(reasons) => Ok(Some(reasons.join(", "))),
        Support::Refused(names) => {
            let context = format!("file system uses {}", names.join(" "));
            Err(Error::new(ErrorKind::RefusedFeatures, context))
        }
    }
}

/// Puts the parts together. Everything is read and checked before the first write, so an image that
/// cannot be opened stays as it is, except for the replay.
fn assemble(opened: Opened, mut options: MountOptions, purpose: Purpose) -> Result<Volume> {
    let Opened { device, claim, superblock: raw, layout, recovered, reason, read_only } = opened;
    let metadata_bytes = options.cache_bytes / METADATA_SHARE;
    let cache = Arc::new(Cache::new(device, Arc::clone(&layout), metadata_bytes / 2));
    let journal_runs = journal_runs(recovered.as_ref());
    let (transactions, blocks) = recovered.as_ref().map_or((0, 0), |r| (r.transactions, r.blocks));
    let fast_commits = recovered.as_ref().map_or(0, |r| r.repeated);
    let recorded_error = recovered.as_ref().is_some_and(|r| r.recorded_error);
    let wipes = recovered.as_ref().is_some_and(|r| r.needs_wipe);
    let journal = prepare_journal(&cache, recovered, &options, read_only)?;
    let (of_cache, of_journal) = (Arc::clone(&cache), Arc::clone(&journal));
    let mut own_runs = journal_runs.clone();
    if claim.is_some() {
        own_runs.push((BlockNo(raw.s_mmp_block.get()), 1));
    }
    let space = Space::open(of_cache, of_journal, &raw, &own_runs, options.alloc.clone())?;
    let map_bytes = options.cache_bytes / MAP_SHARE;
    space.limit_maps(map_bytes);
    if options.discard {
        space.discards().discard_on_free();
    }
    // What df(1) shows is all that it is for.
    let overhead = if options.minix_df { 0 } else { overhead_blocks(&layout, &journal_runs) };
    let live = LiveSuperblock::open(&cache, read_only, overhead)?;
    let inode_bytes = options.cache_bytes / INODE_SHARE;
    let page_bytes = options.cache_bytes - metadata_bytes - inode_bytes - map_bytes;
    let budget = Arc::new(PageBudget::new(page_bytes, layout.block_size, cache.invariants()));
    let inodes = usize::try_from(inode_bytes / bytes_per_inode(&layout)).unwrap_or(usize::MAX);
    let context = InodeContext {
        dax: dax_mode(&cache, &options),
        cache: Arc::clone(&cache),
        space: Arc::clone(&space),
        budget,
        keys: KeyRing::new(
            std::mem::take(&mut options.keys),
            raw.s_uuid,
            layout.block_size,
            layout.encoding.is_some(),
        ),
        values: ValueInodes::default(),
    };
    let table = InodeTable::new(context, inodes);
    if !read_only && let Some(quota) = crate::file::open_quota(&table, &raw, options.quota_limits)?
    {
        space.set_quota(quota);
    }
    // An abort that only the journal has recorded was caused by a failing device: everything
    // committed before it is complete, including the orphans.
    // Without a journal a crash may leave any list of orphans.
    let is_unchecked = live.is_unchecked();
    let has_errors = raw.s_state.get() & STATE_ERROR != 0 || is_unchecked;
    let (orphans, found) = match read_only {
        true => (Orphans::none(&cache)?, FoundOrphans::default()),
        false => Orphans::open(&table, &raw, has_errors)?,
    };
    let (orphans_found, mut orphan_problems) = (found.count, found.problems);
    let on_error = options.errors.unwrap_or(match raw.s_errors.get() {
        2 => OnError::RemountReadOnly,
        3 => OnError::Panic,
        _ => OnError::Continue,
    });
    let (superblock, at) = cache.superblock()?;
    let damage = Damage::new(on_error, superblock, at);
    let observer = Arc::clone(&damage);
    journal.set_abort_observer(Box::new(move |cause| observer.journal_aborted(cause)));
    if let Some(claim) = &claim {
        let journal = Arc::downgrade(&journal);
        claim.on_loss(Box::new(move |cause| {
            if let Some(journal) = journal.upgrade() {
                journal.abort(cause);
            }
        }));
    }
    let orphans = Arc::new(orphans);
    table.context().values.attach(&table, &orphans, !read_only);
    let context = FileContext::new(space, table, orphans, damage, options, read_only);
    let files = Arc::new(Files::new(context));
    let flusher = match read_only {
        true => None,
        false => {
            if wipes {
                journal.wipe_log()?;
            }
            live.mark_in_use(recorded_error)?;
            // Nothing else has changed yet.
            journal.begin().inspect_err(|_| restore(&live, &journal))?;
            for problem in &orphan_problems {
                let _ = files.context.watch::<()>(Err(problem.clone()));
            }
            let cleaned = match purpose {
                Purpose::Use => files.deletion.clean_orphans(),
                Purpose::RepeatFastCommits => Ok(Vec::new()),
            };
            let started = cleaned.and_then(|problems| {
                orphan_problems.extend(problems);
                Flusher::start(&files)
            });
            Some(started.inspect_err(|error| {
                if journal.has_log() {
                    journal.stop_threads(error.clone());
                } else if journal.close().is_ok() {
                    restore(&live, &journal);
                }
            })?)
        }
    };
    let vfs = Arc::new(Vfs::new(files));
    let walk_ahead = WalkAhead::start(&vfs);
    Ok(Volume {
        inner: Arc::new(Inner {
            vfs,
            superblock: live,
            claim,
            read_only_reason: reason,
            flusher: Mutex::new(LockRank::Leaf, flusher),
            walk_ahead: Mutex::new(LockRank::Leaf, walk_ahead),
            recovery: RecoveryReport {
                transactions,
                blocks,
                fast_commits,
                orphans: orphans_found,
                is_unchecked,
            },
            orphan_problems,
            end: Mutex::new(LockRank::End, None),
            has_lost: AtomicBool::new(false),
            opened: Instant::now(),
        }),
    })
}

/// Notes, after an open that failed, that a file system without a journal is as clean as it was.
fn restore(live: &LiveSuperblock, journal: &Journal) {
    if !journal.has_log() {
        // The cause of the failure says more than one of this write.
        let _ = live.restore(journal.final_free());
    }
}

/// Which files are in DAX mode: those that the options name, if the device supports it. The overlay
/// of a read-only volume whose journal is replayed into memory does not.
fn dax_mode(cache: &Cache, options: &MountOptions) -> DaxMode {
    let can = cache.device().dax().is_some();
    if can && options.data_mode != DataMode::Journal { options.dax } else { DaxMode::Never }
}

fn prepare_journal(
    cache: &Arc<Cache>,
    recovered: Option<Recovered>,
    options: &MountOptions,
    read_only: bool,
) -> Result<Arc<Journal>> {
    let metadata_blocks =
        options.cache_bytes / METADATA_SHARE / u64::from(cache.layout().block_size);
    let images_max = usize::try_from(metadata_blocks / 2).unwrap_or(usize::MAX);
    if read_only {
        return Ok(Journal::read_only(cache, recovered.as_ref(), images_max));
    }
    match recovered {
        Some(recovered) => recovered.prepare(cache, options, images_max),
        None => Journal::without_log(cache, options, images_max),
    }
}

fn journal_runs(recovered: Option<&Recovered>) -> Vec<(BlockNo, u32)> {
    let runs = recovered.map_or(&[][..], |recovered| recovered.location.own_runs());
    runs.iter().map(|&(_, start, len)| (start, len)).collect()
}

/// Blocks that hold the file system's own structures, as `s_overhead_clusters` counts them.
fn overhead_blocks(layout: &Layout, journal_runs: &[(BlockNo, u32)]) -> u64 {
    let journal: u64 = journal_runs.iter().map(|&(_, len)| u64::from(len)).sum();
    let per_group = u64::from(layout.inode_table_blocks()) + 2;
    let groups: u64 = (0..layout.group_count)
        .map(|group| per_group + u64::from(layout.base_meta_blocks(GroupNo(group))))
        .sum();
    journal + groups + layout.first_data_block.get()
}
