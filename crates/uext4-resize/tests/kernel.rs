//! What the kernel makes of a log that holds a growth.
//!
//! Fault model: the power fails after the commit of the growth and before its superblock is in
//! place; the kernel recovers that. It counts the groups before it replays the log, so its first
//! mount uses the old ones only (docs/resize.md). This test holds on to the rest: files are
//! untouched, e2fsck finds no damage, and the next mount has all groups. Needs root.
//! Not covered: writing beyond the old groups in the first mount, which loses data.

mod common;

use common::{bytes, have, mke2fs, open, run, write_file};
use std::path::Path;
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{MemoryDevice, RecordingDevice, SharedDevice};
use uext4_ondisk::RawSuperblock;
use uext4_resize::{ResizeError, fitting_blocks, resize};
use uext4_sim::crash::{Depth, each_state};
use uext4_sim::mount::{KernelMount, why_no_loop};

const CONTENT: usize = 300_000;
/// Words of mke2fs, and the sizes in KiB before and after.
const CASES: &[(&str, u64, u64)] = &[
    ("-b 1024 -J size=1", 20 << 10, 60 << 10),
    ("-b 1024 -J size=1 -O ^resize_inode", 20 << 10, 160 << 10),
    ("-b 4096 -J size=4", 100 << 10, 300 << 10),
];

fn superblock(device: &MemoryDevice) -> RawSuperblock {
    let mut bytes = [0; 1024];
    uext4_device::Device::read_at(device, 1024, &mut bytes).expect("is read");
    RawSuperblock::from_prefix(&bytes).expect("is long enough")
}

/// A state in which the log has the growth and the superblock in place is the old one, and the
/// blocks afterwards.
fn committed(image: &MemoryDevice, kib: u64) -> (MemoryDevice, u64) {
    let old = superblock(image);
    let recorder = Arc::new(RecordingDevice::over(image.snapshot()));
    let device: SharedDevice = recorder.clone();
    let blocks = fitting_blocks(&old, kib >> old.s_log_block_size.get()).expect("a size");
    let mut open = || -> Result<Volume, ResizeError> {
        Ok(Volume::open(Arc::clone(&device), MountOptions::default())?)
    };
    resize(blocks, &mut open).expect("grows");
    let depth = Depth { exhaustive_max: 0, random: 0 };
    let mut found = None;
    each_state(&recorder.recording(), depth, 7, &mut |state, _| {
        if superblock(state).blocks_count() != old.blocks_count() {
            return true;
        }
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let shared: SharedDevice = Arc::new(state.snapshot());
        let volume = Volume::open(shared, options).expect("opens");
        if volume.superblock().blocks_count() == blocks {
            found = Some(state.snapshot());
        }
        found.is_none()
    });
    (found.expect("such a state"), blocks)
}

/// Free blocks according to the kernel's mount of an image, which must show the content.
fn free_blocks(image: &Path, point: &Path) -> u64 {
    let mount = KernelMount::start(image, point, false).expect("mounts");
    let words = ["-f", "-c", "%f"];
    let output = std::process::Command::new("stat").args(words).arg(point).output().expect("runs");
    let content = std::fs::read(point.join("content")).expect("is there");
    mount.unmount().expect("unmounts");
    assert!(content == bytes("content", CONTENT), "other content");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

#[test]
fn a_kernel_that_replays_a_growth_leaves_it_whole() {
    if let Some(why) = why_no_loop() {
        println!("skipped: {why}");
        return;
    }
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (path, point) = (dir.path().join("image"), dir.path().join("mnt"));
    for (words, from, to) in CASES {
        mke2fs(&path, *from, words);
        let volume = open(&path).expect("opens");
        write_file(&volume, "content", CONTENT);
        volume.close().expect("closes");
        let file = std::fs::File::options().write(true).open(&path).expect("an image");
        file.set_len(to << 10).expect("room");
        let image = MemoryDevice::load(&path).expect("an image");
        let (state, blocks) = committed(&image, *to);
        uext4_sim::oracle::save(&state, &path).expect("saved");
        let first = free_blocks(&path, &point);
        let (status, said) = run("e2fsck", "-fn", &path);
        assert_eq!(status, 0, "{words}: {said}");
        assert_eq!(common::superblock(&path).blocks_count(), blocks, "{words}");
        let second = free_blocks(&path, &point);
        println!("{words}: {first} blocks free, then {second} of {blocks}");
        assert!(second > blocks / 2, "{words}: the new groups are not used");
        common::assert_clean(&path, words);
    }
}
