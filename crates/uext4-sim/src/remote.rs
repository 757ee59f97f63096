//! Mounts of network block devices under load: the mounting process is killed, or their servers.
//!
//! # Fault model
//! *A mount that is killed*: as in [`crate::kill9`], with requests on their way to a server that
//! goes on. *Servers that are killed* (SIGKILL) and started again while the mount waits: what a
//! server had acknowledged and not flushed may be gone. No operation may fail, and what was synced
//! and, after the unmount, all else that was done is on the export. Images are judged as those of
//! recorded runs: see [`crate::crash`]; the export itself is recovered by e2fsck, through nbdfuse.
//! No kill comes before the load is at work on what is killed.
//!
//! # Not covered
//! A loss of power of the server's host.

use crate::crash::judge_image;
use crate::daemon_mount::{DaemonMount, Transport};
use crate::format::ORDINARY;
use crate::generator::Limits;
use crate::kill9::{KillRound, THREADS, prepare};
use crate::load::{self, Control};
use crate::model::{Entry, History};
use crate::nbd_file::NbdFile;
use crate::operation::Operation;
use crate::oracle::image_folder;
use crate::run::Shape;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uext4_device::MemoryDevice;

/// Bytes of the file systems; exports have at least that many.
pub const IMAGE_MIB: u64 = 128;

/// Syncs that return from what is started before it is killed. One that has nothing to write may
/// return though no server answers, but not so many of [`THREADS`] threads.
const SYNCS_AT_WORK: u64 = 4 * THREADS as u64;
/// Longest wait for them, and for the end of a load.
const PATIENCE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(5);

/// An export of a server that can be killed.
pub trait Export {
    /// What a verb takes for an image.
    fn name(&self) -> PathBuf;

    /// Writes an image to it. No mount has it.
    ///
    /// # Errors
    /// What went wrong.
    fn copy_from(&mut self, image: &Path) -> Result<(), String>;

    /// Makes an image of it. No mount has it.
    ///
    /// # Errors
    /// What went wrong.
    fn copy_to(&mut self, image: &Path) -> Result<(), String>;

    /// Kills the server. What it had not flushed may be gone.
    fn kill(&mut self);

    /// Starts it again, and returns when it listens.
    ///
    /// # Errors
    /// What went wrong.
    fn start(&mut self) -> Result<(), String>;
}

/// A round on an export: its file system, its folder, and what the mount is.
struct Round<'a> {
    binary: &'a Path,
    export: &'a mut dyn Export,
    seed: u64,
    /// Where images with faults are kept.
    keep: &'a Path,
    folder: tempfile::TempDir,
    fresh: MemoryDevice,
    rng: StdRng,
}

impl<'a> Round<'a> {
    fn new(
        binary: &'a Path,
        seed: u64,
        export: &'a mut dyn Export,
        keep: &'a Path,
    ) -> Result<Self, String> {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x0222_9999);
        let block_size = [1024, 4096][rng.random_range(0..2)];
        let image_mib = IMAGE_MIB;
        let shape =
            Shape { block_size, journal_mib: 4, image_mib, features: "", format: &ORDINARY };
        let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
        let image = folder.path().join("disk.img");
        let fresh = prepare(&shape, seed, &image)?;
        export.copy_from(&image)?;
        Ok(Self { binary, export, seed, keep, folder, fresh, rng })
    }

    fn mount(&self, options: &str) -> Result<DaemonMount, String> {
        let point = self.folder.path().join("mnt");
        let name = self.export.name();
        DaemonMount::start(self.binary, &name, &point, Transport::DevFuse, options)
    }

    /// What is wrong with the export, after a load whose syncs are known.
    fn judge(self, what: String, mut history: History) -> Result<KillRound, String> {
        let copy = self.folder.path().join("copy.img");
        self.export.copy_to(&copy)?;
        let device = MemoryDevice::load(&copy).map_err(|error| format!("the copy: {error}"))?;
        history.rules.sizes_were_had = true;
        let marks = history.syncs_before(u64::MAX);
        let (operations, syncs) = (history.len(), marks.len());
        // Mutation check: an image that holds nothing of what was synced. A load that is cut off
        // early may have synced what it has removed since.
        let shows_loss = !judge_image(self.fresh.snapshot(), &history, marks.clone())?.is_empty();
        let mut faults = judge_image(device.snapshot(), &history, marks)?;
        // nbdfuse knows NBD alone; an image of Ceph is judged by its copy.
        if self.export.name().as_os_str().as_encoded_bytes().starts_with(b"nbd") {
            faults.extend(self.recover().err().map(|why| format!("on nbdfuse: {why}")));
        }
        let what = format!("seed {}: {what}", self.seed);
        if !faults.is_empty() {
            let kept = self.keep(&copy, &history);
            faults.push(kept.unwrap_or_else(|error| format!("not kept: {error}")));
        }
        Ok(KillRound { what, operations, syncs, shows_loss, faults })
    }

    /// Has e2fsck recover the export itself.
    fn recover(&self) -> Result<(), String> {
        let file = NbdFile::open(&self.export.name(), &self.folder.path().join("file"))?;
        file.expect_recovery_only()
    }

    /// Keeps the copy and what the load did; where.
    fn keep(&self, copy: &Path, history: &History) -> io::Result<String> {
        let mut folder = tempfile::Builder::new().prefix("remote-").tempdir_in(self.keep)?;
        fs::copy(copy, folder.path().join("copy.img"))?;
        let threads: Vec<_> = history.threads.iter().map(|of| format!("{of:#?}\n")).collect();
        fs::write(folder.path().join("history"), threads.concat())?;
        folder.disable_cleanup(true);
        Ok(format!("copy.img and history are kept in {}", folder.path().display()))
    }
}

