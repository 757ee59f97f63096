//! Passes 3 and 4: every directory is below the root, and every link count is right.

use std::sync::atomic::Ordering;

use uext4_ondisk::inode::LINK_MAX;
use uext4_ondisk::{Ino, RawInode, RoCompat};

use crate::log::Log;
use crate::problem::Problem;
use crate::volume::{Dir, Inodes, Volume, kind};
use crate::xattr::{self, Table};

/// What is known of a directory's path to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// On the path that is being followed.
    Open,
    Known,
}

/// Follows every directory up to the root.
pub(crate) fn directories(inodes: &Inodes, log: &mut Log) {
    let parent = |dir: &Dir| Ino(dir.parent.load(Ordering::Relaxed));
    let mut ways = vec![Way::Unknown; inodes.dirs.len()];
    let place = |ino| inodes.dirs.binary_search_by_key(&ino, |dir: &Dir| dir.ino).ok();
    let mut path = Vec::new();
    for start in 0..inodes.dirs.len() {
        let mut at = start;
        while ways[at] == Way::Unknown {
            let dir = &inodes.dirs[at];
            ways[at] = Way::Open;
            path.push(at);
            if dir.ino == Ino::ROOT {
                break;
            }
            match place(parent(dir)) {
                Some(next) if ways[next] != Way::Open => at = next,
                // It has no entry, or it is below itself.
                _ => {
                    log.add(Problem::DirUnconnected { dir: dir.ino });
                    break;
                }
            }
        }
        path.drain(..).for_each(|at| ways[at] = Way::Known);
    }
    for dir in &inodes.dirs {
        let (want, found) = (parent(dir), Ino(dir.dotdot.load(Ordering::Relaxed)));
        // A missing '..' has been reported, and so has a directory without a parent.
        if want.get() != 0 && found.get() != 0 && want != found {
            log.add(Problem::DirParent { dir: dir.ino, found, want });
        }
    }
}

/// Compares link counts with the entries that were found.
pub(crate) fn links(volume: &Volume<'_>, inodes: &Inodes, xattrs: &Table, log: &mut Log) {
    for (group, found) in volume.group_numbers().zip(&inodes.groups) {
        for (index, bits) in (0..).zip(&found.kinds) {
            if bits & kind::USED == 0 {
                continue;
            }
            let at = index as usize;
            let counted = found.counted.get(at).map_or(0, |n| n.load(Ordering::Relaxed));
            let stored = found.links.get(at).copied().unwrap_or(0);
            if counted == u32::from(stored) && bits & kind::EA == 0 {
                // The usual case. Hidden inodes with links and without entries are left out.
                if counted != 0 {
                    continue;
                }
            }
            let ino = volume.layout.ino_of(group, index);
            if !volume.is_hidden(ino) {
                link(volume, xattrs, ino, *bits, (stored, counted), log);
            }
        }
    }
}

fn link(
    volume: &Volume<'_>,
    xattrs: &Table,
    ino: Ino,
    bits: u8,
    (stored, counted): (u16, u32),
    log: &mut Log,
) {
    let mut counted = counted;
    let references = if bits & kind::EA == 0 { 0 } else { xattrs.value_references(ino) };
    if references > 0 {
        let slot = volume.slot(ino, log).unwrap_or_default();
        let found = RawInode::from_prefix(&slot).map_or(0, |raw| xattr::stored_references(&raw));
        if found != references {
            log.add(Problem::XattrValueRefcount { ino, found, want: references });
        }
        counted = counted.max(1);
    }
    if counted == 0 {
        log.add(Problem::LinkNone { ino });
        return;
    }
    let is_dir = bits & kind::TYPE == kind::DIRECTORY;
    let is_many = is_dir && counted > u32::from(LINK_MAX);
    let want = if is_many && volume.ro_compat(RoCompat::DIR_NLINK) { 1 } else { counted };
    if u32::from(stored) != want {
        log.add(Problem::LinkCount { ino, found: stored.into(), want });
    }
}
