//! The images: one for each feature and for pairs of note, and seeded combinations.

use serde_json::{Value, json};

/// An image and what is done with it.
pub(super) struct Case {
    /// At most 20 bytes: a disk's serial number.
    pub(super) name: String,
    /// As mke2fs has them, and what the trees use.
    pub(super) features: Vec<&'static str>,
    block_size: u32,
    /// Further words for mke2fs.
    words: Vec<&'static str>,
    seed: u64,
    /// A name for every code point that a fold changes.
    letters: bool,
    /// The guest goes off without an unmount, and leaves fast commits. Their replay keeps names and
    /// contents; times, and the links of directories, it may not.
    pub(super) rough: bool,
    /// A copy of this case's image after the first guest, which the kernel replays.
    pub(super) copy_of: Option<String>,
}

/// Features that combinations draw from, each with its odds in percent.
const DRAWN: &[(&str, u64)] = &[
    ("casefold", 60),
    ("quota", 50),
    ("project", 40),
    ("verity", 40),
    ("encrypt", 50),
    ("inline_data", 40),
    ("ea_inode", 40),
    ("bigalloc", 30),
    ("fast_commit", 30),
    ("metadata_csum_seed", 30),
    ("orphan_file", 30),
    ("^metadata_csum", 20),
    ("large_dir", 20),
];

impl Case {
    fn new(name: &str, features: &[&'static str]) -> Self {
        let words = if features.contains(&"bigalloc") { vec!["-C", "16384"] } else { Vec::new() };
        let features = features.to_vec();
        Self {
            name: name.to_owned(),
            features,
            block_size: 4096,
            words,
            seed: 1,
            letters: false,
            rough: false,
            copy_of: None,
        }
    }

    /// The combination of a seed.
    fn mix(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        let mut features: Vec<&str> = DRAWN
            .iter()
            .filter(|(_, percent)| draw(100) < *percent)
            .map(|(name, _)| *name)
            .collect();
        if features.contains(&"^metadata_csum") {
            features.retain(|name| *name != "metadata_csum_seed");
        }
        let mut case = Self::new(&format!("mix-{seed}"), &features);
        case.seed = seed;
        // The kernel of 6.1 seals files where blocks are as large as its pages.
        if !features.contains(&"verity") && !features.contains(&"bigalloc") && draw(2) == 0 {
            case.block_size = 1024;
        }
        case
    }

    pub(super) fn has(&self, feature: &str) -> bool {
        self.features.contains(&feature)
    }

    pub(super) fn bytes(&self) -> u64 {
        96 << 20
    }

    /// mke2fs's words before the image.
    pub(super) fn mke2fs(&self) -> Vec<String> {
        let size = self.block_size.to_string();
        let fixed = ["-q", "-F", "-t", "ext4", "-b", &size, "-I", "256", "-N", "12000"];
        let mut words: Vec<String> = fixed.map(str::to_owned).into();
        words.extend(["-O".to_owned(), self.features.join(",")]);
        words.extend(self.words.iter().map(|word| (*word).to_owned()));
        words
    }

    /// The case for the programs in Python.
    pub(super) fn plan(&self) -> Value {
        json!({
            "name": self.name, "features": self.features, "seed": self.seed,
            "letters": self.letters, "rough": self.rough, "copy": self.copy_of.is_some(),
        })
    }
}

/// All cases, `mixes` of them combinations from a seed on.
pub(super) fn all(mixes: u64, seed: u64) -> Vec<Case> {
    let strict = vec!["-E", "encoding=utf8,encoding_flags=strict"];
    let mut cases = vec![
        Case { letters: true, ..Case::new("casefold", &["casefold"]) },
        Case { block_size: 1024, ..Case::new("casefold-1k", &["casefold"]) },
        Case { words: strict, ..Case::new("casefold-strict", &["casefold"]) },
        Case::new("quota", &["quota", "project"]),
        Case::new("verity", &["verity"]),
        Case::new("project", &["project"]),
        Case::new("inline-casefold", &["inline_data", "casefold"]),
        Case::new("bigalloc-quota", &["bigalloc", "quota"]),
        Case::new("ea_inode-casefold", &["ea_inode", "casefold"]),
        Case::new("ea_inode-quota", &["ea_inode", "quota"]),
        Case::new("encrypt", &["encrypt"]),
        Case::new("encrypt-casefold", &["encrypt", "casefold"]),
    ];
    for (name, other) in
        [("fast", None), ("fast-casefold", Some("casefold")), ("fast-inline", Some("inline_data"))]
    {
        let features: Vec<&str> = ["fast_commit"].into_iter().chain(other).collect();
        let rough = |name: &str| Case { rough: true, ..Case::new(name, &features) };
        cases.push(rough(name));
        let copy = format!("{name}-copy");
        cases.push(Case { copy_of: Some(name.to_owned()), ..rough(&copy) });
    }
    cases.extend((seed..seed + mixes).map(Case::mix));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_serial_numbers_and_features_go_together() {
        for case in all(1000, 1) {
            assert!(case.name.len() <= 20, "{}", case.name);
            assert!(!case.has("verity") || case.block_size == 4096, "{}", case.name);
        }
    }
}
