//! Names as they are shown without their key.
//!
//! What: base64url of the hash that orders the directory, and of the ciphertext; of a long one its
//! first 149 bytes and the SHA-256 of the rest. These are the names that the kernel shows, so a
//! name from a listing can be looked up and removed on either.

use sha2::{Digest, Sha256};
use uext4_ondisk::encryption::NAME_MIN;

/// Bytes of a ciphertext that are shown as they are.
const SHOWN_MAX: usize = 149;
const HASHES_SIZE: usize = 8;
const DIGEST_SIZE: usize = 32;
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A name that was shown, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The whole ciphertext.
    Whole(Vec<u8>),
    /// The beginning of a longer one, and the digest of its rest.
    Long(Vec<u8>, [u8; DIGEST_SIZE]),
}

impl Shown {
    /// Takes a name apart, into its hashes in the order of its directory and the rest. `None`: no
    /// entry is shown by it.
    pub(crate) fn parse(name: &[u8]) -> Option<((u32, u32), Self)> {
        let bytes = decode(name)?;
        let (hash, rest) = bytes.split_first_chunk()?;
        let (minor, stored) = rest.split_first_chunk()?;
        let hashes = (u32::from_le_bytes(*hash), u32::from_le_bytes(*minor));
        let shown = match stored.len() {
            NAME_MIN..=SHOWN_MAX => Self::Whole(stored.to_vec()),
            len if len == SHOWN_MAX + DIGEST_SIZE => {
                let (start, digest) = stored.split_at(SHOWN_MAX);
                Self::Long(start.to_vec(), digest.try_into().ok()?)
            }
            _ => return None,
        };
        Some((hashes, shown))
    }

    /// Whether a ciphertext is shown so.
    pub(crate) fn is(&self, stored: &[u8]) -> bool {
        match self {
            Self::Whole(whole) => whole == stored,
            Self::Long(start, digest) => stored
                .strip_prefix(&start[..])
                .is_some_and(|rest| !rest.is_empty() && Sha256::digest(rest)[..] == digest[..]),
        }
    }
}

/// The name of a ciphertext, whose hashes in the order of its directory are given; zeroes where
/// there is no such order.
#[must_use]
pub fn show(hashes: (u32, u32), stored: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HASHES_SIZE + SHOWN_MAX + DIGEST_SIZE);
    bytes.extend(hashes.0.to_le_bytes());
    bytes.extend(hashes.1.to_le_bytes());
    match stored.split_at_checked(SHOWN_MAX) {
        Some((start, rest)) if !rest.is_empty() => {
            bytes.extend(start);
            bytes.extend(Sha256::digest(rest));
        }
        _ => bytes.extend(stored),
    }
    encode(&bytes)
}

fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let of = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let bits = (of(0) << 16) | (of(1) << 8) | of(2);
        for digit in 0..=part.len() {
            text.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]);
        }
    }
    text
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for part in text.chunks(4) {
        let mut bits = 0;
        for at in 0..4 {
            let digit = match part.get(at) {
                Some(byte) => DIGITS.iter().position(|digit| digit == byte)?,
                None => 0,
            };
            bits = (bits << 6) | digit as u32;
        }
        let whole = &bits.to_be_bytes()[1..];
        let (count, rest) = whole.split_at_checked(part.len() * 6 / 8)?;
        // One digit alone says nothing, and the bits behind the last byte are zero.
        if count.is_empty() || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend(count);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_found_again() {
        for len in 16..=255_usize {
            let stored: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let name = show((0x1234_5678, 9), &stored);
            assert!(name.len() <= 255);
            let (hashes, shown) = Shown::parse(&name).unwrap();
            assert_eq!(hashes, (0x1234_5678, 9));
            assert!(shown.is(&stored));
            let mut other = stored.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(!shown.is(&other));
            assert!(!shown.is(&stored[..len - 1]));
        }
        assert_eq!(Shown::parse(b"plain name"), None);
        assert_eq!(Shown::parse(b""), None);
        assert_eq!(Shown::parse(b"A"), None);
        // What is shorter than any stored name: an entry that is not encrypted, as the dots are.
        for stored in [&b"."[..], b"..", &[7; NAME_MIN - 1]] {
            assert_eq!(Shown::parse(&show((0, 0), stored)), None, "{stored:?}");
        }
        assert_eq!(show((0, 0), b"."), b"AAAAAAAAAAAu");
        assert_eq!(encode(b"\xfb\xff"), b"-_8");
        assert_eq!(decode(b"-_8"), Some(b"\xfb\xff".to_vec()));
        assert_eq!(decode(b"-_9"), None);
    }
}
