//! How mounts end: by umount, by signals, busy, killed.
//!
//! Fault model: killed daemons, busy mounts, images that are in use, a full file system under the
//! image. Not covered: loss of power
//! (the crash tests).

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{
    Mounted, Scratch, UEXT4, assert_clean, at, has, is_mounted, is_root, no_mount, run, run_fails,
    run_ok, system, wait_until,
};

#[test]
fn one_mount_an_image_and_busy_mounts() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = Mounted::new(&image, &dir, "");
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    run_fails(["mount".into(), image.clone().into_os_string(), other.into()], "in use");
    run_fails(["rm".into(), at(&image, "/x")], "in use");
    // Nor is one mount hidden under another.
    let second = scratch.image("second", 16, &[]).unwrap();
    let first = format!("{} is mounted there; uext4 umount {}", image.display(), dir.display());
    run_fails(["mount".into(), second.into_os_string(), dir.clone().into()], &first);
    run_fails(["mount".into(), image.clone().into_os_string(), dir.clone().into()], "in use");
    let open = File::create(mount.path("open")).unwrap();
    run_fails([OsString::from("umount"), dir.clone().into()], "busy");
    drop(open);
    mount.end();
    assert!(!is_mounted(&dir));
    // Closed when umount returned: the lock is free and the image is whole.
    File::open(&image).unwrap().try_lock().unwrap();
    assert_clean(&image);
    run_fails([OsString::from("umount"), dir.into()], "not mounted");
}

#[test]
fn signals_end_a_mount() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 16);
        let mount = Mounted::new(&image, &dir, "");
        fs::write(mount.path("file"), b"written before the signal").unwrap();
        let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
        rustix::process::kill_process(daemon, signal).unwrap();
        wait_until("unmounted", || !is_mounted(&dir));
        wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
        mount.forget();
        assert_clean(&image);
        let text = run_ok(["cat".into(), at(&image, "/file")]);
        assert_eq!(text, b"written before the signal");
    }
}

#[test]
fn a_busy_mount_is_served_to_the_end_or_to_the_second_signal() {
    for signals in [1, 2] {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 16);
        let mount = Mounted::new(&image, &dir, "");
        let mut file = File::create(mount.path("file")).unwrap();
        file.write_all(b"before").unwrap();
        file.sync_all().unwrap();
        let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
        wait_until("out of sight", || !is_mounted(&dir));
        mount.forget();
        file.write_all(b" and after").unwrap();
        file.sync_all().unwrap();
        if signals == 2 {
            rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
            wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
            assert!(file.write_all(b"lost").and_then(|()| file.sync_all()).is_err());
        } else {
            drop(file);
            wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
        }
        assert_clean(&image);
        assert_eq!(run_ok(["cat".into(), at(&image, "/file")]), b"before and after");
    }
}

/// Fault model: a mount that runs out of descriptors when the command has said that it is there.
#[test]
fn a_mount_with_few_descriptors_works_or_is_refused() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::create_dir(&dir).unwrap();
    let (mut works, mut refused) = (0, 0);
    for limit in (4..40).chain([64, 96]) {
        let output = Command::new("sh")
            .args(["-c", "ulimit -n $1; exec \"$2\" mount \"$3\" \"$4\"", "sh"])
            .args([OsString::from(limit.to_string()), UEXT4.into()])
            .args([&image, &dir])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            works += 1;
            let files: Vec<_> = (0..20).map(|n| dir.join(format!("file{n}"))).collect();
            std::thread::scope(|scope| {
                for file in &files {
                    scope.spawn(move || {
                        let bytes = [limit as u8; 10_000];
                        fs::write(file, bytes).unwrap();
                        File::open(file).unwrap().sync_all().unwrap();
                        assert!(fs::read(file).unwrap() == bytes);
                    });
                }
            });
            run_ok([OsString::from("umount"), dir.clone().into()]);
        } else {
            refused += 1;
            let last = said.lines().last().unwrap_or_default();
            assert!(last.contains("Too many open files"), "{limit} descriptors: {said}");
        }
        assert!(!is_mounted(&dir), "{limit} descriptors");
        assert_clean(&image);
    }
    assert!(works > 0 && refused > 0, "{works} work, {refused} refused");
}

