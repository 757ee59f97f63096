//! A block device that is lent to a run: what is refused, and how images get onto it.
//!
//! What: with `--device` the image of each run is written to one device, which every target opens
//! or mounts as it is, without a loop device. Images that runs start from stay files in the store.
//!
//! Invariants: nothing is written to a device that something uses, that has something on it and is
//! not given with `--force`, that is too small, or that has another disk's name by now. Whether it
//! is empty is asked again just before the first write. Two runs in one network namespace, to which
//! the name of the lock belongs, cannot have one disk. A run that wrote to a device leaves zeroes
//! where an empty one has to have them; one that did not write changes nothing.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, fallocate, major, minor};
use rustix::io::Errno;

use crate::command;
use crate::disk::{disk_number, sys};
use crate::error::{Doing, Error, Result};
use crate::plan::Plan;

/// What is cleared at the end, and has to be zero in the beginning, on both sides of the device:
/// where signatures are.
const EDGE_BYTES: u64 = 1 << 20;
const PIECE_BYTES: usize = 1 << 20;
/// How often a device that is given back is asked for, and how long between.
const GIVE_BACK_TRIES: u32 = 50;
const GIVE_BACK_WAIT: Duration = Duration::from_millis(100);
/// How often a lock is asked for, so long after each other: a process that another run has started
/// has it as well until it is the program.
const LOCK_TRIES: u32 = 4;
/// Looks at the processes that have it open, so long after each other.
const LOOKS: u32 = 20;

impl Plan {
    /// Takes the device, or refuses one that the loads must not or cannot be run on; nothing is
    /// written.
    ///
    /// # Errors
    /// It is no block device, in use, too small, or not empty (`force`: that is all the same).
    pub fn take_device(&mut self, path: &Path, force: bool) -> Result<()> {
        let (lent, bytes) = LentDevice::admit(path, force)?;
        let loads = self.loads.iter().filter(|load| load.on_device);
        let images = loads.map(|load| {
            let plan = self.of(load);
            let settings = plan.forms_of(load).into_iter().flat_map(|form| {
                plan.threads_of(load).into_iter().map(move |threads| (form, threads))
            });
            let largest = settings.map(|(form, threads)| (load.length)(&plan, form, threads)).max();
            (largest.unwrap_or(0), load.id)
        });
        match images.max() {
            Some((need, id)) if need > bytes => {
                let (need, has) = (need >> 20, bytes >> 20);
                let advice = self.advice();
                Err(wrong(path, &format!("{id} needs {need} MiB, it has {has}: use {advice}")))
            }
            _ => {
                self.lent = Some(Arc::new(lent));
                Ok(())
            }
        }
    }
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::new(format!("{}: {why}", path.display()))
}

/// Whether that is a block device.
pub(crate) fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// A device that a run may have, from the question until the process ends.
#[derive(Debug)]
pub struct LentDevice {
    path: PathBuf,
    identity: Identity,
    /// Whether what is on it may be overwritten.
    force: bool,
    /// Held while the device is lent. (The device itself is locked by a target.)
    _lock: UnixListener,
    /// How far from its begin the run has written, so that what is there is the run's.
    written: AtomicU64,
}

/// Which disk it is, whatever it is called.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    number: u64,
    /// The kernel's number of the disk, of which no other one gets the same (Linux 5.15).
    sequence: Option<String>,
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        let read = |name: &str| fs::read_to_string(sys(found.rdev()).join(name)).ok();
        let sequence = read("diskseq").or_else(|| read("../diskseq"));
        Self { number: found.rdev(), sequence }
    }
}

