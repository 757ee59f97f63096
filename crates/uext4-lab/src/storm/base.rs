//! The image that every side of a turn starts from.
//!
//! What: mke2fs with the options that the report of the collapse names, where it is installed, else
//! our own; then the files. The kernel lays them out where it can, by fio's own first run for E0,
//! so that no side reads what it has laid out itself; else the library.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use uext4::{AllocateMode, FileKind, NewInode, Owner, Volume};
use uext4_device::FileDevice;

use crate::bench::lay_out;
use crate::command;
use crate::error::{Doing, Result};
use crate::fio::is_installed;
use crate::plan::Plan;
use crate::stage::Stage;
use crate::storm::content::{LAID_OUT, stamp};
use crate::storm::fio;
use crate::storm::shape::{BLOCK, Shape};
use crate::target::Side;

/// Makes the image of a shape.
pub(crate) fn make(plan: &Plan, stage: &Stage, shape: &Shape) -> Result<PathBuf> {
    let image = stage.image("base");
    if image.exists() {
        std::fs::remove_file(&image).doing("removing an image")?;
    }
    format(&image, shape)?;
    lay_out(plan, stage, &image, |side| match side {
        Side::Library(volume) => (0..shape.files()).try_for_each(|n| file(volume, shape, n)),
        Side::Mount(mount) if !shape.shared && !shape.appends && is_installed() => {
            fio::lay_out(shape, mount.dir(), &stage.source("fio.json"), &plan.stop)
        }
        Side::Mount(mount) => (0..shape.files()).try_for_each(|n| host_file(mount.dir(), shape, n)),
    })?;
    Ok(image)
}

fn format(image: &Path, shape: &Shape) -> Result<()> {
    let bytes = shape.image_bytes();
    if command::find("mke2fs").is_none() {
        let device = FileDevice::create(image, bytes).doing("making an image")?;
        let options = uext4_mkfs::Options {
            block_size: Some(4096),
            reserved_percent: 1.0,
            journal_mib: Some(shape.journal_mib),
            ..uext4_mkfs::Options::default()
        };
        return uext4_mkfs::format(&device, &options).doing("mkfs").map(|_| ());
    }
    let file = std::fs::File::create(image).and_then(|file| file.set_len(bytes));
    file.doing("making an image")?;
    let journal = format!("size={}", shape.journal_mib);
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    let image = image.to_string_lossy();
    let args =
        ["-q", "-F", "-E", lazy, "-m", "1", "-t", "ext4", "-b", "4096", "-J", &journal, &image];
    command::run("mke2fs", &args).map(|_| ())
}

/// Lays a file out by the library: allocated, or written where all share it.
fn file(volume: &Volume, shape: &Shape, number: u32) -> Result<()> {
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        owner: Owner::default(),
        rdev: uext4::Device::default(),
    };
    let made = volume.create(&volume.root()?, shape.name(number).as_bytes(), &new)?;
    let file = volume.open_file(&made)?;
    if shape.appends {
        return Ok(());
    }
    if !shape.shared {
        let mode = AllocateMode::Allocate { keep_size: false };
        return Ok(file.allocate(mode, 0, shape.file_bytes)?);
    }
    for (offset, data) in written_blocks(shape) {
        file.write_at(offset, &data)?;
    }
    Ok(file.sync(false)?)
}

fn host_file(dir: &Path, shape: &Shape, number: u32) -> Result<()> {
    let path = dir.join(shape.name(number));
    let file = OpenOptions::new().write(true).create_new(true).open(&path);
    let file = file.doing(format_args!("making {}", path.display()))?;
    if shape.appends {
        return Ok(());
    }
    if !shape.shared {
        return fallocate(&file, FallocateFlags::empty(), 0, shape.file_bytes).doing("fallocate");
    }
    for (offset, data) in written_blocks(shape) {
        file.write_all_at(&data, offset).doing("laying a file out")?;
    }
    file.sync_all().doing("laying a file out")
}

fn written_blocks(shape: &Shape) -> impl Iterator<Item = (u64, Vec<u8>)> {
    (0..shape.blocks()).map(|block| {
        let mut data = vec![0; BLOCK];
        stamp(&mut data, 0, block, LAID_OUT);
        (u64::from(block) * BLOCK as u64, data)
    })
}
