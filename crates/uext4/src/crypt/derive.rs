//! Master keys, and what is derived from them.
//!
//! Version 2 derives everything by HKDF-SHA512, each use with an info of its own; version 1
//! encrypts the master key itself with the nonce as the key (fscrypt.rst, "Key derivation").

use super::Tweak;
use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::{Digest, Sha512};
use siphasher::sip::SipHasher24;
use std::fmt;
use std::fs::File;
use std::io::Read;
use uext4_ondisk::encryption::{
    Context, FLAG_IV_INO_LBLK_32, FLAG_IV_INO_LBLK_64, KeyName, NONCE_SIZE,
};
use zeroize::{Zeroize, Zeroizing};

/// What a derived key is for: the byte behind the prefix of the info.
#[derive(Clone, Copy)]
enum Use {
    Identifier = 1,
    File = 2,
    InoAbove = 4,
    NameHash = 5,
    InoHashed = 6,
    InoHash = 7,
}

/// A key of SipHash.
pub(super) type HashKey = Zeroizing<[u8; 16]>;

/// A master key, of 32 to 64 bytes.
#[derive(Clone)]
pub struct MasterKey {
    secret: Zeroizing<Vec<u8>>,
    descriptor: [u8; 8],
    identifier: [u8; 16],
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", hex(&self.identifier))
    }
}

impl PartialEq for MasterKey {
    fn eq(&self, other: &Self) -> bool {
        (self.identifier, self.descriptor) == (other.identifier, other.descriptor)
    }
}

impl Eq for MasterKey {}

impl MasterKey {
    /// Fewest bytes: the strength of AES-256.
    pub const SIZE_MIN: usize = 32;
    /// Most bytes.
    pub const SIZE_MAX: usize = 64;

    /// A key from its bytes. With a `descriptor` it is for policies of version 1 that name it so.
    /// Without one its descriptor is what fscryptctl(1) and e4crypt(8) give it: the beginning of
    /// the SHA-512 of its SHA-512.
    ///
    /// # Errors
    /// The key is too short or too long.
    pub fn new(bytes: &[u8], descriptor: Option<[u8; 8]>) -> Result<Self, String> {
        if !(Self::SIZE_MIN..=Self::SIZE_MAX).contains(&bytes.len()) {
            let (min, max) = (Self::SIZE_MIN, Self::SIZE_MAX);
            return Err(format!("a key of {} bytes; it must have {min} to {max}", bytes.len()));
        }
        let secret = Zeroizing::new(bytes.to_vec());
        let descriptor = descriptor.unwrap_or_else(|| {
            let twice = Sha512::digest(Sha512::digest(bytes));
            twice[..8].try_into().expect("8 bytes")
        });
        let mut key = Self { secret, descriptor, identifier: [0; 16] };
        let mut identifier = [0; 16];
        key.expand(Use::Identifier, &[], &mut identifier);
        key.identifier = identifier;
        Ok(key)
    }

    /// A key from a file with its bytes, named as `FILE` or `DESCRIPTOR:FILE`: see
    /// [`MasterKey::new`].
    ///
    /// # Errors
    /// One line: the file cannot be read, or is no key.
    pub fn from_file(name: &str) -> Result<Self, String> {
        let (descriptor, path) = match name.split_once(':') {
            Some((digits, path)) if digits.len() == 16 => match descriptor(digits) {
                Some(descriptor) => (Some(descriptor), path),
                None => (None, name),
            },
            _ => (None, name),
        };
        let most = Self::SIZE_MAX as u64 + 1;
        let mut bytes = Zeroizing::new(Vec::with_capacity(Self::SIZE_MAX + 1));
        let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
        read.map_err(|error| format!("{path}: {error}"))?;
        if bytes.len() as u64 == most {
            return Err(format!("{path}: longer than a key of {} bytes", Self::SIZE_MAX));
        }
        Self::new(&bytes, descriptor).map_err(|why| format!("{path}: {why}"))
    }

