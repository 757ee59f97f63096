//! A dirty image of a live kernel mount, recovered by uext4 to what the kernel recovers.
//!
//! # How
//! The image lies in an outer file system, itself on a loop device. The kernel mounts the image; a
//! load of several threads works on it. The outer file system is frozen (`fsfreeze`), so that the
//! image stands still in the middle of the load, and copied. One copy is recovered by the kernel,
//! one by uext4, one by e2fsck; the trees are compared, content, modes, owners, times, attributes
//! and link counts, and uext4's also with what the load had synced before the freeze.
//!
//! Half of the images are of mounts with `data=journal`, whose logs hold file data. With
//! [`Commits::Fast`] the load is one that the kernel syncs by fast commits (`fast_load`), and
//! e2fsck, whose replay of these differs from the kernel's, is no judge of the tree.
//!
//! A synced operation that the kernel does not recover either is told, and no fault: the trees are
//! the same, and the live mount that lost it was the kernel's.
//!
//! # Not covered
//! Loss of what the outer file system's page cache held.

mod cuts;
mod fast_load;

use crate::external;
use crate::generator::Limits;
use crate::load::{self, Control};
use crate::model::History;
use crate::mount::{FuseMount, KernelMount, LoopDevice, run};
use crate::operation::{SHARED, SHARED_NAME, own_directory, own_name};
use crate::oracle::{self, image_folder, program};
use crate::tree::compare::{self, Scope};
use crate::view::View;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use uext4::config::Atime;
use uext4::{MountOptions, RecoveryReport};
use uext4_device::Access;

/// Threads of the load.
const THREADS: u32 = 3;
const INNER_MIB: u64 = 128;
/// Losses of power during a recovery of fast commits.
const CUTS: usize = 40;
/// Of a journal on a device of its own.
const JOURNAL_MIB: u64 = 6;
const OUTER_MIB: u64 = 400;

/// What came of one round.
#[derive(Debug)]
pub struct FreezeRound {
    /// The file system and the moment of the freeze.
    pub what: String,
    /// What the recovery had to do.
    pub recovery: RecoveryReport,
    /// Losses of power during uext4's recovery.
    pub cuts: usize,
    /// What is wrong.
    pub faults: Vec<String>,
}

/// Why no round can be made here, or `None`.
#[must_use]
pub fn why_not() -> Option<&'static str> {
    if let Some(why) = crate::mount::why_no_loop().or_else(crate::mount::why_no_fuse) {
        return Some(why);
    }
    let needed = ["fsfreeze", "mke2fs", "e2fsck"];
    needed.iter().any(|name| program(name).is_none()).then_some("fsfreeze, mke2fs or e2fsck")
}

/// A frozen file system; thawed when dropped.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn freeze(point: &'a Path) -> Result<Frozen<'a>, String> {
        run(Command::new("fsfreeze").arg("-f").arg(point))?;
        Ok(Frozen(point))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("fsfreeze").arg("-u").arg(self.0)) {
            println!("cannot thaw: {error}");
        }
    }
}

/// How the kernel commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    /// Whole transactions alone.
    Whole,
    /// Fast commits for syncs, where it can.
    Fast,
}

