//! Tests that leave nothing when they are killed, and meanwhile hold nothing of the host's.
//!
//! Servers, clusters and mounts outlive a test that is killed. So it runs in name spaces of its own
//! for processes and for mounts (unshare(1)), which the kernel takes away, with all that is in
//! them, when their first process ends; and that one is killed when the test's thread ends
//! (`PR_SET_PDEATHSIG`). Files go with them: folders for temporary ones are mounts of this name
//! space, of memory and of a file without a name. That one is for Ceph, whose store is large and is
//! written directly, which tmpfs cannot do before Linux 6.6.
//!
//! A name space begins with a copy of each mount of the host, which would keep its file system in
//! use when the host unmounts it: `uext4 umount` would wait for the end of the test. Copies of what
//! comes and goes are let go of.

use std::fs;
use std::io::stdin;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};

use crate::common::{Scratch, UEXT4, is_root, system};

/// Set for the test that is inside: the file that it makes when it has passed.
const INSIDE: &str = "UEXT4_CONTAINED";

/// What the first process does. Its words: a folder of the host's with an empty one in it, and the
/// command of the test, whose lost children it takes over.
const FIRST: &str = r#"
    folder=$1
    shift
    [ ! -d /dev/shm ] || mount -n -t tmpfs tmpfs /dev/shm || exit
    mke2fs -q -F -t ext4 -O ^has_journal -N 4096 "$folder/disk" 16G >/dev/null || exit
    mount -n -o loop "$folder/disk" "$folder/in" || exit
    rm "$folder/disk"
    "$@"
    exit $?
"#;

/// Runs the test of that name of this program again, in name spaces of its own, where it does
/// `what`.
pub(crate) fn contained(test: &str, what: impl FnOnce()) {
    if let Some(passed) = std::env::var_os(INSIDE) {
        assert_is_waited_for();
        let_go_of_mounts();
        what();
        fs::write(passed, "").unwrap();
        return;
    }
    assert!(is_root(), "it needs root");
    let folder = Scratch::new();
    let (temporary, passed) = (folder.path("in"), folder.path("passed"));
    fs::create_dir(&temporary).unwrap();
    let mut command = system("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "slave"]);
    command.args(["--pid", "--mount-proc", "--fork", "--kill-child"]);
    command.args(["sh", "-c", FIRST, "sh"]).arg(folder.dir.path());
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--quiet"]);
    command.env(INSIDE, &passed).env("TMPDIR", &temporary);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // Open for as long as this process lives.
    let _alive = child.stdin.take();
    let status = child.wait().unwrap();
    assert!(status.success(), "{test}: {status}");
    // A name that no test has runs none, with success.
    assert!(passed.exists(), "{test}: it was not run");
}

/// A process that died before it was to be told of its parent's death is not told.
fn assert_is_waited_for() {
    let (stdin, now) = (stdin(), Timespec { tv_sec: 0, tv_nsec: 0 });
    let mut alive = [PollFd::new(&stdin, PollFlags::IN)];
    assert_eq!(poll(&mut alive, Some(&now)), Ok(0), "nobody waits for this test");
}

/// Takes the host's mounts of FUSE and of loop devices out of this name space, but for those on
/// which the test's own files and programs are.
fn let_go_of_mounts() {
    let temporary = std::env::var_os("TMPDIR").expect("set by its caller");
    let exe = std::env::current_exe().unwrap();
    let needed = [exe, UEXT4.into(), temporary.into(), "/usr".into()];
    let table = fs::read("/proc/self/mountinfo").unwrap();
    // Later lines lie over earlier ones.
    for line in String::from_utf8_lossy(&table).lines().rev() {
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let (kind, source) = system.split_once(' ').unwrap_or_default();
        let comes_and_goes =
            kind.starts_with("fuse") && kind != "fusectl" || source.starts_with("/dev/loop");
        let point = plain(mount.split(' ').nth(4).unwrap_or_default());
        if comes_and_goes && !needed.iter().any(|path| path.starts_with(&point)) {
            // It fails where a mount went with the one below it.
            let _ = unmount(&point, UnmountFlags::DETACH);
        }
    }
}

/// A path of the mount table without its escapes.
fn plain(field: &str) -> PathBuf {
    const ESCAPES: [(&str, &str); 4] =
        [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let unescape = |path: String, (escape, byte): (&str, &str)| path.replace(escape, byte);
    ESCAPES.into_iter().fold(field.to_owned(), unescape).into()
}
