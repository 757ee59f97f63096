//! Features that uext4 reads and does not write: the kernel's files are read back, the image is
//! not changed, and a write is refused with the feature's name. Features that it writes: what the
//! kernel wrote is read, and what uext4 wrote is clean for e2fsck and read by the kernel.
//!
//! Fault model: a descriptor looked for in the wrong place (meta_bg), a bitmap read with a bit a
//! block (bigalloc), a superblock field that only one implementation understands. The kernel fills
//! the image through a loop mount, as root; without, mke2fs does.

#[macro_use]
mod common;

use common::kernel::Kernel;
use common::{Mounted, Scratch, at, is_root, no_mount, run_fails, run_ok, system};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Options of mke2fs, and the reason for which writing is refused.
const SHAPES: [(&[&str], &str); 1] = [(&["-b", "8192"], "blocks above 4096 bytes")];

/// Options of mke2fs for what is written.
const WRITTEN: &[&[&str]] = &[
    &["-b", "1024", "-O", "^extent,^64bit"],
    // As ext3 has it.
    &["-b", "4096", "-I", "128", "-O", EXT3],
    // As an old mke2fs made it.
    &["-b", "1024", "-I", "128", "-O", OLD],
    &["-b", "2048", "-O", "^metadata_csum,uninit_bg,^flex_bg,^extra_isize"],
    &["-b", "1024", "-O", "mmp,meta_bg,^resize_inode,^metadata_csum,^64bit"],
    &["-b", "1024", "-O", "^has_journal"],
    &["-b", "4096", "-O", "^has_journal,^metadata_csum,^64bit"],
    &["-b", "4096", "-O", "bigalloc", "-C", "16384"],
    &["-b", "1024", "-O", "bigalloc,meta_bg,^resize_inode,^has_journal"],
    &["-b", "4096", "-O", "bigalloc,quota", "-C", "16384"],
    &["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"],
    &["-b", "1024", "-O", "encrypt,stable_inodes"],
    &["-b", "4096", "-g", "256", "-O", "meta_bg,^resize_inode,^64bit,^metadata_csum,^flex_bg"],
    &["-b", "4096", "-O", "inline_data"],
    &["-b", "1024", "-I", "512", "-O", "inline_data,^dir_index,^metadata_csum"],
    &["-b", "1024", "-O", "large_dir"],
    &["-b", "1024", "-O", "ea_inode"],
    &["-b", "1024", "-O", "ea_inode,quota"],
    &["-b", "1024", "-O", "casefold"],
];

const EXT3: &str = "^extent,^64bit,^metadata_csum,^flex_bg,^huge_file,^dir_nlink,^extra_isize";
const OLD: &str = "^extent,^64bit,^metadata_csum,^flex_bg,^huge_file,^dir_nlink,^extra_isize,\
     ^sparse_super,^resize_inode,^filetype,^dir_index,^large_file,^ext_attr";

const FILES: usize = 60;

fn content(n: usize) -> Vec<u8> {
    (0..n * 3001).map(|at| (at * 31 + n) as u8).collect()
}

/// Of few bytes, in a directory of few: both may be in the inode (inline_data).
fn small(n: usize) -> (String, Vec<u8>) {
    (format!("small{}/s{n}", n / 3), content(n)[..3 * n].to_vec())
}

fn fill(dir: &Path) {
    for n in 0..FILES {
        let sub = dir.join(format!("d{}", n % 7));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join(format!("f{n}")), content(n)).unwrap();
        let (path, bytes) = small(n);
        fs::create_dir_all(dir.join(&path).parent().unwrap()).unwrap();
        fs::write(dir.join(path), bytes).unwrap();
    }
}

/// An image that the kernel has filled, or mke2fs where the kernel cannot be asked.
fn filled(scratch: &Scratch, options: &[&str]) -> Option<std::path::PathBuf> {
    let tree = scratch.path("tree");
    if is_root() {
        let image = scratch.image("image", 64, options)?;
        fs::create_dir_all(&tree).unwrap();
        let mounted = system("mount").args(["-o", "loop"]).arg(&image).arg(&tree).output().unwrap();
        if mounted.status.success() {
            let result = std::panic::catch_unwind(|| fill(&tree));
            assert!(system("umount").arg(&tree).status().unwrap().success());
            result.unwrap();
            return Some(image);
        }
        println!("not by the kernel: {}", String::from_utf8_lossy(&mounted.stderr).trim());
    }
    fill(&tree);
    let by_tree = [options, &["-d", tree.to_str().unwrap()]].concat();
    let image = scratch.image("image", 64, &by_tree)?;
    // mke2fs does not count usage of what it fills in, and one run of e2fsck may leave a part.
    for _ in 0..if options.iter().any(|word| word.contains("quota")) { 2 } else { 0 } {
        system("e2fsck").args(["-fy"]).arg(&image).output().unwrap();
    }
    Some(image)
}

