//! The file system that is checked: device, superblock, geometry, descriptors, and what the passes
//! have found so far.

use std::sync::atomic::{AtomicU32, Ordering};

use uext4_device::Device;
use uext4_ondisk::casefold::Encoding;
use uext4_ondisk::{
    BlockNo, Compat, Features, GroupNo, Incompat, Ino, Layout, RawGroupDesc, RawSuperblock,
    RoCompat,
};

use crate::Options;
use crate::claims::Claims;
use crate::log::Log;
use crate::problem::Problem;

/// Most contiguous blocks that are read at once.
pub(crate) const READ_BYTES: usize = 256 << 10;

/// What the check trusts of a group's descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) desc: RawGroupDesc,
    /// The block bitmap is not initialised: only fixed metadata is in use.
    pub(crate) block_uninit: bool,
    /// No inode is in use.
    pub(crate) inode_uninit: bool,
    /// Inodes from the start of the table that may be in use.
    pub(crate) inodes_scanned: u32,
    pub(crate) block_bitmap: Option<BlockNo>,
    pub(crate) inode_bitmap: Option<BlockNo>,
    pub(crate) inode_table: Option<BlockNo>,
}

/// Type of an inode as directory entries have it, and what else entries must know.
pub(crate) mod kind {
    /// The type.
    pub(crate) const TYPE: u8 = 0x0f;
    /// In use.
    pub(crate) const USED: u8 = 0x10;
    /// Holds an attribute's value.
    pub(crate) const EA: u8 = 0x20;
    /// Encrypted.
    pub(crate) const ENCRYPTED: u8 = 0x40;
    /// Type byte of directories.
    pub(crate) const DIRECTORY: u8 = 2;
}

/// Inodes of one group, from the first pass.
#[derive(Debug, Default)]
pub(crate) struct GroupInodes {
    /// See [`kind`]; inodes past the end are not in use.
    pub(crate) kinds: Vec<u8>,
    /// `i_links_count`.
    pub(crate) links: Vec<u16>,
    /// Entries found.
    pub(crate) counted: Vec<AtomicU32>,
    /// Encrypted inodes with the numbers of their policies, in ascending order.
    pub(crate) policies: Vec<(Ino, u32)>,
}

/// A directory, from the first pass.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) ino: Ino,
    /// Runs of blocks: in the directory, on the device, count.
    pub(crate) runs: Vec<(u32, u64, u32)>,
    /// Bytes of a directory in its inode.
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) generation: u32,
    pub(crate) indexed: bool,
    pub(crate) encrypted: bool,
    /// Names that differ by case are the same.
    pub(crate) folding: Option<Encoding>,
    /// Blocks by its size.
    pub(crate) blocks: u64,
    /// Directory whose entry names it; 0: none so far.
    pub(crate) parent: AtomicU32,
    /// What `..` says; 0: nothing.
    pub(crate) dotdot: AtomicU32,
}

impl Dir {
    /// Whether records have the hashes of their names.
    pub(crate) fn is_hashed(&self) -> bool {
        self.encrypted && self.folding.is_some() && self.inline.is_none()
    }
}

/// A file system and what is known of it.
pub(crate) struct Volume<'d> {
    pub(crate) device: &'d dyn Device,
    /// The device of the journal, if that is another one.
    pub(crate) journal: Option<&'d dyn Device>,
    pub(crate) options: Options,
    pub(crate) sb: RawSuperblock,
    pub(crate) layout: Layout,
    pub(crate) groups: Vec<Group>,
    pub(crate) claims: Claims,
}

