//! What the kernel's ext4 guarantees, by mount options.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What is guaranteed about the data of files, `data=` of mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The data of a block that was allocated is written before the commit of the allocation.
    Ordered,
    /// Data is in the journal, in order with the metadata.
    Journal,
    /// Nothing orders data and metadata.
    Writeback,
}

/// The options of a mount that decide what a loss of power can leave. The default is that of
/// today's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarantees {
    /// `data=`.
    pub mode: Mode,
    /// A rename over an existing file and a close after truncation to nothing allocate the file's
    /// blocks.
    pub auto_da_alloc: bool,
    /// Blocks are allocated when data is written back, not when it is written.
    pub delalloc: bool,
    /// Blocks are allocated as unwritten ones, and converted after the data was written.
    pub dioread_nolock: bool,
}

impl Default for Guarantees {
    fn default() -> Self {
        Self { mode: Mode::Ordered, auto_da_alloc: true, delalloc: true, dioread_nolock: true }
    }
}

/// Options that change nothing of what a loss of power leaves: whole words, or ends in `=`.
const WITHOUT_EFFECT: &[&str] = &[
    "rw",
    "defaults",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "iversion",
    "discard",
    "nodiscard",
    "barrier",
    "barrier=1",
    "acl",
    "user_xattr",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "journal_checksum",
    "commit=",
    "errors=",
    "stripe=",
    "max_batch_time=",
    "min_batch_time=",
    "journal_ioprio=",
    "inode_readahead_blks=",
    "resuid=",
    "resgid=",
    "init_itable",
    "init_itable=",
    "noinit_itable",
    "max_dir_size_kb=",
    "mb_optimize_scan=",
    "block_validity",
    "noblock_validity",
];

/// Options without which a sync guarantees less or more than the model says.
const NOT_MODELLED: &[(&str, &str)] = &[
    ("nobarrier", "a sync guarantees nothing without barriers"),
    ("barrier=0", "a sync guarantees nothing without barriers"),
    ("journal_async_commit", "the commit without a barrier is not modelled"),
    ("sync", "every call would be a sync, so nothing could be lost"),
    ("dirsync", "directories that are always synchronous are not modelled"),
    ("dax", "files without a page cache are not modelled"),
    ("dax=always", "files without a page cache are not modelled"),
];

impl Guarantees {
    /// The guarantees of `--mode WORD`.
    ///
    /// # Errors
    /// An unknown word.
    pub fn of_mode(word: &str) -> Result<Self> {
        Ok(Self { mode: mode(word)?, ..Self::default() })
    }

    /// Changes what mount options say, words separated by commas, as `mount -o` takes them.
    ///
    /// # Errors
    /// A word that is unknown, or whose effect is not modelled.
    pub fn set(&mut self, options: &str) -> Result<()> {
        for word in options.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            self.set_word(word)?;
        }
        Ok(())
    }

    fn set_word(&mut self, word: &str) -> Result<()> {
        match word {
            "auto_da_alloc" | "auto_da_alloc=1" => self.auto_da_alloc = true,
            "noauto_da_alloc" | "auto_da_alloc=0" => self.auto_da_alloc = false,
            "delalloc" => self.delalloc = true,
            "nodelalloc" => self.delalloc = false,
            "dioread_nolock" => self.dioread_nolock = true,
            "dioread_lock" | "nodioread_nolock" => self.dioread_nolock = false,
            _ => {
                if let Some(word) = word.strip_prefix("data=") {
                    self.mode = mode(word)?;
                } else if let Some(why) = Self::objection(word) {
                    return Err(Error::new(format!("option `{word}`: {why}")));
                } else if !has_no_effect(word) {
                    return Err(Error::new(format!("unknown mount option `{word}`")));
                }
            }
        }
        Ok(())
    }

    /// Why nothing can be said with a mount option; `None` where that is not so.
    #[must_use]
    pub fn objection(word: &str) -> Option<&'static str> {
        NOT_MODELLED.iter().find(|(name, _)| *name == word).map(|(_, why)| *why)
    }

    /// Data goes through the journal.
    #[must_use]
    pub fn journals_data(&self) -> bool {
        self.mode == Mode::Journal
    }

    /// Blocks are allocated late. Not with data in the journal.
    #[must_use]
    pub fn allocates_late(&self) -> bool {
        self.delalloc && !self.journals_data()
    }

    /// A block that was allocated and not yet written reads as zeros. The kernel does that only
    /// together with delayed allocation.
    #[must_use]
    pub fn unwritten_blocks(&self) -> bool {
        self.dioread_nolock && self.allocates_late()
    }

    /// The commit of an allocation waits for the data.
    #[must_use]
    pub fn commit_waits_for_data(&self) -> bool {
        self.mode == Mode::Ordered && !self.unwritten_blocks()
    }

    /// Blocks that a file loses may have data of others before the journal has the loss.
    #[must_use]
    pub fn reuses_early(&self) -> bool {
        self.mode == Mode::Writeback
    }

    /// A block may be allocated while it holds what some other file had in it.
    #[must_use]
    pub fn shows_stale_blocks(&self) -> bool {
        self.mode == Mode::Writeback && !self.unwritten_blocks()
    }
}

fn mode(word: &str) -> Result<Mode> {
    match word {
        "ordered" => Ok(Mode::Ordered),
        "journal" => Ok(Mode::Journal),
        "writeback" => Ok(Mode::Writeback),
        _ => Err(Error::new(format!("mode `{word}` is none of ordered, journal, writeback"))),
    }
}

fn has_no_effect(word: &str) -> bool {
    WITHOUT_EFFECT.iter().any(|known| match known.strip_suffix('=') {
        Some(name) => word.split_once('=').is_some_and(|(own, _)| own == name),
        None => *known == word,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_what_they_name() {
        let mut it = Guarantees::of_mode("writeback").unwrap();
        assert!(!it.shows_stale_blocks(), "unwritten blocks hide what was there");
        it.set("noatime,dioread_lock,commit=30,noauto_da_alloc").unwrap();
        assert!(it.shows_stale_blocks() && !it.auto_da_alloc);
        it.set("data=ordered,nodelalloc,dioread_nolock").unwrap();
        assert!(it.commit_waits_for_data() && !it.unwritten_blocks());
        it.set("data=journal").unwrap();
        assert!(it.journals_data() && !it.allocates_late());
    }

    #[test]
    fn what_is_unknown_or_not_modelled_is_refused() {
        assert!(Guarantees::of_mode("order").is_err());
        for word in ["nobarrier", "sync", "delaloc", "data=", "commits=3", "commit"] {
            assert!(Guarantees::default().set(word).is_err(), "{word}");
        }
    }
}
