//! What an overlay looks at in its base: the first bytes, and there the superblock.
//!
//! On disk (Documentation/filesystems/ext4/super.rst): the superblock at 1024 bytes; of it the
//! magic number at 0x38, the incompatible features at 0x60, those to write at 0x64 (bit 10:
//! metadata_csum), the UUID at 0x68 and its checksum in the last four bytes. Bases that have none
//! are told apart by their first bytes.
//!
//! A superblock is *barred* while a commit writes to its file system: the highest of the
//! incompatible features is set, which none has, so that whatever knows ext4 keeps off it: kernels,
//! e2fsck and uext4. Its checksum is right meanwhile, or e2fsck would take a copy of it instead.

use std::ops::Range;

use sha2::{Digest, Sha256};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::error::OverlayError;
use crate::device::Device;

/// Bytes of the start of a base that its identity covers.
const HEAD_BYTES: u64 = 64 << 10;
/// Where the superblock is, in bytes.
const SUPERBLOCK: usize = 1024;
const MAGIC: Range<usize> = SUPERBLOCK + 0x38..SUPERBLOCK + 0x3a;
const UUID: Range<usize> = SUPERBLOCK + 0x68..SUPERBLOCK + 0x78;
const CHECKSUM: Range<usize> = SUPERBLOCK + 0x3fc..SUPERBLOCK + 0x400;
/// The byte and the bit of it that bar a file system: `uext4_ondisk::Incompat::HALF_COMMITTED`.
const BAR: (usize, u8) = (SUPERBLOCK + 0x63, 0x80);
/// Those that say that the superblock has a checksum.
const HAS_CHECKSUM: (usize, u8) = (SUPERBLOCK + 0x65, 0x04);

/// The bytes of a superblock.
pub(super) const SUPERBLOCK_RANGE: Range<usize> = SUPERBLOCK..SUPERBLOCK + 1024;
/// The sector that bars it. A crash leaves a sector old or new.
pub(super) const SECTOR: Range<usize> = SUPERBLOCK..SUPERBLOCK + 512;

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

fn has_superblock(head: &[u8]) -> bool {
    head.len() >= SUPERBLOCK_RANGE.end && head[MAGIC] == [0x53, 0xef]
}

/// Whether there is a superblock that is barred.
pub(super) fn is_barred(head: &[u8]) -> bool {
    has_superblock(head) && head[BAR.0] & BAR.1 != 0
}

/// The head with its superblock barred, or not.
fn with_bar(head: &[u8], is_barred: bool) -> Vec<u8> {
    let mut head = head.to_vec();
    if has_superblock(&head) {
        head[BAR.0] = head[BAR.0] & !BAR.1 | if is_barred { BAR.1 } else { 0 };
        if head[HAS_CHECKSUM.0] & HAS_CHECKSUM.1 != 0 {
            // The format's CRC-32C is not inverted in the end.
            let checksum = !crc32c::crc32c(&head[SUPERBLOCK..CHECKSUM.start]);
            head[CHECKSUM].copy_from_slice(U32::new(checksum).as_bytes());
        }
    }
    head
}

/// The head with its superblock barred.
pub(super) fn barred(head: &[u8]) -> Vec<u8> {
    with_bar(head, true)
}

/// The head as it was before it was barred, also where that, or its end, was cut off between the
/// two sectors.
pub(super) fn unbarred(head: &[u8]) -> Vec<u8> {
    with_bar(head, false)
}

/// Whether it can be barred, and be as before afterwards.
pub(super) fn can_be_barred(head: &[u8]) -> bool {
    has_superblock(head) && !is_barred(head) && unbarred(head) == head
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
