//! Files of an image as a source.

use std::cell::OnceCell;
use std::ops::Range;

use uext4::{FileKind, InodeRef, OpenFile, Volume};

use crate::copy::{Id, Meta, Source, Try, Xattr};
use crate::image_path;

/// A volume to copy from.
pub(crate) struct ImageSource<'a> {
    volume: &'a Volume,
    tag: u64,
}

/// A file of it.
pub(crate) struct ImageSourceNode {
    inode: InodeRef,
    file: OnceCell<OpenFile>,
}

impl<'a> ImageSource<'a> {
    /// A source; `number` tells the volumes of one command apart.
    pub(crate) fn new(volume: &'a Volume, number: usize) -> Self {
        Self { volume, tag: tag(number) }
    }

    /// The node of an inode.
    pub(crate) fn node(inode: InodeRef) -> ImageSourceNode {
        ImageSourceNode { inode, file: OnceCell::new() }
    }

    fn file<'n>(&self, node: &'n ImageSourceNode) -> Try<&'n OpenFile> {
        if let Some(file) = node.file.get() {
            return Ok(file);
        }
        let file = self.volume.open_file(&node.inode)?;
        Ok(node.file.get_or_init(|| file))
    }
}

/// What stands for the device number of a volume: from the end, where no host device is.
pub(crate) fn tag(number: usize) -> u64 {
    u64::MAX - number as u64
}

/// What an inode of the volume with this tag is.
pub(crate) fn id(tag: u64, inode: &InodeRef) -> Id {
    (tag, u64::from(inode.ino().get()))
}

impl Source for ImageSource<'_> {
    type Node = ImageSourceNode;

    fn meta(&self, node: &ImageSourceNode) -> Meta {
        let attr = self.volume.attr(&node.inode);
        Meta {
            kind: attr.kind,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            links: u64::from(attr.links),
            atime: attr.atime,
            mtime: attr.mtime,
            device: (attr.rdev.major, attr.rdev.minor),
            id: id(self.tag, &node.inode),
        }
    }

    fn names(&self, dir: &ImageSourceNode) -> Try<Vec<Vec<u8>>> {
        let names = image_path::names(self.volume, &dir.inode)?;
        Ok(names.into_iter().map(|listed| listed.name).collect())
    }

    fn is_tree(&self) -> bool {
        true
    }

    fn child(&self, dir: &ImageSourceNode, name: &[u8]) -> Try<ImageSourceNode> {
        Ok(Self::node(self.volume.lookup(&dir.inode, name)?))
    }

    fn link_target(&self, node: &ImageSourceNode) -> Try<Vec<u8>> {
        Ok(self.volume.read_link(&node.inode)?)
    }

    fn xattrs(&self, node: &ImageSourceNode) -> Try<Vec<Xattr>> {
        let names = self.volume.xattr_list(&node.inode)?;
        let get = |name: Vec<u8>| -> Try<Xattr> {
            let value = self.volume.xattr_get(&node.inode, &name)?;
            Ok(Xattr { name, value })
        };
        names.into_iter().map(get).collect()
    }

    /// Finds that the key is missing, or that the Merkle tree is broken where the file begins.
    fn check_readable(&self, node: &ImageSourceNode) -> Try<()> {
        self.read(node, 0, &mut [0]).map(drop)
    }

    fn next_data(&self, node: &ImageSourceNode, from: u64) -> Try<Option<Range<u64>>> {
        let size = self.volume.attr(&node.inode).size;
        if node.inode.kind() != FileKind::Regular || from >= size {
            return Ok(None);
        }
        let file = self.file(node)?;
        let start = match file.seek_data(from) {
            // Nothing but holes to the end.
            Err(error) if error.errno() == libc::ENXIO => return Ok(None),
            other => other?,
        };
        let end = file.seek_hole(start)?;
        Ok(Some(start..end.min(size)))
    }

    fn read(&self, node: &ImageSourceNode, offset: u64, buffer: &mut [u8]) -> Try<usize> {
        Ok(self.file(node)?.read_at(offset, buffer)?)
    }
}
