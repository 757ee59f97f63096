//! POSIX access control lists: between the form of xattr(7) and the one on disk, and their
//! permission bits.
//!
//! On disk: the value of the attributes `system.posix_acl_access` and `_default`: version 1, where
//! only entries that name a user or group have room for its number. Programs see version 2, where
//! all have (`linux/posix_acl_xattr.h`; acl(5)).
//! Invariants: a list that [`Acl`] holds has its entries in the order owner, users, owning group,
//! groups, mask, others, each of the single ones at most once, owner, owning group and others
//! exactly once, and a mask where there are named users or groups.

use crate::error::CorruptKind;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

raw_struct! {
    /// Header of a list, in either form.
    pub struct RawAclHeader [4] {
        a_version: U32,
    }
}

raw_struct! {
    /// Entry on disk without a user or group id: `ext4_acl_entry_short`.
    pub struct RawAclEntryShort [4] {
        e_tag: U16,
        e_perm: U16,
    }
}

raw_struct! {
    /// Entry on disk that names a user or group: `ext4_acl_entry`; each entry in the form of
    /// xattr(7).
    pub struct RawAclEntry [8] {
        e_tag: U16,
        e_perm: U16,
        e_id: U32,
    }
}

const DISK_VERSION: u32 = 1;
const CALLER_VERSION: u32 = 2;
/// The id that callers see for an entry without one.
const NOBODY: u32 = u32::MAX;

/// Whom an entry is about. The order is that of a valid list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Others,
}

impl Tag {
    fn from_raw(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Others,
            _ => return None,
        })
    }

    fn raw(self) -> (u16, Option<u32>) {
        match self {
            Self::Owner => (0x01, None),
            Self::User(id) => (0x02, Some(id)),
            Self::OwningGroup => (0x04, None),
            Self::Group(id) => (0x08, Some(id)),
            Self::Mask => (0x10, None),
            Self::Others => (0x20, None),
        }
    }

    /// Place in the order of a list; named users and groups may repeat.
    fn rank(self) -> u8 {
        match self {
            Self::Owner => 0,
            Self::User(_) => 1,
            Self::OwningGroup => 2,
            Self::Group(_) => 3,
            Self::Mask => 4,
            Self::Others => 5,
        }
    }

    fn is_named(self) -> bool {
        matches!(self, Self::User(_) | Self::Group(_))
    }
}

/// Why bytes in the form of xattr(7) are no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// They do not parse, or break a rule.
    #[error("not an access control list")]
    Malformed,
    /// A version other than 2.
    #[error("version {0} of an access control list")]
    Version(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    /// Read 4, write 2, execute 1.
    permissions: u16,
}

impl Entry {
    fn raw(&self, tag: u16, id: u32) -> RawAclEntry {
        RawAclEntry { e_tag: U16::new(tag), e_perm: U16::new(self.permissions), e_id: U32::new(id) }
    }
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

/// The lists that a new file gets from the default list of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Permission bits: those asked for, as far as the list grants them.
    pub mode: u16,
    /// Access list of the file; `None` when the permission bits say it all.
    pub access: Option<Acl>,
}

impl Acl {
    /// Reads the form of xattr(7); `None` for a list without entries, which means no list.
    ///
    /// # Errors
    /// [`AclError`].
    pub fn from_caller(value: &[u8]) -> Result<Option<Self>, AclError> {
        let (header, mut rest) = split::<RawAclHeader>(value).ok_or(AclError::Malformed)?;
        if header.a_version.get() != CALLER_VERSION {
            return Err(AclError::Version(header.a_version.get()));
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (raw, after) = split::<RawAclEntry>(rest).ok_or(AclError::Malformed)?;
            let id = raw.e_id.get();
            let tag = Tag::from_raw(raw.e_tag.get(), id).ok_or(AclError::Malformed)?;
            if tag.is_named() && id == NOBODY {
                return Err(AclError::Malformed);
            }
            entries.push(Entry { tag, permissions: raw.e_perm.get() });
            rest = after;
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(AclError::Malformed) }
    }

