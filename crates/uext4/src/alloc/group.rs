//! One block group in memory.
//!
//! On disk: a descriptor, a block bitmap, an inode bitmap. A group that is initialised lazily
//! (flags `BLOCK_UNINIT`, `INODE_UNINIT`) has no bitmap on the device yet. The content of the
//! bitmap then follows from the layout, and it is written when the group is first used.
//! Invariants: those of the module above. What can be read of a group without its lock agrees with
//! its map before the lock is released. A group without a map is counted by its descriptor, as if
//! all its free blocks were one run.
//! Locking: a group holds a reference to what all groups share. Therefore an allocation needs a
//! reference to its group only, and no reference count is changed by all threads.

use super::available::{Available, ShardedCounter};
use super::counters::{Count, Counters};
use super::free_map::{FreeMap, order_of};
use super::maps::Maps;
use super::order_index::OrderIndex;
use super::policy::Policy;
use crate::cache::{BlockKind, Buffer, Cache};
use crate::config::AllocOptions;
use crate::error::Result;
use crate::journal::{Handle, Journal};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use uext4_ondisk::{
    BlockNo, CorruptKind, GroupFlags, GroupNo, Layout, Place, RawGroupDesc, bitmap,
};

/// What all groups of a volume share.
#[derive(Debug)]
pub(super) struct GroupContext {
    pub(super) options: AllocOptions,
    pub(super) policy: Policy,
    /// Groups by the power of two of their longest free run.
    pub(super) by_longest: OrderIndex,
    /// Groups by the power of two of their average free run.
    pub(super) by_average: OrderIndex,
    /// Blocks that are free and not reserved.
    pub(super) available: Available,
    /// Free blocks in the journaled bitmaps of all groups.
    pub(super) journaled_blocks: ShardedCounter,
    /// Blocks whose freeing is not durable.
    pub(super) pending_blocks: ShardedCounter,
    pub(super) counters: Counters,
    pub(super) maps: Maps,
    /// For checks of invariants.
    pub(super) journal: Arc<Journal>,
}

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Group {
    pub(super) number: GroupNo,
    /// First block of the inode table; never changes.
    pub(super) inode_table: BlockNo,
    pub(super) shared: Arc<GroupContext>,
    /// Free blocks in the in-memory bitmap.
    free_blocks: AtomicU32,
    free_inodes: AtomicU32,
    used_dirs: AtomicU32,
    /// Blocks of the longest free run.
    longest_run: AtomicU32,
    /// Free runs.
    fragments: AtomicU32,
    state: Mutex<GroupState>,
}

#[derive(Debug)]
pub(super) struct GroupState {
    /// With the journaled counts.
    pub(super) desc: RawGroupDesc,
    /// The in-memory bitmap; read when it is needed, see `maps.rs`.
    pub(super) map: Option<FreeMap>,
    /// Whether the map was needed since it was last considered for eviction.
    pub(super) is_map_referenced: bool,
    /// The orders of the group in the indexes by longest and by average run.
    orders: [Option<u32>; 2],
    /// The journaled block bitmap, while a user keeps it in memory.
    block_bitmap: Weak<Buffer>,
    /// Bitmaps that were created since the mount. Earlier allocations could not pin them.
    pub(super) created: [Option<Arc<Buffer>>; 2],
}

impl Group {
    pub(super) fn new(number: GroupNo, desc: RawGroupDesc, shared: &Arc<GroupContext>) -> Self {
        let group = Self {
            number,
            inode_table: desc.inode_table(),
            shared: Arc::clone(shared),
            free_blocks: AtomicU32::new(desc.free_blocks()),
            free_inodes: AtomicU32::new(desc.free_inodes()),
            used_dirs: AtomicU32::new(desc.used_dirs()),
            longest_run: AtomicU32::new(0),
            fragments: AtomicU32::new(0),
            state: Mutex::new(
                LockRank::Group,
                GroupState {
                    desc,
                    map: None,
                    is_map_referenced: false,
                    orders: [None, None],
                    block_bitmap: Weak::new(),
                    created: [None, None],
                },
            ),
        };
        let free = desc.free_blocks();
        group.publish(&mut group.state.lock(), free, free, u32::from(free > 0));
        group
    }