/// The runs of the histogram have as many blocks as the descriptors call free. (e2freefrag 1.47
/// counts the clusters of bigalloc wrongly.)
fn check_free_space(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let number = |text: &str| text.trim().split(' ').next().unwrap().parse::<u64>().unwrap();
    let free = number(text.split("Free blocks: ").nth(1).unwrap());
    let rows = text.lines().filter(|line| line.contains("-  :") && line.ends_with('%'));
    let sum: u64 = rows.map(|row| number(row.split_whitespace().rev().nth(1).unwrap())).sum();
    assert_eq!(sum, free, "{text}");
}

#[test]
fn what_can_only_be_read_is_read_and_not_changed() {
    for (options, feature) in SHAPES {
        println!("{options:?}");
        let scratch = Scratch::new();
        let Some(image) = filled(&scratch, options) else { skip!("no mke2fs") };
        let before = fs::read(&image).unwrap();
        for n in 0..FILES {
            let path = format!("/d{}/f{n}", n % 7);
            let read = run_ok([OsString::from("cat"), at(&image, &path)]);
            assert!(read == content(n), "{path}");
        }
        check_free_space(&run_ok([OsString::from("freefrag"), image.clone().into()]));
        let why = format!("can only be read: {feature}");
        run_fails([OsString::from("mkdir"), at(&image, "/new")], &why);
        check_statfs(&scratch, &image);
        assert!(fs::read(&image).unwrap() == before, "the image was changed");
    }
}

/// Fault model: metadata of the feature that one implementation looks for elsewhere, a count that
/// it does not keep, a change that undoes what the other wrote. Hosts that share an image are in
/// `mmp.rs`.
#[test]
fn what_is_written_is_what_the_kernel_reads() {
    for options in WRITTEN {
        println!("{options:?}");
        let scratch = Scratch::new();
        let Some(image) = filled(&scratch, options) else { skip!("no mke2fs") };
        let word = OsString::from;
        for n in 0..FILES {
            let path = format!("/d{}/f{n}", n % 7);
            assert!(run_ok([word("cat"), at(&image, &path)]) == content(n), "{path}");
            let (path, bytes) = small(n);
            assert!(run_ok([word("cat"), at(&image, &format!("/{path}"))]) == bytes, "{path}");
        }
        let tree = scratch.path("own");
        fill(&tree);
        let has_values = options.iter().any(|word| word.contains("ea_inode"));
        let with_value = ["d1/f1", "d3/f3"].iter().filter(|_| has_values);
        let attributes = set_attributes(with_value.map(|file| tree.join(file)));
        run_ok([word("cp"), word("-r"), tree.into(), at(&image, "/own")]);
        // At once: with mmp each claim of the image takes a second.
        let even = (0..FILES).step_by(2).map(|n| at(&image, &format!("/d{}/f{n}", n % 7)));
        let few = (0..FILES).step_by(20).map(|n| at(&image, &format!("/{}", small(n).0)));
        run_ok(std::iter::once(word("rm")).chain(even).chain(few));
        common::assert_clean(&image);
        run_ok([word("fsck"), image.clone().into()]);
        let dir = scratch.path("kernel");
        // A kernel need not have every feature.
        let Some(_kernel) = Kernel::mount(&image, &dir) else { continue };
        if attributes > 0 {
            let mut value = [0; 4000];
            let len = rustix::fs::getxattr(dir.join("own/d1/f1"), "user.a", &mut value).unwrap();
            assert_eq!(value[..len], [7; 3000]);
        }
        for n in 0..FILES {
            let path = format!("d{}/f{n}", n % 7);
            assert!(fs::read(dir.join("own").join(&path)).unwrap() == content(n), "{path}");
            let old = fs::read(dir.join(&path)).ok();
            assert!(old == (n % 2 == 1).then(|| content(n)), "{path}");
            let (path, bytes) = small(n);
            assert!(fs::read(dir.join("own").join(&path)).unwrap() == bytes, "{path}");
            assert!(fs::read(dir.join(&path)).ok() == (n % 20 != 0).then_some(bytes), "{path}");
        }
    }
}

