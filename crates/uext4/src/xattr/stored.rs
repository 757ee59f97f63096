//! The attributes of one inode as lists, and the rules for the place of a changed one.
//!
//! What: pure functions. Bytes are parsed to lists, edited, and written back to bytes.
//! Invariants: an edit that fails changes nothing. An attribute that is set is stored in the inode
//! if it fits there, else in the block, and is removed from the other place (as ext4 does).

use super::change::Mode;
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::xattr::{self, BLOCK_HEADER_SIZE, IBODY_HEADER_SIZE, Xattr, XattrValue};
use uext4_ondisk::{CorruptKind, Ino, inline_data};

/// An attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    /// Name index, for the prefix of the name.
    pub(super) index: u8,
    /// Name without its prefix.
    pub(super) name: Vec<u8>,
    /// Value, or where it is.
    pub(super) value: Value,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Beside the entry.
    Here(Vec<u8>),
    /// In an inode of its own (ea_inode).
    InInode(ValueInode),
    /// To be put into an inode of its own.
    ForInode(Vec<u8>),
}

/// What an entry says of a value in an inode of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValueInode {
    pub(super) ino: Ino,
    /// Bytes of the value.
    pub(super) size: u32,
    /// Hash of the name and of the value's checksum.
    pub(super) hash: u32,
}

impl Value {
    /// The value, if it is beside its entry.
    pub(super) fn here(&self) -> Option<&[u8]> {
        match self {
            Self::Here(bytes) => Some(bytes),
            Self::InInode(_) | Self::ForInode(_) => None,
        }
    }
}

/// A name as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key<'n> {
    pub(super) index: u8,
    pub(super) name: &'n [u8],
}

impl Attribute {
    /// Whether this is data of the file (inline_data) rather than an attribute that callers know.
    fn is_inline_data(&self) -> bool {
        self.index == inline_data::NAME_INDEX && self.name == inline_data::NAME
    }

    pub(super) fn has_key(&self, key: Key<'_>) -> bool {
        self.index == key.index && self.name == key.name
    }
}

/// All attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// Those in the inode.
    pub(super) inode: Vec<Attribute>,
    /// Those in the block.
    pub(super) block: Vec<Attribute>,
    /// Bytes for entries and values in the inode. `None` when it has no room for any.
    inode_room: Option<usize>,
    /// Bytes for entries and values in a block.
    block_room: usize,
    /// Values may be in inodes of their own. Longer ones than this are there, and others that fit
    /// nowhere else.
    large: Option<usize>,
}

impl Stored {
    /// Reads both places. `area` is the rest of the inode's slot behind the extra fields.
    pub(super) fn parse(
        area: &[u8],
        block: Option<&[u8]>,
        block_size: usize,
    ) -> Result<Self, CorruptKind> {
        Ok(Self {
            inode: in_area(area)?,
            block: match block {
                Some(block) => in_block(block)?,
                None => Vec::new(),
            },
            inode_room: area.len().checked_sub(IBODY_HEADER_SIZE),
            block_room: block_size.saturating_sub(BLOCK_HEADER_SIZE),
            large: None,
        })
    }

    /// Allows values in inodes of their own. As in ext4 a value is large that a block has room for
    /// only beside a name of three bytes, or not at all.
    pub(super) fn allow_value_inodes(&mut self) {
        self.large = Some(self.block_room.saturating_sub(xattr::entry_len(3) + 4));
    }

    /// All attributes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Attribute> {
        self.inode.iter().chain(&self.block)
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<&Attribute> {
        self.iter().find(|attribute| attribute.has_key(key))
    }

