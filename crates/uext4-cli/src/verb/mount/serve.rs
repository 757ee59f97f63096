//! The process that serves a mount: the daemon, or the command itself in the foreground.
//!
//! What: everything that can fail is done, in this order: the place and the keeper, the image and
//! its volume, the mount and its session, the signals; then the parent is told, or the service
//! manager. When the mount is gone, the same is undone: signals, volume, and last words.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use uext4::{MountOptions, Volume};
use uext4_device::{FileOptions, RoomEvent};
use uext4_fuse::attach::{Attached, Connection};
use uext4_fuse::{FuseOptions, LogLevel, Session, Transport, mountinfo};

use super::{Args, Options, READY};
use crate::closing;
use crate::confine::{self, Confinement};
use crate::failure::{At, Failure, Result, Why};
use crate::given;
use crate::heap::Trimmer;
use crate::host;
use crate::image::{self, Access};
use crate::journal;
use crate::keeper::{Ender, Keeper};
use crate::keys;
use crate::log;
use crate::manager::Manager;
use crate::mount_table;
use crate::network;
use crate::overlay;
use crate::spec::Image;
use crate::verbosity::{self, Verbosity, remark};

/// What the log has: what `log=` says, and what `-q` and `-v` make of it.
fn level(option: LogLevel) -> LogLevel {
    match verbosity::given() {
        Verbosity::Quiet => LogLevel::Error,
        Verbosity::Normal => option,
        Verbosity::Verbose => option.max(LogLevel::Info),
    }
}

/// Opens, mounts, serves, closes.
pub(super) fn serve(args: &Args, options: Options) -> Result<()> {
    let Options { mut engine, mut fuse, device } = options;
    // What ps(1) and killall(1) call it: started as /proc/self/exe it would be `exe`.
    let _ = rustix::thread::set_name(c"uext4");
    if args.detached {
        rustix::process::setsid().at("mount", "setsid")?;
    }
    raise_descriptors();
    log::start(level(fuse.log), args.detached);
    let spec = Image::parse(&args.image);
    let manager = Arc::new(match args.foreground {
        true => Manager::of_environment(),
        false => Manager::default(),
    });
    // Before the mount, so that no signal finds the process unprepared.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).at("mount", "signals")?;
    let null = File::options().read(true).write(true).open("/dev/null").at("mount", "/dev/null")?;
    spec.absolute().at("mount", &spec)?;
    // First, since it is not worth waiting for an image that has no place to go.
    let dir = take_place(&args.dir, &mut fuse)?;
    let overlay = args.overlay.as_ref().map(|file| overlay::file(file));
    if let Some(file) = &overlay {
        prepare(&spec, file, &engine)?;
    }
    // What is written to, and what the mount is named by.
    let store = overlay.as_ref().unwrap_or(&spec);
    let name = store.absolute().at("mount", store)?.to_string();
    if fuse.fs_name == FuseOptions::default().fs_name {
        fuse.fs_name = name;
    }
    let is_other = fuse.connection.is_some();
    let keeper = (fuse.sandbox && !is_other).then(|| Keeper::start(dir).map(Arc::new)).transpose();
    let keeper = keeper.at("mount", "the keeper")?;
    let log = journal_path(&engine).map(|path| Image::parse(path.as_os_str()));
    let images = [Some(&spec), Some(store), log.as_ref()].into_iter().flatten();
    let ports: Vec<u16> = images.clone().filter_map(network::port).collect();
    let has_network = images.clone().any(network::needs_sockets);
    let written = [Some(store), log.as_ref()].into_iter().flatten().map(|image| &*image.path);
    let base = overlay.as_ref().map(|_| &*spec.path);
    let sandbox = || Confinement::new(written, base, &ports).map(Arc::new);
    let confinement = fuse.sandbox.then(sandbox).transpose();
    let confinement = confinement.at("mount", "the sandbox")?;
    let trimmer =
        within(confinement.as_deref(), Trimmer::start)?.at("mount", "thread uext4-trim")?;
    let write_protected = !engine.read_only && !is_writable(store);
    engine.read_only |= write_protected;
    let wanted_read_only = engine.read_only;
    closing::wait("mount", store, !wanted_read_only);
    if let Some(confinement) = confinement.clone() {
        // They are started before the mount is there, and must not be left out.
        network::on_threads(move || confinement.enter());
    }
    let volume = open(&spec, overlay.as_ref(), engine, device, confinement.as_deref())?;
    fuse.attached = confinement.map(|files| confined(keeper.clone(), files, has_network));
    if write_protected {
        // As mount(8) does.
        remark(&format!("mount: {store}: write-protected, mounted read-only"));
    }
    if overlay.is_none() && !volume.read_only() {
        host::warn_of_shortage("mount", &spec.path);
    }
    tell_of(&volume, store, overlay.is_some(), wanted_read_only);
    set_hooks(&volume, store);
    let session = match Session::start(volume.clone(), dir, &fuse) {
        Ok(session) => session,
        Err(error) => {
            // It may be mounted, and nobody would answer.
            let _ = keeper.map(|keeper| keeper.unmount());
            // Replay may have written; close cleanly whatever the mount said.
            image::close("mount", store, volume)?;
            return Err(Why::from(io::Error::other(error.to_string())).at("mount", store));
        }
    };
    let ender = Arc::new(match keeper {
        Some(keeper) => Ender::Keeper(keeper),
        None if is_other => Ender::Other,
        None => Ender::Own(session.stopper()),
    });
    note(args, &ender);
    let (watcher, ready) = match Watcher::start(signals, &ender, &volume, &manager) {
        Ok(watcher) => (Some(watcher), tell_ready(args, store, null, &manager)),
        Err(why) => (None, Err(why)),
    };
    match &ready {
        Ok(()) => tell_mounted(args, store, &session),
        // The command fails, so its mount goes.
        Err(_) => drop(ender.unmount()),
    }
    let served = ready.and(session.join().at("mount", args.dir.display()));
    // In the foreground it is told in the end.
    if let (Err(Failure::Line(line)), true) = (&served, args.detached) {
        tracing::error!("{line}");
    }
    manager.stopping();
    drop(trimmer);
    drop(watcher);
    close(store, volume, args.detached)?;
    tracing::info!("mount: {store}: closed");
    served
}

