//! Operations of one step. An operation for which nothing fits is none.

use super::Generator;
use crate::operation::{FLAGS, How, Kind, Operation, SHARED, own_directory};
use rand::Rng;

impl Generator {
    pub(super) fn create(&mut self) -> Option<Operation> {
        if self.names.nodes().count() >= self.limits.nodes {
            return None;
        }
        let kind = match self.rng.random_range(0..10) {
            0 => Kind::Fifo,
            1..=2 => Kind::Directory,
            _ => Kind::File,
        };
        let mut dir = self.some_directory();
        if kind == Kind::Directory && dir == SHARED {
            // Directories of one thread stay below its own: others could not name them.
            dir = own_directory(self.names.thread());
        }
        let at = self.free_place(dir)?;
        let mode = self.rng.random_range(0..=0o777) | 0o600;
        Some(Operation::Create { id: self.new_id(), at, kind, mode })
    }

    pub(super) fn symlink(&mut self) -> Option<Operation> {
        if self.names.nodes().count() >= self.limits.nodes {
            return None;
        }
        let dir = self.some_directory();
        let at = self.free_place(dir)?;
        let len = if self.rng.random_bool(0.5) {
            self.rng.random_range(1..=59)
        } else {
            self.rng.random_range(60..=1000)
        };
        let target = (0..len).map(|_| self.rng.random_range(b'a'..=b'z')).collect();
        Some(Operation::Symlink { id: self.new_id(), at, target })
    }

    pub(super) fn link(&mut self) -> Option<Operation> {
        let id = self.some_node(|node| node != Kind::Directory)?;
        let dir = self.some_directory();
        let at = self.free_place(dir)?;
        Some(Operation::Link { id, at })
    }

    pub(super) fn unlink(&mut self) -> Option<Operation> {
        let (at, id) = self.some_entry(|node| node != Kind::Directory)?;
        Some(Operation::Unlink { id, at })
    }

    pub(super) fn rmdir(&mut self) -> Option<Operation> {
        let (at, id) = self.some_entry(|node| node == Kind::Directory)?;
        self.names.is_empty(id).then_some(Operation::Rmdir { id, at })
    }

    pub(super) fn rename(&mut self) -> Option<Operation> {
        let (from, id) = self.some_entry(|_| true)?;
        let is_directory = self.kind(id) == Kind::Directory;
        let roll = self.rng.random_range(0..10);
        if self.folds && roll == 0 {
            let to = self.other_spelling(&from);
            let how = How::Replace;
            return (to != from).then_some(Operation::Rename { id, from, to, how, other: None });
        }
        if roll < 4 {
            let dir = self.some_directory();
            if is_directory && (dir == SHARED || self.names.is_below(dir, id)) {
                return None;
            }
            let to = self.free_place(dir)?;
            let how = if roll < 2 { How::Replace } else { How::NoReplace };
            return Some(Operation::Rename { id, from, to, how, other: None });
        }
        let (to, other) = self.some_entry(|_| true)?;
        // rename(2) of two names of one file does nothing.
        if other == id {
            return None;
        }
        let other_is_directory = self.kind(other) == Kind::Directory;
        let tangled = |moved, is_directory: bool, dir| {
            is_directory && (dir == SHARED || self.names.is_below(dir, moved))
        };
        if tangled(id, is_directory, to.dir) {
            return None;
        }
        if roll < 7 {
            if tangled(other, other_is_directory, from.dir) {
                return None;
            }
            let how = How::Exchange;
            return Some(Operation::Rename { id, from, to, how, other: Some(other) });
        }
        if is_directory != other_is_directory || other_is_directory && !self.names.is_empty(other) {
            return None;
        }
        Some(Operation::Rename { id, from, to, how: How::Replace, other: Some(other) })
    }

    /// A rename over something that may be replaced, or over nothing, that leaves a whiteout.
    pub(super) fn rename_leaving_whiteout(&mut self) -> Option<Operation> {
        let renamed = self.rename()?;
        let Operation::Rename { id, from, to, how, other } = renamed else { return None };
        if how == How::Exchange || !self.names.identifies() || self.is_same(&from, &to) {
            return None;
        }
        Some(Operation::Rename { id, from, to, how: How::Whiteout(self.new_id()), other })
    }

    pub(super) fn attribute(&mut self) -> Option<Operation> {
        let id = self.some_node(|kind| kind != Kind::Symlink)?;
        Some(match self.rng.random_range(0..3) {
            0 => Operation::SetMode { id, mode: self.rng.random_range(0..=0o777) | 0o600 },
            1 => Operation::SetGroup { id, gid: self.rng.random_range(1..70_000) },
            _ if self.kind(id) != Kind::File => return None,
            _ => Operation::SetTime {
                id,
                // Before 1970 and past 2038, as the format has them.
                secs: self.rng.random_range(-1_000_000_000..6_000_000_000),
                nanos: self.rng.random_range(0..1_000_000_000),
            },
        })
    }

