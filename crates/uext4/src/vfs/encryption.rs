//! Encryption policies: set on empty directories, inherited by what is made below.
//!
//! Invariants: in a directory with a policy every file, directory and symbolic link has the same
//! policy; a link or a rename that would bring in another one is refused. A new inode gets its
//! context in the handle that makes it.
//! On disk: the target of a symbolic link is stored as a name is, behind two bytes that have the
//! length of its ciphertext.
//! Kernel counterpart: `fs/crypto/policy.c`, `fs/crypto/hooks.c`.

use super::{Vfs, expect_directory};
use crate::crypt::{FileCipher, check_new_policy, nokey};
use crate::dir::{self, EmptyTree};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Inode, InodeRef, is_encryptable};
use crate::xattr;
use uext4_ondisk::encryption::{
    Context, KeyName, NONCE_SIZE, Policy, TARGET_LENGTH_SIZE, stored_target, target_text,
};
use uext4_ondisk::{CorruptKind, FileKind, Incompat, Ino, InodeFlags, Place};

impl Vfs {
    /// The encryption context of an inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// `Corrupt`; a device failure.
    pub fn encryption_context(&self, inode: &InodeRef) -> Result<Option<Context>> {
        match inode.is_encrypted() {
            true => Ok(Some(inode.encryption()?.context)),
            false => Ok(None),
        }
    }

    /// Sets the policy of an empty directory. Nothing happens if it has the same one already.
    ///
    /// # Errors
    /// `NotADirectory`, `NotEmpty`; `Exists` for a directory with another policy; `Unsupported` on
    /// a file system without the feature; `InvalidArgument` for a policy that uext4 does not write;
    /// `NoKey` if the key is not there; `NotPermitted` for the root, and for a directory that is
    /// immutable or append-only; `ReadOnly`; a device failure.
    pub fn set_encryption_policy(&self, dir: &InodeRef, policy: &Policy) -> Result<()> {
        self.files.context.check_writable()?;
        expect_directory(dir)?;
        let layout = self.files.context.space.layout();
        if !layout.features.incompat.contains(Incompat::ENCRYPT) {
            return Err(Error::new(ErrorKind::Unsupported, "the encrypt feature is not there"));
        }
        if dir.ino() == Ino::ROOT {
            // As in the kernel: e2fsck needs its directory lost+found.
            let why = "the root is not encrypted";
            return Err(Error::new(ErrorKind::NotPermitted, why));
        }
        check_new_policy(policy, layout)
            .map_err(|why| Error::new(ErrorKind::InvalidArgument, why))?;
        self.deleting_values(|| self.set_policy_locked(dir, policy))?;
        self.files.syncs.honour_sync_flag(dir)
    }

