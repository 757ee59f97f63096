//! Directories on whole images, checked by e2fsck, debugfs and the kernel.
//!
//! Fault model: a record, hash, index entry or checksum where the format does not have it; names
//! lost, doubled or left behind by splits, removals and reading meanwhile. Not covered: crashes in
//! the middle (the journal's tests), damaged images.

mod hostile;

use super::{Insertion, init, init_credits, is_empty, lookup, parent_entry, read};
use crate::alloc::Child;
use crate::cache::BlockKind;
use crate::error::{ErrorKind, Result};
use crate::extent;
use crate::extent::harness::{Folder, Harness, Mount, make_image, must};
use crate::inode::{Attributes, Inode, InodeRef};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::{FileBlock, FileKind, Ino, InodeFlags, htree};

/// Names of a test: short ones, and every fourth a long one; some are not ASCII.
pub(super) fn name(n: usize) -> Vec<u8> {
    match n % 4 {
        0 => format!("{n:0>width$}", width = 10 + n % 245).into_bytes(),
        1 => format!("n{n}").into_bytes(),
        2 => format!("\u{e4}\u{6f22}{n}").into_bytes(),
        _ => format!("a name of middling length, number {n}").into_bytes(),
    }
}

/// What the tests do with directories.
impl Harness {
    /// Adds a name for a regular file.
    pub(super) fn link(&mut self, dir: &Inode, name: &[u8], ino: Ino) -> Result<()> {
        let insertion = Insertion::plan(dir, name)?;
        self.run(insertion.credits(), |handle| insertion.apply(handle, ino, FileKind::Regular))?;
        *self.links.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Removes a name that a test has added.
    fn unlink(&mut self, dir: &Inode, name: &[u8]) -> Result<()> {
        let entry = lookup(dir, name)?.expect("the name is there");
        self.run(1, |handle| entry.remove(handle, dir))?;
        *self.links.entry(entry.ino).or_default() -= 1;
        Ok(())
    }

    /// Makes a directory.
    fn mkdir(&mut self, parent: &Inode, name: &[u8]) -> Result<InodeRef> {
        let insertion = Insertion::plan(parent, name)?;
        let mut allocation = self.space.allocate_inode(parent.ino(), Child::Directory)?;
        let mut attributes = Attributes::new(self.space.layout(), FileKind::Directory, 0o755, 7);
        attributes.links = 2;
        let kind = FileKind::Directory;
        let (ino, data_group) = (allocation.ino(), allocation.data_group());
        let creation = self.inodes.begin_creation(ino);
        let inode = Inode::create(self.inodes.context(), ino, data_group, kind, attributes)?;
        let inode = Arc::new(inode);
        let mut growth = extent::allocate_growth(&inode, 1)?;
        let credits = insertion.credits() + init_credits(&inode) + 2 + 1;
        self.run(credits, |handle| {
            self.space.mark_inode_used(handle, &mut allocation, true)?;
            init(handle, &inode, &mut growth, parent.ino())?;
            insertion.apply(handle, inode.ino(), kind)?;
            parent.update(handle, |attributes| attributes.links += 1)
        })?;
        Ok(creation.finish(inode))
    }

    /// Every name of a directory, read in steps of at most `step` entries.
    fn read_all(&self, dir: &Inode, step: usize) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut names = Vec::new();
        let mut cursor = 0;
        loop {
            let before = names.len();
            cursor = self.read_some(dir, cursor, step, &mut names)?;
            if names.len() == before {
                return Ok(names);
            }
        }
    }

    /// Up to `count` entries from `cursor` on; the cursor behind them.
    fn read_some(
        &self,
        dir: &Inode,
        mut cursor: u64,
        count: usize,
        names: &mut Vec<(Vec<u8>, Ino)>,
    ) -> Result<u64> {
        let end = names.len() + count;
        read(dir, cursor, &mut |entry| {
            if names.len() == end {
                return false;
            }
            assert!(entry.next > cursor, "cursors rise");
            cursor = entry.next;
            names.push((entry.name.to_vec(), entry.ino));
            true
        })?;
        Ok(cursor)
    }

