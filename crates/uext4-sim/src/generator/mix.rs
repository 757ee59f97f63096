//! Operations that come in several steps.
//!
//! # What
//! A step maker returns the first operation of a sequence and queues the rest. Everything belongs
//! to one thread, so that the rest still fits when it comes; a refused operation (no space)
//! drops it.

use super::Generator;
use crate::operation::{How, Id, Kind, Operation, own_directory};
use rand::Rng;

impl Generator {
    fn has_room(&self) -> bool {
        self.names.nodes().count() < self.limits.nodes
    }

    pub(super) fn create_file(&mut self) -> Option<Operation> {
        if !self.has_room() {
            return None;
        }
        let dir = self.some_directory();
        self.create_at(dir)
    }

    /// In the thread's own directory, so that one directory gets all names.
    pub(super) fn create_own(&mut self) -> Option<Operation> {
        if !self.has_room() {
            return None;
        }
        self.create_at(own_directory(self.names.thread()))
    }

    fn create_at(&mut self, dir: Id) -> Option<Operation> {
        let at = self.free_place(dir)?;
        Some(Operation::Create { id: self.new_id(), at, kind: Kind::File, mode: 0o644 })
    }

    pub(super) fn make_directory(&mut self) -> Option<Operation> {
        if !self.has_room() {
            return None;
        }
        let own = self.names.nodes().filter(|(_, node)| node.kind == Kind::Directory);
        let mut dirs: Vec<Id> = own.map(|(id, _)| id).collect();
        dirs.push(own_directory(self.names.thread()));
        let dir = self.one_of(&dirs)?;
        let at = self.free_place(dir)?;
        Some(Operation::Create { id: self.new_id(), at, kind: Kind::Directory, mode: 0o755 })
    }

    pub(super) fn replace_synced(&mut self) -> Option<Operation> {
        self.replace(true)
    }

    pub(super) fn replace_unsynced(&mut self) -> Option<Operation> {
        self.replace(false)
    }

    /// Create, write, perhaps fsync, rename over.
    fn replace(&mut self, synced: bool) -> Option<Operation> {
        if !self.has_room() {
            return None;
        }
        let own = own_directory(self.names.thread());
        let first = self.create_at(own)?;
        let Operation::Create { id, at: temporary, .. } = first.clone() else { return None };
        let victim = self.some_entry(|kind| kind == Kind::File);
        let (to, other) = match victim {
            Some((to, other)) if self.rng.random_bool(0.8) => (to, Some(other)),
            _ => (self.free_place(own).filter(|to| !self.is_same(to, &temporary))?, None),
        };
        let write = self.write_into(id, 0);
        self.pending.push_back(write);
        if synced {
            let data_only = self.rng.random_bool(0.3);
            self.pending.push_back(Operation::Sync { id, data_only });
        }
        let dir = to.dir;
        let how = How::Replace;
        self.pending.push_back(Operation::Rename { id, from: temporary, to, how, other });
        if synced && self.rng.random_bool(0.4) {
            self.pending.push_back(Operation::SyncDirectory { id: dir });
        }
        Some(first)
    }

    /// A write of some length at `offset`.
    fn write_into(&mut self, id: Id, offset: u64) -> Operation {
        let most = (self.limits.file_bytes / 3).max(2);
        let len = if self.rng.random_bool(0.5) {
            self.rng.random_range(1..=most.min(3_000))
        } else {
            self.rng.random_range(1..=most)
        };
        let generation = self.next_generation;
        self.next_generation += 1;
        Operation::Write { id, offset, len, generation, append: false, direct: false }
    }

    pub(super) fn append(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        if size >= self.limits.file_bytes {
            return Some(Operation::Resize { id, size: 0 });
        }
        let Operation::Write { id, offset, len, generation, .. } = self.write_into(id, size) else {
            return None;
        };
        let (append, direct) = (true, false);
        Some(Operation::Write { id, offset, len, generation, append, direct })
    }

    pub(super) fn append_synced(&mut self) -> Option<Operation> {
        let first = self.append()?;
        let id = first.content_of()?;
        self.pending.push_back(Operation::Sync { id, data_only: true });
        Some(first)
    }

