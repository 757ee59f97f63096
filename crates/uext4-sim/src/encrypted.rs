//! The key and the policy of loads on encrypted directories.
//!
//! Every volume is opened with the key. Where nothing is encrypted it has no effect.

use uext4::{Error, InodeRef, MasterKey, MountOptions, Volume};
use uext4_ondisk::Incompat;
use uext4_ondisk::encryption::{KeyName, MODE_AES_256_CTS, MODE_AES_256_XTS, Policy};

/// The bytes of the key.
const KEY: [u8; 64] = [0x5e; 64];

fn key() -> MasterKey {
    MasterKey::new(&KEY, None).expect("64 bytes")
}

/// Options with the key.
#[must_use]
pub fn with_key(options: MountOptions) -> MountOptions {
    MountOptions { keys: vec![key()], ..options }
}

/// Encrypts an empty directory, where the file system has the feature.
///
/// # Errors
/// Those of the volume.
pub fn encrypt(volume: &Volume, dir: &InodeRef) -> Result<(), Error> {
    if !volume.layout().features.incompat.contains(Incompat::ENCRYPT) {
        return Ok(());
    }
    let key = KeyName::Identifier(key().identifier());
    let (contents_mode, names_mode) = (MODE_AES_256_XTS, MODE_AES_256_CTS);
    let policy = Policy { key, contents_mode, names_mode, flags: 3, log2_data_unit: 0 };
    volume.set_encryption_policy(dir, &policy)
}
