//! What may be in a run. A seed draws a subset: a run with few parts reaches deeper into them than
//! one with all.

use std::fmt;
use std::str::FromStr;

/// Something that may be in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    /// Lives end with a loss of power.
    PowerCut,
    /// Recoveries are cut, too.
    RecoveryCut,
    /// The volume is closed while callers are inside.
    CloseBeside,
    /// Requests of a caller that cuts a file fail for a moment.
    Trouble,
    /// From a moment on for some time writes fail, with EIO or ENOSPC.
    WriteErrors,
    /// Look-ups by number near numbers that come and go.
    Peek,
    /// Creations of names that exist.
    Collide,
    /// Trims, and `-o discard`.
    Trim,
    /// Syncs of the volume and commits that no caller asks for.
    Sync,
    /// Files in DAX mode on a byte-addressable device.
    Dax,
    /// Inode tables are initialised lazily, over old inodes.
    LazyTables,
    /// Data modes and ablation options.
    Ablation,
    /// Caches hold a few blocks, inodes and pages.
    SmallCache,
    /// Callers pause between operations.
    Pauses,
    /// The device takes its time.
    Latency,
    /// The volume is nearly full.
    Full,
    /// What earlier lives left is removed.
    Remove,
    /// Callers do a mix of one category instead of all operations.
    Category,
    /// Several threads use the same files.
    Share,
    /// Threads sync and read files of the callers.
    Onlook,
    /// Callers sync most files that they have written.
    SyncOften,
    /// A few files of all callers, and hardly room for them.
    Tight,
    /// Calls that must be refused.
    Refuse,
}

const ALL: &[(Part, &str, u32)] = &[
    (Part::PowerCut, "power-cut", 75),
    (Part::RecoveryCut, "recovery-cut", 30),
    (Part::CloseBeside, "close-beside", 40),
    (Part::Trouble, "trouble", 30),
    (Part::WriteErrors, "write-errors", 10),
    (Part::Peek, "peek", 40),
    (Part::Collide, "collide", 40),
    (Part::Trim, "trim", 20),
    (Part::Sync, "sync", 50),
    (Part::Dax, "dax", 10),
    (Part::LazyTables, "lazy-tables", 35),
    (Part::Ablation, "ablation", 50),
    (Part::SmallCache, "small-cache", 60),
    (Part::Pauses, "pauses", 60),
    (Part::Latency, "latency", 80),
    (Part::Full, "full", 10),
    (Part::Remove, "remove", 60),
    (Part::Category, "category", 60),
    (Part::Share, "share", 30),
    (Part::Onlook, "onlook", 35),
    (Part::SyncOften, "sync-often", 25),
    (Part::Tight, "tight", 25),
    (Part::Refuse, "refuse", 25),
];

/// What may be in a narrow run, and the odds.
const FEW: &[(Part, u32)] = &[
    (Part::PowerCut, 65),
    (Part::RecoveryCut, 10),
    (Part::CloseBeside, 20),
    (Part::Trouble, 35),
    (Part::WriteErrors, 20),
    (Part::Dax, 6),
    (Part::LazyTables, 15),
    (Part::Ablation, 25),
    (Part::SmallCache, 75),
    (Part::Pauses, 35),
    (Part::Latency, 80),
    (Part::Full, 3),
    (Part::Remove, 60),
    (Part::SyncOften, 20),
    (Part::Tight, 30),
];

/// Threads beside the callers.
const BESIDE: &[Part] =
    &[Part::Peek, Part::Collide, Part::Trim, Part::Sync, Part::Share, Part::Onlook, Part::Refuse];

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(u32);

impl Parts {
    /// Each with the odds of its line in the table.
    pub fn draw(rng: &mut impl rand::Rng) -> Parts {
        let mut parts = Parts::default();
        for (part, _, percent) in ALL {
            // Always as many numbers, whatever comes of them.
            if rng.random_range(0..100) < *percent {
                parts.insert(*part);
            }
        }
        parts
    }

    /// A few, for a narrow run: of the threads beside the callers at most two kinds, of the rest
    /// each with lower odds where it takes much of a run.
    pub fn draw_few(rng: &mut impl rand::Rng) -> Parts {
        let mut parts = Parts::default();
        for (part, percent) in FEW {
            if rng.random_range(0..100) < *percent {
                parts.insert(*part);
            }
        }
        for _ in 0..2 {
            let which = rng.random_range(0..BESIDE.len() * 3 / 2);
            BESIDE.get(which).into_iter().for_each(|part| parts.insert(*part));
        }
        parts
    }

    /// These.
    #[must_use]
    pub fn of(these: &[Part]) -> Parts {
        let mut parts = Parts::default();
        these.iter().for_each(|part| parts.insert(*part));
        parts
    }

    /// Whether a part is in.
    #[must_use]
    pub fn has(self, part: Part) -> bool {
        self.0 & 1 << part as u32 != 0
    }

    /// Puts a part in.
    pub fn insert(&mut self, part: Part) {
        self.0 |= 1 << part as u32;
    }

    /// Those without `others`.
    #[must_use]
    pub fn without(self, others: Parts) -> Parts {
        Parts(self.0 & !others.0)
    }

    /// Those and `others`.
    #[must_use]
    pub fn with(self, others: Parts) -> Parts {
        Parts(self.0 | others.0)
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Part> {
        ALL.iter().map(|(part, _, _)| *part).filter(move |part| self.has(*part))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(ALL[*self as usize].1)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(|part| part.to_string()).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Parts {
    type Err = String;

    fn from_str(words: &str) -> Result<Parts, String> {
        let mut parts = Parts::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let Some((part, _, _)) = ALL.iter().find(|(_, name, _)| *name == word) else {
                let names: Vec<_> = ALL.iter().map(|(_, name, _)| *name).collect();
                return Err(format!("'{word}' is none of {}", names.join(", ")));
            };
            parts.insert(*part);
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_to_parts_and_back() {
        for (index, (part, name, _)) in ALL.iter().enumerate() {
            assert_eq!(*part as usize, index, "{name} stands in another place of the table");
        }
        let parts: Parts = "peek,full".parse().unwrap();
        assert_eq!(parts.to_string(), "peek,full");
        assert!("peek,nothing".parse::<Parts>().is_err());
    }
}
