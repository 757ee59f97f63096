//! Whether an image is what a run should have made of it.
//!
//! What: files have their sizes, and each block that our own threads wrote holds its last write.
//! A target does not read back what it wrote itself, where there is another.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use uext4::Volume;

use crate::bench::Bench;
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::stage::{Loop, Medium};
use crate::storm::content::{self, ReadBlock};
use crate::storm::raw;
use crate::storm::storm_shape::{BLOCK, StormKind, StormShape};
use crate::target::{Opened, Target};

/// Of an image without a file system; `writes` has those of each thread, or nothing where they are
/// not known one by one.
pub(super) fn raw(shape: &StormShape, image: &Path, writes: &[u64]) -> Result<()> {
    let file = File::open(image).doing("reading back")?;
    let mut read = |number: u32, block: u32, data: &mut [u8]| {
        let at = raw::file_start(shape, number) + u64::from(block) * BLOCK as u64;
        file.read_exact_at(data, at).doing("reading back")
    };
    content::check(shape, writes, &mut read)
}

/// Of an image that `writer` wrote to: both checkers, and then its files.
pub(super) fn files(
    bench: &Bench<'_>,
    shape: &StormShape,
    writer: Target,
    image: &Path,
    writes: &[u64],
) -> Result<()> {
    let volume = check::clean(image)?;
    let whole = (0..shape.files()).try_for_each(|number| {
        let inode = volume.lookup(&volume.root()?, shape.name(number).as_bytes())?;
        let size = volume.attr(&inode).size;
        if size == shape.file_bytes || shape.kind == StormKind::Append {
            return Ok(());
        }
        Err(Error::new(format!("{} has {size} bytes", shape.name(number))))
    });
    let has_kernel = Target::Kernel.obstacle(bench.plan).is_none();
    let by_kernel = has_kernel && !writer.is_kernel();
    let read_back = whole.and_then(|()| match writes.is_empty() || by_kernel {
        true => Ok(()),
        false => content::check(shape, writes, &mut read_by_library(shape, &volume)),
    });
    volume.close()?;
    read_back?;
    if by_kernel && !writes.is_empty() {
        read_by_kernel(bench, shape, image, writes)?;
    }
    Ok(())
}

/// Of a folder of a directory that is mounted already.
pub(super) fn folder(shape: &StormShape, dir: &Path, writes: &[u64]) -> Result<()> {
    for number in 0..shape.files() {
        let name = shape.name(number);
        let size = fs::metadata(dir.join(&name)).doing(&name)?.len();
        if size != shape.file_bytes && shape.kind != StormKind::Append {
            return Err(Error::new(format!("{name} has {size} bytes")));
        }
    }
    match writes.is_empty() {
        true => Ok(()),
        false => content::check(shape, writes, &mut read_in(shape, dir)),
    }
}

fn read_in<'a>(shape: &'a StormShape, dir: &'a Path) -> Box<ReadBlock<'a>> {
    Box::new(move |number, block, data| {
        let file = File::open(dir.join(shape.name(number)));
        let at = u64::from(block) * BLOCK as u64;
        file.and_then(|file| file.read_exact_at(data, at)).doing("reading back")
    })
}

fn read_by_kernel(
    bench: &Bench<'_>,
    shape: &StormShape,
    image: &Path,
    writes: &[u64],
) -> Result<()> {
    let medium = Medium::new(image, Loop::Cached)?;
    let opened = Target::Kernel.start(bench.plan, &bench.stage, &medium, "ro")?;
    let Opened::Mount(mount) = &opened else { return Err(Error::new("not a mount")) };
    let found = content::check(shape, writes, &mut read_in(shape, mount.dir()));
    opened.end()?;
    medium.release()?;
    found
}

fn read_by_library<'a>(shape: &'a StormShape, volume: &'a Volume) -> Box<ReadBlock<'a>> {
    Box::new(move |number, block, data| {
        let inode = volume.lookup(&volume.root()?, shape.name(number).as_bytes())?;
        let file = volume.open_file(&inode)?;
        let count = file.read_at(u64::from(block) * BLOCK as u64, data)?;
        if count == data.len() { Ok(()) } else { Err(Error::new("reading back: short read")) }
    })
}
