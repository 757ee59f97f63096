//! Pass 2: the entries of one directory.

use std::borrow::Cow;
use std::hash::Hasher;
use std::sync::atomic::Ordering;

use rustc_hash::FxHasher;
use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::dir_entry::{
    self, HASHES_SIZE, HEADER_SIZE, RawDirEntry, StoredName, TAIL_SIZE, record_length,
};
use uext4_ondisk::{BlockNo, CorruptKind, Incompat, Ino, casefold};

use crate::htree::Tree;
use crate::log::Log;
use crate::problem::Problem;
use crate::volume::{Dir, Inodes, READ_BYTES, Volume, kind};

/// Shortest name in an encrypted directory.
const ENCRYPTED_NAME_MIN: usize = 16;

/// A directory that is checked.
struct Check<'a, 'd> {
    volume: &'a Volume<'d>,
    inodes: &'a Inodes,
    dir: &'a Dir,
    seed: InodeSeed,
    has_file_type: bool,
    log: Log,
    /// Hash and place of every name. Duplicates are adjacent after sorting.
    names: Vec<(u64, u64)>,
    /// Which of `.` and `..` were found so far.
    met: u32,
    tree: Option<Tree>,
}

/// Checks a directory.
pub(crate) fn check(volume: &Volume<'_>, inodes: &Inodes, dir: &Dir) -> Log {
    let seed = volume.layout.checksums.inode_seed(dir.ino, dir.generation);
    let mut check = Check {
        volume,
        inodes,
        dir,
        seed,
        has_file_type: volume.incompat(Incompat::FILETYPE),
        log: volume.log(),
        names: Vec::new(),
        met: 0,
        tree: None,
    };
    match &dir.inline {
        Some(bytes) => check.inline(bytes),
        None => check.blocks(),
    }
    check.duplicates();
    if let Some(tree) = check.tree.take() {
        tree.check(dir.ino, &mut check.log);
    }
    check.log
}

impl Check<'_, '_> {
    fn inline(&mut self, bytes: &[u8]) {
        // The parent is where a record would start.
        let Some(first) = RawDirEntry::ref_from_prefix(bytes) else { return };
        let parent = Ino(first.inode.get());
        self.dir.dotdot.store(parent.get(), Ordering::Relaxed);
        self.met = 2;
        self.inodes.count(self.dir.ino);
        self.dot_entry(b"..", parent);
        let area = bytes.get(4..60).unwrap_or_default();
        self.records(0, area, area.len());
        let area = bytes.get(60..).unwrap_or_default();
        if !area.is_empty() {
            self.records(1, area, area.len());
        }
    }

    /// Reads the parent of a directory with inline data, which is no record.
    fn dot_entry(&mut self, name: &[u8], ino: Ino) {
        let (dir, layout) = (self.dir.ino, &self.volume.layout);
        let n = ino.get();
        if (ino != Ino::ROOT && n < layout.first_ino.get()) || n > layout.inodes_count {
            self.log.add(Problem::EntryInode { dir, name: name.to_vec(), found: n.into() });
        } else if self.inodes.kind(ino) & kind::USED == 0 {
            self.log.add(Problem::EntryUnused { dir, name: name.to_vec(), found: ino });
        } else {
            self.inodes.count(ino);
        }
    }

    fn blocks(&mut self) {
        let size = self.volume.block_size();
        let mut bytes = Vec::new();
        let mut next = 0;
        for &(logical, start, len) in &self.dir.runs {
            if logical > next {
                self.log.add(Problem::DirHole { dir: self.dir.ino, block: next });
            }
            next = next.max(logical.saturating_add(len));
            let (mut done, most) = (0, (READ_BYTES / size) as u32);
            while done < len {
                let count = most.min(len - done);
                bytes.resize(count as usize * size, 0);
                let block = BlockNo(start + u64::from(done));
                if !self.volume.read(block, &mut bytes, &mut self.log) {
                    return;
                }
                for (index, block) in (0..).zip(bytes.chunks_exact(size)) {
                    self.block(logical.saturating_add(done + index), block);
                }
                done += count;
            }
        }
        if u64::from(next) < self.dir.blocks {
            self.log.add(Problem::DirHole { dir: self.dir.ino, block: next });
        }
        if self.met < 2 && next > 0 {
            self.log.add(Problem::DirDotDot { dir: self.dir.ino, why: "is missing" });
        }
    }

    fn block(&mut self, logical: u32, block: &[u8]) {
        if self.dir.indexed {
            if logical == 0 {
                // In a damaged directory with holes, not all blocks have a place.
                let blocks = self.dir.runs.iter().map(|run| run.2).fold(0, u32::saturating_add);
                self.tree =
                    Tree::root(self.volume, self.dir, block, self.seed, blocks, &mut self.log);
                if self.tree.is_some() {
                    self.records(0, block, block.len());
                    return;
                }
            } else if let Some(tree) = &mut self.tree
                && tree.node(self.dir.ino, logical, block, self.seed, &mut self.log)
            {
                return;
            }
        }
        self.leaf(logical, block);
    }

