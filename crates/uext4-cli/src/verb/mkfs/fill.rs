//! `-d`: what fills a new file system.

use std::path::Path;

use uext4_mkfs::populate::{Contents, HostTree, Tree};

use crate::failure::{Failure, Result};

/// What was named by `-d`, read but for the content of its files.
pub(super) struct Source {
    host: HostTree,
}

impl Source {
    /// Reads the tree.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let host = HostTree::read(path, threads());
        let host = host.map_err(|error| Failure::line(&format!("mkfs: {error}")))?;
        Ok(Self { host })
    }

    pub(super) const fn tree(&self) -> &Tree {
        &self.host.tree
    }

    pub(super) const fn contents(&self) -> &dyn Contents {
        &self.host
    }
}

/// Threads that read and write content.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
