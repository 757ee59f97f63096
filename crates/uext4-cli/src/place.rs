//! Where in its file an image lies, by the file's partition table.

use std::fs::File;

use uext4_device::{Access, FileOptions, SharedDevice};

use crate::failure::{At, Result, Why};
use crate::image;
use crate::partition::{self, Table};
use crate::signature::{self, Found};
use crate::spec::{Image, Part, SIZE_FORMS};

/// Bytes of a file, from `offset` on; to its end, or `len` of them. Nothing past that is ever
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) len: Option<u64>,
}

impl Place {
    /// The place of an image: bounded by the partition that it is, or lies in, and where partitions
    /// overlap by the next start, too. Without a table that can be read only the end of the file
    /// bounds what is named by its offset.
    pub(crate) fn of(verb: &str, image: &Image) -> Result<Self> {
        match &image.part {
            Part::Whole => Ok(Self::default()),
            Part::At(offset) => {
                let table = match Disk::open(verb, image) {
                    // What cannot be opened now may be in a moment, without an end to the part.
                    Err(error) if image.uri().is_some() => return Err(error),
                    disk => disk.ok().and_then(|disk| disk.table().ok()?),
                };
                let end = table.and_then(|table| table.nearest_end(*offset));
                Ok(Self { offset: *offset, len: end.map(|end| end - offset) })
            }
            Part::Partition(number) => {
                let table = Disk::open(verb, image)?.table().at(verb, image.path.display())?;
                let bytes = match table {
                    Some(table) => table.partition(*number),
                    None => Err(Why::new("has no partition table")),
                };
                let bytes = bytes.at(verb, image.path.display())?;
                Ok(Self { offset: bytes.start, len: Some(bytes.end - bytes.start) })
            }
            Part::Unclear(words) => {
                let why =
                    format!("{words} is neither a partition (@p1) nor an offset ({SIZE_FORMS})");
                Err(Why::new(why).at(verb, image.path.display()))
            }
        }
    }
}

/// All of an image's file, for reading.
pub(crate) struct Disk {
    device: SharedDevice,
    sector: Option<u64>,
}

impl Disk {
    /// Opens the file, whatever part of it the image is.
    pub(crate) fn open(verb: &str, image: &Image) -> Result<Self> {
        let whole = Place { offset: 0, len: None };
        let device = image::any_device(verb, image, whole, &FileOptions::new(Access::ReadOnly))?;
        Ok(Self { device, sector: sector(image) })
    }

    /// Its partition table.
    pub(crate) fn table(&self) -> std::result::Result<Option<Table>, Why> {
        partition::read(&*self.device, self.sector)
    }

    /// What the whole of it is.
    pub(crate) fn holds(&self) -> Option<Found> {
        signature::of(&*self.device, self.sector)
    }
}

/// Size of the sectors of an image's disk, in bytes, if it is known.
pub(crate) fn sector(image: &Image) -> Option<u64> {
    sector_of_device(image).or(image.sector)
}

/// Size of the sectors of a block device, in bytes; `None` for a file.
pub(crate) fn sector_of_device(image: &Image) -> Option<u64> {
    // Fails on what is no block device.
    let size = rustix::fs::ioctl_blksszget(File::open(&image.path).ok()?);
    size.ok().map(u64::from)
}