#[test]
fn a_killed_daemon_loses_nothing_synced() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let mount = Mounted::new(&image, &dir, "");
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    File::open(&mount.dir).unwrap().sync_all().unwrap();
    fs::write(mount.path("maybe"), b"not synced").unwrap();
    kill(&mount, &image);
    drop(file);
    // The dead mount is still in the table: mount(8) must not take it for done.
    let mut helper = Command::new(UEXT4);
    let again = helper.arg0("mount.uext4").args([&image, &dir]).output().unwrap();
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(again.status.code() == Some(32) && said.contains("uext4 umount"), "{said}");
    // umount takes it away, and says what that means.
    let said = end_killed(mount);
    assert!(said.contains("daemon had been killed; what was not synced is lost"), "{said}");
    // A dirty journal: verbs that read replay it into memory and leave the image alone.
    let before = fs::read(&image).unwrap();
    assert_eq!(run_ok(["cat".into(), at(&image, "/synced")]), vec![7; 100_000]);
    let listed = run_ok(["ls".into(), at(&image, "/")]);
    assert!(String::from_utf8(listed).unwrap().lines().any(|line| line == "dir"));
    assert!(before == fs::read(&image).unwrap(), "reading changed the image");
    // The next mount replays it for good.
    let mount = Mounted::new(&image, &dir, "");
    assert_eq!(fs::read(mount.path("synced")).unwrap(), vec![7; 100_000]);
    mount.end();
    assert_clean(&image);
}

/// Direct writes of a program that asks for durable ones, by the flags of the file, of the call and
/// of the mount, over new, allocated and written blocks.
#[test]
fn a_killed_daemon_loses_no_durable_direct_write() {
    const BLOCKS: usize = 16;
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let mut memory = vec![7; 8192];
    let skip = memory.as_ptr().align_offset(4096);
    let block = &mut memory[skip..skip + 4096];
    for options in ["", "sync", "data=journal"] {
        let mount = Mounted::new(&image, &dir, options);
        block.fill(block[0] + 1);
        let mut files = Vec::new();
        for (how, flags) in [("o_dsync", libc::O_DSYNC), ("o_sync", libc::O_SYNC), ("call", 0)] {
            for place in ["new", "allocated", "written"] {
                let name = format!("{how}-{place}");
                let mut file = File::create(mount.path(&name)).unwrap();
                match place {
                    "new" => {}
                    "allocated" => file.set_len(BLOCKS as u64 * 4096).unwrap(),
                    _ => file.write_all(&[1; BLOCKS * 4096]).unwrap(),
                }
                file.sync_all().unwrap();
                let mut opening = fs::OpenOptions::new();
                opening.write(true).custom_flags(libc::O_DIRECT | flags);
                files.push((opening.open(mount.path(&name)).unwrap(), name, flags));
            }
        }
        // Nothing else is synced from here on.
        for (direct, _, flags) in &files {
            for at in (0..BLOCKS as u64).map(|n| n * 4096) {
                let bytes = [std::io::IoSlice::new(block)];
                let asked = match flags {
                    0 => rustix::io::ReadWriteFlags::DSYNC,
                    _ => rustix::io::ReadWriteFlags::empty(),
                };
                assert_eq!(rustix::io::pwritev2(direct, &bytes, at, asked).unwrap(), 4096);
            }
        }
        let names: Vec<_> = files.into_iter().map(|(_, name, _)| name).collect();
        kill(&mount, &image);
        end_killed(mount);
        let mount = Mounted::new(&image, &dir, "");
        for name in names {
            let found = fs::read(mount.path(&name)).unwrap();
            assert!(found == block.repeat(BLOCKS), "-o {options:?}: {name}: {} bytes", found.len());
        }
        mount.end();
        assert_clean(&image);
    }
}

