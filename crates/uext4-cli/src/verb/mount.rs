//! `uext4 mount`: a volume on a directory, served by a daemon or in the foreground.
//!
//! Daemon: the command starts itself again with a hidden flag. That child leads a session of its
//! own, opens the image, mounts, writes one byte to its standard output (a pipe to the parent),
//! and only then lets go of the terminal. The parent returns on that byte, or with the child's exit
//! status after the child has printed why it failed. What the child needs beside the mount it has
//! before that byte, and before the mount. No fork without exec, so no unsafe code.
//!
//! Signals: the first SIGINT, SIGTERM or SIGHUP unmounts (lazily where programs still use the
//! mount: the daemon then serves them to the end); a second one cuts the connection. Either way
//! the volume is closed cleanly before the process ends.
//!
//! mount(8): `mount -t fuse.uext4 IMAGE DIR` and lines of fstab(5) come as `mount.fuse.uext4` (see
//! [`crate::helper`]) or, by way of mount.fuse(8), as `uext4 IMAGE DIR -o OPTIONS`; a remount too.

mod serve;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use uext4::MountOptions;
use uext4_device::FileOptions;
use uext4_fuse::attach;
use uext4_fuse::mountinfo::{self, MountPoint};
use uext4_fuse::{FuseOptions, READ_ONLY_XATTR, Word};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, Why};
use crate::given;
use crate::image::Access;
use crate::journal;
use crate::keys;
use crate::mount_options;
use crate::mounted;
use crate::spec::Image;
use crate::verbosity::{self, remark};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 mount disk.img /mnt", "mount an image; umount(8) and uext4 umount end it"),
    ("uext4 mount -o ro,noload disk.img /mnt", "read-only, without a replay of its journal"),
    ("uext4 mount -f disk.img@p1 /mnt", "a partition, served in the foreground"),
    ("uext4 mount --overlay new.ovl disk.img /mnt", "write to new.ovl and leave the image alone"),
];

/// Mount an image on a directory
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
#[command(after_long_help = examples::help_after(&mount_options::help(), EXAMPLES))]
pub(crate) struct Args {
    /// Mount options, separated by commas (--help lists them)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Mount read-only
    #[arg(short, long)]
    read_only: bool,
    /// Write to this file and leave the image as it is; the file is made if it is not there
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// The daemon itself
    #[arg(long, hide = true)]
    detached: bool,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
    /// Directory to mount on
    dir: PathBuf,
}

/// The options of a mount, by whose they are.
struct Options {
    engine: MountOptions,
    fuse: FuseOptions,
    device: FileOptions,
}

/// What the daemon writes when the mount answers.
const READY: &[u8] = b"R";

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<()> {
    let options = parse_options(&args)?;
    if options.fuse.remount {
        let ignored = ignored_by_a_remount(&args)?.join(",");
        remount(&args, &options.fuse).at("mount", args.dir.display())?;
        if !ignored.is_empty() {
            let dir = args.dir.display();
            remark(&format!("mount: {dir}: a remount cannot change {ignored}, ignored"));
        }
        return Ok(());
    }
    if given::number(&args.dir).is_none() {
        let free = check_place(&args.dir).and_then(|()| check_free(&args.dir));
        free.at("mount", args.dir.display())?;
    }
    if args.foreground || args.detached {
        serve::serve(&args, options)
    } else {
        start_daemon(&args)
    }
}

impl Args {
    /// What a helper of mount(8) is asked for.
    pub(crate) fn new(options: Vec<String>, image: OsString, dir: PathBuf) -> Self {
        let overlay = None;
        Self { options, read_only: false, overlay, foreground: false, detached: false, image, dir }
    }

    /// What the mount is named by: the image, or the file of its overlay.
    fn source(&self) -> &OsStr {
        self.overlay.as_ref().map_or(&self.image, |file| file.as_os_str())
    }
}

/// Refuses what [`run`] would refuse for its options.
pub(crate) fn check(args: &Args) -> Result<()> {
    parse_options(args).map(drop)
}