    /// Sets an attribute.
    pub(super) fn set(&mut self, key: Key<'_>, value: &[u8], mode: Mode) -> Result<()> {
        match (self.find(key), mode) {
            (Some(_), Mode::Create) => return Err(error(ErrorKind::Exists)),
            (None, Mode::Replace) => return Err(error(ErrorKind::NoXattr)),
            _ => {}
        }
        let is_large = self.large.is_some_and(|large| xattr::value_len(value.len()) > large);
        if !is_large && self.place(key, Value::Here(value.into())) {
            return Ok(());
        }
        let fits = self.large.is_some()
            && !value.is_empty()
            && self.place(key, Value::ForInode(value.into()));
        if fits { Ok(()) } else { Err(error(ErrorKind::NoSpace)) }
    }

    /// Puts an attribute where it fits. False, and nothing is changed, if that is nowhere.
    fn place(&mut self, key: Key<'_>, value: Value) -> bool {
        let new = Attribute { index: key.index, name: key.name.into(), value };
        let inode = with(&self.inode, new.clone());
        if self.inode_room.is_some_and(|room| space_needed(&inode) <= room) {
            self.inode = inode;
            self.block.retain(|attribute| !attribute.has_key(key));
            return true;
        }
        let takes_room = new.value.here().is_some_and(|value| !value.is_empty());
        let block = with(&self.block, new);
        let fits = space_needed(&block) <= self.block_room
            && !(takes_room && self.crowds_out_entries(&block));
        if fits {
            self.block = block;
            self.inode.retain(|attribute| !attribute.has_key(key));
        }
        fits
    }

    /// Whether the values of the block leave too little room for entries of values elsewhere: an
    /// eighth of the block, as in ext4.
    fn crowds_out_entries(&self, block: &[Attribute]) -> bool {
        let block_size = self.block_room + BLOCK_HEADER_SIZE;
        let values: usize = block.iter().map(space_of_value).sum();
        self.large.is_some() && values + (block_size / 8).min(1024) > block_size
    }

    /// Leaves `len` bytes behind the extra fields of the inode, and moves attributes that do not
    /// fit to the block. False, and the lists are of no use, if the block has no room for them.
    pub(super) fn shorten_area(&mut self, len: usize) -> bool {
        let Some(room) = len.checked_sub(IBODY_HEADER_SIZE) else { return false };
        self.inode_room = Some(room);
        while space_needed(&self.inode) > room {
            let excess = space_needed(&self.inode) - room;
            // The smallest one that is large enough, else the largest. Data of the file stays.
            let sizes = || {
                let movable = self.inode.iter().enumerate().filter(|(_, of)| !of.is_inline_data());
                movable.map(|(at, attribute)| (at, space_of(attribute)))
            };
            let enough = sizes().filter(|(_, size)| *size >= excess).min_by_key(|(_, size)| *size);
            let chosen = enough.or_else(|| sizes().max_by_key(|(_, size)| *size));
            let Some((at, _)) = chosen else { return false };
            let moved = self.inode.remove(at);
            self.block = with(&self.block, moved);
            if space_needed(&self.block) > self.block_room {
                return false;
            }
        }
        true
    }

    /// The same inode without attributes.
    pub(super) fn emptied(&self) -> Self {
        Self { inode: Vec::new(), block: Vec::new(), ..*self }
    }

    /// Removes the first `most` attributes whose values are in inodes of their own, of the block
    /// only `with_block`. False, and nothing is changed, if there are no more than these.
    pub(super) fn remove_values(&mut self, most: usize, with_block: bool) -> bool {
        let is_elsewhere = |attribute: &Attribute| matches!(attribute.value, Value::InInode(_));
        let block: &[Attribute] = if with_block { &self.block } else { &[] };
        if self.inode.iter().chain(block).filter(|of| is_elsewhere(of)).count() <= most {
            return false;
        }
        let mut left = most;
        let mut stays = |attribute: &Attribute| {
            let goes = left > 0 && is_elsewhere(attribute);
            left -= usize::from(goes);
            !goes
        };
        self.inode.retain(&mut stays);
        if with_block {
            self.block.retain(stays);
        }
        true
    }

