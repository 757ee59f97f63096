//! `uext4 import`: what is in a directory or a tar archive goes into a directory of an image.
//!
//! The order of the operands is that of `cp`: from, to. A directory is copied by the code of `cp`,
//! an archive is unpacked by `archive::import`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use uext4::{Device, FileKind, InodeRef, NewInode, Owner, Volume};
use uext4_archive::Reader;

use crate::archive::import::{self, Place};
use crate::archive::mapped::Mapped;
use crate::archive::ownership::{OwnerRule, Ownership, RULE_HELP};
use crate::copy::Meta;
use crate::copy::guarded::Guarded;
use crate::copy::host_source::HostSource;
use crate::copy::image_target::ImageTarget;
use crate::copy::tree::{Copier, Links, Reports, Settings, Words};
use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve, resolve_parent};
use crate::operands::Try;
use crate::output::Told;
use crate::progress::Progress;
use crate::spec::{self, ImagePath};
use crate::verbosity::remark;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 import rootfs.tar.zst disk.img:/", "unpack an archive, owners and all"),
    ("docker export box | uext4 import - disk.img:/", "from a pipe"),
    ("uext4 import --map-owner '*:0' build/ disk.img:/opt", "a directory, as root's"),
];

/// The verb, for messages.
const VERB: &str = "import";
/// Threads that make small files, at most.
const THREADS_MAX: usize = 8;

/// Unpack a tar archive into an image, or copy what is in a directory
///
/// Owners, modes, times, extended attributes, access lists, hard links, holes and device nodes are
/// kept, for ordinary users too: owners are in the image alone. Archives may be compressed by
/// gzip, zstd or xz.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    #[arg(long, value_name = "FROM:TO", help = RULE_HELP)]
    map_owner: Vec<OwnerRule>,
    /// Owners by their numbers, not by the names of the image's /etc/passwd and /etc/group
    #[arg(long, visible_alias = "numeric-owner")]
    numeric: bool,
    /// Take entries with absolute names, below the target (refused otherwise)
    #[arg(long)]
    absolute_names: bool,
    /// Follow symbolic links of the image on the way to where an entry goes (refused otherwise)
    #[arg(long, visible_alias = "keep-directory-symlink")]
    follow_links: bool,
    /// Threads that make files (default: one a processor, at most 8); with 1 two images of one
    /// archive have their files at the same places
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Name each file
    #[arg(short, long)]
    verbose: bool,
    /// A directory, or a tar archive; - is standard input
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// A directory of an image, which is made if it is not there; IMAGE alone is its root
    #[arg(value_name = "IMAGE:/DIR")]
    target: OsString,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let path = spec::image_or_inside(&args.target);
    // Before the image is opened: a command that waits for its input locks nothing.
    let source = Source::open(args).at(VERB, args.source.display())?;
    let volume = image::volume(VERB, &path.image, Access::Write)?;
    let mut outcome = Outcome::default();
    let done = into(args, source, &path, &volume, &mut outcome);
    // Close even after a failure: what was imported must be on the device.
    image::close(VERB, &path.image, volume)?;
    done?;
    outcome.finish()
}

/// What is imported.
enum Source {
    Directory,
    Archive(Box<Reader>),
}

impl Source {
    fn open(args: &Args) -> Try<Self> {
        let path = Path::new(&args.source);
        let stream: Box<dyn Read + Send> = if args.source == "-" {
            Box::new(std::io::stdin())
        } else if path.is_dir() {
            return Ok(Self::Directory);
        } else {
            Box::new(File::open(path)?)
        };
        Ok(Self::Archive(Box::new(Reader::new(stream)?)))
    }
}

fn into(
    args: &Args,
    source: Source,
    path: &ImagePath,
    volume: &Volume,
    outcome: &mut Outcome,
) -> Result<()> {
    let dir = directory(volume, path).at(VERB, path)?;
    let ownership = Ownership::of_image(volume, args.numeric, &args.map_owner);
    let ownership = ownership.at(VERB, &path.image)?;
    let mut progress = Progress::bytes(VERB);
    let reader = match source {
        Source::Archive(reader) => reader,
        Source::Directory => {
            let copy = Copy { args, path, volume, ownership: &ownership };
            return copy.run(dir, (&mut progress, outcome)).at(VERB, args.source.display());
        }
    };
    let settings = import::Settings {
        ownership: &ownership,
        absolute_names: args.absolute_names,
        follow_links: args.follow_links,
        told: Told::new(args.verbose),
        threads: args.threads.map_or_else(threads, usize::from),
    };
    let place = Place { volume, dir: &dir, path };
    import::unpack(place, *reader, &settings, (&mut progress, outcome))
        .at(VERB, args.source.display())
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

/// The target, which is made if nothing is there.
fn directory(volume: &Volume, path: &ImagePath) -> Try<InodeRef> {
    match resolve(volume, &path.path, Last::Follow) {
        Ok(found) if found.inode().kind() == FileKind::Directory => Ok(found.inode().clone()),
        Ok(_) => Err(Why::new("Not a directory")),
        Err(why) if why.is_not_found() => {
            let (parent, name) = resolve_parent(volume, &path.path)?;
            let new = NewInode {
                kind: FileKind::Directory,
                mode: 0o755,
                owner: Owner::default(),
                rdev: Device::default(),
            };
            Ok(volume.create(parent.inode(), &name, &new)?)
        }
        Err(why) => Err(why),
    }
}

/// A copy of a directory of the host.
struct Copy<'a> {
    args: &'a Args,
    path: &'a ImagePath,
    volume: &'a Volume,
    ownership: &'a Ownership,
}

impl Copy<'_> {
    fn run(&self, dir: InodeRef, (progress, outcome): (&mut Progress, &mut Outcome)) -> Try<()> {
        let node = HostSource.open_contents(Path::new(&self.args.source))?;
        let guarded = Guarded::of([&*self.path.image.path]);
        let leave_out = |meta: &Meta, path: &[u8]| {
            let is_image = guarded.files().contains(&meta.id);
            if is_image {
                let path = spec::show(path);
                remark(&format!("{VERB}: {path}: is an image of this command; left out"));
            }
            Ok(is_image)
        };
        let source = Mapped::new(&HostSource, self.ownership, &leave_out);
        let target = ImageTarget::new(self.volume, 0);
        let settings = Settings {
            verb: VERB,
            recursive: true,
            verbose: self.args.verbose,
            ..Settings::default()
        };
        let mut links = Links::<ImageTarget<'_>>::new();
        let reports = Reports { progress, outcome, images: &[] };
        let mut copier = Copier::new(&source, &target, settings, &mut links, reports);
        let to = self.path.to_string();
        let words = Words { path: self.args.source.as_encoded_bytes(), to: to.as_bytes() };
        copier.copy_contents(node, words, ImageTarget::node(dir));
        Ok(())
    }
}
