//! Removal of set-id bits and capabilities when the content of a file changes.
//!
//! What: a thread carries a mark, as it carries credentials in the kernel. A thread that works for
//! no particular caller removes neither. A thread that works for a caller ([`removing_privs`])
//! removes the capabilities of each file that it changes (`security.capability`), and its set-id
//! bits if the caller has no `CAP_FSETID`. The writes and fallocate of an
//! [`OpenFile`](super::OpenFile) look at the mark. Queues of direct requests do not, because
//! they belong to their owner.
//! Invariants: both are removed before the first byte changes, in a handle that is started only if
//! there is something to remove. A call that is refused, or that changes nothing, removes nothing.
//! A mode or a capability that is set during a write takes effect before or after it. A caller that
//! needs more has to serialise them, as the kernel does for a mount.
//! Kernel counterpart: `file_remove_privs` in `fs/inode.c`, `cap_inode_killpriv` in
//! `security/commoncap.c`.

use super::Vfs;
use crate::error::{ErrorKind, Result};
use crate::file::Files;
use crate::inode::{Attributes, InodeRef};
use crate::xattr;
use std::cell::Cell;
use uext4_ondisk::FileKind;

/// The extended attribute that holds the capabilities of a file.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The rights that a change of content removes from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privs {
    /// Capabilities, which every write removes.
    Capabilities,
    /// Capabilities and set-id bits, which a writer without `CAP_FSETID` removes.
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
    /// The rights that the thread removes, and whether it has removed any.
    static MARK: Cell<(Option<Privs>, bool)> = const { Cell::new((None, false)) };
}

/// Does `work` for a caller whose changes of content remove `privs`. Also returns whether any were
/// removed.
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
    /// Removes the rights that a change of content removes. Called before the content of `inode`
    /// changes, with no lock held and outside any other call of the volume. `changes` says whether
    /// it does, or why the call fails. It is asked only where there is something to remove, so it
    /// costs no other call anything.
    ///
    /// # Errors
    /// Those of `changes` and of `FileContext::check_changeable`; `NoSpace` if the block of the
    /// attributes is shared; a device failure.
    #[inline]
    pub(super) fn before_change(
        &self,
        inode: &InodeRef,
        changes: impl FnOnce(&Files) -> Result<bool>,
    ) -> Result<()> {
        let (Some(privs), _) = MARK.get() else { return Ok(()) };
        if !self.has_privs(inode, privs) {
            return Ok(());
        }
        self.files.context.watch(self.remove_before_change(inode, privs, changes))
    }

    #[cold]
    fn remove_before_change(
        &self,
        inode: &InodeRef,
        privs: Privs,
        changes: impl FnOnce(&Files) -> Result<bool>,
    ) -> Result<()> {
        if !changes(&self.files)? {
            return Ok(());
        }
        let _call = self.files.context.begin_call()?;
        self.remove_privs(inode, privs)?;
        MARK.set((Some(privs), true));
        Ok(())
    }

    fn has_privs(&self, inode: &InodeRef, privs: Privs) -> bool {
        let has_bits = privs != Privs::Capabilities && privs.bits(&inode.attributes()) != 0;
        has_bits || self.has_capabilities(inode)
    }

    /// Whether a file has capabilities. The answer "none" is remembered, so that the attributes of
    /// a file are read once. Attributes that cannot be read grant no capabilities, as in the
    /// kernel.
    fn has_capabilities(&self, inode: &InodeRef) -> bool {
        if inode.has_no_capabilities() || !inode.may_have_xattrs() {
            return false;
        }
        // Setting an attribute takes this lock exclusively, so the answer is remembered before it
        // can change.
        let _shared = inode.lock().read();
        match xattr::get(inode, CAPABILITY) {
            Ok(_) => true,
            Err(error) => {
                inode.set_no_capabilities(*error.kind() == ErrorKind::NoXattr);
                false
            }
        }
    }

    /// Removes the rights that a change of content removes, in one handle. The caller is in a call
    /// of the volume and holds no lock.
    ///
    /// # Errors
    /// Those of [`Vfs::before_change`].
    pub(super) fn remove_privs(&self, inode: &InodeRef, privs: Privs) -> Result<()> {
        if inode.kind() != FileKind::Regular || !self.has_privs(inode, privs) {
            return Ok(());
        }
        self.files.context.check_changeable(inode)?;
        self.deleting_values(|| self.remove_privs_locked(inode, privs))
    }

    fn remove_privs_locked(&self, inode: &InodeRef, privs: Privs) -> Result<()> {
        let _exclusive = inode.lock().write();
        let _pin = inode.table_block()?;
        let space = &self.files.context.space;
        let plan = |_| xattr::AttributeChange::plan(inode, CAPABILITY, None, xattr::Mode::Any);
        let capability = xattr::get(inode, CAPABILITY).ok().map(plan).transpose()?;
        let credits = 1 + capability.as_ref().map_or(0, xattr::AttributeChange::credits);
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
}
