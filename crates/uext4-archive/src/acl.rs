//! POSIX ACLs: as text in an archive, as bytes in an extended attribute.
//!
//! Reads what star, GNU tar and bsdtar write (`user:name:rwx:1000,group::r-x`), in parts that
//! commas or line breaks separate. The bytes are those of the attribute in the kernel's interface,
//! version 2.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Attribute of the ACL that governs access.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute of the ACL that new files of a directory get.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: U32 = U32::new(2);
const NO_ID: u32 = u32::MAX;

/// An entry in the attribute.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    tag: U16,
    permissions: U16,
    id: U32,
}

/// Most entries: more do not fit an attribute of 64 KiB.
const ENTRIES_MAX: usize = 8191;

/// Entries of an ACL in the order of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is for.
    pub tag: AclTag,
    /// Three bits, as of a mode.
    pub permissions: u16,
}

/// Whom an entry is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AclTag {
    /// The owner.
    Owner,
    /// One user.
    User(Qualifier),
    /// The owning group.
    OwningGroup,
    /// One group.
    Group(Qualifier),
    /// The upper bound of all but owner and others.
    Mask,
    /// All others.
    Other,
}

/// A user or group: a name, a number, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qualifier {
    /// Name; empty if there is none.
    pub name: Vec<u8>,
    /// Number.
    pub id: Option<u32>,
}

impl Qualifier {
    /// One without a name.
    pub fn number(id: u32) -> Self {
        Self { name: Vec::new(), id: Some(id) }
    }

    fn parse(text: &[u8], extra: Option<&[u8]>) -> Self {
        match (decimal(text), extra.and_then(decimal)) {
            (Some(id), None) => Self::number(id),
            (_, id) => Self { name: text.to_vec(), id },
        }
    }

    /// The number or else the name. Without either, the number that the kernel gives to nobody: an
    /// empty text would be the owner.
    fn text(&self) -> Vec<u8> {
        match self.id {
            None if !self.name.is_empty() => self.name.clone(),
            id => id.unwrap_or(NO_ID).to_string().into_bytes(),
        }
    }
}

impl AclTag {
    fn code(&self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User(_) => 0x02,
            Self::OwningGroup => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }
}

fn decimal(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl Acl {
    /// Reads the text of an archive; `None` if it is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut entries = Vec::new();
        for part in text.split(|byte| matches!(byte, b',' | b'\n')) {
            // What getfacl(1) adds.
            let part = part.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
            if part.is_empty() {
                continue;
            }
            if entries.len() == ENTRIES_MAX {
                return None;
            }
            entries.push(AclEntry::parse(part)?);
        }
        (!entries.is_empty()).then_some(Self { entries })
    }

    /// What the owning group is given, without regard to the mask.
    pub fn owning_group(&self) -> Option<u16> {
        let entry = self.entries.iter().find(|entry| entry.tag == AclTag::OwningGroup);
        entry.map(|entry| entry.permissions)
    }

    /// Its entries.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// The text, of numbers where there are some, as `tar --numeric-owner --acls` writes it.
    pub fn to_text(&self) -> Vec<u8> {
        let text: Vec<Vec<u8>> = self.entries.iter().map(AclEntry::text).collect();
        text.join(&b","[..])
    }

    /// Reads the attribute; `None` if it is none.
    pub fn from_xattr(value: &[u8]) -> Option<Self> {
        let (version, rest) = U32::read_from_prefix(value).ok()?;
        let raw = <[RawEntry]>::ref_from_bytes(rest).ok().filter(|raw| !raw.is_empty())?;
        let entries: Option<Vec<_>> = raw.iter().map(AclEntry::from_raw).collect();
        entries.filter(|_| version == VERSION).map(|entries| Self { entries })
    }

    /// The attribute. `id_of` gives the number of a user (`true`) or group; without a number for
    /// one of them there is no attribute.
    pub fn to_xattr(&self, id_of: impl Fn(bool, &Qualifier) -> Option<u32>) -> Option<Vec<u8>> {
        let mut entries = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let id = match &entry.tag {
                AclTag::User(who) => id_of(true, who)?,
                AclTag::Group(who) => id_of(false, who)?,
                _ => NO_ID,
            };
            entries.push((entry.tag.code(), id, entry.permissions));
        }
        // The kernel takes them in this order only.
        entries.sort_unstable();
        let mut value = VERSION.as_bytes().to_vec();
        for (code, id, permissions) in entries {
            let raw = RawEntry { tag: code.into(), permissions: permissions.into(), id: id.into() };
            value.extend(raw.as_bytes());
        }
        Some(value)
    }
}