    fn set_policy_locked(&self, dir: &InodeRef, policy: &Policy) -> Result<()> {
        let space = &self.files.context.space;
        let _exclusive = dir.lock().write();
        self.files.context.check_not_protected(dir)?;
        let (links, flags) = {
            let attributes = dir.attributes();
            (attributes.links, attributes.flags)
        };
        let folds = flags.contains(InodeFlags::CASEFOLD);
        if folds {
            check_hashes(policy)?;
        }
        if links == 0 {
            return Err(Error::new(ErrorKind::NotFound, "directory is removed"));
        }
        if let Some(context) = self.encryption_context(dir)? {
            return match context.policy == *policy {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Exists, "another encryption policy")),
            };
        }
        let keys = &self.files.context.table.context().keys;
        let context = Context { policy: *policy, nonce: new_nonce() };
        keys.cipher(&context, FileKind::Directory, dir.ino().get())?;
        if !dir::is_empty(dir)? {
            return Err(ErrorKind::NotEmpty.into());
        }
        // Nothing that is encrypted is in an inode.
        dir::leave_inode(dir)?;
        let value = context.to_bytes();
        let change = xattr::AttributeChange::plan_with_context(dir, &[], Some(&value))?;
        let rehash = if folds { EmptyTree::of(dir)? } else { None };
        space.journal().run(change.credits() + 2, |handle| {
            change.apply(handle)?;
            if let Some(tree) = rehash {
                tree.set_hash(handle, true)?;
            }
            dir.update(handle, |attributes| {
                attributes.flags |= InodeFlags::ENCRYPT;
                attributes.touch();
            })
        })?;
        dir.note_encrypted();
        Ok(())
    }

    /// The context of a new inode in `dir`; `None` if it is not encrypted.
    ///
    /// # Errors
    /// `NoKey`, `NoCipher`: nothing can be made in a directory that cannot be read.
    pub(super) fn new_context(&self, dir: &Inode, kind: FileKind) -> Result<Option<Context>> {
        if !dir.is_encrypted() {
            return Ok(None);
        }
        dir.check_key()?;
        let policy = dir.encryption()?.context.policy;
        Ok(is_encryptable(kind).then(|| Context { policy, nonce: new_nonce() }))
    }

    /// Checks that a directory may get an entry of an inode that exists.
    pub(super) fn check_policy(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        match self.may_hold(dir, inode)? {
            true => Ok(()),
            false => Err(ErrorKind::CrossesPolicies.into()),
        }
    }

    /// Checks that an entry that was found may be followed: an encrypted directory whose content is
    /// of another policy was put together by somebody else.
    pub(super) fn check_found(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        let is_looked_into = matches!(inode.kind(), FileKind::Directory | FileKind::Symlink);
        if dir.is_encrypted() && is_looked_into && !self.may_hold(dir, inode)? {
            let context = format!("inode {} has not its directory's policy", inode.ino());
            return Err(Error::new(ErrorKind::NotPermitted, context));
        }
        Ok(())
    }

    fn may_hold(&self, dir: &Inode, inode: &Inode) -> Result<bool> {
        if !dir.is_encrypted() || !is_encryptable(inode.kind()) {
            return Ok(true);
        }
        if !inode.is_encrypted() {
            return Ok(false);
        }
        Ok(dir.encryption()?.context.policy == inode.encryption()?.context.policy)
    }

    /// What is stored of the target of an encrypted symbolic link. `most`: bytes of a block.
    pub(super) fn encrypt_target(
        &self,
        context: &Context,
        ino: Ino,
        target: &[u8],
        most: usize,
    ) -> Result<Vec<u8>> {
        let too_long = || Error::new(ErrorKind::NameTooLong, "target of a symbolic link");
        let keys = &self.files.context.table.context().keys;
        let FileCipher::Names(cipher) = keys.cipher(context, FileKind::Symlink, ino.get())? else {
            return Err(Error::new(ErrorKind::Internal, "a target as contents"));
        };
        let room = most.saturating_sub(TARGET_LENGTH_SIZE + 1);
        let text = cipher.encrypt(target, room).ok_or_else(too_long)?;
        stored_target(&text).ok_or_else(too_long)
    }

    /// The target of an encrypted symbolic link, or what stands for it without the key.
    pub(super) fn decrypt_target(&self, inode: &Inode, stored: &[u8]) -> Result<Vec<u8>> {
        let corrupt = |why| {
            let kind = CorruptKind::Rule { what: "encrypted symbolic link", why };
            Error::from(kind.at(Place::Inode(inode.ino())))
        };
        let text = target_text(stored).filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| corrupt("has an impossible length"))?;
        let Ok(FileCipher::Names(cipher)) = inode.encryption()?.cipher() else {
            return Ok(nokey::show((0, 0), text));
        };
        let target = cipher.decrypt(text).filter(|target| !target.is_empty());
        if target.is_none() && inode.encryption()?.context.policy.may_have_wrong_key() {
            return Ok(nokey::show((0, 0), text));
        }
        target.ok_or_else(|| corrupt("has a target that cannot be decrypted"))
    }
}

/// Checks that a policy is one that directories which fold case may have.
pub(super) fn check_hashes(policy: &Policy) -> Result<()> {
    match policy.key {
        KeyName::Identifier(_) => Ok(()),
        KeyName::Descriptor(_) => {
            let why = "a directory that folds case needs an encryption policy of version 2";
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

fn new_nonce() -> [u8; NONCE_SIZE] {
    std::array::from_fn(|_| (crate::sync::random() >> 8 & 0xff) as u8)
}
