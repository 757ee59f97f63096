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

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use uext4::{MountOptions, Volume};
use uext4_device::{FileOptions, RoomEvent};
use uext4_fuse::attach::{self, Attached, Connection};
use uext4_fuse::mountinfo::{self, MountPoint};
use uext4_fuse::{FuseOptions, READ_ONLY_XATTR, Session, Transport, Word};

use crate::closing;
use crate::confine::{self, Confinement};
use crate::failure::{At, Failure, Result, Why, say};
use crate::given;
use crate::heap::Trimmer;
use crate::host;
use crate::image::{self, Access};
use crate::keeper::{Ender, Keeper};
use crate::log;
use crate::manager::Manager;
use crate::mount_options;
use crate::mounted;
use crate::spec::Image;

/// Mount an image on a directory
#[derive(clap::Args)]
#[command(after_long_help = mount_options::help())]
pub(crate) struct Args {
    /// Mount options, separated by commas (--help lists them)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Mount read-only
    #[arg(short, long)]
    read_only: bool,
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
            say(&format!("mount: {dir}: a remount cannot change {ignored}, ignored"));
        }
        return Ok(());
    }
    if given::number(&args.dir).is_none() {
        let free = check_place(&args.dir).and_then(|()| check_free(&args.dir));
        free.at("mount", args.dir.display())?;
    }
    if args.foreground || args.detached { serve(&args, options) } else { start_daemon(&args) }
}