    /// Levels of nodes in the tree of a directory.
    fn index_levels(&self, dir: &Inode) -> u8 {
        let at = extent::block_of(dir, FileBlock(0)).unwrap();
        let kind = BlockKind::DirIndex { seed: dir.seed() };
        let buffer = self.space.journal().cache().read(at, kind).unwrap();
        let has_csum = self.space.layout().has_metadata_csum();
        let bytes = buffer.read();
        htree::parse_root(&bytes, has_csum, htree::MAX_LEVELS_LARGEDIR).unwrap().0.levels
    }
}

fn listed(harness: &Harness, dir: &Inode, step: usize) -> BTreeSet<Vec<u8>> {
    let all = harness.read_all(dir, step).unwrap();
    let count = all.len();
    let names: BTreeSet<_> = all.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), count, "a name was read twice");
    assert!(names.contains(&b"."[..]) && names.contains(&b".."[..]));
    names.into_iter().filter(|name| name != b"." && name != b"..").collect()
}

/// Names of `/d` as debugfs sees them.
fn seen_by_debugfs(image: &str) -> usize {
    let out = must("debugfs", &["-R", "ls -p /d", image]);
    out.lines().filter(|line| line.starts_with('/') && !line.starts_with("/0/")).count()
}

/// The kernel lists these names in `/d` and finds each; said aloud where it cannot mount.
fn kernel_agrees(folder: &Folder, image: &str, names: &BTreeSet<Vec<u8>>) {
    let Some(mount) = Mount::new(folder, image) else { return };
    let listed: BTreeSet<Vec<u8>> = std::fs::read_dir(mount.path("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    assert_eq!(listed, *names);
    for name in names {
        let path = Path::new(&mount.path("d")).join(OsStr::from_bytes(name));
        assert!(std::fs::symlink_metadata(path).is_ok());
    }
}

/// Adds `count` names, removes half of them in random order, adds some again; looks and lists on
/// the way, and has the image checked twice.
fn fill_and_thin(count: usize, size: &str, args: &[&str]) {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, size, args) else { return };
    let mut rng = StdRng::seed_from_u64(count as u64);
    let mut harness = Harness::open(&image);
    let files = harness.files();
    let dir = harness.inode("d");
    assert!(is_empty(&dir).unwrap());
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut rng);
    for &n in &order {
        harness.link(&dir, &name(n), files[n % 4]).unwrap();
    }
    let exists = Insertion::plan(&dir, &name(0)).unwrap_err();
    assert_eq!(*exists.kind(), ErrorKind::Exists);
    assert!(!is_empty(&dir).unwrap());
    for n in 0..count {
        let entry = lookup(&dir, &name(n)).unwrap().expect("the name is there");
        assert_eq!((entry.ino, entry.kind), (files[n % 4], Some(FileKind::Regular)));
    }
    assert!(lookup(&dir, b"absent").unwrap().is_none());
    let all: BTreeSet<_> = (0..count).map(name).collect();
    assert_eq!(listed(&harness, &dir, 100), all);
    let root = Ino::ROOT;
    assert_eq!(parent_entry(&dir).unwrap().ino, root);
    drop(dir);
    harness.close_and_check();
    let image_path = image.to_str().unwrap();
    assert_eq!(seen_by_debugfs(image_path), count + 2);

    // The image has link counts now; the harness continues from them.
    let mut harness = Harness::open(&image);
    harness.continue_links(&files);
    let dir = harness.inode("d");
    order.shuffle(&mut rng);
    let (gone, kept) = order.split_at(count / 2);
    for &n in gone {
        harness.unlink(&dir, &name(n)).unwrap();
    }
    for &n in gone {
        assert!(lookup(&dir, &name(n)).unwrap().is_none());
    }
    let kept_names: BTreeSet<_> = kept.iter().map(|&n| name(n)).collect();
    assert_eq!(listed(&harness, &dir, 7), kept_names);
    for &n in &gone[..gone.len() / 2] {
        harness.link(&dir, &name(n), files[n % 4]).unwrap();
    }
    drop(dir);
    harness.close_and_check();
    assert_eq!(seen_by_debugfs(image_path), kept.len() + gone.len() / 2 + 2);
    let there = kept.iter().chain(&gone[..gone.len() / 2]).map(|&n| name(n));
    kernel_agrees(&folder, image_path, &there.collect());
}

