//! Memory: what is resident follows the budget, not the size of the image or of the load.
//!
//! Each case runs in a process of its own on an image in a file and measures the peak of resident
//! memory (`VmHWM`) above what was resident when it began. Budget: `cache=`. Allowance on top: what
//! stands outside the budget by design (a transaction under way and one being committed, the images
//! that await checkpoint, the writeback batch, the overhead of the allocator), measured to be less
//! than [`ALLOWANCE_MIB`] with a cache of 16 MiB. Not covered: the page cache of the host, which
//! holds the image file.

#[allow(dead_code)] // the watchdog is for hostile images
#[path = "common/child.rs"]
mod child;
mod common;

use common::{have, new};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use uext4::{InodeRef, MountOptions, Owner, Volume, config::Atime};
use uext4_device::{Access, FileDevice, SharedDevice};
use uext4_ondisk::FileKind;

const CACHE_MIB: u64 = 16;
const ALLOWANCE_MIB: u64 = 24;
const BOUND: Duration = Duration::from_secs(300);

/// Runs a case in a child, which prints its peak.
fn measure(name: &str) {
    if !have("mke2fs") {
        return;
    }
    let outcome = child::run(name, "run", BOUND);
    let peak = outcome.output.lines().find(|line| line.contains("PEAK"));
    println!("{name}: {}", peak.unwrap_or("no report"));
    assert!(outcome.success && peak.is_some(), "{}", outcome.output);
}

fn image(dir: &tempfile::TempDir, size: &str, options: &str) -> Arc<FileDevice> {
    let path = dir.path().join("image");
    let output = Command::new("/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1"])
        .args(options.split_whitespace())
        .arg(&path)
        .arg(size)
        .output()
        .expect("mke2fs runs");
    assert!(output.status.success(), "{output:?}");
    open_file(&path)
}

fn open_file(path: &Path) -> Arc<FileDevice> {
    Arc::new(FileDevice::open(path, Access::ReadWrite, 0).expect("image"))
}

fn mount(device: &Arc<FileDevice>, options: MountOptions) -> Volume {
    let shared: SharedDevice = device.clone();
    Volume::open(shared, options).expect("mount")
}

fn small_cache() -> MountOptions {
    MountOptions { cache_bytes: CACHE_MIB << 20, ..MountOptions::default() }
}

/// Prints the peak above `before`, and holds it to `bound_mib`.
fn check_peak(before_kib: u64, bound_mib: u64) {
    let peak = child::status_kib("VmHWM:") - before_kib;
    println!("\nPEAK {peak} KiB, bound {} KiB", bound_mib * 1024);
    assert!(peak < bound_mib * 1024, "peak of {peak} KiB");
}

#[test]
fn a_large_sparse_image_is_opened_and_listed() {
    let name = "a_large_sparse_image_is_opened_and_listed";
    if child::task(name).is_none() {
        return measure(name);
    }
    let dir = tempfile::tempdir().unwrap();
    let device = image(&dir, "200G", "");
    // Here the whole process counts.
    child::reset_peak();
    for read_only in [true, false] {
        let volume = mount(&device, MountOptions { read_only, ..MountOptions::default() });
        let root = volume.root().unwrap();
        let mut names = 0;
        volume
            .read_dir(&root, 0, &mut |_| {
                names += 1;
                true
            })
            .unwrap();
        assert_eq!(names, 3);
        assert!(volume.stat_fs().blocks > 48 << 20);
        drop(root);
        volume.close().unwrap();
    }
    check_peak(0, 64);
}

#[test]
fn file_data_ten_times_the_cache() {
    let name = "file_data_ten_times_the_cache";
    if child::task(name).is_none() {
        return measure(name);
    }
    let dir = tempfile::tempdir().unwrap();
    let device = image(&dir, "512M", "");
    // One request of many megabytes; its buffer is the caller's.
    let mut large = vec![0x5a; 100 << 20];
    let before = child::reset_peak();
    let volume = mount(&device, small_cache());
    let root = volume.root().unwrap();
    let file = |name: &str| {
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        volume.open_file(&inode).unwrap()
    };
    let pieces = file("pieces");
    for n in 0..170_u64 << 4 {
        pieces.write_at(n << 16, &[n as u8; 1 << 16]).unwrap();
    }
    let whole = file("whole");
    assert_eq!(whole.write_at(0, &large).unwrap(), large.len());
    for _ in 0..2 {
        assert_eq!(whole.read_at(0, &mut large).unwrap(), large.len());
        assert!(large.iter().all(|&byte| byte == 0x5a));
        let mut piece = vec![0; 1 << 16];
        for n in 0..170_u64 << 4 {
            pieces.read_at(n << 16, &mut piece).unwrap();
            assert_eq!(piece[777], n as u8);
        }
    }
    for n in 0..3000 {
        let small = file(&format!("small{n}"));
        small.write_at(0, &[1; 20_000]).unwrap();
    }
    drop((pieces, whole, root));
    volume.close().unwrap();
    check_peak(before, CACHE_MIB + ALLOWANCE_MIB);
}

#[test]
fn metadata_ten_times_the_cache() {
    let name = "metadata_ten_times_the_cache";
    if child::task(name).is_none() {
        return measure(name);
    }
    let dir = tempfile::tempdir().unwrap();
    let device = image(&dir, "1G", "-N 200000");
    let before = child::reset_peak();
    let volume = mount(&device, small_cache());
    populate(&volume);
    volume.close().unwrap();
    check_peak(before, CACHE_MIB + ALLOWANCE_MIB);
    // Every symbolic link that is read gets a new access time.
    let volume = mount(&device, MountOptions { atime: Atime::Strict, ..small_cache() });
    assert_eq!(walk(&volume, &volume.root().unwrap()), 160 + 160 * 700 + 1);
    volume.close().unwrap();
    check_peak(before, CACHE_MIB + ALLOWANCE_MIB);
}

/// 112,000 inodes: 28 MiB of inode tables and 5 MiB of directories for a quarter of 16 MiB.
fn populate(volume: &Volume) {
    let root = volume.root().unwrap();
    for d in 0..160 {
        let name = format!("directory-{d}");
        let dir = volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
        for n in 0..700 {
            let name = format!("entry-{n:05}-of-directory-{d:05}").into_bytes();
            if n % 2 == 0 {
                volume.symlink(&dir, &name, b"target", Owner::default()).unwrap();
            } else {
                volume.create(&dir, &name, &new(FileKind::Regular, 0o644)).unwrap();
            }
        }
    }
}

fn walk(volume: &Volume, dir: &InodeRef) -> usize {
    let mut names = Vec::new();
    volume
        .read_dir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    names.retain(|name| !name.starts_with(b"."));
    let mut count = names.len();
    for name in names {
        let inode = volume.lookup(dir, &name).unwrap();
        match inode.kind() {
            FileKind::Directory => count += walk(volume, &inode),
            FileKind::Symlink => drop(volume.read_link(&inode).unwrap()),
            _ => {}
        }
    }
    count
}
