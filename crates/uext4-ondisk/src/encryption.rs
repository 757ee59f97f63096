//! The encryption context of an inode: its policy, and the nonce that its key is derived with.
//!
//! On disk: the extended attribute `c` of name index 9. Its value begins with the version: 1 is 28
//! bytes long and names the master key by a descriptor of the user's choice, 2 is 40 bytes long and
//! names it by an identifier that is derived from it (fscrypt.rst, "Encryption policies").
//! Invariants: a context that is parsed may name modes and flags that nobody supports; what it can
//! be used for is up to the caller.

/// Name index of the attribute.
pub const XATTR_INDEX: u8 = 9;
/// Name of the attribute, without a prefix.
pub const XATTR_NAME: &[u8] = b"c";
/// Shortest name in an encrypted directory, in bytes.
pub const NAME_MIN: usize = 16;
/// Bytes of a nonce.
pub const NONCE_SIZE: usize = 16;

/// Contents and names by AES-256-XTS and AES-256-CBC-CTS.
pub const MODE_AES_256_XTS: u8 = 1;
/// Names by AES-256 in CBC mode with ciphertext stealing.
pub const MODE_AES_256_CTS: u8 = 4;

/// Bits of [`Policy::flags`]: names are padded to 4, 8, 16 or 32 bytes.
pub const FLAGS_PAD: u8 = 0x03;
/// All files share the master key itself.
pub const FLAG_DIRECT_KEY: u8 = 0x04;
/// All files share a key, and the inode number is in the upper half of the IV.
pub const FLAG_IV_INO_LBLK_64: u8 = 0x08;
/// All files share a key, and a hash of the inode number is added to the IV.
pub const FLAG_IV_INO_LBLK_32: u8 = 0x10;

/// Bytes before the ciphertext of the target of a symbolic link.
pub const TARGET_LENGTH_SIZE: usize = 2;

/// What a symbolic link stores of the ciphertext of its target. `None`: it is too long.
#[must_use]
pub fn stored_target(text: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(text.len()).ok()?;
    Some([&len.to_le_bytes()[..], text].concat())
}

/// The ciphertext in what a symbolic link stores. `None`: it is shorter than it says.
#[must_use]
pub fn target_text(stored: &[u8]) -> Option<&[u8]> {
    let (len, text) = stored.split_first_chunk::<TARGET_LENGTH_SIZE>()?;
    text.get(..usize::from(u16::from_le_bytes(*len)))
}

const V1: u8 = 1;
const V2: u8 = 2;
const V1_SIZE: usize = 28;
const V2_SIZE: usize = 40;

/// The master key that a policy names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyName {
    /// Version 1: a descriptor of the user's choice.
    Descriptor([u8; 8]),
    /// Version 2: derived from the key.
    Identifier([u8; 16]),
}

/// How the files of a directory are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The master key; its kind is the version of the policy.
    pub key: KeyName,
    /// Encryption mode of contents.
    pub contents_mode: u8,
    /// Encryption mode of names and of the targets of symbolic links.
    pub names_mode: u8,
    /// Padding of names, and how keys and IVs are derived.
    pub flags: u8,
    /// Binary logarithm of the bytes that have one IV; 0: a block has one. Version 2.
    pub log2_data_unit: u8,
}

impl Policy {
    /// The bytes that names are padded to a multiple of.
    #[must_use]
    pub const fn padding(&self) -> usize {
        4 << (self.flags & FLAGS_PAD)
    }

    /// Whether another key than the right one can have the name of its key: a descriptor says
    /// nothing about the key.
    #[must_use]
    pub const fn may_have_wrong_key(&self) -> bool {
        matches!(self.key, KeyName::Descriptor(_))
    }
}

/// The context of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The policy, which the inode has in common with its directory.
    pub policy: Policy,
    /// Random bytes of this inode.
    pub nonce: [u8; NONCE_SIZE],
}

impl Context {
    /// Reads the value of the attribute. `None`: it is of no known version, not as long as that
    /// version is, or has something where that has zeroes.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let &[version, contents_mode, names_mode, flags, ref rest @ ..] = value else {
            return None;
        };
        let (key, log2_data_unit, nonce) = match (version, value.len()) {
            (V1, V1_SIZE) => {
                let (descriptor, nonce) = rest.split_first_chunk::<8>()?;
                (KeyName::Descriptor(*descriptor), 0, nonce)
            }
            (V2, V2_SIZE) => {
                let (&[log2_data_unit, 0, 0, 0], rest) = rest.split_first_chunk::<4>()? else {
                    return None;
                };
                let (identifier, nonce) = rest.split_first_chunk::<16>()?;
                (KeyName::Identifier(*identifier), log2_data_unit, nonce)
            }
            _ => return None,
        };
        let policy = Policy { key, contents_mode, names_mode, flags, log2_data_unit };
        Some(Self { policy, nonce: nonce.try_into().ok()? })
    }

    /// The bytes of a value that inodes of one policy have in common: all but the nonce. `None`: it
    /// is not as long as its version is, or has none. Of a version that is not known all bytes are
    /// taken to be the nonce.
    #[must_use]
    pub fn policy_bytes(value: &[u8]) -> Option<&[u8]> {
        let size = match *value.first()? {
            V1 => V1_SIZE,
            V2 => V2_SIZE,
            0 => return None,
            _ => return Some(&[]),
        };
        value.get(..size.saturating_sub(NONCE_SIZE)).filter(|_| value.len() == size)
    }

    /// The value of the attribute.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Policy { key, contents_mode, names_mode, flags, log2_data_unit } = self.policy;
        let modes = [contents_mode, names_mode, flags];
        match key {
            KeyName::Descriptor(descriptor) => {
                [&[V1][..], &modes, &descriptor, &self.nonce].concat()
            }
            KeyName::Identifier(identifier) => {
                let reserved = [log2_data_unit, 0, 0, 0];
                [&[V2][..], &modes, &reserved, &identifier, &self.nonce].concat()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_round_trip_and_others_are_none() {
        for key in [KeyName::Descriptor([7; 8]), KeyName::Identifier([9; 16])] {
            let log2_data_unit = if matches!(key, KeyName::Identifier(_)) { 9 } else { 0 };
            let policy = Policy { key, contents_mode: 1, names_mode: 4, flags: 3, log2_data_unit };
            let context = Context { policy, nonce: [5; 16] };
            let bytes = context.to_bytes();
            assert_eq!(Context::parse(&bytes), Some(context));
            assert_eq!(policy.padding(), 32);
            for len in (0..bytes.len()).chain([bytes.len() + 1]) {
                let mut other = bytes.clone();
                other.resize(len, 0);
                assert_eq!(Context::parse(&other), None);
            }
        }
        assert_eq!(Context::parse(&[3; 40]), None);
        let first = |len: usize| (len > 0).then_some(&[1; 40][..len]);
        for (value, want) in [(&[1; 28][..], first(12)), (&[1; 27], None), (&[0; 28], None)] {
            assert_eq!(Context::policy_bytes(value), want);
        }
        assert_eq!(Context::policy_bytes(&[2; 40]), Some(&[2; 24][..]));
        assert_eq!(Context::policy_bytes(&[3; 9]), Some(&[][..]));
        for reserved in 5..8 {
            let mut bytes = [0; 40];
            bytes[0] = 2;
            assert!(Context::parse(&bytes).is_some());
            bytes[reserved] = 1;
            assert_eq!(Context::parse(&bytes), None);
        }
    }
}
