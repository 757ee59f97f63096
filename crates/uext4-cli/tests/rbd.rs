//! Images of Ceph by librbd, in a build with the feature `rbd`. A part of `cargo xtask remote`.
//!
//! Fault model: mounts that are killed (`uext4_sim::remote`), a store that is killed or stands
//! still, a second writer, a lock that is taken from a mount, a host that is suspended until its
//! fence is gone, an image that is cut off, names of nothing. Judges: e2fsck and
//! the model of the load on a copy by `rbd export`. Not covered: a loss of power of the stores, a
//! network that is cut.

#[macro_use]
mod common;
#[path = "remote/ceph.rs"]
mod ceph;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ceph::{Cluster, without_cluster};
use common::nbd::{LEN, all_verbs, inside};
use common::{Mounted, Scratch, UEXT4, assert_clean, no_mount, run, run_fails, run_ok, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use uext4_sim::remote::{Export, kill_mount, kill_servers};

/// How often a mount, and the store, is killed.
const MOUNT_KILLS: u64 = 10;
const STORE_KILLS: u32 = 3;
/// Where images with faults are kept.
const KEEP: &str = env!("CARGO_TARGET_TMPDIR");
/// In seconds.
const YEAR: u64 = 31_556_952;

/// A step with its time, in a line.
fn step(name: &str, what: impl FnOnce() -> Result<String, String>) {
    let start = Instant::now();
    let done = what().unwrap_or_else(|why| panic!("librbd: {name}: {why}"));
    println!("librbd: {name}: {done} ({:.1} s)", start.elapsed().as_secs_f64());
}

#[test]
#[ignore = "cargo xtask remote"]
fn librbd() {
    if !cfg!(feature = "rbd") {
        panic!("without --features rbd there is nothing to test");
    }
    assert_eq!(no_mount(), None);
    let scratch = Scratch::new();
    let cluster = Cluster::start(&scratch.path("cluster")).unwrap();
    let mut image = Image { cluster: &cluster, number: 0, store: None };
    step("names of nothing", || names(&scratch, &cluster));
    image.make(LEN).unwrap();
    step("verbs", || {
        all_verbs(&scratch, &image.name().into_os_string());
        image.copy_to(&scratch.path("copy"))?;
        assert_clean(&scratch.path("copy"));
        Ok("mkfs, import, cp, cat, resize, ls, fsck, info, and e2fsck".into())
    });
    step("a snapshot", || snapshot(&scratch, &image));
    step("two writers", || two_writers(&scratch, &image));
    step("a client without the lock", || open_to_write(&scratch, &image));
    step("settings of an image", || fences(&image));
    step("a host that is suspended", || suspended(&scratch, &mut image));
    step("a lock that is taken", || taken(&scratch, &mut image));
    step("a store that stands still", || still(&scratch, &mut image));
    step("an image that is cut off", || cut_off(&scratch, &mut image));
    step("mounts killed", || {
        let (mut operations, mut syncs) = (0, 0);
        for seed in 1..=MOUNT_KILLS {
            let round = kill_mount(Path::new(UEXT4), seed, &mut image, Path::new(KEEP))?;
            if !round.faults.is_empty() {
                return Err(format!("{}: {}", round.what, round.faults.join("; ")));
            }
            operations += round.operations;
            syncs += round.syncs;
        }
        Ok(format!("{MOUNT_KILLS} rounds, {operations} operations, {syncs} syncs, 0 faults"))
    });
    step("the store killed", || {
        // A mount that a store has missed after its start is given up.
        image.kill();
        image.start()?;
        let round = kill_servers(Path::new(UEXT4), 41, STORE_KILLS, &mut image, Path::new(KEEP))?;
        match round.faults.is_empty() {
            true => Ok(format!("{} operations, {} syncs, 0 faults", round.operations, round.syncs)),
            false => Err(format!("{}: {}", round.what, round.faults.join("; "))),
        }
    });
}

/// An image of the cluster, and its store.
struct Image<'a> {
    cluster: &'a Cluster,
    number: u32,
    /// The store, when it has been started here.
    store: Option<Child>,
}

