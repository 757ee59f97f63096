//! Contents of regular files: AES-256-XTS.
//!
//! What: a data unit (a block, or less by the policy) is encrypted as a whole and for itself, in
//! place. Its number is the tweak. The units of a file are whole, because a block is never stored
//! in part.

use super::Tweak;
use aes::Aes256;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};

/// Bytes of a key: half of it encrypts the data, half of it the tweaks.
pub(super) const KEY_SIZE: usize = 64;
/// Blocks of AES that are given to the processor together.
const TOGETHER: usize = 32;
/// The polynomial by which tweaks are multiplied.
const FEEDBACK: u128 = 0x87;

/// Encrypts and decrypts the contents of one file.
pub(crate) struct ContentsCipher {
    data: Aes256,
    tweaks: Aes256,
    tweak: Tweak,
    unit: usize,
}

impl std::fmt::Debug for ContentsCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentsCipher").field("unit", &self.unit).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl ContentsCipher {
    /// With data units of `unit` bytes.
    pub(super) fn new(key: &[u8; KEY_SIZE], tweak: Tweak, unit: usize) -> Self {
        let (data, tweaks) = key.split_at(KEY_SIZE / 2);
        Self { data: Aes256::new(data.into()), tweaks: Aes256::new(tweaks.into()), tweak, unit }
    }

    /// Encrypts whole units in place. `offset` is the byte of the file where they begin.
    pub(crate) fn encrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.units(offset, bytes, Direction::Encrypt);
    }

    /// Decrypts whole units in place.
    pub(crate) fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.units(offset, bytes, Direction::Decrypt);
    }

    fn units(&self, offset: u64, bytes: &mut [u8], direction: Direction) {
        debug_assert!(bytes.len().is_multiple_of(self.unit), "a part of a data unit");
        let first = offset / self.unit as u64;
        for (unit, index) in bytes.chunks_exact_mut(self.unit).zip(first..) {
            self.unit(index, unit, direction);
        }
    }

    fn unit(&self, index: u64, unit: &mut [u8], direction: Direction) {
        let mut start = self.tweak.iv(index).into();
        self.tweaks.encrypt_block(&mut start);
        let mut tweak = u128::from_le_bytes(start.into());
        for part in unit.chunks_mut(TOGETHER * 16) {
            let mut blocks = [aes::Block::default(); TOGETHER];
            let mut tweaks = [0; TOGETHER];
            let count = part.len() / 16;
            let blocks = &mut blocks[..count];
            for ((block, kept), bytes) in
                blocks.iter_mut().zip(&mut tweaks).zip(part.chunks_exact(16))
            {
                *kept = tweak;
                *block = (word(bytes) ^ tweak).to_le_bytes().into();
                tweak = (tweak << 1) ^ (FEEDBACK * (tweak >> 127));
            }
            match direction {
                Direction::Encrypt => self.data.encrypt_blocks(blocks),
                Direction::Decrypt => self.data.decrypt_blocks(blocks),
            }
            for ((block, kept), bytes) in blocks.iter().zip(&tweaks).zip(part.chunks_exact_mut(16))
            {
                bytes.copy_from_slice(&(word(block) ^ kept).to_le_bytes());
            }
        }
    }
}

fn word(bytes: &[u8]) -> u128 {
    u128::from_le_bytes(bytes.try_into().expect("16 bytes"))
}