impl Args {
    /// What a helper of mount(8) is asked for.
    pub(crate) fn new(options: Vec<String>, image: OsString, dir: PathBuf) -> Self {
        Self { options, read_only: false, foreground: false, detached: false, image, dir }
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
    let named = |mount: MountPoint| !is_another(&args.image, &mount.source);
    // A source that is no image (`fsname=`) cannot be told from another.
    mount
        .filter(MountPoint::is_ours)
        // One whose daemon is gone is still in the table.
        .filter(|_| check_place(&args.dir).is_ok())
        .filter(|mount| Image::parse(&mount.source).path.exists())
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
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            Err(mounted::why(error, dir))
        }
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
    if args.image != mount.shown_source && is_another(&args.image, &mount.source) {
        let (other, source) = (args.image.display(), mount.source.display());
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
    if image == source || !Image::parse(source).path.exists() {
        return false;
    }
    let given = Image::parse(image);
    let Ok(path) = given.path.canonicalize() else { return true };
    Image { path, ..given }.to_string() != source.to_string_lossy()
}

/// Starts the daemon and waits until its mount answers or it has failed.
fn start_daemon(args: &Args) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    for (name, value) in allocator_settings() {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let mut child = command
        .arg0("uext4")
        .args(["mount", "--detached", "-o", &args.options.join(",")])
        .args(args.read_only.then_some("--read-only"))
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

/// Opens, mounts, serves, closes.
fn serve(args: &Args, options: Options) -> Result<()> {
    let Options { mut engine, mut fuse, device } = options;
    // What ps(1) and killall(1) call it: started as /proc/self/exe it would be `exe`.
    let _ = rustix::thread::set_name(c"uext4");
    if args.detached {
        rustix::process::setsid().at("mount", "setsid")?;
    }
    raise_descriptors();
    log::start(fuse.log, args.detached);
    let spec = Image::parse(&args.image);
    let manager = Arc::new(match args.foreground {
        true => Manager::of_environment(),
        false => Manager::default(),
    });
    // Before the mount, so that no signal finds the process unprepared.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).at("mount", "signals")?;
    let null = File::options().read(true).write(true).open("/dev/null").at("mount", "/dev/null")?;
    let absolute = spec.path.canonicalize().at("mount", &spec)?;
    let name = Image { path: absolute, ..spec.clone() }.to_string();
    if fuse.fs_name == FuseOptions::default().fs_name {
        fuse.fs_name = name;
    }
    let write_protected = !engine.read_only && !is_writable(&spec.path);
    engine.read_only |= write_protected;
    let wanted_read_only = engine.read_only;
    // First, since it is not worth waiting for an image that has no place to go.
    let mut dir = args.dir.as_path();
    if let Some(number) = given::number(dir) {
        let connection = given::connection(number).at("mount", dir.display())?;
        fuse.connection = Some(Connection::new(connection));
        dir = Path::new(given::NO_DIR);
    } else if !dir.metadata().at("mount", dir.display())?.is_dir() {
        return Err(Why::new("Not a directory").at("mount", dir.display()));
    }
    let is_other = fuse.connection.is_some();
    let keeper = (fuse.sandbox && !is_other).then(|| Keeper::start(dir).map(Arc::new)).transpose();
    let keeper = keeper.at("mount", "the keeper")?;
    let confinement = fuse.sandbox.then(|| Confinement::new(&spec.path)).transpose();
    let confinement = confinement.at("mount", "the sandbox")?;
    let trimmer = within(confinement.as_ref(), Trimmer::start)?.at("mount", "thread uext4-trim")?;
    closing::wait("mount", &spec, !engine.read_only);
    let volume = open(&spec, engine, device, confinement.as_ref())?;
    fuse.attached = confinement.map(|files| confined(keeper.clone(), files));
    if write_protected {
        // As mount(8) does.
        say(&format!("mount: {spec}: write-protected, mounted read-only"));
    }
    if volume.read_only() && !wanted_read_only {
        let reason = volume.read_only_reason().unwrap_or_else(|| "unknown reason".to_owned());
        say(&format!("mount: {spec}: mounted read-only: {reason}"));
    }
    for problem in volume.orphan_problems() {
        say(&format!("mount: {spec}: an orphan is not cleaned up: {problem}"));
    }
    if !volume.read_only() {
        host::warn_of_shortage("mount", &spec.path);
    }
    let named = spec.to_string();
    volume.set_panic_hook(move |error| {
        // `errors=panic`: as in a machine that stops, nothing more is written.
        tracing::error!("mount: {named}: {error}: ended by errors=panic");
        std::process::abort();
    });
    let named = spec.to_string();
    volume.set_discard_hook(move |why| {
        // Once: files are as safe without.
        tracing::warn!("mount: {named}: discard: {why}");
    });
    let named = spec.to_string();
    volume.set_trouble_hook(move |trouble| tracing::error!("mount: {named}: {trouble}"));
    let session = match Session::start(volume.clone(), dir, &fuse) {
        Ok(session) => session,
        Err(error) => {
            // It may be mounted, and nobody would answer.
            let _ = keeper.map(|keeper| keeper.unmount());
            // Replay may have written; close cleanly whatever the mount said.
            image::close("mount", &spec, volume)?;
            return Err(Why::from(io::Error::other(error.to_string())).at("mount", &spec));
        }
    };
    let handle = signals.handle();
    let ender = Arc::new(match &keeper {
        Some(keeper) => Ender::Keeper(Arc::clone(keeper)),
        None if is_other => Ender::Other,
        None => Ender::Own(session.stopper()),
    });
    let own = Arc::clone(&ender);
    let (watched, told) = (volume.clone(), Arc::clone(&manager));
    let watcher = thread::Builder::new()
        .name("uext4-signals".to_owned())
        .spawn(move || stop_on_signal(signals, &own, &watched, &told))
        .at("mount", "thread uext4-signals");
    let (watcher, ready) = match watcher {
        Err(why) => (None, Err(why)),
        Ok(watcher) if args.detached => {
            (Some(watcher), detach(null).at("mount", args.dir.display()))
        }
        Ok(watcher) => {
            manager.ready(&format!("{spec} is mounted on {}", args.dir.display()));
            (Some(watcher), Ok(()))
        }
    };
    if ready.is_ok() {
        let way = match session.transport() {
            Transport::IoUring => "io_uring".to_owned(),
            Transport::Device(why) => format!("/dev/fuse ({why})"),
        };
        tracing::info!("mount: {spec}: mounted on {}, requests by {way}", args.dir.display());
    } else {
        // The command fails, so its mount goes.
        let _ = ender.unmount();
    }
    let served = ready.and(session.join().at("mount", args.dir.display()));
    if let Err(Failure::Line(line)) = &served {
        // In the foreground it is told in the end.
        if args.detached {
            tracing::error!("{line}");
        }
    }
    manager.stopping();
    drop(trimmer);
    handle.close();
    // The watcher ends with the signal handle; it holds nothing of the volume.
    let _ = watcher.map(thread::JoinHandle::join);
    let closed = volume.clone();
    image::close("mount", &spec, volume).map_err(|failure| match failure {
        Failure::Line(line) => {
            let rest = match closed.has_lost_changes() {
                true => "what was not synced is lost",
                false => "nothing is lost: the journal holds the rest",
            };
            let line = format!("{line}: {rest}");
            if args.detached {
                tracing::error!("{line}");
            }
            Failure::Line(line)
        }
        other => other,
    })?;
    tracing::info!("mount: {spec}: closed");
    served
}

/// Raises the limit of descriptors as far as this process may: by io_uring each request that sleeps
/// has one.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // A mount works with fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Confines the daemon when the mount is there: what it still needs is open by then.
fn confined(keeper: Option<Arc<Keeper>>, files: Confinement) -> Attached {
    Attached::new(move |dir| {
        // Without, a signal could not unmount; uext4 umount and umount(8) can.
        if let Some(Err(error)) = keeper.as_ref().map(|keeper| keeper.remember()) {
            tracing::warn!("mount: {}: the keeper: {error}", dir.display());
        }
        let device = mountinfo::find(dir).ok().flatten().map(|mount| mount.device);
        files.enter_mounted(device);
        confine::calls();
    })
}

fn open(
    spec: &Image,
    options: MountOptions,
    mut device: FileOptions,
    confinement: Option<&Confinement>,
) -> Result<Volume> {
    let access = if options.read_only { Access::Read } else { Access::Write };
    device.access = access.into();
    let device = image::device_for_mount("mount", spec, &device, &options)?;
    if let Some(room) = device.room() {
        let named = spec.to_string();
        room.set_hook(move |event| match event {
            RoomEvent::GaveUp(_) => tracing::error!("mount: {named}: {event}"),
            _ => tracing::warn!("mount: {named}: {event}"),
        });
    }
    // Its threads get what the thread that starts them has. This one must mount yet.
    within(confinement, || Volume::open(device, options))?.at("mount", spec)
}

/// Calls `work`, on a thread that is confined where there is a confinement.
fn within<T: Send>(
    confinement: Option<&Confinement>,
    work: impl FnOnce() -> T + Send,
) -> Result<T> {
    match confinement {
        None => Ok(work()),
        Some(confinement) => confinement.within(work).at("mount", "thread uext4-start"),
    }
}

fn stop_on_signal(mut signals: Signals, ender: &Ender, volume: &Volume, manager: &Manager) {
    let mut asked = false;
    for _ in signals.forever() {
        let first = !std::mem::replace(&mut asked, true) && !ender.is_other();
        manager.stopping();
        let done = if first { ender.unmount() } else { ender.abort() };
        match done {
            Ok(()) => {}
            Err(error) if first => {
                tracing::error!("mount: cannot unmount: {}", Why::from(error));
            }
            // No control file system to cut the connection by: it ends with the process. The
            // volume is closed under the workers; what they are asked from now on fails.
            Err(_) => {
                let closed = volume.clone().close();
                std::process::exit(i32::from(closed.is_err()));
            }
        }
    }
}

/// Tells the parent that the mount answers, and lets go of the terminal and of every directory.
fn detach(null: File) -> io::Result<()> {
    env::set_current_dir("/")?;
    rustix::stdio::dup2_stdin(&null)?;
    let mut pipe = io::stdout();
    // A parent that was killed does not end the mount.
    let _ = pipe.write_all(READY).and_then(|()| pipe.flush());
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}