    /// Waits for the lock, and counts that it had to.
    pub(super) fn lock(&self) -> MutexGuard<'_, GroupState> {
        if let Some(state) = self.state.try_lock() {
            return state;
        }
        self.shared.counters.add(Count::Contended, 1);
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

    pub(super) fn longest_run(&self) -> u32 {
        self.longest_run.load(Ordering::Relaxed)
    }

    /// Blocks of the average free run.
    pub(super) fn average_run(&self) -> u32 {
        self.free_blocks().checked_div(self.fragments.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// The in-memory bitmap, read from the device if the group has none.
    pub(super) fn map<'s>(
        &self,
        state: &'s mut GroupState,
        cache: &Cache,
    ) -> Result<&'s mut FreeMap> {
        if state.map.is_none() {
            let bits = state.read_block_bitmap(cache, self.number)?;
            let map = FreeMap::new(bits, cache.layout().bits_in_group(self.number));
            self.publish(state, map.free(), map.longest(), map.fragments());
            self.shared.counters.add(Count::Loaded, 1);
            state.map = Some(map);
            self.shared.maps.note_built(self.number);
        }
        state.is_map_referenced = true;
        Ok(state.map.as_mut().expect("set above"))
    }

    /// Allocates blocks that are free in both bitmaps. The map is in memory. `bitmap` is the
    /// journaled one, if the group was ever used.
    ///
    /// # Errors
    /// A block is not free.
    pub(super) fn allocate(
        &self,
        state: &mut GroupState,
        bit: u32,
        len: u32,
        bitmap: Option<&Buffer>,
    ) -> Result<()> {
        let free = state.map.as_ref().is_some_and(|map| map.is_free(bit, len))
            && bitmap.is_none_or(|buffer| bitmap::all_clear(&buffer.read(), bit, len));
        self.shared.journal.check(free, "blocks to allocate are free in both bitmaps")?;
        self.change(state, |map| map.allocate(bit, len));
        Ok(())
    }

    /// Releases runs of allocated blocks, given as first bit and length. Returns how many blocks
    /// that were: a run that is not allocated breaks an invariant, and stays as it is.
    pub(super) fn release(&self, runs: &[(u32, u32)]) -> u32 {
        let (mut wanted, mut released) = (0, 0);
        self.change(&mut self.lock(), |map| {
            for &(bit, len) in runs {
                wanted += len;
                if map.is_allocated(bit, len) {
                    map.release(bit, len);
                    released += len;
                }
            }
        });
        // What is wrong has been left out, so nothing is to be done here.
        let is_done = released == wanted && released > 0;
        let _ = self.shared.journal.check(is_done, "blocks to release are allocated in memory");
        released
    }

    /// Changes the map, and then what can be read of it without the lock.
    fn change(&self, state: &mut GroupState, change: impl FnOnce(&mut FreeMap)) {
        let Some(map) = &mut state.map else { return };
        change(map);
        let (free, longest, fragments) = (map.free(), map.longest(), map.fragments());
        self.publish(state, free, longest, fragments);
    }

    fn publish(&self, state: &mut GroupState, free: u32, longest: u32, fragments: u32) {
        self.free_blocks.store(free, Ordering::Relaxed);
        self.longest_run.store(longest, Ordering::Relaxed);
        self.fragments.store(fragments, Ordering::Relaxed);
        let average = free.checked_div(fragments).unwrap_or(0);
        let orders = [longest, average].map(|run| (run > 0).then(|| order_of(run)));
        if orders != state.orders {
            let group = self.number.get();
            self.shared.by_longest.set(group, state.orders[0], orders[0]);
            self.shared.by_average.set(group, state.orders[1], orders[1]);
            state.orders = orders;
        }
    }

    /// Publishes the counts of inodes after a change. The caller holds the lock.
    pub(super) fn publish_inodes(&self, state: &GroupState) {
        self.free_inodes.store(state.desc.free_inodes(), Ordering::Relaxed);
        self.used_dirs.store(state.desc.used_dirs(), Ordering::Relaxed);
    }
}