impl LentDevice {
    /// The device and its length in bytes.
    fn admit(path: &Path, force: bool) -> Result<(Self, u64)> {
        let found = fs::metadata(path).doing(path.display())?;
        if !found.file_type().is_block_device() {
            return Err(wrong(path, "not a block device"));
        }
        let lent = Self {
            path: path.to_owned(),
            identity: Identity::of(&found),
            force,
            _lock: lock(path, found.rdev())?,
            written: AtomicU64::new(0),
        };
        if let Some(process) = process_that_stays_with(found.rdev()) {
            return Err(wrong(path, &format!("in use: process {process} has it open")));
        }
        let mut device = lent.open()?;
        let bytes = device.seek(SeekFrom::End(0)).doing(path.display())?;
        lent.require_empty(&device, bytes)?;
        Ok((lent, bytes))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it to be written, if it is the same disk as before and nothing has it: no mount, swap,
    /// RAID or partition of it.
    fn open(&self) -> Result<File> {
        let flags = OFlags::EXCL.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path);
        let device = match opened {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                let user = user_of(&self.path, self.identity.number);
                return Err(wrong(&self.path, &format!("in use: {user}")));
            }
            opened => opened.doing(self.path.display())?,
        };
        let found = device.metadata().doing(self.path.display())?;
        if !found.file_type().is_block_device() || Identity::of(&found) != self.identity {
            return Err(wrong(&self.path, "is another device than it was"));
        }
        Ok(device)
    }

    fn require_empty(&self, device: &File, bytes: u64) -> Result<()> {
        if self.force {
            return Ok(());
        }
        let has = |what: &str| Err(wrong(&self.path, &format!("not empty ({what}): use --force")));
        if let Some(what) = signature(&self.path)? {
            return has(&what);
        }
        // RAID has its signatures at the end.
        let last = bytes.saturating_sub(EDGE_BYTES);
        for (at, which) in [(0, "first"), (last, "last")] {
            let len = usize::try_from(EDGE_BYTES.min(bytes)).unwrap_or(0);
            let mut piece = vec![0; len];
            device.read_exact_at(&mut piece, at).doing(self.path.display())?;
            if piece.iter().any(|byte| *byte != 0) {
                return has(&format!("its {which} MiB is not zero"));
            }
        }
        Ok(())
    }

    /// The device to write `len` bytes to from its begin on. Before the first write it has to be as
    /// it was given.
    fn to_write(&self, len: u64) -> Result<File> {
        let mut device = self.open()?;
        if self.written.load(Ordering::Relaxed) == 0 {
            let bytes = device.seek(SeekFrom::End(0)).doing(self.path.display())?;
            self.require_empty(&device, bytes)?;
            device.rewind().doing(self.path.display())?;
        }
        self.written.fetch_max(len, Ordering::Relaxed);
        Ok(device)
    }

    /// Writes an image to its begin; holes of the image are zero there.
    pub(crate) fn write_image(&self, from: &Path) -> Result<()> {
        let mut image = File::open(from).doing(from.display())?;
        let len = image.metadata().doing(from.display())?.len();
        let device = self.to_write(len)?;
        zero(&device, 0, len).doing(format_args!("clearing {}", self.path.display()))?;
        let copied = copy_data(&mut image, &device, len).and_then(|()| device.sync_all());
        copied.doing(format_args!("writing {}", self.path.display()))
    }

    /// Makes its begin zero: room for a file system of that length.
    pub(crate) fn clear(&self, len: u64) -> Result<()> {
        let device = self.to_write(len)?;
        let cleared = zero(&device, 0, len).and_then(|()| device.sync_all());
        cleared.doing(format_args!("clearing {}", self.path.display()))
    }

    /// Leaves no file system of a run on it.
    ///
    /// # Errors
    /// Something goes on using it.
    pub(crate) fn give_back(&self) -> Result<()> {
        if self.written.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut tries = GIVE_BACK_TRIES;
        loop {
            // udev looks at a device when a writer has closed it, and has it for a moment.
            match self.clear_edges() {
                Err(_) if tries > 1 => tries -= 1,
                given => return given,
            }
            thread::sleep(GIVE_BACK_WAIT);
        }
    }

    fn clear_edges(&self) -> Result<()> {
        let mut device = self.open()?;
        let written = self.written.load(Ordering::Relaxed);
        let bytes = device.seek(SeekFrom::End(0)).doing(self.path.display())?;
        let end = bytes.saturating_sub(EDGE_BYTES);
        let head = zero(&device, 0, EDGE_BYTES.min(bytes));
        let tail = || if written > end { zero(&device, end, bytes - end) } else { Ok(()) };
        let cleared = head.and_then(|()| tail()).and_then(|()| device.sync_all());
        cleared.doing(format_args!("clearing {}", self.path.display()))?;
        self.written.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// A lock of the whole disk that another run, of whatever user, meets: a name that the system
/// forgets with the process that holds it.
fn lock(path: &Path, number: u64) -> Result<UnixListener> {
    let disk = disk_number(number);
    let name = format!("uext4-lab-disk-{}-{}", major(disk), minor(disk));
    let address = SocketAddr::from_abstract_name(&name).doing(path.display())?;
    for left in (0..LOCK_TRIES).rev() {
        match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.doing(path.display()),
        }
        if left > 0 {
            thread::sleep(GIVE_BACK_WAIT);
        }
    }
    Err(wrong(path, &format!("in use: another run has its disk (lock @{name})")))
}

