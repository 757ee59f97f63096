//! `uext4 mount` within a system: called by mount(8) and umount(8).
//!
//! Fault model: an umount(8) that returns before the image is closed; words of mount(8) that are
//! misread; a failure without the exit status of a failure. Not covered: systemd itself, which is
//! not there in a test; users who are named in fstab(5).

#[macro_use]
mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use uext4_fuse::FuseOptions;

use common::{Mounted, Scratch, UEXT4, assert_clean, is_mounted, is_root, run_fails, wait_until};

/// The command under another name.
fn called(name: &str) -> Command {
    let mut command = Command::new(UEXT4);
    command.arg0(name).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Ends what a failed test has left mounted.
struct Guard(PathBuf);

impl Drop for Guard {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = Command::new(UEXT4).args(["umount", "-l"]).arg(&self.0).output();
        }
    }
}

/// mount(8) and umount(8) of root with the links in /sbin, which a mount namespace of its own has
/// alone. The proof is the lock of the image, tried right after umount(8).
#[test]
fn mount_and_umount_8_call_their_helpers() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    if !is_root() {
        skip!("not root");
    }
    let links = scratch.path("links");
    fs::create_dir_all(&links).unwrap();
    fs::create_dir(&dir).unwrap();
    for kind in ["uext4", "fuse.uext4", "fuseblk.uext4"] {
        for verb in ["mount", "umount"] {
            symlink(UEXT4, links.join(format!("{verb}.{kind}"))).unwrap();
        }
    }
    let within = |script: &str| {
        let overlay = "mount -t overlay overlay -o lowerdir=$PWD/links:$(readlink -f /sbin) /sbin";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-ec", &format!("{overlay} || exit 77; {script}")]);
        command.current_dir(scratch.dir.path()).env("PATH", "/bin:/usr/bin").output().unwrap()
    };
    if within(":").status.code() == Some(77) {
        skip!("no overlay over /sbin");
    }
    // Of an absolute path umount(8) looks no further than statfs(2), unless its table has it.
    for (kind, words, source, dir) in [
        ("fuse.uext4", "fuseblk=off", "fuse.uext4 $PWD/image", "$PWD/mnt"),
        (
            "fuseblk.uext4",
            "fuseblk=auto",
            "fuse\\(blk.uext4 /dev/loop\\|.uext4 $PWD/image\\)",
            "$PWD/mnt",
        ),
        ("uext4", "fuseblk=auto,no_sandbox", "fuse\\(blk\\)*.uext4 /", "$PWD/mnt"),
        ("uext4", "fuseblk=auto", "fuse\\(blk\\)*.uext4 /", "mnt"),
    ] {
        // Without its helper umount(8) is faster than the daemon, most of the time.
        let script = format!(
            "mount -t {kind} -o noatime,{words} image mnt
            grep -q \"$PWD/mnt .*noatime.* {source}\" /proc/self/mountinfo
            grep -q \"$PWD/mnt .*uhelper=uext4\" /run/mount/utab
            mount -o remount,ro mnt
            ! touch mnt/x 2>/dev/null
            mount -o remount,rw mnt
            echo \"$PWD/image $PWD/mnt {kind} noatime,{words} 0 0\" > fstab
            mount -a -T fstab
            test $(grep -c \"$PWD/mnt \" /proc/self/mountinfo) = 1
            dd if=/dev/urandom of=mnt/{kind} bs=1M count=8 2>/dev/null
            umount {dir}
            flock -n image true
            ! grep -q \"$PWD/mnt \" /run/mount/utab"
        );
        let output = within(&script);
        assert!(output.status.success(), "{kind}: {output:?}");
        assert_clean(&image);
    }
    let output = within("mount -t uext4 -o frobnicate image mnt");
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(32) && said.contains("'frobnicate'"), "{output:?}");
    // A busy mount is refused; -l takes it away.
    let output = within(
        "mount -t uext4 image mnt; cd mnt; ! umount ../mnt; umount -l ../mnt; cd ..
        flock -w 20 image true",
    );
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("resource busy"), "{output:?}");
    let listed = succeed(Command::new(UEXT4).arg("ls").arg(common::at(&image, "/")));
    assert_eq!(text(&listed.stdout), "fuse.uext4\nfuseblk.uext4\nlost+found\nuext4\n");
    assert_clean(&image);
}

