//! `uext4 export`: a directory of an image as a tar archive, or into a directory of the host.
//!
//! An archive is written by `archive::export`, a directory is copied by the code of `cp`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use uext4::{FileKind, Ino, InodeRef, Volume};
use uext4_archive::Format;

use crate::archive::export::target::{self, Target};
use crate::archive::export::{self, Out};
use crate::archive::mapped::Mapped;
use crate::archive::ownership::{OwnerRule, Ownership, RULE_HELP};
use crate::copy::Meta;
use crate::copy::guarded::Guarded;
use crate::copy::host_target::HostTarget;
use crate::copy::image_source::ImageSource;
use crate::copy::leaf::{Crew, Filler};
use crate::copy::tree::{Copier, Links, Reports, Settings, Words};
use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, names, resolve};
use crate::operands::Try;
use crate::output;
use crate::progress::Progress;
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 export disk.img rootfs.tar.zst", "the whole image as an archive"),
    ("uext4 export disk.img:/etc - | tar -tv", "a directory, into a pipe"),
    ("uext4 export --map-owner 100000:0:65536 disk.img out/", "into a directory, other owners"),
];

/// The verb, for messages.
const VERB: &str = "export";
/// Where a file system keeps what a check finds.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Write a directory of an image as a tar archive, or into a directory of the host
///
/// Owners, modes, times, extended attributes, access lists, hard links, holes and device nodes are
/// kept; in a directory of the host only root can keep owners. An empty lost+found is left out.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    #[arg(long, value_name = "FROM:TO", help = RULE_HELP)]
    map_owner: Vec<OwnerRule>,
    /// No names of owners, of the image's /etc/passwd and /etc/group, in the archive
    #[arg(long, visible_alias = "numeric-owner")]
    numeric: bool,
    /// Write an archive, compressed so (default: as the name says, .tar .tar.gz .tar.zst .tar.xz)
    #[arg(long, value_name = "FORMAT")]
    compress: Option<Compression>,
    /// Keep access times in the archive
    #[arg(long)]
    access_times: bool,
    /// Make device nodes in a directory of the host (refused otherwise)
    #[arg(long)]
    devices: bool,
    /// Name each file
    #[arg(short, long)]
    verbose: bool,
    /// A directory of an image; IMAGE alone is its root
    #[arg(value_name = "IMAGE:/DIR")]
    source: OsString,
    /// An archive by its name, - for one on standard output, or a directory, which is made if it is
    /// not there
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl From<Compression> for Format {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::Plain,
            Compression::Gzip => Self::Gzip,
            Compression::Zstd => Self::Zstd,
            Compression::Xz => Self::Xz,
        }
    }
}

/// Where it goes.
enum Goal {
    Stdout(Format),
    File(Format),
    Directory,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let path = spec::image_or_inside(&args.source);
    let goal = Goal::of(args).at(VERB, args.target.display())?;
    let volume = image::volume(VERB, &path.image, Access::Read)?;
    let found = resolve(&volume, &path.path, Last::Follow).at(VERB, &path)?;
    if found.inode().kind() != FileKind::Directory {
        return Err(Why::new("Not a directory; cp copies files").at(VERB, &path));
    }
    let ownership = Ownership::of_image(&volume, args.numeric, &args.map_owner);
    let ownership = ownership.at(VERB, &path.image)?;
    let left_out = empty_lost_and_found(&volume, found.inode());
    let guarded = Guarded::of([&*path.image.path]);
    let (volume, ownership) = (&volume, &ownership);
    let job = Job { args, path: &path, volume, ownership, left_out, guarded };
    match goal {
        Goal::Directory => job.to_directory(found.inode()),
        Goal::File(format) => job.to_file(found.inode(), format),
        Goal::Stdout(format) => job.to_stdout(found.inode(), format),
    }
}

impl Goal {
    fn of(args: &Args) -> Try<Self> {
        let (target, given) = (Path::new(&args.target), args.compress.map(Format::from));
        if args.target == "-" {
            return Ok(Self::Stdout(given.unwrap_or(Format::Plain)));
        }
        if let Some(format) = given {
            return Ok(Self::File(format));
        }
        let there = target.metadata().ok();
        if there.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Ok(Self::Directory);
        }
        if let Some(format) = Format::of_name(target) {
            return Ok(Self::File(format));
        }
        let name = target.file_name().map_or(&b""[..], OsStr::as_bytes);
        if name.windows(5).any(|part| part == b".tar.") {
            let why = "is of no compression that is known; .tar.gz, .tar.zst, .tar.xz, or a pipe";
            return Err(Why::new(why));
        }
        match there.map(|there| there.file_type()) {
            None => Ok(Self::Directory),
            Some(kind) if kind.is_fifo() || kind.is_char_device() => Ok(Self::File(Format::Plain)),
            Some(_) => {
                let why = "is there and no directory; an archive ends in .tar, or has --compress";
                Err(Why::new(why))
            }
        }
    }
}