impl Image<'_> {
    /// Takes a new one.
    fn make(&mut self, len: u64) -> Result<(), String> {
        self.number += 1;
        let mib = (len >> 20).to_string();
        self.cluster.run("rbd", &["create", &self.spec(), "--size", &mib]).map(drop)
    }

    fn spec(&self) -> String {
        format!("rbd/disk{}", self.number)
    }

    /// `rbd:POOL/IMAGE` with what stands behind it.
    fn named(&self, more: &str) -> OsString {
        format!("rbd:{}{more}:conf={}", self.spec(), self.cluster.conf().display()).into()
    }

    /// The process of the store that is there.
    fn store(&self) -> Pid {
        let conf = self.cluster.conf();
        let is_store = |pid: i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|word| word.ends_with(b"ceph-osd"))
                && words.any(|word| word == conf.as_os_str().as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Pid::from_raw(numbers.find(|pid| is_store(*pid)).unwrap()).unwrap()
    }
}

impl Export for Image<'_> {
    fn name(&self) -> PathBuf {
        self.named("").into()
    }

    fn copy_from(&mut self, image: &Path) -> Result<(), String> {
        self.number += 1;
        let image = image.display().to_string();
        self.cluster.run("rbd", &["import", "--no-progress", &image, &self.spec()]).map(drop)
    }

    fn copy_to(&mut self, image: &Path) -> Result<(), String> {
        let _ = fs::remove_file(image);
        let image = image.display().to_string();
        self.cluster.run("rbd", &["export", "--no-progress", &self.spec(), &image]).map(drop)
    }

    fn kill(&mut self) {
        let pid = self.store();
        kill_process(pid, Signal::KILL).unwrap();
        // The next one needs its lock. The first one is a child of the cluster's, which waits for
        // it in the end.
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let has_ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        wait_until("the store has ended", has_ended);
        if let Some(mut store) = self.store.take() {
            let _ = store.wait();
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let mut command = without_cluster("ceph-osd");
        // Clusters have 30 s by themselves; the one of this test has less.
        command.args(["-f", "-i", "0", "--osd-client-watch-timeout=30", "--conf"]);
        command.arg(self.cluster.conf());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.store = Some(command.spawn().map_err(|error| error.to_string())?);
        // This waits until it serves.
        self.cluster.run("rbd", &["info", &self.spec()]).map(drop)
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        if let Some(mut store) = self.store.take() {
            let _ = store.kill();
            let _ = store.wait();
        }
    }
}

fn names(scratch: &Scratch, cluster: &Cluster) -> Result<String, String> {
    let conf = cluster.conf().display().to_string();
    let begin = Instant::now();
    for (name, what) in [
        ("rbd:none/disk", "there is no pool none"),
        ("rbd:rbd/none", "there is no image none in pool rbd"),
        ("rbd:rbd/none@snap", "there is no snapshot snap of an image none"),
        ("rbd:rbd/space/none", "there is no image none"),
        ("rbd:rbd/disk:rbd_cache=perhaps", "rbd_cache=perhaps"),
    ] {
        run_fails(["info", &format!("{name}:conf={conf}")], what);
    }
    run_fails(["info", "rbd:rbd/disk:conf=/none"], "its conf: no such file");
    let known = begin.elapsed();
    // Nobody listens there.
    let (nobody, dir) = (scratch.path("nobody.conf"), scratch.path("none"));
    fs::write(&nobody, "[global]\nmon host = [v2:127.0.0.1:1]\n").unwrap();
    fs::create_dir(&dir).unwrap();
    let name = format!("rbd:rbd/disk:conf={}", nobody.display());
    let begin = Instant::now();
    let mount: [OsString; 5] =
        ["mount".into(), "-o".into(), "nbd_timeout=3".into(), name.into(), dir.into()];
    run_fails(mount, "no connection to a cluster");
    let nobody = begin.elapsed();
    assert!(nobody < Duration::from_secs(8), "{nobody:?}");
    let (known, nobody) = (known.as_secs_f64(), nobody.as_secs_f64());
    Ok(format!("6 lines in {known:.1} s; no cluster: after {nobody:.1} s of 3 s"))
}

