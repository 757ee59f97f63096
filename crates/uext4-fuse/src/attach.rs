//! Attaching a FUSE connection to a directory, and detaching it.
//!
//! As root (or with `CAP_SYS_ADMIN` in the user namespace) this is mount(2) on `/dev/fuse`; for
//! others the set-user-id program `fusermount3` mounts and hands the connection back over a socket.
//! Every mount is nosuid and nodev unless the options say otherwise.
//!
//! Kernel counterpart: `fs/fuse/inode.c` (mount data); `fusermount3(1)`.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use uext4_device::LoopSource;

use crate::block::FuseBlk;
use crate::mountinfo::{self, BLOCK_FS_TYPE, FS_TYPE, MountPoint};
use crate::options::FuseOptions;
use crate::{READ_ONLY_XATTR, ask};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// What a program wants done on the thread that has mounted, before that thread starts others to
/// serve the mount. What a thread gives up then, the others do not get.
#[derive(Clone)]
pub struct Attached(Arc<dyn Fn(&Path) + Send + Sync>);

impl Attached {
    /// `then` is called with the mount's directory.
    pub fn new(then: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        Self(Arc::new(then))
    }
}

impl PartialEq for Attached {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Attached {}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attached")
    }
}

/// A connection to the kernel whose mount another program has made.
#[derive(Clone, Debug)]
pub struct Connection(Arc<OwnedFd>);

impl Connection {
    /// The connection that `/dev/fuse` was opened for.
    #[must_use]
    pub fn new(connection: OwnedFd) -> Self {
        Self(Arc::new(connection))
    }
}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connection {}

/// Mounts at `dir` (an absolute path), does what [`FuseOptions::attached`] asks for, and returns
/// the connection to the kernel.
///
/// # Errors
/// No `/dev/fuse`, no `fusermount3` when it is needed, or the kernel's refusal.
pub fn attach(dir: &Path, options: &FuseOptions) -> io::Result<OwnedFd> {
    let connection = match &options.connection {
        Some(Connection(connection)) => connection.try_clone()?,
        None => connect(dir, options)?,
    };
    if let Some(Attached(then)) = &options.attached {
        then(dir);
    }
    Ok(connection)
}

fn connect(dir: &Path, options: &FuseOptions) -> io::Result<OwnedFd> {
    if !fs::metadata(dir)?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    if rustix::process::geteuid().is_root() {
        match attach_direct(dir, options) {
            // Root of a container without CAP_SYS_ADMIN: the helper may still be allowed to.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            other => return other,
        }
    }
    attach_by_helper(dir, options)
}

fn attach_direct(dir: &Path, options: &FuseOptions) -> io::Result<OwnedFd> {
    if options.fuseblk.is_wanted() {
        match attach_block(dir, options) {
            Err(error) if options.fuseblk == FuseBlk::On => {
                return Err(io::Error::other(format!("type fuseblk (-o fuseblk=on): {error}")));
            }
            // No loop devices, or not for this process: all but sync(2) works without.
            Err(_) => {}
            Ok(connection) => return Ok(connection),
        }
    }
    attach_as(FS_TYPE, options.fs_name.as_ref(), dir, options)
}

/// Mounts from a loop device that stands for the image and goes with the mount.
fn attach_block(dir: &Path, options: &FuseOptions) -> io::Result<OwnedFd> {
    let source = LoopSource::new(&options.fs_name)?;
    attach_as(BLOCK_FS_TYPE, source.path(), dir, options)
}

fn attach_as(
    fs_type: &str,
    source: &Path,
    dir: &Path,
    options: &FuseOptions,
) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(no_device)?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    for word in kernel_words(options) {
        data.push(',');
        data.push_str(word);
    }
    if fs_type == BLOCK_FS_TYPE {
        // What a mount from no device has.
        data.push_str(",blksize=4096");
    }
    let data = CString::new(data)?;
    rustix::mount::mount(source, dir, fs_type, flags(options), Some(data.as_c_str()))?;
    Ok(OwnedFd::from(device))
}

