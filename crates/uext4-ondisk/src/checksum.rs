//! Checksums of the format: CRC-32C (metadata_csum), CRC-16 (uninit_bg) and the journal's
//! big-endian CRC-32 (checksum v1).
//!
//! On disk: ext4 stores CRC-32C without the usual final inversion, and chains it: the result over
//! one range is the seed of the next. The file system's seed is the checksum of its UUID, or
//! `s_checksum_seed` with metadata_csum_seed.

use crate::units::Ino;

/// Which checksums the metadata carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    /// None.
    None,
    /// CRC-16 of group descriptors only (uninit_bg).
    Crc16,
    /// CRC-32C of all metadata (metadata_csum).
    Crc32c,
}

/// The kind and seed of the checksums of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// Which checksums there are.
    pub kind: ChecksumKind,
    /// CRC-32C state to start from.
    pub seed: u32,
    /// UUID of the file system; CRC-16 starts with it.
    pub uuid: [u8; 16],
}

impl Checksums {
    /// Whether metadata carries CRC-32C.
    #[must_use]
    pub const fn is_crc32c(&self) -> bool {
        matches!(self.kind, ChecksumKind::Crc32c)
    }

    /// Whether group descriptors carry a checksum, so that their lazy flags can be trusted.
    #[must_use]
    pub const fn has_group_checksum(&self) -> bool {
        !matches!(self.kind, ChecksumKind::None)
    }

    /// Seed of everything that belongs to one inode. Harmless, and unused, without CRC-32C.
    #[must_use]
    pub fn inode_seed(&self, ino: Ino, generation: u32) -> InodeSeed {
        if !self.is_crc32c() {
            return InodeSeed(None);
        }
        let seed = crc32c(self.seed, &ino.get().to_le_bytes());
        InodeSeed(Some(crc32c(seed, &generation.to_le_bytes())))
    }

    /// CRC-32C of `bytes` under the file system's seed, or `None` where metadata has none.
    #[must_use]
    pub fn of(&self, bytes: &[u8]) -> Option<u32> {
        self.is_crc32c().then(|| crc32c(self.seed, bytes))
    }
}

/// CRC-32C seed of an inode's metadata; `None` inside when the file system has no CRC-32C, which
/// makes every `seal_*` do nothing and every `verify_*` succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSeed(pub Option<u32>);

impl InodeSeed {
    /// Seed for a file system without CRC-32C.
    pub const NONE: Self = Self(None);

    /// The bare seed.
    #[must_use]
    pub const fn get(self) -> Option<u32> {
        self.0
    }
}

/// CRC-32C in ext4's convention: state in, state out, no inversion.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (polynomial 0x8005, reflected), state in, state out.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    let mut crc = seed;
    for &byte in bytes {
        crc ^= u16::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xa001 } else { crc >> 1 };
        }
    }
    crc
}

/// CRC-32 (polynomial 0x04c11db7, not reflected), state in, state out: journal checksum v1.
#[must_use]
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let mut crc = seed;
    for &byte in bytes {
        let [top, ..] = crc.to_be_bytes();
        let step = CRC32_BE.get(usize::from(top ^ byte)).copied().unwrap_or(0);
        crc = (crc << 8) ^ step;
    }
    crc
}

static CRC32_BE: [u32; 256] = crc32_be_table();

#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)] // evaluated by the compiler
const fn crc32_be_table() -> [u32; 256] {
    let mut table = [0_u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 { (crc << 1) ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogue() {
        // CRC RevEng check values over "123456789".
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(!crc32_be(!0, b"123456789"), 0xfc89_1918);
    }

    #[test]
    fn crc_chains() {
        assert_eq!(crc32c(crc32c(7, b"ab"), b"cd"), crc32c(7, b"abcd"));
        assert_eq!(crc16(crc16(7, b"ab"), b"cd"), crc16(7, b"abcd"));
    }
}
