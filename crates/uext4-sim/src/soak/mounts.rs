//! Mounts and unmounts, one after the other, while programs work on them.

use crate::daemon_mount::{DaemonMount, Transport, output, within};
use crate::oracle::{expect_clean, image_folder, program};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Two images at a time.
const SIDE_BY_SIDE: u32 = 2;
/// Threads that work on each.
const THREADS: u64 = 3;
/// Files that a thread writes before its mount is taken away.
const FILES: u64 = 20;

/// Mounts and unmounts `count` times in all, by the transports in turns. Every second mount is
/// detached (`umount -l`) under its load, the others are refused until the load has ended.
///
/// # Errors
/// A mount, an unmount or the load fails or hangs; an image is not clean.
pub fn mounts(binary: &Path, ways: &[Transport], count: u32) -> Result<(), String> {
    std::thread::scope(|scope| {
        let sides: Vec<_> = (0..SIDE_BY_SIDE)
            .map(|_| scope.spawn(|| one_side(binary, ways, count.div_ceil(SIDE_BY_SIDE))))
            .collect();
        let join = |side: std::thread::ScopedJoinHandle<'_, Result<(), String>>| {
            side.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        };
        // All of them have ended before the first error is told.
        sides.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

fn one_side(binary: &Path, ways: &[Transport], count: u32) -> Result<(), String> {
    let folder = image_folder().map_err(|error| error.to_string())?;
    let (image, point) = (folder.path().join("image"), folder.path().join("mnt"));
    let mke2fs = program("mke2fs").ok_or("mke2fs is missing")?;
    let mut make = within(Duration::from_secs(60), mke2fs);
    output(make.args(["-q", "-F", "-t", "ext4"]).arg(&image).arg("64M"))?;
    for number in 0..count as usize {
        let way = ways[number % ways.len()];
        let failed = |why: String| format!("mount {number} by {}: {why}", way.name());
        let mount = DaemonMount::start(binary, &image, &point, way, "").map_err(failed)?;
        under_load(binary, mount, number / ways.len() % 2 == 1).map_err(failed)?;
    }
    expect_clean(&image)
}

/// Unmounts under load.
fn under_load(binary: &Path, mount: DaemonMount, is_detached: bool) -> Result<(), String> {
    let root = rustix::fs::open(mount.point(), OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| error.to_string())?;
    let mut umount = within(Duration::from_secs(60), binary);
    umount.arg("umount");
    if is_detached {
        umount.arg("-l");
    }
    umount.arg(mount.point());
    let ended = beside_load(&root, || output(&mut umount))?;
    drop(root);
    match (is_detached, ended) {
        (true, Ok(_)) => mount.detached(),
        (false, Err(why)) if why.contains("busy") => mount.unmount(binary),
        (true, Err(why)) => Err(why),
        (false, other) => Err(format!("a mount in use: {other:?}")),
    }
}

/// Does something while threads work below `root`.
fn beside_load<T>(root: &OwnedFd, meanwhile: impl FnOnce() -> T) -> Result<T, String> {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, written) = (&stop, &written);
        let start = |thread| scope.spawn(move || work(root, thread, stop, written));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        while written.load(Ordering::Relaxed) < FILES * THREADS
            && !threads.iter().any(std::thread::ScopedJoinHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let result = meanwhile();
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))?;
        }
        Ok(result)
    })
}

/// Writes, renames, syncs and removes files until it is told to stop.
fn work(root: &OwnedFd, thread: u64, stop: &AtomicBool, written: &AtomicU64) -> Result<(), String> {
    let (first, second) = (format!("{thread}"), format!("{thread} renamed"));
    let once = |number: u64| -> rustix::io::Result<()> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
        let file = rustix::fs::openat(root, &first, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::io::write(&file, &[1; 6000])?;
        if number.is_multiple_of(8) {
            rustix::fs::fsync(&file)?;
        }
        rustix::fs::renameat(root, &first, root, &second)?;
        rustix::fs::unlinkat(root, &second, AtFlags::empty())
    };
    while !stop.load(Ordering::Relaxed) {
        let number = written.fetch_add(1, Ordering::Relaxed);
        once(number).map_err(|error| format!("the load: {error}"))?;
    }
    Ok(())
}
