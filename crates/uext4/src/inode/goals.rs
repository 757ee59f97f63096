//! Where the first blocks of a file would best be.

use super::Inode;
use uext4_ondisk::{BlockNo, GroupNo};

/// Groups over which the streams of one directory are spread: so many appenders side by side seldom
/// meet at the lock of a group.
const STREAM_GROUPS: u32 = 64;
/// The golden ratio's fraction, of 2^32.
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

impl Inode {
    /// The group of the directory that it was created in; its own, if it was read since. So a
    /// directory with more files than a group has inodes has them all in one place.
    #[must_use]
    pub fn data_group(&self) -> GroupNo {
        self.data_group
    }

    /// Where its first block would best be, if it is small: where its data group begins, with the
    /// other files of its directory.
    #[must_use]
    pub fn goal(&self) -> BlockNo {
        self.space().layout().group_first_block(self.data_group)
    }

    /// Where its first block would best be, if many more are to come: at a place of its own among
    /// the groups around, so that the files of a directory have room to grow side by side.
    /// Multiples of the golden ratio lie as evenly as can be, however many there are.
    #[must_use]
    pub fn stream_goal(&self) -> BlockNo {
        let layout = self.space().layout();
        let group = self.group().get();
        let first = group - group % STREAM_GROUPS;
        let start = layout.group_first_block(GroupNo(first)).get();
        let groups = u64::from(STREAM_GROUPS.min(layout.group_count - first));
        let blocks = groups * u64::from(layout.blocks_per_group);
        let turn = u64::from(self.ino.get().wrapping_mul(GOLDEN_RATIO));
        BlockNo((start + ((turn * blocks) >> 32)).min(layout.blocks_count - 1))
    }
}
