//! `info -h` beside dumpe2fs -h, row by row.
//!
//! Fault model: a row that is left out, has another value or another place. Journals that have been
//! used, quota, MMP, RAID, noted errors, options of mounts. Not compared: names of owners, who are
//! the host's there.

#[macro_use]
mod common;

use std::path::Path;

use common::{Scratch, has, run_ok, system};

/// Options of mke2fs, of tune2fs, and fields that debugfs sets.
const SHAPES: &[(&[&str], &[&str], &[&str])] = &[
    (&[], &["-L", "a label", "-M", "/mnt"], &[]),
    (
        &[
            "-O",
            "quota,project,mmp,fast_commit,casefold,encrypt",
            "-E",
            "stride=16,stripe_width=64",
        ],
        &[],
        &[],
    ),
    (
        &["-e", "remount-ro"],
        &[
            "-o",
            "journal_data_ordered,discard,block_validity,bsdgroups,nobarrier,nodelalloc",
            "-E",
            "mount_opts=acl",
            "-c",
            "20",
            "-i",
            "3d",
            "-r",
            "100",
        ],
        &[
            "error_count 3",
            "first_error_time 20200101000000",
            "first_error_func ext4_x",
            "first_error_line 77",
            "first_error_ino 12",
            "first_error_block 99",
            "last_error_time 20210101000000",
            "last_error_line 78",
        ],
    ),
    (&["-O", "bigalloc,^metadata_csum", "-C", "16k"], &["-o", "journal_data_writeback"], &[]),
    (
        &["-O", "^has_journal,^resize_inode,meta_bg,sparse_super2", "-I", "1024"],
        &["-e", "panic"],
        &[],
    ),
];

fn rows(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text).into_owned();
    let rows = text.lines().take_while(|row| !row.starts_with("MMP_block"));
    let words = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
    rows.map(words).filter(|row| !row.is_empty()).collect()
}

#[test]
fn the_rows_of_dumpe2fs() {
    let scratch = Scratch::new();
    if !has("dumpe2fs") || !has("debugfs") {
        skip!("no e2fsprogs");
    }
    for (number, (made, tuned, set)) in SHAPES.iter().enumerate() {
        let name = format!("image-{number}");
        let Some(image) = scratch.image(&name, 64, made) else { skip!("no mke2fs") };
        let call = |program: &str, words: &[&str], image: &Path| {
            let output = system(program).args(words).arg(image).env("TZ", "UTC").output().unwrap();
            assert!(output.status.success(), "{program} {words:?}: {output:?}");
            output.stdout
        };
        if !tuned.is_empty() {
            call("tune2fs", tuned, &image);
        }
        for field in *set {
            call("debugfs", &["-w", "-R", &format!("ssv {field}")], &image);
        }
        let theirs = rows(&call("dumpe2fs", &["-h"], &image));
        let ours = rows(&run_ok(["info".as_ref(), "-h".as_ref(), image.as_os_str()]));
        assert!(theirs.len() > 40, "{theirs:?}");
        assert_eq!(ours, theirs, "{made:?}");
    }
}