#[test]
fn small_directories() {
    for count in [1, 2, 100] {
        fill_and_thin(count, "16M", &["-b", "1024"]);
        fill_and_thin(count, "32M", &["-b", "4096"]);
    }
    fill_and_thin(100, "16M", &["-b", "1024", "-O", "^metadata_csum"]);
    fill_and_thin(100, "16M", &["-b", "1024", "-O", "^dir_index"]);
    fill_and_thin(100, "16M", &["-b", "2048", "-O", "^64bit,^metadata_csum,^dir_index"]);
}

#[test]
fn middling_directories() {
    fill_and_thin(5_000, "32M", &["-b", "1024"]);
    fill_and_thin(5_000, "64M", &["-b", "4096"]);
    fill_and_thin(3_000, "32M", &["-b", "2048", "-O", "^metadata_csum"]);
    fill_and_thin(2_000, "32M", &["-b", "1024", "-O", "^dir_index"]);
}

#[test]
#[ignore = "takes a quarter of a minute"]
fn large_directories() {
    fill_and_thin(200_000, "512M", &["-b", "4096"]);
    fill_and_thin(200_000, "512M", &["-b", "1024", "-O", "large_dir"]);
}

#[test]
fn all_hash_functions_and_signs() {
    for algorithm in ["legacy", "half_md4", "tea"] {
        for unsigned in [false, true] {
            let folder = Folder::new();
            let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
            let path = image.to_str().unwrap();
            must("tune2fs", &["-E", &format!("hash_alg={algorithm}"), path]);
            let flags = if unsigned { "2" } else { "1" };
            must("debugfs", &["-w", "-R", &format!("ssv flags {flags}"), path]);
            let mut harness = Harness::open(&image);
            assert_eq!(harness.space.layout().name_hash.unsigned, unsigned);
            let files = harness.files();
            let dir = harness.inode("d");
            for n in 0..1_000 {
                harness.link(&dir, &name(n), files[n % 4]).unwrap();
            }
            let names = listed(&harness, &dir, 10);
            assert_eq!(names.len(), 1_000);
            assert!(dir.attributes().flags.contains(InodeFlags::INDEX));
            drop(dir);
            harness.close_and_check();
            kernel_agrees(&folder, path, &names);
        }
    }
}

/// Names that agree in the legacy hash; made once by search.
const SAME_HASH: &[(u32, &str)] = &[
    (0, "0aa"),
    (3_209, "E1W"),
    (21_968, "XGm"),
    (33_086, "dCH"),
    (33_144, "kyv"),
    (56_756, "O2N"),
    (57_443, "fdi"),
    (80_157, "ilL"),
    (96_479, "NIq"),
    (98_189, "Ddh"),
    (99_287, "V94"),
    (115_453, "iED"),
    (117_681, "vGG"),
    (129_449, "FTT"),
    (130_380, "jFp"),
    (141_573, "YOg"),
];

#[test]
fn names_of_one_hash_fill_several_leaves() {
    let same: Vec<Vec<u8>> =
        SAME_HASH.iter().map(|(n, end)| format!("{n:0200}{end}").into_bytes()).collect();
    let hasher =
        DirHasher { version: HashVersion::Legacy, unsigned: true, seed: [0; 4], folds: false };
    assert!(same.iter().all(|name| hasher.hash(name).0 == hasher.hash(&same[0]).0));

    for seed in 0..4 {
        let folder = Folder::new();
        let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
        must("tune2fs", &["-E", "hash_alg=legacy", image.to_str().unwrap()]);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut harness = Harness::open(&image);
        let files = harness.files();
        let dir = harness.inode("d");
        let mut names: Vec<_> = same.iter().cloned().chain((0..60).map(name)).collect();
        names.shuffle(&mut rng);
        for name in &names {
            harness.link(&dir, name, files[0]).unwrap();
        }
        let want: BTreeSet<_> = names.iter().cloned().collect();
        for step in [1, 3, 1_000] {
            assert_eq!(listed(&harness, &dir, step), want);
        }
        names.shuffle(&mut rng);
        for name in &names[..30] {
            harness.unlink(&dir, name).unwrap();
        }
        for name in &names[..10] {
            harness.link(&dir, name, files[1]).unwrap();
        }
        for name in &names {
            let is_there = !names[10..30].contains(name);
            assert_eq!(lookup(&dir, name).unwrap().is_some(), is_there);
        }
        let there = listed(&harness, &dir, 5);
        drop(dir);
        harness.close_and_check();
        kernel_agrees(&folder, image.to_str().unwrap(), &there);
    }
}