/// Waits until the load is at work on what was started.
fn wait_for_work(control: &Control) -> Result<(), String> {
    let syncs = || control.syncs.load(Ordering::SeqCst);
    let (before, deadline) = (syncs(), Instant::now() + PATIENCE);
    while syncs() - before < SYNCS_AT_WORK {
        if control.ended.load(Ordering::SeqCst) > 0 {
            // By a fault, which it will tell.
            return Err("a thread of the load has ended".into());
        }
        if Instant::now() > deadline {
            return Err(format!("the load hangs: {} syncs in {PATIENCE:?}", syncs() - before));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Stops the load, and waits until its threads have ended.
fn wait_for_end(control: &Control) -> Result<(), String> {
    control.stop.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    while control.ended.load(Ordering::SeqCst) < THREADS {
        if Instant::now() > deadline {
            return Err(format!("the load does not end in {PATIENCE:?}"));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// A load on the mount while `meanwhile` runs. If that fails, or the load does not end, the mount
/// is killed: threads that wait for its answer can be neither ended nor joined.
fn load_while(
    mount: &DaemonMount,
    seed: u64,
    control: &Control,
    meanwhile: impl FnOnce() -> Result<(), String>,
) -> Result<History, String> {
    let limits = Limits { xattr_bytes: 512, ..Limits::default() };
    let (history, ()) = load::run(mount.point(), seed, THREADS, limits, control, || {
        let done = meanwhile().and_then(|()| wait_for_end(control));
        if done.is_err() {
            control.gone.store(true, Ordering::SeqCst);
            let _ = mount.signal(Signal::KILL);
        }
        done
    })?;
    Ok(history)
}

/// One round: the mounting process is killed under load. An image with faults, and what the load
/// did, are kept in `keep`.
///
/// # Errors
/// The machinery failed, or an operation before the kill.
pub fn kill_mount(
    binary: &Path,
    seed: u64,
    export: &mut dyn Export,
    keep: &Path,
) -> Result<KillRound, String> {
    let mut round = Round::new(binary, seed, export, keep)?;
    let delay = Duration::from_millis(round.rng.random_range(0..1500));
    let (mount, control) = (round.mount("noatime")?, Control::default());
    let history = load_while(&mount, seed, &control, || {
        wait_for_work(&control)?;
        std::thread::sleep(delay);
        control.gone.store(true, Ordering::SeqCst);
        mount.signal(Signal::KILL)
    })?;
    mount.bury(binary)?;
    round.judge(format!("mount killed after {} ms at work", delay.as_millis()), history)
}

/// Kills the server so many times under one load, each time starts it again at once, and unmounts.
/// `keep`: see [`kill_mount`].
///
/// # Errors
/// The machinery failed, or an operation: the mount was to hide the deaths.
pub fn kill_servers(
    binary: &Path,
    seed: u64,
    times: u32,
    export: &mut dyn Export,
    keep: &Path,
) -> Result<KillRound, String> {
    let mut round = Round::new(binary, seed, export, keep)?;
    // Longer than the wait for work, which is what may fail.
    let (mount, control) = (round.mount("noatime,nbd_timeout=300")?, Control::default());
    let Round { export, rng, .. } = &mut round;
    let mut history = load_while(&mount, seed, &control, || {
        for _ in 0..times {
            wait_for_work(&control)?;
            std::thread::sleep(Duration::from_millis(rng.random_range(0..500)));
            export.kill();
            std::thread::sleep(Duration::from_millis(rng.random_range(0..100)));
            export.start()?;
        }
        wait_for_work(&control)
    })?;
    let started = control.clock.tick();
    mount.unmount(binary)?;
    // An unmount promises what a sync of the volume does.
    let ended = Some(control.clock.tick());
    let entry = Entry { operation: Operation::SyncVolume, started, ended };
    history.threads[0].entries.push(entry);
    let round = round.judge(format!("server killed and started {times} times"), history)?;
    match round.shows_loss {
        true => Ok(round),
        false => Err("the check does not see that everything is lost".into()),
    }
}
