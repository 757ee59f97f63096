//! The members of an archive, as a tree takes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};

use uext4_archive::{
    Acl, Entry, Format, Kind, Qualifier, Reader, TarPath, Time, XATTR_ACCESS, XATTR_DEFAULT,
};
use uext4_mkfs::populate::{Attributes, Body, FileBody, Node, Xattr};
use uext4_ondisk::Timestamp;

use super::held::{Held, words};
use crate::failure::Why;
use crate::progress::Progress;

/// Most memory that the names and attributes of all files may take, as an estimate. An archive can
/// be a thousand times larger than its compressed stream.
const MEMORY_MAX: u64 = 8 << 30;
/// What a file costs besides.
const FILE_MEMORY: u64 = 320;

/// What an archive has.
#[derive(Clone)]
pub(super) struct Members {
    pub(super) members: Vec<Member>,
    /// Whether a name in it begins with a slash.
    pub(super) is_absolute: bool,
}

/// A member of an archive.
#[derive(Clone)]
pub(super) struct Member {
    /// Where it goes.
    pub(super) path: TarPath,
    /// What is there then.
    pub(super) what: What,
}

/// What a member is.
#[derive(Clone)]
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
) -> Result<Members, Why> {
    let mut here = file;
    let start = if file.metadata()?.is_file() { Some(here.stream_position()?) } else { None };
    let mut reader = Reader::new(stream).map_err(words)?;
    let taking = held.begin(name, file, start.filter(|_| reader.format() == Format::Plain))?;
    let (mut members, mut is_absolute) = (Vec::new(), false);
    let mut progress = Progress::bytes("mkfs");
    while let Some(member) = reader.next_member().map_err(words)? {
        let entry = match member {
            uext4_archive::Member::Entry(entry) => *entry,
            uext4_archive::Member::Refused(refused) => {
                return Err(Why::new(format!("{}: {}", refused.name.escape_ascii(), refused.why)));
            }
        };
        let shown = entry.path.to_string();
        is_absolute |= entry.is_absolute;
        let member = taken(entry, |content| {
            progress.add_file();
            progress.add_bytes(content.len());
            if content.is_sparse() {
                // Where its ranges are in the archive.
                memory.take(24 * content.ranges().len() as u64)?;
            }
            held.take(&taking, &mut reader, content)
        });
        let member = member.map_err(|why| Why::new(format!("{shown}: {why}")))?;
        memory.take(member.bytes())?;
        members.push(member);
    }
    Ok(Members { members, is_absolute })
}

impl Members {
    /// The same once more.
    pub(super) fn copied(&self, memory: &mut Memory) -> Result<Self, Why> {
        self.members.iter().try_for_each(|member| memory.take(member.bytes()))?;
        Ok(self.clone())
    }

    /// Refuses an archive of images, in which layers are files.
    pub(super) fn refuse_images(&self) -> Result<(), Why> {
        let has = |name: &str| {
            let is_it = |member: &Member| member.path.as_bytes() == name.as_bytes();
            self.members.iter().any(is_it)
        };
        if has("oci-layout") && has("index.json") {
            let why = "is an archive of an OCI image layout: unpack it (mkdir DIR; tar -C DIR -xf \
                       ARCHIVE) and give the directory";
            return Err(Why::new(why));
        }
        let is_layer = |member: &Member| {
            let path = member.path.as_bytes();
            path.ends_with(b"/layer.tar") || path == b"repositories"
        };
        if has("manifest.json") && self.members.iter().any(is_layer) {
            let why = "is an archive of docker save: make an OCI image layout of it (skopeo copy \
                       docker-archive:ARCHIVE oci:DIR) and give that";
            return Err(Why::new(why));
        }
        Ok(())
    }
}

/// An entry as a member; `take` takes its content.
fn taken(
    entry: Entry,
    take: impl FnOnce(&uext4_archive::Content) -> Result<FileBody, Why>,
) -> Result<Member, Why> {
    let attributes = attributes(&entry)?;
    let body = match entry.kind {
        Kind::File(content) => Body::File(take(&content)?),
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
                        Body::File(file) => 16 * file.data.as_ref().map_or(0, Vec::len),
                        _ => 0,
                    }
            }
        };
        (path + own) as u64
    }
}
