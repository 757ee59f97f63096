//! What an image shows: every name, with what it names.

use std::collections::BTreeMap;
use std::sync::Arc;

use uext4::{FileKind, Ino, InodeRef, MountOptions, Volume};
use uext4_device::MemoryDevice;

use crate::error::{Error, Result};

/// What a name names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a regular file, target of a symbolic link.
    pub content: Vec<u8>,
    /// Extended attributes by their full names.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All names of an image as paths from the root, which begin with `/`; `lost+found` apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The names.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

impl Tree {
    /// Reads an image, after a replay of its journal on a copy.
    ///
    /// # Errors
    /// An image that cannot be read.
    pub fn read(image: &MemoryDevice) -> Result<Self> {
        let volume = Volume::open(Arc::new(image.snapshot()), MountOptions::default())?;
        let mut tree = Self::default();
        let mut todo = vec![(Vec::new(), Ino::ROOT)];
        while let Some((path, number)) = todo.pop() {
            // A directory below itself is the fault of a hostile image.
            if path.len() > 4096 {
                return Err(Error::new("a path of more than 4096 bytes"));
            }
            let mut names = Vec::new();
            volume.read_dir(&volume.inode(number)?, 0, &mut |entry| {
                names.push((entry.name.to_vec(), entry.ino));
                true
            })?;
            for (name, number) in names {
                if [&b"."[..], b"..", b"lost+found"].contains(&&name[..]) {
                    continue;
                }
                let path = [&path[..], b"/", &name].concat();
                let inode = volume.inode(number)?;
                let node = node(&volume, &inode)?;
                if node.kind == FileKind::Directory {
                    todo.push((path.clone(), number));
                }
                tree.nodes.insert(path, node);
            }
        }
        volume.close()?;
        Ok(tree)
    }

    /// The content of a regular file; `None` if the path names none.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        let node = self.nodes.get(path.as_bytes())?;
        (node.kind == FileKind::Regular).then_some(&node.content)
    }
}

fn node(volume: &Volume, inode: &InodeRef) -> Result<Node> {
    let attr = volume.attr(inode);
    let content = match attr.kind {
        FileKind::Regular => {
            let mut content = vec![0; usize::try_from(attr.size).unwrap_or(usize::MAX)];
            let file = volume.open_file(inode)?;
            let mut done = 0;
            while done < content.len() {
                match file.read_at(done as u64, &mut content[done..])? {
                    0 => return Err(Error::new("a file ends before its size")),
                    count => done += count,
                }
            }
            content
        }
        FileKind::Symlink => volume.read_link(inode)?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in volume.xattr_list(inode)? {
        let value = volume.xattr_get(inode, &name)?;
        xattrs.insert(name, value);
    }
    let (kind, mode, uid, gid) = (attr.kind, attr.mode, attr.uid, attr.gid);
    Ok(Node { kind, mode, uid, gid, content, xattrs })
}
