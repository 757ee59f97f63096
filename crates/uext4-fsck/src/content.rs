//! Pass 1, the content of one inode: claims its blocks, and compares its size and space.

use std::sync::atomic::AtomicU32;

use uext4_ondisk::{FileKind, Incompat, Ino, InodeFlags, RawInode, RoCompat, block_map};

use crate::claims::Shared;
use crate::log::Log;
use crate::map::{self, Mapped, Run, Visitor};
use crate::problem::Problem;
use crate::volume::{Dir, Volume};
use crate::xattr::Found;

/// Bytes of data that `i_block` holds.
const INLINE_MIN: u64 = 60;
/// Most index blocks of the resize inode. More of them would be a loop.
const RESIZE_NODES_MAX: u64 = 2048;

/// What is known of an inode's blocks.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// Runs of a directory.
    pub(crate) runs: Vec<(u32, u64, u32)>,
    /// Runs on the device.
    pub(crate) fragments: u64,
    /// Blocks, or clusters: data, attributes and the mapping itself.
    pub(crate) owned: u64,
    /// Blocks, or clusters: data and the mapping itself.
    count: u64,
    /// One past the last block of the file.
    end: u64,
    /// The last block that is written; `None` where there is none.
    last_written: Option<u64>,
}

/// Claims the blocks of one inode.
struct Claimer<'a, 'd> {
    volume: &'a Volume<'d>,
    ino: Ino,
    is_dir: bool,
    is_link: bool,
    content: Content,
    /// The last block so far, in the file and on the device.
    before: Option<(u64, u64)>,
    nodes: u64,
}

impl Claimer<'_, '_> {
    /// The part of a run that needs clusters of its own. The first cluster may belong to the run
    /// before.
    fn claim_clusters(&mut self, run: Run, log: &mut Log) {
        let ratio = u64::from(self.volume.layout.cluster_blocks);
        let rule = |at: u64| at % ratio;
        let cluster = run.start / ratio;
        let crosses = self.before.is_some_and(|(logical, block)| {
            rule(run.logical) != 0
                && logical / ratio == run.logical / ratio
                && block / ratio != cluster
        });
        if rule(run.logical) != rule(run.start) || crosses {
            let (ino, logical, block) = (self.ino, run.logical, run.start);
            log.add(Problem::BlockCluster { ino, logical, block });
        }
        let shares = self.before.is_some_and(|(_, block)| block / ratio == cluster)
            && rule(run.logical) == rule(run.start);
        let (mut start, end) = (run.start, run.start + run.len);
        if shares {
            start = ((cluster + 1) * ratio).min(end);
        }
        if start < end {
            self.volume.claims.claim(start, end - start);
            self.content.count += (end - 1) / ratio - start / ratio + 1;
        }
    }
}

impl Visitor for Claimer<'_, '_> {
    fn data(&mut self, run: Run, log: &mut Log) {
        let (volume, ino) = (self.volume, self.ino);
        let end = run.logical + run.len;
        if self.is_dir {
            if run.unwritten {
                log.add(Problem::ExtentUnwrittenDir { ino, logical: run.logical });
            }
            // Directories end at 2 GiB.
            let most = 1 << (31 - volume.layout.log_block_size);
            if end > most && !volume.incompat(Incompat::LARGEDIR) {
                log.add(Problem::BlockTooBig { ino, logical: end - 1 });
            } else {
                let (logical, len) = (run.logical as u32, run.len as u32);
                self.content.runs.push((logical, run.start, len));
            }
        }
        if self.is_link && self.content.runs.is_empty() {
            self.content.runs.push((0, run.start, 1));
        }
        if self.before.is_none_or(|(_, block)| block + 1 != run.start) {
            self.content.fragments += 1;
        }
        if ino == Ino::RESIZE {
            // Its blocks are fixed metadata, claimed as such, and need not lie as clusters do.
            self.content.count += run.len;
        } else if volume.layout.cluster_blocks > 1 {
            self.claim_clusters(run, log);
        } else {
            volume.claims.claim(run.start, run.len);
            self.content.count += run.len;
        }
        self.before = Some((end - 1, run.start + run.len - 1));
        self.content.end = self.content.end.max(end);
        if !run.unwritten {
            self.content.last_written = Some(end - 1);
        }
    }

