//! The image that every target starts a run from.
//!
//! What: mke2fs with the options that the report of the collapse names, where it is installed, else
//! our own; then the files. The kernel lays them out where it can, by fio's own first run for E0,
//! so that no target reads what it has laid out itself; else the library.

use std::path::{Path, PathBuf};

use crate::bench::files::{Directory, FileSystem};
use crate::bench::{format_with, lay_out};
use crate::error::Result;
use crate::fio::is_installed;
use crate::mkfs_option::MkfsOptions;
use crate::plan::Plan;
use crate::stage::Stage;
use crate::storm::content::{LAID_OUT, stamp};
use crate::storm::storm_fio;
use crate::storm::storm_shape::{BLOCK, StormKind, StormShape};
use crate::target::Opened;

/// Makes the image of a shape.
pub(crate) fn make(
    plan: &Plan,
    stage: &Stage,
    shape: &StormShape,
    mkfs: Option<&MkfsOptions>,
) -> Result<PathBuf> {
    let image = stage.image(&MkfsOptions::file_name("base", mkfs));
    format(&image, shape, mkfs)?;
    lay_out(plan, stage, &image, |opened, files| match opened {
        Opened::Mount(mount) => fill(plan, stage, shape, mount.dir()),
        Opened::Library(_) => make_files(files, shape),
    })?;
    Ok(image)
}

/// Lays the files of a shape out in a directory.
pub(crate) fn fill(plan: &Plan, stage: &Stage, shape: &StormShape, dir: &Path) -> Result<()> {
    if shape.kind == StormKind::Own && is_installed() {
        return storm_fio::lay_out(shape, dir, &stage.source("fio.json"), &plan.stop);
    }
    make_files(&Directory(dir), shape)
}

fn make_files(files: &dyn FileSystem, shape: &StormShape) -> Result<()> {
    (0..shape.files()).try_for_each(|number| file(files, shape, number))
}

fn format(image: &Path, shape: &StormShape, mkfs: Option<&MkfsOptions>) -> Result<()> {
    let options = uext4_mkfs::Options {
        block_size: Some(4096),
        reserved_percent: Some(1.0),
        journal_mib: Some(shape.journal_mib),
        ..uext4_mkfs::Options::default()
    };
    let journal = format!("size={}", shape.journal_mib);
    let bytes = mkfs.map_or_else(|| shape.image_bytes(), |_| shape.roomy_image_bytes());
    format_with(image, bytes, &["-m", "1", "-J", &journal], &options, mkfs)
}

/// Lays a file out: empty, allocated, or written where all threads share it.
fn file(files: &dyn FileSystem, shape: &StormShape, number: u32) -> Result<()> {
    let name = shape.name(number);
    match shape.kind {
        StormKind::Append => files.create(&name).map(|_| ()),
        StormKind::Own => files.create(&name)?.allocate(0, shape.file_bytes),
        StormKind::Shared => files.write_file(&name, shape.file_bytes, BLOCK, |offset, data| {
            stamp(data, 0, (offset / BLOCK as u64) as u32, LAID_OUT);
        }),
    }
}
