//! Extended attributes: in the inode, in a block that inodes share, in inodes of their own.
//!
//! Locking: the table of blocks is shared by all workers; a block is judged by the one that meets
//! it first, under the lock, so that the others find the verdict.

use std::sync::Mutex;

use rustc_hash::FxHashMap;
use uext4_ondisk::xattr::{
    self, BLOCK_HEADER_SIZE, ENTRY_SIZE, IBODY_HEADER_SIZE, RawXattrEntry, RawXattrHeader,
    RawXattrIbodyHeader, XATTR_MAGIC,
};
use uext4_ondisk::{
    BlockNo, Compat, CorruptKind, Incompat, Ino, InodeFlags, RawInode, encryption, inode,
};

use crate::log::Log;
use crate::problem::Problem;
use crate::volume::Volume;

/// What the first look at an attribute block found.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    refcount: u32,
    count: u32,
    /// Blocks of values in inodes of their own, which count for every owner.
    value_blocks: u64,
    values: u64,
    sound: bool,
    encryption: Option<Encryption>,
}

/// What an inode's encryption context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// It cannot be read.
    Corrupt,
    /// The number of its policy in this check: inodes of one policy have the same.
    Policy(u32),
    /// It is in an inode of its own, where nobody puts so few bytes. Its policy is not compared.
    InValueInode,
}

/// Attribute blocks and value inodes of the whole file system.
#[derive(Debug, Default)]
pub(crate) struct Table {
    blocks: Mutex<FxHashMap<u64, Seen>>,
    values: Mutex<FxHashMap<u32, u64>>,
    /// Numbers of encryption policies, by their bytes.
    policies: Mutex<FxHashMap<Vec<u8>, u32>>,
}

/// What the attributes of an inode add to it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Blocks (clusters with bigalloc), the attribute block included.
    pub(crate) blocks: u64,
    /// Values in inodes of their own.
    pub(crate) values: u64,
    /// The encryption context.
    pub(crate) encryption: Option<Encryption>,
    /// Value of `system.data`: the rest of data kept in the inode.
    pub(crate) inline: Option<Vec<u8>>,
}

/// One area of attributes under judgement.
struct Area<'a, 'd> {
    table: &'a Table,
    volume: &'a Volume<'d>,
    ino: Ino,
    generation: u32,
    bytes: &'a [u8],
    in_inode: bool,
    /// Bytes taken: start and end.
    taken: Vec<(usize, usize)>,
    /// Value inodes met.
    values: Vec<u32>,
    value_blocks: u64,
    encryption: Option<Encryption>,
    inline: Option<Vec<u8>>,
}

/// Name index of `system.`
const INDEX_SYSTEM: u8 = 7;