impl GroupState {
    /// A copy of the journaled inode bitmap, checked against the descriptor.
    pub(super) fn read_inode_bitmap(&self, cache: &Cache, group: GroupNo) -> Result<Box<[u8]>> {
        let per_group = cache.layout().inodes_per_group;
        let bytes: Box<[u8]> = match self.inode_bitmap(cache, group)? {
            Some(buffer) => buffer.read()[..].into(),
            None => initial_inode_bitmap(cache.layout()),
        };
        let free = bitmap::count_zeros(&bytes, per_group);
        check_count("inode bitmap", group, free, self.desc.free_inodes())?;
        Ok(bytes)
    }

    /// A copy of the journaled block bitmap, checked against the descriptor.
    pub(super) fn read_block_bitmap(&self, cache: &Cache, group: GroupNo) -> Result<Box<[u8]>> {
        let layout = cache.layout();
        let is_initial = self.desc.flags().contains(GroupFlags::BLOCK_UNINIT);
        let mut bytes: Box<[u8]> = if is_initial {
            initial_block_bitmap(layout, group, &self.desc)
        } else {
            let block = self.desc.block_bitmap();
            cache.read(block, BlockKind::BlockBitmap(group))?.read()[..].into()
        };
        let free = bitmap::count_zeros(&bytes, layout.bits_in_group(group));
        check_count("block bitmap", group, free, self.desc.free_blocks())?;
        if !is_initial {
            // A hostile bitmap may call the group's own metadata free.
            mark_metadata(layout, group, &self.desc, &mut bytes);
        }
        Ok(bytes)
    }

    /// The journaled block bitmap; while a caller holds it, changing it reads nothing. `None`: the
    /// group was never used.
    pub(super) fn block_bitmap(
        &mut self,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Option<Arc<Buffer>>> {
        if self.desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            return Ok(None);
        }
        if let Some(buffer) = self.block_bitmap.upgrade() {
            // A block has one buffer as long as it is held.
            return Ok(Some(buffer));
        }
        let buffer = cache.read(self.desc.block_bitmap(), BlockKind::BlockBitmap(group))?;
        self.block_bitmap = Arc::downgrade(&buffer);
        Ok(Some(buffer))
    }

    /// The journaled inode bitmap. `None`: the group was never used.
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

    /// The journaled block bitmap, created now if the group was never used.
    pub(super) fn block_bitmap_for_change(
        &mut self,
        handle: &mut Handle<'_>,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Arc<Buffer>> {
        if let Some(buffer) = self.block_bitmap(cache, group)? {
            return Ok(buffer);
        }
        let block = self.desc.block_bitmap();
        let buffer = handle.create(block, BlockKind::BlockBitmap(group))?;
        let initial = initial_block_bitmap(cache.layout(), group, &self.desc);
        handle.write(&buffer)?.copy_from_slice(&initial);
        self.desc.set_flags(self.desc.flags() - GroupFlags::BLOCK_UNINIT);
        self.block_bitmap = Arc::downgrade(&buffer);
        self.created[0] = Some(Arc::clone(&buffer));
        Ok(buffer)
    }

    /// The journaled inode bitmap, created now if the group was never used.
    pub(super) fn inode_bitmap_for_change(
        &mut self,
        handle: &mut Handle<'_>,
        cache: &Cache,
        group: GroupNo,
    ) -> Result<Arc<Buffer>> {
        if let Some(buffer) = self.inode_bitmap(cache, group)? {
            return Ok(buffer);
        }
        let block = self.desc.inode_bitmap();
        let buffer = handle.create(block, BlockKind::InodeBitmap(group))?;
        handle.write(&buffer)?.copy_from_slice(&initial_inode_bitmap(cache.layout()));
        self.desc.set_flags(self.desc.flags() - GroupFlags::INODE_UNINIT);
        self.created[1] = Some(Arc::clone(&buffer));
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
    bitmap::set_range(bytes, 0, layout.bits_for(layout.base_meta_blocks(group)));
    let mut mark = |start: BlockNo, len: u32| {
        for i in 0..u64::from(len) {
            if let Some((g, bit)) = layout.bit_of(start.plus(i))
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
    pad(&mut bytes, layout.bits_in_group(group));
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
