//! FUSE adapter: a [`uext4::Volume`] as a mounted file system.
//!
//! What: a translation between kernel requests and the engine's inode-level calls. No file-system
//! logic stands here; what a call means is decided in the engine.
//!
//! Server: [`uext4_fuse_server`], by io_uring where the kernel offers it and by `/dev/fuse` else,
//! each request served by the thread that took it. We attach the mount ourselves ([`mod@attach`]).
//!
//! A program may put a handler of its own between the kernel and the adapter
//! ([`Session::start_with`]): to see or to refuse what is asked.
//!
//! Permissions: the engine checks none. A mount therefore has the kernel's `default_permissions`,
//! unless `-o fakeroot` asks for none (then `allow_other` is refused) or only root may enter
//! ([`FuseOptions::kernel_checks`]).
//!
//! Caching: the image is opened exclusively, so nothing changes behind the kernel's back. Names,
//! attributes, missing names, symlink targets, directory listings and pages stay cached for as long
//! as the kernel likes. Written pages stay cached too, but go to the engine at once: the engine has
//! the write-back. With `-o writeback_cache` the kernel holds dirty pages as well
//! (`FUSE_WRITEBACK_CACHE`): small writes cost no request then, but each file that is created,
//! written or removed costs one or two more, for the times that the kernel then keeps.
//!
//! Locking: the node table and the file table have small sharded locks that are never held over a
//! call into the engine or a drop of its objects (the last drop of an inode may free its blocks).
//!
//! Kernel counterpart: `fs/fuse/`; protocol: `include/uapi/linux/fuse.h`.

#![forbid(unsafe_code)]

mod adapter;
pub mod attach;
mod block;
mod convert;
mod failure;
mod file;
mod ioctl;
mod leaving;
mod listing;
pub mod mountinfo;
mod node;
mod ops;
mod options;
mod question;
mod server;
mod session;
pub mod stats;
mod xattr;

pub use block::FuseBlk;
pub use options::{FuseOptions, LogLevel, MOUNT_OPTIONS, Word};
pub use question::ask;
pub use session::{MountError, Session, Stopper};
pub use uext4_fuse_server::{IoUring, Transport};

/// Extended attribute of a mount's root that names the serving process: its id in decimal.
///
/// It is answered by the adapter, is in no listing and does not exist in the image. [`ask`] asks
/// for it, by another way where the kernel does not pass it on. `uext4 umount` waits on that
/// process, so that it can tell when the image is closed.
pub const PID_XATTR: &str = "uext4.pid";

/// Likewise: `1` when the volume is open read-only, whatever the mount table says, else `0`.
pub const READ_ONLY_XATTR: &str = "uext4.read_only";

/// Extended attribute of every inode of a mount that holds what the engine tells of itself, as JSON
/// ([`stats::Snapshot`]). In no listing; only root and who mounted may read it. In the `system.`
/// space the kernel asks nothing of its own first, so that the answer comes while requests for
/// anything else would wait.
pub const STATS_XATTR: &str = "system.uext4.stats";