    /// Removes an attribute.
    pub(super) fn remove(&mut self, key: Key<'_>) -> Result<()> {
        if self.find(key).is_none() {
            return Err(error(ErrorKind::NoXattr));
        }
        self.inode.retain(|attribute| !attribute.has_key(key));
        self.block.retain(|attribute| !attribute.has_key(key));
        Ok(())
    }

    /// The bytes behind the extra fields of the inode, `len` of them.
    pub(super) fn write_area(&self, len: usize) -> Result<Vec<u8>> {
        let mut area = vec![0; len];
        let fits = xattr::write_area(&mut area, &borrowed(&self.inode)?);
        if fits { Ok(area) } else { Err(error(ErrorKind::Internal)) }
    }

    /// The block, with one reference and without its checksum.
    pub(super) fn write_block(&self, block_size: usize) -> Result<Vec<u8>> {
        let mut block = vec![0; block_size];
        let fits = xattr::write_block(&mut block, &borrowed(&self.block)?);
        if fits { Ok(block) } else { Err(error(ErrorKind::Internal)) }
    }
}

/// The attributes behind the extra fields of an inode.
pub(super) fn in_area(area: &[u8]) -> Result<Vec<Attribute>, CorruptKind> {
    collect(xattr::area_entries(area))
}

/// The attributes of a block.
pub(super) fn in_block(block: &[u8]) -> Result<Vec<Attribute>, CorruptKind> {
    collect(xattr::block_entries(block)?)
}

fn collect<'b>(
    entries: impl Iterator<Item = Result<xattr::XattrEntry<'b>, CorruptKind>>,
) -> Result<Vec<Attribute>, CorruptKind> {
    entries
        .map(|entry| {
            let entry = entry?;
            let value = match entry.value_inode {
                Ino(0) => Value::Here(entry.value.to_vec()),
                ino => Value::InInode(ValueInode { ino, size: entry.value_size, hash: entry.hash }),
            };
            Ok(Attribute { index: entry.index, name: entry.name.to_vec(), value })
        })
        .collect()
}

/// The list with `new` in place of the attribute of that name, or at the end.
fn with(list: &[Attribute], new: Attribute) -> Vec<Attribute> {
    let mut list = list.to_vec();
    let key = Key { index: new.index, name: &new.name };
    match list.iter().position(|attribute| attribute.has_key(key)) {
        Some(at) => list[at] = new,
        None => list.push(new),
    }
    list
}

fn space_needed(list: &[Attribute]) -> usize {
    list.iter().map(space_of).sum::<usize>() + 4
}

/// Bytes of an attribute's entry and value.
fn space_of(attribute: &Attribute) -> usize {
    xattr::entry_len(attribute.name.len()) + space_of_value(attribute)
}

fn space_of_value(attribute: &Attribute) -> usize {
    xattr::value_len(attribute.value.here().map_or(0, <[u8]>::len))
}

