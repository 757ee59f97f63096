//! Reading attributes.

use super::NAME_MAX;
use super::stored::{self, Attribute, Key, Value};
use super::value_inode::ValueReader;
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use std::sync::Arc;
use uext4_ondisk::acl::Acl;
use uext4_ondisk::{BlockNo, Place, xattr};

/// Name index of the access list.
pub(super) const ACL_ACCESS: u8 = 2;
/// Name index of the default list of a directory.
pub(super) const ACL_DEFAULT: u8 = 3;
/// Index of `user.`.
pub(super) const USER: u8 = 1;
/// Name indexes that callers may use, with the prefixes of the full names.
const USABLE: &[u8] = &[USER, ACL_ACCESS, ACL_DEFAULT, 4, 6];

/// The value of attribute `name` (a full name).
///
/// # Errors
/// `NoXattr`; `Unsupported` for names that ext4 does not store; `Corrupt`; a device failure.
pub fn get(inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let key = key_of(name)?;
    let no_xattr = || Error::new(ErrorKind::NoXattr, String::from_utf8_lossy(name));
    let find = |list: Vec<Attribute>| list.into_iter().find(|a| a.has_key(key));
    let found = {
        let _lock = inode.xattr_lock().read();
        let found = match find(in_inode(inode)?) {
            Some(attribute) => attribute,
            None => find(in_block(inode)?).ok_or_else(no_xattr)?,
        };
        match found.value {
            Value::Here(value) | Value::ForInode(value) => Ok(value),
            Value::InInode(place) => Err(ValueReader::new(inode, place)?),
        }
    };
    let value = match found {
        Ok(value) => value,
        Err(elsewhere) => elsewhere.read(inode, key.name)?,
    };
    if key.index == ACL_ACCESS || key.index == ACL_DEFAULT {
        let acl = Acl::from_disk(&value).map_err(|kind| kind.at(Place::Inode(inode.ino())))?;
        return Ok(acl.to_caller());
    }
    Ok(value)
}

/// Full names of all attributes.
///
/// # Errors
/// `Corrupt`; a device failure.
pub fn list(inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let _lock = inode.xattr_lock().read();
    let mut attributes = in_inode(inode)?;
    attributes.extend(in_block(inode)?);
    Ok(attributes.iter().filter_map(full_name).collect())
}

/// The full name of a stored attribute. `None` for one that callers must not see.
fn full_name(attribute: &Attribute) -> Option<Vec<u8>> {
    let prefix = xattr::prefix_of(attribute.index)?;
    let has_rest = prefix.ends_with('.');
    if !USABLE.contains(&attribute.index) || has_rest == attribute.name.is_empty() {
        return None;
    }
    Some([prefix.as_bytes(), &attribute.name].concat())
}

/// How a full name is stored.
pub(super) fn key_of(name: &[u8]) -> Result<Key<'_>> {
    if name.len() > NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "attribute name"));
    }
    if name.contains(&0) {
        return Err(Error::new(ErrorKind::InvalidArgument, "an attribute name cannot hold NUL"));
    }
    if [&b"user."[..], b"trusted.", b"security."].contains(&name) {
        let why = "an attribute name needs more than its prefix";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    match xattr::split_name(name) {
        Some((index, name)) if USABLE.contains(&index) => Ok(Key { index, name }),
        _ => Err(Error::new(ErrorKind::Unsupported, String::from_utf8_lossy(name))),
    }
}

pub(super) fn in_inode(inode: &Inode) -> Result<Vec<Attribute>> {
    let attributes = stored::in_area(&inode.attributes().xattr_area);
    Ok(attributes.map_err(|kind| kind.at(Place::Inode(inode.ino())))?)
}

pub(super) fn in_block(inode: &Inode) -> Result<Vec<Attribute>> {
    let Some(buffer) = block_of(inode)? else { return Ok(Vec::new()) };
    let attributes = stored::in_block(&buffer.read());
    Ok(attributes.map_err(|kind| kind.at(Place::Block(buffer.block())))?)
}

/// The attribute block of an inode, if it has one.
pub(super) fn block_of(inode: &Inode) -> Result<Option<Arc<Buffer>>> {
    let block = BlockNo(inode.attributes().file_acl);
    if block.get() == 0 {
        return Ok(None);
    }
    inode.space().check_run(block, 1)?;
    inode.cache().read(block, BlockKind::Xattr).map(Some)
}