impl Area<'_, '_> {
    fn take(&mut self, from: usize, len: usize) -> Result<(), &'static str> {
        let to = from + len;
        if to > self.bytes.len() {
            return Err("an entry or a value reaches past the end");
        }
        if self.taken.iter().any(|(f, t)| from < *t && *f < to) {
            return Err("entries and values overlap");
        }
        self.taken.push((from, to));
        Ok(())
    }

    /// Judges all entries from `first` on. `Err`: the rest cannot be read.
    fn entries(&mut self, first: usize, log: &mut Log) -> Result<(), &'static str> {
        let mut at = first;
        loop {
            let rest = self.bytes.get(at..).unwrap_or_default();
            let last = rest.first_chunk::<4>().is_none_or(|word| *word == [0; 4]);
            if last || (self.in_inode && rest.len() < ENTRY_SIZE) {
                break;
            }
            let Some(raw) = RawXattrEntry::from_prefix(rest) else {
                return Err("an entry reaches past the end");
            };
            let len = xattr::entry_len(usize::from(raw.e_name_len));
            self.take(at, len)?;
            // As in e2fsck, not in the inode, where nothing finds such an entry either.
            if raw.e_name_index == 0 && !self.in_inode {
                return Err("an entry has no name index");
            }
            self.entry(&raw, at, log)?;
            at += len;
        }
        if !self.in_inode {
            self.take(at, 4)?;
        }
        Ok(())
    }

    fn entry(&mut self, raw: &RawXattrEntry, at: usize, log: &mut Log) -> Result<(), &'static str> {
        let (from, size) = (usize::from(raw.e_value_offs.get()), raw.e_value_size.get() as usize);
        let name = at + ENTRY_SIZE;
        let bytes = self.bytes;
        let name = bytes.get(name..name + usize::from(raw.e_name_len)).unwrap_or_default();
        let is_context =
            raw.e_name_index == encryption::XATTR_INDEX && name == encryption::XATTR_NAME;
        if raw.e_value_inum.get() != 0 {
            self.value_inode(raw, name, log);
            if is_context {
                self.encryption = Some(Encryption::InValueInode);
            }
            return Ok(());
        }
        if size > bytes.len() || from + size > bytes.len() {
            return Err("a value reaches past the end");
        }
        if size > 0 {
            self.take(from, xattr::value_len(size))?;
        }
        let value = bytes.get(from..from + size).unwrap_or_default();
        // The hash takes in the bytes that fill up the last word.
        let padded = bytes.get(from..from + xattr::value_len(size)).unwrap_or(value);
        if is_context {
            self.encryption = Some(self.table.encryption(value));
        }
        if raw.e_name_index == INDEX_SYSTEM && name == b"data" {
            self.inline = Some(value.to_vec());
        }
        let hash = raw.e_hash.get();
        let unhashed = self.in_inode && hash == 0;
        if !unhashed
            && hash != xattr::entry_hash(name, padded)
            && hash != xattr::entry_hash_signed(name, padded)
        {
            log.add(Problem::XattrHash { ino: self.ino, found: hash });
        }
        Ok(())
    }

    /// A value in an inode of its own.
    fn value_inode(&mut self, raw: &RawXattrEntry, name: &[u8], log: &mut Log) {
        let value = raw.e_value_inum.get();
        let (ino, layout) = (self.ino, &self.volume.layout);
        let bad = |why| Problem::XattrValueInode { ino, value: value.into(), why };
        let in_range = value >= layout.first_ino.get() && value <= layout.inodes_count;
        if !in_range || !self.volume.incompat(Incompat::EA_INODE) {
            log.add(bad("there may be no such inode"));
            return;
        }
        let slot = self.volume.slot(Ino(value), log).unwrap_or_default();
        let Some(holder) = RawInode::from_prefix(&slot) else { return };
        // The time of access is replaced by the hash of the value.
        let stored = holder.bytes().get(8..12).unwrap_or_default();
        let hash = raw.e_hash.get();
        let hashed = hash == xattr::entry_hash(name, stored)
            || hash == xattr::entry_hash_signed(name, stored);
        // Lustre names the owner instead.
        let named =
            holder.i_mtime.get() == ino.get() && holder.i_generation.get() == self.generation;
        if !hashed && !named {
            log.add(Problem::XattrHash { ino, found: hash });
            return;
        }
        if !holder.flags().contains(InodeFlags::EA_INODE) {
            log.add(bad("it is not marked as holding one"));
        }
        if holder.size() != u64::from(raw.e_value_size.get()) {
            log.add(bad("it has another size"));
        }
        let cluster = u64::from(layout.block_size) * u64::from(layout.cluster_blocks);
        self.value_blocks += u64::from(raw.e_value_size.get()).div_ceil(cluster);
        self.values.push(value);
    }
}

impl Table {
    /// Judges the attributes of an inode.
    pub(crate) fn check(
        &self,
        volume: &Volume<'_>,
        ino: Ino,
        raw: &RawInode,
        slot: &[u8],
        log: &mut Log,
    ) -> Found {
        let mut found = Found::default();
        self.in_inode(volume, ino, raw, slot, &mut found, log);
        let block = raw.file_acl();
        let block = if volume.layout.has_64bit() { block } else { block & 0xffff_ffff };
        if block == 0 {
            return found;
        }
        if !volume.compat(Compat::EXT_ATTR) || !volume.is_valid(block) {
            log.add(Problem::XattrPlace { ino, block });
            return found;
        }
        let Ok(mut blocks) = self.blocks.lock() else { return found };
        let seen = blocks.entry(block).or_insert_with(|| {
            let mut seen = self.first_look(volume, ino, raw, BlockNo(block), log);
            seen.sound &= !volume.claims.claim(block, 1);
            seen
        });
        seen.count += 1;
        found.encryption = found.encryption.or(seen.encryption);
        found.blocks += 1 + seen.value_blocks;
        found.values += seen.values;
        found
    }

