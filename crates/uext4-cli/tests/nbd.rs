//! Images on network block devices: real servers, one that dies and forgets, and wrong names.
//!
//! Fault model: a verb that takes a URI for a file; a mount that loses what was synced when its
//! server dies, or when it is killed itself; a mount that hangs when the server stays away. Not
//! covered: a server that is cut off, alive, and executes old requests later.

#[macro_use]
mod common;
#[path = "../../uext4-nbd/tests/server/mod.rs"]
mod server;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{
    Mounted, Scratch, assert_clean, has, no_mount, run, run_fails, run_ok, system, wait_until,
};
use server::{Manner, Server};

const LEN: u64 = 64 << 20;

/// A real server on a file, killed in the end.
struct Real {
    child: Child,
    socket: PathBuf,
}

impl Real {
    /// `nbdkit` on the file, with its filters and arguments; `None` without nbdkit.
    fn nbdkit(scratch: &Scratch, file: &Path, words: &[&str]) -> Option<Self> {
        let socket = scratch.path("nbdkit.sock");
        let _ = fs::remove_file(&socket);
        let mut command = system("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        let (before, after): (Vec<_>, Vec<_>) =
            words.iter().copied().partition(|word| word.starts_with('-'));
        command.args(before).arg("file").arg(file).args(after);
        has("nbdkit").then(|| Self::start(command, socket))
    }

    /// `qemu-nbd` on a qcow2 image that is made; `None` without it.
    fn qcow2(scratch: &Scratch) -> Option<Self> {
        if !has("qemu-nbd") || !has("qemu-img") {
            return None;
        }
        let (image, socket) = (scratch.path("image.qcow2"), scratch.path("qemu.sock"));
        if !image.exists() {
            let mut create = system("qemu-img");
            create.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg(LEN.to_string());
            assert!(create.status().unwrap().success());
        }
        let _ = fs::remove_file(&socket);
        let mut command = system("qemu-nbd");
        command.args(["--format=qcow2", "--persistent", "--shared=8", "--discard=unmap"]);
        command.arg("--socket").arg(&socket).arg(&image);
        Some(Self::start(command, socket))
    }

    fn start(mut command: Command, socket: PathBuf) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let server = Self { child, socket };
        wait_until("the server listens", || server.socket.exists());
        server
    }

