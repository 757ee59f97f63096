//! Goals for the first blocks of a file.

use super::Inode;
use uext4_ondisk::{BlockNo, GroupNo};

/// Number of groups over which the streams of one directory are spread, so that many appenders side
/// by side seldom meet at the lock of a group.
const STREAM_GROUPS: u32 = 64;
/// The fractional part of the golden ratio, as a fraction of 2^32.
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

impl Inode {
    /// The group of the directory that the inode was created in; its own group if it was read from
    /// the table since. Because of it the files of a directory lie in one place, even if there are
    /// more of them than a group has inodes.
    #[must_use]
    pub fn data_group(&self) -> GroupNo {
        self.data_group
    }

    /// The goal for the first block of a small file: the begin of its home group, with the other
    /// files of its directory.
    #[must_use]
    pub fn goal(&self) -> BlockNo {
        self.space().layout().group_first_block(self.data_group)
    }

    /// The goal for the first block of a large file: a place of its own among the groups around, so
    /// that the files of a directory have room to grow side by side. Multiples of the golden ratio
    /// are spread as evenly as possible, however many there are.
    #[must_use]
    pub fn stream_goal(&self) -> BlockNo {
        let layout = self.space().layout();
        let group = self.group().get();
        let first = group - group % STREAM_GROUPS;
        let start = layout.group_first_block(GroupNo(first)).get();
        let groups = u64::from(STREAM_GROUPS.min(layout.group_count - first));
        let blocks = groups * u64::from(layout.blocks_per_group);
        let fraction = u64::from(self.ino.get().wrapping_mul(GOLDEN_RATIO));
        BlockNo((start + ((fraction * blocks) >> 32)).min(layout.blocks_count - 1))
    }
}
