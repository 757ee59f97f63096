//! Hidden inodes that the file system itself uses: journal, orphan file, resize inode.

use uext4_ondisk::journal::{JournalIncompat, JournalLayout, RawJournalSuperblock};
use uext4_ondisk::{BlockNo, Compat, FileKind, Incompat, Ino, RawInode, RoCompat, orphan};

use crate::log::Log;
use crate::map::Find;
use crate::problem::Problem;
use crate::volume::Volume;

/// Blocks of the shortest journal.
const JOURNAL_MIN: u64 = 1024;

/// Checks the journal without replaying it.
pub(crate) fn journal(volume: &Volume<'_>, log: &mut Log) {
    let ino = Ino(volume.sb.s_journal_inum.get());
    if !volume.compat(Compat::HAS_JOURNAL) {
        if ino.get() == 0 || volume.sb.s_rev_level.get() == 0 {
            return;
        }
        log.add(Problem::JournalUnexpected { ino });
    }
    let bad = |why| Problem::JournalInode { ino, why };
    let slot = volume.slot(ino, log);
    let Some(raw) = slot.and_then(|slot| RawInode::read(&slot).ok()) else {
        log.add(bad("there is no such inode"));
        return;
    };
    if raw.i_links_count.get() == 0 || raw.kind() != Some(FileKind::Regular) {
        log.add(bad("it is not a file in use"));
        return;
    }
    let blocks = raw.size() / u64::from(volume.layout.block_size);
    let find = Find::of(volume, ino, &raw, 0);
    if blocks < JOURNAL_MIN {
        log.add(bad("it is too short"));
    } else if find.count < blocks || find.end < blocks {
        log.add(bad("it has holes"));
    }
    if let Some(bytes) = find.found.and_then(|block| volume.block(block, log)) {
        journal_superblock(volume, ino, &bytes, blocks, log);
    }
}

/// Checks a journal superblock, that of inode `ino`, or of a device if that is 0.
pub(crate) fn journal_superblock(
    volume: &Volume<'_>,
    ino: Ino,
    bytes: &[u8],
    blocks: u64,
    log: &mut Log,
) {
    let bad = |why: String| Problem::JournalSuperblock { ino, why };
    let sb = match RawJournalSuperblock::read(bytes) {
        Ok(sb) => sb,
        Err(error) => {
            log.add(bad(error.to_string()));
            return;
        }
    };
    // Fast commits change the end of the log, and nothing else that matters here.
    let mut plain = sb;
    let incompat = sb.s_feature_incompat.get();
    plain.s_feature_incompat.set(incompat & !JournalIncompat::FAST_COMMIT.bits());
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    if let Err(error) = JournalLayout::new(&plain, volume.layout.block_size, blocks) {
        log.add(bad(error.to_string()));
    }
    if ino.get() != 0 && sb.s_nr_users.get() > 1 {
        log.add(bad(format!("{} users of a journal inside a file system", sb.s_nr_users.get())));
    }
    if sb.s_errno.get() != 0 {
        log.add(Problem::JournalErrno { ino, errno: sb.s_errno.get().cast_signed() });
    }
    if sb.s_start.get() != 0 {
        let marked = volume.incompat(Incompat::RECOVER);
        let dirty = Problem::JournalDirty { ino };
        log.add(if marked { dirty } else { Problem::JournalNotMarked { ino } });
    }
}

