//! Where a new file system may go: nowhere but into the room that is its own.
//!
//! A partition table bounds it, with `-F` as without. `-F` allows what else needs a second thought:
//! a place where no partition starts, or inside of what fills the whole image.

use crate::failure::{At, Result, Why};
use crate::place::{Disk, Place};
use crate::spec::{Image, Part};

/// The place of a file system of so many bytes, or of all that there are.
pub(super) fn find(image: &Image, size: Option<u64>, force: bool) -> Result<Place> {
    let place = Place::of("mkfs", image)?;
    // A file that is to be made holds nothing.
    let is_new = image.is_to_be_made();
    if image.part == Part::Whole || is_new {
        return Ok(place);
    }
    let disk = Disk::open("mkfs", image)?;
    let len = len_at(&disk, place.offset, force).at("mkfs", image)?;
    match (len, size) {
        (Some(len), Some(size)) if size > len => {
            let why = format!("{size} bytes do not fit: there is room for {len}");
            Err(Why::new(why).at("mkfs", image))
        }
        _ => Ok(Place { len, ..place }),
    }
}

/// Bytes that are free from an offset on; `None` where only the end of the disk ends them.
fn len_at(disk: &Disk, offset: u64, force: bool) -> std::result::Result<Option<u64>, Why> {
    let unasked = |why: &str| Err(Why::new(format!("{why}; use -F to write there")));
    match disk.table() {
        Err(_) if force => Ok(None),
        Err(why) => unasked(&format!("the whole image {why}")),
        Ok(Some(table)) => {
            if !force && !table.partitions().any(|(_, bytes)| bytes.start == offset) {
                let starts = table.listed(|number, bytes| format!("p{number} at {}", bytes.start));
                return unasked(&format!("no partition starts there ({starts})"));
            }
            Ok(Some(table.room_end(offset)? - offset))
        }
        Ok(None) => match disk.holds().filter(|_| !force) {
            Some(found) => unasked(&format!("the whole image {}", found.sentence())),
            None => Ok(None),
        },
    }
}
