//! Whether a volume has any extended attribute.
//!
//! What: a look at every inode in use, for a server whose kernel may then be told to ask for none.
//! Invariants: yes is certain: every inode in use was read, none refers to a block of attributes,
//! and none has any behind its extra fields. What cannot be read, or not in time, is no yes.

use super::Volume;
use crate::sync::time::Instant;
use std::time::Duration;
use uext4_ondisk::inode::xattr_offset;
use uext4_ondisk::superblock::STATE_ERROR;
use uext4_ondisk::xattr::area_entries;
use uext4_ondisk::{GroupNo, RawInode};

impl Volume {
    /// Whether it is certain that no inode has an extended attribute. The look at all of them is
    /// given up after `within`, but for the group that it is at. For read-only volumes.
    #[must_use]
    pub fn has_no_attributes(&self, within: Duration) -> bool {
        let start = Instant::now();
        self.read_only()
            && !self.may_have_wrong_bitmaps()
            && (0..self.layout().group_count).map(GroupNo).all(|group| {
                start.elapsed() < within
                    && self
                        .space()
                        .visit_inode_slots(group, &mut |slot| !may_have_attributes(slot))
                        .unwrap_or(false)
            })
    }
}

impl Volume {
    /// Whether an inode that can be reached may be called free by its group: of a file system that
    /// has errors, or whose log was left alone.
    fn may_have_wrong_bitmaps(&self) -> bool {
        let state = self.superblock().s_state.get();
        self.options().no_recovery || state & STATE_ERROR != 0
    }
}

/// Also true of a slot that is no inode.
fn may_have_attributes(slot: &[u8]) -> bool {
    let area = xattr_offset(slot).and_then(|at| slot.get(at..));
    let has_inside = area.is_some_and(|area| area_entries(area).next().is_some());
    has_inside || RawInode::read(slot).map_or(true, |inode| inode.file_acl() != 0)
}
