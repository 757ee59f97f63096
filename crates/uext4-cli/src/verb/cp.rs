//! `uext4 cp`: files and trees into an image, out of one, and within or between images.
//!
//! Always as `cp -a` keeps things: modes, times, attributes, links, holes; the owner too, but on
//! the host only for root. Set-id bits stay on the host where owner and group are the image's, as
//! with cp(1): for anybody else they would be another right.
//!
//! An existing file is replaced by a new one. What else a name on the command line leads to is used
//! as cp(1) does: a link on the host is followed, a fifo or character device is written, and each
//! is read to its end. No link that stands in the target of a recursive copy is followed.

mod goal;
mod stream;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uext4::{FileKind, Resolved, Volume};

use crate::copy::guarded::Guarded;
use crate::copy::host_source::HostSource;
use crate::copy::host_target::HostTarget;
use crate::copy::image_source::ImageSource;
use crate::copy::image_target::ImageTarget;
use crate::copy::tree::{Copier, Links, Reports, Settings, Words};
use crate::copy::{Id, Source, Target, There};
use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::operands;
use crate::progress::Progress;
use crate::spec::{self, Image, ImagePath, Location};

use goal::{Form, Goal, Name, ends_in_slash};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 cp disk.img:/etc/hostname .", "a file out of an image"),
    ("uext4 cp -r site/ disk.img:/srv/www", "a directory into one"),
    ("uext4 cp a.img:/etc/fstab b.img:/etc", "from one image to another"),
    ("echo host1 | uext4 cp - disk.img:/etc/hostname", "what a command writes"),
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
    /// Same as -r: all that can be kept is always kept
    #[arg(short, long)]
    archive: bool,
    /// Keep modes, times and owners (always so; taken for cp's sake)
    #[arg(short)]
    preserve: bool,
    /// Leave existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Leave existing files that are not older
    #[arg(short, long)]
    update: bool,
    /// Replace what cannot be written (always so; taken for cp's sake)
    #[arg(short, long)]
    force: bool,
    /// Copy symbolic links of the command line themselves, as -r does
    #[arg(short = 'P', long, visible_short_alias = 'd')]
    no_dereference: bool,
    /// The last operand is the new name, never a directory for it
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Copy into this directory
    #[arg(short, long, value_name = "DIR")]
    target_directory: Option<OsString>,
    /// Name each file
    #[arg(short, long)]
    verbose: bool,
    /// Sources, then the target; a place in an image is IMAGE:/path, and - is standard input or
    /// output
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (names, target) =
        operands::split_target("cp", &args.paths, args.target_directory.as_ref())?;
    let is_stream = |name: &OsString| name == "-";
    if is_stream(target) || names.iter().any(is_stream) {
        return stream::run(args.no_clobber, names, target);
    }
    let paths = names.iter().map(|name| Location::parse(name)).collect();
    let mut outcome = Outcome::default();
    let paths = glob::locations("cp", paths, &mut outcome)?;
    let target = Location::parse(target);
    check_forms(&paths, &target)?;
    let end = match &target {
        Location::Host(path) => path.as_os_str().as_bytes(),
        Location::Image(path) => &path.path,
    };
    let form = match args.no_target_directory {
        true if paths.len() > 1 => {
            return Err(Why::new("extra operand before it").at("cp", &target));
        }
        true => Form::Name,
        false if paths.len() > 1 || args.target_directory.is_some() || ends_in_slash(end) => {
            Form::Directory
        }
        false => Form::Either,
    };
    let mut job = Job {
        form,
        no_dereference: args.no_dereference,
        settings: Settings {
            verb: "cp",
            recursive: args.recursive || args.archive,
            no_clobber: args.no_clobber,
            update: args.update,
            verbose: args.verbose,
        },
        progress: Progress::bytes("cp"),
        outcome,
        images: goal::images(paths.iter().chain([&target])),
        made: HashSet::new(),
        is_full: false,
    };
    match target {
        Location::Host(path) => job.run_export(&paths, &path)?,
        Location::Image(path) => job.run_import(&paths, &path)?,
    }
    drop(job.progress);
    job.outcome.finish()
}

