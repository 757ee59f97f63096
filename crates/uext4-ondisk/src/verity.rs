//! Files with a Merkle tree (fs-verity): the descriptor, the shape of the tree, and its hashes.
//!
//! On disk: the tree begins at the first multiple of 64 KiB behind the end of the file, its root
//! level first. Behind it, at the start of a block, stands the descriptor; the last four bytes of
//! the last block have its length (Documentation/filesystems/fsverity.rst and
//! Documentation/filesystems/ext4/verity.rst).
//!
//! Invariants: a [`Tree`] has blocks of 1 KiB to 64 KiB and at most 8 levels, and lies below 2^63.

use crate::num::idx;
use sha2::{Digest, Sha256, Sha512};
use zerocopy::little_endian::{U32, U64};

/// Where the tree begins is a multiple of this, in bytes.
pub const TREE_ALIGNMENT: u64 = 65536;
/// Most bytes of a descriptor with its signature.
pub const DESCRIPTOR_MAX: u32 = 16384;
/// Most levels, as in the kernel.
const LEVELS_MAX: usize = 8;

raw_struct! {
    /// `struct fsverity_descriptor`.
    pub struct RawVerityDescriptor [256] {
        version: u8,
        hash_algorithm: u8,
        log_blocksize: u8,
        salt_size: u8,
        sig_size: U32,
        data_size: U64,
        root_hash: [u8; 64],
        salt: [u8; 32],
        reserved: [u8; 144],
    }
}

/// The length of a descriptor as the last bytes of the file's blocks have it.
#[must_use]
pub fn descriptor_tail(len: usize) -> [u8; 4] {
    U32::new(crate::num::len32(len)).to_bytes()
}

/// The length of a descriptor from the last bytes of the file's blocks.
#[must_use]
pub fn descriptor_len(tail: [u8; 4]) -> u32 {
    U32::from_bytes(tail).get()
}

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256: 32 bytes.
    Sha256,
    /// SHA-512: 64 bytes.
    Sha512,
}

impl Algorithm {
    /// By its number in the descriptor.
    #[must_use]
    pub const fn from_raw(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// Its name, as fsverity(1) says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Bytes of a hash.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// The hash of `bytes`, of which the first part is the salt, filled up with zeroes to the input
    /// size of the function.
    #[must_use]
    pub fn hash(self, salt: &[u8], bytes: &[u8]) -> Vec<u8> {
        let input = self.size().saturating_mul(2);
        let mut padded = [0; 128];
        let has_salt = !salt.is_empty();
        if let Some(head) = padded.get_mut(..salt.len()) {
            head.copy_from_slice(salt);
        }
        let padded = if has_salt { padded.get(..input).unwrap_or_default() } else { &[] };
        match self {
            Self::Sha256 => {
                Sha256::new().chain_update(padded).chain_update(bytes).finalize().to_vec()
            }
            Self::Sha512 => {
                Sha512::new().chain_update(padded).chain_update(bytes).finalize().to_vec()
            }
        }
    }
}

/// What a tree is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The hash function.
    pub algorithm: Algorithm,
    /// Bytes per block of the data and of the tree, a power of two.
    pub block_size: u32,
    /// At most 32 bytes.
    pub salt: Vec<u8>,
}

impl Parameters {
    /// Whether there is a tree with them.
    #[must_use]
    pub fn are_sound(&self) -> bool {
        self.block_size.is_power_of_two()
            && (1024..=65536).contains(&self.block_size)
            && self.salt.len() <= 32
    }
}

/// The shape of a file's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// What it is made with.
    pub parameters: Parameters,
    /// Bytes of the file.
    pub data_size: u64,
    /// By level, the leaves first: its first byte in the file, and its blocks.
    pub levels: Vec<(u64, u64)>,
    /// The byte behind the tree.
    pub end: u64,
}

impl Tree {
    /// The tree of a file of `data_size` bytes. `None`: the parameters are not sound, or the file
    /// is too large for them.
    #[must_use]
    pub fn new(parameters: Parameters, data_size: u64) -> Option<Self> {
        let block_size = u64::from(parameters.block_size);
        if !parameters.are_sound() || data_size > 1 << 62 {
            return None;
        }
        let per_block = hashes_per_block(&parameters);
        let mut counts = Vec::new();
        let mut blocks = data_size.div_ceil(block_size);
        while blocks > 1 {
            blocks = blocks.div_ceil(per_block);
            counts.push(blocks);
            if counts.len() > LEVELS_MAX {
                return None;
            }
        }
        let mut at = data_size.checked_next_multiple_of(TREE_ALIGNMENT)?;
        let mut levels = Vec::with_capacity(counts.len());
        for &count in counts.iter().rev() {
            levels.push((at, count));
            at = at.checked_add(count.checked_mul(block_size)?)?;
        }
        levels.reverse();
        Some(Self { parameters, data_size, levels, end: at })
    }

    /// Hashes in a block of the tree.
    #[must_use]
    pub fn per_block(&self) -> u64 {
        hashes_per_block(&self.parameters)
    }

