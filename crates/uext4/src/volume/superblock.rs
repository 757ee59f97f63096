//! The superblock of a mounted volume.
//!
//! On disk: byte 1024 of the device. While the volume is mounted the journal may hold images of its
//! block. So the state that must survive a crash (`needs_recovery`) is set in the live block before
//! the first transaction, and every block image has it.
//! Invariants: it is written directly only before the log begins and after it is empty. In between
//! it changes in handles.

use super::label::Label;
use crate::cache::{Buffer, Cache};
use crate::error::{Error, Result};
use crate::journal::Handle;
use crate::sync::time::SystemTime;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use uext4_device::Device;
use uext4_ondisk::features::Features;
use uext4_ondisk::superblock::{STATE_ERROR, STATE_VALID, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{Compat, Incompat, RawSuperblock, RoCompat};

#[derive(Debug)]
pub(super) struct LiveSuperblock {
    cache: Arc<Cache>,
    buffer: Arc<Buffer>,
    at: usize,
    pub(super) read_only_mount: bool,
    pub(super) overhead_blocks: u64,
    /// There is no journal, and the file system had been closed cleanly when it was opened.
    was_valid: bool,
}

/// Reads and checks the superblock of a device.
pub(super) fn read(device: &dyn Device) -> Result<RawSuperblock> {
    if device.len() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        let found = uext4_ondisk::FormatError::NoSuperblock { found: 0 };
        return Err(found.into());
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device
        .read_at(SUPERBLOCK_OFFSET, &mut bytes)
        .map_err(|e| Error::io("reading the superblock", e))?;
    let raw = RawSuperblock::read(&bytes)?;
    raw.verify_checksum()?;
    Ok(raw)
}

fn has_journal(raw: &RawSuperblock) -> bool {
    Features::of(raw).compat.contains(Compat::HAS_JOURNAL)
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl LiveSuperblock {
    pub(super) fn open(
        cache: &Arc<Cache>,
        read_only_mount: bool,
        overhead_blocks: u64,
    ) -> Result<Self> {
        let (buffer, at) = cache.superblock()?;
        let cache = Arc::clone(cache);
        let mut live =
            Self { cache, buffer, at, read_only_mount, overhead_blocks, was_valid: false };
        live.was_valid = !live.is_unchecked();
        Ok(live)
    }

    /// Whether there is no journal, and a crash may have left the file system in any state. Only
    /// e2fsck ends that.
    pub(super) fn is_unchecked(&self) -> bool {
        let raw = self.read();
        !has_journal(&raw) && raw.s_state.get() & STATE_VALID == 0
    }

    pub(super) fn read(&self) -> RawSuperblock {
        let bytes = self.buffer.read();
        RawSuperblock::from_prefix(&bytes[self.at..]).unwrap_or_else(RawSuperblock::zeroed)
    }

    /// Durably notes that the volume is in use: a crash from now on needs a replay, or e2fsck if
    /// there is no journal.
    pub(super) fn mark_in_use(&self, had_error: bool) -> Result<()> {
        self.change(|raw| {
            let has_journal = has_journal(raw);
            if has_journal {
                let incompat = raw.s_feature_incompat.get() | Incompat::RECOVER.bits();
                raw.s_feature_incompat.set(incompat);
            } else {
                raw.s_state.set(raw.s_state.get() & !STATE_VALID);
            }
            if has_journal && raw.s_feature_compat.get() & Compat::ORPHAN_FILE.bits() != 0 {
                let ro_compat = raw.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits();
                raw.s_feature_ro_compat.set(ro_compat);
            }
            if had_error {
                raw.s_state.set(raw.s_state.get() | STATE_ERROR);
            }
            raw.s_mnt_count.set(raw.s_mnt_count.get().saturating_add(1));
            let now = now_secs();
            raw.s_mtime.set(now as u32);
            raw.s_mtime_hi = (now >> 32) as u8;
        })
    }

    /// Notes that everything is at its final location. The log is empty and the journal closed.
    /// With `has_orphans` there are inodes for the next mount to delete, which were in use; without
    /// a journal they are left to e2fsck. A file system that was not clean stays so. `free` is the
    /// number of free blocks and inodes, which transactions without a log do not keep.
    pub(super) fn mark_clean(&self, has_orphans: bool, free: Option<(u64, u32)>) -> Result<()> {
        self.change(|raw| {
            if let Some((blocks, inodes)) = free.filter(|_| !has_journal(raw)) {
                raw.set_free_blocks_count(blocks);
                raw.s_free_inodes_count.set(inodes);
            }
            let incompat = raw.s_feature_incompat.get() & !Incompat::RECOVER.bits();
            raw.s_feature_incompat.set(incompat);
            if !has_orphans {
                let ro_compat = raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits();
                raw.s_feature_ro_compat.set(ro_compat);
            }
            let may = has_journal(raw) || (self.was_valid && !has_orphans);
            if may && raw.s_state.get() & STATE_ERROR == 0 {
                raw.s_state.set(raw.s_state.get() | STATE_VALID);
            }
            let now = now_secs();
            raw.s_wtime.set(now as u32);
            raw.s_wtime_hi = (now >> 32) as u8;
        })
    }

    /// Notes, where there is no journal, that the file system is as clean as it was when it was
    /// opened. Orphans that the orphan file may hold stay noted. `free` as for a clean close.
    pub(super) fn restore(&self, free: Option<(u64, u32)>) -> Result<()> {
        self.change(|raw| {
            if let Some((blocks, inodes)) = free {
                raw.set_free_blocks_count(blocks);
                raw.s_free_inodes_count.set(inodes);
            }
            if self.was_valid && raw.s_state.get() & STATE_ERROR == 0 {
                raw.s_state.set(raw.s_state.get() | STATE_VALID);
            }
        })
    }

    /// Sets the label.
    pub(super) fn set_label(&self, handle: &mut Handle<'_>, label: Label) -> Result<()> {
        if let Some(raw) =
            RawSuperblock::mut_from_prefix(&mut handle.write(&self.buffer)?[self.at..])
        {
            raw.s_volume_name = label;
        }
        Ok(())
    }

    /// Changes the superblock and writes it durably.
    fn change(&self, change: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        if let Some(raw) = RawSuperblock::mut_from_prefix(&mut self.buffer.write()[self.at..]) {
            change(raw);
            raw.seal();
        }
        let bytes = self.buffer.read();
        let device = self.cache.device();
        let failed = |e| Error::io("writing the superblock", e);
        device
            .write_at(SUPERBLOCK_OFFSET, &bytes[self.at..self.at + SUPERBLOCK_SIZE])
            .map_err(failed)?;
        device.flush().map_err(failed)
    }
}
