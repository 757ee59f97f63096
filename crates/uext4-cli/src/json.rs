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
    /// The name, with other characters for what is not UTF-8.
    pub(crate) fn text(&self) -> &str {
        &self.name
    }

    /// The shape of `bytes`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (name, name_hex) = lossless(bytes);
        Self { name, name_hex }
    }
}

/// A path, told as a [`Name`] is.
#[derive(Serialize)]
pub(crate) struct Path {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl Path {
    /// The shape of `bytes`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (path, path_hex) = lossless(bytes);
        Self { path, path_hex }
    }
}

/// Bytes as text, and in hexadecimal where the text is not all of them.
pub(crate) fn lossless(bytes: &[u8]) -> (String, Option<String>) {
    let is_text = std::str::from_utf8(bytes).is_ok();
    let hex = (!is_text).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    (String::from_utf8_lossy(bytes).into_owned(), hex)
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
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

impl Inode {
    /// The shape of an inode; `target` of a symbolic link.
    pub(crate) fn new(attr: &Attr, target: Option<&[u8]>) -> Self {
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (target, target_hex) = target.map(lossless).unzip();
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
            target,
            target_hex: target_hex.flatten(),
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