/// Fault model: usage that e2fsck counts otherwise, limits in other units. (Not every kernel writes
/// to file systems with quota.)
#[test]
fn quota_is_kept_and_told() {
    let Some((plain, _)) = inodes_of_quota("quota,project", 0) else { skip!("no mke2fs") };
    // Each of them counts as an inode.
    let (values, attributes) = inodes_of_quota("quota,project,ea_inode", 5).unwrap();
    assert_eq!(values, plain + attributes);
}

/// Gives files large attributes. Returns how many: not every folder of a host has attributes.
fn set_attributes(files: impl Iterator<Item = PathBuf>) -> u64 {
    let flags = rustix::fs::XattrFlags::empty();
    let set = |file: &PathBuf| rustix::fs::setxattr(file, "user.a", &[7; 3000], flags).is_ok();
    files.filter(set).count() as u64
}

/// Copies a tree with some large attributes, and removes a part. The inodes that `quota` tells, and
/// how many attributes there are.
fn inodes_of_quota(features: &str, attributes: usize) -> Option<(u64, u64)> {
    let scratch = Scratch::new();
    let image = scratch.image("image", 32, &["-b", "1024", "-O", features])?;
    let word = std::ffi::OsString::from;
    let tree = scratch.path("tree");
    fill(&tree);
    let files = (0..FILES).filter(|n| n % 7 == 4).map(|n| tree.join(format!("d4/f{n}")));
    let attributes = set_attributes(files.take(attributes));
    run_ok([word("cp"), word("-r"), tree.into(), at(&image, "/tree")]);
    run_ok([word("rm"), word("-r"), at(&image, "/tree/d3")]);
    let set = ["quota", "-u", "--set", "0:100:200:30:40", "--grace", "60:70"].map(word);
    run_ok(set.into_iter().chain([image.clone().into()]));
    common::assert_clean(&image);
    run_ok([word("fsck"), image.clone().into()]);
    let told = run_ok([word("quota"), word("--json"), image.into()]);
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let users = &told[0];
    assert_eq!((&users["kind"], &users["space_grace_s"]), (&"user".into(), &60.into()));
    let root = &users["owners"][0];
    assert_eq!((&root["space_hard"], &root["inodes_soft"]), (&204_800.into(), &30.into()));
    let all = |kind: usize, field: &str| {
        let owners = told[kind]["owners"].as_array().unwrap().iter();
        owners.map(|owner| owner[field].as_u64().unwrap()).sum::<u64>()
    };
    for field in ["inodes_used", "space_used"] {
        assert!(all(0, field) > 50 && all(0, field) == all(2, field), "{field}");
    }
    Some((all(0, "inodes_used"), attributes))
}

/// As many free blocks as the kernel says, where it mounts the image.
fn check_statfs(scratch: &Scratch, image: &Path) {
    if !is_root() || no_mount().is_some() {
        return;
    }
    let dir = scratch.path("mounted");
    fs::create_dir_all(&dir).unwrap();
    let mounted = system("mount").args(["-o", "loop,ro"]).arg(image).arg(&dir).output().unwrap();
    if !mounted.status.success() {
        println!("not by the kernel: {}", String::from_utf8_lossy(&mounted.stderr).trim());
        return;
    }
    let kernel = rustix::fs::statvfs(&dir).unwrap();
    assert!(system("umount").arg(&dir).status().unwrap().success());
    let mount = Mounted::new(image, &dir, "ro");
    let own = rustix::fs::statvfs(&dir).unwrap();
    mount.end();
    assert_eq!((own.f_bfree, own.f_frsize), (kernel.f_bfree, kernel.f_frsize));
}