impl Volume<'_> {
    pub(crate) fn features(&self) -> &Features {
        &self.layout.features
    }

    pub(crate) fn compat(&self, feature: Compat) -> bool {
        self.features().compat.contains(feature)
    }

    pub(crate) fn incompat(&self, feature: Incompat) -> bool {
        self.features().incompat.contains(feature)
    }

    pub(crate) fn ro_compat(&self, feature: RoCompat) -> bool {
        self.features().ro_compat.contains(feature)
    }

    pub(crate) fn log(&self) -> Log {
        Log::new(self.options.findings_max)
    }

    pub(crate) fn block_size(&self) -> usize {
        self.layout.block_size as usize
    }

    /// Whether a block number is inside the file system.
    pub(crate) fn is_valid(&self, block: u64) -> bool {
        self.layout.is_valid_block(BlockNo(block))
    }

    /// Whether a run is inside the file system.
    pub(crate) fn is_valid_run(&self, start: u64, count: u64) -> bool {
        self.layout.is_valid_run(BlockNo(start), count)
    }

    /// Reads whole blocks inside the file system into `bytes`. A failure is a finding.
    pub(crate) fn read(&self, block: BlockNo, bytes: &mut [u8], log: &mut Log) -> bool {
        match self.device.read_at(self.layout.byte_of(block), bytes) {
            Ok(()) => true,
            Err(error) => {
                log.add(Problem::Read { block, why: error.to_string() });
                false
            }
        }
    }

    /// Reads one block. `None` if it is outside the file system or cannot be read.
    pub(crate) fn block(&self, block: u64, log: &mut Log) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.block_size()];
        (self.is_valid(block) && self.read(BlockNo(block), &mut bytes, log)).then_some(bytes)
    }

    /// The slot of an inode in its table.
    pub(crate) fn slot(&self, ino: Ino, log: &mut Log) -> Option<Vec<u8>> {
        let (group, index) = self.layout.group_of_ino(ino)?;
        let table = self.groups.get(group.get() as usize)?.inode_table?;
        let size = self.layout.inode_size as usize;
        let at = self.layout.byte_of(table) + u64::from(index) * size as u64;
        let mut slot = vec![0; size];
        match self.device.read_at(at, &mut slot) {
            Ok(()) => Some(slot),
            Err(error) => {
                log.add(Problem::Read { block: table, why: error.to_string() });
                None
            }
        }
    }

    pub(crate) fn group_numbers(&self) -> impl Iterator<Item = GroupNo> + use<> {
        (0..self.layout.group_count).map(GroupNo)
    }

    /// Whether an inode is hidden: reserved, or in a field of the superblock.
    pub(crate) fn is_hidden(&self, ino: Ino) -> bool {
        let n = ino.get();
        (n < self.layout.first_ino.get() && ino != Ino::ROOT)
            || (n == self.sb.s_orphan_file_inum.get() && self.compat(Compat::ORPHAN_FILE))
            || self.is_quota(ino)
            || n == self.sb.s_journal_inum.get()
    }

    /// Whether an inode holds quota.
    pub(crate) fn is_quota(&self, ino: Ino) -> bool {
        self.ro_compat(RoCompat::QUOTA) && self.is_named_for_quota(ino)
    }

    /// Whether the superblock names an inode for quota, be there quota or not.
    pub(crate) fn is_named_for_quota(&self, ino: Ino) -> bool {
        let n = ino.get();
        let named =
            [&self.sb.s_usr_quota_inum, &self.sb.s_grp_quota_inum, &self.sb.s_prj_quota_inum];
        n != 0 && named.iter().any(|q| q.get() == n)
    }
}

/// All inodes, after the first pass.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    pub(crate) groups: Vec<GroupInodes>,
    pub(crate) per_group: u32,
    pub(crate) dirs: Vec<Dir>,
}

impl Inodes {
    fn place(&self, ino: Ino) -> Option<(&GroupInodes, usize)> {
        let at = ino.get().checked_sub(1)?;
        let group = self.groups.get((at / self.per_group) as usize)?;
        Some((group, (at % self.per_group) as usize))
    }

    /// See [`kind`]; 0 for an inode that is not in use.
    pub(crate) fn kind(&self, ino: Ino) -> u8 {
        let place = self.place(ino);
        place.and_then(|(group, at)| group.kinds.get(at)).copied().unwrap_or(0)
    }

    /// The number of an encrypted inode's policy.
    pub(crate) fn policy(&self, ino: Ino) -> Option<u32> {
        let policies = &self.place(ino)?.0.policies;
        let at = policies.binary_search_by_key(&ino, |&(ino, _)| ino).ok()?;
        policies.get(at).map(|&(_, policy)| policy)
    }

    /// Counts an entry for an inode.
    pub(crate) fn count(&self, ino: Ino) {
        if let Some(counted) = self.place(ino).and_then(|(group, at)| group.counted.get(at)) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The directory with this inode.
    pub(crate) fn dir(&self, ino: Ino) -> Option<&Dir> {
        let at = self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()?;
        self.dirs.get(at)
    }
}