struct Job {
    form: Form,
    no_dereference: bool,
    settings: Settings,
    progress: Progress,
    outcome: Outcome,
    /// The images of all operands, as files of the host.
    images: Guarded,
    /// What operands made in the target directory.
    made: HashSet<Id>,
    /// Nothing more can be written.
    is_full: bool,
}

/// The image of the last source. It stays open while consecutive sources lie in the same one.
#[derive(Default)]
struct SourceImage {
    open: Option<(Image, Volume)>,
    /// Tells the files of images apart that were open one after the other.
    number: usize,
}

impl SourceImage {
    fn open(&mut self, image: &Image) -> Result<(&Volume, usize)> {
        if self.open.as_ref().is_none_or(|(open, _)| open != image) {
            self.open = None;
            self.open = Some((image.clone(), image::volume("cp", image, Access::Read)?));
            self.number += 1;
        }
        let (_, volume) = self.open.as_ref().expect("just opened");
        Ok((volume, self.number))
    }
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

/// Where sources go in an image.
struct Import<'i> {
    volume: &'i Volume,
    place: &'i Resolved,
    name: &'i Name,
    to: &'i str,
}

impl Job {
    fn run_export(&mut self, sources: &[Location], path: &Path) -> Result<()> {
        let (target, name) = goal::of_host(path, self.form).at("cp", path.display())?;
        let (mut images, mut links) = (SourceImage::default(), HashMap::new());
        for source in sources {
            if self.is_full {
                break;
            }
            if let Err(failure) =
                self.export(source, path, (&target, &name), &mut images, &mut links)
            {
                self.outcome.note(failure);
            }
        }
        Ok(())
    }

    fn export(
        &mut self,
        source: &Location,
        path: &Path,
        (target, name): (&HostTarget, &Name),
        images: &mut SourceImage,
        links: &mut Links<HostTarget>,
    ) -> Result<()> {
        let Location::Image(source) = source else {
            let why = Why::new("neither this nor the target is in an image; use cp");
            return Err(why.at("cp", source));
        };
        let (volume, number) = images.open(&source.image)?;
        let found = resolve(volume, &source.path, self.last()).at("cp", source)?;
        let own = OsStr::from_bytes(spec::last_part(&source.path));
        // Also behind a link, which the copy would follow.
        if [path, &path.join(own)].iter().any(|to| goal::is_any(to, &self.images)) {
            let why = Why::new("is an image of this command; not replaced");
            return Err(why.at("cp", path.display()));
        }
        let node = ImageSource::node(found.inode().clone());
        let words = Words { path: &source.path, to: path.as_os_str().as_encoded_bytes() };
        let goal = self.form.goal(target.root(), name);
        self.copy((&ImageSource::new(volume, number), node), words, (target, goal), links);
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
        let (place, name) = goal::of_image(volume, &path.path, self.form).at("cp", path)?;
        let (mut images, mut links) = (SourceImage::default(), HashMap::new());
        for source in sources {
            if self.is_full {
                break;
            }
            let into = Import { volume, place: &place, name: &name, to: &path.to_string() };
            let is_within = matches!(source, Location::Image(from) if from.image == path.image);
            if let Err(failure) = self.import(source, is_within, &into, &mut images, &mut links) {
                self.outcome.note(failure);
            }
        }
        Ok(())
    }