#[test]
fn helpers_heed_their_switches() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(dir.clone());
    let mount = |switches: &[&str]| {
        called("/sbin/mount.uext4").args([&image, &dir]).args(switches).output().unwrap()
    };
    // Checked and not mounted.
    assert!(mount(&["-f", "-o", "rw"]).status.success());
    assert_eq!(mount(&["-f", "-o", "commit=soon"]).status.code(), Some(32));
    assert_eq!(mount(&["-o", "frobnicate"]).status.code(), Some(32));
    assert_eq!(mount(&["--frobnicate"]).status.code(), Some(1));
    assert!(!is_mounted(&dir));
    // Unknown words are left out, bad values are not.
    assert_eq!(mount(&["-s", "-o", "frobnicate,commit=soon"]).status.code(), Some(32));
    let output = mount(&["-nsv", "-o", "frobnicate,noatime", "-t", "uext4"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(" mounted on "), "{output:?}");
    assert!(is_mounted(&dir));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == dir.to_str()).unwrap();
    assert!(line.contains("noatime"), "{line}");
    // For mount -a, which may not know.
    assert!(mount(&[]).status.success(), "it is there");
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    let again = called("/sbin/mount.uext4").args([&image, &other]).output().unwrap();
    assert!(!again.status.success(), "an image is mounted once");
    succeed(called("umount.uext4").arg(&dir).arg("-nv"));
    assert!(!is_mounted(&dir), "it was mounted once");
    assert!(File::open(&image).unwrap().try_lock().is_ok(), "closed when the helper returns");
    assert_eq!(called("umount.fuse.uext4").arg(&dir).output().unwrap().status.code(), Some(32));
    assert_clean(&image);
}

/// `-r` leaves a busy mount read-only, `-f` ends it under its users.
#[test]
fn a_busy_mount_becomes_read_only_or_is_cut_off() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    if !is_root() {
        skip!("not root");
    }
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(dir.clone());
    succeed(called("mount.uext4").args([&image, &dir]).args(["-o", "noexec,dev"]));
    fs::write(dir.join("file"), b"kept").unwrap();
    let reader = File::open(dir.join("file")).unwrap();
    let output = succeed(called("umount.uext4").arg(&dir).arg("-r"));
    assert!(text(&output.stderr).contains("busy: made read-only"), "{output:?}");
    let error = fs::write(dir.join("more"), b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == dir.to_str()).unwrap();
    let flags = line.split(' ').nth(5).unwrap();
    assert!(flags.contains("noexec") && flags.contains("nosuid"), "{line}");
    assert!(!flags.contains("nodev"), "{line}");
    succeed(called("umount.uext4").arg(&dir).arg("-f"));
    assert!(!is_mounted(&dir));
    assert!(reader.metadata().is_err(), "the connection is cut");
    wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
    assert_clean(&image);
}

/// Words of the kernel's ext4 in an fstab(5): what means something does it, what means nothing is
/// taken, and what would be missed is refused in one line.
#[test]
fn words_of_ext4_are_heeded_taken_or_refused() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let size = |mount: &Mounted| rustix::fs::statvfs(&mount.dir).unwrap().f_blocks;
    let group = |path: &Path| path.metadata().unwrap().gid();
    let plain = Mounted::new(&image, &dir, "lazytime,init_itable=5,iversion,user_xattr,bsddf");
    let (blocks, dirs) = (size(&plain), plain.path("dir"));
    fs::create_dir(&dirs).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&dirs, None, Some(4711)).unwrap();
        fs::write(dirs.join("own"), b"").unwrap();
        assert_eq!(group(&dirs.join("own")), 0);
    }
    plain.end();
    let mount = Mounted::new(&image, &dir, "minixdf,grpid");
    assert!(size(&mount) > blocks);
    assert_eq!(size(&mount) * 1024, 16 << 20, "all blocks of 1 KiB");
    if is_root() {
        fs::write(dirs.join("file"), b"").unwrap();
        fs::create_dir(dirs.join("below")).unwrap();
        symlink("file", dirs.join("link")).unwrap();
        assert_eq!((group(&dirs.join("file")), group(&dirs.join("below"))), (4711, 4711));
        assert_eq!(dirs.join("link").symlink_metadata().unwrap().gid(), 4711);
        assert_eq!(dirs.join("below").metadata().unwrap().mode() & 0o2000, 0);
    }
    mount.end();
    for (word, why) in [
        ("usrjquota=aquota.user", "hidden files alone"),
        ("resuid=root", "not a number"),
        ("sb=8193", "only the first superblock is read"),
        ("data_err=abort", "one of ignore"),
        ("noatme", "unknown; did you mean 'noatime'?"),
        ("frobnicate", "mount option 'frobnicate': unknown"),
    ] {
        let args = ["mount".as_ref(), "-o".as_ref(), OsStr::new(word), image.as_os_str()];
        run_fails(args.into_iter().chain([dir.as_os_str()]), why);
    }
    assert_clean(&image);
}

