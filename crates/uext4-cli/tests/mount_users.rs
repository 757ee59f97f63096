//! What each user may do on a mount.
//!
//! Fault model: wrong users, checks that are left out or made for the wrong one. Not covered:
//! permission bits, which the kernel checks (pjdfstest).

#[macro_use]
mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::{Mounted, Scratch, assert_clean, run_ok, shell};
use rustix::fs::XattrFlags;

/// The control file system of FUSE, which lets users cut the connections of their mounts; as before
/// when dropped.
struct Control {
    was_there: bool,
}

impl Control {
    const DIR: &str = "/sys/fs/fuse/connections";

    fn mounted() -> Self {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let was_there = table.contains(&format!(" {} ", Self::DIR));
        if !was_there {
            shell(&format!("mount -t fusectl none {}", Self::DIR), Path::new("/"));
        }
        Self { was_there }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if !self.was_there {
            let _ = Command::new("umount").args(["-l", Self::DIR]).output();
        }
    }
}

/// `/dev/fuse` open to everybody, as udev makes it; as before when dropped.
struct FuseOpenToAll {
    before: fs::Permissions,
}

impl FuseOpenToAll {
    fn now() -> std::io::Result<Self> {
        let before = fs::metadata("/dev/fuse")?.permissions();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666))?;
        Ok(Self { before })
    }
}

impl Drop for FuseOpenToAll {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", self.before.clone());
    }
}

#[test]
fn an_ordinary_user_mounts() {
    if !common::is_root() {
        skip!("the other tests run as an ordinary user already");
    }
    if !common::has("setpriv") || !common::has("fusermount3") {
        skip!("setpriv or fusermount3 is missing");
    }
    let _open = match FuseOpenToAll::now() {
        Ok(open) => open,
        Err(error) => skip!("/dev/fuse: {error}"),
    };
    let _control = Control::mounted();
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let (uid, program) = (65_534, scratch.path("uext4"));
    fs::copy(common::UEXT4, &program).unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [scratch.dir.path(), &image, &dir] {
        std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
    }
    let as_user = |script: &str| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", script])
            .current_dir(scratch.dir.path())
            .output()
            .unwrap()
    };
    let script = "./uext4 mount -o fakeroot image mnt
        trap './uext4 umount -l mnt' EXIT
        echo hello > mnt/file; mkdir mnt/dir; touch -d '2001-02-03 04:05:06.789' mnt/file
        test \"$(cat mnt/file)\" = hello
        ./uext4 sync mnt
        ./uext4 umount mnt; trap - EXIT
        test \"$(./uext4 cat image:/file)\" = hello
        # In use: -f cuts the connection.
        ./uext4 mount -o fakeroot image mnt
        exec 3< mnt/file
        ./uext4 umount -f mnt
        ! cat <&3 2>&1";
    let output = as_user(script);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let refused = as_user("./uext4 mount -o suid image mnt");
    assert_eq!(refused.status.code(), Some(1));
    assert_clean(&image);
}

