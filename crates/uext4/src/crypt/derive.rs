//! Master keys, and what is derived from them.
//!
//! Version 2 derives everything by HKDF-SHA512, each use with an info of its own; version 1
//! encrypts the master key itself with the nonce as the key (fscrypt.rst, "Key derivation").

use super::Tweak;
use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::{Digest, Sha512};
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
    InoHashed = 6,
    InoHash = 7,
}

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
            let mut hash_key = Zeroizing::new([0; 16]);
            self.expand(Use::InoHash, &[], &mut *hash_key);
            #[allow(clippy::cast_possible_truncation)] // as the format has it
            Tweak::InoHashed(siphash(&hash_key, u64::from(ino)) as u32)
        } else {
            self.expand(Use::File, &context.nonce, key);
            Tweak::Index
        })
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

/// SipHash-2-4 of one number.
fn siphash(key: &[u8; 16], number: u64) -> u64 {
    let half = |at: usize| u64::from_le_bytes(key[at..at + 8].try_into().expect("8 bytes"));
    let (k0, k1) = (half(0), half(8));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for word in [number, 8 << 56] {
        v[3] ^= word;
        sip_rounds(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    sip_rounds(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_rounds(v: &mut [u64; 4], count: u32) {
    for _ in 0..count {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    }
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

    #[test]
    fn siphash_is_the_published_one() {
        // The vector of 8 bytes 0..=7 of the reference implementation.
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        let number = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(siphash(&key, number), 0x93f5_f579_9a93_2462);
    }
}
