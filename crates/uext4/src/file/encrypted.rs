//! Contents of encrypted files on their way between pages and the device.
//!
//! Invariants: pages hold plaintext, the device ciphertext. A block is encrypted and decrypted as a
//! whole. Encrypted files have no direct I/O, no DAX mode, and their data does not go through the
//! journal. Bytes behind the end of the file are zero in every page, whatever a truncate without
//! the key has left on the device.

use super::FileContext;
use crate::cache::PageImage;
use crate::crypt::FileCipher;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use std::sync::Arc;
use uext4_ondisk::FileBlock;

impl FileContext {
    /// Decrypts blocks of a file, from `first` on. The caller holds the file.
    pub(super) fn decrypt(&self, inode: &Inode, first: FileBlock, bytes: &mut [u8]) -> Result<()> {
        let offset = self.offset_of(first);
        match inode.encryption()?.cipher()? {
            FileCipher::Contents(cipher) => cipher.decrypt(offset, bytes),
            FileCipher::Names(_) => return Err(no_contents(inode)),
        }
        let inside = inode.size().saturating_sub(offset);
        let end = usize::try_from(inside).unwrap_or(usize::MAX).min(bytes.len());
        bytes[end..].fill(0);
        Ok(())
    }
}

/// The data of pages as it goes to the device.
pub(super) fn stored(
    inode: &Inode,
    pages: &[PageImage],
    block_size: u64,
) -> Result<Vec<Arc<[u8]>>> {
    if !inode.is_encrypted() {
        return Ok(pages.iter().map(|(_, data)| Arc::clone(data)).collect());
    }
    let FileCipher::Contents(cipher) = inode.encryption()?.cipher()? else {
        return Err(no_contents(inode));
    };
    let encrypt = |(at, data): &PageImage| {
        let mut bytes = data.to_vec();
        cipher.encrypt(u64::from(at.get()) * block_size, &mut bytes);
        Arc::from(bytes)
    };
    Ok(pages.iter().map(encrypt).collect())
}

fn no_contents(inode: &Inode) -> Error {
    Error::new(ErrorKind::Internal, format!("contents of inode {} as names", inode.ino()))
}
