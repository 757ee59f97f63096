//! Names of directories and targets of symbolic links: AES-256 in CBC mode with ciphertext
//! stealing.
//!
//! What: a name is filled up with NUL to the padding of the policy, and encrypted as a whole. The
//! same name has the same ciphertext in all of one directory, so it can be looked up. Where the
//! directory folds case names are looked up by the SipHash of what they fold to, with a key of the
//! directory's own.

use super::Tweak;
use super::derive::{HashKey, siphash};
use aes::Aes256;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use uext4_ondisk::encryption::NAME_MIN;
use uext4_ondisk::hash::sip_hashes;

/// Bytes of a key.
pub(super) const KEY_SIZE: usize = 32;
const BLOCK: usize = 16;

/// Encrypts and decrypts the names of one directory, or one target.
pub(crate) struct NamesCipher {
    aes: Aes256,
    iv: [u8; BLOCK],
    padding: usize,
    hash_key: Option<HashKey>,
}

impl std::fmt::Debug for NamesCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamesCipher").field("padding", &self.padding).finish_non_exhaustive()
    }
}

/// The length of the ciphertext of `len` bytes: at most `most`. `None`: they do not fit.
pub(crate) fn stored_len(len: usize, padding: usize, most: usize) -> Option<usize> {
    (len <= most).then(|| len.max(NAME_MIN).next_multiple_of(padding).min(most))
}

impl NamesCipher {
    pub(super) fn new(
        key: &[u8; KEY_SIZE],
        tweak: Tweak,
        padding: usize,
        hash_key: Option<HashKey>,
    ) -> Self {
        Self { aes: Aes256::new(key.into()), iv: tweak.iv(0), padding, hash_key }
    }

    /// Whether names can be hashed.
    pub(crate) fn has_hashes(&self) -> bool {
        self.hash_key.is_some()
    }

    /// Hash and minor hash of a folded name. `None`: names cannot be hashed.
    pub(crate) fn hashes(&self, folded: &[u8]) -> Option<(u32, u32)> {
        let key = self.hash_key.as_ref()?;
        Some(sip_hashes(siphash(key, folded)))
    }

    /// The ciphertext of a name: at most `most` bytes. `None`: it is too long.
    pub(crate) fn encrypt(&self, name: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut text = vec![0; stored_len(name.len(), self.padding, most)?];
        text[..name.len()].copy_from_slice(name);
        self.encrypt_padded(&mut text);
        Some(text)
    }

    /// The name of a ciphertext. `None`: it is shorter than any.
    pub(crate) fn decrypt(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if stored.len() < NAME_MIN {
            return None;
        }
        let mut text = stored.to_vec();
        self.decrypt_padded(&mut text);
        if let Some(end) = text.iter().position(|byte| *byte == 0) {
            text.truncate(end);
        }
        Some(text)
    }

    pub(super) fn encrypt_padded(&self, text: &mut [u8]) {
        let len = text.len();
        let mut before = self.iv;
        let last = (len - 1) / BLOCK * BLOCK;
        for part in text[..last.max(BLOCK)].chunks_exact_mut(BLOCK) {
            before = self.encrypt_block(&before, part);
            part.copy_from_slice(&before);
        }
        if len == BLOCK {
            return;
        }
        // The last block, filled up with zeroes, takes the place of the one before it, whose
        // beginning comes last.
        let end = self.encrypt_block(&before, &text[last..]);
        text[last - BLOCK..last].copy_from_slice(&end);
        text[last..].copy_from_slice(&before[..len - last]);
    }

    pub(super) fn decrypt_padded(&self, text: &mut [u8]) {
        let len = text.len();
        let last = (len - 1) / BLOCK * BLOCK;
        let mut before = self.iv;
        let whole = if len == BLOCK { BLOCK } else { last - BLOCK };
        for part in text[..whole].chunks_exact_mut(BLOCK) {
            let stored: [u8; BLOCK] = part.try_into().expect("a block");
            part.copy_from_slice(&xor(self.decrypt_block(stored), &before));
            before = stored;
        }
        if len == BLOCK {
            return;
        }
        let swapped: [u8; BLOCK] = text[whole..last].try_into().expect("a block");
        let mut stolen = self.decrypt_block(swapped);
        let rest = len - last;
        let end = xor(stolen, &text[last..]);
        stolen[..rest].copy_from_slice(&text[last..]);
        text[whole..last].copy_from_slice(&xor(self.decrypt_block(stolen), &before));
        text[last..].copy_from_slice(&end[..rest]);
    }

    /// Encrypts `part`, of at most a block, chained to the block before.
    fn encrypt_block(&self, before: &[u8; BLOCK], part: &[u8]) -> [u8; BLOCK] {
        let mut block = xor(*before, part).into();
        self.aes.encrypt_block(&mut block);
        block.into()
    }

    fn decrypt_block(&self, stored: [u8; BLOCK]) -> [u8; BLOCK] {
        let mut block = stored.into();
        self.aes.decrypt_block(&mut block);
        block.into()
    }
}

/// A block with `part` added to its beginning.
fn xor(mut block: [u8; BLOCK], part: &[u8]) -> [u8; BLOCK] {
    block.iter_mut().zip(part).for_each(|(byte, other)| *byte ^= other);
    block
}
