//! A source tree that is the same on every machine: names, sizes and contents follow from a seed.
//!
//! What: the shape is that of a large C project: 45,313 entries, 757,000,000 bytes, most files
//! between 2 and 30 KiB, a few of megabytes, directories up to seven deep. A scale below 1 takes a
//! proportional part of both.

use std::collections::BTreeSet;

/// Everything of the tree stands below this directory.
pub(crate) const TOP: &str = "tree";

const ENTRIES: u32 = 45_313;
const DIRECTORIES: u32 = 3_000;
const LINKS: u32 = 63;
const BYTES: u64 = 757_000_000;
const SEED: u64 = 0x7565_7874_3400_0001;
/// Modification times lie within a year after this moment (2024-01-01, in seconds since 1970).
const MTIME_FIRST: u64 = 1_704_067_200;
/// No entry is younger than this.
pub(crate) const EPOCH: u32 = 1_735_689_600;
/// Files of the tree that is one directory, and bytes of each.
const FLAT_FILES: u32 = 120_000;
const FLAT_FILE_BYTES: u64 = 1024;
/// Paths fit the name field of an archive header.
const PATH_MAX: usize = 99;

/// One entry of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Path from the root of the file system, without a slash at either end.
    pub(crate) path: String,
    /// Permission bits.
    pub(crate) mode: u16,
    /// Seconds since 1970.
    pub(crate) mtime: u64,
    pub(crate) body: Body,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Directory,
    File(Content),
    Link(String),
}

/// Bytes of a file: a function of `seed` and the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) seed: u64,
    pub(crate) len: u64,
}

impl Content {
    /// Fills `buf` with the bytes from `offset`, a multiple of 8, on.
    pub(crate) fn fill(&self, offset: u64, buf: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(8));
        for (word, chunk) in (offset / 8..).zip(buf.chunks_mut(8)) {
            let mut value = mix(self.seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            for byte in chunk {
                *byte = (value & 0xff) as u8;
                value >>= 8;
            }
        }
    }
}

/// The tree, depth first.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) entries: Vec<Entry>,
}

impl Tree {
    /// The tree at a scale of at most 1.
    pub(crate) fn new(scale: f64) -> Self {
        let part = |whole: u32, least: u32| scaled(whole, scale).max(least);
        let directories = part(DIRECTORIES, 4);
        let links = part(LINKS, 2);
        let files = part(ENTRIES, 24).saturating_sub(directories + links).max(8);
        let mut random = Random(SEED);
        let dirs = directory_paths(&mut random, directories);
        let mut taken: BTreeSet<String> = dirs.iter().cloned().collect();
        let mut entries: Vec<Entry> = dirs
            .iter()
            .map(|path| entry(&mut random, path.clone(), 0o755, Body::Directory))
            .collect();
        let weights: Vec<u64> = (0..files).map(|_| size_weight(&mut random)).collect();
        let bytes = scaled_bytes(scale);
        for (weight, seed) in share(&weights, bytes).into_iter().zip(1..) {
            let path = new_path(&mut random, &dirs, &mut taken, EXTENSIONS);
            let body = Body::File(Content { seed: mix(SEED ^ seed), len: weight });
            entries.push(entry(&mut random, path, 0o644, body));
        }
        for _ in 0..links {
            let path = new_path(&mut random, &dirs, &mut taken, &[".lnk"]);
            let target = format!("../include/{:x}.h", random.next());
            entries.push(entry(&mut random, path, 0o777, Body::Link(target)));
        }
        // Depth first, as archives of directories are: tar(1) sets the times of a directory when
        // it meets a member that is not below it.
        entries.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        Self { entries }
    }

    /// Another one: small files, all in one directory.
    pub(crate) fn flat(scale: f64) -> Self {
        let mut random = Random(SEED);
        let mut entries = vec![entry(&mut random, TOP.to_owned(), 0o755, Body::Directory)];
        for number in 0..scaled(FLAT_FILES, scale).max(8) {
            let seed = mix(SEED ^ u64::from(number));
            let body = Body::File(Content { seed, len: FLAT_FILE_BYTES });
            entries.push(entry(&mut random, format!("{TOP}/file-{number:06}"), 0o644, body));
        }
        Self { entries }
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        let len = |entry: &Entry| match entry.body {
            Body::File(content) => content.len,
            Body::Directory | Body::Link(_) => 0,
        };
        self.entries.iter().map(len).sum()
    }
}

/// A share of a count, rounded down.
pub(crate) fn scaled(whole: u32, scale: f64) -> u32 {
    // At most `whole`, for a scale of 0 to 1.
    (f64::from(whole) * scale.clamp(0.0, 1.0)) as u32
}

