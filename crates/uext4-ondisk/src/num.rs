//! Splitting and joining of the numbers that the format stores in halves; the only place with `as`
//! between integer widths.

/// Low 16 bits.
pub(crate) const fn lo16(v: u32) -> u16 {
    (v & 0xffff) as u16
}

/// High 16 bits.
pub(crate) const fn hi16(v: u32) -> u16 {
    (v >> 16) as u16
}

/// Low 32 bits.
pub(crate) const fn lo32(v: u64) -> u32 {
    (v & 0xffff_ffff) as u32
}

/// High 32 bits.
pub(crate) const fn hi32(v: u64) -> u32 {
    (v >> 32) as u32
}

/// Bits 32 to 47.
pub(crate) const fn mid16(v: u64) -> u16 {
    ((v >> 32) & 0xffff) as u16
}

/// 32 bits from two halves.
pub(crate) const fn join16(hi: u16, lo: u16) -> u32 {
    ((hi as u32) << 16) | lo as u32
}

/// 64 bits from two halves.
pub(crate) const fn join32(hi: u32, lo: u32) -> u64 {
    ((hi as u64) << 32) | lo as u64
}

/// A 32-bit number as an index; `usize` has at least 32 bits on every supported target.
pub(crate) const fn idx(v: u32) -> usize {
    v as usize
}

/// A length as a 32-bit number; blocks and slots are far below 4 GiB, a longer slice saturates.
pub(crate) const fn len32(v: usize) -> u32 {
    if v > u32::MAX as usize { u32::MAX } else { v as u32 }
}

/// A length that was checked to fit 16 bits; saturates otherwise.
pub(crate) const fn len16(v: usize) -> u16 {
    if v > u16::MAX as usize { u16::MAX } else { v as u16 }
}

/// Four little-endian bytes at `at`, or 0 past the end.
pub(crate) fn le32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<4>()) {
        Some(b) => u32::from_le_bytes(*b),
        None => 0,
    }
}

/// Two little-endian bytes at `at`, or 0 past the end.
pub(crate) fn le16_at(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<2>()) {
        Some(b) => u16::from_le_bytes(*b),
        None => 0,
    }
}

/// Four big-endian bytes at `at`, or 0 past the end.
pub(crate) fn be32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<4>()) {
        Some(b) => u32::from_be_bytes(*b),
        None => 0,
    }
}

/// Copies `from` to `at`; returns false, and changes nothing, when it does not fit.
pub(crate) fn put(bytes: &mut [u8], at: usize, from: &[u8]) -> bool {
    match bytes.get_mut(at..).and_then(|b| b.get_mut(..from.len())) {
        Some(to) => {
            to.copy_from_slice(from);
            true
        }
        None => false,
    }
}
