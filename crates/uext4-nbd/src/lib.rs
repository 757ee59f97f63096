//! A network block device (NBD) as a device of uext4.
//!
//! # What
//! [`NbdDevice`] is a [`Device`](uext4_device::Device) on an export of an NBD server: nbdkit,
//! qemu-nbd, nbd-server, and whatever engine stands behind one (Ceph RBD, qcow2, a cloud's disk).
//! [`NbdUri`] names it. Source: "The NBD protocol" and "The NBD URI format"
//! (github.com/NetworkBlockDevice/nbd, doc/proto.md and doc/uri.md): fixed newstyle, TLS, simple
//! and structured replies, flush, FUA, trim, write zeroes, block status, several connections.
//!
//! # Durability
//! A server that dies forgets what it acknowledged and had not flushed. So every change is kept in
//! memory until a flush that covers it has returned ([`NbdOptions::unflushed_bytes`] bounds that:
//! at the bound the device flushes by itself). When the connection is lost, it connects again
//! for [`NbdOptions::timeout`], makes all changes that are kept once more, and only then sends what
//! was waiting and what is new. Callers see a slow request, and no error. After that time every
//! request fails, as of a disk that is gone, for good.
//!
//! Not covered: a server that is alive and cut off, or slow. It gets 5 s to finish what it was sent
//! by the old connections and to end them; after that it may execute a request of theirs after
//! later ones of the new connections. The protocol has nothing against that.
//!
//! # Why not a crate
//! `nbd` (0.3) knows neither structured replies nor more than one request in flight, and calls
//! itself a sketch. The bindings of libnbd need libnbd 1.22 (Debian 12 has 1.14), which is LGPL.
//! Neither has a replay.

#![forbid(unsafe_code)]

mod answer;
mod device;
mod error;
mod export;
mod handshake;
mod identity;
mod keeper;
mod link;
mod options;
mod replies;
mod request;
mod session;
mod stream;
mod tls;
mod unflushed;
mod uri;
mod wire;

pub use device::NbdDevice;
pub use error::NbdError;
pub use options::{NbdEvent, NbdOptions, Tell};
pub use uri::{NbdUri, UriError};