    /// Allocate, perhaps make that durable, write into it, sync.
    pub(super) fn overwrite_unwritten(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let limit = self.limits.file_bytes;
        let offset = self.rng.random_range(0..limit / 2);
        let len = self.rng.random_range(1..=limit / 2);
        let keep_size = self.rng.random_bool(0.3);
        if self.rng.random_bool(0.4) {
            self.pending.push_back(Operation::Sync { id, data_only: false });
        }
        for _ in 0..self.rng.random_range(1..=3) {
            let at = offset + self.rng.random_range(0..len);
            let write = self.write_into(id, at);
            self.pending.push_back(write);
        }
        if self.rng.random_bool(0.6) {
            let data_only = self.rng.random_bool(0.5);
            self.pending.push_back(Operation::Sync { id, data_only });
        }
        Some(match self.rng.random_range(0..4) {
            0 => Operation::Zero { id, offset, len, keep_size },
            _ => Operation::Allocate { id, offset, len, keep_size },
        })
    }

    /// Extend, then write into the hole.
    pub(super) fn overwrite_hole(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.rng.random_range(0..=self.limits.file_bytes);
        let at = self.rng.random_range(0..=size);
        let write = self.write_into(id, at);
        self.pending.push_back(write);
        if self.rng.random_bool(0.5) {
            self.pending.push_back(Operation::Sync { id, data_only: true });
        }
        Some(Operation::Resize { id, size })
    }

    pub(super) fn punch_and_fill(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        if size < 2 {
            return Some(self.write_into(id, 0));
        }
        let offset = self.rng.random_range(0..size);
        let len = self.rng.random_range(1..=size);
        if self.rng.random_bool(0.4) {
            self.pending.push_back(Operation::Sync { id, data_only: false });
        }
        if self.rng.random_bool(0.6) {
            let write = self.write_into(id, offset);
            self.pending.push_back(write);
        }
        if self.rng.random_bool(0.4) {
            self.pending.push_back(Operation::Sync { id, data_only: true });
        }
        Some(Operation::Punch { id, offset, len })
    }

    /// Takes a range out or puts one in, in the middle of writes and syncs that may come before.
    pub(super) fn shift(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        let unit = self.limits.shift_bytes;
        let blocks = size.div_ceil(unit);
        if blocks < 2 {
            return self.append();
        }
        let first = self.rng.random_range(0..blocks);
        let count = self.rng.random_range(1..=blocks.div_ceil(2).min(6));
        let (offset, len) = (first * unit, count * unit);
        if self.rng.random_bool(0.6) {
            let at = self.rng.random_range(0..size);
            let write = self.write_into(id, at);
            self.pending.push_back(write);
        }
        if self.rng.random_bool(0.4) {
            let data_only = self.rng.random_bool(0.5);
            self.pending.push_back(Operation::Sync { id, data_only });
        }
        let grows = self.rng.random_bool(0.5) && size + len <= self.limits.file_bytes;
        if grows {
            return Some(Operation::Insert { id, offset, len });
        }
        // It ends before the file does.
        (offset + len < size).then_some(Operation::Collapse { id, offset, len })
    }

    /// Create, open, write, unlink, write on.
    pub(super) fn unlink_open(&mut self) -> Option<Operation> {
        if self.held.len() >= 6 {
            return self.release();
        }
        let dir = self.some_directory();
        let first = self.create_at(dir)?;
        let Operation::Create { id, at, .. } = first.clone() else { return None };
        let before = self.write_into(id, 0);
        let after = self.write_into(id, 1_000);
        self.pending.extend([Operation::Hold { id }, before]);
        if self.rng.random_bool(0.5) {
            self.pending.push_back(Operation::Sync { id, data_only: false });
        }
        self.pending.extend([Operation::Unlink { id, at }, after]);
        if self.rng.random_bool(0.3) {
            self.pending.push_back(Operation::Sync { id, data_only: false });
        }
        if self.rng.random_bool(0.3) {
            self.pending.push_back(Operation::Resize { id, size: 10 });
        }
        Some(first)
    }

