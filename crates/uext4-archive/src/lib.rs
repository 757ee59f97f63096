//! Tar streams, read and written, for tools that fill images or take them apart.
//!
//! What: [`Reader`] takes a stream from its start to its end and gives one [`Member`] after the
//! other: v7, ustar, GNU (long names, sparse files) and pax (extended attributes, ACLs, sparse
//! files 0.0, 0.1 and 1.0, times with nanoseconds). Compression is found by content. [`Writer`]
//! writes pax archives that GNU tar and bsdtar read. Neither touches a file system.
//!
//! Invariants: an archive is hostile input.
//! - A [`TarPath`] is relative, has neither `..` nor a zero byte, nor a part longer than 255
//!   bytes.
//! - A [`Content`] has sorted data ranges that do not overlap and end within its length.
//! - Memory is bounded whatever a header says; contents are never collected.
//! - An error means that the rest of the stream is lost, [`Member::Refused`] that one entry is.

#![forbid(unsafe_code)]

mod acl;
mod compression;
mod entry;
mod error;
mod extended;
mod header;
mod input;
mod path;
mod reader;
mod sparse;
mod writer;

pub use acl::{Acl, AclEntry, AclTag, Qualifier, XATTR_ACCESS, XATTR_DEFAULT};
pub use compression::{Encoder, Format};
pub use entry::{Content, Entry, Kind, Member, Refused, Time, Xattr};
pub use error::{Error, Result};
pub use path::{PathFault, TarPath};
pub use reader::Reader;
pub use writer::Writer;
