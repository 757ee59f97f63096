//! One block group in memory.
//!
//! On disk: a descriptor, a block bitmap, an inode bitmap. Lazily initialised groups (flags
//! `BLOCK_UNINIT`, `INODE_UNINIT`) have no bitmap on the device yet; its content follows from the
//! layout, and it is written when the group is first used.
//! Invariants: see the module above. `largest_run` is never below the longest run of blocks that
//! are not busy, so a group can be skipped without its lock.

use crate::cache::{BlockKind, Buffer, Cache};
use crate::error::Result;
use crate::journal::Handle;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard};
use std::sync::Arc;
use uext4_ondisk::{
    BlockNo, CorruptKind, GroupFlags, GroupNo, Layout, Place, RawGroupDesc, bitmap,
};

#[derive(Debug)]
pub(super) struct Group {
    /// First block of the inode table; never changes.
    pub(super) inode_table: BlockNo,
    /// Blocks not busy.
    free_blocks: AtomicU32,
    free_inodes: AtomicU32,
    used_dirs: AtomicU32,
    /// Upper bound of the longest run of blocks that are not busy.
    largest_run: AtomicU32,
    state: Mutex<GroupState>,
}

#[derive(Debug)]
pub(super) struct GroupState {
    /// As journaled.
    pub(super) desc: RawGroupDesc,
    /// Busy blocks; read at the first use.
    pub(super) busy: Option<Box<[u8]>>,
    /// Busy inodes; read at the first use.
    pub(super) busy_inodes: Option<Box<[u8]>>,
    /// Bitmaps that were made since the mount. Who claimed before that could not hold them.
    made: [Option<Arc<Buffer>>; 2],
}

impl Group {
    pub(super) fn new(desc: RawGroupDesc) -> Self {
        Self {
            inode_table: desc.inode_table(),
            free_blocks: AtomicU32::new(desc.free_blocks()),
            free_inodes: AtomicU32::new(desc.free_inodes()),
            used_dirs: AtomicU32::new(desc.used_dirs()),
            largest_run: AtomicU32::new(desc.free_blocks()),
            state: Mutex::new(
                LockRank::Group,
                GroupState { desc, busy: None, busy_inodes: None, made: [None, None] },
            ),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock()
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, GroupState>> {
        self.state.try_lock()
    }

    pub(super) fn free_blocks(&self) -> u32 {
        self.free_blocks.load(Ordering::Relaxed)
    }

    pub(super) fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed)
    }

    pub(super) fn used_dirs(&self) -> u32 {
        self.used_dirs.load(Ordering::Relaxed)
    }

    pub(super) fn largest_run(&self) -> u32 {
        self.largest_run.load(Ordering::Relaxed)
    }

    /// A search of the whole bitmap found no run longer than this. Caller holds the lock.
    pub(super) fn note_largest_run(&self, blocks: u32) {
        self.largest_run.store(blocks, Ordering::Relaxed);
    }

    /// `count` blocks became busy. Caller holds the lock.
    pub(super) fn blocks_claimed(&self, count: u32) {
        self.free_blocks.fetch_sub(count, Ordering::Relaxed);
    }

    /// `count` blocks are no longer busy. Caller holds the lock.
    pub(super) fn blocks_released(&self, count: u32) {
        let free = self.free_blocks.fetch_add(count, Ordering::Relaxed) + count;
        // The freed run may join its neighbours: only the number of free blocks bounds it.
        self.largest_run.store(free, Ordering::Relaxed);
    }

    /// An inode became busy or free. Caller holds the lock.
    pub(super) fn note_inodes(&self, state: &GroupState, claimed: u32) {
        self.free_inodes.store(state.desc.free_inodes().saturating_sub(claimed), Ordering::Relaxed);
        self.used_dirs.store(state.desc.used_dirs(), Ordering::Relaxed);
    }
}

impl GroupState {
    /// The busy bitmap, read from the device at the first use.
    pub(super) fn busy(&mut self, cache: &Cache, group: GroupNo) -> Result<&mut [u8]> {
        let busy = match self.busy.take() {
            Some(busy) => busy,
            None => self.read_block_bitmap(cache, group)?,
        };
        Ok(self.busy.insert(busy))
    }

    /// The busy inodes, read from the device at the first use.
    pub(super) fn busy_inodes(&mut self, cache: &Cache, group: GroupNo) -> Result<&mut [u8]> {
        let busy = match self.busy_inodes.take() {
            Some(busy) => busy,
            None if self.desc.flags().contains(GroupFlags::INODE_UNINIT) => {
                let free = cache.layout().inodes_per_group;
                check_count("inode bitmap", group, free, self.desc.free_inodes())?;
                initial_inode_bitmap(cache.layout())
            }
            None => {
                let kind = BlockKind::InodeBitmap(group);
                let buffer = cache.read(self.desc.inode_bitmap(), kind)?;
                let bytes: Box<[u8]> = (&*buffer.read()).into();
                let per_group = cache.layout().inodes_per_group;
                check_count(
                    "inode bitmap",
                    group,
                    bitmap::count_zeros(&bytes, per_group),
                    self.desc.free_inodes(),
                )?;
                bytes
            }
        };
        Ok(self.busy_inodes.insert(busy))
    }