/// A snapshot of a mounted image shows what was synced, and can only be read.
fn snapshot(scratch: &Scratch, image: &Image<'_>) -> Result<String, String> {
    // A look at the lock each second.
    let mount = Mounted::new(&image.name(), &scratch.path("mnt"), "nbd_timeout=4");
    synced(&mount.path("file"), b"kept");
    image.cluster.run("rbd", &["snap", "create", &format!("{}@snap", image.spec())])?;
    fs::remove_file(mount.path("file")).unwrap();
    mount.end();
    let snap = image.named("@snap");
    assert_eq!(run_ok(["cat".into(), inside(&snap, "/file")]), b"kept");
    run_fails(["cat".into(), inside(image.name().as_os_str(), "/file")], "not found");
    run_fails(["mkdir".into(), inside(&snap, "/x")], "can only be read");
    let mount = Mounted::new(Path::new(&snap), &scratch.path("mnt"), "ro");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"kept");
    mount.end();
    Ok("shows what was synced, and is read only".into())
}

/// One that is there is named; one that was killed is missed, and then its lock is taken.
fn two_writers(scratch: &Scratch, image: &Image<'_>) -> Result<String, String> {
    let name = image.name().into_os_string();
    let mount = Mounted::new(&image.name(), &scratch.path("mnt"), "");
    synced(&mount.path("synced"), b"there");
    let dir = scratch.path("other");
    fs::create_dir(&dir).unwrap();
    let begin = Instant::now();
    let who = "in use: the client at 127.0.0.1:0/";
    run_fails(["mount".into(), name.clone(), dir.into_os_string()], who);
    run_fails(["mkdir".into(), inside(&name, "/new")], who);
    run_fails(["-q".into(), "mkfs".into(), "-F".into(), name.clone()], who);
    let refused = begin.elapsed().as_secs_f64();
    // A reader is let in.
    assert_eq!(run_ok(["cat".into(), inside(&name, "/synced")]), b"there");
    kill_process(Pid::from_raw(mount.daemon()).unwrap(), Signal::KILL).unwrap();
    let begin = Instant::now();
    run_ok(["-q".into(), "mkdir".into(), inside(&name, "/new")]);
    let missed = begin.elapsed().as_secs_f64();
    mount.end();
    assert_eq!(run_ok(["cat".into(), inside(&name, "/synced")]), b"there");
    Ok(format!("3 refused by name in {refused:.1} s; one that was killed missed in {missed:.1} s"))
}

/// One that has not written yet has no lock, and would get it.
fn open_to_write(scratch: &Scratch, image: &Image<'_>) -> Result<String, String> {
    let socket = scratch.path("qemu.sock");
    let mut server = without_cluster("qemu-nbd");
    server.args(["--persistent", "--format=raw", "--socket"]).arg(&socket).arg(image.name());
    let mut server = server.spawn().map_err(|error| format!("qemu-nbd: {error}"))?;
    wait_until("the server listens", || socket.exists());
    let name = image.name().into_os_string();
    let begin = Instant::now();
    let new = inside(&name, "/by-hand");
    run_fails(["-q".into(), "mkdir".into(), new.clone()], "has it open to write");
    let refused = begin.elapsed().as_secs_f64();
    // One that ends meanwhile is waited for.
    let mut mkdir = Command::new(UEXT4);
    let mut mkdir = mkdir.args(["-q", "mkdir"]).arg(&new).spawn().unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let _ = server.wait();
    assert!(mkdir.wait().unwrap().success());
    Ok(format!("refused by name after {refused:.1} s, and let in when it is gone"))
}

