//! `uext4 tune`: changes the form of an image, or of a file in it.
//!
//! `--extents` gives files with block maps extent trees, as chattr(1) does with `+e` on a mount: a
//! single file, or every one of the image. The feature is set first where the file system lacks it.
//! Each file changes in one step, so that a crash leaves it in one form or the other. Without a
//! journal e2fsck repairs what a crash leaves, as after any change.
//!
//! `--clear-mmp` frees a file system from the claim of a host or a check that is dead.

use std::collections::HashSet;
use std::ffi::OsString;

use uext4::{FileKind, InodeRef, Volume};
use uext4_ondisk::Incompat;

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, names, resolve};
use crate::output::Output;
use crate::spec::{Image, ImagePath, Location, join};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 tune --extents disk.img", "extent trees for all files of an ext3 image"),
    ("uext4 tune --extents disk.img:/var/db", "for the files of a directory"),
    ("uext4 tune --clear-mmp disk.img", "free it from the claim of a host that has crashed"),
];

/// Change the form of an image, or of a file in it
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Give files with block maps (ext2, ext3) extent trees
    #[arg(long, required_unless_present = "clear_mmp")]
    extents: bool,
    /// Free the file system from the claim of a host or a check that has ended without releasing
    /// it (mmp): make sure that none uses it
    #[arg(long, conflicts_with = "extents")]
    clear_mmp: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Image: all that is in it; or one file or directory by itself
    #[arg(value_name = "IMAGE[:/PATH]")]
    place: OsString,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.clear_mmp {
        return clear_mmp(args);
    }
    let (image, path) = match Location::parse(&args.place) {
        Location::Image(path) => (path.image.clone(), Some(path)),
        Location::Host(_) => (Image::parse(&args.place), None),
    };
    let volume = with_extents(&image, path.as_ref())?;
    let mut outcome = Outcome::default();
    let mut count = 0;
    match &path {
        Some(path) => match convert_one(&volume, path).at("tune", path) {
            Ok(done) => count += u64::from(done),
            Err(failure) => outcome.note(failure),
        },
        None => {
            let outcome = &mut outcome;
            let mut conversion = Conversion { volume: &volume, image: &image, count, outcome };
            conversion.run()?;
            count = conversion.count;
        }
    }
    image::close("tune", &image, volume)?;
    if !args.quiet {
        let mut output = Output::new();
        output.line(&format!("{count} files converted to extents"))?;
        output.finish()?;
    }
    outcome.finish()
}

fn clear_mmp(args: &Args) -> Result<()> {
    let image = match Location::parse(&args.place) {
        Location::Image(path) => {
            let why = Why::new("--clear-mmp is of an image, not of a file in it");
            return Err(why.at("tune", path));
        }
        Location::Host(_) => Image::parse(&args.place),
    };
    let device = image::device("tune", &image, Access::Write)?;
    let had = uext4::clear_mmp(&device).at("tune", &image)?;
    if args.quiet {
        return Ok(());
    }
    let mut output = Output::new();
    output.line(&had.unwrap_or_else(|| "no host had it".to_owned()))?;
    output.finish()
}

/// The volume, which has the feature, and the path.
fn with_extents(image: &Image, path: Option<&ImagePath>) -> Result<Volume> {
    let volume = image::volume("tune", image, Access::Write)?;
    if let Some(path) = path {
        resolve(&volume, &path.path, Last::Keep).at("tune", path)?;
    }
    if volume.layout().features.incompat.contains(Incompat::EXTENT) {
        return Ok(volume);
    }
    volume.enable_extents().at("tune", image)?;
    image::close("tune", image, volume)?;
    image::volume("tune", image, Access::Write)
}

fn convert_one(volume: &Volume, path: &ImagePath) -> std::result::Result<bool, Why> {
    let found = resolve(volume, &path.path, Last::Keep)?;
    Ok(volume.convert_to_extents(found.inode())?)
}

/// A conversion of all that the root leads to.
struct Conversion<'a> {
    volume: &'a Volume,
    image: &'a Image,
    count: u64,
    outcome: &'a mut Outcome,
}

impl Conversion<'_> {
    /// Converts everything. Depth costs heap, not stack; a directory that is its own ancestor, as a
    /// corrupt image may have, is entered once.
    fn run(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        let root = self.volume.root().at("tune", self.image)?;
        self.convert(&root, b"/");
        let mut left = vec![(root, b"/".to_vec())];
        while let Some((dir, path)) = left.pop() {
            let Some(listed) = self.note(names(self.volume, &dir), &path) else { continue };
            for listed in listed {
                let path = join(&path, &listed.name);
                let child = self.volume.lookup(&dir, &listed.name).map_err(Why::from);
                let Some(child) = self.note(child, &path) else { continue };
                self.convert(&child, &path);
                if child.kind() == FileKind::Directory && seen.insert(child.ino()) {
                    left.push((child, path));
                }
            }
        }
        Ok(())
    }

    fn convert(&mut self, inode: &InodeRef, path: &[u8]) {
        let done = self.volume.convert_to_extents(inode).map_err(Why::from);
        self.count += u64::from(self.note(done, path) == Some(true));
    }

    /// The value; a failure is noted.
    fn note<T>(&mut self, result: std::result::Result<T, Why>, path: &[u8]) -> Option<T> {
        let at = ImagePath { image: self.image.clone(), path: path.to_vec() };
        result.at("tune", &at).map_err(|failure| self.outcome.note(failure)).ok()
    }
}
