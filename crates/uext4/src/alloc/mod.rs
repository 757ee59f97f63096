//! The allocator: which blocks and inodes are free, and which of them a caller gets.
//!
//! What: [`Space`] has one [`Group`] for each block group. A group has two bitmaps of blocks. The
//! *journaled bitmap* changes only in the handle that inserts or removes an extent. The *in-memory
//! bitmap* has more bits set: it also covers the blocks that are allocated in memory and not yet
//! marked used, and the blocks that were freed in a transaction that is not durable. Blocks are
//! first allocated in memory, which needs no handle, so that a failure costs nothing. Then they are
//! marked used in a handle.
//! Invariants: the in-memory bitmap contains the journaled one. Only the journaled one is ever
//! written. A freed block leaves the in-memory bitmap when its transaction is durable. The `free`
//! counters follow the in-memory bitmap, the descriptors follow the journaled one.
//! Locking: one group lock at a time, tried only where another group will do. Bitmaps are read
//! under it.
//! Kernel counterpart: `fs/ext4/mballoc.c`, `fs/ext4/ialloc.c`.

mod available;
mod block;
mod counters;
mod credits;
mod criteria;
mod exact;
mod free_map;
mod free_runs;
mod group;
mod growth;
mod inode;
mod inode_map;
mod inode_slots;
mod maps;
mod order_index;
mod orlov;
mod policy;
mod preallocation;
mod prefetch;
mod privilege;
mod reservation;
mod trim;
mod unwritten_slots;
mod zone;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use block::Allocation;
pub use counters::{AllocStats, Count, Counters, Criterion, CriterionStats, GroupStats, RunStats};
pub use credits::Credits;
pub use free_runs::FreeRun;
pub use inode::{Child, InodeAllocation};
pub use preallocation::{BorrowedPreallocation, Need, Preallocation, PreallocationStats};
pub use privilege::as_user;
pub(crate) use privilege::may_use_root_reserve;
pub use reservation::Reservation;
pub use trim::{DiscardHook, DiscardStats, Discards};

use crate::cache::{BlockKind, Buffer, Cache};
use crate::config::AllocOptions;
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::journal::{FreeSpaceHooks, Freed, Handle, Journal};
use crate::quota::{Owners, Quota, QuotaHold};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use available::{Available, ShardedCounter};
use free_map::FreeMap;
use group::{Group, GroupContext};
use inode_map::InodeMaps;
use maps::Maps;
use order_index::OrderIndex;
use policy::Policy;
use preallocation::Preallocations;
use std::sync::{Arc, Weak};
use uext4_ondisk::features::Features;
use uext4_ondisk::{
    BlockNo, Compat, Corrupt, CorruptKind, FileBlock, GroupFlags, GroupNo, Incompat, Ino, Layout,
    Place, RawGroupDesc, RawSuperblock, RoCompat, group_desc,
};
use zone::SystemZone;

/// The node pool has at most this part of all blocks.
const NODE_POOL_SHARE: u64 = 50;

/// The block groups of a volume, and what is allocated from them.
#[derive(Debug)]
pub struct Space {
    /// Itself, for inode allocations, which release what they hold.
    this: Weak<Space>,
    cache: Arc<Cache>,
    layout: Arc<Layout>,
    groups: Box<[Arc<Group>]>,
    shared: Arc<GroupContext>,
    desc_buffers: Vec<Arc<Buffer>>,
    zone: SystemZone,
    /// Inodes of the file system's own files above the reserved ones; 0 where there is none.
    own_inodes: [Ino; 3],
    /// Free inodes in the journaled bitmaps of all groups.
    journaled_inodes: AtomicI64,
    /// How often frees have become usable.
    releases: AtomicU64,
    inode_maps: InodeMaps,
    preallocations: Preallocations,
    /// Flex group at which the search for the next top directory begins.
    directory_spread: AtomicU32,
    discards: Discards,
    credits: Credits,
    /// Set before the first change, where the volume keeps quota.
    quota: OnceLock<Arc<Quota>>,
}

