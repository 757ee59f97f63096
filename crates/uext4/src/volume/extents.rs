//! Turning files with block maps into files with extents, as chattr(1) does with `+e`.

use super::Volume;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::InodeRef;
use crate::vfs::{Device, NewInode, Owner};
use uext4_ondisk::{FileKind, Incompat, RawSuperblock};

impl Volume {
    /// Sets the feature `extent` in the superblock. It counts from the next opening on. Nothing
    /// changes if it is set.
    ///
    /// # Errors
    /// `ReadOnly`; an aborted journal.
    pub fn enable_extents(&self) -> Result<()> {
        self.change(|vfs| {
            vfs.files.context.check_writable()?;
            let (buffer, at) = vfs.files.context.cache().superblock()?;
            self.space().journal().run(1, |handle| {
                let mut bytes = handle.write(&buffer)?;
                if let Some(raw) = RawSuperblock::mut_from_prefix(&mut bytes[at..]) {
                    raw.make_dynamic();
                    let features = raw.s_feature_incompat.get() | Incompat::EXTENT.bits();
                    raw.s_feature_incompat.set(features);
                }
                Ok(())
            })
        })
    }

    /// Gives a file, a directory or a symbolic link with a block map an extent tree. A crash shows
    /// it with the one or with the other. No other call on the file may be under way. False if
    /// there is nothing to do.
    ///
    /// # Errors
    /// `Unsupported` on a file system without the feature; `NoSpace`: the tree and the map are
    /// there together for a moment; `NotPermitted`, `ReadOnly`; a corrupt map; a device failure.
    pub fn convert_to_extents(&self, inode: &InodeRef) -> Result<bool> {
        if !self.layout().features.incompat.contains(Incompat::EXTENT) {
            let why = "the file system has no extent feature";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        if !inode.has_blocks() || inode.has_extent_tree() {
            return Ok(false);
        }
        if self.layout().has_clusters() {
            let why = "a block map of a file system with clusters";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let root = self.root()?;
        self.change(|vfs| {
            let owner = Owner { uid: 0, gid: 0 };
            let new = NewInode { kind: FileKind::Regular, mode: 0, owner, rdev: Device::default() };
            let holder = vfs.create_unlinked(&root, &new)?;
            let converted = vfs.files.convert_to_extents(inode, &holder);
            drop(holder);
            // A failure leaves an orphan, which does the file no harm.
            converted.and_then(|done| vfs.files.deletion.delete_unlinked().map(|()| done))
        })
    }
}
