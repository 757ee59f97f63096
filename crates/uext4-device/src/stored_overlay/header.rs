//! The header of a store: what it is, over which base, in which state.
//!
//! On disk: one sector, so that a crash leaves the old one or the new one; behind it the name of
//! the base, written once, for people alone.
//!
//! Invariants: a header that was read is consistent with the length of its store.

use crc32c::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bitmap::held_runs;
use super::error::OverlayError;
use super::layout::{BLOCK_BYTES, Layout};
use super::superblock::{Hash, hash, head, is_barred, uuid};
use crate::device::Device;

/// The first bytes of a store.
pub const MAGIC: &[u8; 8] = b"uext4ovl";
pub(super) const VERSION: u32 = 2;
/// Bytes of the header with its checksum.
const HEADER_BYTES: usize = 512;
/// Most bytes of the name of a base; a longer one is left out.
const NAME_BYTES_MAX: usize = 4096 - HEADER_BYTES;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    /// Bytes of a block.
    block_size: U32,
    /// Bytes of the base.
    base_len: U64,
    /// Where the blocks begin, in bytes.
    data_offset: U64,
    /// 0: holds blocks over an unchanged base; 1: a commit has begun.
    state: U32,
    /// CRC-32C of the name of the base.
    name_crc: U32,
    /// Bytes of the name of the base.
    name_len: U16,
    reserved: [u8; 6],
    /// UUID of the file system on the base when the overlay was made.
    base_uuid: [u8; 16],
    /// SHA-256 of the head of the base when the overlay was made.
    base_hash: Hash,
    /// Since a commit began: SHA-256 of the head as the overlay shows it.
    merged_hash: Hash,
    /// Since a commit began: SHA-256 of the base's sector at 1024, the first of its superblock.
    sector_hash: Hash,
    reserved_too: [u8; 348],
    /// CRC-32C of all before it.
    checksum: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// What an overlay is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It can be mounted; the base is as it was.
    Open,
    /// A commit has begun, so that the base has some blocks of it already.
    Committing,
}

/// The header of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where the parts are.
    pub layout: Layout,
    /// What can be done with it.
    pub state: State,
    /// UUID of the file system on the base.
    pub base_uuid: [u8; 16],
    /// SHA-256 of the first 64 KiB of the base.
    pub base_hash: [u8; 32],
    /// In state [`State::Committing`]: the same of what the base is to be.
    pub merged_hash: [u8; 32],
    /// In that state: SHA-256 of the first sector of the superblock that the base had.
    pub sector_hash: [u8; 32],
    /// The name of the base when the overlay was made: for messages alone, from hostile bytes.
    pub name: Vec<u8>,
}

impl Header {
    /// The header of a new overlay over a base.
    pub(super) fn over(base: &dyn Device, name: &[u8]) -> Result<Header, OverlayError> {
        let layout = Layout::new(base.len())?;
        let head = head(base)?;
        if is_barred(&head) {
            return Err(OverlayError::BaseHalfCommitted);
        }
        let name = if name.len() > NAME_BYTES_MAX { &[] } else { name };
        Ok(Header {
            layout,
            state: State::Open,
            base_uuid: uuid(&head),
            base_hash: hash(&head),
            merged_hash: Hash::default(),
            sector_hash: Hash::default(),
            name: name.to_vec(),
        })
    }

    /// Reads the header of a store.
    ///
    /// # Errors
    /// What it is instead of an overlay, or what is wrong with it.
    pub fn read(store: &dyn Device) -> Result<Header, OverlayError> {
        let mut bytes = [0; HEADER_BYTES];
        if store.len() < bytes.len() as u64 {
            return Err(OverlayError::NotAnOverlay);
        }
        store.read_at(0, &mut bytes)?;
        let raw = RawHeader::read_from_bytes(&bytes).map_err(|_| OverlayError::NotAnOverlay)?;
        if raw.magic != *MAGIC {
            return Err(OverlayError::NotAnOverlay);
        }
        if raw.version != VERSION {
            return Err(OverlayError::Version(raw.version.get()));
        }
        if raw.checksum != raw.own_checksum() {
            return Err(OverlayError::Damaged("the checksum of its header is wrong"));
        }
        let layout = Layout::new(raw.base_len.get())?;
        let is_known = u64::from(raw.block_size.get()) == BLOCK_BYTES
            && raw.data_offset.get() == layout.data_offset();
        if !is_known {
            return Err(OverlayError::Damaged("its header contradicts itself"));
        }
        let state = match raw.state.get() {
            0 => State::Open,
            1 => State::Committing,
            _ => return Err(OverlayError::Damaged("its state is unknown")),
        };
        let (wanted, len) = (layout.store_len(), store.len());
        if wanted != len {
            return Err(OverlayError::Length { wanted, len });
        }
        Ok(Header {
            layout,
            state,
            base_uuid: raw.base_uuid,
            base_hash: raw.base_hash,
            merged_hash: raw.merged_hash,
            sector_hash: raw.sector_hash,
            name: read_name(store, &raw)?,
        })
    }