/// An access control list in the form of xattr(7): version 2, then tag, permissions and id.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn access_lists_decide_unless_told_not_to() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Owner rw, user 65534 r, group none, mask r, others none.
    let none = u32::MAX;
    let list =
        access_list(&[(1, 6, none), (2, 4, 65_534), (4, 0, none), (16, 4, none), (32, 0, none)]);
    let may_read = |path: &Path| {
        let status = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
            .arg(path)
            .output()
            .unwrap();
        status.status.success()
    };
    let mount = Mounted::new(&image, &dir, "allow_other");
    let file = mount.path("file");
    fs::write(&file, b"x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!may_read(&file));
    rustix::fs::setxattr(&file, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    assert!(may_read(&file));
    // A directory's default list is what its new files get, whatever the umask is.
    let below = mount.path("below");
    fs::create_dir(&below).unwrap();
    fs::set_permissions(&below, fs::Permissions::from_mode(0o755)).unwrap();
    rustix::fs::setxattr(&below, "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
    shell("umask 077; echo x > below/new; echo x > plain", &mount.dir);
    assert!(may_read(&below.join("new")));
    assert_eq!(mount.path("plain").metadata().unwrap().mode() & 0o777, 0o600);
    mount.end();
    assert_clean(&image);
    let mount = Mounted::new(&image, &dir, "allow_other,noacl");
    assert!(!may_read(&mount.path("file")));
    mount.end();
}

/// What `-m` of mke2fs keeps for root is not for others: fault model, a mount that counts for all
/// callers alike. The kernel's ext4 gives the same answers.
#[test]
fn blocks_reserved_for_root_are_not_for_others() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = Mounted::new(&image, &dir, "allow_other,noacl");
    let all = mount.path("all");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    let write = |prefix: &[&str], name: &str| {
        let script = format!("exec dd if=/dev/zero of={name} bs=64k count=1600 conv=fsync");
        let mut command = Command::new(prefix.first().unwrap_or(&"sh"));
        command.args(prefix.iter().skip(1));
        if !prefix.is_empty() {
            command.arg("sh");
        }
        let output = command.args(["-ec", &script]).current_dir(&all).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{output:?}");
        fs::metadata(all.join(name)).unwrap().len()
    };
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let reserved = 64 * 1024 * 1024 / 20;
    write(&user, "user");
    let left = rustix::fs::statvfs(&all).unwrap();
    assert!(left.f_bfree * left.f_frsize >= reserved, "{} blocks", left.f_bfree);
    assert!(write(&user, "more") < 65_536, "the user got all there was before");
    assert!(write(&[], "root") > reserved * 8 / 10);
    // What comes free is root's first.
    fs::remove_file(all.join("root")).unwrap();
    assert!(write(&user, "again") < 65_536);
    mount.end();
    assert_clean(&image);
}

/// A mount that only root may enter has no permission checks; what root cannot do either, run a
/// file that nobody may run, is refused all the same.
#[test]
fn root_alone_may_do_all_but_run_what_is_no_program() {
    if !rustix::process::geteuid().is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = Mounted::new(&image, &dir, "rw");
    let script = mount.path("script");
    fs::write(&script, "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o000)).unwrap();
    let access = |flags| rustix::fs::access(&script, flags);
    assert!(access(rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok());
    assert_eq!(access(rustix::fs::Access::EXEC_OK), Err(rustix::io::Errno::ACCESS));
    assert_eq!(
        Command::new(&script).status().unwrap_err().kind(),
        std::io::ErrorKind::PermissionDenied
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o010)).unwrap();
    assert!(access(rustix::fs::Access::EXEC_OK).is_ok());
    assert_eq!(Command::new(&script).status().unwrap().code(), Some(7));
    mount.end();
    assert_clean(&image);
}

/// Attributes of the `trusted.` space are root's: others do not even see their names. Fault model:
/// a list that is the same for all callers. The kernel's ext4 gives the same answers.
#[test]
fn trusted_attributes_are_for_root() {
    if !common::is_root() || !common::has("getfattr") || !common::has("setpriv") {
        skip!("needs root, getfattr and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let fill = |dir: &Path| {
        let file = dir.join("file");
        fs::write(&file, b"x").unwrap();
        std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).unwrap();
        for name in ["trusted.secret", "user.open"] {
            rustix::fs::setxattr(&file, name, b"1", XattrFlags::empty()).unwrap();
        }
    };
    let script = "getfattr -m- file; getfattr -n trusted.secret file; getfattr -n trusted.none file
        setfattr -n trusted.secret -v 2 file; setfattr -n trusted.new -v 2 file
        setfattr -x trusted.secret file; setfattr -x user.open file; getfattr -m- file";
    let said = |dir: &Path, prefix: &[&str]| {
        let words = prefix.iter().copied().chain(["sh", "-c", script]);
        let mut command = common::system("env");
        let output = command.args(words).current_dir(dir).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mount = Mounted::new(&image, &dir, "allow_other,noacl");
    fill(&dir);
    let ours = (said(&dir, &user), said(&dir, &[]));
    mount.end();
    assert!(!ours.0.0.contains("trusted") && ours.0.0.contains("user.open"), "{ours:?}");
    assert_eq!(ours.0.1.matches("not permitted").count(), 3, "{ours:?}");
    assert!(ours.1.0.contains("trusted.secret"), "{ours:?}");
    assert_clean(&image);
    let status = common::system("mount").args(["-o", "loop"]).arg(&image).arg(&dir).status();
    if !status.is_ok_and(|status| status.success()) {
        skip!("the kernel mounts nothing here");
    }
    fs::remove_file(dir.join("file")).unwrap();
    fill(&dir);
    let kernel = (said(&dir, &user), said(&dir, &[]));
    assert!(common::system("umount").arg(&dir).status().unwrap().success());
    assert_eq!(ours, kernel);
}

/// With `idmap` the kernel says of few requests whose they are: fault model, root that is refused
/// what is root's, and others that are not.
#[test]
fn a_mount_for_other_owners_knows_its_callers() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = Mounted::new(&image, &dir, "allow_other,idmap");
    let command = scratch.path("uext4");
    common::copy_program(Path::new(common::UEXT4), &command);
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    for (verb, refusal) in [("stats", "only root and who mounted it"), ("trim", "not permitted")] {
        run_ok([std::ffi::OsStr::new(verb), dir.as_os_str()]);
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&command)
            .arg(verb)
            .arg(&dir)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(refusal), "{verb}: {said}");
    }
    mount.end();
    assert_clean(&image);
}
