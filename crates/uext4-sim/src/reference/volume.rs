//! The same steps on a volume, and everything that one holds.

use super::step::{At, Step, name, rename_mode, shift_range, target, xattr_name};
use super::{Node, Reference, Tree};
use std::collections::BTreeMap;
use uext4::{AllocateMode, FileKind, InodeRef, NewInode, Owner, SetAttr, Volume, XattrMode};

/// Does a step on a volume; `dirs` are the directories that the step names.
///
/// # Errors
/// Those of the volume.
pub fn perform(volume: &Volume, before: &Reference, step: &Step) -> uext4::Result<()> {
    let dir = |at: At| walk(volume, &before.directory(at.dir));
    let inode = |at: At| volume.lookup(&dir(at)?, &name(at.name));
    let new =
        |kind, mode| NewInode { kind, mode, owner: Owner::default(), rdev: Default::default() };
    let allocate = |at, mode, offset: u32, len: u16| {
        volume.open_file(&inode(at)?)?.allocate(mode, u64::from(offset), u64::from(len).max(1))
    };
    match *step {
        Step::Create { at } => {
            volume.create(&dir(at)?, &name(at.name), &new(FileKind::Regular, 0o644)).map(drop)
        }
        Step::Mkdir { at } => {
            volume.create(&dir(at)?, &name(at.name), &new(FileKind::Directory, 0o755)).map(drop)
        }
        Step::Symlink { at, len } => {
            let owner = Owner::default();
            volume.symlink(&dir(at)?, &name(at.name), &target(len), owner).map(drop)
        }
        Step::Link { from, to } => volume.link(&inode(from)?, &dir(to)?, &name(to.name)),
        Step::Unlink { at } => volume.unlink(&dir(at)?, &name(at.name)),
        Step::Rmdir { at } => volume.rmdir(&dir(at)?, &name(at.name)),
        Step::Rename { from, to, how } => {
            let (old, new) = (dir(from)?, dir(to)?);
            volume.rename(&old, &name(from.name), &new, &name(to.name), rename_mode(how))
        }
        Step::Write { at, offset, len, byte } => {
            let bytes = vec![byte; usize::from(len).max(1)];
            volume.open_file(&inode(at)?)?.write_at(u64::from(offset), &bytes).map(drop)
        }
        Step::Resize { at, size } => {
            let change = SetAttr { size: Some(u64::from(size)), ..SetAttr::default() };
            volume.set_attr(&inode(at)?, &change).map(drop)
        }
        Step::Allocate { at, offset, len, keep_size } => {
            allocate(at, AllocateMode::Allocate { keep_size }, offset, len)
        }
        Step::Punch { at, offset, len } => allocate(at, AllocateMode::PunchHole, offset, len),
        Step::Zero { at, offset, len, keep_size } => {
            allocate(at, AllocateMode::ZeroRange { keep_size }, offset, len)
        }
        Step::Unshare { at, offset, len, keep_size } => {
            allocate(at, AllocateMode::UnshareRange { keep_size }, offset, len)
        }
        Step::Collapse { at, first, count } => {
            let (start, len) = shift_range(first, count);
            let file = volume.open_file(&inode(at)?)?;
            file.allocate(AllocateMode::CollapseRange, start as u64, len as u64)
        }
        Step::Insert { at, first, count } => {
            let (start, len) = shift_range(first, count);
            let file = volume.open_file(&inode(at)?)?;
            file.allocate(AllocateMode::InsertRange, start as u64, len as u64)
        }
        Step::SetXattr { at, name, len } => {
            let value = vec![b'v'; usize::from(len % 200)];
            volume.xattr_set(&inode(at)?, &xattr_name(name), &value, XattrMode::Any)
        }
        Step::RemoveXattr { at, name } => volume.xattr_remove(&inode(at)?, &xattr_name(name)),
        Step::Chmod { at, mode } => {
            let change = SetAttr { mode: Some(mode & 0o777), ..SetAttr::default() };
            volume.set_attr(&inode(at)?, &change).map(drop)
        }
        Step::Fsync { at, data_only } => volume.open_file(&inode(at)?)?.sync(data_only),
        Step::Sync => volume.sync(),
        Step::Remount => Ok(()),
    }
}

fn walk(volume: &Volume, path: &[Vec<u8>]) -> uext4::Result<InodeRef> {
    path.iter().try_fold(volume.root()?, |at, name| volume.lookup(&at, name))
}

/// Everything that a volume holds.
///
/// # Errors
/// Those of the volume.
pub fn tree(volume: &Volume) -> uext4::Result<Tree> {
    let mut tree = Tree::new();
    read(volume, &volume.root()?, &mut Vec::new(), &mut tree)?;
    Ok(tree)
}

fn read(volume: &Volume, dir: &InodeRef, path: &mut Vec<u8>, tree: &mut Tree) -> uext4::Result<()> {
    let mut names = Vec::new();
    volume.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    names.retain(|name| !matches!(&name[..], b"." | b".." | b"lost+found"));
    for name in names {
        let inode = volume.lookup(dir, &name)?;
        let attr = volume.attr(&inode);
        let data = match attr.kind {
            FileKind::Regular => {
                let mut bytes = vec![0; usize::try_from(attr.size).unwrap_or(usize::MAX)];
                let read = volume.open_file(&inode)?.read_at(0, &mut bytes)?;
                bytes.truncate(read);
                bytes
            }
            FileKind::Symlink => volume.read_link(&inode)?,
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in volume.xattr_list(&inode)? {
            let value = volume.xattr_get(&inode, &name)?;
            xattrs.insert(name, value);
        }
        let len = path.len();
        path.push(b'/');
        path.extend_from_slice(&name);
        let node = Node { kind: attr.kind, mode: attr.mode, links: attr.links, data, xattrs };
        tree.insert(path.clone(), node);
        if attr.kind == FileKind::Directory {
            read(volume, &inode, path, tree)?;
        }
        path.truncate(len);
    }
    Ok(())
}