    fn in_inode(
        &self,
        volume: &Volume<'_>,
        ino: Ino,
        raw: &RawInode,
        slot: &[u8],
        found: &mut Found,
        log: &mut Log,
    ) {
        let Some(at) = inode::xattr_offset(slot) else { return };
        let rest = slot.get(at..).unwrap_or_default();
        let header = RawXattrIbodyHeader::ref_from_prefix(rest);
        if header.is_none_or(|header| header.h_magic.get() != XATTR_MAGIC) {
            return;
        }
        let bytes = rest.get(IBODY_HEADER_SIZE..).unwrap_or_default();
        let mut area = Area {
            table: self,
            volume,
            ino,
            generation: raw.i_generation.get(),
            bytes,
            in_inode: true,
            taken: Vec::new(),
            values: Vec::new(),
            value_blocks: 0,
            encryption: None,
            inline: None,
        };
        if let Err(why) = area.entries(0, log) {
            log.add(Problem::XattrInode { ino, why });
        }
        found.blocks += area.value_blocks;
        found.values += area.values.len() as u64;
        found.encryption = area.encryption;
        found.inline = area.inline.take();
        self.count_values(&area.values);
    }

    fn encryption(&self, context: &[u8]) -> Encryption {
        let Some(policy) = encryption::Context::policy_bytes(context) else {
            return Encryption::Corrupt;
        };
        let Ok(mut policies) = self.policies.lock() else { return Encryption::Corrupt };
        let next = u32::try_from(policies.len()).unwrap_or(u32::MAX);
        match policies.get(policy) {
            Some(&number) => Encryption::Policy(number),
            None => Encryption::Policy(*policies.entry(policy.to_vec()).or_insert(next)),
        }
    }

    fn count_values(&self, values: &[u32]) {
        if values.is_empty() {
            return;
        }
        if let Ok(mut counts) = self.values.lock() {
            values.iter().for_each(|value| *counts.entry(*value).or_default() += 1);
        }
    }

    fn first_look(
        &self,
        volume: &Volume<'_>,
        ino: Ino,
        raw: &RawInode,
        block: BlockNo,
        log: &mut Log,
    ) -> Seen {
        let Some(bytes) = volume.block(block.get(), log) else { return Seen::default() };
        let bad = |why: String| Problem::XattrBlock { block, ino, why };
        match xattr::verify_xattr_block(&bytes, &volume.layout.checksums, block) {
            Ok(()) => {}
            Err(CorruptKind::Checksum { .. }) => log.add(Problem::XattrChecksum { block, ino }),
            Err(error) => {
                log.add(bad(error.to_string()));
                return Seen::default();
            }
        }
        let mut area = Area {
            table: self,
            volume,
            ino,
            generation: raw.i_generation.get(),
            bytes: &bytes,
            in_inode: false,
            taken: vec![(0, BLOCK_HEADER_SIZE)],
            values: Vec::new(),
            value_blocks: 0,
            encryption: None,
            inline: None,
        };
        let sound = match area.entries(BLOCK_HEADER_SIZE, log) {
            Ok(()) => true,
            Err(why) => {
                log.add(bad(why.to_owned()));
                false
            }
        };
        self.count_values(&area.values);
        let refcount = RawXattrHeader::ref_from_prefix(&bytes).map_or(0, |h| h.h_refcount.get());
        let (value_blocks, values) = (area.value_blocks, area.values.len() as u64);
        let encryption = area.encryption;
        Seen { refcount, count: 0, value_blocks, values, sound, encryption }
    }

    /// Judges the reference counts, when every inode has been met.
    pub(crate) fn refcounts(&self, log: &mut Log) {
        let Ok(blocks) = self.blocks.lock() else { return };
        let mut wrong: Vec<(u64, Seen)> = blocks
            .iter()
            .filter(|(_, seen)| seen.sound && seen.refcount != seen.count)
            .map(|(block, seen)| (*block, *seen))
            .collect();
        wrong.sort_unstable_by_key(|(block, _)| *block);
        for (block, seen) in wrong {
            let block = BlockNo(block);
            log.add(Problem::XattrRefcount { block, found: seen.refcount, want: seen.count });
        }
    }

    /// References to a value inode.
    pub(crate) fn value_references(&self, ino: Ino) -> u64 {
        let values = self.values.lock();
        values.map_or(0, |values| values.get(&ino.get()).copied().unwrap_or(0))
    }
}

/// Reference count that a value inode keeps of itself.
pub(crate) fn stored_references(raw: &RawInode) -> u64 {
    (u64::from(raw.i_ctime.get()) << 32) | u64::from(raw.l_i_version.get())
}