/// Free space as statfs(2) counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeCounts {
    /// Free blocks, or clusters, without those reserved for cached data.
    pub blocks: u64,
    /// Free inodes.
    pub inodes: u64,
}

impl Space {
    /// Reads the group descriptors of a volume.
    ///
    /// # Errors
    /// The device failed, or a descriptor is corrupt.
    pub fn open(
        cache: Arc<Cache>,
        journal: Arc<Journal>,
        superblock: &RawSuperblock,
        journal_runs: &[(BlockNo, u32)],
        options: AllocOptions,
    ) -> Result<Arc<Self>> {
        let layout = Arc::clone(cache.layout());
        let (descs, desc_buffers) = read_descs(&cache)?;
        let zone = SystemZone::new(&layout, &descs, journal_runs)?;
        let free_blocks = descs.iter().map(|d| i64::from(d.free_blocks())).sum();
        let root_reserve = superblock.reserved_blocks_count() / u64::from(layout.cluster_blocks);
        let root_reserve = i64::try_from(root_reserve).unwrap_or(i64::MAX);
        let node_pool = node_pool_blocks(&layout, &options);
        let free_inodes = descs.iter().map(|d| i64::from(d.free_inodes())).sum();
        let directories = descs.iter().map(|d| i64::from(d.used_dirs())).sum();
        let inode_maps = InodeMaps::new(layout.group_count, directories);
        let shared = Arc::new(GroupContext {
            policy: Policy::new(&options, &layout),
            options,
            by_longest: OrderIndex::new(layout.group_count),
            by_average: OrderIndex::new(layout.group_count),
            available: Available::new(free_blocks, root_reserve, node_pool),
            journaled_blocks: ShardedCounter::new(free_blocks),
            pending_blocks: ShardedCounter::new(0),
            counters: Counters::new(),
            maps: Maps::new(),
            journal,
        });
        let groups = (0..).map(GroupNo).zip(descs);
        let groups = groups.map(|(number, desc)| Arc::new(Group::new(number, desc, &shared)));
        let groups = groups.collect();
        let own_inodes = own_inodes(&layout, superblock);
        let credits = Credits::new(&layout.features);
        let space = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            cache,
            layout,
            groups,
            shared,
            desc_buffers,
            zone,
            own_inodes,
            journaled_inodes: AtomicI64::new(free_inodes),
            releases: AtomicU64::new(0),
            inode_maps,
            preallocations: Preallocations::new(),
            directory_spread: AtomicU32::new(0),
            discards: Discards::default(),
            credits,
            quota: OnceLock::new(),
        });
        space.journal().set_free_space_hooks(&space);
        Ok(space)
    }

    fn to_arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("the caller holds the space")
    }

    /// Credits of the steps of handles.
    #[must_use]
    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Quota, if the volume keeps it.
    #[must_use]
    pub fn quota(&self) -> Option<&Arc<Quota>> {
        self.quota.get()
    }

    /// Keeps quota from now on. Called once, before the first change.
    pub(crate) fn set_quota(&self, quota: Arc<Quota>) {
        let first = self.quota.set(quota).is_ok();
        debug_assert!(first, "quota is opened once");
    }

    /// An empty hold on the quota of an inode's owners; `None` if its usage is not counted. That of
    /// the file system's own files is not, but for the root directory.
    pub(crate) fn quota_of(&self, ino: Ino, owners: Owners) -> Option<QuotaHold> {
        let quota = self.quota()?;
        let is_counted = ino == Ino::ROOT || !self.is_special(ino);
        is_counted.then(|| QuotaHold::empty(quota, owners))
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal> {
        &self.shared.journal
    }

    /// Geometry of the volume.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// A copy of a group's descriptor.
    #[must_use]
    pub fn group_desc(&self, group: GroupNo) -> RawGroupDesc {
        self.groups[group.get() as usize].lock().desc
    }

    /// First block of the inode table of a group.
    #[must_use]
    pub fn inode_table(&self, group: GroupNo) -> BlockNo {
        self.groups[group.get() as usize].inode_table
    }

    /// Free blocks and inodes. Preallocated blocks count as free until they are marked used.
    #[must_use]
    pub fn free_counts(&self) -> FreeCounts {
        let blocks = self.shared.available.total()
            + self.shared.pending_blocks.sum()
            + self.preallocated_blocks();
        let inodes = self.groups.iter().map(|g| u64::from(g.free_inodes())).sum();
        FreeCounts { blocks: u64::try_from(blocks).unwrap_or(0), inodes }
    }

    /// Blocks of the node pool when it is full.
    #[must_use]
    pub fn node_pool_blocks(&self) -> u64 {
        let bits = u64::try_from(self.shared.available.full_node_pool()).unwrap_or(0);
        bits * u64::from(self.layout.cluster_blocks)
    }

    /// Whether `len` blocks from `start` can be file blocks: inside the file system and no part
    /// of its own metadata.
    ///
    /// # Errors
    /// `Corrupt` names the block.
    pub fn check_run(&self, start: BlockNo, len: u64) -> Result<(), Corrupt> {
        if self.layout.is_valid_run(start, len) && !self.zone.overlaps(start, len) {
            return Ok(());
        }
        let why = "points outside the data area";
        Err(CorruptKind::Rule { what: "extent", why }.at(Place::Block(start)))
    }

    /// Whether `len` blocks from `start` can be those of a file from its block `first` on. A block
    /// has the same place in its cluster on the device and in the file.
    ///
    /// # Errors
    /// `Corrupt` names the block.
    pub fn check_mapping(&self, first: FileBlock, start: BlockNo, len: u64) -> Result<(), Corrupt> {
        self.check_run(start, len)?;
        let layout = &self.layout;
        if layout.index_in_cluster(u64::from(first.get())) == layout.index_in_cluster(start.get()) {
            return Ok(());
        }
        let why = "does not lie in its cluster as in the file";
        Err(CorruptKind::Rule { what: "extent", why }.at(Place::Block(start)))
    }

    /// Whether an inode is reserved or belongs to the file system itself. Of these only the root
    /// has a name.
    #[must_use]
    pub fn is_special(&self, ino: Ino) -> bool {
        ino < self.layout.first_ino || self.own_inodes.contains(&ino)
    }

    /// How often freed blocks have become usable; for [`Space::reclaim_blocks`].
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// Makes blocks usable for a caller that found none: discards all preallocations or, if there
    /// were none, waits until the blocks freed so far are usable. False if a further attempt is
    /// pointless: nothing is pending, and nothing was released since there were `releases` of them.
    /// The caller reads [`Space::releases`] before its attempt, because the commit of another
    /// thread may release blocks in between, and these count as pending no longer. No handle may
    /// be open.
    ///
    /// # Errors
    /// The journal is aborted.
    pub fn reclaim_blocks(&self, releases: u64) -> Result<bool> {
        if self.discard_preallocations() {
            return Ok(true);
        }
        if self.shared.pending_blocks.sum() <= 0 {
            return Ok(self.releases() != releases && !Fault::OverlookedRelease.is_injected());
        }
        self.discards.wait();
        self.journal().commit_all()?;
        Ok(true)
    }

    /// Writes a changed descriptor into its block.
    fn write_desc(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNo,
        desc: &RawGroupDesc,
    ) -> Result<()> {
        let per_block = self.layout.descs_per_block();
        let buffer = &self.desc_buffers[(group.get() / per_block) as usize];
        let slot = group.get() % per_block;
        let size = usize::from(self.layout.desc_size);
        let at = slot as usize * size;
        let mut bytes = handle.write_slot(buffer, slot)?;
        desc.write(&mut bytes[at..at + size], self.layout.desc_size);
        Ok(())
    }
}