    fn node(&mut self, block: u64, _: &mut Log) -> bool {
        self.content.count += 1;
        self.nodes += 1;
        if self.ino == Ino::RESIZE && self.nodes > 1 {
            return self.nodes < RESIZE_NODES_MAX;
        }
        !self.volume.claims.claim(block, 1)
    }
}

/// Whether a symbolic link keeps its target in `i_block`.
fn is_fast(raw: &RawInode) -> bool {
    raw.size() < INLINE_MIN && !raw.flags().contains(InodeFlags::EXTENTS)
}

/// Whether an inode maps blocks.
pub(crate) fn has_blocks(raw: &RawInode) -> bool {
    let inline = raw.flags().contains(InodeFlags::INLINE_DATA);
    match raw.kind() {
        Some(FileKind::Regular | FileKind::Directory) => !inline,
        Some(FileKind::Symlink) => !inline && !is_fast(raw),
        _ => false,
    }
}

/// Claims the blocks of an inode, and compares its size and space with them.
pub(crate) fn check(
    volume: &Volume<'_>,
    ino: Ino,
    raw: &RawInode,
    found: &Found,
    log: &mut Log,
) -> Content {
    let file_kind = raw.kind();
    let mut content =
        if has_blocks(raw) { blocks(volume, ino, raw, log) } else { Content::default() };
    match file_kind {
        Some(FileKind::Symlink) => symlink(volume, ino, raw, found, &content, log),
        Some(FileKind::Regular | FileKind::Directory) => {
            size(volume, ino, raw, found, &content, log);
        }
        Some(_) => special(ino, raw, log),
        None => {}
    }
    content.owned = content.count + found.blocks;
    space(volume, ino, raw, content.owned, log);
    content
}

fn blocks(volume: &Volume<'_>, ino: Ino, raw: &RawInode, log: &mut Log) -> Content {
    let seed = volume.layout.checksums.inode_seed(ino, raw.i_generation.get());
    let size_blocks = raw.size().div_ceil(u64::from(volume.layout.block_size));
    let file = Mapped { ino, raw, seed, size_blocks };
    let is_dir = raw.kind() == Some(FileKind::Directory);
    let is_link = raw.kind() == Some(FileKind::Symlink);
    let content = Content::default();
    let mut claimer = Claimer { volume, ino, is_dir, is_link, content, before: None, nodes: 0 };
    if raw.flags().contains(InodeFlags::EXTENTS) {
        map::extents(volume, &file, &mut claimer, log);
    } else {
        let translator = u64::from(raw.l_i_version.get());
        if volume.sb.s_creator_os.get() == 1 && volume.is_valid(translator) {
            volume.claims.claim(translator, 1);
        }
        map::blocks(volume, &file, &mut claimer, log);
        let is_used = claimer.content.count > 0;
        if is_used && volume.layout.cluster_blocks > 1 && ino.get() >= volume.layout.first_ino.get()
        {
            log.add(Problem::BlockMap { ino });
        }
    }
    claimer.content
}

fn special(ino: Ino, raw: &RawInode, log: &mut Log) {
    let flags = raw.flags();
    let foreign = InodeFlags::INDEX | InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
    let rest = raw.i_block.get(16..).unwrap_or_default();
    let junk = flags.contains(InodeFlags::IMMUTABLE) && rest.iter().any(|byte| *byte != 0);
    if flags.intersects(foreign) || junk {
        log.add(Problem::InodeDevice { ino });
    }
    if raw.size() != 0 {
        log.add(Problem::InodeSpecialSize { ino, found: raw.size() });
    }
}

