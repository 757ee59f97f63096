//! `kill -9` of the mounting process under a load of several threads.
//!
//! # Fault model
//! The process ends at a random moment; what it had written to the image stays, in the order in
//! which it was written (the host goes on). The image is then recovered by uext4 and by e2fsck and
//! compared with what the load had done and synced: see [`crate::crash`] (a) to (d).
//!
//! # Not covered
//! Loss of what the host's page cache held: that is what recorded runs are for.

use crate::crash::judge_image;
use crate::daemon_mount::{DaemonMount, Transport};
use crate::format::ORDINARY;
use crate::generator::Limits;
use crate::load::{self, Control};
use crate::mount::is_root;
use crate::oracle::image_folder;
use crate::run::{NEWER_FEATURES, Shape, make};
use crate::volume_target::set_up;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uext4::{MountOptions, Volume};
use uext4_device::MemoryDevice;

/// What came of one round.
#[derive(Debug)]
pub struct KillRound {
    /// The file system and the moment of the kill.
    pub what: String,
    /// Operations that the load had begun.
    pub operations: usize,
    /// Syncs that had returned.
    pub syncs: usize,
    /// Whether an image that holds nothing of what was synced would be a fault.
    pub shows_loss: bool,
    /// What is wrong.
    pub faults: Vec<String>,
}

/// Threads of the load.
pub(crate) const THREADS: u32 = 4;

/// One round: make, mount, load, kill, recover, compare. `binary` is the `uext4` command, `way`
/// that of the mount's requests; the image of a round with faults is kept in `keep`.
///
/// # Errors
/// The machinery failed, or an operation before the kill.
pub fn round(
    binary: &Path,
    seed: u64,
    way: Transport,
    keep: Option<&Path>,
) -> Result<KillRound, String> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0111_9999);
    let block_size = [1024, 2048, 4096, 4096][rng.random_range(0..4)];
    let journal_mib = [4, 4, 16][rng.random_range(0..3)];
    let features = if rng.random_bool(0.5) { NEWER_FEATURES } else { "" };
    let shape = Shape { block_size, journal_mib, image_mib: 128, features, format: &ORDINARY };
    let delay = Duration::from_millis(rng.random_range(20..1500));

    let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
    let image = folder.path().join("disk.img");
    let fresh = prepare(&shape, seed, &image)?;
    let limits = Limits { xattr_bytes: block_size as usize / 2, ..Limits::default() };
    let point = folder.path().join("mnt");
    let control = Control::default();
    // An ordinary user works as root of the image.
    let options = if is_root() { "noatime" } else { "noatime,fakeroot" };
    let mount = DaemonMount::start(binary, &image, &point, way, options)?;
    let (mut history, ()) = load::run(&point, seed, THREADS, limits, &control, || {
        std::thread::sleep(delay);
        control.gone.store(true, Ordering::SeqCst);
        mount.signal(Signal::KILL)
    })?;
    mount.bury(binary)?;

    let device = MemoryDevice::load(&image).map_err(|error| format!("the image: {error}"))?;
    history.rules.sizes_were_had = true;
    let marks = history.syncs_before(u64::MAX);
    let syncs = marks.len();
    // Mutation check: an image that holds nothing of what was synced must not pass.
    let shows_loss = syncs > 0;
    if shows_loss && judge_image(fresh, &history, marks.clone())?.is_empty() {
        return Err("the check does not see that everything is lost".into());
    }
    let faults = judge_image(device.snapshot(), &history, marks)?;
    if let Some(folder) = keep.filter(|_| !faults.is_empty()) {
        let path = folder.join(format!("kill9-{seed}.img"));
        device.save(&path).map_err(|error| format!("cannot keep {}: {error}", path.display()))?;
    }
    let what = format!(
        "seed {seed}: {}, {block_size}-byte blocks, {journal_mib} MiB journal, {}, killed \
         after {} ms",
        way.name(),
        if features.is_empty() { "default features" } else { features },
        delay.as_millis()
    );
    Ok(KillRound { what, operations: history.len(), syncs, shows_loss, faults })
}

/// A fresh file system with junk in its free blocks and the load's directories, in a file.
pub(crate) fn prepare(shape: &Shape, seed: u64, image: &Path) -> Result<MemoryDevice, String> {
    let memory = Arc::new(make(shape, seed)?);
    let volume = Volume::open(memory.clone(), MountOptions::default())
        .map_err(|error| format!("open: {error}"))?;
    set_up(&volume, THREADS).map_err(|error| format!("set up: {error}"))?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    memory.save(image).map_err(|error| format!("{}: {error}", image.display()))?;
    Ok(memory.snapshot())
}