/// One round. `binary` is the `uext4` command; `external`: the journal is on a device of its own.
///
/// # Errors
/// The machinery failed.
pub fn round(
    binary: &Path,
    seed: u64,
    commits: Commits,
    external: bool,
    keep: Option<&Path>,
) -> Result<FreezeRound, String> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xf4ee_2e00);
    let block_size = [1024, 4096][rng.random_range(0..2)];
    let features = ["", "orphan_file,metadata_csum_seed"][rng.random_range(0..2)];
    let delay = Duration::from_millis(rng.random_range(50..2000));
    let data = ["data=ordered", "data=journal"][rng.random_range(0..2)];
    // Files whose data is journaled have no fast commits.
    let data = if commits == Commits::Fast { "data=ordered" } else { data };

    let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
    let outer_image = folder.path().join("outer.img");
    make(&outer_image, OUTER_MIB, &["-b", "4096"])?;
    let outer_point = folder.path().join("outer");
    let outer = KernelMount::start(&outer_image, &outer_point, false)?;
    let image = outer_point.join("disk.img");
    let block = block_size.to_string();
    let mut options = vec!["-b", &block, "-J", "size=4"];
    if !features.is_empty() {
        options.extend(["-O", features]);
    }
    if commits == Commits::Fast {
        options.extend(["-O", "fast_commit"]);
    }
    let journal = external.then(|| make_journal(&image, &block)).transpose()?;
    let device = journal.as_ref().map(|journal| format!("device={}", journal.path().display()));
    if let Some(device) = &device {
        options[3] = device;
    }
    make(&image, INNER_MIB, &options)?;
    drop(journal);
    let point = folder.path().join("mnt");
    let inner = KernelMount::start_with(&image, &point, data)?;
    set_up(&point)?;

    let copy = folder.path().join("copy.img");
    let control = Control::default();
    let limits = Limits { xattr_bytes: block_size as usize / 2, ..Limits::default() };
    let copy_frozen = || {
        let before = control.clock.tick();
        let frozen = Frozen::freeze(&outer_point)?;
        copy_image(&image, &copy)?;
        let copied = SystemTime::now();
        drop(frozen);
        Ok((before, copied))
    };
    let (history, (frozen_at, copied)) = match commits {
        Commits::Whole => load::run(&point, seed, THREADS, limits, &control, || {
            std::thread::sleep(delay);
            copy_frozen()
        })?,
        Commits::Fast => {
            let operations = rng.random_range(20..400);
            fast_load::run(&point, seed, operations).map_err(|error| format!("load: {error}"))?;
            (History::default(), copy_frozen()?)
        }
    };
    inner.unmount()?;
    outer.unmount()?;
    fs::remove_file(&outer_image).map_err(|error| error.to_string())?;

    let marks = history.syncs_before(frozen_at);
    let (mut faults, mut lost, mut cuts) = (Vec::new(), Vec::new(), 0);
    if commits == Commits::Fast && !external {
        (cuts, faults) = cuts::cut(&copy, seed, CUTS)?;
    }
    let copies = [folder.path().join("ours.img"), folder.path().join("e2fsck.img")];
    for path in &copies {
        copy_image(&copy, path)?;
    }
    if let Some(folder) = keep {
        let kept = folder.join(format!("freeze-{seed}.img"));
        copy_image(&copy, &kept)?;
    }
    let recovery = match recover(&copies[0], commits == Commits::Whole) {
        Ok((recovery, view)) => {
            lost = view.map_or(Vec::new(), |view| history.check(&marks, &view));
            recovery
        }
        Err(error) => {
            faults.push(format!("uext4: {error}"));
            RecoveryReport::default()
        }
    };
    // The kernel leaves its own summary counts to be found wrong; only the tree is compared.
    let judged = oracle::judge(&copies[1], "-fy").map_err(|error| error.to_string())?;
    let by_e2fsck = (&*copies[1], "e2fsck", truncated_orphans(&judged.text));
    let others = [(&*copies[0], "uext4", Vec::new()), by_e2fsck];
    let others = if commits == Commits::Fast { &others[..1] } else { &others[..] };
    let differences = against_kernel(binary, folder.path(), &copy, others, commits, copied)?;
    // What was synced is missing from the kernel's recovery as from ours: the live mount had not
    // made it durable (seen with data=journal, where fsync(2) waits for a commit alone).
    let is_kernels = differences.is_empty() && !lost.is_empty();
    let by_kernel = if is_kernels { ", some of it lost by the kernel" } else { "" };
    faults.extend(lost.into_iter().filter(|_| !is_kernels));
    faults.extend(differences);
    faults.extend(oracle::expect_clean(&copies[0]).err().map(|e| format!("after uext4: {e}")));
    let features = if features.is_empty() { "default features" } else { features };
    let apart = if external { ", external journal" } else { "" };
    let what = format!(
        "seed {seed}: {block_size}-byte blocks{apart}, {features}, {data}, frozen after {} ms, {} \
         operations, {} syncs before{by_kernel}",
        delay.as_millis(),
        history.len(),
        marks.len()
    );
    Ok(FreezeRound { what, recovery, cuts, faults })
}