    fn import(
        &mut self,
        source: &Location,
        is_within: bool,
        into: &Import<'_>,
        images: &mut SourceImage,
        links: &mut Links<ImageTarget<'_>>,
    ) -> Result<()> {
        let target = ImageTarget::new(into.volume, 0);
        let goal = self.form.goal(ImageTarget::node(into.place.inode().clone()), into.name);
        let to = into.to.as_bytes();
        let path = match source {
            Location::Host(path) => {
                let is_directory = ends_in_slash(path.as_os_str().as_bytes());
                let node = match self.last() {
                    Last::Keep if !is_directory => HostSource.open(path),
                    Last::Keep | Last::Follow => HostSource.open_contents(path),
                };
                let node = node.at("cp", path.display())?;
                if HostSource::is_stream(&node) && goal::is_any(path, &self.images) {
                    let why = Why::new("is an image of this command; not copied");
                    return Err(why.at("cp", path.display()));
                }
                let words = Words { path: path.as_os_str().as_encoded_bytes(), to };
                self.copy((&HostSource, node), words, (&target, goal), links);
                return Ok(());
            }
            Location::Image(path) => path,
        };
        let (volume, number) = match is_within {
            true => (into.volume, 0),
            false => images.open(&path.image)?,
        };
        let found = resolve(volume, &path.path, self.last()).at("cp", path)?;
        let inode = found.inode();
        if is_within && inode.kind() == FileKind::Directory && into.place.goes_through(inode) {
            return Err(Why::new("cannot copy a directory into itself").at("cp", path));
        }
        let node = ImageSource::node(inode.clone());
        let words = Words { path: &path.path, to };
        self.copy((&ImageSource::new(volume, number), node), words, (&target, goal), links);
        Ok(())
    }

    fn copy<S: Source, T: Target>(
        &mut self,
        (source, node): (&S, S::Node),
        words: Words<'_>,
        (target, goal): (&T, Goal<T::Node>),
        links: &mut Links<T>,
    ) {
        let path = words.path;
        let meta = source.meta(&node);
        let is_dir = meta.kind == FileKind::Directory;
        let own_name = spec::last_part(path);
        let nameless = matches!(own_name, b"" | b"." | b"..");
        let recursive = self.settings.recursive;
        let (is_meant, settings) = (self.last() == Last::Follow, self.settings);
        let Self { progress, outcome, images, made, is_full, .. } = self;
        let reports = Reports { progress, outcome, images: images.files() };
        let mut copier = Copier::new(source, target, settings, links, reports);
        match goal {
            Goal::As(dir, name) => copier.copy(node, words, (&dir, &name), true),
            // `cp -r DIR/. TARGET` copies what is in DIR.
            Goal::Into(dir) if nameless && is_dir && recursive => {
                copier.copy_contents(node, words, dir);
            }
            Goal::Onto(dir) if is_dir && recursive => copier.copy_contents(node, words, dir),
            Goal::Onto(_) if !is_dir => {
                let why = Why::new("cannot overwrite a directory with a non-directory");
                return self.outcome.note(why.at("cp", spec::show(words.to)));
            }
            Goal::Onto(_) | Goal::Into(_) if nameless || is_dir && !recursive => {
                let why = Why::new("-r not specified; omitting directory");
                return self.outcome.note(why.at("cp", spec::show(path)));
            }
            Goal::Into(dir) | Goal::Onto(dir) => {
                let to = spec::join(words.to, own_name);
                let there = || target.there(&dir, own_name).ok().flatten();
                let is_lost =
                    |there: &There| made.contains(&there.id) && !settings.keeps(*there, &meta);
                if !is_dir && there().is_some_and(|there| is_lost(&there)) {
                    let why = Why::new(operands::JUST_MADE).of(spec::show(&to));
                    return self.outcome.note(why.at("cp", spec::show(path)));
                }
                // Where links are copied, one may have been made there by this command.
                copier.copy(node, Words { to: &to, ..words }, (&dir, own_name), is_meant);
                made.extend(there().map(|there| there.id));
            }
        }
        *is_full |= copier.is_full();
    }

    /// As cp(1): links on the command line are followed, but not by a recursive copy.
    fn last(&self) -> Last {
        if self.settings.recursive || self.no_dereference { Last::Keep } else { Last::Follow }
    }
}