/// Names that are there all the time are seen once, whatever comes and goes.
fn read_while_changing(args: &[&str], first: usize, changes: usize, seed: u64) {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "32M", args) else { return };
    let mut rng = StdRng::seed_from_u64(seed);
    let mut harness = Harness::open(&image);
    let files = harness.files();
    let dir = harness.inode("d");
    let stable: Vec<Vec<u8>> = (0..first).map(|n| name(n * 2)).collect();
    let mut passing: Vec<Vec<u8>> = (0..first).map(|n| name(n * 2 + 1)).collect();
    for name in stable.iter().chain(&passing) {
        harness.link(&dir, name, files[0]).unwrap();
    }
    let mut seen = Vec::new();
    let (mut cursor, mut next) = (0, first * 2);
    loop {
        let before = seen.len();
        cursor = harness.read_some(&dir, cursor, rng.random_range(1..20), &mut seen).unwrap();
        if seen.len() == before {
            break;
        }
        for _ in 0..rng.random_range(0..=changes) {
            if rng.random_bool(0.6) || passing.is_empty() {
                passing.push(name(next * 2 + 1));
                next += 1;
                harness.link(&dir, passing.last().unwrap(), files[1]).unwrap();
            } else {
                let at = rng.random_range(0..passing.len());
                harness.unlink(&dir, &passing.swap_remove(at)).unwrap();
            }
        }
    }
    let names: Vec<&Vec<u8>> = seen.iter().map(|(name, _)| name).collect();
    for name in &stable {
        let times = names.iter().filter(|seen| **seen == name).count();
        assert_eq!(times, 1, "{} was seen {times} times", String::from_utf8_lossy(name));
    }
    drop(dir);
    harness.close_and_check();
}

#[test]
fn reading_goes_on_while_the_directory_changes() {
    for seed in 0..6 {
        // Begins with one block and ends with a tree.
        read_while_changing(&["-b", "1024"], 8, 40, seed);
        read_while_changing(&["-b", "1024"], 400, 60, seed);
        read_while_changing(&["-b", "4096"], 30, 100, seed);
        read_while_changing(&["-b", "1024", "-O", "^dir_index"], 100, 20, seed);
    }
}

#[test]
fn an_index_grows_levels_and_fills_up() {
    // Leaves of 1024 bytes hold three names of 250 bytes: two levels are full soon.
    let long = |n: usize| format!("{n:0250}").into_bytes();
    for (large_dir, count) in [(false, 40_000), (true, 45_000)] {
        let option = if large_dir { "large_dir" } else { "^large_dir" };
        let folder = Folder::new();
        let Some(image) = make_image(&folder, "96M", &["-b", "1024", "-O", option]) else { return };
        let mut harness = Harness::open(&image);
        let files = harness.files();
        let dir = harness.inode("d");
        let mut added = 0;
        let error = (0..count).find_map(|n| {
            let error = harness.link(&dir, &long(n), files[n % 4]).err();
            added += usize::from(error.is_none());
            error
        });
        let error = error.map(|e| e.to_string());
        let full = format!("the index of directory inode {} is full: no space left", dir.ino());
        assert_eq!(error, (!large_dir).then_some(full), "after {added} names");
        assert_eq!(harness.index_levels(&dir), 1 + u8::from(large_dir));
        let names = listed(&harness, &dir, 1_000);
        assert_eq!(names.len(), added);
        assert!((0..added).all(|n| lookup(&dir, &long(n)).unwrap().is_some()));
        drop(dir);
        harness.close_and_check();
        kernel_agrees(&folder, image.to_str().unwrap(), &names);
    }
}