/// What is to be done where the device cannot be opened.
fn no_device(error: io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::ENOENT) => "is not there: modprobe fuse, or pass it to the container",
        Some(libc::ENXIO | libc::ENODEV) => "is no FUSE of this kernel: modprobe fuse",
        Some(libc::EACCES | libc::EPERM) => "must not be opened here: pass it to the container",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{DEVICE} {why}"))
}

/// Words that the FUSE file system type itself takes.
fn kernel_words(options: &FuseOptions) -> impl Iterator<Item = &'static str> {
    let is_root = rustix::process::getuid().is_root();
    let permissions = options.kernel_checks(is_root).then_some("default_permissions");
    let others = options.allow_other.then_some("allow_other");
    permissions.into_iter().chain(others)
}

fn flags(options: &FuseOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
        (options.read_only, MountFlags::RDONLY),
        (options.no_atime, MountFlags::NOATIME),
        (options.strict_atime, MountFlags::STRICTATIME),
        (options.sync, MountFlags::SYNCHRONOUS),
        (options.dir_sync, MountFlags::DIRSYNC),
    ] {
        flags.set(flag, wanted);
    }
    flags
}

fn attach_by_helper(dir: &Path, options: &FuseOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper inherits its end; everything else stays close-on-exec.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_words(options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper_missing(&error))?;
    drop(theirs);
    let connection = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match connection {
        Ok(Some(connection)) if output.status.success() => {
            rustix::io::fcntl_setfd(&connection, FdFlags::CLOEXEC)?;
            Ok(connection)
        }
        Ok(Some(_)) | Ok(None) => Err(helper_failed(&output.stderr)),
        Err(error) => Err(error),
    }
}

/// The `-o` argument of the helper; it unescapes `\,` and `\\` in the source's name.
fn helper_words(options: &FuseOptions) -> String {
    let name = options.fs_name.replace('\\', r"\\").replace(',', r"\,");
    let mut words = format!("fsname={name},subtype=uext4");
    let switches = [
        (true, if options.read_only { "ro" } else { "rw" }),
        (options.suid, "suid"),
        (options.dev, "dev"),
        (!options.exec, "noexec"),
        (options.no_atime, "noatime"),
        (options.sync, "sync"),
        (options.dir_sync, "dirsync"),
    ];
    let switches = switches.iter().filter(|(wanted, _)| *wanted).map(|(_, word)| *word);
    for word in switches.chain(kernel_words(options)) {
        words.push(',');
        words.push_str(word);
    }
    words
}

fn helper_missing(error: &io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "not found (Debian package fuse3)".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{HELPER}: {why}"))
}

/// The helper's own words, on one line and without its name twice.
fn helper_failed(stderr: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("failed");
    let line = line.trim().trim_start_matches(HELPER).trim_start_matches(": ");
    io::Error::other(format!("{HELPER}: {line}"))
}

/// The descriptor that the helper sends; `None` when it closed the socket without one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut parts = [IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::empty()) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok(descriptors.next())
}

/// Gives the mount at `dir` (an absolute path) the flags of `options`. To read-only, everything
/// that was acknowledged is written and made durable first.
///
/// The image stays open as it was: a mount of a volume that was opened read-only cannot become
/// writable ([`READ_ONLY_XATTR`] tells).
///
/// # Errors
/// Not root; a file open for writing (`EBUSY`); a volume opened read-only (`EROFS`); the
/// write-back.
pub fn remount(dir: &Path, options: &FuseOptions) -> io::Result<()> {
    let remount = || rustix::mount::mount_remount(dir, flags(options), c"");
    if options.read_only {
        // In this order: a write that comes before the kernel refuses them is durable, too.
        remount()?;
        return sync(dir);
    }
    if ask(dir, READ_ONLY_XATTR)? != b"0" {
        return Err(Errno::ROFS.into());
    }
    Ok(remount()?)
}

