//! UUID and hash seed of reproducible file systems.
//!
//! Both are random numbers by default. Under `SOURCE_DATE_EPOCH` they are computed from what makes
//! the file system what it is, so that two builds are the same and different file systems have
//! different UUIDs: of version 8 (RFC 9562), the first bytes of a SHA-256.

use crate::options::Options;
use sha2::{Digest, Sha256};

const UUID_DOMAIN: &[u8] = b"uext4 file system UUID";
const HASH_SEED_DOMAIN: &[u8] = b"uext4 directory hash seed";

/// What tells a file system from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Start of its directory hashes.
    pub hash_seed: [u8; 16],
}

impl Identity {
    /// The identity of a file system of this time and label, with this content: a digest of it, or
    /// any bytes that are the same for the same content.
    #[must_use]
    pub fn derived(epoch: u32, label: &str, content: &[u8]) -> Self {
        let of = |domain| uuid_of(domain, epoch, label.as_bytes(), content);
        Self { uuid: of(UUID_DOMAIN), hash_seed: of(HASH_SEED_DOMAIN) }
    }
}

impl Options {
    /// Leaves nothing to the host, the clock or chance: the time is `epoch`, and UUID and hash seed
    /// are those of [`Identity::derived`] unless they are given.
    pub fn make_reproducible(&mut self, epoch: u32, content: &[u8]) {
        let identity = Identity::derived(epoch, &self.label, content);
        self.time = Some(epoch);
        self.is_reproducible = true;
        self.uuid.get_or_insert(identity.uuid);
        self.hash_seed.get_or_insert(identity.hash_seed);
    }
}

/// A UUID of version 8. The parts are hashed as netstrings, so that none can pass for two.
fn uuid_of(domain: &[u8], epoch: u32, label: &[u8], content: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in [domain, epoch.to_string().as_bytes(), label, content] {
        hash.update(format!("{}:", part.len()));
        hash.update(part);
        hash.update(",");
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    *uuid::Builder::from_custom_bytes(bytes).as_uuid().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Fault model: an input that is left out, two inputs that run into each other, a change of the
    /// computation, after which old builds could not be repeated.
    #[test]
    fn every_input_counts_and_the_same_inputs_give_the_same() {
        let inputs: [(u32, &str, &[u8]); 6] = [
            (0, "", b""),
            (1, "", b""),
            (0, "a", b""),
            (0, "", b"a"),
            (0, "ab", b"c"),
            (0, "a", b"bc"),
        ];
        let mut seen = BTreeSet::new();
        for (epoch, label, content) in inputs {
            let identity = Identity::derived(epoch, label, content);
            assert_eq!(identity, Identity::derived(epoch, label, content));
            for bytes in [identity.uuid, identity.hash_seed] {
                let uuid = uuid::Uuid::from_bytes(bytes);
                assert_eq!(uuid.get_version_num(), 8);
                assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
                assert!(seen.insert(bytes), "{uuid} twice");
            }
        }
        let known = uuid::Uuid::from_bytes(Identity::derived(1, "root", b"tree").uuid);
        assert_eq!(known.to_string(), "d6d08797-1c29-87f5-85bc-d825e592812e");
    }

    #[test]
    fn what_is_given_stays() {
        let mut options = Options { uuid: Some([7; 16]), ..Options::default() };
        options.make_reproducible(5, b"");
        assert_eq!((options.uuid, options.time), (Some([7; 16]), Some(5)));
        assert_eq!(options.hash_seed, Some(Identity::derived(5, "", b"").hash_seed));
    }
}