/// `noload` with a log to replay: as the kernel's ext4 only read-only, and said in one line.
#[test]
fn a_log_is_left_alone_only_where_nothing_is_written() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = Mounted::new(&image, &dir, "");
    fs::create_dir(mount.path("dir")).unwrap();
    File::open(&mount.dir).unwrap().sync_all().unwrap();
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    wait_until("lock free", || File::open(&image).unwrap().try_lock().is_ok());
    mount.end();
    let args = ["mount".as_ref(), "-o".as_ref(), OsStr::new("noload"), image.as_os_str()];
    run_fails(args.into_iter().chain([dir.as_os_str()]), "recovery");
    let mount = Mounted::new(&image, &dir, "noload,ro");
    assert!(!mount.path("dir").exists(), "it is in the log alone");
    mount.end();
    let mount = Mounted::new(&image, &dir, "");
    assert!(mount.path("dir").exists());
    mount.end();
    assert_clean(&image);
}

/// What a service manager is told, by a socket with a name in the file system or in the abstract
/// name space. Fault model: READY before the mount answers; a daemon that speaks for the service
/// whose program mounted.
#[test]
fn a_service_manager_is_told() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::create_dir(&dir).unwrap();
    let path = scratch.path("notify");
    let name = format!("uext4-test-{}", std::process::id());
    let of_name = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, address) in [
        (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
        (UnixDatagram::bind_addr(&of_name).unwrap(), format!("@{name}").into()),
    ] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let told = || {
            let mut datagram = [0; 4096];
            let len = loop {
                match socket.recv(&mut datagram) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    received => break received.unwrap(),
                }
            };
            text(&datagram[..len]).lines().next().unwrap().to_owned()
        };
        let mut mount = Command::new(UEXT4);
        mount.args(["mount", "--foreground"]).args([&image, &dir]).env("NOTIFY_SOCKET", &address);
        let mut child = mount.spawn().unwrap();
        let _guard = Guard(dir.clone());
        assert_eq!(told(), "READY=1");
        assert!(is_mounted(&dir));
        fs::write(dir.join("file"), b"x").unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(told(), "STOPPING=1");
        assert!(child.wait().unwrap().success());
        // Ended by umount it says so, too.
        let mut child = mount.spawn().unwrap();
        assert_eq!(told(), "READY=1");
        succeed(Command::new(UEXT4).arg("umount").arg(&dir));
        assert_eq!(told(), "STOPPING=1");
        assert!(child.wait().unwrap().success());
        // A daemon is not the service.
        let mut mount = Command::new(UEXT4);
        succeed(mount.arg("mount").args([&image, &dir]).env("NOTIFY_SOCKET", &address));
        succeed(Command::new(UEXT4).arg("umount").arg(&dir));
        socket.set_nonblocking(true).unwrap();
        let silence = socket.recv(&mut [0; 16]).unwrap_err();
        assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    }
    // A manager that is not there is none.
    let mut mount = Command::new(UEXT4);
    mount.args(["mount", "--foreground"]).args([&image, &dir]).env("NOTIFY_SOCKET", "/nowhere");
    let mut child = mount.spawn().unwrap();
    wait_until("mounted", || is_mounted(&dir));
    succeed(Command::new(UEXT4).arg("umount").arg(&dir));
    assert!(child.wait().unwrap().success());
    assert_clean(&image);
}

