//! Set-id bits and capabilities, which a change of content takes away from a file.
//!
//! What: a mark of the calling thread, as the kernel's credentials are one. A thread that works for
//! nobody in particular changes neither. A thread that works for a caller ([`removing_privs`])
//! removes the capabilities of each file that it changes (`security.capability`), and its set-id
//! bits where the caller has no `CAP_FSETID`. Looked at by the writes and fallocate of an
//! [`OpenFile`](super::OpenFile); a queue of direct requests and a lease are their owner's.
//! Invariants: both are gone before the first byte changes, and there is a handle only where there
//! is something to remove. A mode or a capability that is set during a write comes before or after
//! it; a caller that needs more keeps both apart, as the kernel does for a mount.
//! Kernel counterpart: `file_remove_privs` in `fs/inode.c`, `cap_inode_killpriv` in
//! `security/commoncap.c`.

use super::Vfs;
use crate::error::{ErrorKind, Result};
use crate::inode::{Attributes, InodeRef};
use crate::xattr;
use std::cell::Cell;
use uext4_ondisk::FileKind;

/// The attribute that a file's capabilities are kept in.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The rights that a change of content takes away from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privs {
    /// Capabilities, which no writer keeps.
    Capabilities,
    /// Set-id bits too, which a writer without `CAP_FSETID` does not keep.
    All,
    /// And set-group-id of a file that its group may not run, which such a writer does not keep
    /// outside the group.
    AllOutsideGroup,
}

impl Privs {
    /// The set-id bits among them.
    pub(super) fn bits(self, attributes: &Attributes) -> u16 {
        match self {
            Privs::Capabilities => 0,
            Privs::All => attributes.set_id_bits(),
            Privs::AllOutsideGroup => attributes.mode & 0o6000,
        }
    }
}

thread_local! {
    /// What the thread removes, and whether it has removed anything.
    static MARK: Cell<(Option<Privs>, bool)> = const { Cell::new((None, false)) };
}

/// Does `work` for a caller whose changes of content remove `privs`. Returns besides whether
/// anything was removed.
pub fn removing_privs<T>(privs: Privs, work: impl FnOnce() -> T) -> (T, bool) {
    struct Before((Option<Privs>, bool));
    impl Drop for Before {
        fn drop(&mut self) {
            MARK.set(self.0);
        }
    }
    let _before = Before(MARK.replace((Some(privs), false)));
    let result = work();
    (result, MARK.get().1)
}

impl Vfs {
    /// To be called before the content of `inode` changes. The caller holds no lock, and is not
    /// inside another call of the volume.
    ///
    /// # Errors
    /// As [`Files::check_changeable`](crate::file::Files::check_changeable); `NoSpace` where the
    /// attributes' block is shared; a device failure.
    #[inline]
    pub(super) fn before_change(&self, inode: &InodeRef) -> Result<()> {
        let (Some(privs), _) = MARK.get() else { return Ok(()) };
        if !self.has_privs(inode, privs) {
            return Ok(());
        }
        self.files.watch(self.remove_before_change(inode, privs))
    }

    #[cold]
    fn remove_before_change(&self, inode: &InodeRef, privs: Privs) -> Result<()> {
        let _inside = self.files.enter()?;
        self.remove_privs(inode, privs)?;
        MARK.set((Some(privs), true));
        Ok(())
    }

    fn has_privs(&self, inode: &InodeRef, privs: Privs) -> bool {
        let has_bits = privs != Privs::Capabilities && privs.bits(&inode.attributes()) != 0;
        has_bits || self.has_capabilities(inode)
    }

    /// Whether a file has capabilities. Remembered where it has none, so that a file with other
    /// attributes is looked at once. Attributes that cannot be read give no capabilities, here and
    /// in the kernel.
    fn has_capabilities(&self, inode: &InodeRef) -> bool {
        if inode.has_no_capabilities() || !inode.may_have_xattrs() {
            return false;
        }
        // Setting attributes holds this exclusively: the answer is remembered before it can change.
        let _shared = inode.lock().read();
        match xattr::get(self.files.space(), inode, CAPABILITY) {
            Ok(_) => true,
            Err(error) => {
                inode.set_no_capabilities(*error.kind() == ErrorKind::NoXattr);
                false
            }
        }
    }

    /// Removes what a change of content removes, in one handle. The caller is inside a call of the
    /// volume and holds no lock.
    ///
    /// # Errors
    /// As [`Vfs::before_change`].
    pub(super) fn remove_privs(&self, inode: &InodeRef, privs: Privs) -> Result<()> {
        if inode.kind() != FileKind::Regular || !self.has_privs(inode, privs) {
            return Ok(());
        }
        self.files.check_changeable(inode)?;
        let _exclusive = inode.lock().write();
        let _pin = inode.table_block()?;
        let space = self.files.space();
        let capability = match xattr::get(space, inode, CAPABILITY) {
            Ok(_) => Some(xattr::Change::plan(space, inode, CAPABILITY, None, xattr::Mode::Any)?),
            Err(_) => None,
        };
        let credits = 1 + capability.as_ref().map_or(0, xattr::Change::credits);
        space.journal().run(credits, |handle| {
            if let Some(capability) = capability {
                capability.apply(handle)?;
            }
            inode.update(handle, |attributes| {
                attributes.mode &= !privs.bits(attributes);
                attributes.touch();
            })
        })
    }

    /// The group of a file that has set-group-id without its group's right to run it.
    #[must_use]
    pub fn bare_set_gid(&self, inode: &InodeRef) -> Option<u32> {
        let attributes = inode.attributes();
        attributes.has_bare_set_gid().then_some(attributes.gid)
    }
}
