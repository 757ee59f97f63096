//! Set-id bits and capabilities of programs that an ordinary user may write to.
//!
//! Fault model: bits or capabilities that stay, in the image or in what the kernel remembers of it,
//! so that content of the user's choice runs with the owner's rights; the price of looking. Not
//! covered: a kernel that holds dirty pages through a mapping, which clears nothing on any file
//! system.

#[macro_use]
mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Mounted, Scratch, assert_clean, run_ok};
use rustix::fs::FallocateFlags;

const NOBODY: u32 = 65_534;
/// Bytes behind the program, which it does not need.
const TAIL: u64 = 64 << 10;

/// What the child does, and to which file.
const OPERATION: &str = "UEXT4_TEST_OPERATION";
const FILE: &str = "UEXT4_TEST_FILE";

/// Every way to change content that a mount has.
const OPERATIONS: [&str; 9] =
    ["write", "direct write", "truncate", "extend", "allocate", "keep", "punch", "zero", "copy"];

/// The program of this test, where everybody can run it.
struct Child(PathBuf);

impl Child {
    fn new(scratch: &Scratch) -> Self {
        fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = scratch.path("test");
        common::copy_program(&std::env::current_exe().unwrap(), &path);
        Self(path)
    }

    /// Has a user do `operation` to `file`.
    fn change(&self, uid: u32, operation: &str, file: &Path) {
        let output = Command::new(&self.0)
            .args(["--exact", "a_program_that_a_user_changes_runs_as_the_user"])
            .env(OPERATION, operation)
            .env(FILE, file)
            .uid(uid)
            .gid(uid)
            .output()
            .unwrap();
        assert!(output.status.success(), "{operation}: {output:?}");
    }
}

/// One change of the content; what the program needs stays as it is.
fn change(operation: &str, path: &Path) {
    let direct = if operation.starts_with("direct") { libc::O_DIRECT } else { 0 };
    let file = File::options().read(true).write(true).custom_flags(direct).open(path).unwrap();
    let tail = file.metadata().unwrap().size() - TAIL;
    let allocate = |flags| rustix::fs::fallocate(&file, flags, tail, TAIL / 2).unwrap();
    match operation {
        "write" => file.write_all_at(b"x", tail).unwrap(),
        "direct write" => {
            let memory = vec![0; 8192];
            let skip = memory.as_ptr().align_offset(4096);
            file.write_all_at(&memory[skip..skip + 4096], tail).unwrap();
        }
        "truncate" => file.set_len(tail + TAIL / 2).unwrap(),
        "extend" => file.set_len(tail + 2 * TAIL).unwrap(),
        "allocate" => allocate(FallocateFlags::empty()),
        "keep" => allocate(FallocateFlags::KEEP_SIZE),
        "punch" => allocate(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE),
        "zero" => allocate(FallocateFlags::ZERO_RANGE),
        "copy" => {
            let (mut from, mut to) = (0, tail);
            let copied = rustix::fs::copy_file_range(
                File::open(path).unwrap(),
                Some(&mut from),
                &file,
                Some(&mut to),
                4096,
            );
            assert_eq!(copied, Ok(4096));
        }
        "overwrites" => {
            for at in 0..2000 {
                file.write_all_at(&[7; 4096], at * 4096).unwrap();
            }
        }
        other => panic!("no operation {other}"),
    }
}

/// Which rights a program runs with that prints them.
fn runs_as(program: &Path) -> String {
    let mut command = Command::new(program);
    command.arg("-u").uid(NOBODY).gid(NOBODY);
    let output = loop {
        match command.output() {
            // A process that another thread is just making has the file open for writing.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::yield_now();
            }
            other => break other.unwrap(),
        }
    };
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_program_that_a_user_changes_runs_as_the_user() {
    if let (Ok(operation), Some(file)) = (std::env::var(OPERATION), std::env::var_os(FILE)) {
        return change(&operation, Path::new(&file));
    }
    if !common::is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let child = Child::new(&scratch);
    for options in ["suid,allow_other", "suid,allow_other,writeback_cache"] {
        let mount = Mounted::new(&image, &dir, options);
        let program = mount.path("id");
        for operation in OPERATIONS {
            let _ = fs::remove_file(&program);
            fs::copy("/usr/bin/id", &program).unwrap();
            let size = fs::metadata(&program).unwrap().len().next_multiple_of(TAIL) + TAIL;
            let file = File::options().write(true).open(&program).unwrap();
            // So that there is something to copy, to punch and to overwrite.
            file.write_all_at(&vec![1; TAIL as usize], size - TAIL).unwrap();
            drop(file);
            fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
            assert_eq!(runs_as(&program), "0", "before");
            child.change(0, operation, &program);
            assert_eq!(runs_as(&program), "0", "{operation} by root, {options}");
            let file = File::options().write(true).open(&program).unwrap();
            file.set_len(size).unwrap();
            drop(file);
            child.change(NOBODY, operation, &program);
            assert_eq!(runs_as(&program), NOBODY.to_string(), "{operation}, {options}");
            let mode = fs::metadata(&program).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o777, "{operation}, {options}");
        }
        mount.end();
    }
    assert_clean(&image);
}

