//! Making files of an image, with all their attributes.

use uext4::{
    Device, ErrorKind, FileKind, InodeRef, NewInode, OpenFile, Owner, SetAttr, SetTime, Timestamp,
    Volume, XattrMode,
};
use uext4_archive::{XATTR_ACCESS, XATTR_DEFAULT};

use super::places::Dir;
use super::queued::Small;
use crate::copy::Xattr;
use crate::failure::Why;
use crate::operands::{Try, entry, why_not_made};

/// Mode of a file until it is whole.
const UNFINISHED_MODE: u16 = 0o600;

/// What a file has besides its content.
pub(super) struct Attributes {
    pub(super) mode: u16,
    pub(super) owner: Owner,
    pub(super) mtime: Timestamp,
    pub(super) atime: Timestamp,
    pub(super) xattrs: Vec<Xattr>,
}

impl Attributes {
    pub(super) fn has_default_acl(&self) -> bool {
        self.has(XATTR_DEFAULT)
    }

    fn has(&self, name: &[u8]) -> bool {
        self.xattrs.iter().any(|xattr| xattr.name == name)
    }

    /// What is set in one change; of a symbolic link the mode stays.
    fn change(&self, kind: FileKind) -> SetAttr {
        SetAttr {
            mode: (kind != FileKind::Symlink).then_some(self.mode),
            uid: Some(self.owner.uid),
            gid: Some(self.owner.gid),
            atime: Some(SetTime::At(self.atime)),
            mtime: Some(SetTime::At(self.mtime)),
            ..SetAttr::default()
        }
    }
}

/// Makes files; any thread may.
pub(super) struct Maker<'a> {
    volume: &'a Volume,
}

