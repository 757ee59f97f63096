//! The master keys of a volume, and the ciphers of its inodes.

use super::FileCipher;
use super::contents::{self, ContentsCipher};
use super::derive::{MasterKey, hex};
use super::names::{self, NamesCipher};
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::encryption::{
    Context, FLAG_IV_INO_LBLK_32, FLAG_IV_INO_LBLK_64, FLAGS_PAD, KeyName, MODE_AES_256_CTS,
    MODE_AES_256_XTS, Policy,
};
use uext4_ondisk::{Compat, FileKind, Layout};
use zeroize::Zeroizing;

/// Smallest data unit, in bytes, as a binary logarithm.
const LOG2_UNIT_MIN: u8 = 9;

/// The keys that a volume was opened with. They stay until it is closed.
#[derive(Debug, Default)]
pub struct KeyRing {
    keys: Vec<MasterKey>,
    uuid: [u8; 16],
    block_size: u32,
    /// Directories may fold case.
    folds: bool,
}

impl KeyRing {
    /// Keys for a volume with this UUID, from which some keys are derived.
    #[must_use]
    pub fn new(keys: Vec<MasterKey>, uuid: [u8; 16], block_size: u32, folds: bool) -> Self {
        Self { keys, uuid, block_size, folds }
    }

    /// The cipher of an inode.
    ///
    /// # Errors
    /// `NoKey` when its key is not there, or too short; `NoCipher` for modes that uext4 does not
    /// have, and policies that it does not know.
    pub(crate) fn cipher(&self, context: &Context, kind: FileKind, ino: u32) -> Result<FileCipher> {
        let policy = &context.policy;
        check_policy(policy, self.block_size)
            .map_err(|why| Error::new(ErrorKind::NoCipher, format!("inode {ino}: {why}")))?;
        let no_key = || {
            let name = match policy.key {
                KeyName::Descriptor(descriptor) => hex(&descriptor),
                KeyName::Identifier(identifier) => hex(&identifier),
            };
            Error::new(ErrorKind::NoKey, format!("inode {ino} is encrypted with key {name}"))
        };
        let master = self.keys.iter().find(|key| key.has_name(policy.key)).ok_or_else(no_key)?;
        Ok(if kind == FileKind::Regular {
            let mut key = Zeroizing::new([0; contents::KEY_SIZE]);
            let mode = policy.contents_mode;
            let tweak = master.file_key(context, mode, ino, &self.uuid, &mut *key);
            let (data, tweaks) = key.split_at(contents::KEY_SIZE / 2);
            if tweak.is_some() && data == tweaks {
                // As the kernel: such keys are weak.
                let why = format!("inode {ino}: a key whose halves are the same");
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            let unit = match policy.log2_data_unit {
                0 => self.block_size as usize,
                log2 => 1 << log2,
            };
            let cipher = ContentsCipher::new(&key, tweak.ok_or_else(no_key)?, unit);
            FileCipher::Contents(Box::new(cipher))
        } else {
            let mut key = Zeroizing::new([0; names::KEY_SIZE]);
            let mode = policy.names_mode;
            let tweak = master.file_key(context, mode, ino, &self.uuid, &mut *key);
            let is_hashed = self.folds && kind == FileKind::Directory;
            let hash_key = is_hashed.then(|| master.name_hash_key(context)).flatten();
            let tweak = tweak.ok_or_else(no_key)?;
            let cipher = NamesCipher::new(&key, tweak, policy.padding(), hash_key);
            FileCipher::Names(Box::new(cipher))
        })
    }
}

/// Checks that a policy is one that a directory of a file system can get.
pub(crate) fn check_new_policy(policy: &Policy, layout: &Layout) -> Result<(), String> {
    check_policy(policy, layout.block_size)?;
    let by_ino = policy.flags & (FLAG_IV_INO_LBLK_64 | FLAG_IV_INO_LBLK_32) != 0;
    if by_ino && !layout.features.compat.contains(Compat::STABLE_INODES) {
        return Err("keys by inode number need the feature stable_inodes".to_owned());
    }
    let is_block = [0, layout.block_size.trailing_zeros()].contains(&policy.log2_data_unit.into());
    if policy.flags & FLAG_IV_INO_LBLK_32 != 0 && !is_block {
        return Err("IV_INO_LBLK_32 has no data units but blocks".to_owned());
    }
    Ok(())
}

/// Checks that a policy is one that files can be read and written by.
fn check_policy(policy: &Policy, block_size: u32) -> Result<(), String> {
    let modes = (policy.contents_mode, policy.names_mode);
    if modes != (MODE_AES_256_XTS, MODE_AES_256_CTS) {
        return Err(match modes {
            (5, 6) => "AES-128-CBC encryption is not supported".to_owned(),
            (7, 8) => "SM4 encryption is not supported".to_owned(),
            (9, 9) => "Adiantum encryption is not supported".to_owned(),
            (MODE_AES_256_XTS, 10) => "AES-256-HCTR2 encryption of names is not supported".into(),
            (contents, names) => format!("encryption modes {contents} and {names} are unknown"),
        });
    }
    let of_keys = policy.flags & !FLAGS_PAD;
    let by_ino = [FLAG_IV_INO_LBLK_64, FLAG_IV_INO_LBLK_32];
    let is_v2 = matches!(policy.key, KeyName::Identifier(_));
    if of_keys != 0 && !(is_v2 && by_ino.contains(&of_keys)) {
        return Err(format!("encryption policy flags {:#x} are not supported", policy.flags));
    }
    let unit = policy.log2_data_unit;
    let log2_block = block_size.trailing_zeros();
    if unit != 0 && !(u32::from(LOG2_UNIT_MIN)..=log2_block).contains(&u32::from(unit)) {
        return Err(format!("encryption data units of 2^{unit} bytes are not supported"));
    }
    Ok(())
}
