//! Hashes of names that order a hashed directory.
//!
//! On disk: `hash_version` of the directory's root says which; the superblock's `s_flags` says
//! whether bytes count as signed, and `s_hash_seed` where to start (directory.rst, hash tree).
//! Vectors of the tests come from `debugfs dx_hash`.

use crate::casefold;
use crate::dir_entry::StoredName;
use crate::num::{hi32, lo32};
use std::ops::RangeInclusive;

/// Hash function of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The first one.
    Legacy,
    /// Half of MD4; the default.
    HalfMd4,
    /// TEA.
    Tea,
    /// `SipHash` with a key, of directories that are encrypted and fold case: names have their
    /// hashes behind them.
    SipHash,
}

impl HashVersion {
    /// From `hash_version` of a directory or `s_def_hash_version`: the unsigned forms (3 to 5),
    /// which only memory should know, are taken as their signed ones.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 | 3 => Some(Self::Legacy),
            1 | 4 => Some(Self::HalfMd4),
            2 | 5 => Some(Self::Tea),
            6 => Some(Self::SipHash),
            _ => None,
        }
    }

    /// The number on disk.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::SipHash => 6,
        }
    }
}

/// The superblock's settings of name hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameHash {
    /// `s_hash_seed`; all zero means the built-in seed.
    pub seed: [u32; 4],
    /// `s_def_hash_version`: the function of new hash trees, not checked.
    pub default_version: u8,
    /// Whether bytes count as unsigned.
    pub unsigned: bool,
}

/// How to hash the names of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirHasher {
    /// Function.
    pub version: HashVersion,
    /// Whether bytes count as unsigned.
    pub unsigned: bool,
    /// `s_hash_seed`; all zero means the built-in seed.
    pub seed: [u32; 4],
    /// Whether the directory folds case.
    pub folds: bool,
}

/// Greatest hash there is; the one above it means "end of directory" to readers.
const LAST_HASH: u32 = 0xffff_fffc;
const EOF_HASH: u32 = 0xffff_fffe;
/// Start of MD4.
const MD4_START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Hash and minor hash in the `SipHash` of a folded name.
#[must_use]
pub fn sip_hashes(of_name: u64) -> (u32, u32) {
    (clip(hi32(of_name)), lo32(of_name))
}

/// A hash as it orders a directory.
const fn clip(hash: u32) -> u32 {
    match hash & !1 {
        EOF_HASH => LAST_HASH,
        hash => hash,
    }
}

impl DirHasher {
    /// Hash and minor hash of a name as it is stored.
    #[must_use]
    pub fn hash_of(&self, name: StoredName<'_>) -> (u32, u32) {
        match (self.version, name.hashes) {
            (HashVersion::SipHash, hashes) => {
                let (hash, minor) = hashes.unwrap_or_default();
                (clip(hash), minor)
            }
            _ => self.hash(name.bytes),
        }
    }