    /// A copy of the journaled block bitmap, checked against the descriptor.
    pub(super) fn read_block_bitmap(&self, cache: &Cache, group: GroupNo) -> Result<Box<[u8]>> {
        let layout = cache.layout();
        let blocks = layout.blocks_in_group(group);
        if self.desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            let bytes = initial_block_bitmap(layout, group, &self.desc);
            let free = bitmap::count_zeros(&bytes, blocks);
            check_count("block bitmap", group, free, self.desc.free_blocks())?;
            return Ok(bytes);
        }
        let buffer = cache.read(self.desc.block_bitmap(), BlockKind::BlockBitmap(group))?;
        let mut bytes: Box<[u8]> = (&*buffer.read()).into();
        check_count(
            "block bitmap",
            group,
            bitmap::count_zeros(&bytes, blocks),
            self.desc.free_blocks(),
        )?;
        // A hostile bitmap may call the group's own metadata free.
        mark_metadata(layout, group, &self.desc, &mut bytes);
        Ok(bytes)
    }

    /// The journaled block bitmap: whoever holds it needs no read to change it. `None`: the group
    /// was never used.
    pub(super) fn block_bitmap(
        &self,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Option<Arc<Buffer>>> {
        if self.desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            return Ok(None);
        }
        cache.read(self.desc.block_bitmap(), BlockKind::BlockBitmap(group)).map(Some)
    }

    /// The journaled inode bitmap, likewise.
    pub(super) fn inode_bitmap(
        &self,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Option<Arc<Buffer>>> {
        if self.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return Ok(None);
        }
        cache.read(self.desc.inode_bitmap(), BlockKind::InodeBitmap(group)).map(Some)
    }

    /// The journaled block bitmap, made now if the group was never used.
    pub(super) fn block_bitmap_for_change(
        &mut self,
        handle: &mut Handle<'_>,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Arc<Buffer>> {
        let block = self.desc.block_bitmap();
        let kind = BlockKind::BlockBitmap(group);
        if !self.desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            return cache.read(block, kind);
        }
        let buffer = handle.create(block, kind)?;
        let initial = initial_block_bitmap(cache.layout(), group, &self.desc);
        handle.write(&buffer)?.copy_from_slice(&initial);
        self.desc.set_flags(self.desc.flags() - GroupFlags::BLOCK_UNINIT);
        self.made[0] = Some(Arc::clone(&buffer));
        Ok(buffer)
    }

    /// The journaled inode bitmap, made now if the group was never used.
    pub(super) fn inode_bitmap_for_change(
        &mut self,
        handle: &mut Handle<'_>,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Arc<Buffer>> {
        let block = self.desc.inode_bitmap();
        let kind = BlockKind::InodeBitmap(group);
        if !self.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return cache.read(block, kind);
        }
        let buffer = handle.create(block, kind)?;
        handle.write(&buffer)?.copy_from_slice(&initial_inode_bitmap(cache.layout()));
        self.desc.set_flags(self.desc.flags() - GroupFlags::INODE_UNINIT);
        self.made[1] = Some(Arc::clone(&buffer));
        self.desc.set_itable_unused(cache.layout().inodes_per_group);
        Ok(buffer)
    }
}

fn check_count(what: &'static str, group: GroupNo, bitmap: u32, desc: u32) -> Result<()> {
    if bitmap == desc {
        return Ok(());
    }
    let (min, max) = (u64::from(bitmap), u64::from(bitmap));
    let field = "free count of the group descriptor";
    let kind = CorruptKind::Range { what, field, min, max, found: u64::from(desc) };
    Err(kind.at(Place::Group(group)).into())
}

/// Marks the blocks of a group that hold metadata of the file system.
fn mark_metadata(layout: &Layout, group: GroupNo, desc: &RawGroupDesc, bytes: &mut [u8]) {
    bitmap::set_range(bytes, 0, layout.base_meta_blocks(group));
    let mut mark = |start: BlockNo, len: u32| {
        for i in 0..u64::from(len) {
            if let Some((g, bit)) = layout.group_of(start.plus(i))
                && g == group
            {
                bitmap::set(bytes, bit);
            }
        }
    };
    mark(desc.block_bitmap(), 1);
    mark(desc.inode_bitmap(), 1);
    mark(desc.inode_table(), layout.inode_table_blocks());
}

fn initial_block_bitmap(layout: &Layout, group: GroupNo, desc: &RawGroupDesc) -> Box<[u8]> {
    let mut bytes = vec![0; layout.block_size as usize].into_boxed_slice();
    mark_metadata(layout, group, desc, &mut bytes);
    pad(&mut bytes, layout.blocks_in_group(group));
    bytes
}

fn initial_inode_bitmap(layout: &Layout) -> Box<[u8]> {
    let mut bytes = vec![0; layout.block_size as usize].into_boxed_slice();
    pad(&mut bytes, layout.inodes_per_group);
    bytes
}

/// Bits past the end of the group are set.
fn pad(bytes: &mut [u8], bits: u32) {
    let all = u32::try_from(bytes.len() * 8).unwrap_or(u32::MAX);
    bitmap::set_range(bytes, bits, all - bits);
}
