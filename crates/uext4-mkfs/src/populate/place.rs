//! Planning the files of a tree: their inodes, and the places of their blocks.
//!
//! Policy: first all that is metadata (directories, long symbolic links, blocks of attributes),
//! then the content of the files, both in the order of the inode numbers.

use super::attributes::{self, Placed, SharedBlocks};
use super::data::{self, Job, Stretch};
use super::directory::{self, Blocks, Entry, Form, Own};
use super::number::{LOST_AND_FOUND_NAME, Numbering, path_of};
use super::tree::{Body, FileBody, Node, NodeId, Tree, source};
use super::{Fill, Sweep};
use crate::error::{MkfsError, Result};
use crate::inodes::{Files, LOST_AND_FOUND, LOST_AND_FOUND_BYTES, ROOT_MODE};
use crate::options::Options;
use std::collections::HashMap;
use std::ops::Range;
use std::slice::from_ref;
use uext4_ondisk::extent::{Extent, MAX_WRITTEN_LEN};
use uext4_ondisk::features::{Compat, Incompat, RoCompat};
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::inode::{self, FAST_SYMLINK_MAX, LINK_MAX};
use uext4_ondisk::{BlockNo, FileBlock, FileKind, Ino, InodeFlags, RawInode, Timestamp};

/// What the plan of a tree needs everywhere.
struct Plan<'a> {
    tree: &'a Tree,
    numbering: Numbering,
    form: Form,
    is_reproducible: bool,
    root_owner: Option<(u32, u32)>,
    root_mode: Option<u16>,
    shared: SharedBlocks,
    /// Blocks of attributes of regular files.
    acl_blocks: HashMap<NodeId, BlockNo>,
    stretches: Vec<Stretch>,
}

impl Plan<'_> {
    /// An error of a file.
    fn error(&self, id: NodeId, why: impl std::fmt::Display) -> MkfsError {
        source(&path_of(self.tree, id), why)
    }

    fn is_root(&self, id: NodeId) -> bool {
        id == self.tree.root()
    }
}

