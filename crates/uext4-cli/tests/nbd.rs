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
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::nbd::{LEN, Real, all_verbs, copied, inside};
use common::{Mounted, Scratch, assert_clean, has, no_mount, run_fails, run_ok, system};
use server::{Manner, Server};

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
    if let Some(copy) = copied(&scratch, &server.uri()) {
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
        ("rbd:pool", "is not of the form rbd:POOL/IMAGE"),
        ("rbd:pool/image:key=SECRET", "rbd:pool/image:key=...: a name is seen by everybody"),
    ] {
        run_fails(["info", name], what);
    }
    // A build with librbd opens them; see rbd.rs.
    if !cfg!(feature = "rbd") {
        run_fails(["-q", "mkfs", "rbd:pool/image", "1G"], "is reached by two commands");
        run_fails(["ls", "rbd:pool/image:/"], "is reached by two commands");
        run_fails(["info", "rbd:pool/image@snap"], "uext4 info nbd+unix:///?socket=SOCKET");
        run_fails(["info", "rbd:pool/image"], "--format=raw rbd:pool/image");
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
            // Not flushes: where a write is durable by itself, they are few.
            let before = server.asked.writes.load(Ordering::SeqCst);
            while server.asked.writes.load(Ordering::SeqCst) < before + 40 && !writer.is_finished()
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
        let writes = server.asked.writes.load(Ordering::SeqCst);
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
            while server.asked.writes.load(Ordering::SeqCst) < writes + 75 + round * 21 {
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
    // Nothing of the device may be needed to make a file; to make it durable the journal is.
    assert!(File::create(mount.path("more")).and_then(|file| file.sync_all()).is_err());
    assert!(File::create(mount.path("another")).is_err());
    run_fails(["umount".as_ref(), mount.dir.as_os_str()], "what was not synced is lost");
    mount.forget();
    server.start(Manner::new(LEN));
    let again = Mounted::new(&uri, &scratch.path("mnt"), "");
    assert!(fs::read(again.path("synced")).unwrap().starts_with(b"here"));
    again.end();
    durable_image(&scratch, &server);
}

/// Fault model: a mount was given up, and the server holds a clean file system by the time it is
/// unmounted, another host's.
#[test]
fn lost_changes_are_told_whatever_the_server_holds() {
    let scratch = Scratch::new();
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let (mut server, uri) = served(&scratch, Manner::new(LEN));
    let mount = Mounted::new(&uri, &scratch.path("mnt"), "nbd_timeout=1");
    let mut file = File::create(mount.path("file")).unwrap();
    file.sync_all().unwrap();
    server.kill();
    file.write_all(b"not here").unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    server.start(Manner::new(LEN));
    run_ok(["-q".as_ref(), "mkfs".as_ref(), "-F".as_ref(), uri.as_os_str()]);
    run_fails(["umount".as_ref(), mount.dir.as_os_str()], "what was not synced is lost");
    mount.forget();
    durable_image(&scratch, &server);
}

/// Fault model: two hosts, each by connections of its own, write to one export. The protocol of
/// the server has no lock; that of the file system keeps the second one out, by name.
#[test]
fn a_second_writer_is_refused_by_name() {
    let scratch = Scratch::new();
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let file = scratch.path("disk");
    File::create(&file).unwrap().set_len(LEN).unwrap();
    let Some(server) = Real::nbdkit(&scratch, &file, &[]) else { skip!("no nbdkit") };
    let uri = server.uri();
    let words = ["-q", "mkfs", "-O", "mmp", "-E", "mmp_update_interval=1"].map(OsString::from);
    run_ok(words.into_iter().chain([uri.clone()]));
    let mount = Mounted::new(Path::new(&uri), &scratch.path("mnt"), "mmp_node=first");
    fs::write(mount.path("file"), "kept").unwrap();
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    let who = "another host has it: node 'first', device 'nbdkit.sock', last seen";
    let refused = |words: &[&str], more: &[OsString]| {
        run_fails(words.iter().map(OsString::from).chain(more.iter().cloned()), who);
    };
    refused(&["mount"], &[uri.clone(), other.clone().into()]);
    refused(&["cp"], &[scratch.path("disk").into(), inside(&uri, "/x")]);
    refused(&["label"], &[uri.clone(), "other".into()]);
    refused(&["-q", "mkfs", "-F"], std::slice::from_ref(&uri));
    mount.end();
    assert_eq!(run_ok(["cat".into(), inside(&uri, "/file")]), b"kept");
    // It has gone, so nobody waits for it.
    run_ok(["-q".into(), "mkfs".into(), "-F".into(), uri]);
    drop(server);
    assert_clean(&file);
}
