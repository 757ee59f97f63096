//! The C interface of uext4: `libuext4.so` and `uext4.h`.
//!
//! # What
//! Functions of the C ABI over the engine, mkfs, the checker and the devices. The header is made of
//! this crate by cbindgen, so a comment at an item that C sees is for readers of the header. It is
//! committed as `include/uext4.h`; a test compares.
//!
//! # Conventions
//! - Objects are opaque. A structure that crosses the border comes with its size, as with the
//!   kernel's openat2(2), so that it can grow at its end and old programs go on.
//! - A function returns 0 or a count, or a negative errno; [`failure`] keeps the text.
//! - Paths are bytes, and begin at an inode, as with openat(2): one set of functions serves callers
//!   by path and by inode.
//!
//! # Safety
//! All functions trust their caller with the same things. A pointer to an object is one that this
//! library gave and that was not given back. A string ends with a zero byte. A buffer has the
//! length that is given with it, and nobody else uses it during the call. A structure has the size
//! that is given with it. A place for a result is valid and aligned. NULL is none of these and is
//! refused, or means what the function says.
//!
//! # Invariants
//! - No panic crosses the border: it becomes `EIO`, and the volume takes no more changes.
//! - The result of a failed call is not written.

#![deny(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "comments of functions are those of the header")]

#[allow(unsafe_code, reason = "pointers of C become references")]
mod args;
#[allow(unsafe_code, reason = "callbacks of C are called")]
mod callbacks;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod device;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod dir;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod failure;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod file;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod fsck;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod inode;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod mkfs;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod names;
mod open;
mod place;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod volume;
#[allow(unsafe_code, reason = "functions of the C ABI")]
pub mod xattr;