/// Compares the space of an inode with the blocks it owns.
fn space(volume: &Volume<'_>, ino: Ino, raw: &RawInode, count: u64, log: &mut Log) {
    let layout = &volume.layout;
    let unit = u64::from(layout.cluster_blocks) * u64::from(layout.block_size / 512);
    let want = count * unit;
    let found = raw.sectors(volume.ro_compat(RoCompat::HUGE_FILE), layout.block_size);
    if found != want && volume.sb.s_creator_os.get() != 1 {
        log.add(Problem::InodeBlocks { ino, found, want });
    }
}

fn size(
    volume: &Volume<'_>,
    ino: Ino,
    raw: &RawInode,
    xattrs: &Found,
    content: &Content,
    log: &mut Log,
) {
    let found = raw.size();
    let is_dir = raw.kind() == Some(FileKind::Directory);
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        let Some(rest) = &xattrs.inline else {
            log.add(Problem::InodeInline { ino, why: "there is no system.data attribute" });
            return;
        };
        let want = INLINE_MIN + rest.len() as u64;
        if found > want || (is_dir && found != want) {
            log.add(Problem::InodeSize { ino, found, want });
        }
        return;
    }
    let block_size = u64::from(volume.layout.block_size);
    let mut wrong = |want| log.add(Problem::InodeSize { ino, found, want });
    if is_dir {
        let blocks = found / block_size;
        let spare = u64::from(volume.sb.s_prealloc_dir_blocks);
        if !found.is_multiple_of(block_size) || blocks > content.end || content.end > blocks + spare
        {
            wrong(content.end * block_size);
        }
        if content.count == 0 {
            log.add(Problem::DirEmpty { ino });
        }
        return;
    }
    // A Merkle tree lies behind the end of the file.
    let last_written = content.last_written.filter(|_| !raw.flags().contains(InodeFlags::VERITY));
    if let Some(last) = last_written
        && found < last * block_size
    {
        wrong((last + 1) * block_size);
        return;
    }
    let extents = raw.flags().contains(InodeFlags::EXTENTS);
    let most = if extents { (1 << 32) * block_size - 1 } else { map_size_max(volume) };
    if found > most {
        wrong(most);
    }
}

/// Most bytes of a file that is mapped by blocks.
fn map_size_max(volume: &Volume<'_>) -> u64 {
    let per_block = u64::from(volume.layout.block_size / 4);
    let blocks = 12 + per_block + per_block * per_block + per_block.pow(3);
    let by_map = blocks * u64::from(volume.layout.block_size);
    if volume.ro_compat(RoCompat::HUGE_FILE) {
        return by_map;
    }
    // i_blocks counts 512-byte sectors in 32 bits; the mapping needs some of them.
    by_map.min(1 << 41)
}

/// The target of a symbolic link must be exactly as long as its size says.
fn symlink(
    volume: &Volume<'_>,
    ino: Ino,
    raw: &RawInode,
    xattrs: &Found,
    content: &Content,
    log: &mut Log,
) {
    let flags = raw.flags();
    let is_fine = !flags.contains(InodeFlags::INDEX)
        && raw.size() != 0
        && target_len(volume, raw, xattrs, content, log) == Some(raw.size());
    if !is_fine {
        log.add(Problem::InodeSymlink { ino });
    }
}

fn target_len(
    volume: &Volume<'_>,
    raw: &RawInode,
    xattrs: &Found,
    content: &Content,
    log: &mut Log,
) -> Option<u64> {
    let flags = raw.flags();
    let bytes = if flags.contains(InodeFlags::INLINE_DATA) {
        let mut bytes = raw.i_block.to_vec();
        bytes.extend(xattrs.inline.as_deref()?);
        // The target also ends with the data.
        bytes.push(0);
        bytes
    } else if is_fast(raw) {
        raw.i_block.to_vec()
    } else {
        let only = content.end == 1 && content.last_written == Some(0);
        let block = content.runs.first().filter(|_| only)?.1;
        volume.block(block, log)?
    };
    if flags.contains(InodeFlags::ENCRYPT) {
        // Two bytes have the length of the encrypted target.
        return Some((block_map::entry(&bytes, 0).get() & 0xffff) + 2);
    }
    let len = bytes.iter().position(|byte| *byte == 0)?;
    Some(len as u64)
}

