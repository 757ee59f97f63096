//! The encryption of an inode: its context, and the cipher that the volume's keys give it.
//!
//! Invariants: both are read when they are first needed, and do not change while the inode is in
//! memory: the keys of a volume are given when it is opened, and only an empty directory gets a
//! policy. Whether there is any encryption is a flag that costs one load to ask.

use super::Inode;
use crate::cache::BlockKind;
use crate::crypt::FileCipher;
use crate::error::{Error, Result};
use crate::sync::state::Ordering;
use uext4_ondisk::encryption::{Context, XATTR_INDEX, XATTR_NAME};
use uext4_ondisk::{BlockNo, CorruptKind, FileKind, Incompat, InodeFlags, Place, xattr};

/// The encryption of one inode.
#[derive(Debug)]
pub(crate) struct Encryption {
    /// Its context.
    pub(crate) context: Context,
    cipher: Result<FileCipher>,
}

impl Encryption {
    /// The cipher of the inode.
    ///
    /// # Errors
    /// `NoKey`, `NoCipher`.
    pub(crate) fn cipher(&self) -> Result<&FileCipher> {
        self.cipher.as_ref().map_err(Clone::clone)
    }
}

/// Most bytes of memory of the encryption of one inode.
pub(crate) const ENCRYPTION_BYTES: usize = size_of::<Encryption>() + FileCipher::BYTES_MAX;

/// Whether an inode of a type can be encrypted. Others are not, even in an encrypted directory.
pub(crate) fn is_encryptable(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
}

/// Whether an inode with these flags is encrypted.
pub(super) fn is_encrypted(kind: FileKind, flags: InodeFlags) -> bool {
    flags.contains(InodeFlags::ENCRYPT) && is_encryptable(kind)
}

impl Inode {
    /// Whether the contents, names or target of the inode are encrypted.
    #[inline]
    pub(crate) fn is_encrypted(&self) -> bool {
        self.encrypted.load(Ordering::Relaxed)
    }

    /// Called when the directory has got a policy, with its lock held exclusively.
    pub(crate) fn note_encrypted(&self) {
        self.encrypted.store(true, Ordering::Relaxed);
    }

    /// The encryption of an encrypted inode.
    ///
    /// # Errors
    /// `Corrupt` when it has no context or a damaged one; a device failure.
    pub(crate) fn encryption(&self) -> Result<&Encryption> {
        if let Some(encryption) = self.encryption.get() {
            return Ok(encryption);
        }
        let context = self.encryption_context()?;
        let keys = &self.context.keys;
        let cipher = keys.cipher(&context, self.kind, self.ino.get());
        Ok(self.encryption.get_or_init(|| Box::new(Encryption { context, cipher })))
    }

    /// Checks that the key of the inode is there, if it is encrypted.
    ///
    /// # Errors
    /// `NoKey`, `NoCipher`; those of [`Inode::encryption`].
    pub(crate) fn check_key(&self) -> Result<()> {
        match self.is_encrypted() {
            true => self.encryption()?.cipher().map(|_| ()),
            false => Ok(()),
        }
    }

    /// Whether the inode is encrypted and cannot be decrypted.
    pub(crate) fn lacks_key(&self) -> bool {
        self.check_key().is_err()
    }

    fn encryption_context(&self) -> Result<Context> {
        let corrupt = |why| {
            let kind = CorruptKind::Rule { what: "encryption context", why };
            Error::from(kind.at(Place::Inode(self.ino)))
        };
        if !self.space().layout().features.incompat.contains(Incompat::ENCRYPT) {
            return Err(corrupt("is that of an inode without the encrypt feature"));
        }
        let value = self.context_value()?.ok_or_else(|| corrupt("is missing"))?;
        Context::parse(&value).ok_or_else(|| corrupt("is of an unknown version"))
    }

    fn context_value(&self) -> Result<Option<Vec<u8>>> {
        let here = |kind: CorruptKind| Error::from(kind.at(Place::Inode(self.ino)));
        let _lock = self.xattr_lock().read();
        let (area, block) = {
            let attributes = self.attributes();
            (attributes.xattr_area.clone(), BlockNo(attributes.file_acl))
        };
        if let Some(value) = find(xattr::area_entries(&area)).map_err(here)? {
            return Ok(Some(value));
        }
        if block.get() == 0 {
            return Ok(None);
        }
        self.space().check_run(block, 1)?;
        let buffer = self.cache().read(block, BlockKind::Xattr)?;
        let bytes = buffer.read();
        xattr::block_entries(&bytes).and_then(find).map_err(here)
    }
}

fn find<'b>(
    entries: impl Iterator<Item = Result<xattr::XattrEntry<'b>, CorruptKind>>,
) -> Result<Option<Vec<u8>>, CorruptKind> {
    for entry in entries {
        let entry = entry?;
        let is_here = entry.value_inode.get() == 0;
        if entry.index == XATTR_INDEX && entry.name == XATTR_NAME && is_here {
            return Ok(Some(entry.value.to_vec()));
        }
    }
    Ok(None)
}