/// Ends a mount without a daemon; what is said of it.
fn end_killed(mount: Mounted) -> String {
    let output = run([OsStr::new("umount"), mount.dir.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    mount.forget();
    said
}

/// Kills the daemon of a mount.
fn kill(mount: &Mounted, image: &Path) {
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    wait_until("lock free", || File::open(image).unwrap().try_lock().is_ok());
}

/// The file system under the image is full to the last page, and stays so: what was written and not
/// synced cannot be saved, and umount says so; what was synced is there.
#[test]
fn umount_tells_what_a_full_host_lost() {
    if !is_root() {
        skip!("not root");
    }
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let host = TmpFs::new(scratch.path("host"));
    let Some(image) = host.sparse_image() else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    let mount = Mounted::of_shortage(&image, &dir, "no_space_timeout=1");
    let mut synced = File::create(mount.path("synced")).unwrap();
    synced.write_all(&[7; 100_000]).unwrap();
    synced.sync_all().unwrap();
    drop(synced);
    host.fill();
    fs::write(mount.path("unsynced"), [8; 1 << 20]).unwrap();
    let output = run([OsString::from("umount"), dir.clone().into()]);
    let said = String::from_utf8(output.stderr).unwrap();
    mount.forget();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("what was not synced is lost (No space left"), "{said}");
    assert!(!said.contains("journal holds"), "{said}");
    assert!(!is_mounted(&dir));
    host.give_room();
    let mount = Mounted::of_shortage(&image, &dir, "rw");
    assert_eq!(fs::read(mount.path("synced")).unwrap(), [7; 100_000]);
    assert!(
        !mount.path("unsynced").exists() || fs::read(mount.path("unsynced")).unwrap().is_empty()
    );
    mount.end();
    assert_clean(&image);
}

/// A host without room keeps `umount` waiting: it says what for, and can be ended; the mount goes
/// on leaving, and everything is there when room comes.
#[test]
fn umount_says_what_it_waits_for_and_can_be_interrupted() {
    if !is_root() {
        skip!("not root");
    }
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let host = TmpFs::new(scratch.path("host"));
    let Some(image) = host.sparse_image() else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    let mount = Mounted::of_shortage(&image, &dir, "no_space_timeout=3600");
    host.fill();
    fs::write(mount.path("unsynced"), [8; 1 << 20]).unwrap();
    let mut umount =
        Command::new(UEXT4).arg("umount").arg(&dir).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(umount.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    assert!(line.contains("is closed: writes wait for room where it is stored"), "{line}");
    let pid = rustix::process::Pid::from_child(&umount);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = umount.wait().unwrap();
    let rest: Vec<String> = said.map(Result::unwrap).collect();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(rest.len() == 1 && rest[0].contains("interrupted"), "{rest:?}");
    mount.forget();
    host.give_room();
    wait_until("the mount has gone", || !is_mounted(&dir));
    wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
    let mount = Mounted::of_shortage(&image, &dir, "rw");
    assert_eq!(fs::read(mount.path("unsynced")).unwrap(), [8; 1 << 20]);
    mount.end();
    assert_clean(&image);
}

/// The same where all was synced: the image cannot be closed, since blocks of the journal find no
/// room in their places, and nothing is lost. Fault model: "lost" said for every close that fails.
#[test]
fn a_full_host_loses_nothing_that_was_synced() {
    if !is_root() {
        skip!("not root");
    }
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let host = TmpFs::new(scratch.path("host"));
    let Some(image) = host.sparse_image() else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    fs::create_dir(&dir).unwrap();
    let mut daemon = Command::new(UEXT4);
    daemon.args(["mount", "--foreground", "-o", "no_space_timeout=1"]).args([&image, &dir]);
    let daemon = daemon.stderr(Stdio::piped()).spawn().unwrap();
    wait_until("mounted", || is_mounted(&dir));
    fs::create_dir(dir.join("dir")).unwrap();
    for name in 0..50 {
        fs::write(dir.join("dir").join(name.to_string()), [7; 5000]).unwrap();
    }
    File::open(&dir).unwrap().sync_all().unwrap();
    host.fill();
    let output = run([OsString::from("umount"), dir.clone().into()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("its journal holds the rest") && !said.contains("lost"), "{said}");
    let output = daemon.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("nothing is lost: the journal holds the rest"), "{said}");
    assert!(!said.contains("not synced"), "{said}");
    host.give_room();
    let mount = Mounted::of_shortage(&image, &dir, "rw");
    for name in 0..50 {
        assert_eq!(fs::read(dir.join("dir").join(name.to_string())).unwrap(), [7; 5000]);
    }
    mount.end();
    assert_clean(&image);
}

/// A small file system in memory.
struct TmpFs(PathBuf);

impl TmpFs {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        let mut mount = system("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(&dir);
        assert!(mount.status().unwrap().success());
        Self(dir)
    }

    /// An image whose journal and tables are holes; `None` without mke2fs.
    fn sparse_image(&self) -> Option<PathBuf> {
        let image = self.0.join("image");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let lazy = "nodiscard,lazy_itable_init=1,lazy_journal_init=1";
        let mut mke2fs = system("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=8", "-E", lazy]);
        (has("mke2fs") && mke2fs.arg(&image).status().unwrap().success()).then_some(image)
    }

    fn fill(&self) {
        let mut filler = File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    fn give_room(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for TmpFs {
    fn drop(&mut self) {
        // A daemon may hold it for a moment longer.
        let _ = system("umount").arg("-l").arg(&self.0).status();
    }
}

/// umount(8) and fusermount3(1) return while the daemon still closes the image. Fault model: a
/// mount that gives up at once; one that waits for a mount that is in use
/// (`one_mount_an_image_and_busy_mounts` has the refusal).
#[test]
fn a_mount_waits_for_an_image_that_is_being_closed() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::create_dir(&dir).unwrap();
    let holder = File::open(&image).unwrap();
    holder.lock().unwrap();
    let mut mounting = Command::new(UEXT4);
    mounting.arg("mount").args([&image, &dir]).stderr(Stdio::piped());
    let mut mounting = mounting.spawn().unwrap();
    let mut said = BufReader::new(mounting.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("in use: waiting up to 10 s"), "{line}");
    drop(holder);
    assert!(mounting.wait().unwrap().success());
    assert!(is_mounted(&dir));
    line.clear();
    assert_eq!(said.read_line(&mut line).unwrap(), 0, "{line}");
    run_ok([OsString::from("umount"), dir.into()]);
    assert_clean(&image);
}

/// What waiting cannot mend is refused at once, in the one line of every refusal. Fault model: a
/// mount that says that it waits, and does.
#[test]
fn a_mount_does_not_wait_in_vain() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::create_dir(&dir).unwrap();
    let holder = File::open(&image).unwrap();
    holder.lock().unwrap();
    let mount = |image: &Path, dir: &Path| [OsString::from("mount"), image.into(), dir.into()];
    run_fails(mount(&image, &scratch.path("nowhere")), "nowhere: No such file");
    run_fails(mount(&image, &image), "not a directory");
    drop(holder);
    if !is_root() {
        skip!("not root");
    }
    let device = system("losetup").args(["-f", "--show"]).arg(&image).output().unwrap();
    let device = PathBuf::from(String::from_utf8(device.stdout).unwrap().trim());
    let kernel = scratch.path("kernel");
    fs::create_dir(&kernel).unwrap();
    let is_mounted = system("mount").args([&device, &kernel]).status().unwrap().success();
    let said = is_mounted.then(|| run(mount(&device, &dir)));
    let _ = system("umount").arg(&kernel).status();
    assert!(system("losetup").arg("-d").arg(&device).status().unwrap().success());
    let Some(output) = said else { skip!("the kernel mounts nothing here") };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("in use") && said.lines().count() == 1, "{said}");
}

/// What ps(1) shows, and how the allocator is told to hold memory. Fault model: `exe`; free memory
/// that stays with one arena for each thread.
#[test]
fn the_daemon_has_the_name_of_the_command() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = Mounted::new(&image, &dir, "");
    let name = fs::read_to_string(format!("/proc/{}/comm", mount.daemon())).unwrap();
    assert_eq!(name, "uext4\n");
    let told = fs::read(format!("/proc/{}/environ", mount.daemon())).unwrap();
    let told = String::from_utf8_lossy(&told).into_owned();
    for word in ["MALLOC_ARENA_MAX=", "MALLOC_TRIM_THRESHOLD_=", "MALLOC_MMAP_THRESHOLD_="] {
        assert!(told.contains(word), "no {word} in {told:?}");
    }
    mount.end();
}