/// A writer that was missed is fenced; settings that say otherwise are not followed.
fn fences(image: &Image<'_>) -> Result<String, String> {
    let on_break = "rbd_blocklist_on_break_lock";
    let name = image.named(&format!(":{on_break}=false"));
    run_ok(["mkdir".into(), inside(&name, "/own-setting")]);
    let config = |words: &[&str]| image.cluster.run("rbd", &[&["config"], words].concat());
    config(&["image", "set", &image.spec(), on_break, "false"])?;
    let name = image.name().into_os_string();
    run_fails(["mkdir".into(), inside(&name, "/x")], &format!("{on_break} is false for it"));
    run_ok(["ls".into(), inside(&name, "/")]);
    config(&["image", "rm", &image.spec(), on_break])?;
    Ok("an image that lets no client be fenced is not written".into())
}

/// A host that stands still while another one has the image, until it is not fenced any more.
/// librbd takes the lock again there, without a word.
fn suspended(scratch: &Scratch, image: &mut Image<'_>) -> Result<String, String> {
    let (mounted, daemon, log) = foreground(scratch, image, "nbd_timeout=20");
    synced(&mounted.path("before-sleep"), b"kept");
    let pid = Pid::from_child(&daemon);
    kill_process(pid, Signal::STOP).unwrap();
    let name = image.name().into_os_string();
    run_ok(["-q".into(), "mkdir".into(), inside(&name, "/meanwhile")]);
    // A line for each: its address, and until when.
    let listed = image.cluster.run("ceph", &["osd", "blocklist", "ls"])?;
    let fenced: Vec<_> = listed.lines().filter_map(|line| line.split_once(' ')).collect();
    let last = fenced.iter().map(|(_, until)| *until).max().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / YEAR + 1970;
    assert!(year(last) >= now + 9, "{listed}");
    for (address, _) in &fenced {
        image.cluster.run("ceph", &["osd", "blocklist", "rm", address])?;
    }
    let before = scratch.path("before");
    image.copy_to(&before)?;
    kill_process(pid, Signal::CONT).unwrap();
    let after = File::create(mounted.path("after-sleep")).and_then(|mut file| {
        file.write_all(b"not kept")?;
        file.sync_all()
    });
    assert!(after.is_err(), "written over the other one's file system");
    ended(mounted, daemon);
    image.copy_to(&scratch.path("copy"))?;
    let same = fs::read(&before).unwrap() == fs::read(scratch.path("copy")).unwrap();
    assert!(same, "the image was changed");
    assert_clean(&scratch.path("copy"));
    run_ok(["ls".into(), inside(&name, "/meanwhile")]);
    Ok(format!("fenced until {last}; without the fence: {}", line(&log, "given up")))
}

/// The year at the start of a date.
fn year(date: &str) -> u64 {
    date.get(..4).and_then(|year| year.parse().ok()).unwrap()
}

/// librbd cuts writes off at the end of an image that has become shorter, and calls them done.
fn cut_off(scratch: &Scratch, image: &mut Image<'_>) -> Result<String, String> {
    image.make(LEN)?;
    run_ok(["-q".into(), "mkfs".into(), image.name().into_os_string()]);
    let (mounted, daemon, log) = foreground(scratch, image, "nbd_timeout=20");
    synced(&mounted.path("file"), b"kept");
    image.cluster.run(
        "rbd",
        &["resize", "--no-progress", "--allow-shrink", "--size", "32", &image.spec()],
    )?;
    let after = File::create(mounted.path("after")).and_then(|mut file| {
        file.write_all(b"not kept")?;
        file.sync_all()
    });
    assert!(after.is_err());
    ended(mounted, daemon);
    Ok(line(&log, "given up"))
}

/// Ends a mount that was given up. Its process ends as every other one.
fn ended(mounted: Mounted, mut daemon: Child) {
    // What another one has left may be called clean.
    run(["umount".as_ref(), mounted.dir.as_os_str()]);
    mounted.forget();
    let status = daemon.wait().unwrap();
    assert!(status.code().is_some(), "{status}");
}