/// A connection that was mounted before, as a container runtime gives it: served in the foreground
/// and by a daemon, ended by an unmounting from outside and by a signal.
#[test]
fn a_connection_that_is_mounted_already_is_served() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    if !is_root() {
        skip!("not root");
    }
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(dir.clone());
    let place = |fd: &OwnedFd| format!("/dev/fd/{}", fd.as_raw_fd());
    let mounted = || {
        let connection = uext4_fuse::attach::attach(&dir, &FuseOptions::default()).unwrap();
        rustix::io::fcntl_setfd(&connection, rustix::io::FdFlags::empty()).unwrap();
        connection
    };
    for how in ["--foreground", "-o"] {
        let connection = mounted();
        let mut mount = Command::new(UEXT4);
        mount.args(["mount", how]).args((how == "-o").then_some("sync"));
        let mut child = mount.arg(&image).arg(place(&connection)).spawn().unwrap();
        drop(connection);
        if how == "-o" {
            assert!(child.wait().unwrap().success());
        }
        fs::write(dir.join("file"), how).unwrap();
        assert_eq!(fs::read(dir.join("file")).unwrap(), how.as_bytes());
        succeed(Command::new(UEXT4).arg("umount").arg(&dir));
        assert!(File::open(&image).unwrap().try_lock().is_ok());
        child.wait().unwrap();
        assert_clean(&image);
    }
    // A signal closes the image; the mount is for its maker to take away.
    let connection = mounted();
    let mut mount = Command::new(UEXT4);
    mount.args(["mount", "--foreground"]).arg(&image).arg(place(&connection));
    let mut child = mount.spawn().unwrap();
    drop(connection);
    fs::write(dir.join("file"), b"more").unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(is_mounted(&dir) && dir.metadata().is_err());
    succeed(Command::new(UEXT4).arg("umount").arg(&dir));
    assert_clean(&image);
    let read = succeed(Command::new(UEXT4).arg("cat").arg(common::at(&image, "/file")));
    assert_eq!(read.stdout, b"more");
    for (place, why) in [("/dev/fd/0", "is not /dev/fuse"), ("/dev/fd/987", "Bad file descriptor")]
    {
        let args = ["mount", "--foreground"].map(OsStr::new).into_iter();
        run_fails(args.chain([image.as_os_str(), OsStr::new(place)]), why);
    }
}

/// What is wrong outside of the image is said in one line, with what to do.
#[test]
fn what_a_system_lacks_is_named() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    if !is_root() {
        skip!("not root");
    }
    fs::create_dir(&dir).unwrap();
    let _guard = Guard(dir.clone());
    let within = |devices: &str| {
        let script = format!("mount -t tmpfs none /dev; {devices} exec \"$0\" mount \"$1\" \"$2\"");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).arg(UEXT4).args([&image, &dir]);
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{output:?}");
        said
    };
    let said = within("");
    assert!(said.contains("mount: /dev/null: No such file"), "{said}");
    let null = "mknod /dev/null c 1 3;";
    let said = within(null);
    assert!(said.contains("/dev/fuse is not there: modprobe fuse, or"), "{said}");
    let said = within(&format!("{null} mknod /dev/fuse c 10 240;"));
    assert!(said.contains("/dev/fuse is no FUSE of this kernel"), "{said}");
    assert!(!is_mounted(&dir));

    let mount = Mounted::new(&image, &dir, "");
    let umount = [OsStr::new("umount"), dir.as_os_str()];
    let mut user = Command::new("sleep").arg("600").current_dir(&dir).spawn().unwrap();
    let used = format!("resource busy: used by sleep ({})", user.id());
    wait_until("the user is seen", || {
        text(&common::run(umount).stderr).trim_end().ends_with(&used)
    });
    user.kill().unwrap();
    user.wait().unwrap();
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    let tmpfs = common::system("mount").args(["-t", "tmpfs", "none"]).arg(&below).status();
    assert!(tmpfs.unwrap().success());
    let said = text(&common::run(umount).stderr);
    assert!(common::system("umount").arg(&below).status().unwrap().success());
    let below = below.display();
    assert!(said.contains(&format!("resource busy: {below} is mounted in it")), "{said}");
    mount.end();
    assert_clean(&image);
}

/// A process that keeps a mount namespace.
struct Namespace(Child);

impl Namespace {
    fn new() -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "echo ready; exec sleep 600"]);
        let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        (line == "ready\n").then_some(Self(child))
    }

    fn has(&self, dir: &Path) -> bool {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.0.id())).unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn helpers_work_in_another_namespace() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    if !is_root() {
        skip!("not root");
    }
    let Some(other) = Namespace::new() else { skip!("no unshare -m") };
    fs::create_dir(&dir).unwrap();
    let pid = other.0.id().to_string();
    succeed(called("mount.uext4").args([&image, &dir]).args(["-N", &pid]));
    assert!(other.has(&dir) && !is_mounted(&dir));
    let name = format!("/proc/{pid}/ns/mnt");
    succeed(called("umount.uext4").arg(&dir).args(["-N", &name]));
    assert!(!other.has(&dir));
    assert!(File::open(&image).unwrap().try_lock().is_ok());
    let refused = called("umount.uext4").arg(&dir).args(["-N", "/nowhere"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(32));
    assert!(text(&refused.stderr).contains("/nowhere: No such file"), "{refused:?}");
}
