//! The recorder: stands between the kernel and the adapter of a mount, and keeps a
//! [`Trace`](crate::trace::Trace).
//!
//! Order: each call that changes something is made and recorded under one lock, so that the order
//! of the steps is that of their effects. A sync is recorded when it begins and is made without
//! the lock: what is written meanwhile comes behind it, and it promises nothing of that. A release
//! is recorded after its effect, because calls that wait for room under the lock wait for it.
//!
//! What the kernel sends: without `writeback_cache` each write(2) is a request before it returns.
//! What a program writes to a mapping comes when the kernel writes it back: at msync(2), fsync(2),
//! munmap(2), at the last close, or earlier. copy_file_range(2) and sendfile(2) come as writes.
//!
//! Output: the program's standard output is a file without a name on the same mount
//! ([`Recording::expect_output`]), so that its writes have their place among the steps. They never
//! reach the volume.
//!
//! Not recorded: times, flags of inodes and other ioctls ([`Recorded::remarks`] tells both), access
//! lists that a new file inherits. A rename that leaves a whiteout is refused.

mod handler;
mod log;
mod process;

pub use handler::Recorder;
pub use log::{Recorded, Recording};
