//! The hash tree of an empty directory, which may come to hash its names otherwise.

use super::lookup::has_filetype;
use super::view::{Shape, View};
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::hash::HashVersion;
use uext4_ondisk::{FileBlock, htree};

/// The tree that an empty directory has kept. The caller holds the directory exclusively.
#[derive(Debug)]
pub(crate) struct EmptyTree<'a> {
    dir: &'a Inode,
    root: Arc<Buffer>,
    /// The function of directories whose records have no hashes.
    ordinary: HashVersion,
}

impl<'a> EmptyTree<'a> {
    /// The tree of a directory, if it has one.
    ///
    /// # Errors
    /// `Corrupt`; a device failure.
    pub(crate) fn of(dir: &'a Inode) -> Result<Option<Self>> {
        let view = View::of(dir)?;
        if view.shape != Shape::Indexed {
            return Ok(None);
        }
        let ordinary = view.ordinary_hash()?;
        Ok(Some(Self { dir, root: view.index(FileBlock(0))?, ordinary }))
    }

    /// Has it hash names with their key, or as other directories do. Costs one credit.
    ///
    /// # Errors
    /// The journal is aborted.
    pub(crate) fn set_hash(self, handle: &mut Handle<'_>, with_key: bool) -> Result<()> {
        let view = View::of(self.dir)?;
        let mut bytes = handle.write(&self.root)?;
        let (mut root, entries) = {
            let (root, node) = htree::parse_root(&bytes, view.has_csum(), view.levels_max())
                .map_err(|kind| view.corrupt(FileBlock(0), kind))?;
            (root, node.entries().collect::<Vec<_>>())
        };
        root.hash = if with_key { HashVersion::SipHash } else { self.ordinary };
        let has_filetype = has_filetype(self.dir.space());
        match htree::write_root(&mut bytes, &root, has_filetype, view.has_csum(), &entries) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Internal, "a root no longer fits its block")),
        }
    }
}
