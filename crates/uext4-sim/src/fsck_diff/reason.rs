//! Why verdicts may differ: what e2fsck does not see, or fails at.
//!
//! A reason is a fact about the image, checked here, and not the code of a finding alone. A case
//! has one only if each of our errors has one.

use std::collections::BTreeSet;

use uext4_device::MemoryDevice;
use uext4_fsck::{Finding, Place, Problem, Report, Severity};
use uext4_ondisk::{FileKind, GroupNo, Ino, InodeFlags, Layout, RawGroupDesc};
use uext4_ondisk::{RawInode, RawSuperblock};

use crate::anatomy::bytes;
use crate::oracle::TIMED_OUT;

/// Why the verdicts may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// e2fsck asks about descriptors and superblock before its first pass, and then forgets that
    /// it was told not to fix them: it exits 0. Ours stay errors.
    Forgotten,
    /// e2fsck itself fails: it tries to write to what it opened to read, or does not end.
    Fails,
    /// The log would start past the journal's end, or have no block: the kernel refuses to mount
    /// that, e2fsck does not look as long as the log is empty.
    LogStart,
    /// Names that are twice in a directory, in different blocks: e2fsck looks within a block.
    Duplicate,
    /// A quota tree that leads out of its file, or twice to a block: e2fsck leaves that branch
    /// out, and says nothing while usage is right without it. The kernel fails at such a block.
    QuotaTree,
    /// An extent tree whose nodes say that they are of another level than they are: e2fsck does
    /// not look, the kernel refuses the file.
    Depth,
    /// A map of the resize inode that is wrong: e2fsck looks at its first quarter.
    ResizeMap,
    /// An encryption context with another name index: e2fsck looks at the name alone, the kernel
    /// finds no context.
    ContextIndex,
    /// The attribute block of an inode without a name, such as the journal's or that of a value:
    /// e2fsck judges it where it meets a name.
    Unnamed,
    /// The size of a directory is wrong by a multiple of 2^32 blocks, which e2fsck cuts off.
    DirectorySize,
}

/// The reasons of a difference; none if one of our errors has none.
pub(super) fn all(
    device: &MemoryDevice,
    report: &Report,
    text: &str,
    theirs: bool,
) -> BTreeSet<Reason> {
    let fails = text.contains("Error writing block") || text.contains(TIMED_OUT);
    if !theirs {
        return fails.then_some(Reason::Fails).into_iter().collect();
    }
    let before = text.split("Pass 1:").next().unwrap_or_default();
    if before.contains("? no") || before.contains("IGNORED") {
        return [Reason::Forgotten].into();
    }
    let Some(image) = Image::read(device) else { return BTreeSet::new() };
    let errors = report.findings.iter().filter(|finding| finding.severity > Severity::Warning);
    let reasons: Option<BTreeSet<Reason>> =
        errors.map(|finding| image.reason(finding, &report.findings)).collect();
    reasons.unwrap_or_default()
}

/// The damaged image.
struct Image<'a> {
    device: &'a MemoryDevice,
    layout: Layout,
}

impl<'a> Image<'a> {
    fn read(device: &'a MemoryDevice) -> Option<Self> {
        let raw = RawSuperblock::read(&bytes(device, 1024, 1024)).ok()?;
        Some(Self { device, layout: Layout::new(&raw, None).ok()? })
    }

    /// The slot of an inode.
    fn slot(&self, ino: Ino) -> Option<Vec<u8>> {
        let (group, index): (GroupNo, u32) = self.layout.group_of_ino(ino)?;
        let (block, at) = self.layout.desc_place(group)?;
        let size = self.layout.desc_size;
        let desc = bytes(self.device, self.layout.byte_of(block) + u64::from(at), size.into());
        let table = RawGroupDesc::read(&desc, size).ok()?.inode_table();
        let inode_size = self.layout.inode_size;
        let at = self.layout.byte_of(table) + u64::from(index) * u64::from(inode_size);
        Some(bytes(self.device, at, inode_size as usize))
    }