#[test]
fn new_directories_have_their_dots() {
    for args in [&["-b", "1024"][..], &["-b", "4096", "-O", "^metadata_csum"]] {
        let folder = Folder::new();
        let Some(image) = make_image(&folder, "32M", args) else { return };
        let mut harness = Harness::open(&image);
        let files = harness.files();
        let dir = harness.inode("d");
        for n in 0..50 {
            let child = harness.mkdir(&dir, format!("sub{n}").as_bytes()).unwrap();
            assert!(is_empty(&child).unwrap());
            harness.link(&child, b"inside", files[0]).unwrap();
            assert_eq!(parent_entry(&child).unwrap().ino, dir.ino());
        }
        // One moves into another: its '..' follows.
        let sub =
            |name: &[u8]| harness.inodes.get(lookup(&dir, name).unwrap().unwrap().ino).unwrap();
        let (from, to) = (sub(b"sub3"), sub(b"sub4"));
        let entry = lookup(&dir, b"sub3").unwrap().unwrap();
        let parent = parent_entry(&from).unwrap();
        let insertion = Insertion::plan(&to, b"moved").unwrap();
        harness
            .run(insertion.credits() + 4, |handle| {
                entry.remove(handle, &dir)?;
                insertion.apply(handle, from.ino(), FileKind::Directory)?;
                parent.set_ino(handle, &from, to.ino(), FileKind::Directory)?;
                dir.update(handle, |a| a.links -= 1)?;
                to.update(handle, |a| a.links += 1)
            })
            .unwrap();
        assert_eq!(parent_entry(&from).unwrap().ino, to.ino());
        drop((from, to, dir));
        harness.close_and_check();
    }
}

#[test]
fn a_name_can_move_within_its_full_directory() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
    let mut harness = Harness::open(&image);
    let files = harness.files();
    let dir = harness.inode("d");
    for round in 0..200 {
        harness.link(&dir, &name(round), files[0]).unwrap();
        // The insertion is planned with the old name still there: room may come of its removal.
        let old = lookup(&dir, &name(round)).unwrap().unwrap();
        let new = Insertion::plan(&dir, &[b'a' + (round % 26) as u8; 250]);
        let Ok(new) = new else { continue };
        harness
            .run(new.credits() + 1, |handle| {
                old.remove(handle, &dir)?;
                new.apply(handle, files[0], FileKind::Regular)
            })
            .unwrap();
    }
    drop(dir);
    harness.close_and_check();
}

#[test]
fn bad_names_are_refused() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
    let harness = Harness::open(&image);
    let dir = harness.inode("d");
    let kind = |name: &[u8]| lookup(&dir, name).unwrap_err().kind().clone();
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert_eq!(kind(bad), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(&[b'x'; 256]), ErrorKind::NameTooLong);
    let file = harness.inode("file0");
    let error = lookup(&file, b"x").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotADirectory);
    drop((dir, file));
    harness.close_and_check();
}

#[test]
fn directories_that_the_kernel_made_are_read_and_go_on_there() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "64M", &["-b", "1024"]) else { return };
    let path = image.to_str().unwrap().to_owned();
    let Some(mount) = Mount::new(&folder, &path) else { return };
    for n in 0..3_000 {
        std::fs::hard_link(mount.path("file0"), mount.path(&format!("d/kernel{n}"))).unwrap();
    }
    drop(mount);
    let mut harness = Harness::open(&image);
    let files = harness.files();
    harness.continue_links(&files);
    let dir = harness.inode("d");
    assert_eq!(listed(&harness, &dir, 50).len(), 3_000);
    for n in 0..1_500 {
        harness.unlink(&dir, format!("kernel{}", n * 2).as_bytes()).unwrap();
        harness.link(&dir, format!("uext4 {n}").as_bytes(), files[1]).unwrap();
    }
    drop(dir);
    harness.close_and_check();
    let mount = Mount::new(&folder, &path).unwrap();
    let names: BTreeSet<String> = std::fs::read_dir(mount.path("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let want = (0..1_500).flat_map(|n| [format!("kernel{}", n * 2 + 1), format!("uext4 {n}")]);
    assert_eq!(names, want.collect());
    for name in &names {
        // Each is found through the index, too.
        std::fs::remove_file(mount.path(&format!("d/{name}"))).unwrap();
    }
    drop(mount);
    must("e2fsck", &["-fn", &path]);
}