    /// The form of xattr(7).
    #[must_use]
    pub fn to_caller(&self) -> Vec<u8> {
        let mut value = header(CALLER_VERSION);
        for entry in &self.entries {
            let (tag, id) = entry.tag.raw();
            value.extend_from_slice(entry.raw(tag, id.unwrap_or(NOBODY)).bytes());
        }
        value
    }

    /// Reads the form on disk.
    ///
    /// # Errors
    /// [`CorruptKind::Rule`] for what is no valid list.
    pub fn from_disk(value: &[u8]) -> Result<Self, CorruptKind> {
        let corrupt = CorruptKind::Rule { what: "access control list", why: "is malformed" };
        let (header, mut rest) = split::<RawAclHeader>(value).ok_or(corrupt)?;
        if header.a_version.get() != DISK_VERSION {
            return Err(corrupt);
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (short, after) = split::<RawAclEntryShort>(rest).ok_or(corrupt)?;
            let mut tag = Tag::from_raw(short.e_tag.get(), 0).ok_or(corrupt)?;
            let mut after = after;
            if let Tag::User(id) | Tag::Group(id) = &mut tag {
                let (long, after_long) = split::<RawAclEntry>(rest).ok_or(corrupt)?;
                *id = long.e_id.get();
                after = after_long;
            }
            entries.push(Entry { tag, permissions: short.e_perm.get() });
            rest = after;
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(acl) } else { Err(corrupt) }
    }

    /// The form on disk.
    #[must_use]
    pub fn to_disk(&self) -> Vec<u8> {
        let mut value = header(DISK_VERSION);
        for entry in &self.entries {
            let (tag, id) = entry.tag.raw();
            let raw = entry.raw(tag, id.unwrap_or(NOBODY));
            let len = if id.is_some() { size_of::<RawAclEntry>() } else { SHORT_SIZE };
            value.extend_from_slice(raw.bytes().get(..len).unwrap_or_default());
        }
        value
    }

    /// The permission bits that stat(2) shows for this list. The mask is shown for the group.
    #[must_use]
    pub fn mode(&self) -> u16 {
        let of = |wanted| self.entries.iter().find(|e| e.tag == wanted).map(|e| e.permissions);
        let group = of(Tag::Mask).or(of(Tag::OwningGroup)).unwrap_or(0);
        (of(Tag::Owner).unwrap_or(0) << 6) | (group << 3) | of(Tag::Others).unwrap_or(0)
    }

    /// Whether the permission bits say all that the list does; such an access list is not kept.
    #[must_use]
    pub fn is_mode_only(&self) -> bool {
        self.entries.len() == 3
    }

    /// The list after chmod(2) to `mode`.
    #[must_use]
    pub fn with_mode(&self, mode: u16) -> Self {
        let group_class = self.group_class();
        let mut acl = self.clone();
        for entry in &mut acl.entries {
            match entry.tag {
                Tag::Owner => entry.permissions = (mode >> 6) & 7,
                Tag::Others => entry.permissions = mode & 7,
                tag if tag == group_class => entry.permissions = (mode >> 3) & 7,
                _ => {}
            }
        }
        acl
    }

    /// The lists that a new file with permission bits `mode` gets from this list, its directory's
    /// default.
    #[must_use]
    pub fn inherit(&self, mode: u16) -> Inherited {
        let wanted = self.with_mode(mode);
        let mut access = self.clone();
        for (entry, wanted) in access.entries.iter_mut().zip(&wanted.entries) {
            entry.permissions &= wanted.permissions;
        }
        let mode = (mode & !0o777) | access.mode();
        Inherited { mode, access: (!access.is_mode_only()).then_some(access) }
    }

    /// The entry that corresponds to the group bits of the mode.
    fn group_class(&self) -> Tag {
        let has_mask = self.entries.iter().any(|entry| entry.tag == Tag::Mask);
        if has_mask { Tag::Mask } else { Tag::OwningGroup }
    }

    fn is_valid(&self) -> bool {
        let count = |rank| self.entries.iter().filter(|e| e.tag.rank() == rank).count();
        let in_order = self.entries.is_sorted_by_key(|entry| entry.tag.rank());
        let singles = count(0) == 1 && count(2) == 1 && count(5) == 1 && count(4) <= 1;
        let masked = count(4) == 1 || (count(1) == 0 && count(3) == 0);
        in_order && singles && masked && self.entries.iter().all(|e| e.permissions <= 7)
    }
}