    fn inode(&self, ino: Ino) -> Option<RawInode> {
        RawInode::from_prefix(&self.slot(ino)?)
    }

    /// Why e2fsck does not have a finding.
    fn reason(&self, finding: &Finding, all: &[Finding]) -> Option<Reason> {
        if is_below_a_level(finding, all) {
            return Some(Reason::Depth);
        }
        match &finding.problem {
            Problem::EntryDuplicate { .. } => Some(Reason::Duplicate),
            Problem::QuotaFile { why, .. } => {
                let astray = why.contains("leads ") || why.contains("is of the tree");
                astray.then_some(Reason::QuotaTree)
            }
            Problem::ExtentHeader { ino, why, .. } if why.contains("too deep") => {
                // The number of entries follows the magic number.
                let is_empty = self.inode(*ino)?.i_block[2..4] == [0, 0];
                is_empty.then_some(Reason::Depth)
            }
            Problem::ResizeBlocks { want, .. } => {
                self.is_past_the_quarter(*want).then_some(Reason::ResizeMap)
            }
            Problem::JournalSuperblock { why, .. } => {
                let start = why.contains("s_first") || why.contains("s_maxlen");
                start.then_some(Reason::LogStart)
            }
            Problem::InodeEncryption { ino, .. } => {
                self.has_context_of_another_index(*ino)?.then_some(Reason::ContextIndex)
            }
            Problem::XattrPlace { ino, .. } => {
                let is_value = self.inode(*ino)?.flags().contains(InodeFlags::EA_INODE);
                (is_value || *ino < self.layout.first_ino).then_some(Reason::Unnamed)
            }
            Problem::InodeSize { ino, found, want } => {
                let is_dir = self.inode(*ino)?.kind() == Some(FileKind::Directory);
                let cut_off = 32 + self.layout.block_size.trailing_zeros();
                let fits = (found ^ want).trailing_zeros() >= cut_off;
                (is_dir && fits).then_some(Reason::DirectorySize)
            }
            Problem::DirHole { dir, .. } => {
                let size = all.iter().find(
                    |other| matches!(other.problem, Problem::InodeSize { ino, .. } if ino == *dir),
                );
                self.reason(size?, &[])
            }
            _ => None,
        }
    }

    /// Whether a block that the resize inode should name is none of the first quarter.
    fn is_past_the_quarter(&self, want: u64) -> bool {
        let layout = &self.layout;
        let reserved = layout.reserved_gdt_blocks;
        let in_group = (want - layout.first_data_block.get()) % u64::from(layout.blocks_per_group);
        // Superblock and descriptors stand before them.
        let descs = u64::from(layout.base_meta_blocks(GroupNo(0))) - 1 - u64::from(reserved);
        in_group >= 1 + descs + u64::from(reserved / 4)
    }

    /// Whether an inode has an attribute `c` that is not the encryption context.
    fn has_context_of_another_index(&self, ino: Ino) -> Option<bool> {
        let slot = self.slot(ino)?;
        // The name stands behind the sixteen bytes of its entry: length, index, and the rest.
        let is_other = |entry: &[u8]| entry[0] == 1 && entry[1] != 9 && entry[16] == b'c';
        Some(slot.get(128..)?.windows(17).step_by(4).any(is_other))
    }
}

/// Whether a finding follows from a node that says it is of another level than it is: what lies
/// below is missed wherever it is counted.
fn is_below_a_level(finding: &Finding, all: &[Finding]) -> bool {
    let of_another_level = |finding: &Finding| match &finding.problem {
        Problem::ExtentHeader { ino, why, .. } if why.contains("contradicts") => Some(*ino),
        _ => None,
    };
    let mut inodes = all.iter().filter_map(of_another_level).peekable();
    let counts = ["bitmap.blocks", "group.free_blocks", "superblock.free_blocks", "quota.usage"];
    match finding.place {
        Place::Inode(ino) | Place::DirBlock(ino, _) if finding.code != "quota.usage" => {
            inodes.any(|other| other == ino)
        }
        _ => inodes.peek().is_some() && counts.contains(&finding.code),
    }
}
