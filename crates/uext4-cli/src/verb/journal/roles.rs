//! What a block is in its file system, as far as the superblock and the descriptors say so.

use uext4_ondisk::{BlockNo, GroupNo, Layout, RawGroupDesc};

use crate::inspect::Inspected;

/// What the fixed structures have of blocks, in their order: first, behind the last, what it is.
pub(super) struct Roles(Vec<(u64, u64, Role)>);

#[derive(Clone, Copy)]
enum Role {
    Superblock,
    Descriptors,
    BlockBitmap(u32),
    InodeBitmap(u32),
    /// Of a group, with the first inode and how many a block has.
    InodeTable(u32, u32, u32),
}

impl Roles {
    pub(super) fn new(inspected: &Inspected) -> Self {
        let layout = &inspected.layout;
        let mut all = Vec::new();
        let groups = (0..layout.group_count).map(GroupNo);
        for group in groups {
            copies(layout, group, &mut all);
            // A descriptor that cannot be read is told by `info` and `fsck`.
            if let Ok(desc) = inspected.group(group) {
                tables(layout, group, &desc, &mut all);
            }
        }
        all.sort_by_key(|(first, ..)| *first);
        Self(all)
    }

    /// In words.
    pub(super) fn of(&self, block: BlockNo) -> Option<String> {
        let block = block.get();
        let behind = self.0.partition_point(|(first, ..)| *first <= block);
        let (first, end, role) = self.0.get(behind.checked_sub(1)?)?;
        (block < *end).then(|| match *role {
            Role::Superblock => "superblock".to_owned(),
            Role::Descriptors => "group descriptors".to_owned(),
            Role::BlockBitmap(group) => format!("block bitmap of group {group}"),
            Role::InodeBitmap(group) => format!("inode bitmap of group {group}"),
            Role::InodeTable(group, ino, per_block) => {
                let first = u64::from(ino) + (block - first) * u64::from(per_block);
                let last = first + u64::from(per_block) - 1;
                format!("inodes {first} to {last}, of group {group}")
            }
        })
    }
}

/// The superblock of a group, and its group descriptors.
fn copies(layout: &Layout, group: GroupNo, all: &mut Vec<(u64, u64, Role)>) {
    if let Some(block) = layout.super_copy(group) {
        all.push((block.get(), block.get() + 1, Role::Superblock));
    }
    let (first, count) = layout.desc_copies(group);
    if count != 0 {
        all.push((first.get(), first.get() + u64::from(count), Role::Descriptors));
    }
}

fn tables(layout: &Layout, group: GroupNo, desc: &RawGroupDesc, all: &mut Vec<(u64, u64, Role)>) {
    let number = group.get();
    let at = [desc.block_bitmap().get(), desc.inode_bitmap().get(), desc.inode_table().get()];
    let [blocks, inodes, table] = at;
    all.push((blocks, blocks.saturating_add(1), Role::BlockBitmap(number)));
    all.push((inodes, inodes.saturating_add(1), Role::InodeBitmap(number)));
    let ino = number.saturating_mul(layout.inodes_per_group).saturating_add(1);
    let role = Role::InodeTable(number, ino, layout.inodes_per_block());
    all.push((table, table.saturating_add(u64::from(layout.inode_table_blocks())), role));
}
