//! Partition tables as they stand on a disk: GPT by the UEFI specification, chapter 5, and the
//! master boot record. Little endian, without gaps; nothing is checked here.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header of a GPT.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GptHeader {
    pub(super) signature: [u8; 8],
    pub(super) revision: U32,
    pub(super) header_size: U32,
    pub(super) header_crc32: U32,
    pub(super) reserved: U32,
    pub(super) my_lba: U64,
    pub(super) alternate_lba: U64,
    pub(super) first_usable_lba: U64,
    pub(super) last_usable_lba: U64,
    pub(super) disk_guid: [u8; 16],
    pub(super) entry_lba: U64,
    pub(super) entries: U32,
    pub(super) entry_size: U32,
    pub(super) entries_crc32: U32,
}

impl GptHeader {
    pub(super) const SIGNATURE: [u8; 8] = *b"EFI PART";

    /// The checksum that the header should have.
    pub(super) fn checksum(&self) -> u32 {
        crc32fast::hash(Self { header_crc32: U32::ZERO, ..*self }.as_bytes())
    }
}

/// An entry of a GPT's array; those of larger size begin with it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GptEntry {
    /// All zero: the entry is free.
    pub(super) kind: [u8; 16],
    pub(super) guid: [u8; 16],
    pub(super) first_lba: U64,
    pub(super) last_lba: U64,
    pub(super) attributes: U64,
    pub(super) name: [u8; 72],
}

/// The first sector of a disk, or a record of an extended partition.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BootRecord {
    pub(super) code: [u8; 446],
    pub(super) entries: [MbrEntry; 4],
    pub(super) signature: [u8; 2],
}

/// An entry of a master boot record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct MbrEntry {
    pub(super) boot_indicator: u8,
    pub(super) first_chs: [u8; 3],
    pub(super) kind: u8,
    pub(super) last_chs: [u8; 3],
    pub(super) first_lba: U32,
    pub(super) sectors: U32,
}

const _: () = assert!(size_of::<GptHeader>() == 92 && size_of::<GptEntry>() == 128);
const _: () = assert!(size_of::<BootRecord>() == 512);