impl AclEntry {
    fn parse(part: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = part.split(|byte| *byte == b':').map(<[u8]>::trim_ascii).collect();
        let (kind, who, permissions, extra) = match fields[..] {
            // `mask:rwx` and `other:rwx` have no field for a name in some archives.
            [kind @ (b"mask" | b"m" | b"other" | b"o"), permissions] => {
                (kind, &b""[..], permissions, None)
            }
            [kind, who, permissions] => (kind, who, permissions, None),
            [kind, who, permissions, extra] => (kind, who, permissions, Some(extra)),
            _ => return None,
        };
        let tag = match (kind, who) {
            (b"user" | b"u", b"") => AclTag::Owner,
            (b"user" | b"u", who) => AclTag::User(Qualifier::parse(who, extra)),
            (b"group" | b"g", b"") => AclTag::OwningGroup,
            (b"group" | b"g", who) => AclTag::Group(Qualifier::parse(who, extra)),
            (b"mask" | b"m", b"") => AclTag::Mask,
            (b"other" | b"o", b"") => AclTag::Other,
            _ => return None,
        };
        Some(Self { tag, permissions: bits(permissions)? })
    }

    fn text(&self) -> Vec<u8> {
        let (kind, who) = match &self.tag {
            AclTag::Owner => ("user", None),
            AclTag::User(who) => ("user", Some(who)),
            AclTag::OwningGroup => ("group", None),
            AclTag::Group(who) => ("group", Some(who)),
            AclTag::Mask => ("mask", None),
            AclTag::Other => ("other", None),
        };
        let who = who.map_or_else(Vec::new, Qualifier::text);
        let bit = |bit, letter| if self.permissions & bit != 0 { letter } else { b'-' };
        let permissions = [bit(4, b'r'), bit(2, b'w'), bit(1, b'x')];
        [kind.as_bytes(), &who, &permissions].join(&b':')
    }

    fn from_raw(raw: &RawEntry) -> Option<Self> {
        let permissions = raw.permissions.get();
        let who = Qualifier::number(raw.id.get());
        let tag = match raw.tag.get() {
            0x01 => AclTag::Owner,
            0x02 => AclTag::User(who),
            0x04 => AclTag::OwningGroup,
            0x08 => AclTag::Group(who),
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            _ => return None,
        };
        (permissions <= 7).then_some(Self { tag, permissions })
    }
}

fn bits(text: &[u8]) -> Option<u16> {
    let mut bits = 0;
    for letter in text {
        bits |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    (!text.is_empty()).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_several_programs_give_the_same_attribute() {
        let joe = |is_user: bool, who: &Qualifier| match who.id {
            None if is_user && who.name == b"joe" => Some(1000),
            id => id,
        };
        let texts: [&[u8]; 4] = [
            b"user::rwx,user:1000:r-x,group::r-x,mask::r-x,other::---",
            b"user::rwx\nuser:joe:r-x\ngroup::r-x\nmask::r-x\nother::---\n",
            b"user::rwx,group::r-x,other::---,mask::r-x,user:joe:r-x:1000",
            b"u::rwx,u:joe:rx #effective:r-x\ng::rx,m:rx,o:-",
        ];
        let values: Vec<_> =
            texts.iter().map(|text| Acl::parse(text).unwrap().to_xattr(joe).unwrap()).collect();
        assert_eq!(values[0].len(), 4 + 5 * 8);
        assert_eq!(values[0][..4], [2, 0, 0, 0]);
        assert_eq!(values[0][12..20], [2, 0, 5, 0, 0xe8, 3, 0, 0]);
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        let back = Acl::from_xattr(&values[0]).unwrap();
        assert_eq!(back.to_text(), texts[0]);
        let unknown = Acl::parse(b"user:mary:rwx").unwrap();
        assert_eq!(unknown.to_xattr(joe), None);
    }

    #[test]
    fn one_user_is_never_written_as_the_owner() {
        let text = b"user::r--,user:mary:rwx,group:9:r-x,group::r--";
        assert_eq!(Acl::parse(text).unwrap().to_text(), text);
        let nobody = AclTag::User(Qualifier { name: Vec::new(), id: None });
        let acl = Acl { entries: vec![AclEntry { tag: nobody, permissions: 7 }] };
        assert_eq!(acl.to_text(), b"user:4294967295:rwx");
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        for text in [&b""[..], b"user", b"user:rwx", b"mask:x:rwx", b"user::rwz", b"what::rwx"] {
            assert_eq!(Acl::parse(text), None, "{text:?}");
        }
        let many = b"user:1:rwx,".repeat(ENTRIES_MAX + 1);
        assert_eq!(Acl::parse(&many), None);
        for value in [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0\x01\0\x07\0\0\0\0\0", b"\x02\0\0\0\x01"]
        {
            assert_eq!(Acl::from_xattr(value), None, "{value:?}");
        }
    }
}
