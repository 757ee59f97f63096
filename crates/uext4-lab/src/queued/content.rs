//! What sectors hold: the place in the file, and the number of the write.

/// Bytes that are stamped apart: what a device writes whole.
pub(crate) const SECTOR: usize = 512;
const WORDS: usize = 2;

/// Names place and write in every sector; the rest stays as it is. `offset` is the file's.
pub(crate) fn stamp(data: &mut [u8], offset: u64, write: u64) {
    for (at, sector) in (offset..).step_by(SECTOR).zip(data.chunks_exact_mut(SECTOR)) {
        for (word, bytes) in [at, write].into_iter().zip(sector.chunks_exact_mut(8)) {
            for (byte, shift) in bytes.iter_mut().zip((0..64).step_by(8)) {
                *byte = (word >> shift & 0xff) as u8;
            }
        }
    }
}

/// The write that all sectors name, at their own places; `None` if they differ or lie elsewhere.
pub(crate) fn read_stamp(data: &[u8], offset: u64) -> Option<u64> {
    let mut found = None;
    for (at, sector) in (offset..).step_by(SECTOR).zip(data.chunks_exact(SECTOR)) {
        let [place, write] = words(sector);
        if place != at || found.is_some_and(|seen| seen != write) {
            return None;
        }
        found = Some(write);
    }
    found
}

fn words(sector: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(sector.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_tells_its_write_if_it_is_whole_and_in_its_place() {
        let mut data = vec![7; 4096];
        stamp(&mut data, 8192, 5);
        assert_eq!(read_stamp(&data, 8192), Some(5));
        assert_eq!(read_stamp(&data, 4096), None);
        stamp(&mut data[3584..], 8192 + 3584, 6);
        assert_eq!(read_stamp(&data, 8192), None);
    }
}
