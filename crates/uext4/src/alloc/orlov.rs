//! The group of a new directory, so that related files are close together and unrelated ones have
//! room.
//!
//! Policy (Orlov's): a directory of the top level, or below one that is marked as a top, goes to a
//! flex group with about the average of free inodes and free blocks, or more; among these to the
//! one with the fewest directories. A directory further down stays in the flex group of its parent,
//! unless that has much less left than the average, or many more directories. Within a flex group
//! the directories are spread over its groups, so that threads that create files in different
//! directories take different locks.
//! Kernel counterpart: `find_group_orlov` of `fs/ext4/ialloc.c`.

use super::{Group, Space};
use crate::journal::FreeSpaceHooks;
use crate::sync::atomic::Ordering;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::GroupNo;

/// Flex groups with room that are compared for a top directory.
const COMPARED_MAX: u32 = 64;

/// Free inodes, free blocks and directories of a flex group, or their averages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Load {
    inodes: u64,
    blocks: u64,
    directories: u64,
}

impl Load {
    fn of(groups: &[Arc<Group>]) -> Self {
        groups.iter().fold(Self::default(), |sum, group| Self {
            inodes: sum.inodes.saturating_add(u64::from(group.free_inodes())),
            blocks: sum.blocks.saturating_add(u64::from(group.free_blocks())),
            directories: sum.directories.saturating_add(u64::from(group.used_dirs())),
        })
    }

    fn of_one(group: &Arc<Group>) -> Self {
        Self::of(std::slice::from_ref(group))
    }

    fn divided(self, parts: u64) -> Self {
        let part = |whole: u64| whole.checked_div(parts).unwrap_or(whole);
        Self {
            inodes: part(self.inodes),
            blocks: part(self.blocks),
            directories: part(self.directories),
        }
    }
}

impl Space {
    fn flex_count(&self) -> u32 {
        self.layout.group_count.div_ceil(self.layout.groups_per_flex.max(1))
    }

    /// Groups of the flex group that a group is in.
    pub(super) fn flex_of(&self, group: GroupNo) -> Range<u32> {
        let size = self.layout.groups_per_flex.max(1);
        self.flex_groups(group.get() / size)
    }

    fn flex_groups(&self, flex: u32) -> Range<u32> {
        let size = self.layout.groups_per_flex.max(1);
        let first = flex.saturating_mul(size);
        first..first.saturating_add(size).min(self.layout.group_count)
    }

    fn load_of(&self, flex: u32) -> Load {
        let groups = self.flex_groups(flex);
        Load::of(&self.groups[groups.start as usize..groups.end as usize])
    }

    /// Averages over the flex groups.
    fn average_load(&self) -> Load {
        let (blocks, inodes) = self.journaled_free();
        // As descriptors count them.
        let blocks = blocks / u64::from(self.layout.cluster_blocks);
        let directories = self.inode_maps.directories();
        Load { inodes: u64::from(inodes), blocks, directories }.divided(self.flex_count().into())
    }

    /// A group for a directory that is unrelated to others.
    pub(super) fn group_for_top_directory(&self, near: GroupNo) -> GroupNo {
        let (count, average) = (self.flex_count(), self.average_load());
        // In an empty file system some flex groups have a little less free, because they hold
        // copies of the superblock, or the journal. They must get their share too.
        let enough = Load {
            inodes: average.inodes - average.inodes / 8,
            blocks: average.blocks - average.blocks / 8,
            ..average
        };
        let start = self.directory_spread.fetch_add(1, Ordering::Relaxed) % count;
        let mut best: Option<(u64, u32)> = None;
        let mut compared = 0;
        for step in 0..count {
            let flex = start.saturating_add(step) % count;
            let load = self.load_of(flex);
            if load.inodes == 0 || load.inodes < enough.inodes || load.blocks < enough.blocks {
                continue;
            }
            if best.is_none_or(|(fewest, _)| load.directories < fewest) {
                best = Some((load.directories, flex));
            }
            compared += 1;
            if compared == COMPARED_MAX {
                break;
            }
        }
        best.and_then(|(_, flex)| self.emptiest(flex)).unwrap_or(near)
    }

    /// A group for a directory whose parent lies in group `near`.
    pub(super) fn group_for_directory(&self, near: GroupNo) -> GroupNo {
        let (count, average) = (self.flex_count(), self.average_load());
        let size = u64::from(self.layout.groups_per_flex.max(1));
        let per_flex = u64::from(self.layout.inodes_per_group).saturating_mul(size);
        let blocks = u64::from(self.layout.blocks_per_group).saturating_mul(size);
        let directories_max = average.directories.saturating_add((per_flex / 16).max(1));
        let inodes_min = average.inodes.saturating_sub(per_flex / 4).max(1);
        let blocks_min = average.blocks.saturating_sub(blocks / 4);
        let parent_flex = near.get() / self.layout.groups_per_flex.max(1);
        for step in 0..count {
            let flex = parent_flex.saturating_add(step) % count;
            let load = self.load_of(flex);
            let fits = load.directories < directories_max
                && load.inodes >= inodes_min
                && load.blocks >= blocks_min;
            if !fits {
                continue;
            }
            let average = load.divided(self.flex_groups(flex).len() as u64);
            if flex == parent_flex && self.has_room(near, average) {
                return near;
            }
            if let Some(group) = self.emptiest(flex) {
                return group;
            }
        }
        near
    }

    /// Whether a group is not crowded compared with its flex group. The next directories of a
    /// parent follow it there until it is.
    fn has_room(&self, group: GroupNo, average: Load) -> bool {
        let load = Load::of_one(&self.groups[group.get() as usize]);
        let more = u64::from(self.layout.inodes_per_group / 512).max(4);
        load.inodes > 0
            && load.inodes >= average.inodes / 4
            && load.blocks >= average.blocks / 4
            && load.directories <= average.directories.saturating_add(more)
    }

    /// Among the groups of a flex group that have half of the average left: the one with the fewest
    /// directories. If there is none: the one with the most free inodes.
    fn emptiest(&self, flex: u32) -> Option<GroupNo> {
        let groups = self.flex_groups(flex);
        let average = self.load_of(flex).divided(groups.len() as u64);
        let load = |group: &u32| Load::of_one(&self.groups[*group as usize]);
        let roomy = |group: &u32| {
            let load = load(group);
            load.inodes > 0
                && load.inodes >= average.inodes / 2
                && load.blocks >= average.blocks / 2
        };
        let fewest = groups.clone().filter(roomy).min_by_key(|group| load(group).directories);
        let most = || groups.filter(|g| load(g).inodes > 0).max_by_key(|g| load(g).inodes);
        fewest.or_else(most).map(GroupNo)
    }
}
