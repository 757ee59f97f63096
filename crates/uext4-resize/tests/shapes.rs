//! Shapes of file systems, grown across the borders of groups, flex groups and descriptor blocks.
//!
//! Fault model: none; see `crash.rs`. Judges: e2fsck, the checker of this project, and resize2fs on
//! a copy, which must come to the same blocks, inodes and groups.

mod common;

use common::{assert_clean, bytes, grow, have, mke2fs, open, run, write_file};
use std::path::Path;
use std::process::Command;

const K: u64 = 1 << 10;
const M: u64 = 1 << 10;
const G: u64 = 1 << 20;

/// A file system of mke2fs, its size in KiB, and the sizes that it is grown to, one after the
/// other.
struct Shape(&'static str, u64, &'static [u64]);

const SHAPES: &[Shape] = &[
    Shape("", 8 * M, &[9 * M, 64 * M, 127 * M, 128 * M, 129 * M, 200 * M]),
    Shape("-b 4096", 300 * M, &[1024 * M + 3 * K, 7 * G, 64 * G]),
    Shape("-b 4096", 8 * M, &[127 * M, 128 * M, 129 * M, 130 * M, 20 * G]),
    Shape("-b 1024", 8 * M, &[8 * M + 1, 9 * M, 16 * M + 200, 16 * M + 700, 600 * M]),
    Shape("-b 2048", 30 * M, &[32 * M + 2, 100 * M, 2 * G]),
    Shape("-b 1024 -O ^flex_bg", 20 * M, &[24 * M + 300, 130 * M, 600 * M]),
    Shape("-b 4096 -O ^64bit", 200 * M, &[4 * G, 20 * G]),
    Shape("-b 1024 -O ^64bit,^metadata_csum,uninit_bg", 40 * M, &[100 * M, 700 * M]),
    Shape("-O ^metadata_csum,^uninit_bg -b 1024", 40 * M, &[41 * M, 300 * M]),
    Shape("-b 4096 -O ^resize_inode", 130 * M, &[G, 9 * G]),
    Shape("-b 4096 -O ^resize_inode,meta_bg", 130 * M, &[G, 9 * G]),
    Shape("-b 1024 -O ^resize_inode,meta_bg,^flex_bg", 30 * M, &[100 * M, 900 * M]),
    Shape("-E resize=40000 -b 1024", 16 * M, &[60 * M, 500 * M]),
    Shape("-E resize=200000 -b 1024", 16 * M, &[500 * M]),
    Shape("-b 4096 -O sparse_super2", 100 * M, &[200 * M, 600 * M, 4 * G]),
    Shape("-O sparse_super2,^resize_inode -b 1024", 30 * M, &[80 * M, 600 * M]),
    Shape("-O ^sparse_super,^resize_inode -b 1024", 30 * M, &[80 * M, 300 * M]),
    Shape("-b 4096 -O bigalloc -C 16384", 100 * M, &[300 * M, 1024 * M + 8, 20 * G]),
    Shape("-O bigalloc,^resize_inode -b 1024 -C 4096", 60 * M, &[61 * M, 700 * M]),
    Shape("-O quota,project -E quotatype=usrquota:grpquota:prjquota", 64 * M, &[500 * M]),
    Shape("-b 4096 -O ^has_journal", 64 * M, &[65 * M, 500 * M, 12 * G]),
    Shape("-O ^has_journal -b 1024", 8 * M, &[20 * M, 300 * M]),
    Shape("-b 4096 -O mmp -E mmp_update_interval=1", 64 * M, &[500 * M]),
    Shape("-O ^extent,^flex_bg,^64bit,^metadata_csum,^huge_file", 64 * M, &[500 * M]),
    Shape("-O none,ext_attr,resize_inode,dir_index,filetype,sparse_super", 64 * M, &[500 * M]),
    Shape("-O none -r 0 -b 1024 -I 128", 20 * M, &[60 * M, 250 * M]),
    Shape("-G 1 -b 1024", 20 * M, &[100 * M]),
    Shape("-G 64 -b 1024", 20 * M, &[600 * M]),
    Shape("-g 1024 -b 4096", 20 * M, &[100 * M, 600 * M]),
    Shape("-N 200000 -b 1024", 100 * M, &[150 * M, 600 * M]),
    Shape("-I 1024 -i 4096", 100 * M, &[150 * M, 600 * M]),
    Shape("-O orphan_file,fast_commit,inline_data", 100 * M, &[150 * M, 3 * G]),
];

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status();
    assert!(done.is_ok_and(|status| status.success()), "cp");
}

/// Blocks, inodes and groups with their first and last blocks.
fn numbers(image: &Path) -> (String, Vec<String>) {
    let (_, said) = run("dumpe2fs", "", image);
    let counted =
        |line: &&str| line.starts_with("Block count:") || line.starts_with("Inode count:");
    let counts = said.lines().filter(counted).collect::<Vec<_>>().join("; ");
    let is_group = |line: &&str| line.starts_with("Group ") && line.contains("(Blocks");
    let range = |line: &str| line.split(')').next().unwrap_or_default().to_owned();
    (counts, said.lines().filter(is_group).map(range).collect())
}

fn resize2fs(image: &Path, kib: u64) -> (i32, String) {
    let size = format!("{kib}K");
    let output = Command::new("/sbin/resize2fs").arg("-f").arg(image).arg(size).output();
    let output = output.expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text.into_owned())
}

#[test]
fn every_shape_grows_as_resize2fs_grows_it() {
    if !["mke2fs", "e2fsck", "resize2fs", "dumpe2fs"].iter().all(|tool| have(tool)) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (image, other) = (dir.path().join("ours"), dir.path().join("theirs"));
    for Shape(words, from, sizes) in SHAPES {
        mke2fs(&image, *from, words);
        let volume = open(&image).expect("opens");
        write_file(&volume, "content", 100_000);
        volume.close().expect("closes");
        for to in *sizes {
            let what = format!("{words:?} of {from} KiB to {to}");
            copy(&image, &other);
            let report = grow(&image, *to).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_clean(&image, &what);
            let (status, said) = resize2fs(&other, *to);
            assert_eq!(status, 0, "{what}: resize2fs: {said}");
            let (ours, theirs) = (numbers(&image), numbers(&other));
            println!("{what}: {:?}", report.steps);
            assert_eq!(ours.0, theirs.0, "{what}");
            assert!(ours.1 == theirs.1, "{what}: other groups");
            let volume = open(&image).expect("opens");
            let root = volume.root().expect("a root");
            let file = volume.lookup(&root, b"content").expect("is there");
            let file = volume.open_file(&file).expect("opens");
            let mut found = vec![0; 100_000];
            assert_eq!(file.read_at(0, &mut found).expect("is read"), 100_000);
            assert!(found == bytes("content", 100_000), "{what}: other content");
            drop(file);
            volume.close().expect("closes");
        }
    }
}
