//! Fast commits that a kernel writes seldom, and some that only a hostile log has.
//!
//! Fault model: power fails after a fast commit of these records; the device holds them whole. What
//! is opened must be clean by the checker when it has been closed; what is refused names the rule.

use crate::fast_commits::{BLOCK, enable};
use std::sync::Arc;
use uext4::{Error, FileKind, InodeRef, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::{BlockNo, FileBlock, RawInode};

/// A volume over a device in memory, and what a test needs to know of it.
struct Left {
    volume: Volume,
    device: Arc<MemoryDevice>,
}

fn format(mib: u64, change: impl FnOnce(&mut uext4_mkfs::Options)) -> Left {
    let device = Arc::new(MemoryDevice::new(mib << 20));
    // No device of zeroes, on which tables would count as written.
    device.write_at(0, &[1]).unwrap();
    let mut options = uext4_mkfs::Options {
        block_size: Some(1024),
        journal_mib: Some(2),
        ..uext4_mkfs::Options::default()
    };
    change(&mut options);
    uext4_mkfs::format(&*device, &options).unwrap();
    let volume = Volume::open(device.clone(), MountOptions::default()).unwrap();
    Left { volume, device }
}

impl Left {
    fn make(&self, name: &str, kind: FileKind) -> InodeRef {
        let mode = 0o755;
        let new = NewInode { kind, mode, owner: Owner::default(), rdev: Default::default() };
        self.volume.create(&self.volume.root().unwrap(), name.as_bytes(), &new).unwrap()
    }

    fn write(&self, inode: &InodeRef, at: u64) {
        let file = self.volume.open_file(inode).unwrap();
        file.write_at(at, &[7; BLOCK]).unwrap();
        file.sync(false).unwrap();
    }

    /// Where the first block of a file lies.
    fn place(&self, inode: &InodeRef) -> u64 {
        let mut place = None;
        self.volume
            .extents(inode, FileBlock(0), &mut |extent| {
                place = Some(extent.start);
                false
            })
            .unwrap();
        place.map(BlockNo::get).expect("a block")
    }

    /// What comes of the records when power fails after them.
    fn repeat(self, records: &[Vec<u8>]) -> Result<(), Error> {
        // The log has a transaction: behind an empty one nothing is looked for.
        self.write(&self.make("last", FileKind::Regular), 0);
        self.volume.abandon();
        let device = Arc::new(self.device.snapshot());
        enable(&device).put(&device, records);
        let volume = Volume::open(device.clone(), MountOptions::default())?;
        assert_eq!(volume.recovery().fast_commits, 1);
        volume.close()?;
        let report = uext4_fsck::check(&*device, &uext4_fsck::Options::default(), &mut ());
        let findings = report.unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
        Ok(())
    }

    fn refuses(self, records: &[Vec<u8>], why: &str) {
        let error = self.repeat(records).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn record(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A block is mapped.
fn add_range(ino: u32, first: u32, start: u64) -> Vec<u8> {
    record(1, &numbers(&[ino, first, 1, start as u32]))
}

fn del_range(ino: u32, first: u32) -> Vec<u8> {
    record(2, &numbers(&[ino, first, 1]))
}

fn name(kind: u16, ino: u32, name: &str) -> Vec<u8> {
    record(kind, &[&numbers(&[2, ino])[..], name.as_bytes()].concat())
}

fn create(ino: u32, of: &str) -> Vec<u8> {
    name(3, ino, of)
}

fn unlink(ino: u32, of: &str) -> Vec<u8> {
    name(5, ino, of)
}

fn inode(ino: u32, generation: u32, mode: u16, size: u32) -> Vec<u8> {
    let mut raw = RawInode::zeroed();
    raw.i_mode.set(mode);
    raw.i_generation.set(generation);
    raw.i_links_count.set(if mode & 0o040_000 != 0 { 2 } else { 1 });
    raw.i_size_lo.set(size);
    raw.i_flags.set(0x8_0000);
    let mut bytes = numbers(&[ino]);
    bytes.extend(&raw.bytes()[..160]);
    bytes[4 + 128] = 32;
    record(6, &bytes)
}

const FILE: u16 = 0o100_644;
const DIRECTORY: u16 = 0o040_755;

/// With `data=writeback` a kernel gives a block away before the transaction that frees it.
#[test]
fn a_block_that_another_file_loses_later_stays_in_use() {
    let left = format(16, |_| {});
    let (one, other) = (left.make("one", FileKind::Regular), left.make("other", FileKind::Regular));
    left.write(&one, 0);
    left.write(&other, 0);
    let place = left.place(&one);
    let records = [
        inode(other.ino().get(), other.generation(), FILE, 6 * 1024),
        add_range(other.ino().get(), 5, place),
        del_range(one.ino().get(), 0),
    ];
    drop((one, other));
    left.repeat(&records).unwrap();
}

#[test]
fn a_name_may_stand_for_a_file_with_the_number_of_the_one_before() {
    let left = format(16, |_| {});
    let (was_file, was_directory) =
        (left.make("a", FileKind::Regular), left.make("b", FileKind::Directory));
    left.write(&was_file, 0);
    let (file, directory) = (was_file.ino().get(), was_directory.ino().get());
    let records = [
        unlink(file, "a"),
        unlink(directory, "b"),
        inode(file, 77, DIRECTORY, 1024),
        create(file, "a"),
        inode(directory, 78, FILE, 0),
        create(directory, "b"),
    ];
    drop((was_file, was_directory));
    left.repeat(&records).unwrap();
}

#[test]
fn the_number_of_an_orphan_is_left_to_e2fsck() {
    let left = format(16, |_| {});
    let orphan = left.make("a", FileKind::Regular);
    left.write(&orphan, 0);
    let root = left.volume.root().unwrap();
    left.volume.unlink(&root, b"a").unwrap();
    let ino = orphan.ino().get();
    let records = [inode(ino, 77, FILE, 0), create(ino, "b")];
    drop(root);
    left.refuses(&records, "whose number an orphan had");
    // It was open while power failed.
    drop(orphan);
}

#[test]
fn what_would_be_lost_at_once_refuses() {
    let left = format(16, |_| {});
    left.refuses(&[inode(40, 7, FILE, 0)], "no name");
    let left = format(16, |_| {});
    let dead = left.make("d", FileKind::Directory).ino().get();
    let below = record(3, &[&numbers(&[dead, 41])[..], b"x"].concat());
    left.refuses(&[inode(41, 7, FILE, 0), below, unlink(dead, "d")], "no name");
}

#[test]
fn directories_that_stay_have_no_records() {
    for kind in 0..3 {
        let left = format(16, |_| {});
        let made = left.make("d", FileKind::Directory);
        let (ino, generation) = (made.ino().get(), made.generation());
        drop(made);
        let record = match kind {
            0 => inode(ino, generation, DIRECTORY, 1024),
            1 => del_range(ino, 0),
            _ => create(ino, "a second name"),
        };
        left.refuses(&[record], "directory that stays");
    }
}

/// Tables that were never written are zeroed up to the inode. The log has to hold that, and memory.
#[test]
fn the_far_ends_of_all_inode_tables_are_refused() {
    let left = format(64, |options| {
        options.inodes = Some(32_768);
        (options.lazy_itable_init, options.discard) = (Some(true), Some(false));
    });
    let layout = left.volume.layout().clone();
    let last = |group: u32| (group + 1) * layout.inodes_per_group;
    let far: Vec<_> = (0..3)
        .flat_map(|group| {
            let ino = last(group);
            [inode(ino, 7, FILE, 0), create(ino, &format!("far {ino}"))]
        })
        .collect();
    left.refuses(&far, "inode tables");
}
