//! `uext4 cp`: files and trees into an image, out of one, and within or between images.
//!
//! Always as `cp -a` keeps things: modes, times, attributes, links, holes; the owner too, but on
//! the host only for root. Set-id bits stay on the host where owner and group are the image's, as
//! with cp(1): for anybody else they would be another right.
//!
//! An existing file is replaced by a new one. What else a name on the command line leads to is used
//! as cp(1) does: a link on the host is followed, a fifo or character device is written, and each
//! is read to its end. No link that stands in the target of a recursive copy is followed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use uext4::{FileKind, Volume};

use crate::copy::host_source::HostSource;
use crate::copy::host_target::HostTarget;
use crate::copy::image_source::ImageSource;
use crate::copy::image_target::ImageTarget;
use crate::copy::tree::{Copier, Settings, Words};
use crate::copy::{Source, Target};
use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, Resolved, resolve, resolve_parent};
use crate::progress::Progress;
use crate::spec::{self, Image, ImagePath, Location};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 cp disk.img:/etc/hostname .", "a file out of an image"),
    ("uext4 cp -r site/ disk.img:/srv/www", "a directory into one"),
    ("uext4 cp a.img:/etc/fstab b.img:/etc", "from one image to another"),
];

/// Copy files between the host and images
///
/// Modes, times, extended attributes, links and holes are kept, and owners; on the host only root
/// can keep owners. There a copy has set-user-id and set-group-id bits only if its owner and group
/// are those that the image names.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Same as -r: everything that can be kept is always kept
    #[arg(short, long)]
    archive: bool,
    /// Keep modes, times and owners (always so; taken for cp's sake)
    #[arg(short)]
    preserve: bool,
    /// Leave existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Name each file
    #[arg(short, long)]
    verbose: bool,
    /// Sources, then the target; a place in an image is IMAGE:/path
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut paths: Vec<Location> = args.paths.iter().map(|name| Location::parse(name)).collect();
    let target = paths.pop().expect("clap asks for two");
    check_forms(&paths, &target)?;
    let mut job = Job {
        settings: Settings {
            recursive: args.recursive || args.archive,
            no_clobber: args.no_clobber,
            verbose: args.verbose,
        },
        progress: Progress::bytes("cp"),
        outcome: Outcome::default(),
    };
    match target {
        Location::Host(path) => job.run_export(&paths, &path)?,
        Location::Image(path) => job.run_import(&paths, &path)?,
    }
    drop(job.progress);
    job.outcome.finish()
}

struct Job {
    settings: Settings,
    progress: Progress,
    outcome: Outcome,
}

/// Without an image at either end, an operand that begins with an image is told how to be right.
fn check_forms(sources: &[Location], target: &Location) -> Result<()> {
    let no_image = sources.iter().chain([target]).all(|name| matches!(name, Location::Host(_)));
    let wrong = |location: &&Location| match location {
        Location::Host(path) => spec::has_relative_part(path),
        Location::Image(_) => false,
    };
    let among = if no_image { Some(target) } else { None };
    match sources.iter().chain(among).find(wrong) {
        Some(location) => Err(Why::new(spec::NOT_IN_IMAGE).at("cp", location)),
        None => Ok(()),
    }
}

/// Where copies go: into a directory under their own names, or under one new name.
enum Goal<N> {
    Into(N),
    As(N, Vec<u8>),
}

impl Job {
    fn run_export(&mut self, sources: &[Location], path: &Path) -> Result<()> {
        let many = sources.len() > 1 || ends_in_slash(path);
        let (target, name) = host_goal(path, many).at("cp", path.display())?;
        // Images stay open while consecutive sources lie in the same one.
        let mut open: Option<(Image, Volume)> = None;
        for source in sources {
            let Location::Image(source) = source else {
                let why = Why::new("neither this nor the target is in an image; use cp");
                self.outcome.note(why.at("cp", source));
                continue;
            };
            if open.as_ref().is_none_or(|(image, _)| *image != source.image) {
                open = None;
                match image::volume("cp", &source.image, Access::Read) {
                    Ok(volume) => open = Some((source.image.clone(), volume)),
                    Err(failure) => {
                        self.outcome.note(failure);
                        continue;
                    }
                }
            }
            let Some((_, volume)) = &open else { continue };
            let goal = match &name {
                None => Goal::Into(target.root()),
                Some(name) => Goal::As(target.root(), name.clone()),
            };
            let from = ImageSource::new(volume, 0);
            match resolve(volume, &source.path, self.last()) {
                Ok(found) => {
                    let node = ImageSource::node(found.inode().clone());
                    let own = OsStr::from_bytes(spec::last_part(&source.path));
                    if [path, &path.join(own)].iter().any(|to| is_same_file(&source.image.path, to))
                    {
                        let why = Why::new("is the image that is read; not replaced");
                        self.outcome.note(why.at("cp", path.display()));
                        continue;
                    }
                    let to = path.as_os_str().as_encoded_bytes();
                    let words = Words { path: &source.path, to };
                    self.copy(&from, node, words, &target, goal);
                }
                Err(why) => self.outcome.note(why.at("cp", source)),
            }
        }
        Ok(())
    }

    fn run_import(&mut self, sources: &[Location], path: &ImagePath) -> Result<()> {
        let volume = image::volume("cp", &path.image, Access::Write)?;
        let copied = self.copy_all(sources, path, &volume);
        // Close even after a failure: what was copied must be on the device.
        image::close("cp", &path.image, volume)?;
        copied
    }