    fn leaf(&mut self, logical: u32, block: &[u8]) {
        let (dir, at) = (self.dir.ino, logical);
        let mut end = block.len();
        if self.seed.get().is_some() {
            match dir_entry::verify_dir_leaf(block, self.seed) {
                Err(CorruptKind::Rule { .. }) => {
                    self.log.add(Problem::DirNoChecksum { dir, block: at });
                }
                Err(_) => self.log.add(Problem::DirChecksum { dir, block: at }),
                Ok(()) => {}
            }
            if dir_entry::has_tail(block) {
                end -= TAIL_SIZE;
            }
        }
        self.records(logical, block, end);
    }

    /// The records of a block, which end at byte `end`.
    fn records(&mut self, logical: u32, block: &[u8], end: usize) {
        let mut at = 0;
        while at < end {
            let rest = &block[at..end];
            let raw = RawDirEntry::ref_from_prefix(rest);
            let why = match raw {
                None => "the header reaches past the end",
                Some(raw) => {
                    let (len, name) = (record_length(raw, end), usize::from(raw.name_len));
                    if len < 12 || len % 4 != 0 {
                        "its length is invalid"
                    } else if len > rest.len() {
                        "it reaches past the end"
                    } else if name + HEADER_SIZE > len {
                        "its name reaches past it"
                    } else if self.has_hashes(raw, &rest[HEADER_SIZE..])
                        && dir_entry::rec_len_for(name.max(1)) as usize + HASHES_SIZE > len
                    {
                        "its hashes reach past it"
                    } else {
                        self.record(logical, at, raw, &rest[HEADER_SIZE..]);
                        at += len;
                        continue;
                    }
                }
            };
            let offset = at as u32;
            self.log.add(Problem::DirBlock { dir: self.dir.ino, block: logical, offset, why });
            return;
        }
    }

    /// Whether a record has hashes, or room for them, behind its name, with which `rest` starts.
    fn has_hashes(&self, raw: &RawDirEntry, rest: &[u8]) -> bool {
        let name = rest.get(..usize::from(raw.name_len));
        self.dir.is_hashed() && !matches!(name, Some(b"." | b".."))
    }

    /// Checks one record. `rest` starts with its name.
    fn record(&mut self, logical: u32, at: usize, raw: &RawDirEntry, rest: &[u8]) {
        let ino = Ino(raw.inode.get());
        let len = usize::from(raw.name_len);
        let name = &rest[..len];
        let met = self.met;
        self.met = met.saturating_add(1);
        if met < 2 && self.dir.inline.is_none() {
            // A name of one or two bytes is followed by NUL.
            let ends = rest.get(len) == Some(&0);
            self.dot(met, name, ino, ends);
        }
        if ino.get() == 0 {
            return;
        }
        self.entry(met >= 2, name, ino, raw.file_type);
        if met >= 2 {
            let mut hasher = FxHasher::default();
            hasher.write(&self.compared(name));
            self.names.push((hasher.finish(), (u64::from(logical) << 16) | at as u64));
            let hashes = self.has_hashes(raw, rest).then(|| {
                let at = dir_entry::rec_len_for(len) as usize - HEADER_SIZE;
                dir_entry::hashes_at(rest, at)
            });
            if let Some(tree) = &mut self.tree {
                tree.name(logical, StoredName { bytes: name, hashes });
            }
        }
    }

    /// The first two records of a directory.
    fn dot(&mut self, met: u32, name: &[u8], ino: Ino, ends: bool) {
        let dir = self.dir.ino;
        if met == 0 {
            let why = if ino.get() == 0 || name != b"." {
                "is missing"
            } else if ino != dir {
                "names another inode"
            } else if !ends {
                "does not end in NUL"
            } else {
                return;
            };
            self.log.add(Problem::DirDot { dir, why });
            return;
        }
        let is_dotdot = ino.get() != 0 && name == b"..";
        if is_dotdot {
            self.dir.dotdot.store(ino.get(), Ordering::Relaxed);
        }
        if !is_dotdot || !ends {
            let why = if is_dotdot { "does not end in NUL" } else { "is missing" };
            self.log.add(Problem::DirDotDot { dir, why });
        }
    }