/// Where the control file system of FUSE is mounted, on most systems.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// How [`detach`] treats a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Refuse with `EBUSY`.
    WhenIdle,
    /// Take it out of the name space now; it ends when the last user is gone.
    Lazy,
}

/// Unmounts `dir` (an absolute path).
///
/// # Errors
/// `EBUSY` for a mount in use, `EPERM` or the helper's words for another user's mount.
pub fn detach(dir: &Path, how: Detach) -> io::Result<()> {
    let flags = match how {
        Detach::WhenIdle => UnmountFlags::NOFOLLOW,
        Detach::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(dir, flags) {
        Err(Errno::PERM) => {}
        other => return Ok(other?),
    }
    let switch = match how {
        Detach::WhenIdle => "-u",
        Detach::Lazy => "-uz",
    };
    let output = Command::new(HELPER)
        .args([OsStr::new(switch), OsStr::new("--"), dir.as_os_str()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| helper_missing(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let error = helper_failed(&output.stderr);
    // The helper's exit status says nothing; its words are those of strerror(3).
    if error.to_string().contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(error)
}

/// Unmounts `dir` (an absolute path) by force: requests in flight fail, and a mount in use leaves
/// the name space now.
///
/// # Errors
/// Not root, or not mounted.
pub fn force(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE) {
        Err(Errno::BUSY) => detach(dir, Detach::Lazy),
        // An ordinary user may not, but may cut the connection of a mount of their own.
        Err(Errno::PERM) => {
            let find = || Ok::<_, io::Error>(mountinfo::find(dir)?.filter(MountPoint::is_ours));
            let mount = find()?.ok_or(Errno::PERM)?;
            cut(mountinfo::connection(mount.device)).map_err(|error| {
                io::Error::other(format!("cannot cut the connection: {CONTROL}: {error}"))
            })?;
            detach(dir, Detach::Lazy).or_else(|error| match find()? {
                Some(left) if left.device == mount.device => Err(error),
                // Its daemon, which has lost its connection, was faster.
                _ => Ok(()),
            })
        }
        other => Ok(other?),
    }
}

/// Ends the connection of a mount at once: every request in flight fails, the server's reads end.
///
/// For a daemon that is told a second time to stop while programs still use the mount.
///
/// # Errors
/// Neither the control file system nor a forced unmount is available.
pub fn abort(dir: &Path, connection: u32) -> io::Result<()> {
    let Err(error) = cut(connection) else { return Ok(()) };
    match mountinfo::find(dir)? {
        Some(mount) if mountinfo::connection(mount.device) == connection && mount.is_ours() => {
            Ok(rustix::mount::unmount(dir, UnmountFlags::FORCE)?)
        }
        // Detached before: the directory may be someone else's mount by now.
        _ => Err(error),
    }
}

/// By the control file system, whose file belongs to who mounted.
fn cut(connection: u32) -> io::Result<()> {
    fs::write(format!("{CONTROL}/{connection}/abort"), b"1")
}

/// Raises the read-ahead of a mount to `kib`; best effort, as only root may.
pub(crate) fn set_read_ahead(device: (u32, u32), kib: u32) {
    let path = format!("/sys/class/bdi/{}/read_ahead_kb", mountinfo::bdi(device));
    if let Ok(mut file) = File::options().write(true).open(path) {
        // The mount works without it.
        let _ = io::Write::write_all(&mut file, kib.to_string().as_bytes());
    }
}

/// Writes all dirty pages of the file system that `dir` is on, then asks it to flush: fsync of a
/// directory makes a uext4 volume durable as a whole.
///
/// # Errors
/// The first write-back or flush that failed.
pub fn sync(dir: &Path) -> io::Result<()> {
    hand_over(dir)?.sync_all()
}

/// Has the kernel hand all dirty pages of the file system that `dir` is on to its server; returns
/// the directory.
///
/// # Errors
/// The first page that was not taken.
pub fn hand_over(dir: &Path) -> io::Result<File> {
    let dir = File::open(dir)?;
    rustix::fs::syncfs(dir.as_fd())?;
    Ok(dir)
}