    /// Hash and minor hash of a name, with another function than `SipHash`. The hash is even: its
    /// lowest bit marks, in an index entry, that names with this hash continue from the block
    /// before.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> (u32, u32) {
        match self.folds {
            true => self.hash_bytes(&casefold::fold(name)),
            false => self.hash_bytes(name),
        }
    }

    /// The hash and minor hash by which a name is in a leaf for these hashes. A kernel that kept
    /// ignored code points has put a name with such ones where it belongs by the whole of it. If
    /// it has also split the leaf by that, the name may belong nowhere near; it then counts as
    /// one at the near end of the leaf. Later splits do not change what it counts as. `None`: it
    /// is in the wrong leaf.
    #[must_use]
    pub fn hash_within(
        &self,
        name: StoredName<'_>,
        range: &RangeInclusive<u32>,
    ) -> Option<(u32, u32)> {
        let (hash, minor) = self.hash_of(name);
        if range.contains(&hash) {
            return Some((hash, minor));
        }
        let may_stray = self.folds && self.version != HashVersion::SipHash;
        if !may_stray || !casefold::has_ignored(name.bytes) {
            return None;
        }
        let whole = self.hash_bytes(&casefold::fold_whole(name.bytes));
        if range.contains(&whole.0) {
            return Some(whole);
        }
        Some((Self::near_end(hash, range), minor))
    }

    /// The hash at the end of a leaf's hashes that is nearer to one outside them.
    #[must_use]
    pub fn near_end(hash: u32, range: &RangeInclusive<u32>) -> u32 {
        let (low, high) = (*range.start(), *range.end());
        // Not the upper end itself, which is looked for in the next leaf.
        let near = if hash < low { low } else { high.saturating_sub(2).max(low) };
        near & !1
    }

    fn hash_bytes(&self, name: &[u8]) -> (u32, u32) {
        let start = if self.seed == [0; 4] { MD4_START } else { self.seed };
        let (hash, minor) = match self.version {
            HashVersion::Legacy => (self.legacy(name), 0),
            HashVersion::HalfMd4 => {
                let [_, hash, minor, _] = self.chunks::<8>(name, start, half_md4);
                (hash, minor)
            }
            HashVersion::Tea => {
                let [hash, minor, ..] = self.chunks::<4>(name, start, tea);
                (hash, minor)
            }
            // It is stored with the name.
            HashVersion::SipHash => (0, 0),
        };
        (clip(hash), minor)
    }

    /// A byte of a name as the 32-bit number that arithmetic sees.
    fn widen(&self, byte: u8) -> u32 {
        if self.unsigned {
            u32::from(byte)
        } else {
            lo32(i64::from(byte.cast_signed()).cast_unsigned())
        }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut before, mut last) = (0x37ab_e8f9_u32, 0x12a3_fe2d_u32);
        for &byte in name {
            let mixed = before.wrapping_add(last ^ self.widen(byte).wrapping_mul(7_152_373));
            // Arithmetic modulo 2^31 - 1, nearly.
            let reduced = if mixed >> 31 == 1 { mixed.wrapping_sub(0x7fff_ffff) } else { mixed };
            (before, last) = (last, reduced);
        }
        last << 1
    }

    /// Runs `mix` over the name in pieces of `N` words; an empty name leaves the start as it is.
    fn chunks<const N: usize>(
        &self,
        name: &[u8],
        start: [u32; 4],
        mix: impl Fn([u32; 4], &[u32; N]) -> [u32; 4],
    ) -> [u32; 4] {
        let mut state = start;
        let mut rest = name;
        while !rest.is_empty() {
            state = mix(state, &self.words::<N>(rest));
            rest = rest.get(N.saturating_mul(4)..).unwrap_or_default();
        }
        state
    }

    /// The first `4 N` bytes as big-endian words; missing bytes are the length of all that is
    /// left (at most 255), repeated.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let [length, ..] = crate::num::len32(rest.len()).to_le_bytes();
        let pad = u32::from_ne_bytes([length; 4]);
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word =
                bytes.iter().fold(pad, |value, &byte| (value << 8).wrapping_add(self.widen(byte)));
        }
        words
    }
}

fn half_md4(state: [u32; 4], words: &[u32; 8]) -> [u32; 4] {
    const ROUND2: u32 = 0x5a82_7999;
    const ROUND3: u32 = 0x6ed9_eba1;
    let select = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let [w0, w1, w2, w3, w4, w5, w6, w7] = *words;
    let mut s = state;
    s = round(s, select, 0, [w0, w1, w2, w3, w4, w5, w6, w7], [3, 7, 11, 19]);
    s = round(s, majority, ROUND2, [w1, w3, w5, w7, w0, w2, w4, w6], [3, 5, 9, 13]);
    s = round(s, parity, ROUND3, [w3, w7, w2, w6, w1, w5, w0, w4], [3, 9, 11, 15]);
    let [a, b, c, d] = state;
    let [p, q, r, t] = s;
    [a.wrapping_add(p), b.wrapping_add(q), c.wrapping_add(r), d.wrapping_add(t)]
}

/// One round of eight steps: each step changes one word of the state, which then moves on.
fn round(
    state: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
    constant: u32,
    words: [u32; 8],
    turns: [u32; 4],
) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = state;
    for (word, turn) in words.iter().zip(turns.iter().cycle()) {
        let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(*word).wrapping_add(constant);
        (a, b, c, d) = (d, sum.rotate_left(*turn), b, c);
    }
    [a, b, c, d]
}