impl<'a> Maker<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self { volume }
    }

    pub(super) fn volume(&self) -> &'a Volume {
        self.volume
    }

    /// What has a name.
    pub(super) fn existing(&self, dir: &Dir, name: &[u8]) -> Try<Option<InodeRef>> {
        entry(self.volume, &dir.inode, name)
    }

    /// Makes a small file whole.
    pub(super) fn small(&self, small: &Small) -> Try<()> {
        let Small { dir, name, data, attributes, .. } = small;
        let file = self.file(dir, name, attributes)?;
        let made = write(&file, 0, data).and_then(|()| self.finish(dir, &file, None, attributes));
        if made.is_err() {
            // Half a file would look like a whole one. The first failure is the one to tell.
            let _ = self.remove(dir, name);
        }
        made
    }

    /// A new empty file.
    pub(super) fn file(&self, dir: &Dir, name: &[u8], attributes: &Attributes) -> Try<OpenFile> {
        let inode = self.create(dir, name, FileKind::Regular, Device::default(), attributes)?;
        Ok(self.volume.open_file(&inode)?)
    }

    /// Gives a file whose content is there its length and attributes.
    pub(super) fn finish(
        &self,
        dir: &Dir,
        file: &OpenFile,
        len: Option<u64>,
        attributes: &Attributes,
    ) -> Try<()> {
        let inode = file.inode();
        if let Some(len) = len.filter(|len| self.volume.attr(inode).size != *len) {
            let change = SetAttr { size: Some(len), ..SetAttr::default() };
            self.volume.set_attr(inode, &change)?;
        }
        file.flush()?;
        self.dress(dir, inode, attributes)
    }

    /// A new symbolic link.
    pub(super) fn symlink(
        &self,
        dir: &Dir,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> Try<()> {
        let owner = attributes.owner;
        let inode =
            self.replacing(dir, name, || self.volume.symlink(&dir.inode, name, target, owner))?;
        self.dress(dir, &inode, attributes)
    }

    /// A new device or fifo.
    pub(super) fn special(
        &self,
        dir: &Dir,
        name: &[u8],
        kind: FileKind,
        device: Device,
        attributes: &Attributes,
    ) -> Try<()> {
        let inode = self.create(dir, name, kind, device, attributes)?;
        self.dress(dir, &inode, attributes)
    }

    /// A new directory.
    pub(super) fn directory(&self, dir: &Dir, name: &[u8], attributes: &Attributes) -> Try<Dir> {
        let kind = FileKind::Directory;
        let inode = self.create(dir, name, kind, Device::default(), attributes)?;
        self.remove_inherited(dir, &inode, attributes)?;
        Ok(Dir::made(self.volume, inode, attributes.has_default_acl()))
    }

    /// Gives a directory its attributes; its generation.
    /// As of a file that is replaced, ACLs that the archive does not have go.
    pub(super) fn dress_directory(&self, dir: &Dir, attributes: &Attributes) -> Try<u32> {
        self.remove_lists(&dir.inode, attributes)?;
        self.set_xattrs(&dir.inode, attributes)?;
        let attr = self.volume.set_attr(&dir.inode, &attributes.change(FileKind::Directory))?;
        Ok(attr.generation)
    }

    /// Another name of a file.
    pub(super) fn link(&self, dir: &Dir, name: &[u8], inode: &InodeRef) -> Try<()> {
        if inode.kind() == FileKind::Directory {
            return Err(Why::new("links to a directory"));
        }
        if self.existing(dir, name)?.is_some_and(|there| there.ino() == inode.ino()) {
            return Ok(());
        }
        self.replacing(dir, name, || self.volume.link(inode, &dir.inode, name))
    }

    fn create(
        &self,
        dir: &Dir,
        name: &[u8],
        kind: FileKind,
        rdev: Device,
        attributes: &Attributes,
    ) -> Try<InodeRef> {
        // What an interruption leaves of a file must not look whole, nor have set-id bits.
        let mode = if kind == FileKind::Directory { attributes.mode } else { UNFINISHED_MODE };
        let new = NewInode { kind, mode, owner: attributes.owner, rdev };
        self.replacing(dir, name, || self.volume.create(&dir.inode, name, &new))
    }

    /// Makes something; what has its name gives way.
    fn replacing<T>(&self, dir: &Dir, name: &[u8], make: impl Fn() -> uext4::Result<T>) -> Try<T> {
        let made = match make() {
            Err(error) if *error.kind() == ErrorKind::Exists => {
                self.remove(dir, name)?;
                make()
            }
            made => made,
        };
        made.map_err(|error| why_not_made(self.volume, error))
    }

    /// Removes what has a name, but no directory that is in use.
    pub(super) fn remove(&self, dir: &Dir, name: &[u8]) -> Try<()> {
        let Some(there) = self.existing(dir, name)? else { return Ok(()) };
        if there.kind() != FileKind::Directory {
            return Ok(self.volume.unlink(&dir.inode, name)?);
        }
        match self.volume.rmdir(&dir.inode, name) {
            Err(error) if *error.kind() == ErrorKind::NotEmpty => {
                Err(Why::new("is a directory with files in it; not replaced"))
            }
            removed => Ok(removed?),
        }
    }

    /// Attributes but the content, in the order that keeps each: a change of content takes
    /// capabilities away, and an ACL changes the mode.
    fn dress(&self, dir: &Dir, inode: &InodeRef, attributes: &Attributes) -> Try<()> {
        self.remove_inherited(dir, inode, attributes)?;
        self.set_xattrs(inode, attributes)?;
        self.volume.set_attr(inode, &attributes.change(inode.kind()))?;
        Ok(())
    }

    fn set_xattrs(&self, inode: &InodeRef, attributes: &Attributes) -> Try<()> {
        for Xattr { name, value } in &attributes.xattrs {
            match self.volume.xattr_set(inode, name, value, XattrMode::Any) {
                Ok(()) => {}
                // A name space that ext4 does not have.
                Err(error) if *error.kind() == ErrorKind::Unsupported => {}
                Err(error) => {
                    let no_space = *error.kind() == ErrorKind::NoSpace;
                    let why = Why::from(error);
                    // More than an inode can have. If the volume is full, the next file says so.
                    let why = if no_space { why.of_this_file() } else { why };
                    return Err(why.about(format!("attribute {}", crate::spec::show(name))));
                }
            }
        }
        Ok(())
    }

    /// Takes away the ACL that a new file has from its directory and not from the archive.
    fn remove_inherited(&self, dir: &Dir, inode: &InodeRef, attributes: &Attributes) -> Try<()> {
        if dir.gives_acl { self.remove_lists(inode, attributes) } else { Ok(()) }
    }

    fn remove_lists(&self, inode: &InodeRef, attributes: &Attributes) -> Try<()> {
        for name in [XATTR_ACCESS, XATTR_DEFAULT] {
            if attributes.has(name) {
                continue;
            }
            match self.volume.xattr_remove(inode, name) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::NoXattr | ErrorKind::Unsupported) => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

/// Writes all of `data`.
pub(super) fn write(file: &OpenFile, offset: u64, data: &[u8]) -> Try<()> {
    let mut done = 0;
    while done < data.len() {
        // Less than asked is progress before an error, which the next call returns.
        match file.write_at(offset + done as u64, &data[done..])? {
            0 => return Err(Why::new("wrote nothing")),
            written => done += written,
        }
    }
    Ok(())
}
