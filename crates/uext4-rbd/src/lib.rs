//! An image of Ceph's block device (RBD) as a device of uext4.
//!
//! # What
//! [`open`] opens what an [`RbdName`] names by librbd, which is linked with the feature `librbd`
//! (`IS_BUILT`); without it names can be read, and nothing opened. Sources: rbd/librbd.h and
//! rados/librados.h of Ceph 16, whose functions `ffi` declares.
//!
//! # Durability
//! librbd's cache is switched off, so a write is complete when all stores of the image have it on
//! their media. A pool or an image may have a setting of its own that switches it on, or another
//! cache; so a flush is always `rbd_aio_flush`, which covers every write that was complete before,
//! and a durable write is a write and, with a cache, a flush. librados keeps a request until it is
//! answered, and sends it again to a store that was restarted: nothing is kept here.
//!
//! # One writer
//! A client that opens an image to write has its exclusive lock, which librbd then hands over to
//! nobody. A second writer is refused with the address of the first, and so is one where a client
//! has the image open to write without having the lock. A holder that died is missed by the cluster
//! after its `osd client watch timeout`; it is then fenced (blocklisted), and the lock taken. A
//! holder that has lost it gets errors for every request, for good; see `hold`.
//!
//! # Why not a crate
//! `ceph-rbd` (0.3) has bodies for a part of its functions only, and none for requests that are
//! not waited for. `rbd-sys` (0.1, of 2026) is what bindgen makes of the header, and needs
//! libclang. `ceph` (3.2) has librados alone. Thirty declarations by hand do.

#![deny(unsafe_code)]

mod error;
mod name;
mod options;

#[cfg(feature = "librbd")]
mod args;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "a clock of libc")]
mod clock;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "functions of librados are called")]
mod cluster;
#[cfg(feature = "librbd")]
mod device;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "functions of librados are called")]
mod fence;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "declarations of functions of C")]
mod ffi;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "functions of librados are called")]
mod header;
#[cfg(feature = "librbd")]
mod health;
#[cfg(feature = "librbd")]
mod hold;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "functions of librbd are called")]
mod image;
#[cfg(feature = "librbd")]
mod lock;
#[cfg(feature = "librbd")]
#[allow(unsafe_code, reason = "librbd is given addresses of buffers")]
mod requests;

pub use error::RbdError;
pub use name::{NameError, RbdName};
pub use options::{RbdEvent, RbdOptions, Tell};

use uext4_device::SharedDevice;

/// Whether images can be opened: the feature `librbd`.
pub const IS_BUILT: bool = cfg!(feature = "librbd");

/// An image that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The device.
    pub device: SharedDevice,
    /// What the image lacks, in a line.
    pub notice: Option<String>,
}

/// Opens an image, or a snapshot of one, which can only be read.
///
/// # Errors
/// No cluster within the timeout, no such pool, image or snapshot, another client that has the
/// image's lock, a library that was not linked. One line each.
#[cfg(feature = "librbd")]
pub fn open(name: &RbdName, options: RbdOptions) -> Result<Opened, RbdError> {
    device::RbdDevice::open(name, options)
        .map(|(device, notice)| Opened { device: std::sync::Arc::new(device), notice })
        .map_err(|fault| fault.at(name))
}

/// Opens nothing: librbd was not linked.
///
/// # Errors
/// Always.
#[cfg(not(feature = "librbd"))]
pub fn open(name: &RbdName, _options: RbdOptions) -> Result<Opened, RbdError> {
    Err(RbdError::NotBuilt { name: name.to_string() })
}
