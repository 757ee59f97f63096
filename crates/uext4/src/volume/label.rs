//! The volume's label.
//!
//! On disk: `s_volume_name` of the superblock, filled up with NUL, and of its backups.
//! Invariants: a label changes in a transaction, like everything in the superblock of a mounted
//! volume. Each backup follows in a handle of its own: a crash may leave the old label in some,
//! which e2fsck(8) does not mind.

use super::Volume;
use crate::cache::BlockKind;
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::{BlockNo, GroupNo, RawSuperblock};

/// `s_volume_name`.
pub(super) type Label = [u8; 16];

impl Volume {
    /// The label: at most 16 bytes.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        let label: Label = self.superblock().s_volume_name;
        label.iter().copied().take_while(|&byte| byte != 0).collect()
    }

    /// Sets the label, as `FS_IOC_SETFSLABEL` does. Rights are up to the caller.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 16 bytes, or a NUL; `ReadOnly`; a device failure, also when
    /// only a backup could not be changed.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let mut name = Label::default();
        let Some(room) = name.get_mut(..label.len()).filter(|_| !label.contains(&0)) else {
            let why = "a label has at most 16 bytes, none of them NUL";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        };
        room.copy_from_slice(label);
        self.change(|vfs| {
            vfs.files.context.check_writable()?;
            let journal = self.space().journal();
            journal.run(1, |handle| self.inner.superblock.set_label(handle, name))?;
            self.backups().try_for_each(|block| self.set_backup_label(block, name))
        })
    }

    /// The blocks that begin with a backup of the superblock.
    fn backups(&self) -> impl Iterator<Item = BlockNo> {
        let layout = self.layout();
        (1..layout.group_count).filter_map(|group| layout.super_copy(GroupNo(group)))
    }

    /// Sets the label of a backup. One that is none is left alone.
    fn set_backup_label(&self, block: BlockNo, label: Label) -> Result<()> {
        let cache = self.inner.vfs.files.context.cache();
        let buffer = cache.read(block, BlockKind::Plain)?;
        if RawSuperblock::read(&buffer.read()).is_err() {
            return Ok(());
        }
        self.space().journal().run(1, |handle| {
            if let Some(raw) = RawSuperblock::mut_from_prefix(&mut handle.write(&buffer)?) {
                raw.s_volume_name = label;
                raw.seal();
            }
            Ok(())
        })
    }
}
