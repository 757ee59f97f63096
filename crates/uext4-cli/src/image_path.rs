//! Paths inside an image, resolved as the kernel does from a root that cannot be left.

use uext4::{FileKind, InodeRef, Volume};

use crate::failure::Why;

/// Symbolic links that one path may go through, as in the kernel.
pub(crate) const SYMLINKS_MAX: usize = 40;

/// Whether a final symbolic link is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// As stat(2).
    Follow,
    /// As lstat(2).
    Keep,
}

/// A resolved path: the inodes from the root down to it. Never empty.
pub(crate) struct Resolved {
    trail: Vec<InodeRef>,
}

impl Resolved {
    /// The inode the path leads to.
    pub(crate) fn inode(&self) -> &InodeRef {
        self.trail.last().expect("a trail starts with the root")
    }

    /// Whether `inode` is the path's end or one of the directories it goes through.
    pub(crate) fn goes_through(&self, inode: &InodeRef) -> bool {
        self.trail.iter().any(|on| on.ino() == inode.ino())
    }
}

/// Resolves an absolute path of bytes. A slash at its end asks for a directory, also behind a link.
pub(crate) fn resolve(volume: &Volume, path: &[u8], last: Last) -> Result<Resolved, Why> {
    let is_directory = path.last() == Some(&b'/');
    let last = if is_directory { Last::Follow } else { last };
    let mut trail = vec![volume.root()?];
    // Parts still to go, the next one at the end.
    let mut parts = parts_reversed(path);
    let mut links = 0;
    while let Some(part) = parts.pop() {
        let here = trail.last().expect("the root stays").clone();
        if here.kind() != FileKind::Directory {
            return Err(Why::not_directory());
        }
        match part.as_slice() {
            b"." => continue,
            b".." => {
                if trail.len() > 1 {
                    trail.pop();
                }
                continue;
            }
            _ => {}
        }
        let next = volume.lookup(&here, &part)?;
        if next.kind() == FileKind::Symlink && (last == Last::Follow || !parts.is_empty()) {
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(Why::new("Too many levels of symbolic links"));
            }
            let target = volume.read_link(&next)?;
            if target.first() == Some(&b'/') {
                trail.truncate(1);
            }
            parts.extend(parts_reversed(&target));
        } else {
            trail.push(next);
        }
    }
    if is_directory && trail.last().is_some_and(|inode| inode.kind() != FileKind::Directory) {
        return Err(Why::not_directory());
    }
    Ok(Resolved { trail })
}

/// Resolves all but the last part, which need not exist: the directory and the name.
pub(crate) fn resolve_parent(volume: &Volume, path: &[u8]) -> Result<(Resolved, Vec<u8>), Why> {
    let name = crate::spec::last_part(path).to_vec();
    if name.is_empty() && !path.is_empty() {
        return Err(Why::new("is the root directory"));
    }
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Why::new("needs a name at its end"));
    }
    let trimmed = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let parent = resolve(volume, &path[..trimmed - name.len()], Last::Follow)?;
    if parent.inode().kind() != FileKind::Directory {
        return Err(Why::not_directory());
    }
    Ok((parent, name))
}

fn parts_reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty());
    let mut parts: Vec<_> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}

/// All names of a directory but `.` and `..`, with inode numbers.
pub(crate) fn names(volume: &Volume, dir: &InodeRef) -> Result<Vec<Listed>, Why> {
    let mut names = Vec::new();
    volume.read_dir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(Listed { name: entry.name.to_vec(), ino: entry.ino });
        }
        true
    })?;
    Ok(names)
}

/// One name of a directory.
pub(crate) struct Listed {
    /// Name.
    pub(crate) name: Vec<u8>,
    /// Inode.
    pub(crate) ino: uext4::Ino,
}