/// The directory to mount on. For a connection that is mounted already it is none.
fn take_place<'a>(dir: &'a Path, fuse: &mut FuseOptions) -> Result<&'a Path> {
    if let Some(number) = given::number(dir) {
        let connection = given::connection(number).at("mount", dir.display())?;
        fuse.connection = Some(Connection::new(connection));
        return Ok(Path::new(given::NO_DIR));
    }
    match dir.metadata().at("mount", dir.display())?.is_dir() {
        true => Ok(dir),
        false => Err(Why::new("Not a directory").at("mount", dir.display())),
    }
}

/// Raises the limit of descriptors as far as this process may: by io_uring each request that sleeps
/// has one.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // A mount works with fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn is_writable(image: &Image) -> bool {
    // A server says so itself when it is asked to be written to.
    image.uri().is_some() || rustix::fs::access(&image.path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Confines the daemon when the mount is there: what it still needs is open by then.
fn confined(keeper: Option<Arc<Keeper>>, files: Arc<Confinement>, has_network: bool) -> Attached {
    Attached::new(move |dir| {
        // Without, a signal could not unmount; uext4 umount and umount(8) can.
        if let Some(Err(error)) = keeper.as_ref().map(|keeper| keeper.remember()) {
            tracing::warn!("mount: {}: the keeper: {error}", dir.display());
        }
        let device = mountinfo::find(dir).ok().flatten().map(|mount| mount.device);
        files.enter_mounted(device);
        confine::calls(has_network);
    })
}

/// The journal device that the options or the command name.
fn journal_path(options: &MountOptions) -> Option<PathBuf> {
    options.journal_path.clone().or_else(journal::given)
}

/// Makes a new overlay, if its file is to be one.
fn prepare(spec: &Image, file: &Image, options: &MountOptions) -> Result<()> {
    overlay::check("mount", spec, file)?;
    if journal_path(options).is_some() {
        // It would be written, and is another device.
        let why = "an overlay is not possible with a journal on another device";
        return Err(Why::new(why).at("mount", file));
    }
    closing::wait("mount", spec, false);
    match options.read_only {
        true => Ok(()),
        false => overlay::make_new("mount", spec, file),
    }
}

fn open(
    spec: &Image,
    overlay: Option<&Image>,
    mut options: MountOptions,
    mut device: FileOptions,
    confinement: Option<&Confinement>,
) -> Result<Volume> {
    options.keys.extend(keys::given());
    let access = if options.read_only { Access::Read } else { Access::Write };
    device.access = access.into();
    let path = journal_path(&options);
    let journal = path.as_ref().map(|path| journal::open("mount", spec, path, &device));
    let journal = journal.transpose()?;
    let device = match overlay {
        Some(file) => overlay::open("mount", spec, file, &device)?,
        None => image::device_for_mount("mount", spec, &device, &options)?,
    };
    let log = path.map(|path| path.display().to_string());
    let named = overlay.unwrap_or(spec).to_string();
    for (device, named) in [(Some(&device), Some(named)), (journal.as_ref(), log)] {
        let Some((room, named)) = device.and_then(|device| device.room()).zip(named) else {
            continue;
        };
        room.set_hook(move |event| match event {
            RoomEvent::GaveUp(_) => tracing::error!("mount: {named}: {event}"),
            _ => tracing::warn!("mount: {named}: {event}"),
        });
    }
    // Its threads get what the thread that starts them has. This one must mount yet.
    within(confinement, || image::open_volume(device, journal, options))?.at("mount", spec)
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

/// Tells what is to be known of a volume that was opened. `spec` is what it is named by.
fn tell_of(volume: &Volume, spec: &Image, is_overlay: bool, opened_read_only: bool) {
    if volume.read_only() && !opened_read_only {
        let reason = volume.read_only_reason().unwrap_or_else(|| "unknown reason".to_owned());
        remark(&format!("mount: {spec}: mounted read-only: {reason}"));
    }
    if volume.recovery().is_unchecked {
        // The image beneath an overlay may be sound: no program checks both together.
        let after = if is_overlay { " on the image after uext4 overlay commit" } else { "" };
        remark(&format!(
            "mount: {spec}: has no journal and was not unmounted cleanly; mounted unchecked: \
             running e2fsck{after} is recommended"
        ));
    }
    for problem in volume.orphan_problems() {
        remark(&format!("mount: {spec}: an orphan is not cleaned up: {problem}"));
    }
}

/// Has the volume tell of what happens later.
fn set_hooks(volume: &Volume, spec: &Image) {
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
}

/// Tells the process that waits for the mount that it answers.
fn tell_ready(args: &Args, spec: &Image, null: File, manager: &Manager) -> Result<()> {
    if args.detached {
        return detach(null).at("mount", args.dir.display());
    }
    manager.ready(&format!("{spec} is mounted on {}", args.dir.display()));
    Ok(())
}

/// Has mount(8) know of the mount, so that umount(8) calls its helper.
fn note(args: &Args, ender: &Ender) {
    match (ender, args.dir.canonicalize()) {
        // Without, umount(8) does not wait.
        (Ender::Keeper(keeper), _) => drop(keeper.note()),
        (Ender::Own(_), Ok(dir)) => mount_table::add(&dir),
        _ => {}
    }
}

fn tell_mounted(args: &Args, spec: &Image, session: &Session) {
    let way = match session.transport() {
        Transport::IoUring => "io_uring".to_owned(),
        Transport::Device(why) => format!("/dev/fuse ({why})"),
    };
    tracing::info!("mount: {spec}: mounted on {}, requests by {way}", args.dir.display());
}

/// The thread that unmounts when a signal comes; it ends when this is dropped.
struct Watcher {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(
        signals: Signals,
        ender: &Arc<Ender>,
        volume: &Volume,
        manager: &Arc<Manager>,
    ) -> Result<Self> {
        let handle = signals.handle();
        let (ender, volume, manager) = (Arc::clone(ender), volume.clone(), Arc::clone(manager));
        let watch = move || stop_on_signal(signals, &ender, &volume, &manager);
        let thread = thread::Builder::new().name("uext4-signals".to_owned()).spawn(watch);
        let thread = thread.at("mount", "thread uext4-signals")?;
        Ok(Self { signals: handle, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.signals.close();
        // It holds nothing of the volume any more.
        let _ = self.thread.take().map(JoinHandle::join);
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
                tracing::info!("mount: cut off by a second signal, and closed");
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

/// Closes the volume; says what is lost where that fails.
fn close(spec: &Image, volume: Volume, is_daemon: bool) -> Result<()> {
    let closed = volume.clone();
    image::close("mount", spec, volume).map_err(|failure| match failure {
        Failure::Line(line) => {
            let rest = match closed.has_lost_changes() {
                true => "what was not synced is lost",
                false => "nothing is lost: the journal holds the rest",
            };
            let line = format!("{line}: {rest}");
            if is_daemon {
                tracing::error!("{line}");
            }
            Failure::Line(line)
        }
        other => other,
    })
}
