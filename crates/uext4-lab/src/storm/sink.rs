//! What the generator writes to.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use uext4::{OpenFile, Volume};

use crate::error::{Doing, Error, Result};
use crate::storm::shape::Shape;

/// A side of the load.
pub(crate) trait Sink: Sync {
    /// What a thread writes to.
    fn open(&self, shape: &Shape, thread: u32) -> Result<Box<dyn Cell + '_>>;
}

/// The file of one thread.
pub(crate) trait Cell {
    /// Writes a block at an offset in bytes.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Returns when what was written through this cell is durable.
    fn sync(&self) -> Result<()>;
}

/// A volume of this process.
pub(crate) struct Library<'a>(pub(crate) &'a Volume);

impl Sink for Library<'_> {
    fn open(&self, shape: &Shape, thread: u32) -> Result<Box<dyn Cell + '_>> {
        let name = shape.name(shape.file_of(thread));
        let inode = self.0.lookup(&self.0.root()?, name.as_bytes())?;
        Ok(Box::new(self.0.open_file(&inode)?))
    }
}

impl Cell for OpenFile {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.write_at(offset, data)?;
        if written == data.len() { Ok(()) } else { Err(Error::new("uext4: short write")) }
    }

    fn sync(&self) -> Result<()> {
        Ok(Self::sync(self, false)?)
    }
}

/// A directory of a mounted file system.
pub(crate) struct Directory<'a>(pub(crate) &'a Path);

impl Sink for Directory<'_> {
    fn open(&self, shape: &Shape, thread: u32) -> Result<Box<dyn Cell + '_>> {
        let path = self.0.join(shape.name(shape.file_of(thread)));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Box::new(file.doing(format_args!("opening {}", path.display()))?))
    }
}

impl Cell for File {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_all_at(data, offset).doing("write")
    }

    fn sync(&self) -> Result<()> {
        self.sync_all().doing("fsync")
    }
}
