//! Multiple mount protection (`mmp`): one host at a time writes to the file system.
//!
//! What: [`Claim::take`] makes a device this host's before the first change of the volume, by the
//! kernel's protocol: a block that another host keeps changing is refused, one that nobody changes
//! for more than twice its check interval is taken over. A thread keeps the claim alive,
//! [`Claim::release`] ends it. docs/durability.md has what callers may rely on.
//!
//! Invariants: all changes of the volume go through a [`LeasedDevice`]. Its lease begins before the
//! block is written and lasts one check interval. Others wait for twice that time, so a host that
//! could not write the block in time has stopped changing the device before another begins. While
//! the block is written, the lease is the shorter of those by the old and the new interval. The
//! block is read before it is written: what another host wrote is never overwritten.
//!
//! Kernel counterpart: `fs/ext4/mmp.c`.

use super::mmp_wait::{Pace, Watched, claimed_by, watch};
use crate::config::MountOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::thread::JoinHandle;
use crate::sync::time::SystemTime;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use uext4_device::{Lease, LeasedDevice, SharedDevice, host_name, since_boot};
use uext4_ondisk::mmp::{
    CHECK_INTERVAL_MAX, INTERVAL_MAX, RawMmp, SEQ_CLEAN, SEQ_FSCK, SEQ_MAX, UPDATE_INTERVAL,
};
use uext4_ondisk::{BlockNo, Checksums, CorruptKind, Layout, Place, RawGroupDesc, RawSuperblock};

/// The MMP block of a device: where it is, and how it is read and written.
pub(super) struct MmpBlock {
    device: SharedDevice,
    at: BlockNo,
    offset: u64,
    checksums: Checksums,
}

impl MmpBlock {
    /// # Errors
    /// A block outside the file system, or one of its bitmaps, tables and other structures; a
    /// device failure.
    pub(super) fn of(device: &SharedDevice, raw: &RawSuperblock, layout: &Layout) -> Result<Self> {
        let at = BlockNo(raw.s_mmp_block.get());
        let place = layout.group_of(at).filter(|_| at.get() != 0);
        let is_free = place.is_some_and(|(group, index)| index >= layout.base_meta_blocks(group));
        if !is_free || is_in_tables(device, layout, at)? {
            let why = "is outside the file system or inside its own structures";
            return Err(CorruptKind::Rule { what: "s_mmp_block", why }
                .at(Place::Superblock)
                .into());
        }
        let (offset, checksums) = (layout.byte_of(at), layout.checksums);
        Ok(Self { device: Arc::clone(device), at, offset, checksums })
    }

    /// What the device holds now, past every cache of this host.
    pub(super) fn read(&self) -> Result<RawMmp> {
        let mut bytes = [0; size_of::<RawMmp>()];
        self.device
            .read_uncached(self.offset, &mut bytes)
            .map_err(|e| Error::io("reading the MMP block", e))?;
        let raw = RawMmp::from_prefix(&bytes).unwrap_or_else(RawMmp::zeroed);
        let checked = raw.verify(&self.checksums).and_then(|()| {
            let found = raw.mmp_check_interval.get();
            match found <= CHECK_INTERVAL_MAX {
                true => Ok(()),
                false => Err(CorruptKind::Range {
                    what: "MMP block",
                    field: "mmp_check_interval",
                    min: 0,
                    max: CHECK_INTERVAL_MAX.into(),
                    found: found.into(),
                }),
            }
        });
        checked.map_err(|kind| Error::from(kind.at(Place::Block(self.at))))?;
        Ok(raw)
    }

    /// Writes it durably, with the time of now.
    pub(super) fn write(&self, raw: &mut RawMmp) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        raw.mmp_time.set(now.map_or(0, |since| since.as_secs()));
        raw.seal(&self.checksums);
        self.device
            .write_fua(self.offset, raw.bytes())
            .map_err(|e| Error::io("writing the MMP block", e))
    }
}

