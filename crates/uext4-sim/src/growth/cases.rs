//! File systems, and the sizes that they grow to.
//!
//! Groups are small, so that a small image has many of them.

use uext4_mkfs::{Length, Options};

/// A growth.
#[derive(Debug)]
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    block_size: u32,
    /// Features that edit the default set.
    features: &'static str,
    /// Blocks of a group; 0: the most.
    group_blocks: u32,
    /// KiB that blocks are reserved for descriptors up to; 0: by default.
    reserved_to: u64,
    /// Size at first, in KiB.
    from: u64,
    /// A growth before the one that is cut, to so many KiB.
    pub(super) first_to: Option<u64>,
    /// Size afterwards, in KiB.
    pub(super) to: u64,
    pub(super) has_journal_device: bool,
}

const PLAIN: Case = Case {
    name: "",
    block_size: 1024,
    features: "",
    group_blocks: 1024,
    reserved_to: 20 << 10,
    from: 6 << 10,
    first_to: None,
    to: 14 << 10,
    has_journal_device: false,
};

const NO_JOURNAL: Case = Case { features: "^has_journal", ..PLAIN };

/// All growths.
pub static CASES: &[Case] = &[
    Case { name: "within the last group", group_blocks: 0, to: 7 << 10, ..PLAIN },
    Case { name: "more groups", ..PLAIN },
    Case { name: "more descriptor blocks", to: 40 << 10, reserved_to: 100 << 10, ..PLAIN },
    Case { name: "more than are reserved", to: 60 << 10, ..PLAIN },
    Case {
        name: "a last group with an uninitialised bitmap",
        first_to: Some((9 << 10) + 300),
        ..PLAIN
    },
    Case {
        name: "blocks of 4096",
        block_size: 4096,
        group_blocks: 2048,
        reserved_to: 1 << 20,
        from: 24 << 10,
        to: 60 << 10,
        ..PLAIN
    },
    Case { name: "no reserved blocks", features: "^resize_inode", to: 40 << 10, ..PLAIN },
    Case { name: "meta groups", features: "^resize_inode,meta_bg", to: 40 << 10, ..PLAIN },
    Case { name: "sparse_super2", features: "sparse_super2", from: 4 << 10, ..PLAIN },
    Case {
        name: "clusters",
        features: "bigalloc",
        group_blocks: 0,
        from: 20 << 10,
        to: 60 << 10,
        ..PLAIN
    },
    Case { name: "no checksums", features: "^metadata_csum,^uninit_bg", ..PLAIN },
    Case { name: "quota", features: "quota,project", ..PLAIN },
    Case { name: "mmp", features: "mmp", ..PLAIN },
    Case { name: "a journal device", has_journal_device: true, ..PLAIN },
    Case { name: "no journal, within the last group", group_blocks: 0, to: 7 << 10, ..NO_JOURNAL },
    Case { name: "no journal, more groups", ..NO_JOURNAL },
    Case {
        name: "no journal, more descriptor blocks",
        to: 40 << 10,
        reserved_to: 100 << 10,
        ..NO_JOURNAL
    },
    Case { name: "no journal, no checksums", features: "^has_journal,^metadata_csum", ..PLAIN },
    Case {
        name: "no journal, no reserved blocks",
        features: "^has_journal,^resize_inode",
        to: 40 << 10,
        ..PLAIN
    },
];

impl Case {
    /// Whether a crash leaves something to replay.
    pub(super) fn has_journal(&self) -> bool {
        !self.features.contains("^has_journal")
    }

    /// Whether the kernel is asked: one without quota mounts none, and it would have to be given
    /// the journal device.
    pub(super) fn is_for_kernel(&self) -> bool {
        let can = !["quota", "mmp"].iter().any(|word| self.features.contains(word));
        can && self.has_journal() && !self.has_journal_device
    }

    /// Whether hosts claim the file system, for which each opening waits a second or two.
    #[must_use]
    pub fn has_mmp(&self) -> bool {
        self.features.contains("mmp")
    }

    /// The smallest that there is.
    pub(super) fn journal_mib(&self) -> u32 {
        self.block_size / 1024
    }

    pub(super) fn options(&self) -> Options {
        Options {
            block_size: Some(self.block_size),
            cluster_size: self.features.contains("bigalloc").then_some(4096),
            size: Some(self.from << 10),
            features: self.features.to_owned(),
            journal_mib: self.has_journal().then(|| self.journal_mib()),
            blocks_per_group: (self.group_blocks > 0).then_some(self.group_blocks),
            resize: (self.group_blocks > 0 && !self.features.contains("resize_inode"))
                .then_some(Length::Bytes(self.reserved_to << 10)),
            hash_seed: Some([7; 16]),
            discard: Some(false),
            ..Options::default()
        }
    }
}
