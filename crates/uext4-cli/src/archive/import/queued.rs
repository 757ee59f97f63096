//! What is queued for the threads that make small files.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use uext4::Ino;
use uext4_archive::TarPath;

use super::maker::Attributes;
use super::places::Dir;
use crate::queue::Limits;

/// Small files on the way.
pub(super) const LIMITS: Limits =
    Limits { batch_files: 64, batch_bytes: 512 << 10, bytes: 12 << 20 };

/// A file to make.
pub(super) struct Small {
    pub(super) dir: Dir,
    pub(super) name: Vec<u8>,
    /// For messages.
    pub(super) path: TarPath,
    pub(super) data: Vec<u8>,
    pub(super) attributes: Attributes,
}

impl Small {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let xattrs = self.attributes.xattrs.iter();
        let xattrs: usize = xattrs.map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        let names = self.name.len() + self.path.as_bytes().len();
        size_of::<Self>() + names + self.data.len() + xattrs
    }
}

/// Names that the queue has or had, of files and not as an archive spells their paths: hashes of
/// the directory and the name. Two that have one hash cost a wait that was not needed.
#[derive(Default)]
pub(super) struct Queued {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Queued {
    fn hash(&self, dir: Ino, name: &[u8]) -> u64 {
        self.hasher.hash_one((dir, name))
    }

    pub(super) fn insert(&mut self, dir: Ino, name: &[u8]) {
        self.hashes.insert(self.hash(dir, name));
    }

    pub(super) fn has(&self, dir: Ino, name: &[u8]) -> bool {
        self.hashes.contains(&self.hash(dir, name))
    }

    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn clear(&mut self) {
        self.hashes.clear();
    }
}