impl FreeSpaceHooks for Space {
    fn journaled_free(&self) -> (u64, u32) {
        // Descriptors count clusters, the superblock counts blocks.
        let bits = u64::try_from(self.shared.journaled_blocks.sum()).unwrap_or(0);
        let inodes = self.journaled_inodes.load(Ordering::Acquire);
        (bits * u64::from(self.layout.cluster_blocks), u32::try_from(inodes).unwrap_or(0))
    }

    fn contains(&self, group: GroupNo, logged: &[u8]) -> bool {
        let state = self.groups[group.get() as usize].lock();
        state.map.as_ref().is_none_or(|map| map.contains(logged))
    }

    fn is_balanced(&self) -> bool {
        self.shared.available.total() <= self.shared.journaled_blocks.sum()
    }

    fn freed(&self, freed: Vec<Freed>) {
        self.discard_freed(&freed);
        self.shared.policy.release(self, freed);
        self.evict_released_maps();
    }
}

/// Blocks of the node pool; as many as the kernel sets aside (`s_resv_clusters`).
fn node_pool_blocks(layout: &Layout, options: &AllocOptions) -> i64 {
    let bits = layout.blocks_count / u64::from(layout.cluster_blocks);
    let blocks = (bits / NODE_POOL_SHARE).min(options.node_pool.into());
    let has_trees = layout.features.incompat.contains(Incompat::EXTENT);
    i64::try_from(if has_trees { blocks } else { 0 }).unwrap_or(0)
}