/// Copies an image, and the journal beside it.
fn copy_image(from: &Path, to: &Path) -> Result<(), String> {
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", to.display()))
    };
    let journal = external::journal_path(from);
    if journal.exists() {
        copy(&journal, &external::journal_path(to))?;
    }
    copy(from, to)
}

/// Makes a journal device beside an image, under a loop device, as mke2fs takes no file.
fn make_journal(image: &Path, block_size: &str) -> Result<LoopDevice, String> {
    let path = external::journal_path(image);
    make(&path, JOURNAL_MIB, &["-b", block_size, "-O", "journal_dev"])?;
    LoopDevice::attach(&path)
}

fn make(image: &Path, mib: u64, options: &[&str]) -> Result<(), String> {
    let made = File::create(image).and_then(|file| file.set_len(mib << 20));
    made.map_err(|error| format!("{}: {error}", image.display()))?;
    let program = program("mke2fs").ok_or("mke2fs is not installed")?;
    let mut command = Command::new(program);
    command.args(["-q", "-F", "-t", "ext4"]).args(options).arg(image);
    run(&mut command).map(drop)
}

/// The directories of the load, as [`crate::set_up`] makes them on a volume.
fn set_up(point: &Path) -> Result<(), String> {
    let own = (1..=THREADS).map(|thread| (own_name(thread), own_directory(thread)));
    for (name, id) in own.chain([(SHARED_NAME.to_vec(), SHARED)]) {
        let path = point.join(OsStr::from_bytes(&name));
        let made = fs::create_dir(&path)
            .and_then(|()| std::os::unix::fs::chown(&path, Some(id), Some(0)))
            .and_then(|()| File::open(point)?.sync_all());
        made.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Opens and closes an image with uext4. `views`: the history is to be held against it.
fn recover(image: &Path, views: bool) -> Result<(RecoveryReport, Option<View>), String> {
    let parts = external::open_files(image, Access::ReadWrite)?;
    let options = MountOptions { atime: Atime::None, ..MountOptions::default() };
    let volume = external::open(parts, options).map_err(|error| format!("open: {error}"))?;
    let recovery = volume.recovery();
    let view = views.then(|| View::read(&volume)).transpose()?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    Ok((recovery, view))
}

/// The inodes of which e2fsck says that it has ended their truncation. It takes the block of
/// attributes off such a file (1.47.0; the kernel does not), and finds the count of blocks wrong
/// afterwards.
fn truncated_orphans(said: &str) -> Vec<u64> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("Truncating orphaned inode "));
    lines.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

/// Compares what the kernel recovers of `copy` with others' recoveries: the image, whose it is, and
/// the inodes that may have lost attributes.
fn against_kernel(
    binary: &Path,
    folder: &Path,
    copy: &Path,
    others: &[(&Path, &str, Vec<u64>)],
    commits: Commits,
    copied: SystemTime,
) -> Result<Vec<String>, String> {
    let (kernel_point, point) = (folder.join("kernel"), folder.join("ours"));
    let kernel = KernelMount::start(copy, &kernel_point, false)?;
    let recovered_after = Some(copied);
    let mut faults = Vec::new();
    for (image, recovered_by, stripped) in others {
        let scope = Scope {
            whole_volume: true,
            access_times: true,
            recovered_after,
            no_directory_links: commits == Commits::Fast,
            stripped,
            ..Scope::default()
        };
        let mount = FuseMount::start(binary, image, &point)?;
        let differences = compare::trees(&kernel_point, &point, scope)?;
        faults
            .extend(differences.iter().map(|d| format!("the kernel's and {recovered_by}'s: {d}")));
        mount.unmount(binary)?;
    }
    kernel.unmount()?;
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inodes are those of e2fsck's lines, and of no others.
    #[test]
    fn truncated_orphans_are_read_from_what_e2fsck_says() {
        let said = "a.img: recovering journal\n\
            Truncating orphaned inode 92 (uid=1048613, gid=0, mode=0100703, size=75170)\n\
            Clearing orphaned inode 26 (uid=1048598, gid=608, mode=0100617, size=0)\n";
        assert_eq!(truncated_orphans(said), [92]);
    }
}
