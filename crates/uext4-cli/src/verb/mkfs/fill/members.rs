//! The members of an archive, as a tree takes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};

use uext4_archive::{
    Acl, Entry, Format, Kind, Qualifier, Reader, TarPath, Time, XATTR_ACCESS, XATTR_DEFAULT,
};
use uext4_mkfs::populate::{Attributes, Body, ContentId, FileBody, Node, Xattr};
use uext4_ondisk::Timestamp;

use super::held::{Held, words};
use crate::failure::Why;

/// Most memory that the names and attributes of all files may take, as an estimate. An archive can
/// be a thousand times larger than its compressed stream.
const MEMORY_MAX: u64 = 8 << 30;
/// What a file costs besides.
const FILE_MEMORY: u64 = 320;

/// A member of an archive.
pub(super) struct Member {
    /// Where it goes.
    pub(super) path: TarPath,
    /// What is there then.
    pub(super) what: What,
}

/// What a member is.
pub(super) enum What {
    /// A file.
    File(Box<Node>),
    /// Another name of the file with this path.
    Link(TarPath),
}

/// The memory that is left for names and attributes.
#[derive(Clone)]
pub(super) struct Memory {
    left: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self { left: MEMORY_MAX }
    }
}

impl Memory {
    /// Takes what a file costs, with so many bytes of its own.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Why> {
        let left = self.left.checked_sub(bytes.saturating_add(FILE_MEMORY));
        self.left = left.ok_or_else(|| {
            Why::new(format!("names and attributes take more than {} GiB", MEMORY_MAX >> 30))
        })?;
        Ok(())
    }
}

/// Reads an archive, whose bytes `stream` gives: those of `file` from where it stands.
pub(super) fn read(
    name: &str,
    file: &File,
    stream: Box<dyn Read + Send>,
    held: &mut Held,
    memory: &mut Memory,
) -> Result<Vec<Member>, Why> {
    let mut here = file;
    let start = if file.metadata()?.is_file() { Some(here.stream_position()?) } else { None };
    let mut reader = Reader::new(stream).map_err(words)?;
    let taking = held.begin(name, file, start.filter(|_| reader.format() == Format::Plain))?;
    let mut members = Vec::new();
    while let Some(member) = reader.next_member().map_err(words)? {
        let entry = match member {
            uext4_archive::Member::Entry(entry) => *entry,
            uext4_archive::Member::Refused(refused) => {
                return Err(Why::new(format!("{}: {}", refused.name.escape_ascii(), refused.why)));
            }
        };
        let shown = entry.path.to_string();
        let member = taken(entry, |content| held.take(&taking, &mut reader, content));
        let member = member.map_err(|why| Why::new(format!("{shown}: {why}")))?;
        memory.take(member.bytes())?;
        members.push(member);
    }
    Ok(members)
}

/// An entry as a member; `take` takes its content.
fn taken(
    entry: Entry,
    take: impl FnOnce(&uext4_archive::Content) -> Result<ContentId, Why>,
) -> Result<Member, Why> {
    let attributes = attributes(&entry)?;
    let body = match entry.kind {
        Kind::File(content) => {
            let id = take(&content)?;
            let data = content.is_sparse().then(|| content.ranges().to_vec());
            Body::File(FileBody { size: content.len(), data, content: id })
        }
        Kind::Directory => Body::directory(),
        Kind::Symlink(target) => Body::Symlink(target),
        Kind::CharDevice(major, minor) => Body::CharDevice(major, minor),
        Kind::BlockDevice(major, minor) => Body::BlockDevice(major, minor),
        Kind::Fifo => Body::Fifo,
        Kind::HardLink(target) => {
            return Ok(Member { path: entry.path, what: What::Link(target) });
        }
    };
    let what = What::File(Box::new(Node { attributes, body }));
    Ok(Member { path: entry.path, what })
}

/// Owners are numbers: names would depend on this host.
fn attributes(entry: &Entry) -> Result<Attributes, Why> {
    let mut xattrs: BTreeMap<Vec<u8>, Vec<u8>> =
        entry.xattrs.iter().map(|xattr| (xattr.name.clone(), xattr.value.clone())).collect();
    for (name, acl) in [(XATTR_ACCESS, &entry.acl_access), (XATTR_DEFAULT, &entry.acl_default)] {
        if let Some(acl) = acl {
            xattrs.insert(name.to_vec(), acl_value(acl)?);
        }
    }
    let time = |time: Time| Timestamp { secs: time.secs, nanos: time.nanos };
    Ok(Attributes {
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        atime: time(entry.atime.unwrap_or(entry.mtime)),
        mtime: time(entry.mtime),
        xattrs: xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect(),
    })
}

fn acl_value(acl: &Acl) -> Result<Vec<u8>, Why> {
    let value = acl.to_xattr(|_, Qualifier { id, .. }| *id);
    value.ok_or_else(|| Why::new("has an ACL of a name without a number"))
}

impl Member {
    /// Bytes of its own.
    fn bytes(&self) -> u64 {
        let path = self.path.as_bytes().len();
        let own = match &self.what {
            What::Link(target) => target.as_bytes().len(),
            What::File(node) => {
                let xattrs = node.attributes.xattrs.iter();
                let xattrs: usize =
                    xattrs.map(|xattr| 64 + xattr.name.len() + xattr.value.len()).sum();
                xattrs
                    + match &node.body {
                        Body::Symlink(target) => target.len(),
                        Body::File(file) => 48 * file.data.as_ref().map_or(0, Vec::len),
                        _ => 0,
                    }
            }
        };
        (path + own) as u64
    }
}
