//! An image as a target.

use uext4::{
    Device, ErrorKind, FileKind, InodeRef, NewInode, OpenFile, Owner, SetAttr, SetTime, Volume,
    XattrMode,
};

use crate::copy::image_source::{id, tag};
use crate::copy::{Meta, Target, There, Try, Xattr};
use crate::failure::Why;
use crate::operands;

/// A volume to copy to.
pub(crate) struct ImageTarget<'a> {
    volume: &'a Volume,
    tag: u64,
}

/// A file of it.
pub(crate) struct ImageTargetNode {
    inode: InodeRef,
    file: Option<OpenFile>,
}

impl<'a> ImageTarget<'a> {
    /// A target; `number` tells the volumes of one command apart.
    pub(crate) fn new(volume: &'a Volume, number: usize) -> Self {
        Self { volume, tag: tag(number) }
    }

    /// The node of an inode.
    pub(crate) fn node(inode: InodeRef) -> ImageTargetNode {
        ImageTargetNode { inode, file: None }
    }

    /// Removes what stands at a name, unless that is a directory.
    fn clear(&self, dir: &InodeRef, name: &[u8]) -> Try<()> {
        match self.lookup(dir, name)? {
            None => Ok(()),
            Some(there) if there.kind() == FileKind::Directory => {
                Err(Why::new("cannot overwrite a directory with a non-directory"))
            }
            Some(_) => Ok(self.volume.unlink(dir, name)?),
        }
    }

    fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Try<Option<InodeRef>> {
        match self.volume.lookup(dir, name) {
            Ok(found) => Ok(Some(found)),
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn made<R>(&self, made: uext4::Result<R>) -> Try<R> {
        made.map_err(|error| operands::why_not_made(self.volume, error))
    }

    /// A new inode that only its owner may use until [`Target::finish`].
    fn create(
        &self,
        dir: &InodeRef,
        name: &[u8],
        kind: FileKind,
        device: (u32, u32),
    ) -> Try<InodeRef> {
        let new = NewInode {
            kind,
            mode: if kind == FileKind::Directory { 0o700 } else { 0o600 },
            owner: Owner { uid: 0, gid: 0 },
            rdev: Device { major: device.0, minor: device.1 },
        };
        self.made(self.volume.create(dir, name, &new))
    }
}

impl Target for ImageTarget<'_> {
    type Node = ImageTargetNode;
    type Saved = InodeRef;

    fn there(&self, dir: &ImageTargetNode, name: &[u8]) -> Try<Option<There>> {
        Ok(self.lookup(&dir.inode, name)?.map(|inode| {
            let mtime = self.volume.attr(&inode).mtime;
            There { id: id(self.tag, &inode), mtime: (mtime.secs, mtime.nanos) }
        }))
    }

    fn directory(&self, dir: &ImageTargetNode, name: &[u8]) -> Try<ImageTargetNode> {
        let inode = match self.lookup(&dir.inode, name)? {
            Some(there) if there.kind() == FileKind::Directory => there,
            Some(_) => return Err(Why::new("cannot overwrite a non-directory with a directory")),
            None => self.create(&dir.inode, name, FileKind::Directory, (0, 0))?,
        };
        Ok(Self::node(inode))
    }

    fn file(&self, dir: &ImageTargetNode, name: &[u8]) -> Try<ImageTargetNode> {
        self.clear(&dir.inode, name)?;
        let inode = self.create(&dir.inode, name, FileKind::Regular, (0, 0))?;
        let file = Some(self.volume.open_file(&inode)?);
        Ok(ImageTargetNode { inode, file })
    }

    fn discard(&self, dir: &ImageTargetNode, name: &[u8]) -> Try<()> {
        Ok(self.volume.unlink(&dir.inode, name)?)
    }

    fn write(&self, node: &ImageTargetNode, offset: u64, data: &[u8]) -> Try<()> {
        let file = node.file.as_ref().ok_or_else(|| Why::new("not a regular file"))?;
        let mut done = 0;
        while done < data.len() {
            // Less than asked is progress before an error, which the next call returns.
            let written = file.write_at(offset + done as u64, &data[done..])?;
            if written == 0 {
                return Err(Why::new("wrote nothing"));
            }
            done += written;
        }
        Ok(())
    }

    fn set_len(&self, node: &ImageTargetNode, len: u64) -> Try<()> {
        if self.volume.attr(&node.inode).size != len {
            let change = SetAttr { size: Some(len), ..SetAttr::default() };
            self.volume.set_attr(&node.inode, &change)?;
        }
        Ok(())
    }

    fn symlink(&self, dir: &ImageTargetNode, name: &[u8], target: &[u8]) -> Try<ImageTargetNode> {
        self.clear(&dir.inode, name)?;
        let owner = Owner { uid: 0, gid: 0 };
        Ok(Self::node(self.made(self.volume.symlink(&dir.inode, name, target, owner))?))
    }

    fn special(&self, dir: &ImageTargetNode, name: &[u8], meta: &Meta) -> Try<ImageTargetNode> {
        self.clear(&dir.inode, name)?;
        Ok(Self::node(self.create(&dir.inode, name, meta.kind, meta.device)?))
    }

    fn save(&self, node: &ImageTargetNode) -> InodeRef {
        node.inode.clone()
    }

    fn link(&self, dir: &ImageTargetNode, name: &[u8], saved: &InodeRef) -> Try<()> {
        self.clear(&dir.inode, name)?;
        self.made(self.volume.link(saved, &dir.inode, name))
    }

    fn set_owner(&self, node: &ImageTargetNode, meta: &Meta) -> Try<()> {
        // An image is ours whole: any owner can be given, by any user.
        let change = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
        self.volume.set_attr(&node.inode, &change)?;
        Ok(())
    }

    fn set_xattr(&self, node: &ImageTargetNode, xattr: &Xattr) -> Try<()> {
        match self.volume.xattr_set(&node.inode, &xattr.name, &xattr.value, XattrMode::Any) {
            // A name space that ext4 does not have.
            Err(error) if *error.kind() == ErrorKind::Unsupported => Ok(()),
            Err(error) => {
                let name = crate::spec::show(&xattr.name);
                Err(Why::new(format!("attribute {name}: {error}")))
            }
            Ok(()) => Ok(()),
        }
    }

    fn remove_xattr(&self, node: &ImageTargetNode, name: &[u8]) -> Try<()> {
        match self.volume.xattr_get(&node.inode, name) {
            Err(error) if *error.kind() == ErrorKind::NoXattr => Ok(()),
            _ => Ok(self.volume.xattr_remove(&node.inode, name)?),
        }
    }

    fn finish(&self, node: &ImageTargetNode, meta: &Meta) -> Try<()> {
        if let Some(file) = &node.file {
            file.flush()?;
        }
        let mode = (meta.kind != FileKind::Symlink).then_some(meta.mode);
        let change = SetAttr {
            mode,
            atime: Some(SetTime::At(meta.atime)),
            mtime: Some(SetTime::At(meta.mtime)),
            ..SetAttr::default()
        };
        self.volume.set_attr(&node.inode, &change)?;
        Ok(())
    }
}
