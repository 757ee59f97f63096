//! `cargo xtask remote`: the long form of the tests of network block devices.
//!
//! Fault model: `uext4_sim::remote`, and a server that stays away past the deadline. On nbdkit, on
//! qemu-nbd with a qcow2 image, on a cluster of Ceph by qemu-nbd, and on the server of the tests,
//! which forgets what was not flushed. Judges: e2fsck through nbdfuse, e2fsck and the kernel on a
//! copy by nbdcopy, and the model of the load. Not covered: a loss of power of the server's host.
//!
//! Each test needs root and runs in name spaces of its own: see `contained`.

#[macro_use]
mod common;
#[path = "remote/ceph.rs"]
mod ceph;
#[path = "remote/contained.rs"]
mod contained;
#[path = "remote/served.rs"]
mod served;
#[path = "../../uext4-nbd/tests/server/mod.rs"]
mod server;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ceph::Cluster;
use common::nbd::inside;
use common::{Mounted, Scratch, UEXT4, run_fails, run_ok, wait_within};
use contained::contained;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use served::Served;
use server::{Manner, Server};
use uext4_sim::kill9::KillRound;
use uext4_sim::nbd_file::NbdFile;
use uext4_sim::remote::{Export, IMAGE_MIB, kill_mount, kill_servers};
use uext4_sim::tree::Trial;
use uext4_sim::tree::build::Size;
use uext4_sim::watchdog::Watchdog;

/// Length of an export for a tree, and of one for loads, in bytes.
const TREE_LEN: u64 = 3 << 30;
const LOAD_LEN: u64 = IMAGE_MIB << 20;
/// How often a mount, and a server, is killed.
const KILLS: u32 = 20;
/// Longest wait for what ends by itself, such as a request whose server is gone for good: that one
/// is lost after 10 s.
const HANG: Duration = Duration::from_secs(120);

/// Where images with faults are kept: no temporary folder outlives its test.
const KEEP: &str = env!("CARGO_TARGET_TMPDIR");

/// A step with its figures, in a line.
fn step(of: &str, name: &str, what: impl FnOnce() -> Result<String, String>) {
    let start = Instant::now();
    let done = what().unwrap_or_else(|why| panic!("{of}: {name}: {why}"));
    println!("{of}: {name}: {done} ({:.0} s)", start.elapsed().as_secs_f64());
}

/// 45,000 entries through a mount.
fn untar(of: &str, export: &mut dyn Export) {
    step(of, "untar", || {
        let size = Size {
            names: 2_000,
            large_bytes: 64 << 20,
            sparse_bytes: 1 << 32,
            ..Size::full(45_000)
        };
        Trial::new(Path::new(UEXT4), &size, TREE_LEN)?.forward_to(export)
    });
}

fn loads(of: &str, export: &mut dyn Export) {
    step(of, "mounts killed", || {
        let (mut operations, mut syncs, mut show_loss) = (0, 0, 0);
        for seed in 1..=u64::from(KILLS) {
            let round = kill_mount(Path::new(UEXT4), seed, export, Path::new(KEEP))?;
            let round = without_faults(round)?;
            operations += round.operations;
            syncs += round.syncs;
            show_loss += u32::from(round.shows_loss);
        }
        if show_loss < KILLS / 2 {
            return Err(format!("an empty image would pass all but {show_loss} rounds"));
        }
        Ok(format!(
            "{KILLS} rounds, {operations} operations, {syncs} syncs, 0 faults; an empty image \
             would have failed in {show_loss}"
        ))
    });
    servers_killed(of, "servers killed", KILLS, export);
}

fn servers_killed(of: &str, name: &str, times: u32, export: &mut dyn Export) {
    step(of, name, || {
        let round = kill_servers(Path::new(UEXT4), 31, times, export, Path::new(KEEP))?;
        let round = without_faults(round)?;
        let (operations, syncs) = (round.operations, round.syncs);
        Ok(format!("{times} times, {operations} operations, {syncs} syncs, 0 faults"))
    });
}

fn without_faults(round: KillRound) -> Result<KillRound, String> {
    match round.faults.is_empty() {
        true => Ok(round),
        false => Err(format!("{}: {}", round.what, round.faults.join("; "))),
    }
}

