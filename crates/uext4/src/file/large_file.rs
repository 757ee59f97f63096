//! Files of 2 GiB and more: the feature `large_file` is set by the first of them, as by the kernel.
//!
//! Invariants: the feature is set in a handle before the one that makes the file so large, so no
//! crash shows the file without it. It is never taken back.

use super::FileContext;
use crate::error::Result;
use crate::inode::Inode;
use crate::sync::state::Ordering;
use uext4_ondisk::{FileKind, RawSuperblock, RoCompat};

/// The largest file of which a file system without the feature knows.
pub(super) const SMALL_FILE_MAX: u64 = (1 << 31) - 1;

impl FileContext {
    /// Sets the feature if the file system is without it. The caller has no handle.
    ///
    /// # Errors
    /// An aborted journal.
    pub(super) fn set_large_file(&self, inode: &Inode) -> Result<()> {
        if self.has_large_file.load(Ordering::Acquire) || inode.kind() != FileKind::Regular {
            return Ok(());
        }
        let (buffer, at) = self.cache().superblock()?;
        self.journal().run(1, |handle| {
            let mut bytes = handle.write(&buffer)?;
            if let Some(raw) = RawSuperblock::mut_from_prefix(&mut bytes[at..]) {
                raw.make_dynamic();
                let features = raw.s_feature_ro_compat.get() | RoCompat::LARGE_FILE.bits();
                raw.s_feature_ro_compat.set(features);
            }
            Ok(())
        })?;
        self.has_large_file.store(true, Ordering::Release);
        Ok(())
    }
}
