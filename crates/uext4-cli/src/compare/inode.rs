//! Attributes of two inodes, compared.

use std::cmp::Ordering;

use uext4::{Attr, FileKind, InodeRef, Volume};
use uext4_ondisk::InodeFlags;

use super::entry::{Aspect, Presence};
use super::{Settings, Side};
use crate::failure::Why;

/// An inode and its attributes.
pub(super) struct Found {
    pub(super) inode: InodeRef,
    pub(super) attr: Attr,
}

impl Found {
    pub(super) fn new(volume: &Volume, inode: InodeRef) -> Self {
        let attr = volume.attr(&inode);
        Self { inode, attr }
    }
}

/// Flags that say how a file is stored, which is no difference to its users.
const OF_STORAGE: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::INDEX)
    .union(InodeFlags::HUGE_FILE)
    .union(InodeFlags::INLINE_DATA)
    .union(InodeFlags::ENCRYPT);

/// All that differs but content. `Err` is what one of the sides (0 or 1) could not tell.
pub(super) fn aspects(
    sides: &[Side; 2],
    settings: Settings,
    pair: [&Found; 2],
) -> Result<Vec<Aspect>, (usize, Why)> {
    let [a, b] = pair.map(|found| &found.attr);
    if a.kind != b.kind {
        return Ok(vec![Aspect::Kind(a.kind, b.kind)]);
    }
    let mut aspects = Vec::new();
    let mut note = |differs: bool, aspect: Aspect| {
        if differs {
            aspects.push(aspect);
        }
    };
    let full = !settings.content_only;
    note(full && a.mode != b.mode, Aspect::Mode(a.mode, b.mode));
    let owners = ((a.uid, a.gid), (b.uid, b.gid));
    let owner = full && !settings.no_owner;
    note(owner && owners.0 != owners.1, Aspect::Owner(owners.0, owners.1));
    let project = |side: usize| sides[side].volume.project_id(&pair[side].inode);
    let projects = (project(0), project(1));
    note(owner && projects.0 != projects.1, Aspect::Project(projects.0, projects.1));
    let flags = [a, b].map(|attr| attr.flags.difference(OF_STORAGE).bits());
    note(full && flags[0] != flags[1], Aspect::Flags(flags[0], flags[1]));
    note(a.kind == FileKind::Regular && a.size != b.size, Aspect::Size(a.size, b.size));
    note(full && !settings.no_times && a.mtime != b.mtime, Aspect::Mtime(a.mtime, b.mtime));
    if matches!(a.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let devices = [a.rdev, b.rdev].map(|rdev| (rdev.major, rdev.minor));
        note(devices[0] != devices[1], Aspect::Device(devices[0], devices[1]));
    }
    if a.kind == FileKind::Symlink {
        let [was, is] = both(|side| sides[side].volume.read_link(&pair[side].inode))?;
        note(was != is, Aspect::Target(was, is));
    }
    if full {
        if contexts_differ(sides, pair)? {
            aspects.push(Aspect::Encryption);
        }
        compare_xattrs(sides, pair, &mut aspects)?;
    }
    Ok(aspects)
}

/// Whether the keys or ciphers of two files are not the same.
pub(super) fn contexts_differ(sides: &[Side; 2], pair: [&Found; 2]) -> Result<bool, (usize, Why)> {
    if pair.iter().all(|found| !found.attr.flags.contains(InodeFlags::ENCRYPT)) {
        return Ok(false);
    }
    let [was, is] = both(|side| sides[side].volume.encryption_context(&pair[side].inode))?;
    Ok(was != is)
}

fn both<T>(mut get: impl FnMut(usize) -> uext4::Result<T>) -> Result<[T; 2], (usize, Why)> {
    let was = get(0).map_err(|error| (0, error.into()))?;
    let is = get(1).map_err(|error| (1, error.into()))?;
    Ok([was, is])
}

fn compare_xattrs(
    sides: &[Side; 2],
    pair: [&Found; 2],
    aspects: &mut Vec<Aspect>,
) -> Result<(), (usize, Why)> {
    let [mut was, mut is] = both(|side| sides[side].volume.xattr_list(&pair[side].inode))?;
    was.sort();
    is.sort();
    let (mut was, mut is) = (was.into_iter().peekable(), is.into_iter().peekable());
    loop {
        let order = match (was.peek(), is.peek()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(one), Some(other)) => one.cmp(other),
        };
        let removed = if order.is_le() { was.next() } else { None };
        let added = if order.is_ge() { is.next() } else { None };
        let aspect = match (removed, added) {
            (Some(name), Some(_)) => {
                let values = both(|side| sides[side].volume.xattr_get(&pair[side].inode, &name))?;
                if values[0] == values[1] {
                    continue;
                }
                Aspect::Xattr(name, Presence::Changed)
            }
            (Some(name), None) => Aspect::Xattr(name, Presence::Removed),
            (None, Some(name)) => Aspect::Xattr(name, Presence::Added),
            (None, None) => return Ok(()),
        };
        aspects.push(aspect);
    }
}