/// A server that stays away: one line, read-only, and what was synced is there after its restart.
fn deadline(of: &str, export: &mut dyn Export) {
    step(of, "past the deadline", || {
        let scratch = Scratch::new();
        let (name, log) = (export.name(), scratch.path("log"));
        run_ok(["-q".as_ref(), "mkfs".as_ref(), "-F".as_ref(), name.as_os_str()]);
        let dir = scratch.path("mnt");
        fs::create_dir(&dir).unwrap();
        let mut mount = Command::new(UEXT4);
        mount.args(["mount", "--foreground", "-o", "nbd_timeout=10"]).arg(&name).arg(&dir);
        mount.stdin(Stdio::null()).stderr(File::create(&log).unwrap());
        let mut daemon = mount.spawn().unwrap();
        let answers = || uext4_fuse::ask(&dir, uext4_fuse::PID_XATTR).is_ok();
        wait_within(HANG, "the mount answers", answers);
        let mounted = Mounted::of(&dir);
        let mut file = File::create(mounted.path("synced")).unwrap();
        file.write_all(b"here").unwrap();
        file.sync_all().unwrap();
        export.kill();
        let process = pidfd_open(Pid::from_child(&daemon), PidfdFlags::empty()).unwrap();
        let begin = Instant::now();
        let watchdog = Watchdog::start_with("past the deadline", HANG, move || {
            pidfd_send_signal(&process, Signal::KILL).unwrap();
        });
        file.write_all(b" and not here").unwrap();
        assert!(file.sync_all().is_err());
        let failed = begin.elapsed();
        drop((watchdog, file));
        assert!(failed < HANG, "the mount was killed, because it did not answer");
        // Nothing of the device may be needed to make a file; to make it durable the journal is.
        assert!(File::create(mounted.path("more")).and_then(|file| file.sync_all()).is_err());
        let more = File::create(mounted.path("another")).unwrap_err();
        run_fails(["umount".as_ref(), dir.as_os_str()], "what was not synced is lost");
        mounted.forget();
        let _ = daemon.wait();
        let said = fs::read_to_string(&log).unwrap();
        let lines: Vec<_> = said.lines().filter(|line| line.contains("given up")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        export.start()?;
        let found = run_ok(["cat".into(), inside(name.as_os_str(), "/synced")]);
        assert!(found.starts_with(b"here"), "{found:?}");
        NbdFile::open(&name, &scratch.path("file"))?.expect_clean()?;
        Ok(format!("failed after {:.1} s ({more}), what was synced is there", failed.as_secs_f64()))
    });
}

fn all_steps(of: &str, mut make: impl FnMut(&Path, u64) -> Served) {
    for len in [TREE_LEN, LOAD_LEN] {
        let scratch = Scratch::new();
        let mut export = make(scratch.dir.path(), len);
        if len == TREE_LEN {
            untar(of, &mut export);
        } else {
            loads(of, &mut export);
            deadline(of, &mut export);
        }
    }
}

#[test]
#[ignore = "cargo xtask remote"]
fn a_nbdkit() {
    contained("a_nbdkit", || all_steps("nbdkit", Served::nbdkit));
}

#[test]
#[ignore = "cargo xtask remote"]
fn b_qemu_nbd() {
    contained("b_qemu_nbd", || all_steps("qemu-nbd, qcow2", Served::qcow2));
}

#[test]
#[ignore = "cargo xtask remote"]
fn c_server_that_forgets() {
    contained("c_server_that_forgets", || {
        let scratch = Scratch::new();
        let mut export = Forgets { server: Server::new(scratch.dir.path()) };
        export.start().unwrap();
        loads("a server that forgets", &mut export);
        deadline("a server that forgets", &mut export);
    });
}

#[test]
#[ignore = "cargo xtask remote"]
fn d_ceph() {
    contained("d_ceph", ceph);
}

/// Images of Ceph, in the way of docs/rbd.md. A successor of a killed server waits until the
/// cluster misses that one, if the image has a lock; so most are killed on one without.
fn ceph() {
    const OF: &str = "Ceph by qemu-nbd";
    const LOCK_KILLS: u32 = 3;
    let scratch = Scratch::new();
    let start = Instant::now();
    let cluster = Cluster::start(&scratch.path("cluster")).unwrap();
    println!("Ceph: a cluster on this host: {:.0} s", start.elapsed().as_secs_f64());
    let mut number = 0;
    let mut image = |len: u64, features: &str| {
        number += 1;
        let name = format!("rbd/disk{number}");
        let mib = (len >> 20).to_string();
        let words = ["create", &name, "--size", &mib, "--image-feature", features];
        cluster.run("rbd", &words).unwrap();
        name
    };
    let words = |image: &str| format!("rbd:{image}:conf={}", cluster.conf().display());
    let serve =
        |folder: &Path, image: &str| Served::qemu_nbd(folder, &["--format=raw", &words(image)]);
    all_steps(OF, |folder, len| serve(folder, &image(len, "layering")));

    {
        let folder = scratch.path("locked");
        fs::create_dir(&folder).unwrap();
        let mut export = serve(&folder, &image(LOAD_LEN, "layering,exclusive-lock"));
        servers_killed(OF, "servers killed, an image with a lock", LOCK_KILLS, &mut export);
    }
    let name = image(LOAD_LEN, "layering,exclusive-lock");
    step(OF, "two hosts", || two_hosts(&scratch, &words(&name)));
    step(OF, "a snapshot", || snapshot(&scratch, &cluster, &name, &words));
}

/// Each host has a server of its own on the image. Ceph hands its lock over, mmp does not.
fn two_hosts(scratch: &Scratch, words: &str) -> Result<String, String> {
    let folder = |name: &str| {
        let folder = scratch.path(name);
        fs::create_dir(&folder).unwrap();
        folder
    };
    let one = Served::qemu_nbd(&folder("one"), &["--format=raw", words]);
    let two = Served::qemu_nbd(&folder("two"), &["--format=raw", words]);
    let (one_name, two_name) = (one.name(), two.name().into_os_string());
    run_ok(
        ["-q", "mkfs", "-O", "mmp"]
            .map(OsString::from)
            .into_iter()
            .chain([one_name.clone().into()]),
    );
    let mount = Mounted::new(&one_name, &scratch.path("mnt"), "mmp_node=first");
    let file = mount.path("file");
    fs::write(&file, "kept").unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let who = "another host has it: node 'first'";
    let dir = scratch.path("other");
    fs::create_dir(&dir).unwrap();
    run_fails(["mount".into(), two_name.clone(), dir.into_os_string()], who);
    run_fails(["mkdir".into(), inside(&two_name, "/new")], who);
    run_fails(["-q".into(), "mkfs".into(), "-F".into(), two_name.clone()], who);
    mount.end();
    run_ok(["mkdir".into(), inside(&two_name, "/new")]);
    Ok("the second is refused by name, and let in when the first has gone".into())
}

/// A snapshot is an image of its own, which can only be read.
fn snapshot(
    scratch: &Scratch,
    cluster: &Cluster,
    name: &str,
    words: &impl Fn(&str) -> String,
) -> Result<String, String> {
    let snap = format!("{name}@snap");
    cluster.run("rbd", &["snap", "create", &snap])?;
    let folder = scratch.path("snap");
    fs::create_dir(&folder).unwrap();
    let served = Served::qemu_nbd(&folder, &["--read-only", "--format=raw", &words(&snap)]);
    let live = scratch.path("live");
    fs::create_dir(&live).unwrap();
    let now = Served::qemu_nbd(&live, &["--format=raw", &words(name)]);
    let (snap, now) = (served.name().into_os_string(), now.name().into_os_string());
    run_ok(["rm".into(), inside(&now, "/file")]);
    assert_eq!(run_ok(["cat".into(), inside(&snap, "/file")]), b"kept");
    run_fails(["mkdir".into(), inside(&snap, "/x")], "can only be read");
    let mount = Mounted::new(&PathBuf::from(snap), &scratch.path("mnt"), "ro");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"kept");
    mount.end();
    Ok("shows what was there, and is read only".into())
}

/// The server of the tests, which keeps what was flushed and nothing else.
struct Forgets {
    server: Server,
}

impl Export for Forgets {
    fn name(&self) -> PathBuf {
        self.server.uri().into()
    }

    fn copy_from(&mut self, image: &Path) -> Result<(), String> {
        self.server.kill();
        self.server.load(fs::read(image).unwrap());
        self.start()
    }

    fn copy_to(&mut self, image: &Path) -> Result<(), String> {
        // What a restart finds.
        fs::write(image, self.server.durable()).map_err(|error| error.to_string())
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start(&mut self) -> Result<(), String> {
        self.server.start(Manner { delay: Duration::from_micros(100), ..Manner::new(LOAD_LEN) });
        Ok(())
    }
}
