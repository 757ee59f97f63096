//! Quota files: usage of the owners of what a new file system has.

use crate::error::Result;
use crate::inodes::{Files, append, no_space};
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
        let goal = self.geometry.layout.first_data_block.get();
        for n in order.map(|n| n * BLOCK_SIZE / block_size) {
            if places.contains_key(&n) {
                continue;
            }
            let at = self.space.find_one(goal).ok_or_else(no_space)?;
            self.take(at, 1);
            places.insert(n, at);
        }
        let mut raw = self.new_inode(FileKind::Regular, 0o600, 1);
        raw.set_flags(InodeFlags::IMMUTABLE);
        let mut extents: Vec<Extent> = Vec::new();
        for ((n, &at), content) in (0..).zip(places.values()).zip(bytes.chunks(block_size)) {
            append(&mut extents, FileBlock(n), at);
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