fn borrowed<'l>(list: &'l [Attribute]) -> Result<Vec<Xattr<'l>>> {
    let borrow = |Attribute { index, name, value }: &'l Attribute| {
        let value = match value {
            Value::Here(bytes) => XattrValue::Here(bytes),
            Value::InInode(ValueInode { ino, size, hash }) => {
                XattrValue::InInode { ino: *ino, size: *size, hash: *hash }
            }
            Value::ForInode(_) => return Err(error(ErrorKind::Internal)),
        };
        Ok(Xattr { index: *index, name, value })
    };
    list.iter().map(borrow).collect()
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: usize = 96;
    const BLOCK: usize = 1024;

    fn key(name: &str) -> Key<'_> {
        Key { index: 1, name: name.as_bytes() }
    }

    fn empty() -> Stored {
        Stored::parse(&[0; AREA], None, BLOCK).unwrap()
    }

    /// Writes lists to bytes and reads them again.
    fn reread(stored: &Stored) -> Stored {
        let area = stored.write_area(AREA).unwrap();
        let block = stored.write_block(BLOCK).unwrap();
        Stored::parse(&area, Some(&block), BLOCK).unwrap()
    }

    #[test]
    fn small_values_stay_in_the_inode() {
        let mut stored = empty();
        stored.set(key("a"), b"one", Mode::Any).unwrap();
        stored.set(key("b"), b"", Mode::Create).unwrap();
        stored.set(key("a"), b"two and more", Mode::Replace).unwrap();
        assert!(stored.block.is_empty());
        let again = reread(&stored);
        assert_eq!(again, stored);
        assert_eq!(again.find(key("a")).unwrap().value.here(), Some(&b"two and more"[..]));
        assert_eq!(again.find(key("b")).unwrap().value.here(), Some(&b""[..]));
    }

    #[test]
    fn large_values_go_to_the_block_and_come_back() {
        let mut stored = empty();
        stored.set(key("a"), b"small", Mode::Any).unwrap();
        stored.set(key("a"), &[7; 500], Mode::Any).unwrap();
        assert!(stored.inode.is_empty() && stored.block.len() == 1);
        assert_eq!(reread(&stored), stored);
        let full = stored.clone();
        assert_eq!(
            *stored.set(key("b"), &[1; 500], Mode::Any).unwrap_err().kind(),
            ErrorKind::NoSpace
        );
        assert_eq!(stored, full);
        stored.set(key("a"), b"tiny", Mode::Any).unwrap();
        assert!(stored.block.is_empty() && stored.inode.len() == 1);
        stored.remove(key("a")).unwrap();
        assert_eq!(stored.write_area(AREA).unwrap(), [0; AREA]);
    }

    #[test]
    fn modes_and_missing_names() {
        let mut stored = empty();
        let kind = |result: Result<()>| result.unwrap_err().kind().clone();
        assert_eq!(kind(stored.set(key("a"), b"", Mode::Replace)), ErrorKind::NoXattr);
        assert_eq!(kind(stored.remove(key("a"))), ErrorKind::NoXattr);
        stored.set(key("a"), b"", Mode::Any).unwrap();
        assert_eq!(kind(stored.set(key("a"), b"", Mode::Create)), ErrorKind::Exists);
        let mut none = Stored::parse(&[], None, BLOCK).unwrap();
        none.set(key("a"), b"x", Mode::Any).unwrap();
        assert_eq!((none.inode.len(), none.block.len()), (0, 1));
    }

    #[test]
    fn attributes_make_room_for_longer_fields() {
        let mut stored = empty();
        for name in ["a", "b", "c"] {
            stored.set(key(name), b"1234", Mode::Any).unwrap();
        }
        // Header 4, entries 3 * 24, end 4: 80 bytes of 96.
        let mut same = stored.clone();
        assert!(same.shorten_area(80));
        assert_eq!((same.inode.len(), same.block.len()), (3, 0));
        assert!(stored.shorten_area(52));
        assert_eq!((stored.inode.len(), stored.block.len()), (1, 2));
        assert_eq!(stored.write_area(52).unwrap().len(), 52);
        stored.set(key("large"), &[1; 800], Mode::Any).unwrap();
        assert!(stored.clone().shorten_area(8));
        let full = stored.block_room - space_needed(&stored.block) - 20;
        stored.set(key("full"), &vec![1; full], Mode::Any).unwrap();
        assert!(!stored.shorten_area(8));
    }

    #[test]
    fn the_inode_fills_to_the_last_byte() {
        // Header 4, entry 16 + 4, end 4: 68 bytes are left for the value.
        let mut stored = empty();
        stored.set(key("name"), &[9; 68], Mode::Any).unwrap();
        assert_eq!(stored.inode.len(), 1);
        assert_eq!(reread(&stored).find(key("name")).unwrap().value, Value::Here(vec![9; 68]));
        stored.set(key("name"), &[9; 69], Mode::Any).unwrap();
        assert_eq!(stored.block.len(), 1);
    }
}