/// Files of the kernel with block maps get extent trees, on a file system without the feature: one
/// by itself, then all. Fault model: a file that loses a block, a directory or a long symbolic link
/// that is left out, an owner too many or too few of a block.
#[test]
fn files_of_the_kernel_get_extents() {
    let scratch = Scratch::new();
    let Some(image) = filled(&scratch, &["-b", "1024", "-O", EXT3]) else { skip!("no mke2fs") };
    let link = "x/".repeat(100);
    std::os::unix::fs::symlink(&link, scratch.path("link")).unwrap();
    run_ok([OsString::from("cp"), "-r".into(), scratch.path("link").into(), at(&image, "/")]);
    let has_tree = |path: &str| {
        let output = system("debugfs").args(["-R", &format!("stat {path}")]).arg(&image).output();
        String::from_utf8_lossy(&output.unwrap().stdout).contains("EXTENTS:")
    };
    run_ok([OsString::from("tune"), "--extents".into(), at(&image, "/d3/f59")]);
    assert!(has_tree("/d3/f59") && !has_tree("/d2/f58") && !has_tree("/"));
    let told = run_ok([OsString::from("tune"), "--extents".into(), image.clone().into()]);
    assert!(String::from_utf8_lossy(&told).contains("files converted"), "{told:?}");
    for path in ["/", "/d2", "/d2/f58", "/lost+found", "/link"] {
        assert!(has_tree(path), "{path}");
    }
    common::assert_clean(&image);
    let again = run_ok([OsString::from("tune"), "--extents".into(), image.clone().into()]);
    assert_eq!(again, b"0 files converted to extents\n");
    run_fails([OsString::from("tune"), "--extents".into(), at(&image, "/none")], "not found");
    let dir = scratch.path("kernel");
    let Some(_kernel) = Kernel::mount(&image, &dir) else { skip!("no kernel mount") };
    for n in 0..FILES {
        let path = dir.join(format!("d{}/f{n}", n % 7));
        assert!(fs::read(&path).unwrap() == content(n), "{}", path.display());
    }
    assert_eq!(fs::read_link(dir.join("link")).unwrap().as_os_str(), link.as_str());
}

/// The class of a feature is one line; those that are not understood stay refused.
#[test]
fn what_is_not_understood_is_refused() {
    let scratch = Scratch::new();
    let options = ["-O", "^metadata_csum"];
    let Some(image) = scratch.image("image", 16, &options) else { skip!("no mke2fs") };
    let mut bytes = fs::read(&image).unwrap();
    // dirdata, in the second byte of the incompatible features.
    bytes[1024 + 0x61] |= 0x10;
    fs::write(&image, bytes).unwrap();
    run_fails([OsString::from("ls"), at(&image, "/")], "dirdata");
}

/// A journal has features of its own. Fault model: a refusal that does not name them, or says why
/// it refuses twice.
#[test]
fn a_journal_that_is_not_understood_is_refused() {
    const BLOCK: usize = 1024;
    let scratch = Scratch::new();
    let features = ["-b", "1024", "-O", "^metadata_csum,^64bit"];
    let Some(image) = scratch.image("image", 16, &features) else { skip!("no mke2fs") };
    let mut bytes = fs::read(&image).unwrap();
    // The journal's superblock: magic, block type 4; its incompatible features are at 0x28.
    let magic = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let at = (0..bytes.len()).step_by(BLOCK).find(|&at| bytes[at..].starts_with(&magic)).unwrap();
    bytes[at + 0x28] |= 0x80;
    fs::write(&image, bytes).unwrap();
    let output = common::run([OsString::from("ls"), common::at(&image, "/")]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("journal uses FEATURE_I31: unsupported features"), "{line}");
    assert_eq!(line.matches("unsupported").count(), 1, "{line}");
}

/// Fault model: a journal elsewhere that is taken for none, so that the image is written without
/// it; a log that must be replayed and is not missed.
#[test]
fn a_journal_on_another_device_is_missed() {
    const UUID: [u8; 16] = [0x12; 16];
    let scratch = Scratch::new();
    let options = ["-b", "1024", "-O", "^has_journal,^metadata_csum"];
    let Some(image) = scratch.image("image", 16, &options) else { skip!("no mke2fs") };
    let mut bytes = fs::read(&image).unwrap();
    bytes[1024 + 0x5c] |= 4;
    bytes[1024 + 0xd0..][..16].copy_from_slice(&UUID);
    fs::write(&image, &bytes).unwrap();
    let uuid = "12121212-1212-1212-1212-121212121212";
    run_ok([OsString::from("ls"), at(&image, "/")]);
    run_fails([OsString::from("mkdir"), at(&image, "/new")], &format!("its journal {uuid} is on"));
    // needs_recovery.
    bytes[1024 + 0x60] |= 4;
    fs::write(&image, &bytes).unwrap();
    run_fails([OsString::from("ls"), at(&image, "/")], &format!("the journal {uuid} is on"));
    assert!(fs::read(&image).unwrap() == bytes, "the image was changed");
}
