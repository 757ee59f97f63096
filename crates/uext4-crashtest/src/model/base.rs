//! The file system before the trace.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use uext4::{FileBlock, FileKind, Ino, InodeRef, MountOptions, Volume};
use uext4_device::MemoryDevice;

use crate::error::{Error, Result};

/// An image that was closed cleanly, and its volume to read from.
pub(crate) struct Base {
    device: MemoryDevice,
    volume: Volume,
}

/// A regular file of an image.
pub(crate) struct BaseFile {
    pub(crate) names: u32,
    pub(crate) size: u64,
    /// Blocks with a place on the medium.
    pub(crate) allocated: Vec<Range<u64>>,
}

/// Names of an image: directory, name, inode.
pub(crate) type Entries = BTreeMap<u32, BTreeMap<Vec<u8>, u32>>;

impl Base {
    pub(crate) fn of(device: &MemoryDevice) -> Result<Self> {
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let volume = Volume::open(Arc::new(device.snapshot()), options)?;
        if volume.recovery() != Default::default() {
            return Err(Error::new("the image at the begin of the trace was not closed cleanly"));
        }
        Ok(Self { device: device.snapshot(), volume })
    }

    pub(crate) fn device(&self) -> &MemoryDevice {
        &self.device
    }

    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.volume.stat_fs().block_size)
    }

    /// A regular file; `None` for another inode.
    pub(crate) fn regular_file(&self, number: u32) -> Result<Option<BaseFile>> {
        let inode = inode(&self.volume, number)?;
        let attr = self.volume.attr(&inode);
        if attr.kind != FileKind::Regular {
            return Ok(None);
        }
        let mut allocated = Vec::new();
        self.volume.extents(&inode, FileBlock(0), &mut |extent| {
            let first = u64::from(extent.first.get());
            if !extent.unwritten {
                allocated.push(first..first + u64::from(extent.len));
            }
            true
        })?;
        Ok(Some(BaseFile { names: attr.links, size: attr.size, allocated }))
    }

    /// A block of a file, with zeros behind its end.
    pub(crate) fn read_block(&self, number: u32, at: u64) -> Result<Vec<u8>> {
        let file = self.volume.open_file(&inode(&self.volume, number)?)?;
        let mut bytes = vec![0; self.block_size() as usize];
        let mut done = 0;
        while done < bytes.len() {
            let offset = at * self.block_size() + done as u64;
            match file.read_at(offset, &mut bytes[done..])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(bytes)
    }

    /// All names.
    pub(crate) fn entries(&self) -> Result<Entries> {
        let mut entries = Entries::new();
        let mut todo = vec![Ino::ROOT.get()];
        while let Some(number) = todo.pop() {
            let directory = inode(&self.volume, number)?;
            let mut names = BTreeMap::new();
            self.volume.read_dir(&directory, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    names.insert(entry.name.to_vec(), entry.ino.get());
                }
                true
            })?;
            for child in names.values() {
                let attr = self.volume.attr(&inode(&self.volume, *child)?);
                // A hostile image may have a directory with two names.
                if attr.kind == FileKind::Directory && !entries.contains_key(child) {
                    todo.push(*child);
                }
            }
            entries.insert(number, names);
        }
        Ok(entries)
    }
}

/// An inode by its number.
pub(crate) fn inode(volume: &Volume, number: u32) -> Result<InodeRef> {
    Ok(volume.inode(Ino(number))?)
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base").finish_non_exhaustive()
    }
}
