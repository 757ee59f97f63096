//! Directory listings in batches: names are copied out of the engine first and looked up after, so
//! that no look-up runs inside the engine's walk of the directory.

use uext4::{FileKind, Ino, InodeRef, Volume};

use crate::failure::Answer;

/// Entries taken from the engine at a time for a listing of names: a reply of 4 KiB holds about
/// 100.
pub(crate) const NAMES: usize = 128;

/// Likewise for a listing with attributes: a reply of 4 KiB holds about 27.
pub(crate) const WITH_ATTRIBUTES: usize = 32;

/// One entry, by value.
pub(crate) struct Entry {
    /// Inode.
    pub(crate) ino: Ino,
    /// Kind.
    pub(crate) kind: FileKind,
    /// Name.
    pub(crate) name: Vec<u8>,
    /// Cursor after the entry.
    pub(crate) next: u64,
}

impl Entry {
    /// Whether this is `.` or `..`, for which the kernel counts no look-up.
    pub(crate) fn is_dots(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// Up to `count` entries after `cursor`; an empty batch is the end.
pub(crate) fn batch(
    volume: &Volume,
    dir: &InodeRef,
    cursor: u64,
    count: usize,
) -> Answer<Vec<Entry>> {
    let mut taken = Vec::with_capacity(count);
    volume.read_dir(dir, cursor, &mut |entry| {
        if taken.len() == count {
            return false;
        }
        taken.push((entry.ino, entry.kind, entry.name.to_vec(), entry.next));
        true
    })?;
    // Without the filetype feature only the inode knows what it is.
    taken
        .into_iter()
        .map(|(ino, kind, name, next)| {
            let kind = match kind {
                Some(kind) => kind,
                None => volume.inode(ino)?.kind(),
            };
            Ok(Entry { ino, kind, name, next })
        })
        .collect()
}
