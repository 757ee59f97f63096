//! Forms of the file system that loads run on: what `mkfs -O` and its other words decide.
//!
//! # What
//! A [`Format`] is a row of [`FORMATS`]. A form with a feature of its own gets a row, so that
//! every category of the crash test, and every rig that takes a [`Shape`](crate::run::Shape),
//! runs on it (`cargo xtask crash --format NAME`).

use crate::run::NEWER_FEATURES;
use std::fmt;
use std::str::FromStr;

/// A form of the file system.
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// Its word on the command line.
    pub name: &'static str,
    /// Features that edit the default set (`mkfs -O`).
    pub features: &'static str,
    /// Bytes per cluster (`mkfs -C`) with bigalloc; `None`: mkfs decides.
    pub cluster_size: Option<u32>,
    /// Bytes per inode (`mkfs -I`); `None`: mkfs decides.
    pub inode_size: Option<u32>,
    /// Whether the journal is on a device of its own ([`crate::external`]).
    pub has_journal_device: bool,
    /// Whether what is written goes to an overlay, whose store is what the power fails on.
    pub has_overlay: bool,
}

/// What mkfs makes when nothing is asked of it.
pub static ORDINARY: Format = Format {
    name: "ext4",
    features: "",
    cluster_size: None,
    inode_size: None,
    has_journal_device: false,
    has_overlay: false,
};

/// All forms, in the order of the tables.
pub static FORMATS: &[&Format] = &[
    &ORDINARY,
    // What `mke2fs -t ext3` makes.
    &Format {
        name: "ext3",
        features: "^extent,^huge_file,^flex_bg,^metadata_csum,^64bit,^dir_nlink,^extra_isize",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    &Format {
        name: "meta_bg",
        features: "meta_bg,^resize_inode",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // Clusters of 16 blocks of 1 KiB, or of 4 blocks of 4 KiB.
    &Format {
        name: "bigalloc",
        features: "bigalloc",
        cluster_size: Some(16384),
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    &Format {
        name: "bigalloc-8k",
        features: "bigalloc,^resize_inode,quota",
        cluster_size: Some(8192),
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // What a mke2fs of the nineties made, but for the journal and inodes that have room for
    // nanoseconds, by which the model tells times apart.
    &Format {
        name: "old",
        features: "^extent,^huge_file,^flex_bg,^metadata_csum,^64bit,^dir_nlink,^extra_isize,\
                   ^sparse_super,^resize_inode,^filetype,^dir_index,^large_file",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    &Format {
        name: "nojournal",
        features: "^has_journal",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    &Format {
        name: "quota",
        features: "quota,project",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // A journal on a device of its own, whose write cache is another.
    &Format {
        name: "external",
        features: "",
        cluster_size: None,
        inode_size: None,
        has_journal_device: true,
        has_overlay: false,
    },
    // What is written goes to an overlay: the power fails on its store.
    &Format {
        name: "overlay",
        features: "",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: true,
    },
    // The directories of the load have a policy.
    &Format {
        name: "encrypt",
        features: "encrypt,stable_inodes",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // The directories of the load fold case.
    &Format {
        name: "casefold",
        features: "casefold",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // They do both, so that records have hashes.
    &Format {
        name: "encrypt_casefold",
        features: "encrypt,stable_inodes,casefold",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    &Format {
        name: "inline_data",
        features: "inline_data",
        cluster_size: None,
        inode_size: Some(256),
        has_journal_device: false,
        has_overlay: false,
    },
    // The attributes of the load have values of up to 64 KiB.
    &Format {
        name: "ea_inode",
        features: "ea_inode",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // Each of those values counts for the owners of the files that refer to it.
    &Format {
        name: "ea_inode_quota",
        features: "ea_inode,quota,project",
        cluster_size: None,
        inode_size: None,
        has_journal_device: false,
        has_overlay: false,
    },
    // Data of up to 896 bytes in an inode.
    &Format {
        name: "inline_data_1k",
        features: "inline_data",
        cluster_size: None,
        inode_size: Some(1024),
        has_journal_device: false,
        has_overlay: false,
    },
];

impl Format {
    fn lacks(&self, feature: &str) -> bool {
        self.features.split(',').any(|word| word.strip_prefix('^') == Some(feature))
    }

    /// Whether files have block maps.
    #[must_use]
    pub fn has_block_maps(&self) -> bool {
        self.lacks("extent")
    }

    /// Whether there is a journal. Without one the crash test has rules of its own
    /// ([`crate::crash::unjournaled`]).
    #[must_use]
    pub fn has_journal(&self) -> bool {
        !self.lacks("has_journal")
    }

    fn has(&self, feature: &str) -> bool {
        self.features.split(',').any(|word| word == feature)
    }

    /// Whether the directories of the load are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.has("encrypt")
    }

    /// Whether values of attributes may be in inodes of their own.
    #[must_use]
    pub fn has_value_inodes(&self) -> bool {
        self.has("ea_inode")
    }

    /// Whether the directories of the load fold case.
    #[must_use]
    pub fn folds(&self) -> bool {
        self.features.split(',').any(|word| word == "casefold")
    }

    /// The features of newer e2fsprogs that go with the form.
    #[must_use]
    pub fn newer_features(&self) -> &'static str {
        if self.lacks("metadata_csum") { "orphan_file" } else { NEWER_FEATURES }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// A form by its name, for command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatName(pub &'static Format);

impl FromStr for FormatName {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        FORMATS.iter().find(|format| format.name == word).map(|format| Self(format)).ok_or_else(
            || {
                let names: Vec<_> = FORMATS.iter().map(|format| format.name).collect();
                format!("one of {}", names.join(", "))
            },
        )
    }
}