    pub(super) fn set_flags(&mut self) -> Option<Operation> {
        let id = self.some_node(|kind| kind == Kind::File)?;
        let flags = self.rng.random_range(0..=u32::MAX) & FLAGS;
        Some(Operation::SetFlags { id, flags })
    }

    pub(super) fn xattr(&mut self) -> Option<Operation> {
        let id = self.some_node(|kind| matches!(kind, Kind::File | Kind::Directory))?;
        let present = self.names.node(id)?.xattrs.len();
        if present > 0 && self.rng.random_bool(0.35) {
            let which = self.rng.random_range(0..present);
            let name = self.names.node(id)?.xattrs.keys().nth(which)?.clone();
            return Some(Operation::RemoveXattr { id, name });
        }
        if self.has_value_inodes && self.rng.random_bool(0.6) {
            let name = format!("user.value{}", self.rng.random_range(0..3));
            return Some(Operation::SetXattr { id, name: name.into_bytes(), value: self.value() });
        }
        let (name, len) = if self.rng.random_bool(0.3) {
            ("user.large".to_owned(), self.rng.random_range(200..=self.limits.xattr_bytes))
        } else {
            (format!("user.small{}", self.rng.random_range(0..3)), self.rng.random_range(0..=12))
        };
        let value = (0..len).map(|_| self.rng.random()).collect();
        Some(Operation::SetXattr { id, name: name.into_bytes(), value })
    }

    /// A value that needs an inode: one of few, so that files share it.
    fn value(&mut self) -> Vec<u8> {
        const LENGTHS: [usize; 5] = [5_000, 8_192, 20_001, 40_000, 65_536];
        let kind: u8 = self.rng.random_range(0..8);
        let len = LENGTHS[usize::from(kind) % LENGTHS.len()];
        (0..len).map(|at| (at % 251) as u8 ^ kind).collect()
    }

    pub(super) fn write(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        let limit = self.limits.file_bytes;
        let len = match self.rng.random_range(0..10) {
            0..=3 => self.rng.random_range(1..=600),
            4..=7 => self.rng.random_range(600..=(limit / 3).min(20_000)),
            _ => self.rng.random_range((limit / 6).min(20_000)..=limit / 3),
        };
        let generation = self.next_generation;
        self.next_generation += 1;
        if self.rng.random_bool(0.35) && size + len <= limit {
            let (offset, append, direct) = (size, true, false);
            return Some(Operation::Write { id, offset, len, generation, append, direct });
        }
        let mut offset = self.rng.random_range(0..=limit - len);
        if self.rng.random_bool(0.4) {
            // Whole blocks of any size.
            offset &= !4095;
        }
        if self.rng.random_bool(0.02) {
            // Far behind the end: deep trees with few leaves.
            offset += self.rng.random_range(0..64_u64) << 26;
        }
        Some(Operation::Write { id, offset, len, generation, append: false, direct: false })
    }

    pub(super) fn resize(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let old = self.contents[&id].size;
        let size = match self.rng.random_range(0..4) {
            0 => 0,
            1..=2 => self.rng.random_range(0..=old),
            _ => self.rng.random_range(old..=old.max(self.limits.file_bytes)),
        };
        Some(Operation::Resize { id, size })
    }

    pub(super) fn range(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let limit = self.limits.file_bytes;
        let offset = self.rng.random_range(0..limit);
        let len = self.rng.random_range(1..=limit / 3);
        let keep_size = self.rng.random_bool(0.4);
        Some(match self.rng.random_range(0..3) {
            0 => Operation::Allocate { id, offset, len, keep_size },
            1 => Operation::Punch { id, offset, len },
            _ => Operation::Zero { id, offset, len, keep_size },
        })
    }

    pub(super) fn hold(&mut self) -> Option<Operation> {
        if self.held.len() >= 4 || !self.held.is_empty() && self.rng.random_bool(0.5) {
            let which = self.rng.random_range(0..self.held.len());
            return self.held.iter().nth(which).map(|&id| Operation::Release { id });
        }
        let id = self.some_node(|kind| kind == Kind::File)?;
        (!self.held.contains(&id)).then_some(Operation::Hold { id })
    }

    pub(super) fn check(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        Some(Operation::Check { id })
    }

    pub(super) fn sync(&mut self) -> Option<Operation> {
        Some(match self.rng.random_range(0..20) {
            0 => Operation::SyncVolume,
            1..=4 => Operation::SyncDirectory { id: self.some_directory() },
            roll => Operation::Sync { id: self.some_content()?, data_only: roll >= 15 },
        })
    }
}
