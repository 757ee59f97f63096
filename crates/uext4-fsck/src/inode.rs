//! Pass 1: every inode of a group, its blocks and attributes.

use uext4_ondisk::{
    Compat, CorruptKind, FileKind, GroupNo, Incompat, Ino, InodeFlags, RawInode, RoCompat, extent,
    inode,
};

use crate::content::{self, Content};
use crate::log::Log;
use crate::problem::Problem;
use crate::quota::Usage;
use crate::report::Counts;
use crate::volume::{Dir, GroupInodes, READ_BYTES, Volume, kind};
use crate::xattr::{Encryption, Found, Table};

/// Inode of the list of bad blocks, and of the boot loader.
const BAD_BLOCKS: Ino = Ino(1);
const BOOT_LOADER: Ino = Ino(5);

/// What a worker found in one group.
pub(crate) struct Scan<'a, 'd> {
    pub(crate) volume: &'a Volume<'d>,
    xattrs: &'a Table,
    pub(crate) inodes: GroupInodes,
    pub(crate) dirs: Vec<Dir>,
    pub(crate) log: Log,
    pub(crate) counts: Counts,
    pub(crate) has_large_file: bool,
    pub(crate) usage: Usage,
    check_low_dtime: bool,
}

/// Checks every inode of a group that may be in use.
pub(crate) fn scan<'a, 'd>(
    volume: &'a Volume<'d>,
    xattrs: &'a Table,
    group: GroupNo,
) -> Scan<'a, 'd> {
    let mut scan = Scan {
        volume,
        xattrs,
        inodes: GroupInodes::default(),
        dirs: Vec::new(),
        log: volume.log(),
        counts: Counts::default(),
        has_large_file: false,
        usage: Usage::default(),
        check_low_dtime: low_dtime_means_orphan(volume),
    };
    scan.table(group);
    scan
}

/// The orphan list is linked through `i_dtime`. With a clock near 1970 a time of deletion looks
/// like an inode number.
fn low_dtime_means_orphan(volume: &Volume<'_>) -> bool {
    let (sb, count) = (&volume.sb, volume.layout.inodes_count);
    let made = sb.s_mkfs_time.get();
    sb.s_wtime.get() >= count && sb.s_mtime.get() >= count && (made == 0 || made >= count)
}

impl Scan<'_, '_> {
    fn table(&mut self, group: GroupNo) {
        let volume = self.volume;
        let Some(found) = volume.groups.get(group.get() as usize) else { return };
        let Some(table) = found.inode_table else { return };
        let size = volume.layout.inode_size as usize;
        let mut left = found.inodes_scanned as usize;
        let zero = vec![0; size];
        let mut bytes = vec![0; (left * size).min(READ_BYTES)];
        let mut block = table;
        let mut index = 0_u32;
        while left > 0 {
            let count = left.min(READ_BYTES / size);
            let bytes = &mut bytes[..count * size];
            if !volume.read(block, bytes, &mut self.log) {
                bytes.fill(0);
            }
            for slot in bytes.chunks_exact(size) {
                let ino = volume.layout.ino_of(group, index);
                let is_reserved = ino.get() < volume.layout.first_ino.get();
                if is_reserved || slot != zero {
                    self.inode(ino, index as usize, slot, slot == zero);
                }
                index += 1;
            }
            left -= count;
            block = block.plus((READ_BYTES / volume.block_size()) as u64);
        }
        let used = self.inodes.kinds.len();
        self.inodes.counted.resize_with(used, Default::default);
    }

    fn use_inode(&mut self, index: usize, raw: &RawInode) {
        let inodes = &mut self.inodes;
        if inodes.kinds.len() <= index {
            inodes.kinds.resize(index + 1, 0);
            inodes.links.resize(index + 1, 0);
        }
        let flags = raw.flags();
        let mut bits = kind::USED | raw.kind().map_or(0, FileKind::dirent);
        if flags.contains(InodeFlags::EA_INODE) {
            bits |= kind::EA;
        }
        if flags.contains(InodeFlags::ENCRYPT) {
            bits |= kind::ENCRYPTED;
        }
        inodes.kinds[index] = bits;
        inodes.links[index] = raw.i_links_count.get();
        self.counts.inodes_used += 1;
    }