/// A mount whose client is fenced fails, and writes nothing more.
fn taken(scratch: &Scratch, image: &mut Image<'_>) -> Result<String, String> {
    let (mounted, daemon, log) = foreground(scratch, image, "nbd_timeout=20");
    synced(&mounted.path("before"), b"kept");
    let locks = image.cluster.run("rbd", &["lock", "ls", &image.spec(), "--format", "json"])?;
    let locks: serde_json::Value = serde_json::from_str(&locks).unwrap();
    let of = |key: &str| locks[0][key].as_str().unwrap().to_owned();
    let (id, locker, address) = (of("id"), of("locker"), of("address"));
    image.cluster.run("rbd", &["lock", "rm", &image.spec(), &id, &locker])?;
    let begin = Instant::now();
    wait_until("the mount is given up", || {
        fs::read_to_string(&log).is_ok_and(|said| said.contains("given up"))
    });
    let noticed = begin.elapsed().as_secs_f64();
    // Another one has it by now.
    let name = image.name().into_os_string();
    run_ok(["-q".into(), "mkdir".into(), inside(&name, "/taken")]);
    let after = File::create(mounted.path("after")).and_then(|mut file| {
        file.write_all(b"not kept")?;
        file.sync_all()
    });
    assert!(after.is_err());
    ended(mounted, daemon);
    assert_eq!(run_ok(["cat".into(), inside(&name, "/before")]), b"kept");
    image.copy_to(&scratch.path("copy"))?;
    assert_clean(&scratch.path("copy"));
    run_fails(["cat".into(), inside(&name, "/after")], "not found");
    Ok(format!("of {address}: noticed after {noticed:.1} s: {}", line(&log, "given up")))
}

/// Past the deadline the mount is read-only, and what was synced is there.
fn still(scratch: &Scratch, image: &mut Image<'_>) -> Result<String, String> {
    let (mounted, mut daemon, log) = foreground(scratch, image, "nbd_timeout=4");
    synced(&mounted.path("early"), b"here");
    let store = image.store();
    kill_process(store, Signal::STOP).unwrap();
    let begin = Instant::now();
    let mut file = File::create(mounted.path("late")).unwrap();
    file.write_all(b"not here").unwrap();
    assert!(file.sync_all().is_err());
    let failed = begin.elapsed();
    assert!(failed < Duration::from_secs(12), "{failed:?}");
    drop(file);
    let begin = Instant::now();
    let said = run(["umount".as_ref(), mounted.dir.as_os_str()]);
    let ended = begin.elapsed().as_secs_f64();
    assert!(String::from_utf8_lossy(&said.stderr).contains("was not synced is lost"), "{said:?}");
    mounted.forget();
    let status = daemon.wait().unwrap();
    assert!(status.code().is_some(), "{status}");
    kill_process(store, Signal::CONT).unwrap();
    let name = image.name().into_os_string();
    assert_eq!(run_ok(["cat".into(), inside(&name, "/early")]), b"here");
    image.copy_to(&scratch.path("copy"))?;
    assert_clean(&scratch.path("copy"));
    let failed = failed.as_secs_f64();
    Ok(format!(
        "failed after {failed:.1} s of 4 s, unmounted in {ended:.1} s, the synced is there: {}",
        line(&log, "given up")
    ))
}

/// A mount whose log is a file.
fn foreground(scratch: &Scratch, image: &Image<'_>, options: &str) -> (Mounted, Child, PathBuf) {
    let (dir, log) = (scratch.path("mnt"), scratch.path("log"));
    fs::create_dir_all(&dir).unwrap();
    let mut mount = Command::new(UEXT4);
    mount.args(["mount", "--foreground", "-o", options]).arg(image.name()).arg(&dir);
    mount.stdin(Stdio::null()).stderr(File::create(&log).unwrap());
    let daemon = mount.spawn().unwrap();
    wait_until("the mount answers", || uext4_fuse::ask(&dir, uext4_fuse::PID_XATTR).is_ok());
    (Mounted::of(&dir), daemon, log)
}

/// The one line of a log with these words.
fn line(log: &Path, words: &str) -> String {
    let said = fs::read_to_string(log).unwrap();
    let lines: Vec<_> = said.lines().filter(|line| line.contains(words)).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].trim().to_owned()
}

fn synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}
