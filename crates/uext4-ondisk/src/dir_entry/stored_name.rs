//! A name as a record has it.

use super::{HASHES_SIZE, rec_len_for};
use crate::num::len32;

/// A name as it is stored, and the hashes that are stored behind it where the directory is
/// encrypted and folds case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredName<'n> {
    /// The bytes of the name.
    pub bytes: &'n [u8],
    /// Hash and minor hash.
    pub hashes: Option<(u32, u32)>,
}

impl<'n> From<&'n [u8]> for StoredName<'n> {
    fn from(bytes: &'n [u8]) -> Self {
        Self { bytes, hashes: None }
    }
}

impl<'n, const N: usize> From<&'n [u8; N]> for StoredName<'n> {
    fn from(bytes: &'n [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl<'n> From<&'n Vec<u8>> for StoredName<'n> {
    fn from(bytes: &'n Vec<u8>) -> Self {
        Self::from(&bytes[..])
    }
}

impl StoredName<'_> {
    /// Bytes of the record that the name needs.
    #[must_use]
    pub const fn record_len(&self) -> u32 {
        let hashes = if self.hashes.is_some() { len32(HASHES_SIZE) } else { 0 };
        rec_len_for(self.bytes.len()).saturating_add(hashes)
    }
}