    /// Where the hash of block `number` of the level below stands: the byte of its block in the
    /// file, the number of that block in its level, and the byte in it. `None`: the level is the
    /// root's hash.
    #[must_use]
    pub fn place_of_hash(&self, level: usize, number: u64) -> Option<(u64, u64, usize)> {
        let &(start, blocks) = self.levels.get(level)?;
        let per_block = self.per_block();
        let block = number.checked_div(per_block)?;
        let within = number.checked_rem(per_block)?;
        if block >= blocks {
            return None;
        }
        let at = block.checked_mul(self.parameters.block_size.into())?.checked_add(start)?;
        let size = self.parameters.algorithm.size();
        Some((at, block, usize::try_from(within).ok()?.checked_mul(size)?))
    }

    /// The hash of a block.
    #[must_use]
    pub fn hash(&self, block: &[u8]) -> Vec<u8> {
        self.parameters.algorithm.hash(&self.parameters.salt, block)
    }
}

fn hashes_per_block(parameters: &Parameters) -> u64 {
    let per_block = idx(parameters.block_size).checked_div(parameters.algorithm.size());
    u64::try_from(per_block.unwrap_or(1)).unwrap_or(1)
}

impl RawVerityDescriptor {
    /// The descriptor of a tree whose root has this hash; of an empty file, no hash.
    #[must_use]
    pub fn of(tree: &Tree, root_hash: &[u8]) -> Self {
        let Parameters { algorithm, block_size, salt } = &tree.parameters;
        let mut raw = Self::zeroed();
        raw.version = 1;
        raw.hash_algorithm = algorithm.raw();
        raw.log_blocksize = u8::try_from(block_size.trailing_zeros()).unwrap_or(0);
        raw.salt_size = u8::try_from(salt.len()).unwrap_or(0);
        raw.data_size = tree.data_size.into();
        for (to, from) in raw.root_hash.iter_mut().zip(root_hash) {
            *to = *from;
        }
        for (to, from) in raw.salt.iter_mut().zip(salt) {
            *to = *from;
        }
        raw
    }

    /// The tree that it describes, if it is that of a file of `data_size` bytes. `None`: it is
    /// damaged, or of a kind that is not known.
    #[must_use]
    pub fn tree(&self, data_size: u64) -> Option<Tree> {
        let salt_size = usize::from(self.salt_size);
        let is_sound = self.version == 1
            && self.data_size.get() == data_size
            && self.reserved.iter().all(|&byte| byte == 0)
            && salt_size <= self.salt.len();
        let algorithm = Algorithm::from_raw(self.hash_algorithm).filter(|_| is_sound)?;
        let block_size = 1_u32.checked_shl(self.log_blocksize.into())?;
        let salt = self.salt.get(..salt_size)?.to_vec();
        Tree::new(Parameters { algorithm, block_size, salt }, data_size)
    }

    /// The digest of the file: the hash of the descriptor without its signature.
    #[must_use]
    pub fn digest(&self) -> Option<Vec<u8>> {
        let mut copy = *self;
        copy.sig_size = U32::ZERO;
        Some(Algorithm::from_raw(self.hash_algorithm)?.hash(&[], copy.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(block_size: u32, data_size: u64) -> Option<Tree> {
        let parameters = Parameters { algorithm: Algorithm::Sha256, block_size, salt: Vec::new() };
        Tree::new(parameters, data_size)
    }

    #[test]
    fn levels_stand_root_first() {
        assert!(tree(4096, 0).unwrap().levels.is_empty());
        assert!(tree(4096, 4096).unwrap().levels.is_empty());
        assert_eq!(tree(4096, 4097).unwrap().levels, [(65536, 1)]);
        // 129 blocks: two leaves below one root, which comes first.
        let two = tree(4096, 129 * 4096).unwrap();
        let start = (129_u64 * 4096).next_multiple_of(65536);
        assert_eq!(two.levels, [(start + 4096, 2), (start, 1)]);
        assert_eq!(two.end, start + 3 * 4096);
        assert_eq!(two.place_of_hash(0, 128), Some((start + 8192, 1, 0)));
        assert_eq!(two.place_of_hash(0, 256), None);
        assert_eq!(two.place_of_hash(2, 0), None);
        for wrong in [512, 3000, 131_072] {
            assert!(tree(wrong, 1).is_none());
        }
        assert!(tree(1024, u64::MAX).is_none());
        let small = Parameters { algorithm: Algorithm::Sha512, block_size: 1024, salt: Vec::new() };
        assert_eq!(Tree::new(small.clone(), 1 << 42).unwrap().levels.len(), 8);
        assert_eq!(Tree::new(small, (1 << 42) + 1), None, "nine levels");
    }

    #[test]
    fn the_digest_is_that_of_fsverity() {
        // `fsverity digest` of an empty file.
        let empty = RawVerityDescriptor::of(&tree(4096, 0).unwrap(), &[]);
        let digest: String =
            empty.digest().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95");
        assert_eq!(empty.tree(0), tree(4096, 0));
        assert_eq!(empty.tree(1), None);
    }
}