/// Checks the orphan file, which must be empty in a file system that is not mounted.
pub(crate) fn orphan_file(volume: &Volume<'_>, log: &mut Log) {
    if !volume.compat(Compat::ORPHAN_FILE) {
        return;
    }
    let ino = Ino(volume.sb.s_orphan_file_inum.get());
    let bad = |why: String| Problem::OrphanFile { ino, why };
    let slot = volume.slot(ino, log);
    let raw = slot.and_then(|slot| RawInode::read(&slot).ok());
    let Some(raw) = raw.filter(|raw| raw.i_links_count.get() != 0) else {
        log.add(bad("there is no such inode".to_owned()));
        return;
    };
    if raw.kind() != Some(FileKind::Regular) {
        log.add(bad("it is no file".to_owned()));
        return;
    }
    let block_size = u64::from(volume.layout.block_size);
    if raw.size() == 0 || raw.size() % block_size != 0 {
        log.add(bad(format!("its size is {}", raw.size())));
    }
    let seed = volume.layout.checksums.inode_seed(ino, raw.i_generation.get());
    let find = Find::of(volume, ino, &raw, 0);
    if find.count < raw.size() / block_size {
        log.add(bad("it has holes".to_owned()));
    }
    let mut dirty = false;
    let blocks = find.runs.iter().flat_map(|run| run.start..run.start + run.len);
    // The format allows 512 blocks.
    for block in blocks.take(512) {
        let Some(bytes) = volume.block(block, log) else { continue };
        if let Err(error) = orphan::verify_orphan_block(&bytes, seed, BlockNo(block)) {
            log.add(bad(format!("block {block}: {error}")));
        } else if orphan::entries(&bytes).next().is_some() {
            log.add(Problem::OrphanFileDirty { ino, block });
            dirty = true;
        }
    }
    if !dirty && volume.ro_compat(RoCompat::ORPHAN_PRESENT) {
        log.add(Problem::OrphanPresent {});
    }
}

/// Checks the inode that reserves blocks for group descriptors.
pub(crate) fn resize(volume: &Volume<'_>, log: &mut Log) {
    let Some(slot) = volume.slot(Ino::RESIZE, log) else { return };
    let Ok(raw) = RawInode::read(&slot) else { return };
    let is_zero = raw.i_block.iter().all(|byte| *byte == 0);
    if !volume.compat(Compat::RESIZE_INODE) {
        if !is_zero {
            log.add(Problem::ResizeStale {});
        }
        return;
    }
    if let Err(why) = resize_shape(volume, &raw) {
        log.add(Problem::ResizeInode { why });
        return;
    }
    let root = uext4_ondisk::block_map::direct(&raw.i_block, 13).get();
    if let Some(root) = volume.block(root, log) {
        reserved_blocks(volume, &root, log);
    }
}

fn resize_shape(volume: &Volume<'_>, raw: &RawInode) -> Result<(), &'static str> {
    use uext4_ondisk::block_map::direct;
    if raw.kind() != Some(FileKind::Regular) {
        return Err("it is no file");
    }
    if raw.i_links_count.get() == 0 {
        return Err("it has no link");
    }
    if raw.i_blocks_lo.get() == 0 || (0..15).any(|n| n != 13 && direct(&raw.i_block, n).get() != 0)
    {
        return Err("it is not mapped by double indirect blocks alone");
    }
    if !volume.is_valid(direct(&raw.i_block, 13).get()) {
        return Err("its double indirect block is outside the file system");
    }
    Ok(())
}

/// Each reserved block of the primary copy lists its counterparts in the groups with backups.
fn reserved_blocks(volume: &Volume<'_>, root: &[u8], log: &mut Log) {
    let layout = &volume.layout;
    let per_block = layout.block_size / 4;
    let with_meta_bg = volume.incompat(Incompat::META_BG);
    let tables =
        if with_meta_bg { volume.sb.s_first_meta_bg.get() } else { layout.desc_block_count() };
    let first = layout.super_block_no().get() + 1 + u64::from(tables);
    let backups: Vec<u64> = volume
        .group_numbers()
        .skip(1)
        .filter(|group| layout.has_super(*group))
        .map(|group| u64::from(group.get()) * u64::from(layout.blocks_per_group))
        .take(per_block as usize)
        .collect();
    let entry = |bytes: &[u8], index| uext4_ondisk::block_map::entry(bytes, index).get();
    for n in 0..layout.reserved_gdt_blocks {
        let want = first + u64::from(n);
        let found = entry(root, (tables + n) % per_block);
        if found != want {
            log.add(Problem::ResizeBlocks { found, want });
            return;
        }
        let Some(bytes) = volume.block(found, log) else { return };
        for (index, offset) in (0..).zip(&backups) {
            let (found, want) = (entry(&bytes, index), want + offset);
            if found != want {
                log.add(Problem::ResizeBlocks { found, want });
                return;
            }
        }
    }
}