fn scaled_bytes(scale: f64) -> u64 {
    (BYTES as f64 * scale.clamp(0.0, 1.0)) as u64
}

const EXTENSIONS: &[&str] = &[".c", ".c", ".c", ".h", ".h", ".rst", ".yaml", ".S", "", ".dts"];

fn entry(random: &mut Random, path: String, mode: u16, body: Body) -> Entry {
    Entry { path, mode, mtime: MTIME_FIRST + random.below(31_536_000), body }
}

fn directory_paths(random: &mut Random, count: u32) -> Vec<String> {
    let mut paths = vec![TOP.to_owned()];
    let mut taken = BTreeSet::new();
    while paths.len() < count as usize {
        // Half of them near the top, half below those made lately: broad and deep parts.
        let parent = if random.below(2) == 0 {
            random.below((paths.len() as u64).min(64))
        } else {
            paths.len() as u64 - 1 - random.below((paths.len() as u64).min(200))
        };
        let parent = &paths[usize::try_from(parent).unwrap_or(0)];
        if parent.matches('/').count() >= 7 || parent.len() > PATH_MAX - 40 {
            continue;
        }
        let path = format!("{parent}/{}", word(random));
        if taken.insert(path.clone()) {
            paths.push(path);
        }
    }
    paths
}

fn new_path(
    random: &mut Random,
    dirs: &[String],
    taken: &mut BTreeSet<String>,
    extensions: &[&str],
) -> String {
    loop {
        // The square of an even spread: some directories hold many files, most hold few.
        let spread = (random.below(1 << 16) * random.below(1 << 16)) >> 16;
        let index = (spread * dirs.len() as u64) >> 16;
        let dir = &dirs[usize::try_from(index).unwrap_or(0)];
        let extension =
            extensions[usize::try_from(random.below(extensions.len() as u64)).unwrap_or(0)];
        let path = format!("{dir}/{}{extension}", word(random));
        if path.len() <= PATH_MAX && taken.insert(path.clone()) {
            return path;
        }
    }
}

fn word(random: &mut Random) -> String {
    let len = 3 + random.below(12);
    (0..len).map(|_| char::from(b'a' + u8::try_from(random.below(26)).unwrap_or(0))).collect()
}

/// How large a file is beside others.
fn size_weight(random: &mut Random) -> u64 {
    let (low, high) = match random.below(1000) {
        0..40 => (0, 400),
        40..280 => (400, 4_000),
        280..680 => (4_000, 14_000),
        680..940 => (14_000, 44_000),
        940..994 => (44_000, 200_000),
        994..999 => (200_000, 1_500_000),
        _ => (1_500_000, 4_000_000),
    };
    low + random.below(high - low)
}

/// Divides `total` in proportion to `weights`, exactly.
fn share(weights: &[u64], total: u64) -> Vec<u64> {
    let sum: u64 = weights.iter().sum::<u64>().max(1);
    let mut given = 0;
    let mut before = 0;
    weights
        .iter()
        .map(|weight| {
            before += weight;
            let end = u128::from(total) * u128::from(before) / u128::from(sum);
            let part = u64::try_from(end).unwrap_or(total) - given;
            given += part;
            part
        })
        .collect()
}

/// Numbers that follow from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_tree_has_the_size_it_says() {
        let tree = Tree::new(1.0);
        assert_eq!(tree.entries.len(), 45_313);
        assert_eq!(tree.bytes(), BYTES);
        let directories = tree.entries.iter().filter(|e| e.body == Body::Directory).count();
        assert_eq!(directories, DIRECTORIES as usize);
        assert!(tree.entries.iter().all(|entry| entry.path.len() <= PATH_MAX));
        assert_eq!(tree.entries[0].path, TOP);
        assert_eq!(tree.entries, Tree::new(1.0).entries);
        assert!(tree.entries.iter().all(|entry| entry.mtime <= u64::from(EPOCH)));
        let flat = Tree::flat(1.0);
        assert_eq!((flat.entries.len(), flat.bytes()), (120_001, 120_000 << 10));
    }

    #[test]
    fn every_parent_comes_first() {
        let mut seen = BTreeSet::from([""]);
        let tree = Tree::new(0.05);
        for entry in &tree.entries {
            let parent = entry.path.rsplit_once('/').map_or("", |(parent, _)| parent);
            assert!(seen.contains(parent), "{}", entry.path);
            if entry.body == Body::Directory {
                seen.insert(&entry.path);
            }
        }
    }

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let content = Content { seed: 5, len: 100 };
        let (mut whole, mut parts) = ([0; 100], [0; 100]);
        content.fill(0, &mut whole);
        content.fill(0, &mut parts[..64]);
        content.fill(64, &mut parts[64..]);
        assert_eq!(whole, parts);
    }
}
