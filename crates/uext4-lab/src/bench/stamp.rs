//! Words that name a write in the sectors of its data.

/// Bytes that are stamped apart: what a device writes whole.
pub(crate) const SECTOR: usize = 512;

/// Puts words at the begin of `bytes`.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], words: [u64; N]) {
    for (word, bytes) in words.into_iter().zip(bytes.chunks_exact_mut(8)) {
        for (byte, shift) in bytes.iter_mut().zip((0..64).step_by(8)) {
            *byte = (word >> shift & 0xff) as u8;
        }
    }
}

/// Puts words into every sector, by its number; the rest of the data stays as it is.
pub(crate) fn put_all<const N: usize>(data: &mut [u8], words: impl Fn(u64) -> [u64; N]) {
    for (number, sector) in (0..).zip(data.chunks_exact_mut(SECTOR)) {
        put(sector, words(number));
    }
}

/// The words of every sector, with its number.
pub(crate) fn get_all<const N: usize>(data: &[u8]) -> impl Iterator<Item = (u64, [u64; N])> {
    (0..).zip(data.chunks_exact(SECTOR)).map(|(number, sector)| {
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(sector.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        (number, words)
    })
}