    /// Whether it is long enough for the contents of files under policies of version 1, which are
    /// encrypted by as many bytes of a key as AES-256-XTS has.
    #[must_use]
    pub fn fits_version_1(&self) -> bool {
        self.secret.len() == Self::SIZE_MAX
    }

    /// The name of the key in policies of version 2.
    #[must_use]
    pub fn identifier(&self) -> [u8; 16] {
        self.identifier
    }

    /// The name of the key in policies of version 1.
    #[must_use]
    pub fn descriptor(&self) -> [u8; 8] {
        self.descriptor
    }

    pub(super) fn has_name(&self, name: KeyName) -> bool {
        match name {
            KeyName::Descriptor(descriptor) => descriptor == self.descriptor,
            KeyName::Identifier(identifier) => identifier == self.identifier,
        }
    }

    /// Fills `key` with the key of an inode for `mode`, and says how its vectors are made. `None`:
    /// the master key is shorter than version 1 needs it.
    pub(super) fn file_key(
        &self,
        context: &Context,
        mode: u8,
        ino: u32,
        uuid: &[u8; 16],
        key: &mut [u8],
    ) -> Option<Tweak> {
        let flags = context.policy.flags;
        if matches!(context.policy.key, KeyName::Descriptor(_)) {
            let secret = self.secret.get(..key.len())?;
            key.copy_from_slice(secret);
            encrypt_with_nonce(&context.nonce, key);
            return Some(Tweak::Index);
        }
        let info = [&[mode][..], uuid].concat();
        Some(if flags & FLAG_IV_INO_LBLK_64 != 0 {
            self.expand(Use::InoAbove, &info, key);
            Tweak::InoAbove(ino)
        } else if flags & FLAG_IV_INO_LBLK_32 != 0 {
            self.expand(Use::InoHashed, &info, key);
            let mut hash_key = HashKey::default();
            self.expand(Use::InoHash, &[], &mut *hash_key);
            let hash = siphash(&hash_key, &u64::from(ino).to_le_bytes());
            #[allow(clippy::cast_possible_truncation)] // as the format has it
            Tweak::InoHashed(hash as u32)
        } else {
            self.expand(Use::File, &context.nonce, key);
            Tweak::Index
        })
    }

    /// The key that hashes the names of a directory which folds case. `None`: version 1 has none.
    pub(super) fn name_hash_key(&self, context: &Context) -> Option<HashKey> {
        let KeyName::Identifier(_) = context.policy.key else { return None };
        let mut key = HashKey::default();
        self.expand(Use::NameHash, &context.nonce, &mut *key);
        Some(key)
    }

    fn expand(&self, of: Use, info: &[u8], key: &mut [u8]) {
        let hkdf = Hkdf::<Sha512>::new(None, &self.secret);
        let of = [of as u8];
        hkdf.expand_multi_info(&[b"fscrypt\0", &of, info], key).expect("a few bytes");
    }
}

fn encrypt_with_nonce(nonce: &[u8; NONCE_SIZE], key: &mut [u8]) {
    let aes = Aes128::new(nonce.into());
    for part in key.chunks_exact_mut(16) {
        let mut block = *aes::Block::from_slice(part);
        aes.encrypt_block(&mut block);
        part.copy_from_slice(&block);
        block.as_mut_slice().zeroize();
    }
}

/// SipHash-2-4.
pub(super) fn siphash(key: &HashKey, bytes: &[u8]) -> u64 {
    SipHasher24::new_with_key(key).hash(bytes)
}

/// The descriptor of 16 hexadecimal digits.
fn descriptor(digits: &str) -> Option<[u8; 8]> {
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten().map(u64::to_be_bytes)
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the reference implementation (`vectors.h` of SipHash): the key is 0 to 15, a text
    /// of n bytes is 0 to n - 1.
    #[test]
    fn siphash_is_the_published_one() {
        let key = HashKey::new(std::array::from_fn(|at| at as u8));
        let vectors = [
            (0, 0x726f_db47_dd0e_0e31_u64),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
        ];
        for (len, want) in vectors {
            let text: Vec<u8> = (0..len).collect();
            assert_eq!(siphash(&key, &text), want, "{len} bytes");
        }
    }
}
