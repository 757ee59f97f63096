//! Inode flags as callers see and set them: chattr(1).
//!
//! Invariants: a writer that is not done when an inode becomes immutable or append-only has begun
//! before. It checks the flags before it changes anything; direct overwrites, which check them in
//! their read-side critical sections, are waited for.

use super::Vfs;
use super::encryption::check_hashes;
use crate::dir::{self, EmptyTree};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::InodeRef;
use uext4_ondisk::{FileBlock, FileKind, InodeFlags};

/// The flags that a caller may change.
const SETTABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

/// The flags that stay as they are and must be given so. ext4 converts a file when one of the first
/// two changes. Other visible flags that cannot be set are ignored, because chattr(1) returns what
/// it was shown.
const FIXED: InodeFlags =
    InodeFlags::EXTENTS.union(InodeFlags::JOURNAL_DATA).union(InodeFlags::EOFBLOCKS);

impl Vfs {
    /// The flags of an inode that its users may see, as `FS_IOC_GETFLAGS` has them.
    #[must_use]
    pub fn flags(&self, inode: &InodeRef) -> u32 {
        let visible = inode.attributes().flags & InodeFlags::USER_VISIBLE;
        // A file that was made by an old kernel may have it, and does not hand it on.
        let hidden = match inode.kind() {
            FileKind::Regular => InodeFlags::PROJINHERIT,
            _ => InodeFlags::empty(),
        };
        (visible - hidden).bits()
    }

    /// Sets the flags of an inode, as `FS_IOC_SETFLAGS` has them, and its change time. The right to
    /// set which is up to the caller. A change of DAX has effect when the inode is read again.
    ///
    /// # Errors
    /// `Unsupported` for flags that cannot be seen, that this type of inode cannot have, or that
    /// cannot be changed; `NotEmpty` for case folding of a directory with entries; `NoKey` for that
    /// of an encrypted one without its key, `InvalidArgument` under a policy of version 1;
    /// `NotPermitted` for other changes of an inode that is immutable and stays so; `ReadOnly`; a
    /// device failure.
    pub fn set_flags(&self, inode: &InodeRef, flags: u32) -> Result<()> {
        self.files.context.check_writable()?;
        let wanted = InodeFlags::from_bits_retain(flags);
        let exclusive = inode.lock().write();
        let old = inode.attributes().flags;
        check_change(inode.kind(), old, wanted)?;
        self.check_folding(inode, old ^ wanted)?;
        let new = (wanted & SETTABLE) | (old - SETTABLE);
        if inode.kind() == FileKind::Regular {
            inode.expect_flags(new);
        }
        let folds = wanted.contains(InodeFlags::CASEFOLD);
        let rehashes = inode.is_encrypted() && folds != old.contains(InodeFlags::CASEFOLD);
        let rehash = if rehashes { EmptyTree::of(inode)? } else { None };
        let drained = inode.drain_direct_io(FileBlock(0), FileBlock::END)?;
        let _pin = inode.table_block()?;
        self.files.context.space.journal().run(2, |handle| {
            if let Some(tree) = rehash {
                tree.set_hash(handle, folds)?;
            }
            inode.update(handle, |attributes| {
                attributes.flags = (wanted & SETTABLE) | (attributes.flags - SETTABLE);
                attributes.touch();
            })
        })?;
        inode.follow_flags();
        drop((drained, exclusive));
        self.files.syncs.honour_sync_flag(inode)
    }

    /// Whether a directory may begin or cease to fold case, if `changed` says so: names that differ
    /// by case alone would be one, and hashes others. The directory is locked.
    fn check_folding(&self, inode: &InodeRef, changed: InodeFlags) -> Result<()> {
        if !changed.contains(InodeFlags::CASEFOLD) {
            return Ok(());
        }
        if self.files.context.space.layout().encoding.is_none() {
            return Err(Error::new(ErrorKind::Unsupported, "no casefold feature"));
        }
        if inode.is_encrypted() {
            // The names below are hashed with the key.
            inode.check_key()?;
            check_hashes(&inode.encryption()?.context.policy)?;
        }
        if dir::is_empty(inode)? { Ok(()) } else { Err(ErrorKind::NotEmpty.into()) }
    }
}

fn check_change(kind: FileKind, old: InodeFlags, wanted: InodeFlags) -> Result<()> {
    let unsupported = |why| Err(Error::new(ErrorKind::Unsupported, why));
    if !InodeFlags::USER_VISIBLE.contains(wanted) {
        return unsupported("flags that users do not set");
    }
    let known = wanted & (SETTABLE | FIXED);
    if known.of_kind(kind) != known {
        return unsupported("flags that an inode of this type cannot have");
    }
    let changed = (old ^ wanted) & (SETTABLE | FIXED);
    let stays_immutable = (old & wanted).contains(InodeFlags::IMMUTABLE);
    if stays_immutable && !changed.is_empty() {
        return Err(Error::new(ErrorKind::NotPermitted, "flags of an immutable inode"));
    }
    if changed.intersects(FIXED) {
        return unsupported("a flag that cannot be changed");
    }
    if changed.contains(InodeFlags::DAX) && wanted.contains(InodeFlags::DAX) {
        let others = InodeFlags::JOURNAL_DATA | InodeFlags::ENCRYPT | InodeFlags::VERITY;
        if old.intersects(others) {
            return unsupported("direct access to data that is journaled or transformed");
        }
    }
    Ok(())
}