    fn uri(&self) -> OsString {
        format!("nbd+unix:///?socket={}", self.socket.display()).into()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `URI:/path`.
fn inside(uri: &OsString, path: &str) -> OsString {
    let mut name = uri.clone();
    name.push(":");
    name.push(path);
    name
}

/// A tree with files of several sizes.
fn tree(scratch: &Scratch) -> PathBuf {
    let dir = scratch.path("tree");
    fs::create_dir_all(dir.join("deep/er")).unwrap();
    for (name, len) in [("small", 10), ("deep/middle", 70_000), ("deep/er/large", 5 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        fs::write(dir.join(name), bytes).unwrap();
    }
    dir
}

/// Makes, fills, reads, checks and grows a file system on an export.
fn all_verbs(scratch: &Scratch, uri: &OsString) {
    let verb = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let with = |words: &[&str], more: &[&OsString]| {
        let more: Vec<OsString> = more.iter().map(|word| (*word).clone()).collect();
        [verb(words), more].concat()
    };
    run_ok(with(&["-q", "mkfs", "-F"], &[uri, &"40M".into()]));
    let tree = tree(scratch);
    run_ok(with(&["-q", "import"], &[&tree.clone().into(), &inside(uri, "/tree")]));
    run_ok(with(&["-q", "cp"], &[&tree.join("small").into(), &inside(uri, "/copied")]));
    let read = run_ok(with(&["cat"], &[&inside(uri, "/tree/deep/er/large")]));
    assert!(read == fs::read(tree.join("deep/er/large")).unwrap());
    assert_eq!(run_ok(with(&["cat"], &[&inside(uri, "/copied")])).len(), 10);
    run_ok(with(&["-q", "resize"], &[uri, &"60M".into()]));
    let list = run_ok(with(&["ls"], &[&inside(uri, "/tree")]));
    assert_eq!(String::from_utf8(list).unwrap(), "deep\nsmall\n");
    run_ok(with(&["-q", "fsck"], &[uri]));
    assert!(run(with(&["info"], &[uri])).status.success());
}

#[test]
fn verbs_work_on_nbdkit() {
    let scratch = Scratch::new();
    let file = scratch.path("disk");
    File::create(&file).unwrap().set_len(LEN).unwrap();
    let Some(server) = Real::nbdkit(&scratch, &file, &[]) else { skip!("no nbdkit") };
    all_verbs(&scratch, &server.uri());
    drop(server);
    assert_clean(&file);
    // Requests of whole units of 4,096 bytes only, as of a disk with such sectors.
    let words =
        ["--filter=blocksize-policy", "blocksize-minimum=4096", "blocksize-error-policy=error"];
    let server = Real::nbdkit(&scratch, &file, &words).unwrap();
    all_verbs(&scratch, &server.uri());
    drop(server);
    assert_clean(&file);
}

#[test]
fn verbs_work_on_qemu_nbd() {
    let scratch = Scratch::new();
    let Some(server) = Real::qcow2(&scratch) else { skip!("no qemu-nbd") };
    all_verbs(&scratch, &server.uri());
    if has("nbdcopy") {
        let copy = scratch.path("copy");
        let copied = system("nbdcopy").arg(server.uri()).arg(&copy).status().unwrap();
        assert!(copied.success());
        assert_clean(&copy);
    }
}

/// A partition of an export: what lies before and behind it stays as it is.
#[test]
fn a_partition_of_an_export_is_an_image() {
    let scratch = Scratch::new();
    let file = scratch.path("disk");
    File::create(&file).unwrap().set_len(LEN).unwrap();
    if !has("sfdisk") {
        skip!("no sfdisk");
    }
    let mut table = system("sfdisk").arg("-q").arg(&file).stdin(Stdio::piped()).spawn().unwrap();
    table.stdin.take().unwrap().write_all(b"label: gpt\nsize=4MiB\nsize=40MiB\n").unwrap();
    assert!(table.wait().unwrap().success());
    let before = fs::read(&file).unwrap();
    let Some(server) = Real::nbdkit(&scratch, &file, &[]) else { skip!("no nbdkit") };
    let mut part = server.uri();
    part.push("@p2");
    run_ok(["-q".into(), "mkfs".into(), part.clone()]);
    run_ok(["-q".into(), "mkdir".into(), inside(&part, "/made")]);
    assert_eq!(run_ok(["ls".into(), inside(&part, "/")]), b"lost+found\nmade\n");
    drop(server);
    let after = fs::read(&file).unwrap();
    let (start, end) = (5 << 20, 45 << 20);
    assert!(after[..start] == before[..start] && after[end..] == before[end..]);
}

/// Names of what cannot be opened: one line each, before anything is done.
#[test]
fn wrong_names_end_in_a_line() {
    let scratch = Scratch::new();
    let socket = scratch.path("none.sock");
    let missing: OsString = format!("nbd+unix:///?socket={}", socket.display()).into();
    run_fails(["info".into(), missing.clone()], "no connection");
    run_fails(["ls".into(), inside(&missing, "/")], "no connection");
    run_fails(["-q".into(), "mkfs".into(), missing], "no connection");
    for (name, what) in [
        ("nbd+unix:///disk", "names no socket"),
        ("nbd://", "names no host"),
        ("nbd://127.0.0.1:1/x?speed=9", "unknown parameter"),
        ("nbd://127.0.0.1:1/x", "no connection"),
        ("nbd+vsock:///x", "nbd+vsock is none of"),
    ] {
        run_fails(["info", name], what);
    }
    let mut server = Server::new(scratch.dir.path());
    server.start(Manner { read_only: true, ..Manner::new(LEN) });
    run_fails(["-q", "mkfs", &server.uri()], "can only be read");
    run_fails(["info", &server.uri()], "no ext4 superblock");
    run_fails(["info", &server.uri().replace("disk", "else")], "has no export");
}

/// A server with a fresh file system, and its URI.
fn served(scratch: &Scratch, manner: Manner) -> (Server, PathBuf) {
    let mut server = Server::new(scratch.dir.path());
    server.start(manner);
    let uri: PathBuf = server.uri().into();
    run_ok(["-q".as_ref(), "mkfs".as_ref(), uri.as_os_str()]);
    (server, uri)
}

/// What a restart of the server would find, as an image that e2fsck has found clean.
fn durable_image(scratch: &Scratch, server: &Server) -> PathBuf {
    let image = scratch.path("image");
    fs::write(&image, server.durable()).unwrap();
    assert_clean(&image);
    image
}

/// Numbers in files of their own, each synced before it is told.
fn write_synced(dir: &Path, stop: &AtomicBool) -> u32 {
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            return number;
        }
        let mut file = File::create(dir.join(format!("file-{number}"))).unwrap();
        file.write_all(&[7; 9000]).unwrap();
        file.sync_all().unwrap();
    }
    0
}

fn check_written(dir: &Path, count: u32) {
    for number in 0..count {
        let mut bytes = Vec::new();
        let name = dir.join(format!("file-{number}"));
        File::open(&name).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == [7; 9000], "{}", name.display());
    }
}