/// cap_net_raw=ep, as setcap(8) stores it.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CAPABILITY: &str = "security.capability";

/// The operations after which a file that has capabilities and set-id bits keeps any of them, by
/// user. Root keeps set-id bits, and nobody keeps capabilities.
fn kept_by(child: &Child, dir: &Path) -> Vec<String> {
    let path = dir.join("file");
    let mut kept = Vec::new();
    for (operation, uid) in OPERATIONS.iter().flat_map(|o| [(o, 0), (o, NOBODY)]) {
        let _ = fs::remove_file(&path);
        fs::write(&path, vec![1; 2 * TAIL as usize]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.other", b"x", flags).unwrap();
        // The first change finds that there are no capabilities; the kernel and the engine both
        // remember that.
        child.change(uid, operation, &path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        rustix::fs::setxattr(&path, CAPABILITY, &NET_RAW, flags).unwrap();
        child.change(uid, operation, &path);
        if rustix::fs::getxattr(&path, CAPABILITY, &mut [0; 20]).is_ok() {
            kept.push(format!("{operation} by {uid}: capabilities"));
        }
        if fs::metadata(&path).unwrap().mode() & 0o4000 != 0 {
            kept.push(format!("{operation} by {uid}: set-id"));
        }
    }
    kept
}

/// What a write leaves of a file's rights is what the kernel's ext4 leaves. Fault model: a way of
/// writing that the kernel leaves to the server, and the server to the kernel.
#[test]
fn a_mount_leaves_the_rights_that_ext4_leaves() {
    if !common::is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let child = Child::new(&scratch);
    let by_root: Vec<String> = OPERATIONS.iter().map(|o| format!("{o} by 0: set-id")).collect();
    for options in ["allow_other", "allow_other,writeback_cache"] {
        let mount = Mounted::new(&image, &dir, options);
        assert_eq!(kept_by(&child, &dir), by_root, "{options}");
        mount.end();
    }
    assert_clean(&image);
    let status = common::system("mount").args(["-o", "loop"]).arg(&image).arg(&dir).status();
    if !status.is_ok_and(|status| status.success()) {
        skip!("the kernel mounts nothing here");
    }
    let kernel = kept_by(&child, &dir);
    assert!(common::system("umount").arg(&dir).status().unwrap().success());
    assert_eq!(kernel, by_root, "the kernel's ext4");
}

/// The users of [`set_gid_left`], as options of setpriv(1): 1001 owns the file, 2002 is its group.
const USERS: [(&str, [&str; 3]); 6] = [
    ("root", ["--reuid=0", "--regid=0", "--clear-groups"]),
    ("its owner", ["--reuid=1001", "--regid=1001", "--clear-groups"]),
    ("its owner in its group", ["--reuid=1001", "--regid=1001", "--groups=3003,2002"]),
    ("another", ["--reuid=65534", "--regid=65534", "--clear-groups"]),
    ("another in its group", ["--reuid=65534", "--regid=65534", "--groups=3003,2002"]),
    ("another of its group", ["--reuid=65534", "--regid=2002", "--clear-groups"]),
];

/// With and without set-user-id, and what the group may run and may not.
const SET_GID_MODES: [&str; 5] = ["2777", "2767", "6777", "6767", "6666"];

/// What each user does, in a shell, to a file of `$mode`.
const SET_GID_CHANGES: [(&str, &str); 6] = [
    ("chmod", "chmod $mode file"),
    ("write", "echo x 1<> file"),
    ("truncate", "truncate -s 100 file"),
    ("allocate", "fallocate -l 9000 file"),
    ("own group", "chgrp $(id -g) file"),
    ("same group", "chgrp 2002 file"),
];

/// What each change by each user leaves of a file's mode, and what is made in a directory that
/// hands its group on.
fn set_gid_left(dir: &Path) -> Vec<String> {
    let as_user = |user: [&str; 3], script: &str| {
        let mut command = Command::new("setpriv");
        command.args(user).args(["sh", "-c", script]).current_dir(dir);
        command.output().unwrap().status.success()
    };
    let owned = |name: &str, mode: u32| {
        let path = dir.join(name);
        std::os::unix::fs::chown(&path, Some(1001), Some(2002)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let shown = |name: &str| {
        let found = fs::symlink_metadata(dir.join(name)).unwrap();
        format!("{:o} {}:{}", found.mode() & 0o7777, found.uid(), found.gid())
    };
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    let mut left = Vec::new();
    for (name, user) in USERS {
        for (change, script) in SET_GID_CHANGES {
            for mode in SET_GID_MODES {
                fs::write(dir.join("file"), [1; 8192]).unwrap();
                let before = if change == "chmod" { "777" } else { mode };
                owned("file", u32::from_str_radix(before, 8).unwrap());
                let done = as_user(user, &script.replace("$mode", mode));
                left.push(format!("{change} {mode} by {name}: {done}, {}", shown("file")));
                fs::remove_file(dir.join("file")).unwrap();
            }
        }
        fs::create_dir(dir.join("folder")).unwrap();
        owned("folder", 0o2777);
        assert!(as_user(user, "umask 0; echo > folder/file; mkdir folder/below"));
        let made = [shown("folder/file"), shown("folder/below")];
        assert!(as_user(USERS[0].1, "rm -r folder"));
        left.push(format!("made by {name}: {made:?}"));
    }
    left
}

/// Set-group-id of a file that its group may not run stays where the writer is of the group, and
/// goes where not, as in the kernel's ext4. Fault model: the groups that a request does not name.
#[test]
fn set_group_id_is_kept_by_the_group_alone() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut ours = Vec::new();
    for options in ["suid,allow_other", "suid,allow_other,writeback_cache"] {
        let mount = Mounted::new(&image, &dir, options);
        let left = set_gid_left(&dir);
        mount.end();
        for want in [
            "write 2767 by root: true, 2767 1001:2002",
            "write 2767 by its owner: true, 767 1001:2002",
            "write 2767 by its owner in its group: true, 2767 1001:2002",
            "truncate 6666 by another: true, 666 1001:2002",
            "allocate 6767 by another in its group: true, 2767 1001:2002",
            "chmod 2777 by its owner: true, 777 1001:2002",
            "own group 2767 by its owner: true, 767 1001:1001",
        ] {
            assert!(left.iter().any(|line| line == want), "{options}: no {want} in {left:#?}");
        }
        ours.push(left);
    }
    assert_clean(&image);
    let status = common::system("mount").args(["-o", "loop"]).arg(&image).arg(&dir).status();
    if !status.is_ok_and(|status| status.success()) {
        skip!("the kernel mounts nothing here");
    }
    let kernel = set_gid_left(&dir);
    assert!(common::system("umount").arg(&dir).status().unwrap().success());
    for left in ours {
        let other = kernel.iter().zip(&left).find(|(kernel, ours)| kernel != ours);
        assert_eq!(other, None, "the kernel's ext4, and ours");
    }
}

/// A cached write of long ago says nothing of capabilities that are set after it. Fault model: a
/// page that the kernel writes back taken for a write(2).
#[test]
fn pages_written_back_late_remove_nothing() {
    if !common::is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "writeback_cache");
    let path = mount.path("file");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, CAPABILITY, &NET_RAW, flags).unwrap();
    file.sync_all().unwrap();
    let mut value = [0; 20];
    assert_eq!(rustix::fs::getxattr(&path, CAPABILITY, &mut value[..]), Ok(20));
    drop(file);
    mount.end();
    assert_clean(&image);
}

fn handles(dir: &Path) -> u64 {
    let json = run_ok([OsStr::new("stats"), OsStr::new("--json"), dir.as_os_str()]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    json["counters"]["handles"].as_u64().unwrap()
}

/// Overwrites change bytes and times: no user's start a handle. Fault model: a write that prepares
/// for bits that are not set.
#[test]
fn overwrites_by_a_user_start_no_handles() {
    if !common::is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let child = Child::new(&scratch);
    let mount = Mounted::new(&image, &dir, "allow_other,commit=900");
    let path = mount.path("file");
    fs::write(&path, vec![1; 2000 * 4096]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    for uid in [0, NOBODY] {
        File::open(&path).unwrap().sync_all().unwrap();
        let before = handles(&dir);
        child.change(uid, "overwrites", &path);
        // The writes' times go to the inode by one handle, if the flusher runs then.
        let started = handles(&dir) - before;
        assert!(started <= 10, "2,000 overwrites by user {uid} started {started} handles");
    }
    mount.end();
    assert_clean(&image);
}