    fn inode(&mut self, ino: Ino, index: usize, slot: &[u8], is_zero: bool) {
        let mut full = [0; inode::FULL_SIZE];
        let known = slot.len().min(full.len());
        full[..known].copy_from_slice(&slot[..known]);
        let Some(raw) = RawInode::from_prefix(&full) else { return };
        let volume = self.volume;
        let seed = volume.layout.checksums.inode_seed(ino, raw.i_generation.get());
        if !is_zero
            && let Err(CorruptKind::Checksum { want, found, .. }) = inode::verify_inode(slot, seed)
        {
            self.log.add(Problem::InodeChecksum { ino, found, want });
        }
        if volume.is_hidden(ino) {
            self.hidden(ino, index, &raw, slot);
            return;
        }
        if ino == Ino::ROOT {
            self.root(&raw);
        }
        let (links, dtime) = (raw.i_links_count.get(), raw.i_dtime.get());
        let low = self.check_low_dtime && dtime != 0 && dtime < volume.layout.inodes_count;
        if links == 0 {
            if low {
                self.log.add(Problem::OrphanInode { ino });
            } else if dtime == 0 && raw.i_mode.get() != 0 {
                self.log.add(Problem::InodeZeroDtime { ino });
            }
            return;
        }
        if low {
            self.log.add(Problem::OrphanInode { ino });
        } else if dtime != 0 {
            self.log.add(Problem::InodeDeleted { ino });
        }
        self.use_inode(index, &raw);
        self.fields(ino, &raw, slot);
        let found = self.attributes(ino, &raw, slot);
        self.content(ino, &raw, &found);
    }

    /// Checks inodes that no directory has an entry for.
    fn hidden(&mut self, ino: Ino, index: usize, raw: &RawInode, slot: &[u8]) {
        let volume = self.volume;
        let mode = raw.i_mode.get();
        self.use_inode(index, raw);
        if ino == BAD_BLOCKS {
            content::bad_blocks(volume, raw, &mut self.log);
            return;
        }
        let n = ino.get();
        let is_regular = raw.kind() == Some(FileKind::Regular);
        let has_journal = volume.compat(Compat::HAS_JOURNAL) || n == volume.sb.s_journal_inum.get();
        let holds = (n == volume.sb.s_journal_inum.get() && has_journal)
            || volume.is_quota(ino)
            || (n == volume.sb.s_orphan_file_inum.get() && volume.compat(Compat::ORPHAN_FILE));
        let fine = if holds {
            is_regular
        } else if ino == BOOT_LOADER {
            raw.kind() != Some(FileKind::Directory)
        } else if ino == Ino::RESIZE {
            mode == 0 || is_regular
        } else {
            mode == 0
        };
        if !fine {
            self.log.add(Problem::InodeReservedMode { ino, mode });
        }
        let found = self.attributes(ino, raw, slot);
        let result = content::check(volume, ino, raw, &found, &mut self.log);
        // Its blocks are spread over the groups by design.
        if ino != Ino::RESIZE {
            self.note(&result);
        }
    }

    fn root(&mut self, raw: &RawInode) {
        let why = if raw.kind() != Some(FileKind::Directory) {
            "is no directory"
        } else if raw.i_links_count.get() == 0 {
            "has no links"
        } else {
            return;
        };
        self.log.add(Problem::InodeRoot { why });
    }

    /// Fields whose value does not depend on the blocks.
    fn fields(&mut self, ino: Ino, raw: &RawInode, slot: &[u8]) {
        let volume = self.volume;
        let is_linux = volume.sb.s_creator_os.get() != 1;
        let mut unused = |is_set: bool, field| {
            if is_set {
                self.log.add(Problem::InodeUnusedField { ino, field });
            }
        };
        unused(raw.i_obso_faddr.get() != 0, "i_faddr");
        let acl_high = raw.l_i_file_acl_high.get() != 0;
        unused(is_linux && acl_high && !volume.layout.has_64bit(), "i_file_acl_high");
        let blocks_high = raw.l_i_blocks_high.get() != 0;
        unused(is_linux && blocks_high && !volume.ro_compat(RoCompat::HUGE_FILE), "i_blocks_high");
        let flags = raw.flags();
        if flags.contains(InodeFlags::IMAGIC) && !volume.compat(Compat::IMAGIC_INODES) {
            self.log.add(Problem::InodeFlags { ino, why: "has the imagic flag" });
        }
        let extra = raw.i_extra_isize.get();
        let room = slot.len() - inode::CLASSIC_SIZE;
        let bad_extra =
            extra != 0 && (extra < 4 || usize::from(extra) > room || !extra.is_multiple_of(4));
        if room > 0 && bad_extra {
            self.log.add(Problem::InodeExtraSize { ino, found: extra });
        }
    }

