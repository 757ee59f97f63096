//! The mount in the table of mount(8).
//!
//! Of an absolute path umount(8) of root asks statfs(2) alone for the type, which is that of any
//! FUSE mount, so that it would call no helper of ours and return before the image is closed. A
//! directory that is in its own table (`/run/mount/utab`) it looks up among the mounts. That table
//! is libmount's alone: mount(8) writes it, also of a mount that another program has made, by
//! `--fake`.
//! A line that was left there has no effect but that umount(8) looks further.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use uext4_fuse::mountinfo::{self, MountPoint};

const TABLE: &str = "/run/mount/utab";

/// Has mount(8) note the mount on `dir`, which must answer. Where it cannot, nothing is lost but
/// that umount(8) waits.
pub(crate) fn add(dir: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mount = mountinfo::find(dir).ok().flatten().filter(MountPoint::is_ours);
    let Some(mount) = mount else { return };
    let mut note = Command::new("/bin/mount");
    // Of the mount itself nothing is touched, and no helper is called.
    note.args(["--no-canonicalize", "--internal-only", "--fake", "-o", "uhelper=uext4", "-t"]);
    note.arg(&mount.fs_type).arg(&mount.shown_source).arg(dir);
    run(&mut note);
}

/// Has umount(8) forget the mount that was on `dir`.
pub(crate) fn remove(dir: &Path) {
    let is_empty = || fs::metadata(TABLE).map_or(true, |table| table.len() == 0);
    if !rustix::process::geteuid().is_root() || is_empty() {
        return;
    }
    let mut forget = Command::new("/bin/umount");
    run(forget.args(["--no-canonicalize", "--internal-only", "--fake"]).arg(dir));
}

fn run(command: &mut Command) {
    let null = Stdio::null;
    let _ = command.stdin(null()).stdout(null()).stderr(null()).current_dir("/").status();
}