impl Files<'_> {
    /// Plans all files of a tree. Returns what is to be done with their content.
    pub(crate) fn populate(&mut self, options: &Options, fill: &Fill<'_>) -> Result<Vec<Job>> {
        let tree = fill.tree;
        let numbering = Numbering::new(tree, LOST_AND_FOUND, self.last_ino)?;
        let inodes = self.geometry.layout.inodes_count;
        if numbering.last.get() > inodes {
            let message = format!(
                "{} inodes are needed, and there are {inodes}: use a smaller -i or a larger -N",
                numbering.last
            );
            return Err(MkfsError::option(message));
        }
        let mut plan = Plan {
            tree,
            form: self.form(),
            numbering,
            is_reproducible: fill.is_reproducible,
            root_owner: options.root_owner,
            root_mode: options.root_mode,
            shared: SharedBlocks::default(),
            acl_blocks: HashMap::new(),
            stretches: Vec::new(),
        };
        self.last_ino = plan.numbering.last;
        self.sweep = Some(Sweep::default());
        if plan.numbering.lost_and_found.is_none() {
            self.lost_and_found()?;
        }
        let order = std::mem::take(&mut plan.numbering.order);
        for id in &order {
            self.metadata(&mut plan, *id)?;
        }
        for id in &order {
            if let Body::File(file) = &tree.node(*id).body {
                self.file(&mut plan, *id, file)?;
            }
        }
        self.sweep = None;
        let checksums = &self.geometry.layout.checksums;
        self.blocks.extend(plan.shared.finish(checksums));
        Ok(data::jobs(plan.stretches))
    }

    fn form(&self) -> Form {
        let (sb, layout) = (&self.geometry.sb, &self.geometry.layout);
        let version = HashVersion::from_raw(sb.s_def_hash_version);
        let has_index = layout.features.compat.contains(Compat::DIR_INDEX);
        let hasher = version.filter(|_| has_index).map(|version| DirHasher {
            version,
            unsigned: sb.s_flags.get() & uext4_ondisk::superblock::FLAG_SIGNED_HASH == 0,
            seed: sb.s_hash_seed.map(|word| word.get()),
            folds: false,
        });
        let incompat = layout.features.incompat;
        Form {
            block_size: layout.block_size as usize,
            has_filetype: incompat.contains(Incompat::FILETYPE),
            has_tail: layout.has_metadata_csum(),
            hasher,
            has_large_dir: incompat.contains(Incompat::LARGEDIR),
        }
    }

    /// The inode of a file, without its content.
    fn raw(&self, plan: &Plan<'_>, id: NodeId) -> Result<RawInode> {
        let Node { attributes, body } = plan.tree.node(id);
        let kind = body.kind();
        let extra = u32::from(plan.is_root(id) && plan.numbering.lost_and_found.is_none());
        let links = plan.numbering.links(plan.tree, id, extra);
        let has_many = self.geometry.layout.features.ro_compat.contains(RoCompat::DIR_NLINK);
        let links = match u16::try_from(links) {
            Ok(links) if links <= LINK_MAX => links,
            _ if kind == FileKind::Directory && has_many => 1,
            _ => return Err(plan.error(id, format!("{links} links, more than {LINK_MAX}"))),
        };
        let mode = if kind == FileKind::Symlink { 0o777 } else { attributes.mode };
        let mut raw = self.new_inode(kind, mode, links);
        raw.set_uid(attributes.uid);
        raw.set_gid(attributes.gid);
        let is_plain_root = plan.is_root(id) && !plan.tree.has_root_attributes;
        if plan.is_root(id) {
            let plain_mode = is_plain_root.then_some(ROOT_MODE);
            if let Some(mode) = plan.root_mode.or(plain_mode) {
                raw.i_mode.set(kind.mode() | mode);
            }
            let plain_owner = is_plain_root.then_some((0, 0));
            if let Some((uid, gid)) = plan.root_owner.or(plain_owner) {
                raw.set_uid(uid);
                raw.set_gid(gid);
            }
        }
        let has_extra = self.geometry.layout.inode_size > 128;
        let now = Timestamp { secs: i64::from(self.geometry.time), nanos: 0 };
        if plan.is_reproducible && is_plain_root {
            // The folder is made for each build.
        } else if plan.is_reproducible {
            raw.set_mtime(attributes.mtime.min(now).clamped(has_extra));
        } else {
            raw.set_atime(attributes.atime.clamped(has_extra));
            raw.set_mtime(attributes.mtime.clamped(has_extra));
        }
        Ok(raw)
    }

    fn placed(&self, plan: &Plan<'_>, id: NodeId) -> Result<Placed> {
        let layout = &self.geometry.layout;
        let xattrs = &plan.tree.node(id).attributes.xattrs;
        if xattrs.is_empty() {
            return Ok(Placed::default());
        }
        if !layout.features.compat.contains(Compat::EXT_ATTR) {
            return Err(plan.error(id, "has extended attributes, which need the feature ext_attr"));
        }
        let fields = inode::CLASSIC_SIZE + usize::from(inode::FULL_EXTRA_SIZE);
        let area = (layout.inode_size as usize).saturating_sub(fields);
        let placed = attributes::place(xattrs, area, layout.block_size as usize);
        placed.map_err(|why| plan.error(id, why))
    }

    /// Plans what is not content of regular files.
    fn metadata(&mut self, plan: &mut Plan<'_>, id: NodeId) -> Result<()> {
        let mut placed = self.placed(plan, id)?;
        let mut acl = None;
        if !placed.in_block.is_empty() {
            let stored = std::mem::take(&mut placed.in_block);
            let block_size = self.geometry.layout.block_size as usize;
            acl = Some(plan.shared.add(stored, block_size, || self.take_swept_block())?);
        }
        let tree = plan.tree;
        match &tree.node(id).body {
            Body::File(_) => {
                plan.acl_blocks.extend(acl.map(|block| (id, block)));
                Ok(())
            }
            Body::Directory(_) => self.tree_directory(plan, id, acl, &placed),
            Body::Symlink(target) => self.symlink(plan, id, target, acl, &placed),
            Body::CharDevice(major, minor) | Body::BlockDevice(major, minor) => {
                let mut raw = self.raw(plan, id)?;
                if *major > 0xfff || *minor > 0xf_ffff {
                    return Err(
                        plan.error(id, format!("device number {major}:{minor} is too large"))
                    );
                }
                raw.set_device(*major, *minor);
                self.finish(plan, id, raw, acl, (0, 0), &placed)
            }
            Body::Fifo | Body::Socket => {
                let raw = self.raw(plan, id)?;
                self.finish(plan, id, raw, acl, (0, 0), &placed)
            }
        }
    }

    fn tree_directory(
        &mut self,
        plan: &Plan<'_>,
        id: NodeId,
        acl: Option<BlockNo>,
        placed: &Placed,
    ) -> Result<()> {
        let ino = plan.numbering.ino(id);
        let names = plan.tree.children(id);
        let mut entries: Vec<Entry<'_>> = names
            .map(|(name, child)| {
                let kind = plan.tree.node(child).body.kind();
                Entry { name, ino: plan.numbering.ino(child), kind }
            })
            .collect();
        let layout = &self.geometry.layout;
        if plan.is_root(id) && plan.numbering.lost_and_found.is_none() {
            let at = entries.partition_point(|entry| entry.name < LOST_AND_FOUND_NAME);
            let (name, kind) = (LOST_AND_FOUND_NAME, FileKind::Directory);
            entries.insert(at, Entry { name, ino: LOST_AND_FOUND, kind });
        }
        let least = match ino == LOST_AND_FOUND {
            true => (LOST_AND_FOUND_BYTES / layout.block_size).clamp(2, 12) as usize,
            false => 1,
        };
        let seed = layout.checksums.inode_seed(ino, 0);
        let own = Own { ino, parent: plan.numbering.parent(id), seed, least };
        let blocks = directory::lay_out(&plan.form, own, &entries);
        let blocks = blocks.map_err(|kind| plan.error(id, kind))?;
        let Some(Blocks { bytes, is_indexed }) = blocks else {
            return Err(
                plan.error(id, "has more names than a directory can have without large_dir")
            );
        };
        let mut raw = self.raw(plan, id)?;
        if is_indexed {
            raw.set_flags(InodeFlags::INDEX);
        }
        let block_size = layout.block_size as usize;
        let count = (bytes.len() / block_size) as u64;
        let (extents, nodes) = self.allocate(ino, &mut raw, from_ref(&(0..count)))?;
        let at = extents.iter().flat_map(|e| e.start.get()..e.start.get() + u64::from(e.len));
        for (at, block) in at.zip(bytes.chunks(block_size)) {
            self.blocks.insert(BlockNo(at), block.to_vec());
        }
        raw.set_size(bytes.len() as u64);
        self.directories.push(ino);
        self.finish(plan, id, raw, acl, (self.in_clusters(from_ref(&(0..count))), nodes), placed)
    }

    fn symlink(
        &mut self,
        plan: &Plan<'_>,
        id: NodeId,
        target: &[u8],
        acl: Option<BlockNo>,
        placed: &Placed,
    ) -> Result<()> {
        let mut raw = self.raw(plan, id)?;
        let block_size = self.geometry.layout.block_size as usize;
        if target.is_empty() || target.len() >= block_size || target.contains(&0) {
            return Err(
                plan.error(id, format!("target of {} bytes cannot be stored", target.len()))
            );
        }
        raw.set_size(target.len() as u64);
        if target.len() <= FAST_SYMLINK_MAX {
            raw.i_block[..target.len()].copy_from_slice(target);
            return self.finish(plan, id, raw, acl, (0, 0), placed);
        }
        let (extents, nodes) =
            self.allocate(plan.numbering.ino(id), &mut raw, from_ref(&(0..1)))?;
        let mut block = target.to_vec();
        block.resize(block_size, 0);
        self.blocks.extend(extents.first().map(|extent| (extent.start, block)));
        self.finish(plan, id, raw, acl, (self.in_clusters(from_ref(&(0..1))), nodes), placed)
    }

    fn file(&mut self, plan: &mut Plan<'_>, id: NodeId, file: &FileBody) -> Result<()> {
        let (ino, layout) = (plan.numbering.ino(id), &self.geometry.layout);
        let mut raw = self.raw(plan, id)?;
        let block_size = u64::from(layout.block_size);
        let count = file.size.div_ceil(block_size);
        let most = match self.has_extents() {
            true => layout.max_file_blocks(),
            false => layout.max_block_map_blocks(),
        };
        if count > most {
            return Err(plan.error(id, "is larger than a file of this file system can be"));
        }
        if file.size >= 1 << 31 && !layout.features.ro_compat.contains(RoCompat::LARGE_FILE) {
            return Err(plan.error(id, "has 2 GiB or more, which needs the feature large_file"));
        }
        let ranges = self.block_ranges(file);
        let (extents, nodes) = self.allocate(ino, &mut raw, &ranges)?;
        raw.set_size(file.size);
        for extent in &extents {
            let offset = u64::from(extent.first.get()) * block_size;
            let len = u64::from(extent.len) * block_size;
            let bytes = file.size.saturating_sub(offset).min(len);
            let at = self.geometry.layout.byte_of(extent.start);
            plan.stretches.push(Stretch { at, len, offset, bytes, content: file.content });
        }
        let acl = plan.acl_blocks.get(&id).copied();
        let placed = self.placed(plan, id)?;
        self.finish(plan, id, raw, acl, (self.in_clusters(&ranges), nodes), &placed)
    }

    /// The blocks of a file that hold data, in whole clusters as far as the file reaches.
    fn block_ranges(&self, file: &FileBody) -> Vec<Range<u64>> {
        let block_size = u64::from(self.geometry.layout.block_size);
        let (ratio, count) = (self.ratio(), file.size.div_ceil(block_size));
        let whole = 0..file.size;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for data in file.data.as_deref().unwrap_or(from_ref(&whole)) {
            let start = data.start / (block_size * ratio) * ratio;
            let end = data.end.div_ceil(block_size * ratio) * ratio;
            let end = end.min(count);
            match ranges.last_mut() {
                Some(last) if last.end >= start => last.end = last.end.max(end),
                _ if start < end => ranges.push(start..end),
                _ => {}
            }
        }
        ranges
    }

    /// Blocks of the clusters of ranges.
    fn in_clusters(&self, ranges: &[Range<u64>]) -> u64 {
        ranges.iter().map(|range| (range.end - range.start).next_multiple_of(self.ratio())).sum()
    }

    /// Allocates blocks for a file and maps them. Returns them, and the number of nodes.
    fn allocate(
        &mut self,
        ino: Ino,
        raw: &mut RawInode,
        ranges: &[Range<u64>],
    ) -> Result<(Vec<Extent>, u64)> {
        if !self.has_extents() {
            let blocks = ranges.iter().cloned().flatten();
            let mut at = self.sweep.as_ref().map_or(0, Sweep::position);
            let mapped = self.map_blocks(raw, blocks, &mut at);
            self.sweep.iter_mut().for_each(|sweep| sweep.go_to(at));
            return mapped;
        }
        let mut extents = Vec::new();
        // Whole clusters are taken, also where one has more blocks than an extent can have.
        let most = self.ratio().max(MAX_WRITTEN_LEN.into());
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let count = (range.end - at).next_multiple_of(self.ratio());
                let (first, found) = self.take_swept(count.min(most))?;
                let len = found.min(range.end - at);
                extents.extend(pieces(at, first, len));
                at += len;
            }
        }
        let nodes = self.map(ino, raw, &extents, None)?;
        Ok((extents, nodes))
    }

    /// Completes an inode: `used` are the blocks of its content and the nodes above them.
    fn finish(
        &mut self,
        plan: &Plan<'_>,
        id: NodeId,
        mut raw: RawInode,
        acl: Option<BlockNo>,
        used: (u64, u64),
        placed: &Placed,
    ) -> Result<()> {
        let block_size = self.geometry.layout.block_size;
        let nodes = used.1 + u64::from(acl.is_some());
        let blocks = used.0 + nodes * self.ratio();
        let has_huge = self.geometry.layout.features.ro_compat.contains(RoCompat::HUGE_FILE);
        if !raw.set_sectors(blocks * u64::from(block_size / 512), has_huge, block_size) {
            return Err(plan.error(id, "is too large without the feature huge_file"));
        }
        raw.set_file_acl(acl.map_or(0, BlockNo::get));
        let owners = [raw.uid(), raw.gid(), raw.i_projid.get()];
        self.counted.push((owners, blocks * u64::from(block_size)));
        let ino = plan.numbering.ino(id);
        self.put_inode_with(ino, &raw, |area| _ = placed.write(area))
    }
}

/// The extents of `len` blocks that stand one after the other: from `at` on in the file, from
/// `start` on in the file system.
fn pieces(at: u64, start: u64, len: u64) -> impl Iterator<Item = Extent> {
    let most = u64::from(MAX_WRITTEN_LEN);
    (0..len).step_by(MAX_WRITTEN_LEN as usize).map(move |done| Extent {
        first: FileBlock(u32::try_from(at + done).unwrap_or(u32::MAX)),
        // At most the limit of an extent.
        len: (len - done).min(most) as u32,
        start: BlockNo(start + done),
        unwritten: false,
    })
}