/// The directory of an inode.
pub(crate) fn directory(
    ino: Ino,
    raw: &RawInode,
    found: &Found,
    content: Content,
    volume: &Volume<'_>,
) -> Option<Dir> {
    if raw.kind() != Some(FileKind::Directory) {
        return None;
    }
    let flags = raw.flags();
    let inline = flags.contains(InodeFlags::INLINE_DATA).then(|| {
        let mut bytes = raw.i_block.to_vec();
        bytes.extend(found.inline.as_deref().unwrap_or_default());
        bytes
    });
    Some(Dir {
        ino,
        runs: content.runs,
        inline,
        generation: raw.i_generation.get(),
        indexed: flags.contains(InodeFlags::INDEX),
        encrypted: flags.contains(InodeFlags::ENCRYPT),
        folding: volume.layout.encoding.filter(|_| flags.contains(InodeFlags::CASEFOLD)),
        blocks: raw.size() / u64::from(volume.layout.block_size),
        parent: AtomicU32::new(0),
        dotdot: AtomicU32::new(0),
    })
}

/// The list of bad blocks must not contain metadata.
pub(crate) fn bad_blocks(volume: &Volume<'_>, raw: &RawInode, log: &mut Log) {
    struct Bad<'a, 'd>(&'a Volume<'d>);
    impl Visitor for Bad<'_, '_> {
        fn data(&mut self, run: Run, log: &mut Log) {
            for block in run.start..run.start + run.len {
                if self.0.claims.mark(block, 1) {
                    log.add(Problem::InodeBadBlocks { ino: Ino(1), block });
                }
            }
        }

        fn node(&mut self, block: u64, log: &mut Log) -> bool {
            if self.0.claims.mark(block, 1) {
                log.add(Problem::InodeBadBlocks { ino: Ino(1), block });
                return false;
            }
            true
        }
    }
    let seed = volume.layout.checksums.inode_seed(Ino(1), raw.i_generation.get());
    let file = Mapped { ino: Ino(1), raw, seed, size_blocks: 0 };
    map::blocks(volume, &file, &mut Bad(volume), log);
}

/// Reports an inode that owns blocks with several owners.
pub(crate) fn shared(
    volume: &Volume<'_>,
    shared: &Shared,
    ino: Ino,
    raw: &RawInode,
    log: &mut Log,
) {
    struct Owner<'a> {
        ino: Ino,
        shared: &'a Shared,
        log: &'a mut Log,
    }
    impl Owner<'_> {
        fn look(&mut self, start: u64, count: u64) -> bool {
            let met = self.shared.in_run(start, count);
            if let Some((block, count)) = met {
                self.log.add(Problem::BlockShared { ino: self.ino, block, count });
            }
            met.is_some()
        }
    }
    impl Visitor for Owner<'_> {
        fn data(&mut self, run: Run, _: &mut Log) {
            self.look(run.start, run.len);
        }

        fn node(&mut self, block: u64, _: &mut Log) -> bool {
            !self.look(block, 1)
        }
    }
    let seed = volume.layout.checksums.inode_seed(ino, raw.i_generation.get());
    let file = Mapped { ino, raw, seed, size_blocks: 1 << 32 };
    let mut owner = Owner { ino, shared, log };
    // Damage of the mapping has been reported.
    let mut quiet = Log::new(0);
    if raw.flags().contains(InodeFlags::EXTENTS) {
        map::extents(volume, &file, &mut owner, &mut quiet);
    } else {
        map::blocks(volume, &file, &mut owner, &mut quiet);
    }
    if raw.file_acl() != 0 {
        owner.look(raw.file_acl(), 1);
    }
}
