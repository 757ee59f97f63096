//! The exit statuses of docs/exit-status.md, a case for each row.
//!
//! Fault model: a status that is another than the document says, a row without a case. Statuses of
//! umount behind a mount are in `mount_ends.rs`.

mod common;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, UEXT4, at, run};
use rustix::process::{Pid, Signal, kill_process};

/// Rows whose cases need more than a call: tested below or in another file.
const ELSEWHERE: &[(&str, &str)] = &[
    // a_signal_ends_a_verb
    ("every other", "128+N"),
    ("diff", "128+N"),
    // mount_ends.rs, umount_says_what_it_waits_for_and_can_be_interrupted
    ("umount", "0"),
    ("umount", "128+N"),
    // lab.rs, which runs loads
    ("lab", "1"),
    // lab_clean.rs
    ("lab", "128+N"),
    // crashtest.rs, which needs a mount
    ("crashtest", "0"),
    ("crashtest", "1"),
    ("crashtest", "128+N"),
    // system.rs, mounts by mount(8)
    ("mount.uext4", "0"),
];

/// Verb and status of each row of the document.
fn rows() -> Vec<(String, String)> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/exit-status.md");
    let document = fs::read_to_string(document).unwrap();
    let cells = document.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.to_owned(), cells.next()?.to_owned()))
    });
    cells.filter(|(verb, _)| verb != "verb").collect()
}

struct Cases {
    scratch: Scratch,
    seen: BTreeSet<(String, String)>,
}

impl Cases {
    fn image(&self, name: &str) -> PathBuf {
        let path = self.scratch.path(name);
        let made = run(["mkfs".as_ref(), "-q".as_ref(), path.as_os_str(), "16M".as_ref()]);
        assert!(made.status.success(), "{made:?}");
        path
    }

    /// A call of a row ends with its status; more than one may be a case of it.
    fn case<I: AsRef<OsStr>>(
        &mut self,
        verb: &str,
        status: i32,
        words: impl IntoIterator<Item = I>,
    ) {
        let words: Vec<OsString> = words.into_iter().map(|it| it.as_ref().to_owned()).collect();
        let output = run(&words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
        self.seen.insert((verb.to_owned(), status.to_string()));
    }
}

/// Another byte at a place of the superblock.
fn damaged(image: &Path, name: &str, offset: u64, bytes: &[u8]) -> PathBuf {
    let path = image.with_file_name(name);
    fs::copy(image, &path).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(bytes, 1024 + offset).unwrap();
    path
}

#[test]
fn every_row_is_true() {
    let mut cases = Cases { scratch: Scratch::new(), seen: BTreeSet::new() };
    let image = cases.image("image");
    let name = image.as_os_str();
    cases.case("every other", 0, ["info".as_ref(), name]);
    cases.case("every other", 0, ["--help"]);
    cases.case("every other", 1, ["ls", "/nonexistent:/"]);
    cases.case("every other", 2, ["ls"]);
    cases.case("every other", 2, ["ls", "--frobnicate"]);
    cases.case("every other", 2, ["frobnicate"]);

    cases.case("fsck", 0, ["fsck".as_ref(), name]);
    // s_free_blocks_count_lo; s_inodes_per_group.
    let counts = damaged(&image, "counts", 0x0c, &[1]);
    cases.case("fsck", 4, ["fsck".as_ref(), counts.as_os_str()]);
    let geometry = damaged(&image, "geometry", 0x28, &[0xff; 4]);
    cases.case("fsck", 12, ["fsck".as_ref(), geometry.as_os_str()]);
    cases.case("fsck", 8, ["fsck", "/nonexistent"]);
    cases.case("fsck", 16, ["fsck"]);
    cases.case("fsck", 16, ["--key", "x", "fsck", "--frobnicate"]);

    let other = cases.image("other");
    assert!(run([OsString::from("mkdir"), at(&other, "/new")]).status.success());
    cases.case("diff", 0, ["diff".as_ref(), name, name]);
    cases.case("diff", 1, ["diff".as_ref(), name, other.as_os_str()]);
    cases.case("diff", 2, ["diff".as_ref(), name, "/nonexistent".as_ref()]);
    cases.case("diff", 2, ["diff"]);

    let dir = cases.scratch.dir.path().to_owned();
    cases.case("umount", 1, ["umount".as_ref(), dir.as_os_str()]);
    cases.case("umount", 2, ["umount"]);

    cases.case("lab", 0, ["lab", "list"]);
    cases.case("lab", 2, ["lab", "run", "frobnicate"]);
    cases.case("lab", 2, ["lab", "compare", "/nonexistent", "/nonexistent"]);
    let pair = ["lab", "pair", "--bisect", "/nonexistent", "--out", "/nonexistent", "--", "E99"];
    cases.case("lab", 125, pair);
    cases.case("lab", 255, ["lab", "guard", "--bisect", "/nonexistent"]);
    cases.case("crashtest", 2, ["crashtest", "--run", "true"]);

    for (status, words) in [(1, &["--frobnicate"][..]), (32, &["/nonexistent", "/nonexistent"])] {
        let helper = dir.join("mount.uext4");
        let _ = symlink(UEXT4, &helper);
        let found = Command::new(&helper).args(words).output().unwrap();
        assert_eq!(found.status.code(), Some(status), "{found:?}");
        cases.seen.insert(("mount.uext4".to_owned(), status.to_string()));
    }

    let elsewhere = ELSEWHERE.iter().map(|(verb, status)| ((*verb).into(), (*status).into()));
    cases.seen.extend(elsewhere);
    let rows: BTreeSet<(String, String)> = rows().into_iter().collect();
    assert!(rows.len() > 10, "the document has no table");
    assert_eq!(rows, cases.seen, "rows of the document, and those that have a case");
}

/// Statuses 1 of fsck and diff say something else than that nobody took what they had to say.
#[test]
fn output_that_fails_is_no_answer() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let made = run(["mkfs".as_ref(), "-q".as_ref(), image.as_os_str(), "16M".as_ref()]);
    assert!(made.status.success(), "{made:?}");
    let name = image.to_str().unwrap();
    let calls: [(&[&str], i32); 6] = [
        (&["fsck", name], 8),
        (&["fsck", "--json", name], 8),
        (&["diff", "--json", name, name], 2),
        (&["ls", "--help"], 1),
        (&["--version"], 1),
        (&["info", name], 1),
    ];
    for (words, want) in calls {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = Command::new(UEXT4).args(words).stdout(full).output().unwrap().status;
        assert_eq!(status.code(), Some(want), "{words:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(UEXT4).args(words).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(want), 0), "{words:?}");
    }
}

/// What a shell tells of a verb that was ended while it waited.
#[test]
fn a_signal_ends_a_verb() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let made = run(["mkfs".as_ref(), "-q".as_ref(), image.as_os_str(), "16M".as_ref()]);
    assert!(made.status.success(), "{made:?}");
    // It waits for an archive that never comes: its pipe stays open until the child is dropped.
    let mut import = Command::new(UEXT4);
    let mut child = import
        .args(["import", "-"])
        .arg(&image)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    // wait() would close the pipe.
    let _pipe = child.stdin.take();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}
