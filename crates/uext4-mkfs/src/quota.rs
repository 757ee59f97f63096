//! Quota files: usage of the owners of what a new file system has.

use crate::error::Result;
use crate::inodes::{Files, no_space};
use crate::options::Options;
use std::collections::BTreeMap;
use uext4_ondisk::block_map::set_entry;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::features::RoCompat;
use uext4_ondisk::quota::{BLOCK_SIZE, QuotaEntry, QuotaKind, new_file};
use uext4_ondisk::{BlockNo, FileBlock, FileKind, Ino, InodeFlags};

impl Files<'_> {
    /// Makes the quota files that are asked for; without a word of users, groups and, with the
    /// feature, projects.
    pub(crate) fn quota_files(&mut self, options: &Options) -> Result<()> {
        let has_projects = self.geometry.layout.features.ro_compat.contains(RoCompat::PROJECT);
        let [users, groups, _] = options.quota_types.unwrap_or([true; 3]);
        if users {
            self.quota_file(QuotaKind::User, Ino::USER_QUOTA)?;
            self.geometry.sb.s_usr_quota_inum.set(Ino::USER_QUOTA.get());
        }
        if groups {
            self.quota_file(QuotaKind::Group, Ino::GROUP_QUOTA)?;
            self.geometry.sb.s_grp_quota_inum.set(Ino::GROUP_QUOTA.get());
        }
        if has_projects {
            self.last_ino = Ino(self.last_ino.get() + 1);
            self.quota_file(QuotaKind::Project, self.last_ino)?;
            self.geometry.sb.s_prj_quota_inum.set(self.last_ino.get());
        }
        Ok(())
    }

    /// Usage by the owners of a kind.
    fn usage(&self, kind: QuotaKind) -> Vec<QuotaEntry> {
        let mut usage = BTreeMap::new();
        for &(owners, bytes) in &self.counted {
            let id = owners[kind.number()];
            let entry = usage.entry(id).or_insert(QuotaEntry { id, ..QuotaEntry::default() });
            entry.space.used += bytes;
            entry.inodes.used += 1;
        }
        usage.into_values().collect()
    }

    fn quota_file(&mut self, kind: QuotaKind, ino: Ino) -> Result<()> {
        let bytes = new_file(kind, &self.usage(kind));
        let block_size = self.geometry.layout.block_size as usize;
        let mut places: BTreeMap<usize, u64> = BTreeMap::new();
        // As in mke2fs, which writes the root of the tree after the blocks below it.
        let blocks = bytes.len() / BLOCK_SIZE;
        let order = [0, 2, 3, 4, 5, 1].into_iter().chain(6..blocks);
        let mut extents: Vec<Extent> = Vec::new();
        let goal = self.geometry.layout.first_data_block.get();
        for n in order.map(|n| n * BLOCK_SIZE / block_size) {
            if places.contains_key(&n) {
                continue;
            }
            // With clusters, in the one of its neighbours if they have one.
            let ratio = usize::try_from(self.ratio()).unwrap_or(1);
            let first = n - n % ratio;
            let neighbour = places.range(first..first + ratio).next();
            let cluster = match neighbour {
                Some((&other, &at)) => at - (other - first) as u64,
                None => {
                    let free = self.space.find_one(goal).ok_or_else(no_space)?;
                    self.take(free, 1);
                    free
                }
            };
            let at = cluster + (n - first) as u64;
            places.insert(n, at);
            append_behind(&mut extents, FileBlock(u32::try_from(n).unwrap_or(u32::MAX)), at);
        }
        extents.sort_unstable_by_key(|extent| extent.first);
        let mut raw = self.new_inode(FileKind::Regular, 0o600, 1);
        raw.set_flags(InodeFlags::IMMUTABLE);
        for ((n, &at), content) in (0..).zip(places.values()).zip(bytes.chunks(block_size)) {
            if !self.has_extents() {
                set_entry(&mut raw.i_block, n, BlockNo(at));
            }
            let mut block = content.to_vec();
            block.resize(block_size, 0);
            self.blocks.insert(BlockNo(at), block);
        }
        let nodes = self.map(ino, &mut raw, &extents, None)?;
        self.set_space(&mut raw, bytes.len() as u64, places.len() as u64, nodes);
        self.put_inode(ino, &raw)
    }
}

/// Adds a block to the extent that ends before it, or as a new one. The extent behind it stays one
/// of its own, as in mke2fs.
fn append_behind(extents: &mut Vec<Extent>, at: FileBlock, block: u64) {
    let continued = extents.iter_mut().find(|extent| {
        extent.end() == at && extent.start.plus(u64::from(extent.len)).get() == block
    });
    match continued {
        Some(extent) => extent.len += 1,
        None => extents.push(Extent { first: at, len: 1, start: BlockNo(block), unwritten: false }),
    }
}