    fn copy_all(&mut self, sources: &[Location], path: &ImagePath, volume: &Volume) -> Result<()> {
        let many = sources.len() > 1 || path.path.last() == Some(&b'/');
        let (place, name) = image_goal(volume, &path.path, many).at("cp", path)?;
        let target = ImageTarget::new(volume, 0);
        let to = path.to_string();
        let to = to.as_bytes();
        for source in sources {
            let dir = ImageTarget::node(place.inode().clone());
            let goal = match &name {
                None => Goal::Into(dir),
                Some(name) => Goal::As(dir, name.clone()),
            };
            let copied = match source {
                Location::Host(from) => self.copy_host(from, to, &target, goal),
                Location::Image(from) if from.image == path.image => {
                    self.copy_within((volume, from, &place), to, &target, goal)
                }
                Location::Image(from) => self.copy_between(from, to, &target, goal),
            };
            if let Err(failure) = copied {
                self.outcome.note(failure);
            }
        }
        Ok(())
    }

    fn copy_host<T: Target>(
        &mut self,
        path: &Path,
        to: &[u8],
        target: &T,
        goal: Goal<T::Node>,
    ) -> Result<()> {
        let node = match self.last() {
            Last::Follow => HostSource.open_contents(path),
            Last::Keep => HostSource.open(path),
        };
        let node = node.at("cp", path.display())?;
        let words = Words { path: path.as_os_str().as_encoded_bytes(), to };
        self.copy(&HostSource, node, words, target, goal);
        Ok(())
    }

    fn copy_within<T: Target>(
        &mut self,
        (volume, path, place): (&Volume, &ImagePath, &Resolved),
        to: &[u8],
        target: &T,
        goal: Goal<T::Node>,
    ) -> Result<()> {
        let found = resolve(volume, &path.path, self.last()).at("cp", path)?;
        let inode = found.inode();
        if inode.kind() == FileKind::Directory && place.goes_through(inode) {
            return Err(Why::new("cannot copy a directory into itself").at("cp", path));
        }
        let node = ImageSource::node(inode.clone());
        let words = Words { path: &path.path, to };
        self.copy(&ImageSource::new(volume, 0), node, words, target, goal);
        Ok(())
    }

    fn copy_between<T: Target>(
        &mut self,
        path: &ImagePath,
        to: &[u8],
        target: &T,
        goal: Goal<T::Node>,
    ) -> Result<()> {
        let volume = image::volume("cp", &path.image, Access::Read)?;
        let found = resolve(&volume, &path.path, self.last()).at("cp", path)?;
        let node = ImageSource::node(found.inode().clone());
        let words = Words { path: &path.path, to };
        self.copy(&ImageSource::new(&volume, 1), node, words, target, goal);
        Ok(())
    }

    fn copy<S: Source, T: Target>(
        &mut self,
        source: &S,
        node: S::Node,
        words: Words<'_>,
        target: &T,
        goal: Goal<T::Node>,
    ) {
        let path = words.path;
        let is_dir = source.meta(&node).kind == FileKind::Directory;
        let own_name = spec::last_part(path);
        let nameless = matches!(own_name, b"" | b"." | b"..");
        let recursive = self.settings.recursive;
        let mut copier =
            Copier::new(source, target, self.settings, &mut self.progress, &mut self.outcome);
        match goal {
            Goal::As(dir, name) => copier.copy(node, words, (&dir, &name), true),
            // `cp -r DIR/. TARGET` copies what is in DIR.
            Goal::Into(dir) if nameless && is_dir && recursive => {
                copier.copy_contents(node, words, dir);
            }
            Goal::Into(_) if nameless => {
                let why = Why::new("-r not specified; omitting directory");
                self.outcome.note(why.at("cp", spec::show(path)));
            }
            // A recursive copy may have made a link there itself, from what an image holds.
            Goal::Into(dir) => {
                let words = Words { to: &spec::join(words.to, own_name), ..words };
                copier.copy(node, words, (&dir, own_name), !recursive);
            }
        }
    }

    /// As cp(1): links on the command line are followed, but not by a recursive copy.
    fn last(&self) -> Last {
        if self.settings.recursive { Last::Keep } else { Last::Follow }
    }
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last() == Some(&b'/')
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    id(one).is_some_and(|found| id(other) == Some(found))
}

/// The target directory, and the new name when the path is not a directory itself.
fn host_goal(
    path: &Path,
    must_be_dir: bool,
) -> std::result::Result<(HostTarget, Option<Vec<u8>>), Why> {
    if path.is_dir() {
        return Ok((HostTarget::open(path)?, None));
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if !must_be_dir => {
            let parent = if parent.as_os_str().is_empty() {
                PathBuf::from(".")
            } else {
                parent.to_path_buf()
            };
            Ok((HostTarget::open(&parent)?, Some(name.as_encoded_bytes().to_vec())))
        }
        _ => Err(Why::new("Not a directory")),
    }
}

/// The directory and the name of a destination in an image.
fn image_goal(
    volume: &Volume,
    path: &[u8],
    must_be_dir: bool,
) -> std::result::Result<(Resolved, Option<Vec<u8>>), Why> {
    match resolve(volume, path, Last::Follow) {
        Ok(found) if found.inode().kind() == FileKind::Directory => Ok((found, None)),
        Ok(_) | Err(_) if !must_be_dir => {
            let (parent, name) = resolve_parent(volume, path)?;
            Ok((parent, Some(name)))
        }
        Ok(_) => Err(Why::new("Not a directory")),
        Err(why) => Err(why),
    }
}
