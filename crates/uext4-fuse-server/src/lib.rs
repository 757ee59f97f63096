//! A FUSE server: the kernel's protocol over `/dev/fuse` and io_uring.
//!
//! What: a [`Handler`] answers requests, one synchronous call for each kind; a [`Session`] takes
//! them from the kernel, on as many threads as it needs, until the file system is unmounted.
//! Nothing here knows a file system. Mounting is the caller's: a session starts from an open
//! connection.
//!
//! # Served in place What a request costs is mostly wake-ups: a thread on another processor than
//! its client makes a stat(2) cost 145 us instead of 18. So the thread that takes a request also
//! answers it, and goes on with the next. A request that is about to sleep (for a device, a lock, a
//! commit) says so by [`uext4_device::about_to_sleep`], and only then another thread takes over. So
//! no request waits behind one that sleeps, however many do.
//!
//! # Two transports
//! - `/dev/fuse` ([`mod@device_queue`]): one thread reads, or two while clients of different
//!   processors are at work.
//! - io_uring ([`mod@ring_queue`]), since Linux 6.14, where
//!   `/sys/module/fuse/parameters/enable_uring` is `Y`: a queue for each processor, with threads
//!   pinned to it. FORGET and INTERRUPT come by `/dev/fuse` all the same.
//!
//! # Why not a crate
//! fuser 0.18 has no io_uring, TMPFILE, STATX and SETXATTR_EXT, and hands the parts of a batch of
//! forgets over one by one; fuse-backend-rs 0.14 speaks 7.33; fractal-fuse 0.6 is asynchronous,
//! for io_uring alone, and asks for a fixed set of abilities.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//!
//! use uext4_fuse_server::{Config, Handler, Notifier, Offer, Session, Wanted};
//!
//! struct Nothing;
//!
//! impl Handler for Nothing {
//!     fn init(&self, offer: &Offer, _notifier: &Notifier) -> Wanted {
//!         Wanted {
//!             flags: Default::default(),
//!             max_write: 128 << 10,
//!             max_readahead: offer.max_readahead,
//!             max_background: 16,
//!             time_gran: 1,
//!         }
//!     }
//! }
//!
//! /// Serves `/dev/fuse`, mounted by mount(2) or fusermount3, until it is unmounted.
//! fn serve(mounted: std::os::fd::OwnedFd) -> std::io::Result<()> {
//!     Session::start(mounted, Arc::new(Nothing), &Config::default())?.join()
//! }
//! ```
//!
//! Kernel counterpart: `fs/fuse/dev.c`, `fs/fuse/dev_uring.c`; protocol:
//! `include/uapi/linux/fuse.h`.

#![forbid(unsafe_code)]

pub mod abi;
mod affinity;
mod company;
mod connection;
mod counts;
mod device_queue;
mod dir_buffer;
mod dispatch;
mod flags;
mod handler;
mod negotiation;
mod opcode;
mod placement;
mod ring_queue;
mod rings;
mod session;
mod whereabouts;

pub use connection::Notifier;
pub use counts::Counts;
pub use dir_buffer::DirBuffer;
pub use flags::{
    FSYNC_FDATASYNC, IOCTL_DIR, InitFlags, OpenFlags, SETXATTR_ACL_KILL_SGID, SetattrFlags,
    WriteFlags,
};
pub use handler::{Answer, Caller, Handler, Offer, Wanted};
pub use opcode::Opcode;
pub use rustix::io::Errno;
pub use session::{Config, IoUring, Monitor, Session, Transport};
