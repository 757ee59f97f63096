//! Real servers of network block devices, and what is done with an export of any.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Scratch, has, run, run_ok, system, wait_until};

/// Length of the exports, in bytes.
pub(crate) const LEN: u64 = 64 << 20;

/// A real server on a file, killed in the end.
pub(crate) struct Real {
    child: Child,
    uri: OsString,
}

impl Real {
    /// `nbdkit` on the file, with its filters and arguments; `None` without nbdkit.
    pub(crate) fn nbdkit(scratch: &Scratch, file: &Path, words: &[&str]) -> Option<Self> {
        let socket = scratch.path("nbdkit.sock");
        let _ = fs::remove_file(&socket);
        let mut command = system("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        add_words(&mut command, file, words);
        has("nbdkit").then(|| Self::start(command, &socket))
    }

    /// The same on a port of this host.
    pub(crate) fn nbdkit_by_tcp(file: &Path, words: &[&str]) -> Option<Self> {
        // The server gets the socket that listens already, as systemd gives one, so that the port
        // is its own.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("nbd://{}", listener.local_addr().unwrap()).into();
        let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
        let mut command = system("sh");
        command.args(["-c", script, "sh", "nbdkit", "--foreground", "--exit-with-parent"]);
        add_words(&mut command, file, words);
        command.stdin(std::os::fd::OwnedFd::from(listener)).stdout(Stdio::null());
        has("nbdkit").then(|| Self { child: command.spawn().unwrap(), uri })
    }

    /// `qemu-nbd` on a qcow2 image that is made; `None` without it.
    pub(crate) fn qcow2(scratch: &Scratch) -> Option<Self> {
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
        Some(Self::start(command, &socket))
    }

    fn start(mut command: Command, socket: &Path) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let uri = format!("nbd+unix:///?socket={}", socket.display()).into();
        let server = Self { child, uri };
        wait_until("the server listens", || socket.exists());
        server
    }

    pub(crate) fn uri(&self) -> OsString {
        self.uri.clone()
    }

    /// Its URI with other letters before `://`, and more parameters.
    pub(crate) fn uri_of(&self, scheme: &str, parameters: &str) -> OsString {
        let uri = self.uri.to_str().unwrap();
        let (_, rest) = uri.split_once("://").unwrap();
        format!("{scheme}://{rest}{parameters}").into()
    }
}

/// Words of nbdkit that begin with `-` stand before the plug-in, others are its parameters.
fn add_words(command: &mut Command, file: &Path, words: &[&str]) {
    let (before, after): (Vec<_>, Vec<_>) =
        words.iter().copied().partition(|word| word.starts_with('-'));
    command.args(before).arg("file").arg(file).args(after);
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `URI:/path`.
pub(crate) fn inside(uri: &OsStr, path: &str) -> OsString {
    let mut name = uri.to_owned();
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
pub(crate) fn all_verbs(scratch: &Scratch, uri: &OsString) {
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

/// What an export holds, as an image, read by a client that is not ours; `None` without nbdcopy.
pub(crate) fn copied(scratch: &Scratch, uri: &OsStr) -> Option<PathBuf> {
    if !has("nbdcopy") {
        return None;
    }
    let copy = scratch.path("copy");
    let copied = system("nbdcopy").arg(uri).arg(&copy).status().unwrap();
    assert!(copied.success());
    Some(copy)
}