/// Whether the image is mounted on the directory already, and nothing is to be changed there.
pub(crate) fn is_done(args: &Args) -> bool {
    if words(args).any(|word| word == "remount") {
        return false;
    }
    let mount = args.dir.canonicalize().and_then(|dir| mountinfo::find(&dir)).ok().flatten();
    let named = |mount: MountPoint| !is_another(args.source(), &mount.source);
    // A source that is no image (`fsname=`) cannot be told from another.
    mount
        .filter(MountPoint::is_ours)
        // One whose daemon is gone is still in the table.
        .filter(|_| check_place(&args.dir).is_ok())
        .filter(|mount| Image::parse(&mount.source).absolute().is_ok())
        .is_some_and(named)
}

/// The options without words that are in no table.
pub(crate) fn without_unknown(lists: &[String]) -> Vec<String> {
    let words = lists.iter().flat_map(|list| list.split(','));
    words.filter(|word| mount_options::is_known(word)).map(str::to_owned).collect()
}

impl Options {
    fn new() -> Self {
        let device = FileOptions::auto(Access::Write.into());
        Self { engine: MountOptions::default(), fuse: FuseOptions::default(), device }
    }

    /// Takes one word of `-o`.
    fn parse(&mut self, word: &str) -> std::result::Result<(), String> {
        if word == "loop" || word.starts_with("loop=") {
            let why = "no loop device is needed: an image file is mounted as it is";
            return Err(format!("mount option '{word}': {why}"));
        }
        if !mount_options::is_known(word) {
            return Err(mount_options::unknown(word));
        }
        if !self.device.parse(word)? && self.fuse.parse(word)? != Word::Taken {
            self.engine.parse(word).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether a remount cannot do what these ask for.
    fn exceeds_remount(&self) -> bool {
        // The access times of the engine are of the mount table, which mount(8) repeats.
        let MountOptions { read_only, atime, .. } = self.engine;
        let flags = MountOptions { read_only, atime, ..MountOptions::default() };
        self.fuse.exceeds_remount() || self.engine != flags || self.device != Self::new().device
    }
}

fn words(args: &Args) -> impl Iterator<Item = &str> {
    let ro = args.read_only.then_some("ro");
    let words = args.options.iter().flat_map(|list| list.split(',')).chain(ro);
    words.filter(|word| !word.is_empty())
}

fn wrong(why: String) -> Failure {
    Failure::line(&format!("mount: {why}"))
}

fn parse_options(args: &Args) -> Result<Options> {
    let mut options = Options::new();
    words(args).try_for_each(|word| options.parse(word)).map_err(wrong)?;
    options.fuse.check(rustix::process::geteuid().is_root()).map_err(wrong)?;
    options.engine.check().map_err(wrong)?;
    Ok(options)
}

/// The words that a remount cannot heed, and does not find in effect by default.
fn ignored_by_a_remount(args: &Args) -> Result<Vec<&str>> {
    let mut ignored = Vec::new();
    for word in words(args) {
        let mut alone = Options::new();
        alone.parse(word).map_err(wrong)?;
        if alone.exceeds_remount() {
            ignored.push(word);
        }
    }
    Ok(ignored)
}

/// Whether the words behind the program's name are those that mount.fuse(8) gives: an image, which
/// has a slash and so is no verb, and a directory.
pub(crate) fn is_helper_call(words: &[OsString]) -> bool {
    words.len() >= 2
        && words[0].as_bytes().contains(&b'/')
        && !words[0].as_bytes().starts_with(b"-")
}

/// Tells what ends a mount whose daemon is gone; no mount over it would be reached.
fn check_place(dir: &Path) -> std::result::Result<(), Why> {
    // stat(2) alone may be answered by attributes that the kernel has kept.
    let asked = dir.metadata().and_then(|_| uext4_fuse::ask(dir, READ_ONLY_XATTR));
    match asked {
        Err(error) if mounted::is_dead(&error) => Err(mounted::why(error, dir)),
        _ => Ok(()),
    }
}

/// Refuses a directory with a mount of ours, which would be out of reach under another one.
fn check_free(dir: &Path) -> std::result::Result<(), Why> {
    let mount = dir.canonicalize().and_then(|dir| mountinfo::find(&dir));
    match mount.ok().flatten().filter(MountPoint::is_ours) {
        None => Ok(()),
        Some(mount) => {
            let (source, dir) = (mount.source.display(), dir.display());
            let why = format!("in use: {source} is mounted there; uext4 umount {dir} first");
            Err(Why::new(why))
        }
    }
}

fn remount(args: &Args, fuse: &FuseOptions) -> std::result::Result<(), Why> {
    check_place(&args.dir)?;
    let dir = args.dir.canonicalize()?;
    let mount = match mountinfo::find(&dir)? {
        Some(mount) if mount.is_ours() => mount,
        Some(mount) => return Err(Why::new(format!("is {}, not a mount of uext4", mount.fs_type))),
        None => return Err(Why::new("not mounted")),
    };
    if args.source() != mount.shown_source && is_another(args.source(), &mount.source) {
        let (other, source) = (args.source().display(), mount.source.display());
        return Err(Why::new(format!("{source} is mounted there, not {other}")));
    }
    let fixed: Vec<&str> = fuse.fixed_words().filter(|word| !mount.has_option(word)).collect();
    if !fixed.is_empty() {
        let why = format!("a remount cannot change {}: unmount, and mount again", fixed.join(","));
        return Err(Why::new(why));
    }
    Ok(attach::remount(&dir, fuse)?)
}

/// Whether `image` is another one than a mount has as its source. The image of a mount with a name
/// of its own (`fsname=`) cannot be told.
fn is_another(image: &OsStr, source: &OsStr) -> bool {
    if image == source || Image::parse(source).absolute().is_err() {
        return false;
    }
    let Ok(given) = Image::parse(image).absolute() else { return true };
    given.to_string() != source.to_string_lossy()
}

/// Starts the daemon and waits until its mount answers or it has failed.
fn start_daemon(args: &Args) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    for (name, value) in allocator_settings() {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    if let Some(path) = journal::given() {
        command.arg("--journal-device").arg(path);
    }
    command.args(keys::names().iter().flat_map(|name| ["--key", name]));
    let mut child = command
        .arg0("uext4")
        .args(verbosity::words())
        .args(["mount", "--detached", "-o", &args.options.join(",")])
        .args(args.read_only.then_some("--read-only"))
        .args(args.overlay.iter().flat_map(|file| ["--overlay".as_ref(), file.as_os_str()]))
        .arg("--")
        .args([&args.image, args.dir.as_os_str()])
        .stdin(File::open("/dev/null").at("mount", "/dev/null")?)
        .stdout(Stdio::piped())
        .spawn()
        .at("mount", "cannot start the daemon")?;
    let mut ready = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        // An error reads as silence: the exit status below tells then.
        let _ = pipe.take(READY.len() as u64).read_to_end(&mut ready);
    }
    if ready == READY {
        return Ok(());
    }
    let status = child.wait().at("mount", "the daemon")?;
    match status.code() {
        Some(code) => Err(Failure::Status(u8::try_from(code).unwrap_or(1).max(1))),
        None => Err(Why::new(format!("ended early ({status})")).at("mount", "the daemon")),
    }
}

/// How glibc's allocator is to hold memory for a daemon with many threads: pages that one thread
/// takes others free, so that free memory is spread over all its arenas, and each keeps what is at
/// its end, by default as much as twice the largest buffer that was ever freed. Others ignore it.
fn allocator_settings() -> [(&'static str, String); 3] {
    const MIB: usize = 1 << 20;
    let processors = thread::available_parallelism().map_or(2, usize::from);
    [
        ("MALLOC_ARENA_MAX", processors.max(2).to_string()),
        ("MALLOC_TRIM_THRESHOLD_", (4 * MIB).to_string()),
        // Above the largest request, below the buffers that requests are read into.
        ("MALLOC_MMAP_THRESHOLD_", (4 * MIB).to_string()),
    ]
}
