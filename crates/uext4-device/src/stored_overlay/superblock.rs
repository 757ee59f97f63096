//! What an overlay looks at in its base: the first bytes, and there the superblock.
//!
//! On disk (Documentation/filesystems/ext4/super.rst): the superblock at 1024 bytes, its magic
//! number at 0x38 and the UUID at 0x68 of it. Bases that have none are told apart by their first
//! bytes.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::error::OverlayError;
use crate::device::Device;

/// Bytes of the start of a base that its identity covers.
const HEAD_BYTES: u64 = 64 << 10;
/// Where the superblock is, in bytes.
const SUPERBLOCK: usize = 1024;
const MAGIC: Range<usize> = SUPERBLOCK + 0x38..SUPERBLOCK + 0x3a;
const UUID: Range<usize> = SUPERBLOCK + 0x68..SUPERBLOCK + 0x78;

/// SHA-256 of the first bytes of a base. A CRC-32C would not do: a superblock ends in one of
/// itself, after which a CRC-32C of both does not depend on the superblock any more.
pub(super) type Hash = [u8; 32];

pub(super) fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// The first bytes of a base.
pub(super) fn head(base: &dyn Device) -> Result<Vec<u8>, OverlayError> {
    let mut head = vec![0; base.len().min(HEAD_BYTES) as usize];
    base.read_at(0, &mut head)?;
    Ok(head)
}

/// The UUID of the ext4 file system whose first bytes are given; zeroes where there is none.
pub(super) fn uuid(head: &[u8]) -> [u8; 16] {
    let is_ext = head.get(MAGIC) == Some(&[0x53, 0xef]);
    let uuid = head.get(UUID).filter(|_| is_ext).and_then(|uuid| uuid.try_into().ok());
    uuid.unwrap_or_default()
}

/// A superblock as far as overlays look at it, with its checksum (metadata_csum).
#[cfg(test)]
pub(super) fn sealed(uuid: u8) -> [u8; 1024] {
    let mut superblock = [0; 1024];
    superblock[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    superblock[0x65] = 0x04;
    superblock[0x68..0x78].fill(uuid);
    reseal(&mut superblock);
    superblock
}

/// Makes its checksum right again.
#[cfg(test)]
pub(super) fn reseal(superblock: &mut [u8; 1024]) {
    let checksum = !crc32c::crc32c(&superblock[..1020]);
    superblock[1020..].copy_from_slice(&checksum.to_le_bytes());
}
