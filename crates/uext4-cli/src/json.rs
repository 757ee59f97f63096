//! JSON shapes that several verbs share.

use serde::Serialize;
use uext4::{Attr, FileKind};

use crate::text;

/// A name: text where it is UTF-8, else a lossy form and the bytes in hexadecimal.
#[derive(Serialize)]
pub(crate) struct Name {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
}

impl Name {
    /// The shape of `bytes`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let name_hex = std::str::from_utf8(bytes)
            .is_err()
            .then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        Self { name: String::from_utf8_lossy(bytes).into_owned(), name_hex }
    }
}

/// An inode.
#[derive(Serialize)]
pub(crate) struct Inode {
    ino: u32,
    generation: u32,
    kind: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks_512: u64,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    crtime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Inode {
    /// The shape of an inode; `target` of a symbolic link.
    pub(crate) fn new(attr: &Attr, target: Option<&[u8]>) -> Self {
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Self {
            ino: attr.ino.get(),
            generation: attr.generation,
            kind: kind(attr.kind),
            mode: format!("{:04o}", attr.mode),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            blocks_512: attr.blocks_512,
            atime: text::time_json(attr.atime),
            mtime: text::time_json(attr.mtime),
            ctime: text::time_json(attr.ctime),
            crtime: attr.crtime.map(text::time_json),
            device: is_device.then(|| format!("{}:{}", attr.rdev.major, attr.rdev.minor)),
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }
}

/// One word for a kind.
pub(crate) fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char",
        FileKind::BlockDevice => "block",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}