    fn attributes(&mut self, ino: Ino, raw: &RawInode, slot: &[u8]) -> Found {
        let found = self.xattrs.check(self.volume, ino, raw, slot, &mut self.log);
        let flags = raw.flags();
        let mut bad = |why| self.log.add(Problem::InodeEncryption { ino, why });
        if flags.contains(InodeFlags::ENCRYPT) && ino.get() >= self.volume.layout.first_ino.get() {
            if !self.volume.incompat(Incompat::ENCRYPT) {
                bad("is encrypted without the encrypt feature");
            } else {
                match found.encryption {
                    None => bad("is encrypted, but has no encryption context"),
                    Some(Encryption::Corrupt) => bad("has an encryption context that is damaged"),
                    Some(Encryption::InValueInode) => {}
                    Some(Encryption::Policy(policy)) => self.inodes.policies.push((ino, policy)),
                }
            }
        }
        found
    }

    /// What depends on the type.
    fn content(&mut self, ino: Ino, raw: &RawInode, found: &Found) {
        let volume = self.volume;
        self.flags(ino, raw);
        let Some(file_kind) = raw.kind() else {
            self.log.add(Problem::InodeMode { ino, mode: raw.i_mode.get() });
            return;
        };
        match file_kind {
            FileKind::Regular => self.counts.files += 1,
            FileKind::Directory => self.counts.directories += 1,
            FileKind::Symlink => self.counts.symlinks += 1,
            _ => self.counts.special += 1,
        }
        let result = content::check(volume, ino, raw, found, &mut self.log);
        self.note(&result);
        if volume.ro_compat(RoCompat::QUOTA) {
            self.usage.add(volume, raw, result.owned, found.values);
        }
        if file_kind == FileKind::Regular && raw.size() >= 1 << 31 {
            self.has_large_file = true;
        }
        if let Some(dir) = content::directory(ino, raw, found, result, volume) {
            self.dirs.push(dir);
        }
    }

    fn note(&mut self, result: &Content) {
        if result.fragments > 1 {
            self.counts.fragmented += 1;
        }
    }

    /// Flags against type and features.
    fn flags(&mut self, ino: Ino, raw: &RawInode) {
        let (volume, flags) = (self.volume, raw.flags());
        let file_kind = raw.kind();
        let mut bad = |why| self.log.add(Problem::InodeFlags { ino, why });
        let (extents, inline) =
            (flags.contains(InodeFlags::EXTENTS), flags.contains(InodeFlags::INLINE_DATA));
        if extents && !volume.incompat(Incompat::EXTENT) {
            bad("is mapped by extents without the extent feature");
        }
        if inline && !volume.incompat(Incompat::INLINE_DATA) {
            bad("has data in the inode without the inline_data feature");
        }
        if extents && inline {
            bad("has extents and data in the inode at once");
        }
        if flags.contains(InodeFlags::INDEX) && file_kind != Some(FileKind::Directory) {
            bad("has the index flag and is no directory");
        }
        let looks_mapped =
            extent::RawExtentHeader::ref_from_prefix(&raw.i_block).is_some_and(|h| {
                h.eh_magic.get() == extent::EXTENT_MAGIC && h.eh_max.get() == extent::ROOT_ENTRIES
            });
        let has_blocks = matches!(file_kind, Some(FileKind::Regular | FileKind::Directory));
        if looks_mapped && has_blocks && !extents && !inline && volume.incompat(Incompat::EXTENT) {
            bad("holds extents, but has no extents flag");
        }
        if flags.contains(InodeFlags::CASEFOLD) {
            if file_kind != Some(FileKind::Directory) {
                bad("has the casefold flag and is no directory");
            } else if !volume.incompat(Incompat::CASEFOLD) {
                bad("has the casefold flag without the feature");
            }
        }
        let special = !matches!(file_kind, Some(FileKind::Regular | FileKind::Directory) | None);
        if special && flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            bad("is no file or directory, but immutable or append-only");
        }
    }
}