const SHORT_SIZE: usize = size_of::<RawAclEntryShort>();

/// A structure off the front of some bytes, and the bytes behind it.
fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Option<(&T, &[u8])> {
    T::ref_from_prefix(bytes).ok()
}

fn header(version: u32) -> Vec<u8> {
    RawAclHeader { a_version: U32::new(version) }.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list as callers pass it.
    fn caller(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    const FULL: &[(u16, u16, u32)] = &[
        (1, 7, NOBODY),
        (2, 6, 1000),
        (2, 4, 1001),
        (4, 5, NOBODY),
        (8, 4, 50),
        (0x10, 6, NOBODY),
        (0x20, 1, NOBODY),
    ];

    #[test]
    fn forms_convert_both_ways() {
        let value = caller(FULL);
        let acl = Acl::from_caller(&value).unwrap().unwrap();
        let disk = acl.to_disk();
        assert_eq!(disk.len(), 4 + 3 * 8 + 4 * 4);
        assert_eq!(disk[..8], [1, 0, 0, 0, 1, 0, 7, 0]);
        assert_eq!(Acl::from_disk(&disk).unwrap().to_caller(), value);
        assert_eq!(Acl::from_caller(&caller(&[])).unwrap(), None);
    }

    #[test]
    fn broken_lists_are_refused() {
        let without = |skip: usize| {
            let entries: Vec<_> =
                FULL.iter().enumerate().filter(|(i, _)| *i != skip).map(|(_, e)| *e).collect();
            Acl::from_caller(&caller(&entries))
        };
        for needed in [0, 3, 5, 6] {
            assert!(without(needed).is_err(), "without entry {needed}");
        }
        for optional in [1, 2, 4] {
            assert!(without(optional).is_ok());
        }
        let mut reordered = FULL.to_vec();
        reordered.swap(0, 1);
        assert!(Acl::from_caller(&caller(&reordered)).is_err());
        assert!(Acl::from_caller(&caller(&[(1, 8, 0), (4, 0, 0), (0x20, 0, 0)])).is_err());
        assert!(Acl::from_caller(&[2, 0, 0]).is_err());
        assert!(Acl::from_caller(&caller(FULL)[..20]).is_err());
        assert!(Acl::from_caller(&[3, 0, 0, 0]).is_err());
        let disk = Acl::from_caller(&caller(FULL)).unwrap().unwrap().to_disk();
        for len in 0..disk.len() {
            assert!(Acl::from_disk(&disk[..len]).is_err());
        }
    }

    #[test]
    fn mode_follows_the_list_and_the_list_the_mode() {
        let acl = Acl::from_caller(&caller(FULL)).unwrap().unwrap();
        assert_eq!(acl.mode(), 0o761);
        assert!(!acl.is_mode_only());
        let changed = acl.with_mode(0o640);
        assert_eq!(changed.mode(), 0o640);
        assert_eq!(changed.entries[3], acl.entries[3], "the owning group keeps its own");
        let plain = caller(&[(1, 6, 0), (4, 4, 0), (0x20, 0, 0)]);
        let plain = Acl::from_caller(&plain).unwrap().unwrap();
        assert!(plain.is_mode_only() && plain.mode() == 0o640);
        assert_eq!(plain.with_mode(0o755).mode(), 0o755);
    }

    #[test]
    fn new_files_inherit_what_both_grant() {
        let acl = Acl::from_caller(&caller(FULL)).unwrap().unwrap();
        let inherited = acl.inherit(0o4666);
        assert_eq!(inherited.mode, 0o4660);
        let access = inherited.access.unwrap();
        assert_eq!(access.mode(), 0o660);
        assert_eq!(access.entries[1], acl.entries[1]);
        let plain = caller(&[(1, 7, 0), (4, 5, 0), (0x20, 0, 0)]);
        let plain = Acl::from_caller(&plain).unwrap().unwrap();
        assert_eq!(plain.inherit(0o666), Inherited { mode: 0o640, access: None });
    }
}
