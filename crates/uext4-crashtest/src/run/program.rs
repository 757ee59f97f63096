//! The first half of a test: an image, the setup, and the recorded program.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::thread;

use uext4_device::MemoryDevice;
use uext4_fuse::mountinfo;

use super::command::{Ended, Job};
use super::mounted::Mounted;
use super::place::Place;
use super::{Plan, Watch, failed};
use crate::error::{Error, Result};
use crate::record::{Recorded, Recording};

/// Most bytes that a recording keeps: all of it is in memory, and states have it again.
const DATA_MAX: usize = 1 << 30;

/// What a program has done.
pub struct Program {
    /// The image before it.
    pub base: MemoryDevice,
    /// Its calls.
    pub recorded: Recorded,
    /// The image after it, closed cleanly.
    pub end: MemoryDevice,
}

/// Makes an image, runs the setup and records the program.
///
/// # Errors
/// No mount, or a command that failed; the line says which.
pub fn run_program(plan: &Plan, watch: &dyn Watch) -> Result<Program> {
    let _adopting = super::leftovers::adopt();
    let place = Place::new()?;
    let base = base(plan, &place, watch)?;
    watch.begins("run");
    let end = Arc::new(base.snapshot());
    let recorded = record(plan, &place, watch, &end)?;
    Ok(Program { base, recorded, end: end.snapshot() })
}

fn base(plan: &Plan, place: &Place, watch: &dyn Watch) -> Result<MemoryDevice> {
    let device = MemoryDevice::new(plan.image_size);
    // As file systems have that are large enough for a program's data.
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = uext4_mkfs::Options {
        block_size: Some(4096),
        root_owner: Some(owner),
        ..Default::default()
    };
    uext4_mkfs::format(&device, &options)
        .map_err(|error| Error::new(format!("an image of {} bytes: {error}", plan.image_size)))?;
    let Some(setup) = &plan.setup else { return Ok(device) };
    watch.begins("setup");
    let device = Arc::new(device);
    let dir = place.directory("setup")?;
    let mounted = Mounted::plain(Arc::clone(&device) as _, &dir, &plan.fuse)?;
    // Standard output is for the result.
    let ended = job(plan, setup, &dir).run(io::stderr().into(), Stdio::inherit());
    let closed = mounted.close();
    if let Some(why) = ended?.failure() {
        return Err(failed("setup:", &why));
    }
    closed?;
    Ok(device.snapshot())
}

fn record(
    plan: &Plan,
    place: &Place,
    watch: &dyn Watch,
    device: &Arc<MemoryDevice>,
) -> Result<Recorded> {
    let dir = place.directory("run")?;
    let (sender, receiver) = mpsc::channel();
    let recording = Recording::new(DATA_MAX, Some(sender));
    let mounted = Mounted::recorded(Arc::clone(device) as _, &dir, &plan.fuse, &recording)?;
    if !mountinfo::find(&dir)?.is_some_and(|mount| mount.hears_sync()) {
        recording.remark(
            "sync(2) and syncfs(2) do not come to this mount: a program that relies on them looks \
             unsafe",
        );
    }
    let ended = thread::scope(|scope| {
        scope.spawn(move || receiver.iter().for_each(|bytes| watch.prints(&bytes)));
        let ended = run(plan, &dir, &recording);
        // The unmount writes, too. This ends the thread.
        (ended, recording.end())
    });
    let closed = mounted.close();
    if let Some(why) = ended.0?.failure() {
        return Err(failed("run:", &why));
    }
    closed?;
    if recording.is_full() {
        return Err(failed("run:", &format!("more than {} MiB of data and calls", DATA_MAX >> 20)));
    }
    Ok(ended.1)
}

fn run(plan: &Plan, dir: &Path, recording: &Recording) -> Result<Ended> {
    recording.expect_output();
    let output =
        File::options().append(true).custom_flags(libc::O_TMPFILE).open(dir).map_err(|error| {
            let why = match error.raw_os_error() {
                Some(libc::EOPNOTSUPP) => "the kernel is too old: Linux 6.2 is needed".to_owned(),
                _ => error.to_string(),
            };
            Error::new(format!("a file without a name for standard output: {why}"))
        })?;
    // Were it closed with the last process that has it, a new file could get its inode number
    // while the recorder still takes that for the output.
    let _held = output.try_clone()?;
    job(plan, &plan.run, dir).run(output.into(), Stdio::inherit())
}

fn job<'a>(plan: &'a Plan, line: &'a str, dir: &'a Path) -> Job<'a> {
    Job { line, dir, variables: &[], limit: plan.limit, stop: &plan.stop }
}
