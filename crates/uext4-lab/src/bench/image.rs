//! Images that turns start from.

use std::fs::{self, File};
use std::path::Path;

use crate::check;
use crate::command;
use crate::error::{Doing, Result};
use crate::plan::Plan;
use crate::stage::{self, Loop, Medium, Stage};
use crate::target::{Side, Target};

/// An empty file system as the report of E1b made it, where mke2fs is installed, else our own.
pub(crate) fn format(image: &Path, bytes: u64) -> Result<()> {
    if command::find("mke2fs").is_none() {
        return stage::format(image, bytes);
    }
    if image.exists() {
        fs::remove_file(image).doing("removing an image")?;
    }
    // Sparse: mke2fs leaves tables of zeroes as holes.
    let file = File::create(image).and_then(|file| file.set_len(bytes));
    file.doing("making an image")?;
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    let image_name = image.to_string_lossy();
    let args = ["-q", "-F", "-E", lazy, "-t", "ext4", "-b", "4096", &image_name];
    let with_orphan_file = [&args[..8], &["-O", "orphan_file"], &args[8..]].concat();
    // Old ones know no orphan file.
    let made = command::run("mke2fs", &with_orphan_file);
    made.or_else(|_| command::run("mke2fs", &args)).map(|_| ())
}

/// Lays the files of a load out on an empty file system, by the kernel where that can be had, so
/// that nobody reads what it has laid out itself. The image is clean and cold afterwards.
pub(crate) fn lay_out(
    plan: &Plan,
    stage: &Stage,
    image: &Path,
    work: impl FnOnce(&Side) -> Result<()>,
) -> Result<()> {
    let by_kernel = Target::Kernel.obstacle(plan).is_none();
    let maker = if by_kernel { Target::Kernel } else { Target::Uext4 };
    let medium = Medium::new(image, if by_kernel { Loop::Cached } else { Loop::None })?;
    let side = maker.start(plan, stage, &medium, "")?;
    work(&side)?;
    side.end()?;
    medium.sync()?;
    medium.release()?;
    check::clean(image)?.close()?;
    stage::drop_cached(image)
}
