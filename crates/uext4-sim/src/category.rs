//! Categories of loads: what a crash state is a state of.
//!
//! # What
//! A [`Category`] is a mix of operations with a shape of its own: which operations come, how often
//! the load syncs, what stands on the volume before the recording begins. The generator turns it
//! into operations (`generator/mix.rs`).

use crate::generator::Limits;
use std::fmt;
use std::str::FromStr;

/// A mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// A file is replaced by a new one that was synced before the rename.
    ReplaceSynced,
    /// A file is replaced by a new one that nobody synced.
    ReplaceUnsynced,
    /// Append and fdatasync, as a log does.
    Append,
    /// The same by so many threads that their syncs go together.
    Storm,
    /// Files are cut and extended.
    Truncate,
    /// Overwrites of blocks that are allocated and unwritten, and of holes.
    Unwritten,
    /// Holes are punched into data and filled again.
    Punch,
    /// Ranges are taken out of files and put in.
    Shift,
    /// Files lose their last name while they are open and are written on.
    UnlinkOpen,
    /// Trees of directories come, move and go.
    Tree,
    /// Names of one file, in several directories.
    Links,
    /// Extended attributes, in the inode and in a block.
    Xattrs,
    /// A directory that grows through splits of its index, to the second level.
    Htree,
    /// Open files are allocated, written, cut to nothing and allocated again, with a sync here and
    /// there: what a transaction takes and frees is taken again at once.
    Recycle,
    /// Direct writes, by calls and by a queue, over data, holes, unwritten blocks and the end, and
    /// buffered ones between them.
    Direct,
    /// The same on a byte-addressable device with `dax=always`, with writes at any alignment, cuts
    /// and punches.
    Dax,
    /// What an overlay does to its upper layer: files are made without a name and get one, perhaps
    /// in the place of another, and renames leave whiteouts.
    Overlay,
    /// The volume is nearly full: every operation may be refused.
    NoSpace,
    /// All operations.
    Mix,
}

/// All categories, in the order of the tables.
pub const CATEGORIES: &[Category] = &[
    Category::ReplaceSynced,
    Category::ReplaceUnsynced,
    Category::Append,
    Category::Storm,
    Category::Truncate,
    Category::Unwritten,
    Category::Punch,
    Category::UnlinkOpen,
    Category::Tree,
    Category::Links,
    Category::Xattrs,
    Category::Htree,
    Category::Recycle,
    Category::NoSpace,
    Category::Mix,
    Category::Direct,
    Category::Dax,
    Category::Shift,
    Category::Overlay,
];

impl Category {
    /// Its word on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReplaceSynced => "replace-synced",
            Self::ReplaceUnsynced => "replace-unsynced",
            Self::Append => "append",
            Self::Storm => "storm",
            Self::Truncate => "truncate",
            Self::Unwritten => "unwritten",
            Self::Punch => "punch",
            Self::Shift => "shift",
            Self::UnlinkOpen => "unlink-open",
            Self::Tree => "tree",
            Self::Links => "links",
            Self::Xattrs => "xattrs",
            Self::Htree => "htree",
            Self::Recycle => "recycle",
            Self::Direct => "direct",
            Self::Dax => "dax",
            Self::Overlay => "overlay",
            Self::NoSpace => "no-space",
            Self::Mix => "mix",
        }
    }

    /// Operations of each thread before the recording begins.
    #[must_use]
    pub const fn warm_up(self) -> usize {
        match self {
            // Enough leaves for an index of two levels in blocks of 1 KiB, or nearly.
            Self::Htree => 270,
            Self::NoSpace => 0,
            _ => 12,
        }
    }

    /// Blocks that are left free, if the volume is filled first.
    #[must_use]
    pub const fn free_blocks(self) -> Option<u64> {
        match self {
            Self::NoSpace => Some(60),
            _ => None,
        }
    }

    /// What one thread keeps. `block_size` in bytes.
    #[must_use]
    pub fn limits(self, block_size: u32) -> Limits {
        let limits = Limits {
            file_bytes: 24 * u64::from(block_size.max(2048)),
            nodes: 14,
            // What is left of a block beside the attributes that the inode has no room for.
            xattr_bytes: block_size as usize / 2,
            names: 24,
            ..Limits::default()
        };
        match self {
            Self::Htree => Limits { nodes: 500, names: 900, ..limits },
            Self::Tree => Limits { nodes: 30, names: 40, ..limits },
            Self::NoSpace => Limits { nodes: 40, names: 60, ..limits },
            Self::Mix => Limits { nodes: 24, names: 48, ..limits },
            _ => limits,
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Category {
    type Err = String;

    fn from_str(word: &str) -> Result<Category, String> {
        CATEGORIES.iter().copied().find(|category| category.name() == word).ok_or_else(|| {
            let names: Vec<_> = CATEGORIES.iter().map(|category| category.name()).collect();
            format!("one of {}", names.join(", "))
        })
    }
}