/// The directory of the file system's own that has nothing to keep.
fn empty_lost_and_found(volume: &Volume, dir: &InodeRef) -> Option<Ino> {
    if dir.ino() != Ino::ROOT {
        return None;
    }
    // What cannot be read is told on the way.
    let Ok(found) = volume.lookup(dir, LOST_AND_FOUND) else { return None };
    let is_empty = found.kind() == FileKind::Directory
        && names(volume, &found).is_ok_and(|names| names.is_empty());
    is_empty.then(|| found.ino())
}

struct Job<'a> {
    args: &'a Args,
    path: &'a ImagePath,
    volume: &'a Volume,
    ownership: &'a Ownership,
    left_out: Option<Ino>,
    /// What is not replaced.
    guarded: Guarded,
}

impl Job<'_> {
    fn to_directory(&self, dir: &InodeRef) -> Result<()> {
        let to = PathBuf::from(&self.args.target);
        let target = Self::open_directory(&to).at(VERB, to.display())?;
        // The first device, and how many there are.
        let refused = Mutex::new((None, 0_u64));
        let leave_out = |meta: &Meta, path: &[u8]| {
            if self.left_out.is_some_and(|ino| u64::from(ino.get()) == meta.id.1) {
                return Ok(true);
            }
            let is_device = matches!(meta.kind, FileKind::CharDevice | FileKind::BlockDevice);
            if self.args.devices || !is_device {
                return Ok(false);
            }
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.0.get_or_insert_with(|| spec::show(path));
            refused.1 += 1;
            Ok(true)
        };
        let image = ImageSource::new(self.volume, 0);
        let source = Mapped::new(&image, self.ownership, &leave_out);
        let (mut progress, mut outcome) = (Progress::bytes(VERB), Outcome::default());
        let images = self.guarded.files();
        let reports = Reports { progress: &mut progress, outcome: &mut outcome, images };
        let mut links = Links::<HostTarget>::new();
        let settings = Settings {
            verb: VERB,
            recursive: true,
            verbose: self.args.verbose,
            ..Settings::default()
        };
        let crew = Crew::new();
        std::thread::scope(|scope| {
            let mut copier = Copier::new(&source, &target, settings, &mut links, reports);
            // The threads end with the crew, also when this one panics.
            let _closing = crew.closing();
            let work = || crew.work(Filler::new(&source, &target));
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = (0..count).filter(|_| count > 1);
            let start = || std::thread::Builder::new().name("uext4-export".to_owned());
            if threads.filter(|_| start().spawn_scoped(scope, work).is_ok()).count() > 0 {
                copier = copier.with_crew(&crew);
            }
            let words = Words { path: &self.path.path, to: self.args.target.as_encoded_bytes() };
            copier.copy_contents(ImageSource::node(dir.clone()), words, target.root());
            copier.settle();
        });
        let (first, refused) = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = first {
            let all = match refused {
                1 => "is a device; left out".to_owned(),
                all => format!("is a device, the first of {all}; left out"),
            };
            outcome.note(Why::new(format!("{all} without --devices")).at(VERB, first));
        }
        drop(progress);
        target.hear_late_errors().at(VERB, to.display())?;
        outcome.finish()
    }

    fn open_directory(path: &Path) -> Try<HostTarget> {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        HostTarget::open(path)
    }

    fn to_file(&self, dir: &InodeRef, format: Format) -> Result<()> {
        let path = Path::new(&self.args.target);
        let target = Target::create(path, |found| self.check_is_replaceable(found));
        let target = target.at(VERB, path.display())?;
        let outcome = self.pack(dir, Out { stream: target.file(), format })?;
        let outcome = outcome.at(VERB, path.display())?;
        target.finish().at(VERB, path.display())?;
        outcome.finish()
    }

    fn to_stdout(&self, dir: &InodeRef, format: Format) -> Result<()> {
        if io::stdout().is_terminal() {
            return Err(Why::new("will not write an archive to a terminal").at(VERB, "-"));
        }
        // Past the buffer of lines.
        let stream = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).at(VERB, "-")?;
        let stream = File::from(stream);
        let found = stream.metadata().at(VERB, "-")?;
        self.check_is_replaceable(&found).at(VERB, "-")?;
        let outcome = self.pack(dir, Out { stream: &stream, format })?;
        let outcome = outcome.map_err(output::failed)?;
        target::settle(&stream).map_err(output::failed)?;
        outcome.finish()
    }

    fn check_is_replaceable(&self, found: &Metadata) -> Try<()> {
        if self.guarded.has(found) {
            return Err(Why::new("is an image of this command; not replaced"));
        }
        Ok(())
    }

    /// Writes the archive. An error of the inner kind is one of the stream.
    fn pack<W: Write + Send>(&self, dir: &InodeRef, out: Out<W>) -> Result<io::Result<Outcome>> {
        let settings = export::Settings {
            ownership: self.ownership,
            access_times: self.args.access_times,
            left_out: self.left_out,
            is_verbose: self.args.verbose,
        };
        let (mut progress, mut outcome) = (Progress::bytes(VERB), Outcome::default());
        let reports = (&mut progress, &mut outcome);
        let packed = export::pack(self.volume, (dir, self.path), out, &settings, reports);
        drop(progress);
        Ok(packed.at(VERB, self.path)?.map(|()| outcome))
    }
}
