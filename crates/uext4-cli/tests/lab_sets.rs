//! `uext4 lab run --set`: options of the kernel's mount and of mke2fs as variants.
//!
//! Fault model: an option that is not what the run was made with; a slip that is found only in the
//! middle of a run.

mod common;

use std::path::Path;
use std::process::Command;

use common::{UEXT4, has, is_root};

fn lab(words: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(UEXT4);
    let run = command.args(["lab", "run"]).args(words.split_whitespace()).output();
    let run = run.expect("uext4 runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (run.status.code(), text(&run.stdout), text(&run.stderr))
}

#[test]
fn file_systems_are_made_as_asked_and_compared_with_their_like() {
    if !has("mke2fs") {
        eprintln!("skipped: mke2fs is not installed");
        return;
    }
    let peer = if is_root() && Path::new("/dev/loop-control").exists() { "kernel" } else { "raw" };
    let words = "E3,S1,M5,E1a --form own --set mkfs.b=1024 --set mkfs.I=512 --own uext4 \
                 --scale 0.01 --seconds 0.1 --rounds 1 --threads 1 --peer";
    let (status, said, errors) = lab(&format!("{words} {peer}"));
    assert_eq!(status, Some(0), "{errors}");
    for table in ["E3 mkfs.b=1024, 1 x, iops", "S1 mkfs.I=512, 1 x, iops", "M5 mkfs.b=1024, 1 x"] {
        assert!(said.contains(table), "{table}: {said}");
    }
    let table = said.split("E3 mkfs.b=1024, 1 x, iops").nth(1);
    if peer == "kernel" {
        let rows = table.unwrap_or_default().lines().skip(1).take(2).collect::<String>();
        assert!(rows.contains("uext4") && rows.contains("kernel"), "{said}");
    }
}

#[test]
fn what_mke2fs_or_the_kernel_does_not_take_is_refused_first() {
    let refused = |words: &str| {
        let (status, _, line) = lab(&format!("E3 {words}"));
        assert_eq!((status, line.lines().count()), (Some(2), 1), "{words}: {line}");
    };
    for word in ["mkfs.b=1000", "mkfs.d=/", "mkfs.O=frobnicate", "kernel.=1", "mkfs.=1"] {
        refused(&format!("--dry-run --set {word}"));
    }
    if is_root() && Path::new("/dev/loop-control").exists() {
        for word in ["kernel.frobnicate=on", "kernel.data=zebra"] {
            refused(&format!("--set {word}"));
            // A plan that is only told mounts nothing, so it cannot know.
            let (status, said, errors) = lab(&format!("E3 --dry-run --set {word}"));
            assert_eq!(status, Some(0), "{errors}");
            let option = word.trim_start_matches("kernel.").trim_end_matches("=on");
            assert!(said.contains(option), "{said}");
        }
    }
}
