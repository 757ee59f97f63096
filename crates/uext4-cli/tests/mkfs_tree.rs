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
