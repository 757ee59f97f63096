//! Files that are registered with a queue.
//!
//! Invariants: a number may be used again, a serial never. A [`DirectFile`] that is used after its
//! file was unregistered, or with another queue, leads to an error and never to another file.

use crate::inode::InodeRef;
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that is registered with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectFile {
    pub(super) number: usize,
    serial: u64,
}

/// Registered files, by their number.
#[derive(Debug, Default)]
pub(super) struct RegisteredFiles(Vec<Option<(u64, InodeRef)>>);

impl RegisteredFiles {
    pub(super) fn insert(&mut self, inode: InodeRef) -> DirectFile {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        self.0.resize_with(self.0.len().max(number + 1), || None);
        self.0[number] = Some((serial, inode));
        DirectFile { number, serial }
    }

    #[inline]
    pub(super) fn get(&self, file: DirectFile) -> Option<&InodeRef> {
        let (serial, inode) = self.0.get(file.number)?.as_ref()?;
        (*serial == file.serial).then_some(inode)
    }

    pub(super) fn remove(&mut self, file: DirectFile) {
        if self.get(file).is_some() {
            self.0[file.number] = None;
        }
    }
}

/// The inode of a request that was taken, whose file stays registered until the request is reaped.
impl Index<DirectFile> for RegisteredFiles {
    type Output = InodeRef;

    #[inline]
    fn index(&self, file: DirectFile) -> &InodeRef {
        self.get(file).expect("a file with requests is registered")
    }
}