/// A process that has the device open for longer than udev and blkid do, which look at new ones.
fn process_that_stays_with(number: u64) -> Option<u32> {
    let mut found = None;
    for _ in 0..LOOKS {
        found = process_with(number);
        found?;
        thread::sleep(GIVE_BACK_WAIT);
    }
    found
}

/// A process that has the device open, though not for itself alone.
fn process_with(number: u64) -> Option<u32> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").ok()?.filter_map(io::Result::ok);
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|process| *process != own).find(|process: &u32| {
        let files = fs::read_dir(format!("/proc/{process}/fd"));
        files.into_iter().flatten().filter_map(io::Result::ok).any(|file| {
            let found = fs::metadata(file.path());
            found.is_ok_and(|f| f.file_type().is_block_device() && f.rdev() == number)
        })
    })
}

/// What has a device that is in use.
fn user_of(path: &Path, device: u64) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", major(device), minor(device));
    let mount = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    if let Some(dir) = mount.clone().find_map(|w| (w.get(2) == Some(&&*number)).then(|| w[4])) {
        return format!("mounted on {dir}");
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next() == path.to_str()) {
        return "swap".to_owned();
    }
    let holders = fs::read_dir(format!("/sys/dev/block/{number}/holders"));
    let mut names = holders.into_iter().flatten().filter_map(io::Result::ok);
    names.next().map_or_else(
        || "something has it, or a partition of it, for itself alone".to_owned(),
        |holder| format!("a part of {}", holder.file_name().to_string_lossy()),
    )
}

/// What blkid(8) finds on it; status 2 says nothing.
fn signature(path: &Path) -> Result<Option<String>> {
    let args = ["-p".as_ref(), "-o".as_ref(), "export".as_ref(), path.as_os_str()];
    let (code, text) = command::status("blkid", &args)?;
    match code {
        Some(2) => Ok(None),
        Some(0) => Ok(found_in(&text)),
        Some(8) => Ok(Some("several signatures".to_owned())),
        _ => Err(wrong(path, "blkid cannot tell what is on it")),
    }
}

/// What is on a device by blkid's words. Of an empty partition it says how its disk has it.
fn found_in(text: &str) -> Option<String> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let named = value("TYPE=").or_else(|| value("PTTYPE=")).map(str::to_owned);
    let is_of_disk = |line: &str| line.starts_with("DEVNAME=") || line.starts_with("PART_ENTRY_");
    named.or_else(|| (!text.lines().all(is_of_disk)).then(|| "something".to_owned()))
}

fn copy_data(image: &mut File, device: &File, len: u64) -> io::Result<()> {
    let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
    while at < len {
        let start = match rustix::fs::seek(&*image, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&*image, rustix::fs::SeekFrom::Hole(start))?.min(len);
        at = start;
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
            image.read_exact_at(&mut piece[..left], at)?;
            device.write_all_at(&piece[..left], at)?;
            at += left as u64;
        }
    }
    Ok(())
}