/// The inodes that the superblock names, as far as its features say that the fields are valid.
fn own_inodes(layout: &Layout, superblock: &RawSuperblock) -> [Ino; 3] {
    let Features { compat, ro_compat, .. } = layout.features;
    let named = |is_named: bool, ino: u32| Ino(if is_named { ino } else { 0 });
    [
        named(compat.contains(Compat::HAS_JOURNAL), superblock.s_journal_inum.get()),
        named(compat.contains(Compat::ORPHAN_FILE), superblock.s_orphan_file_inum.get()),
        named(ro_compat.contains(RoCompat::PROJECT), superblock.s_prj_quota_inum.get()),
    ]
}

/// The descriptors of all groups, and the blocks that they lie in.
fn read_descs(cache: &Cache) -> Result<(Vec<RawGroupDesc>, Vec<Arc<Buffer>>)> {
    let layout = cache.layout();
    let size = usize::from(layout.desc_size);
    let mut buffers = Vec::new();
    // Grows with what is read: a hostile superblock can claim hundreds of millions of groups.
    let mut groups = Vec::new();
    for n in 0..layout.desc_block_count() {
        let first = GroupNo(n * layout.descs_per_block());
        let buffer = cache.read(layout.desc_block_no(n), BlockKind::GroupDescs { first })?;
        let in_block = layout.descs_per_block().min(layout.group_count - first.get());
        for slot in 0..in_block {
            let group = GroupNo(first.get() + slot);
            let bytes = buffer.read();
            let bytes = &bytes[slot as usize * size..(slot as usize + 1) * size];
            let at = |kind: CorruptKind| kind.at(Place::Group(group));
            group_desc::verify_slot(bytes, &layout.checksums, group).map_err(at)?;
            let mut desc = RawGroupDesc::read(bytes, layout.desc_size).map_err(at)?;
            if !layout.checksums.has_group_checksum() {
                // Without the feature the flags have no meaning.
                desc.set_flags(GroupFlags::empty());
            }
            check_desc(layout, group, &desc)?;
            groups.push(desc);
        }
        buffers.push(buffer);
    }
    cache.sealer().note_groups(&groups);
    Ok((groups, buffers))
}

fn check_desc(layout: &Layout, group: GroupNo, desc: &RawGroupDesc) -> Result<(), Corrupt> {
    let is_inside = |start, len: u32| layout.is_valid_run(start, u64::from(len));
    let inodes = layout.inodes_per_group;
    let why = if !is_inside(desc.block_bitmap(), 1) || !is_inside(desc.inode_bitmap(), 1) {
        "a bitmap lies outside the file system"
    } else if !is_inside(desc.inode_table(), layout.inode_table_blocks()) {
        "the inode table lies outside the file system"
    } else if desc.free_blocks() > layout.bits_in_group(group) {
        "more free blocks than blocks"
    } else if desc.free_inodes() > inodes || desc.itable_unused() > inodes {
        "more free inodes than inodes"
    } else if desc.used_dirs() > inodes {
        "more directories than inodes"
    } else {
        return Ok(());
    };
    Err(CorruptKind::Rule { what: "group descriptor", why }.at(Place::Group(group)))
}