fn tea(state: [u32; 4], words: &[u32; 4]) -> [u32; 4] {
    const DELTA: u32 = 0x9e37_79b9;
    let [k0, k1, k2, k3] = *words;
    let [start0, start1, c, d] = state;
    let (mut x, mut y, mut sum) = (start0, start1, 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        let mix = |v: u32, a: u32, b: u32| {
            (v << 4).wrapping_add(a) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(b)
        };
        x = x.wrapping_add(mix(y, k0, k1));
        y = y.wrapping_add(mix(x, k2, k3));
    }
    [start0.wrapping_add(x), start1.wrapping_add(y), c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&[u8]; 5] = [
        b"a",
        b"hello",
        b"a name of exactly thirty-two byte",
        b"another rather long file name, longer than a chunk of both functions.txt",
        b"caf\xc3\xa9-\xff",
    ];
    /// deadbeef-0001-0203-0405-060708090a0b as four little-endian words.
    const SEED: [u32; 4] = [0xefbe_adde, 0x0302_0100, 0x0706_0504, 0x0b0a_0908];

    /// Checks every name against the output of `debugfs -R "dx_hash -h ALG [-s SEED] NAME"`.
    fn check(version: HashVersion, seed: [u32; 4], want: [(u32, u32); 5]) {
        let hasher = DirHasher { version, unsigned: false, seed, folds: false };
        assert_eq!(NAMES.map(|name| hasher.hash(name)), want);
    }

    #[test]
    fn vectors_of_debugfs() {
        let legacy = [
            (0xe74b_53e2, 0),
            (0x3225_2546, 0),
            (0xf149_bb8a, 0),
            (0x3ac1_cf34, 0),
            (0x65a7_ebe0, 0),
        ];
        check(HashVersion::Legacy, [0; 4], legacy);
        check(HashVersion::Legacy, SEED, legacy);
        let half_md4 = [
            (0xd5fa_7d7a, 0xacb4_8187),
            (0x1746_da32, 0x4200_13b5),
            (0x69a9_b296, 0x4528_517d),
            (0xb723_68bc, 0xeb9f_0c2b),
            (0x3835_8b86, 0x2a63_1d02),
        ];
        check(HashVersion::HalfMd4, [0; 4], half_md4);
        let half_md4_seeded = [
            (0x004c_7d98, 0x93b9_e5ca),
            (0xf682_dabc, 0x5516_f99f),
            (0x3252_1bce, 0x35dc_9279),
            (0x07e4_ca98, 0x8023_411b),
            (0x5deb_0078, 0x521e_3036),
        ];
        check(HashVersion::HalfMd4, SEED, half_md4_seeded);
        let tea = [
            (0x6d0e_a4c0, 0xc189_22df),
            (0x6f5b_b1a8, 0x2319_17c2),
            (0x57e6_35a6, 0xe932_4dbd),
            (0x0c73_3fa4, 0x506c_7b96),
            (0x2ca5_61bc, 0x0dde_ab7e),
        ];
        check(HashVersion::Tea, [0; 4], tea);
        let tea_seeded = [
            (0x81c0_ebb8, 0x83dc_dc26),
            (0xaff5_7746, 0xea70_8830),
            (0xaa22_f47a, 0x7652_6b2b),
            (0xbf31_e932, 0xb4df_3c00),
            (0x5fdc_dbf2, 0xe019_86d1),
        ];
        check(HashVersion::Tea, SEED, tea_seeded);
    }

    #[test]
    fn names_with_ignored_code_points_count_where_they_are() {
        let hasher =
            DirHasher { version: HashVersion::HalfMd4, unsigned: true, seed: SEED, folds: true };
        let name = "\u{2764}\u{fe0f}".as_bytes();
        let (hash, whole) = (hasher.hash(name), hasher.hash_bytes(name));
        assert_eq!(hash, hasher.hash("\u{2764}".as_bytes()));
        assert_ne!(hash.0, whole.0);
        let within =
            |low, high| hasher.hash_within(name.into(), &(low..=high)).map(|found| found.0);
        assert_eq!(within(0, u32::MAX), Some(hash.0));
        assert_eq!(within(whole.0, whole.0 + 2), Some(whole.0));
        let (low, high) = (hash.0.min(whole.0), hash.0.max(whole.0));
        assert_eq!(within(0, low - 2), Some(low - 4));
        assert_eq!(within(high + 2, u32::MAX), Some(high + 2));
        assert_eq!(within(high + 2, high + 2), Some(high + 2));
        let ascii = hasher.hash(b"a").0;
        assert_eq!(hasher.hash_within(b"a".into(), &(ascii + 2..=u32::MAX)), None);
        let unfolded = DirHasher { folds: false, ..hasher };
        assert_eq!(unfolded.hash_within(name.into(), &(0..=whole.0 - 2)), None);
    }

    #[test]
    fn signedness_matters_for_high_bytes_only() {
        for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
            let signed = DirHasher { version, unsigned: false, seed: SEED, folds: false };
            let unsigned = DirHasher { unsigned: true, ..signed };
            for name in &NAMES[..4] {
                assert_eq!(signed.hash(name), unsigned.hash(name));
            }
            assert_ne!(signed.hash(NAMES[4]), unsigned.hash(NAMES[4]));
        }
    }
}