/// Zeroes by whatever the device is fastest with; most unmap, some are written to.
fn zero(device: &File, at: u64, len: u64) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    if fallocate(device, punch, at, len).is_ok() || fallocate(device, range, at, len).is_ok() {
        return Ok(());
    }
    let (piece, end) = (vec![0; PIECE_BYTES], at + len);
    let mut at = at;
    while at < end {
        let now = (end - at).min(PIECE_BYTES as u64);
        device.write_all_at(&piece[..usize::try_from(now).unwrap_or(0)], at)?;
        at += now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop device over a sparse file; `None` (and a word why) where there is none.
    fn disk(file: &Path) -> Option<PathBuf> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("skipped: a loop device needs root");
            return None;
        }
        File::create(file).and_then(|file| file.set_len(8 << 20)).unwrap();
        let args = ["--find".as_ref(), "--show".as_ref(), file.as_os_str()];
        Some(PathBuf::from(command::run("losetup", &args).unwrap().trim()))
    }

    /// Fault model: an empty partition is told to have something on it.
    #[test]
    fn what_blkid_says_of_the_disk_is_nothing_on_a_partition() {
        let part = "DEVNAME=/dev/sda1\nPART_ENTRY_SCHEME=dos\nPART_ENTRY_TYPE=0x83\n";
        assert_eq!(found_in(part), None);
        let found = |more: &str| found_in(&format!("{part}{more}\n"));
        assert_eq!(found("TYPE=ext4").as_deref(), Some("ext4"));
        assert_eq!(found("PTTYPE=dos").as_deref(), Some("dos"));
        assert_eq!(found("LABEL=mine").as_deref(), Some("something"));
    }

    /// Fault model: somebody makes a file system between the question and the first write; two runs
    /// take one device; a run that writes nothing clears what it never wrote; what a run leaves at
    /// the end refuses the next one. Not covered: another disk that gets the name.
    #[test]
    fn what_came_after_the_question_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (file, image) = (dir.path().join("disk"), dir.path().join("image"));
        let Some(device) = disk(&file) else { return };
        fs::write(&image, [7; 8192]).unwrap();
        let (lent, bytes) = LentDevice::admit(&device, false).unwrap();
        assert_eq!(bytes, 8 << 20);
        let second = LentDevice::admit(&device, false).unwrap_err().to_string();
        assert!(second.contains("another run has its disk (lock @uext4-lab-disk-7-"), "{second}");

        command::run("mke2fs", &["-q".as_ref(), device.as_os_str()]).unwrap();
        let before = fs::read(&file).unwrap();
        let late = lent.write_image(&image).unwrap_err().to_string();
        assert!(late.contains("not empty (ext2)"), "{late}");
        lent.give_back().unwrap();
        drop(lent);
        assert!(fs::read(&file).unwrap() == before, "somebody's file system was written to");

        // What the image does not reach stays, also where the last MiB would be cleared.
        let disk = OpenOptions::new().write(true).open(&device).unwrap();
        disk.write_all_at(&[5; 4096], (8 << 20) - 4096).and_then(|()| disk.sync_all()).unwrap();
        drop(disk);
        let (lent, _) = LentDevice::admit(&device, true).unwrap();
        lent.write_image(&image).unwrap();
        assert_eq!(fs::read(&file).unwrap()[..8192], [7; 8192]);
        lent.give_back().unwrap();
        drop(lent);
        assert_eq!(fs::read(&file).unwrap()[(8 << 20) - 4096..], [5; 4096]);
        let full = OpenOptions::new().write(true).open(&device).unwrap();
        full.write_all_at(&[0; 4096], (8 << 20) - 4096).and_then(|()| full.sync_all()).unwrap();
        drop(full);

        // An image as long as the device: its last block may not make the device "not empty".
        fs::write(&image, vec![7; 8 << 20]).unwrap();
        let (lent, _) = LentDevice::admit(&device, false).unwrap();
        lent.write_image(&image).unwrap();
        lent.give_back().unwrap();
        let again = LentDevice::admit(&device, false).map(|(_, bytes)| bytes);
        assert!(again.is_err(), "it is still lent");
        drop(lent);
        assert_eq!(LentDevice::admit(&device, false).map(|(_, bytes)| bytes).unwrap(), 8 << 20);
        let detached = command::run("losetup", &["--detach".as_ref(), device.as_os_str()]);
        assert!(fs::read(&file).unwrap()[..1 << 20].iter().all(|byte| *byte == 0));
        detached.unwrap();
    }
}
