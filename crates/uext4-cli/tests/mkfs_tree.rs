//! `uext4 mkfs -d`: the image holds what the directory holds, whatever the features.
//!
//! Fault model: the builder lays out every structure by itself, so each may be wrong by itself: a
//! count, a checksum, a node of a tree, an entry in the wrong leaf, bytes in the wrong place. Two
//! checkers look at the structures; the kernel looks every name up and reads every byte.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use common::{Scratch, assert_clean, run_fails, run_ok};
use uext4_sim::mount::{KernelMount, why_no_loop};
use uext4_sim::tree::compare::{Scope, trees};

/// `mkfs` with options, a source, an image and a size.
fn mkfs(words: &[&str], source: &Path, image: &Path, size: &str) -> Vec<OsString> {
    let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
    words.chain(["-d".into(), source.into(), image.into(), size.into()]).collect()
}

/// The tree of all tests, with a directory whose hash tree has a level of nodes in small blocks.
fn make_source(scratch: &Scratch) -> std::path::PathBuf {
    let source = scratch.path("source");
    tree::make(&source);
    let wide = source.join("wide");
    fs::create_dir(&wide).unwrap();
    for n in 0..3000 {
        fs::write(wide.join(format!("a name that fills its leaf soon {n:0100}")), "").unwrap();
    }
    source
}

#[test]
fn the_kernel_reads_what_was_there() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    for words in [
        &[][..],
        &["-b", "1024"],
        &["-b", "2048", "-I", "512"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2", "-I", "1024", "-b", "4096"],
        &["-O", "bigalloc", "-b", "1024", "-C", "8192"],
        &["-O", "^dir_index,^metadata_csum,uninit_bg,^flex_bg"],
        &["-O", "inline_data,orphan_file,metadata_csum_seed,meta_bg,^resize_inode"],
        &["-g", "2048", "-b", "1024", "-O", "sparse_super2"],
    ] {
        let image = scratch.path("image");
        run_ok(mkfs(words, &source, &image, "128M"));
        assert_clean(&image);
        run_ok(["fsck".into(), image.clone().into_os_string()]);
        if let Some(why) = why_no_loop() {
            println!("skipped: {why}");
            continue;
        }
        let point = scratch.path("mnt");
        let mount = KernelMount::start(&image, &point, true).unwrap();
        let differences = trees(&source, &point, Scope::default());
        mount.unmount().unwrap();
        assert_eq!(differences, Ok(Vec::new()), "{words:?}");
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn inodes_are_as_many_as_the_tree_needs() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    for n in 0..3000 {
        fs::write(source.join(n.to_string()), "").unwrap();
    }
    let image = scratch.path("image");
    // The second has a share of 376.4 inodes for each of 8 groups.
    for words in [&[][..], &["-b", "1024", "-g", "1024"]] {
        run_ok(mkfs(words, &source, &image, "8M"));
        assert_clean(&image);
        fs::remove_file(&image).unwrap();
    }
    run_fails(mkfs(&["-N", "500"], &source, &image, "8M"), "3011 inodes are needed");
    run_fails(mkfs(&["-i", "65536"], &source, &image, "8M"), "inodes are needed");
}

#[test]
fn what_cannot_be_stored_is_told_and_nothing_is_left() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), vec![1; 9 << 20]).unwrap();
    let image = scratch.path("image");
    run_fails(mkfs(&[], &source, &image, "8M"), "not enough space for the files");
    fs::write(source.join("lost+found"), "").unwrap();
    run_fails(mkfs(&[], &source, &image, "64M"), "lost+found: is no directory");
    assert!(!image.exists());
}

/// Makes an image with the time of a build, on so many processors, and returns its bytes.
fn reproducible(source: &Path, image: &Path, epoch: &str, processors: &str) -> Vec<u8> {
    let uext4 = env!("CARGO_BIN_EXE_uext4");
    let mut command = match common::has("taskset") {
        true => common::system("taskset"),
        false => common::system(uext4),
    };
    if common::has("taskset") {
        command.args(["-c", processors, uext4]);
    }
    let words = ["mkfs", "-q", "-L", "root", "-d"];
    command.args(words).arg(source).arg(image).env("SOURCE_DATE_EPOCH", epoch);
    assert!(command.status().unwrap().success());
    let bytes = fs::read(image).unwrap();
    assert_clean(image);
    fs::remove_file(image).unwrap();
    bytes
}

/// Fault model: a clock, a random number, a number or an order of the host's, or the order in which
/// threads finish gets into the image.
#[test]
fn two_builds_are_the_same_to_the_byte() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    let copy = scratch.path("a folder elsewhere");
    let copied = common::system("cp").arg("-a").arg(&source).arg(&copy).status().unwrap();
    assert!(copied.success());
    // What is copied is listed otherwise, and has other inode numbers; what is read, another atime.
    fs::read(copy.join("big")).unwrap();
    let image = scratch.path("image");
    let one = reproducible(&source, &image, "1700000000", "0");
    let other = reproducible(&copy, &image, "1700000000", "0,1");
    assert!(one == other, "the images differ");
    assert!(one != reproducible(&copy, &image, "1700000001", "0,1"));
    fs::write(copy.join("empty"), "no more").unwrap();
    assert!(one != reproducible(&copy, &image, "1700000000", "0,1"));
}

#[test]
fn sizes_follow_the_content() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    let size = |words: &[&str]| {
        let image = scratch.path("image");
        let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
        run_ok(words.chain(["-d".into(), source.clone().into(), image.clone().into()]));
        assert_clean(&image);
        let info = run_ok(["info".into(), "--json".into(), image.clone().into_os_string()]);
        let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
        let bytes = fs::metadata(&image).unwrap().len();
        fs::remove_file(&image).unwrap();
        (bytes, info)
    };
    let free = |info: &serde_json::Value| {
        let number = |name: &str| {
            info["superblock"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {info}"))
        };
        100.0 * number("free_blocks") / number("block_count")
    };
    let (least, info) = size(&["--shrink"]);
    assert!(free(&info) < 2.0, "{info}");
    let (usual, info) = size(&[]);
    assert!((10.0..14.0).contains(&free(&info)), "{info}");
    let (half, info) = size(&["--free", "50"]);
    assert!((50.0..56.0).contains(&free(&info)), "{info}");
    assert!(least < usual && usual < half);
    let (other, _) = size(&["--shrink", "-b", "1024", "-t", "ext3"]);
    assert!(other < usual);
    let image = scratch.path("image");
    fs::write(&image, "there").unwrap();
    let words = ["mkfs", "--shrink", "-d"].map(OsString::from);
    run_fails(words.into_iter().chain([source.into(), image.into()]), "is there");
}
