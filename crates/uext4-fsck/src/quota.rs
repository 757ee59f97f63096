//! Usage of owners, compared with the quota files.
//!
//! Invariants: a file is read by `uext4_ondisk::quota`, whose walk visits a block once. As in
//! e2fsck, an owner without an entry is wrong if it uses anything, and limits are not judged.

use std::collections::HashMap;

use uext4_ondisk::quota::{self, BLOCK_SIZE, QuotaBlocks, QuotaEntry, QuotaInfo, QuotaKind};
use uext4_ondisk::{BlockNo, CorruptKind, FileKind, Ino, InodeFlags, RawInode, RoCompat};

use crate::log::Log;
use crate::map::{self, Mapped, Run, Visitor};
use crate::problem::Problem;
use crate::volume::Volume;

/// Bytes and inodes.
type Used = (u64, u64);

/// What the owners of each kind use.
#[derive(Debug, Default)]
pub(crate) struct Usage([HashMap<u32, Used>; 3]);

impl Usage {
    /// Adds an inode with `owned` blocks, or clusters, and `values` attributes whose values are in
    /// inodes of their own. One that holds such a value counts for the inodes that refer to it.
    pub(crate) fn add(&mut self, volume: &Volume<'_>, raw: &RawInode, owned: u64, values: u64) {
        if raw.flags().contains(InodeFlags::EA_INODE) {
            return;
        }
        let layout = &volume.layout;
        let bytes = owned * u64::from(layout.cluster_blocks) * u64::from(layout.block_size);
        for (of, id) in self.0.iter_mut().zip([raw.uid(), raw.gid(), raw.i_projid.get()]) {
            let used = of.entry(id).or_default();
            *used = (used.0.saturating_add(bytes), used.1 + 1 + values);
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (of, more) in self.0.iter_mut().zip(other.0) {
            for (id, (bytes, inodes)) in more {
                let used = of.entry(id).or_default();
                *used = (used.0.saturating_add(bytes), used.1 + inodes);
            }
        }
    }
}

/// Compares all quota files with what was counted.
pub(crate) fn check(volume: &Volume<'_>, usage: &Usage, log: &mut Log) {
    if !volume.ro_compat(RoCompat::QUOTA) {
        return;
    }
    let sb = &volume.sb;
    let named = [&sb.s_usr_quota_inum, &sb.s_grp_quota_inum, &sb.s_prj_quota_inum];
    for ((kind, ino), counted) in QuotaKind::ALL.into_iter().zip(named).zip(&usage.0) {
        let is_kept = kind != QuotaKind::Project || volume.ro_compat(RoCompat::PROJECT);
        if ino.get() != 0 && is_kept {
            compare(volume, kind, Ino(ino.get()), counted, log);
        }
    }
}

fn compare(
    volume: &Volume<'_>,
    kind: QuotaKind,
    ino: Ino,
    counted: &HashMap<u32, Used>,
    log: &mut Log,
) {
    let mut entries: HashMap<u32, Used> = HashMap::new();
    let mut visit = |entry: QuotaEntry| {
        entries.insert(entry.id, (entry.space.used, entry.inodes.used));
    };
    if let Err(why) = read(volume, kind, ino, &mut visit, log) {
        log.add(Problem::QuotaFile { ino, why });
        return;
    }
    let mut ids: Vec<u32> = entries.keys().chain(counted.keys()).copied().collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let of = |used: &HashMap<u32, Used>| used.get(&id).copied().unwrap_or_default();
        let (found, want) = (of(&entries), of(counted));
        if found != want {
            let text = |(bytes, inodes): Used| format!("{bytes} bytes in {inodes} inodes");
            log.add(Problem::QuotaUsage { ino, id, found: text(found), want: text(want) });
        }
    }
}

/// Reads the entries of a quota file.
fn read(
    volume: &Volume<'_>,
    kind: QuotaKind,
    ino: Ino,
    visit: &mut dyn FnMut(QuotaEntry),
    log: &mut Log,
) -> Result<(), String> {
    let raw = volume.slot(ino, log).and_then(|slot| RawInode::read(&slot).ok());
    let raw = raw.filter(|raw| raw.kind() == Some(FileKind::Regular)).ok_or("is no file")?;
    // What is wrong with its mapping has been said in pass 1.
    let mut unsaid = Log::new(0);
    let mut runs = Runs::default();
    let seed = volume.layout.checksums.inode_seed(ino, raw.i_generation.get());
    let size_blocks = raw.size().div_ceil(u64::from(volume.layout.block_size));
    let file = Mapped { ino, raw: &raw, seed, size_blocks };
    if raw.flags().contains(InodeFlags::EXTENTS) {
        map::extents(volume, &file, &mut runs, &mut unsaid);
    } else {
        map::blocks(volume, &file, &mut runs, &mut unsaid);
    }
    let mut blocks = FileBlocks { volume, runs: runs.0, log };
    let result = (|| {
        let first = blocks.read(0)?;
        let info = QuotaInfo::read(&first, kind, raw.size())?;
        quota::walk(&mut blocks, &info, visit)
    })();
    result.map_err(|kind: CorruptKind| kind.to_string())
}

#[derive(Default)]
struct Runs(Vec<Run>);

impl Visitor for Runs {
    fn data(&mut self, run: Run, _: &mut Log) {
        self.0.push(run);
    }

    fn node(&mut self, _: u64, _: &mut Log) -> bool {
        // Each adds runs, of which a file of a sound size has few.
        self.0.len() < RUNS_MAX
    }
}

/// Runs after which the walk over the mapping enters no more nodes.
const RUNS_MAX: usize = 1 << 20;

struct FileBlocks<'a, 'd> {
    volume: &'a Volume<'d>,
    runs: Vec<Run>,
    log: &'a mut Log,
}

impl QuotaBlocks for FileBlocks<'_, '_> {
    type Error = CorruptKind;

    fn read(&mut self, block: u32) -> Result<[u8; BLOCK_SIZE], CorruptKind> {
        let outside = CorruptKind::Rule { what: "quota file", why: "leads outside itself" };
        let block_size = self.volume.block_size();
        let per_block = block_size / BLOCK_SIZE;
        let (at, within) = (u64::from(block) / per_block as u64, block as usize % per_block);
        let next = self.runs.partition_point(|run| run.logical <= at);
        let run = next.checked_sub(1).and_then(|n| self.runs.get(n)).ok_or(outside)?;
        if at - run.logical >= run.len {
            return Err(outside);
        }
        let mut bytes = vec![0; block_size];
        if !self.volume.read(BlockNo(run.start + (at - run.logical)), &mut bytes, self.log) {
            return Err(CorruptKind::Rule { what: "quota file", why: "cannot be read" });
        }
        let part = bytes.get(within * BLOCK_SIZE..).and_then(|part| part.first_chunk());
        part.copied().ok_or(outside)
    }

    fn write(&mut self, _: u32, _: &[u8; BLOCK_SIZE]) -> Result<(), CorruptKind> {
        Err(CorruptKind::Rule { what: "quota file", why: "is only read" })
    }
}
