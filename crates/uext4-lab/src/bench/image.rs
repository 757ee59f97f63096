//! Images that runs start from.

use std::fs::{self, File};
use std::path::Path;

use crate::bench::files::{self, FileSystem};
use crate::check;
use crate::command;
use crate::error::{Doing, Result};
use crate::mkfs_option::{MkfsOptions, mke2fs};
use crate::plan::Plan;
use crate::stage::{self, Loop, Medium, Stage};
use crate::target::{Opened, Target};

/// An empty file system as the reports made it, by mke2fs with these arguments besides where that
/// is installed, else by our own mkfs with these options.
pub(crate) fn format_with(
    image: &Path,
    bytes: u64,
    arguments: &[&str],
    options: &uext4_mkfs::Options,
    mkfs: Option<&MkfsOptions>,
) -> Result<()> {
    if image.exists() {
        fs::remove_file(image).doing("removing an image")?;
    }
    if command::find("mke2fs").is_none() {
        return stage::format_with(image, bytes, options);
    }
    // Sparse: mke2fs leaves tables of zeroes as holes.
    let file = File::create(image).and_then(|file| file.set_len(bytes));
    file.doing("making an image")?;
    mke2fs(image, arguments, mkfs)
}

/// An empty file system as the report of E1b made it.
pub(crate) fn format(image: &Path, bytes: u64, mkfs: Option<&MkfsOptions>) -> Result<()> {
    let options = uext4_mkfs::Options { block_size: Some(4096), ..uext4_mkfs::Options::default() };
    // Old ones know no orphan file.
    format_with(image, bytes, &["-O", "orphan_file"], &options, mkfs)
        .or_else(|_| format_with(image, bytes, &[], &options, mkfs))
}

/// Lays the files of a load out on an empty file system, by the kernel where that can be had, so
/// that nobody reads what it has laid out itself. The image is clean and cold afterwards.
pub(crate) fn lay_out(
    plan: &Plan,
    stage: &Stage,
    image: &Path,
    work: impl FnOnce(&Opened, &dyn FileSystem) -> Result<()>,
) -> Result<()> {
    let by_kernel = Target::Kernel.obstacle(plan).is_none();
    let maker = if by_kernel { Target::Kernel } else { Target::Uext4 };
    let medium = Medium::new(image, if by_kernel { Loop::Cached } else { Loop::None })?;
    let opened = maker.start(plan, stage, &medium, "")?;
    work(&opened, &*files::of(&opened))?;
    opened.end()?;
    medium.sync()?;
    medium.release()?;
    check::clean(image)?.close()?;
    stage::drop_cached(image)
}