/// The server dies under load and forgets what was not flushed: the mount goes on.
#[test]
fn a_mount_survives_its_server() {
    let scratch = Scratch::new();
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let manner = Manner { delay: Duration::from_micros(100), ..Manner::new(LEN) };
    let (mut server, uri) = served(&scratch, manner.clone());
    let mount = Mounted::new(&uri, &scratch.path("mnt"), "nbd_timeout=30");
    let stop = AtomicBool::new(false);
    let count = thread::scope(|scope| {
        let writer = scope.spawn(|| write_synced(&mount.dir, &stop));
        for _ in 0..10 {
            let before = server.asked.flushes.load(Ordering::SeqCst);
            while server.asked.flushes.load(Ordering::SeqCst) < before + 12 && !writer.is_finished()
            {
                thread::yield_now();
            }
            server.kill();
            server.start(manner.clone());
        }
        stop.store(true, Ordering::SeqCst);
        writer.join().unwrap()
    });
    check_written(&mount.dir, count);
    mount.end();
    server.kill();
    let image = durable_image(&scratch, &server);
    let again = Mounted::new(&image, &scratch.path("mnt"), "ro");
    check_written(&again.dir, count);
    again.end();
}

/// The mount is killed: what was synced is on the server.
#[test]
fn what_was_synced_survives_the_death_of_the_mount() {
    let scratch = Scratch::new();
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let (server, uri) = served(&scratch, Manner::new(LEN));
    let dir = scratch.path("mnt");
    let mut count = 0;
    for round in 0..3 {
        let mount = Mounted::new(&uri, &dir, "");
        check_written(&dir, count);
        let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
        let flushes = server.asked.flushes.load(Ordering::SeqCst);
        let known = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut known = count;
                loop {
                    let name = dir.join(format!("file-{known}"));
                    let written = File::create(name).and_then(|mut file| {
                        file.write_all(&[7; 9000]).and_then(|()| file.sync_all())
                    });
                    if written.is_err() {
                        return known;
                    }
                    known += 1;
                }
            });
            while server.asked.flushes.load(Ordering::SeqCst) < flushes + 25 + round * 7 {
                thread::yield_now();
            }
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
            writer.join().unwrap()
        });
        count = known;
        mount.end();
    }
    let mount = Mounted::new(&uri, &dir, "");
    check_written(&dir, count);
    mount.end();
    durable_image(&scratch, &server);
}

/// The server stays away for longer than it is waited for: the mount fails as on a disk that is
/// gone, and what was synced is there when the server is.
#[test]
fn past_the_deadline_a_mount_fails_and_loses_nothing() {
    let scratch = Scratch::new();
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let (mut server, uri) = served(&scratch, Manner::new(LEN));
    let mount = Mounted::new(&uri, &scratch.path("mnt"), "nbd_timeout=1");
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(b"here").unwrap();
    file.sync_all().unwrap();
    server.kill();
    file.write_all(b" and not here").unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    assert!(File::create(mount.path("more")).is_err());
    run_fails(["umount".as_ref(), mount.dir.as_os_str()], "what was not synced is lost");
    mount.forget();
    server.start(Manner::new(LEN));
    let again = Mounted::new(&uri, &scratch.path("mnt"), "");
    assert!(fs::read(again.path("synced")).unwrap().starts_with(b"here"));
    again.end();
    durable_image(&scratch, &server);
}
