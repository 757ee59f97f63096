//! Sizes of the load, its file, and what the blocks of that hold.

use std::path::PathBuf;

use crate::bench::stamp::{self, SECTOR};
use crate::bench::{format, lay_out};
use crate::error::Result;
use crate::plan::Plan;
use crate::stage::Stage;

/// The file's name in the root.
pub(crate) const NAME: &str = "aio-dio";
/// Requests in flight.
pub(crate) const DEPTH: usize = 64;

/// The file at full size.
const FILE_BYTES: u64 = 2 << 30;
/// Of smaller ones: room for more places than requests in flight.
const FILE_BYTES_MIN: u64 = 24 << 20;
/// A multiple of all sizes of requests: 4, 8, 12 and 16 KiB.
const FILE_UNIT: u64 = 48 << 10;
/// Journal and tables beside the file.
const OVERHEAD_BYTES: u64 = 192 << 20;
const LAYOUT_BYTES: usize = 1 << 20;
/// Number of the write that laid the file out.
const LAID_OUT: u64 = 0;

/// How large things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedShape {
    pub(crate) file_bytes: u64,
}

impl QueuedShape {
    pub(crate) fn new(scale: f64) -> Self {
        let bytes = (FILE_BYTES as f64 * scale) as u64;
        Self { file_bytes: bytes.max(FILE_BYTES_MIN).next_multiple_of(FILE_UNIT) }
    }

    pub(crate) fn image_bytes(self) -> u64 {
        (self.file_bytes + self.file_bytes / 32 + OVERHEAD_BYTES).next_multiple_of(1 << 20)
    }
}

/// Makes the image with the file in it.
pub(crate) fn make_image(plan: &Plan, stage: &Stage, shape: QueuedShape) -> Result<PathBuf> {
    let image = stage.image("run");
    format(&image, shape.image_bytes(), None)?;
    let fill = |offset: u64, data: &mut [u8]| {
        data.fill(0x34);
        stamp(data, offset, LAID_OUT);
    };
    lay_out(plan, stage, &image, |_, files| {
        files.write_file(NAME, shape.file_bytes, LAYOUT_BYTES, fill)
    })?;
    Ok(image)
}

/// Names place and write in every sector; the rest stays as it is. `offset` is the file's.
pub(crate) fn stamp(data: &mut [u8], offset: u64, write: u64) {
    stamp::put_all(data, |sector| [offset + sector * SECTOR as u64, write]);
}

/// The write that all sectors name, at their own places; `None` if they differ or lie elsewhere.
pub(crate) fn read_stamp(data: &[u8], offset: u64) -> Option<u64> {
    let mut found = None;
    for (sector, [place, write]) in stamp::get_all(data) {
        let is_there = place == offset + sector * SECTOR as u64;
        if !is_there || found.is_some_and(|seen| seen != write) {
            return None;
        }
        found = Some(write);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_requests_of_every_size() {
        for scale in [1.0, 0.3, 0.0001] {
            let shape = QueuedShape::new(scale);
            assert!([4, 8, 12, 16].iter().all(|kib| shape.file_bytes.is_multiple_of(kib << 10)));
            assert!(shape.image_bytes() > shape.file_bytes);
        }
    }

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