    /// Bytes of the blocks that a store with this header holds.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn held_bytes(&self, store: &dyn Device) -> Result<u64, OverlayError> {
        let mut bytes = 0;
        held_runs(store, self.layout, 0..self.layout.blocks(), &mut |run| {
            let held = self.layout.bytes_of(&run);
            bytes += held.end - held.start;
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Writes the header and, once that is durable, the name, and makes it durable. In this order
    /// a store is a hole or has a header: a name that was not written whole is not shown.
    pub(super) fn write_new(&self, store: &dyn Device) -> Result<(), OverlayError> {
        self.write(store)?;
        store.write_at(HEADER_BYTES as u64, &self.name)?;
        store.flush()?;
        Ok(())
    }

    /// Writes the header and makes it durable, together with all that was written before.
    pub(super) fn write(&self, store: &dyn Device) -> Result<(), OverlayError> {
        let mut raw = RawHeader::new_zeroed();
        raw.magic = *MAGIC;
        raw.version = VERSION.into();
        raw.block_size = U32::new(BLOCK_BYTES as u32);
        raw.base_len = self.layout.base_len().into();
        raw.data_offset = self.layout.data_offset().into();
        raw.state = match self.state {
            State::Open => 0,
            State::Committing => 1,
        }
        .into();
        raw.name_crc = crc32c(&self.name).into();
        raw.base_uuid = self.base_uuid;
        raw.base_hash = self.base_hash;
        raw.merged_hash = self.merged_hash;
        raw.sector_hash = self.sector_hash;
        raw.name_len = U16::new(self.name.len() as u16);
        raw.checksum = raw.own_checksum().into();
        store.write_at(0, raw.as_bytes())?;
        store.flush()?;
        Ok(())
    }

    /// Refuses a base that is not the one of an overlay in state [`State::Open`].
    pub(super) fn check_base(&self, base: &dyn Device) -> Result<(), OverlayError> {
        self.check_length(base)?;
        self.check_head(&head(base)?)
    }

    /// Refuses the head of such a base.
    pub(super) fn check_head(&self, head: &[u8]) -> Result<(), OverlayError> {
        let (wanted, found) = (self.base_uuid, uuid(head));
        if wanted != found {
            return Err(OverlayError::OtherBase { wanted, found });
        }
        if is_barred(head) {
            return Err(OverlayError::BaseHalfCommitted);
        }
        if hash(head) != self.base_hash {
            return Err(OverlayError::Changed);
        }
        Ok(())
    }

    /// Refuses a base of another length.
    pub(super) fn check_length(&self, base: &dyn Device) -> Result<(), OverlayError> {
        let (wanted, len) = (self.layout.base_len(), base.len());
        if wanted != len {
            return Err(OverlayError::BaseLength { wanted, len });
        }
        Ok(())
    }
}

impl RawHeader {
    fn own_checksum(&self) -> u32 {
        crc32c(&self.as_bytes()[..HEADER_BYTES - size_of::<U32>()])
    }
}

/// The name of the base; empty where it was not written whole.
fn read_name(store: &dyn Device, raw: &RawHeader) -> Result<Vec<u8>, OverlayError> {
    let len = usize::from(raw.name_len.get());
    if len > NAME_BYTES_MAX {
        return Err(OverlayError::Damaged("its header contradicts itself"));
    }
    let mut name = vec![0; len];
    store.read_at(HEADER_BYTES as u64, &mut name)?;
    if raw.name_crc != crc32c(&name) {
        name.clear();
    }
    Ok(name)
}

/// Makes the checksum of a damaged header right again, and with `sane` also what it must have.
#[cfg(test)]
pub(super) fn reseal(store: &dyn Device, sane: bool) {
    let mut raw = RawHeader::new_zeroed();
    store.read_at(0, raw.as_mut_bytes()).unwrap();
    if sane {
        raw.magic = *MAGIC;
        raw.version = VERSION.into();
    }
    raw.checksum = raw.own_checksum().into();
    store.write_at(0, raw.as_bytes()).unwrap();
}
