//! What a mount tells while it is served.
//!
//! Fault model: trouble that nobody is told of, in the foreground or by a daemon in its sandbox;
//! lines of a level that was not asked for; a line of a hostile image that forges another one. Not
//! covered: a log that is full; journald itself.

#[macro_use]
mod common;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Scratch, UEXT4, has, is_root, no_mount, run_ok, system, wait_until};

/// An image whose directory `/d` is damaged.
fn damaged(scratch: &Scratch) -> Option<PathBuf> {
    if !has("debugfs") {
        return None;
    }
    fs::create_dir_all(scratch.path("source/d")).unwrap();
    let source = scratch.path("source");
    let image = scratch.image("image", 32, &["-b", "4096", "-d", source.to_str().unwrap()])?;
    let told = system("debugfs").args(["-R", "blocks /d"]).arg(&image).output().unwrap();
    let block: u64 = String::from_utf8(told.stdout).unwrap().trim().parse().expect("a block");
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"damage", block * 4096 + 100).unwrap();
    Some(image)
}

/// What a mount in the foreground says until it ends by itself, `work` having been done on it.
fn said_in_the_foreground(image: &Path, dir: &Path, options: &str, work: impl FnOnce()) -> String {
    fs::create_dir_all(dir).unwrap();
    let mut mount = Command::new(UEXT4);
    mount.args(["mount", "--foreground", "-o", options]).args([image, dir]);
    let mount = mount.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // An attribute that is answered by the server alone.
    let pid = &mut [0; 16];
    wait_until("it answers", || rustix::fs::getxattr(dir, "uext4.pid", &mut pid[..]).is_ok());
    work();
    let _ = Command::new(UEXT4).arg("umount").arg(dir).output();
    String::from_utf8(mount.wait_with_output().unwrap().stderr).unwrap()
}

#[test]
fn each_level_has_its_lines_in_the_foreground() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 32, &[]) else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    assert_eq!(said_in_the_foreground(&image, &dir, "rw", || ()), "");
    assert_eq!(said_in_the_foreground(&image, &dir, "log=error", || ()), "");
    let said = said_in_the_foreground(&image, &dir, "log=info,io_uring=off", || ());
    let (image, dir) = (image.display(), dir.display());
    let mounted = format!("mounted on {dir}, requests by /dev/fuse (switched off)");
    assert_eq!(said, format!("uext4: mount: {image}: {mounted}\nuext4: mount: {image}: closed\n"));
}

#[test]
fn damage_is_told_as_it_is_met() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let Some(image) = damaged(&scratch) else { skip!("no debugfs") };
    let dir = scratch.path("mnt");
    let read = || {
        assert!(fs::read_dir(dir.join("d")).and_then(|mut d| d.next().unwrap()).is_err());
        // A reader of the statistics is told why, too.
        let told = String::from_utf8(run_ok(["stats".as_ref(), dir.as_os_str()])).unwrap();
        let line = told.lines().find(|line| line.starts_with("read-only: ")).expect("a line");
        assert!(line.contains("damage was found"), "{line}");
    };
    let options = "fakeroot,errors=remount-ro,log=error";
    let said = said_in_the_foreground(&image, &dir, options, read);
    let start = format!("uext4: mount: {}: ", image.display());
    let lines: Vec<&str> = said.lines().map(|line| line.strip_prefix(&start).unwrap()).collect();
    assert!(lines[0].starts_with("damage was found: "), "{said}");
    assert!(lines[1].starts_with("changes are refused from now on: "), "{said}");
}

/// In a name space of its own the daemon finds our socket as `/dev/log`.
#[test]
fn a_daemon_tells_the_systems_log_from_its_sandbox() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    if !is_root() {
        skip!("not root: no mount name space");
    }
    let scratch = Scratch::new();
    let Some(image) = damaged(&scratch) else { skip!("no debugfs") };
    let (dir, dev) = (scratch.path("mnt"), scratch.path("dev"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&dev).unwrap();
    let log = UnixDatagram::bind(dev.join("log")).unwrap();
    log.set_nonblocking(true).unwrap();
    let script = r#"
for node in fuse null; do touch "$DEV/$node"; mount --bind "/dev/$node" "$DEV/$node"; done
mount --rbind "$DEV" /dev
"$UEXT4" mount -o fuseblk=off,errors=remount-ro,log=debug "$IMAGE" "$DIR"
ls "$DIR/d" && exit 1
"$UEXT4" umount "$DIR" || true"#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-ec", script])
        .env("DEV", &dev)
        .env("UEXT4", UEXT4)
        .env("IMAGE", &image)
        .env("DIR", &dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut lines = Vec::new();
    let mut datagram = [0; 4096];
    loop {
        match log.recv(&mut datagram) {
            Ok(len) => lines.push(String::from_utf8(datagram[..len].to_vec()).unwrap()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    // Facility daemon, with severities info and error.
    let mounted = format!("]: mount: {}: mounted on ", image.display());
    let damage = format!("]: mount: {}: damage was found: ", image.display());
    for (priority, text) in [("<30>uext4[", mounted), ("<27>uext4[", damage)] {
        let found = lines.iter().any(|line| line.starts_with(priority) && line.contains(&text));
        assert!(found, "{text}: {lines:#?}");
    }
    let unmounted = run_ok(["stats".as_ref(), image.as_os_str()]);
    assert!(!unmounted.is_empty());
}