/// Whether a block is a bitmap or lies in an inode table of any group. With flex_bg these are not
/// in their group.
fn is_in_tables(device: &SharedDevice, layout: &Layout, at: BlockNo) -> Result<bool> {
    let mut bytes = vec![0; layout.block_size as usize];
    let table_blocks = layout.inode_table_blocks();
    for n in 0..layout.desc_block_count() {
        let first = n * layout.descs_per_block();
        let in_block = layout.descs_per_block().min(layout.group_count.saturating_sub(first));
        device
            .read_at(layout.byte_of(layout.desc_block_no(n)), &mut bytes)
            .map_err(|e| Error::io("reading group descriptors", e))?;
        // Checksums are looked at when the volume is opened: the log may have newer ones.
        for slot in bytes.chunks_exact(layout.desc_size.into()).take(in_block as usize) {
            let desc = RawGroupDesc::read(slot, layout.desc_size);
            let desc = desc.map_err(|kind| kind.at(Place::Superblock))?;
            let table = at.get().checked_sub(desc.inode_table().get());
            let is_in_table = table.is_some_and(|index| index < u64::from(table_blocks));
            if is_in_table || [desc.block_bitmap(), desc.inode_bitmap()].contains(&at) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// What has the file system with the sequence of a check.
const FSCK: &str = "a check has it (if that was killed, `uext4 tune --clear-mmp` frees it)";

/// Why a host whose write took longer than its lease has none.
const WRITTEN_LATE: &str = "the MMP block was written too late, another host may have it";

/// This host's claim on a device. Dropping it releases it.
#[derive(Debug)]
pub(super) struct Claim {
    keeper: Arc<Keeper>,
    device: SharedDevice,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Called when the claim is lost, on the keeper's thread.
type LossHook = Box<dyn Fn(Error) + Send + Sync>;

struct Keeper {
    block: MmpBlock,
    pace: Pace,
    /// When the claiming write began. The first lease counts from then.
    claimed: Duration,
    lease: Arc<Lease>,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    /// The block as this host wrote it last.
    own: RawMmp,
    stops: bool,
    lost: Option<Error>,
    on_loss: Option<LossHook>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("block", &self.block.at).finish_non_exhaustive()
    }
}

impl Claim {
    /// Claims the device: waits as the protocol asks, and starts the thread that keeps the claim.
    ///
    /// # Errors
    /// `InUse` with the host that has the device, or because the store is too slow; a corrupt MMP
    /// block; a device failure. Nothing but the block was changed then.
    pub(super) fn take(
        device: &SharedDevice,
        raw: &RawSuperblock,
        layout: &Layout,
        options: &MountOptions,
    ) -> Result<Self> {
        let block = MmpBlock::of(device, raw, layout)?;
        let asked = raw.s_mmp_interval.get();
        if asked > INTERVAL_MAX {
            let why = "is more than 300 seconds";
            let kind = CorruptKind::Rule { what: "s_mmp_update_interval", why };
            return Err(kind.at(Place::Superblock).into());
        }
        let update = if asked == 0 { UPDATE_INTERVAL } else { asked };
        let pace = Pace { update, second: options.mmp_second };
        let node = options.mmp_node.clone().unwrap_or_else(host_name);
        let mut own = RawMmp::clean(pace.check_interval());
        own.set_names(&node, &device.name());
        let begin = claim_block(&block, &pace, &mut own)?;
        let lease = Arc::new(Lease::until(begin + pace.lease(&own)));
        if lease.is_over() {
            return Err(Error::new(ErrorKind::InUse, WRITTEN_LATE));
        }
        // What this host read before the claim may be from before another host's last change.
        device.drop_cached();
        let state = State { own, stops: false, lost: None, on_loss: None };
        let keeper = Arc::new(Keeper {
            block,
            pace,
            claimed: begin,
            lease: Arc::clone(&lease),
            state: Mutex::new(LockRank::Leaf, state),
            wake: Condvar::new(),
        });
        let of_thread = Arc::clone(&keeper);
        let thread = crate::sync::thread::Builder::new()
            .name("uext4-mmp".to_owned())
            .spawn(move || of_thread.run())
            .map_err(|e| Error::io("starting thread uext4-mmp", e))?;
        let device: SharedDevice = Arc::new(LeasedDevice::new(Arc::clone(device), lease));
        Ok(Self { keeper, device, thread: Mutex::new(LockRank::Leaf, Some(thread)) })
    }

    /// The device, which refuses changes once the claim is lost.
    pub(super) fn device(&self) -> SharedDevice {
        Arc::clone(&self.device)
    }

    /// Another device of the file system under the same claim.
    pub(super) fn guard(&self, device: SharedDevice) -> SharedDevice {
        Arc::new(LeasedDevice::new(device, Arc::clone(&self.keeper.lease)))
    }

    /// Has `hook` called when the claim is lost; at once if it is lost already.
    pub(super) fn on_loss(&self, hook: LossHook) {
        let mut state = self.keeper.state.lock();
        if let Some(error) = state.lost.clone() {
            drop(state);
            return hook(error);
        }
        state.on_loss = Some(hook);
    }

    /// Ends the thread and leaves the device to others. Nothing may be changed after this.
    ///
    /// # Errors
    /// The claim was lost; a device failure.
    pub(super) fn release(&self) -> Result<()> {
        if !self.stop() {
            return Ok(());
        }
        let mut state = self.keeper.state.lock();
        let result = self.keeper.write_clean(&mut state);
        self.keeper.lease.end();
        if result.is_ok() {
            // Another volume on this device is not this one's.
            self.keeper.block.device.set_lease(None);
        }
        result
    }

    /// Ends the thread and leaves the block as a crash would.
    pub(super) fn abandon(&self) {
        self.stop();
        self.keeper.lease.end();
    }

    /// Ends the thread. False if it was ended before.
    fn stop(&self) -> bool {
        self.keeper.state.lock().stops = true;
        self.keeper.wake.notify_all();
        let Some(thread) = self.thread.lock().take() else { return false };
        // A keeper that panicked has ended the lease by not extending it.
        let _ = thread.join();
        true
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A caller that wants to know of failures calls `release`.
        let _ = self.release();
    }
}

/// Waits until the block is free, writes it, and makes sure that it stays ours. Returns when the
/// last write of it began.
fn claim_block(block: &MmpBlock, pace: &Pace, own: &mut RawMmp) -> Result<Duration> {
    let mut read_at = since_boot();
    let found = block.read()?;
    if found.mmp_seq.get() == SEQ_FSCK {
        let what = claimed_by(&found, FSCK);
        return Err(Error::new(ErrorKind::InUse, what));
    }
    if found.mmp_seq.get() != SEQ_CLEAN {
        match watch(block, pace, &found)? {
            Watched::Unchanged => {
                read_at = since_boot();
                let now = block.read()?;
                if !is_own(&now, &found) {
                    let what = claimed_by(&now, "another host claimed it first");
                    return Err(Error::new(ErrorKind::InUse, what));
                }
            }
            Watched::Changed(now) if now.mmp_seq.get() == SEQ_CLEAN => {}
            Watched::Changed(now) => {
                let what = claimed_by(&now, "another host has it");
                return Err(Error::new(ErrorKind::InUse, what));
            }
        }
    }
    own.mmp_seq.set(crate::sync::random() % SEQ_MAX + 1);
    let begin = since_boot();
    block.write(own)?;
    // A host that found the block free at the same moment has written by now, unless it was slow.
    // Then it waits for the whole time in its turn, and one of the two sees the other.
    let was_slow = since_boot().saturating_sub(read_at) > pace.settle() / 2;
    let stays = match was_slow {
        false => {
            std::thread::sleep(pace.settle());
            is_own(&block.read()?, own)
        }
        true => matches!(watch(block, pace, own)?, Watched::Unchanged),
    };
    if !stays {
        return Err(overtaken(&block.read()?));
    }
    if !was_slow {
        return Ok(begin);
    }
    own.mmp_seq.set(own.mmp_seq.get() % SEQ_MAX + 1);
    let begin = since_boot();
    block.write(own)?;
    // Another host may have come between the last look and this write, and have overwritten it.
    std::thread::sleep(pace.settle());
    let now = block.read()?;
    if is_own(&now, own) { Ok(begin) } else { Err(overtaken(&now)) }
}

fn overtaken(now: &RawMmp) -> Error {
    Error::new(ErrorKind::InUse, claimed_by(now, "another host claimed it at the same moment"))
}

/// Frees a file system from a claim that nobody keeps any more. Returns the host that had it, if
/// there was one.
/// Only a person can know that no host uses it.
///
/// # Errors
/// No file system with `mmp`; a corrupt MMP block; a device failure.
pub fn clear_mmp(device: &SharedDevice) -> Result<Option<String>> {
    let raw = super::superblock::read(&**device)?;
    let layout = Layout::new(&raw, Some(device.len()))?;
    if !layout.has_mmp() {
        return Err(Error::new(ErrorKind::InvalidArgument, "the file system has no mmp"));
    }
    let block = MmpBlock::of(device, &raw, &layout)?;
    let mut found = block.read()?;
    if found.mmp_seq.get() == SEQ_CLEAN {
        return Ok(None);
    }
    let had = claimed_by(&found, "freed");
    found.mmp_seq.set(SEQ_CLEAN);
    block.write(&mut found)?;
    Ok(Some(had))
}

/// The host that keeps a claim on a file system with `mmp`, if one does. Waits as another host has
/// to, unless the block is free.
///
/// # Errors
/// No file system; a corrupt MMP block; a device failure.
pub fn mmp_holder(device: &SharedDevice) -> Result<Option<String>> {
    let raw = super::superblock::read(&**device)?;
    let layout = Layout::new(&raw, Some(device.len()))?;
    if !layout.has_mmp() {
        return Ok(None);
    }
    let block = MmpBlock::of(device, &raw, &layout)?;
    let found = block.read()?;
    if found.mmp_seq.get() == SEQ_CLEAN {
        return Ok(None);
    }
    let update = raw.s_mmp_interval.get().min(INTERVAL_MAX);
    let pace = Pace { update, second: Duration::from_secs(1) };
    Ok(match watch(&block, &pace, &found)? {
        Watched::Unchanged => None,
        Watched::Changed(now) if now.mmp_seq.get() == SEQ_CLEAN => None,
        Watched::Changed(now) => Some(claimed_by(&now, "another host has it")),
    })
}

fn is_own(found: &RawMmp, own: &RawMmp) -> bool {
    found.mmp_seq == own.mmp_seq && found.mmp_nodename == own.mmp_nodename
}

impl Keeper {
    fn run(&self) {
        let since_claim = since_boot().saturating_sub(self.claimed);
        let mut wait = self.pace.renewal().saturating_sub(since_claim);
        loop {
            let mut state = self.state.lock();
            if !state.stops {
                self.wake.wait_for(&mut state, wait);
            }
            if state.stops {
                return;
            }
            let begin = since_boot();
            let renewed = self.write_next(&mut state, |own, took| {
                own.mmp_seq.set(own.mmp_seq.get() % SEQ_MAX + 1);
                own.mmp_check_interval.set(self.pace.check_interval_after(took));
            });
            match renewed {
                Ok(()) => {
                    let took = since_boot().saturating_sub(begin);
                    wait = self.pace.renewal().saturating_sub(took);
                }
                // The store may come back before the lease is over.
                Err(error) if *error.kind() == ErrorKind::Io && !self.lease.is_over() => {
                    wait = self.pace.second;
                }
                Err(error) => {
                    self.lease.end();
                    state.lost = Some(error.clone());
                    let hook = state.on_loss.take();
                    drop(state);
                    if let Some(hook) = hook {
                        hook(error);
                    }
                    return;
                }
            }
        }
    }

    /// Writes the block anew, if it is as this host left it and the lease is not over, and extends
    /// the lease. `change` gets the time since the block was last read.
    fn write_next(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut RawMmp, Duration),
    ) -> Result<()> {
        let begin = since_boot();
        self.check_own(state)?;
        let mut own = state.own;
        change(&mut own, since_boot().saturating_sub(begin));
        // Others may go by a shorter interval from the moment at which the device has it.
        let end = begin + self.pace.lease(&own);
        self.lease.shorten(end);
        // A write that fails may be on the device: what is compared next is what this host wrote.
        let before = std::mem::replace(&mut state.own, own);
        if let Err(error) = self.block.write(&mut state.own) {
            if self.block.read().is_ok_and(|found| is_own(&found, &before)) {
                state.own = before;
            }
            return Err(error);
        }
        if !self.lease.extend(end) {
            return Err(Error::new(ErrorKind::InUse, WRITTEN_LATE));
        }
        Ok(())
    }

    /// Frees the block for others. They may begin while the call that tells them still runs, so
    /// the lease ends before.
    fn write_clean(&self, state: &mut State) -> Result<()> {
        self.check_own(state)?;
        self.lease.end();
        state.own.mmp_seq.set(SEQ_CLEAN);
        self.block.write(&mut state.own)
    }

    /// Checks that the block is as this host left it and the lease is not over.
    fn check_own(&self, state: &State) -> Result<()> {
        let lost = |what: String| Error::new(ErrorKind::InUse, what);
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        let found = self.block.read()?;
        if !is_own(&found, &state.own) {
            return Err(lost(claimed_by(&found, "another host has taken it over")));
        }
        if self.lease.is_over() {
            let why = "the MMP block could not be written in time, another host may have it";
            return Err(lost(why.to_owned()));
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "simulate"))))]
mod tests;
