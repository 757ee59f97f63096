//! Extended attributes of new files: in the inode as far as there is room, else in a block, which
//! files with the same ones share.

use super::tree::Xattr;
use std::collections::HashMap;
use uext4_ondisk::BlockNo;
use uext4_ondisk::acl::Acl;
use uext4_ondisk::checksum::Checksums;
use uext4_ondisk::xattr::{self, RawXattrHeader, XattrValue, split_name, write_area, write_block};

/// Most files that share a block, as in the kernel.
const SHARED_MAX: u32 = 1024;
/// Indexes of names that are access control lists, and of name spaces that ext4 does not have.
const ACL_INDEXES: [u8; 2] = [2, 3];
const FOREIGN_INDEXES: [u8; 2] = [7, 8];

/// An attribute in its form on disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stored {
    pub(crate) index: u8,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Stored {
    fn view(&self) -> xattr::Xattr<'_> {
        let value = XattrValue::Here(&self.value);
        xattr::Xattr { index: self.index, name: &self.name, value }
    }
}

/// Where the attributes of a file go.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    pub(crate) in_inode: Vec<Stored>,
    pub(crate) in_block: Vec<Stored>,
}

impl Placed {
    /// Writes those of the inode into the area behind its fields.
    pub(crate) fn write(&self, area: &mut [u8]) -> bool {
        let views: Vec<xattr::Xattr<'_>> = self.in_inode.iter().map(Stored::view).collect();
        write_area(area, &views)
    }
}

/// The attributes in their form on disk. Those of name spaces that ext4 does not have are left out.
///
/// # Errors
/// The name of one whose value is none.
pub(crate) fn stored(xattrs: &[Xattr]) -> Result<Vec<Stored>, String> {
    let mut all = Vec::new();
    for xattr in xattrs {
        let bad = || format!("attribute {}", xattr.name.escape_ascii());
        let Some((index, name)) = split_name(&xattr.name) else { continue };
        if FOREIGN_INDEXES.contains(&index) {
            continue;
        }
        if name.len() > xattr::NAME_MAX {
            return Err(format!("{}: name too long", bad()));
        }
        let value = match ACL_INDEXES.contains(&index) {
            true => match Acl::from_caller(&xattr.value) {
                Ok(Some(acl)) => acl.to_disk(),
                Ok(None) => continue,
                Err(_) => return Err(format!("{}: no access control list", bad())),
            },
            false => xattr.value.clone(),
        };
        all.push(Stored { index, name: name.to_vec(), value });
    }
    all.sort();
    Ok(all)
}

/// Decides where the attributes of a file go. `area` is the room in its inode.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn place(xattrs: &[Xattr], area: usize, block_size: usize) -> Result<Placed, String> {
    let mut placed = Placed::default();
    let area_room = area.saturating_sub(xattr::IBODY_HEADER_SIZE);
    let block_room = block_size - xattr::BLOCK_HEADER_SIZE;
    let needs = |list: &[Stored]| {
        let views: Vec<xattr::Xattr<'_>> = list.iter().map(Stored::view).collect();
        xattr::space_needed(&views)
    };
    for one in stored(xattrs)? {
        placed.in_inode.push(one);
        if needs(&placed.in_inode) <= area_room {
            continue;
        }
        let Some(one) = placed.in_inode.pop() else { continue };
        let name = one.name.escape_ascii().to_string();
        placed.in_block.push(one);
        if needs(&placed.in_block) > block_room {
            return Err(format!("attribute {name}: too large for a block (ea_inode is not made)"));
        }
    }
    Ok(placed)
}

/// Blocks of attributes.
#[derive(Default)]
pub(crate) struct SharedBlocks {
    /// The block that has these attributes.
    known: HashMap<Vec<Stored>, usize>,
    /// Place, content and users of each.
    blocks: Vec<(BlockNo, Vec<u8>, u32)>,
}

impl SharedBlocks {
    /// The block with the attributes of a file. `allocate` gives a new one its place.
    pub(crate) fn add<E>(
        &mut self,
        stored: Vec<Stored>,
        block_size: usize,
        allocate: impl FnOnce() -> Result<u64, E>,
    ) -> Result<BlockNo, E> {
        if let Some(index) = self.known.get(&stored) {
            let (at, _, users) = &mut self.blocks[*index];
            if *users < SHARED_MAX {
                *users += 1;
                return Ok(*at);
            }
        }
        let at = BlockNo(allocate()?);
        let mut block = vec![0; block_size];
        let views: Vec<xattr::Xattr<'_>> = stored.iter().map(Stored::view).collect();
        // Its room was looked at when it was placed.
        _ = write_block(&mut block, &views);
        self.known.insert(stored, self.blocks.len());
        self.blocks.push((at, block, 1));
        Ok(at)
    }

    /// All blocks, complete.
    pub(crate) fn finish(
        self,
        checksums: &Checksums,
    ) -> impl Iterator<Item = (BlockNo, Vec<u8>)> + '_ {
        self.blocks.into_iter().map(move |(at, mut block, users)| {
            if let Some(header) = RawXattrHeader::mut_from_prefix(&mut block) {
                header.h_refcount.set(users);
            }
            xattr::seal_xattr_block(&mut block, checksums, at);
            (at, block)
        })
    }
}
