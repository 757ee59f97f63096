//! Encryption of files (fscrypt): keys, ciphers, and names without their key.
//!
//! What: a [`KeyRing`] has the master keys that a volume was opened with. [`FileCipher`] is what
//! one inode is encrypted with; it is derived from a master key and the inode's context. [`nokey`]
//! has the names that are shown where the key is not there. docs/encryption.md has the whole.
//! Invariants: pure functions over bytes. Keys are cleared when they are dropped, as far as the
//! crates that do the arithmetic allow, and are in no message.
//! Kernel counterpart: `fs/crypto`.

mod contents;
mod derive;
mod names;
pub mod nokey;
mod ring;

pub use derive::MasterKey;
pub use ring::KeyRing;
pub(crate) use ring::check_new_policy;

use contents::ContentsCipher;
pub(crate) use names::NamesCipher;

/// What one inode is encrypted with.
#[derive(Debug)]
pub(crate) enum FileCipher {
    /// The contents of a regular file.
    Contents(Box<ContentsCipher>),
    /// The names of a directory, or the target of a symbolic link.
    Names(Box<NamesCipher>),
}

impl FileCipher {
    /// Most bytes of memory.
    pub(crate) const BYTES_MAX: usize = {
        let (contents, names) = (size_of::<ContentsCipher>(), size_of::<NamesCipher>());
        size_of::<Self>() + if contents > names { contents } else { names }
    };
}

/// What decides the initialization vectors of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tweak {
    /// The number of the data unit.
    Index,
    /// The same, with the inode number above it.
    InoAbove(u32),
    /// The sum of both, of which 32 bits count.
    InoHashed(u32),
}

impl Tweak {
    /// The vector of data unit `index`.
    fn iv(self, index: u64) -> [u8; 16] {
        let low = match self {
            Self::Index => index,
            Self::InoAbove(ino) => (u64::from(ino) << 32) | (index & u64::from(u32::MAX)),
            #[allow(clippy::cast_possible_truncation)] // as the format has it
            Self::InoHashed(hash) => u64::from(hash.wrapping_add(index as u32)),
        };
        let mut iv = [0; 16];
        iv[..8].copy_from_slice(&low.to_le_bytes());
        iv
    }
}

#[cfg(test)]
mod tests;