    /// Make a file without a name, write, and perhaps give it a name and rename it over another.
    pub(super) fn make_unlinked(&mut self) -> Option<Operation> {
        if self.held.len() >= 6 {
            return self.release();
        }
        if !self.has_room() || !self.names.identifies() {
            return None;
        }
        let (dir, id) = (self.some_directory(), self.new_id());
        let write = self.write_into(id, 0);
        self.pending.push_back(write);
        if self.rng.random_bool(0.3) {
            self.pending.push_back(Operation::Resize { id, size: 10 });
        }
        if self.rng.random_bool(0.4) {
            self.pending.push_back(Operation::Sync { id, data_only: false });
        }
        if self.rng.random_bool(0.7) {
            let at = self.free_place(dir)?;
            self.pending.push_back(Operation::Link { id, at: at.clone() });
            if self.rng.random_bool(0.3) {
                self.pending.push_back(Operation::Sync { id, data_only: false });
            }
            match self.some_entry(|kind| kind == Kind::File || kind == Kind::Whiteout) {
                Some((to, other)) if self.rng.random_bool(0.4) => {
                    let (how, other) = (How::Replace, Some(other));
                    self.pending.push_back(Operation::Rename { id, from: at, to, how, other });
                }
                _ => {}
            }
            if self.rng.random_bool(0.2) {
                self.pending.push_back(Operation::SyncDirectory { id: dir });
            }
        }
        if self.rng.random_bool(0.6) {
            self.pending.push_back(Operation::Release { id });
        }
        Some(Operation::CreateUnlinked { id, dir, mode: 0o640 })
    }

    /// In sectors: over anything, and past the end.
    pub(super) fn write_directly(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        let limit = self.limits.file_bytes / 512;
        let mut len = self.rng.random_range(1..=(limit / 3).min(24)) * 512;
        let mut offset = self.rng.random_range(0..limit) * 512;
        match self.rng.random_range(0..6) {
            // Whole blocks of any size.
            0..=1 => (offset, len) = (offset & !4095, len.next_multiple_of(4096)),
            2 if size < self.limits.file_bytes => offset = size & !511,
            3 => offset = 0,
            _ => {}
        }
        let generation = self.next_generation;
        self.next_generation += 1;
        Some(Operation::Write { id, offset, len, generation, append: false, direct: true })
    }

    pub(super) fn write_directly_synced(&mut self) -> Option<Operation> {
        let first = self.write_directly()?;
        let id = first.content_of()?;
        self.pending.push_back(Operation::Sync { id, data_only: self.rng.random_bool(0.7) });
        Some(first)
    }

    pub(super) fn create_held(&mut self) -> Option<Operation> {
        let first = self.create_file()?;
        if let Operation::Create { id, .. } = first {
            self.pending.push_back(Operation::Hold { id });
        }
        Some(first)
    }

    /// Allocate or write, perhaps make that durable, cut to nothing, the same again.
    pub(super) fn recycle(&mut self) -> Option<Operation> {
        let held: Vec<Id> = self.held.iter().copied().collect();
        let id = self.one_of(&held)?;
        for _ in 0..self.rng.random_range(1..=3) {
            let mut end = 0;
            for _ in 0..self.rng.random_range(1..=3) {
                let len = self.rng.random_range(1..=self.limits.file_bytes / 3);
                self.pending.push_back(Operation::Allocate {
                    id,
                    offset: end,
                    len,
                    keep_size: false,
                });
                end += len;
            }
            if self.rng.random_bool(0.7) {
                let generation = self.next_generation;
                self.next_generation += 1;
                let (append, direct) = (false, false);
                let write =
                    Operation::Write { id, offset: 0, len: end, generation, append, direct };
                self.pending.push_back(write);
            }
            if self.rng.random_bool(0.4) {
                self.pending.push_back(Operation::Sync { id, data_only: false });
            }
            self.pending.push_back(Operation::Resize { id, size: 0 });
        }
        let write = self.write_into(id, 0);
        self.pending.push_back(write);
        self.pending.push_back(Operation::Sync { id, data_only: true });
        self.pending.pop_front()
    }

    pub(super) fn release(&mut self) -> Option<Operation> {
        let held: Vec<Id> = self.held.iter().copied().collect();
        self.one_of(&held).map(|id| Operation::Release { id })
    }

    pub(super) fn allocate(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let limit = self.limits.file_bytes;
        let offset = self.rng.random_range(0..limit);
        let len = self.rng.random_range(1..=limit);
        Some(Operation::Allocate { id, offset, len, keep_size: self.rng.random_bool(0.4) })
    }
}

/// A name of 250 bytes: a directory of these grows fast.
pub(super) fn long_name(mut prefix: Vec<u8>, number: u32) -> Vec<u8> {
    prefix.extend_from_slice(format!("n{number:04}").as_bytes());
    prefix.resize(250, b'h');
    prefix
}