    /// Checks an entry with an inode. `ordinary`: neither `.` nor `..`.
    fn entry(&mut self, ordinary: bool, name: &[u8], ino: Ino, file_type: u8) {
        let (dir, layout) = (self.dir.ino, &self.volume.layout);
        let n = ino.get();
        let owned = || name.to_vec();
        let bad_name = |why| Problem::EntryName { dir, name: owned(), why };
        let is_reserved = ino != Ino::ROOT && n < layout.first_ino.get();
        if is_reserved || n > layout.inodes_count || self.volume.is_named_for_quota(ino) {
            self.log.add(Problem::EntryInode { dir, name: owned(), found: n.into() });
            return;
        }
        if ordinary {
            let problem = if name == b"." || name == b".." {
                Some(bad_name("the name is reserved for another entry"))
            } else if ino == Ino::ROOT {
                Some(Problem::EntryDirLink { dir, name: owned(), found: ino })
            } else if name.is_empty() {
                Some(bad_name("the name is empty"))
            } else {
                None
            };
            if let Some(problem) = problem {
                self.log.add(problem);
                return;
            }
        }
        let found = self.inodes.kind(ino);
        if found & kind::USED == 0 {
            self.log.add(Problem::EntryUnused { dir, name: owned(), found: ino });
            return;
        }
        if self.dir.encrypted {
            let is_file = matches!(found & kind::TYPE, 1 | 2 | 7);
            if ordinary && name.len() < ENCRYPTED_NAME_MIN {
                self.log.add(bad_name("the name is too short for an encrypted one"));
            } else if ordinary && is_file && found & kind::ENCRYPTED == 0 {
                self.log.add(bad_name("names an inode that is not encrypted"));
            } else if ordinary && is_file && self.is_of_another_policy(ino) {
                self.log.add(bad_name("names an inode that is encrypted otherwise"));
            }
        } else if dir_entry::has_slash_or_nul(name) {
            self.log.add(bad_name("the name holds a slash or NUL"));
        } else if self.dir.folding.is_some_and(|encoding| encoding.strict)
            && std::str::from_utf8(name).is_err()
        {
            self.log.add(bad_name("the name is not UTF-8"));
        }
        self.file_type(name, found, file_type);
        if ordinary && found & kind::TYPE == kind::DIRECTORY {
            self.subdirectory(name, ino);
        }
        self.inodes.count(ino);
    }

    /// Whether an encrypted inode has another policy than its directory. What is wrong with one
    /// that has none is told of the inode.
    fn is_of_another_policy(&self, ino: Ino) -> bool {
        let own = self.inodes.policy(self.dir.ino);
        let other = self.inodes.policy(ino);
        own.zip(other).is_some_and(|(own, other)| own != other)
    }

    fn file_type(&mut self, name: &[u8], kind: u8, found: u8) {
        let (dir, name) = (self.dir.ino, || name.to_vec());
        let want = if self.has_file_type { kind & kind::TYPE } else { 0 };
        if found == want {
            return;
        }
        self.log.add(if found == 0 {
            Problem::EntryTypeUnset { dir, name: name(), want }
        } else {
            Problem::EntryType { dir, name: name(), found, want }
        });
    }

    /// A directory has one entry.
    fn subdirectory(&mut self, name: &[u8], ino: Ino) {
        let own = self.dir.ino.get();
        let is_first = self.inodes.dir(ino).is_some_and(|child| {
            let parent = &child.parent;
            parent.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        if !is_first || ino.get() == own {
            let (dir, name) = (self.dir.ino, name.to_vec());
            self.log.add(Problem::EntryDirLink { dir, name, found: ino });
        }
    }

    /// What tells a name from others.
    fn compared<'n>(&self, name: &'n [u8]) -> Cow<'n, [u8]> {
        match self.dir.folding {
            Some(_) if !self.dir.encrypted => casefold::fold(name),
            _ => Cow::Borrowed(name),
        }
    }

    /// Reports duplicate names.
    fn duplicates(&mut self) {
        let mut names = std::mem::take(&mut self.names);
        names.sort_unstable();
        for pair in names.windows(2) {
            let [(hash, place), (next, other)] = pair else { continue };
            if hash != next {
                continue;
            }
            if let (Some(name), Some(same)) = (self.name_at(*place), self.name_at(*other))
                && self.compared(&name) == self.compared(&same)
            {
                self.log.add(Problem::EntryDuplicate { dir: self.dir.ino, name });
            }
        }
    }

    /// The name of a record that was read before.
    fn name_at(&mut self, place: u64) -> Option<Vec<u8>> {
        let (logical, at) = ((place >> 16) as u32, (place & 0xffff) as usize);
        let name_of = |block: &[u8]| {
            let rest = block.get(at..)?;
            let len = usize::from(RawDirEntry::ref_from_prefix(rest)?.name_len);
            Some(rest.get(HEADER_SIZE..)?.get(..len)?.to_vec())
        };
        if let Some(bytes) = &self.dir.inline {
            let area = if logical == 0 { bytes.get(4..60) } else { bytes.get(60..) };
            return name_of(area?);
        }
        let run = self.dir.runs.iter().find(|run| logical >= run.0 && logical - run.0 < run.2)?;
        let block = run.1 + u64::from(logical - run.0);
        name_of(&self.volume.block(block, &mut self.log)?)
    }
}
