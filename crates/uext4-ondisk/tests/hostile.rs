//! Hostile bytes: every reader gets random blocks and sound blocks with a few bytes changed.
//!
//! Fault model: any content of any structure. A panic, an overflow (tests are built with overflow
//! checks) or an endless loop fails; the seed is printed. Not covered: time within one call beyond
//! what the test as a whole takes.

use uext4_ondisk::extent::{Extent, ExtentIndex, ExtentNode};
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::htree::{self, DxEntry, DxRoot};
use uext4_ondisk::journal::superblock::{JournalLayout, RawJournalSuperblock};
use uext4_ondisk::journal::{CommitBlock, JournalChecksum, JournalFormat, block};
use uext4_ondisk::superblock::MAGIC;
use uext4_ondisk::xattr::{self, Xattr, XattrValue};
use uext4_ondisk::{
    BlockNo, Checksums, FileBlock, GroupNo, Ino, Layout, RawGroupDesc, RawInode, RawSuperblock,
    Tid, bitmap, checksum, dir_entry, extent, group_desc, inode, orphan,
};

/// A small generator, so that a failure is the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// Changes a few bytes, mostly near the start, often to extreme values.
    fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..1 + self.below(6) {
            let near = if self.next().is_multiple_of(2) { 64 } else { bytes.len() };
            let at = self.below(near.min(bytes.len()));
            bytes[at] = match self.next() % 4 {
                0 => 0,
                1 => 0xff,
                2 => bytes[at].wrapping_add(1),
                _ => self.next() as u8,
            };
        }
    }
}

const SUMS: Checksums = Checksums { kind: checksum::ChecksumKind::Crc32c, seed: 1, uuid: [0; 16] };

fn sound_superblock() -> RawSuperblock {
    let mut sb = RawSuperblock::zeroed();
    sb.s_magic.set(MAGIC);
    sb.s_rev_level.set(1);
    sb.s_log_block_size.set(2);
    sb.s_log_cluster_size.set(2);
    sb.s_blocks_per_group.set(32768);
    sb.s_clusters_per_group.set(32768);
    sb.s_inodes_per_group.set(8192);
    sb.s_inodes_count.set(8 * 8192);
    sb.s_first_ino.set(11);
    sb.s_inode_size.set(256);
    sb.s_desc_size.set(64);
    sb.s_feature_incompat.set(0x2c2);
    sb.s_feature_ro_compat.set(0x46b);
    sb.set_blocks_count(262_144);
    sb
}

fn read_superblock(bytes: &[u8], random: &mut Random) {
    let Some(mut sb) = RawSuperblock::from_prefix(bytes) else { return };
    sb.s_magic.set(MAGIC);
    _ = sb.verify_checksum();
    let device = [None, Some(random.next() << random.below(40))][random.below(2)];
    let Ok(layout) = Layout::new(&sb, device) else { return };
    _ = uext4_ondisk::features::support(&sb);
    let numbers = [0, 1, random.next(), u64::MAX, layout.blocks_count];
    for n in numbers {
        let group = GroupNo(n as u32);
        _ = layout.group_of(BlockNo(n));
        _ = layout.group_of_ino(Ino(n as u32));
        _ = layout.ino_of(group, n as u32);
        _ = (layout.has_super(group), layout.base_meta_blocks(group), layout.desc_place(group));
        _ = (layout.group_first_block(group), layout.blocks_in_group(group));
        _ = (layout.desc_block_no(n as u32), layout.byte_of(BlockNo(n)));
        _ = layout.is_valid_run(BlockNo(n), n);
    }
    _ = (layout.inode_table_blocks(), layout.max_file_blocks(), layout.bytes());
}

fn read_everything(bytes: &[u8], random: &mut Random) {
    let seed = SUMS.inode_seed(Ino(random.next() as u32), 7);
    let hasher =
        DirHasher { version: HashVersion::Tea, unsigned: false, seed: [1; 4], folds: true };
    for entry in dir_entry::DirBlock::new(bytes).flatten() {
        _ = hasher.hash(entry.name);
    }
    _ = dir_entry::verify_dir_leaf(bytes, seed);
    let mut copy = bytes.to_vec();
    _ = dir_entry::insert(&mut copy, b"name", Ino(5), None, random.next().is_multiple_of(2));
    _ = dir_entry::delete(&mut copy, random.below(bytes.len() + 8) as u32);
    dir_entry::seal_dir_leaf(&mut copy, seed);

    for csum in [false, true] {
        _ = htree::parse_root(bytes, csum, 2).map(|(_, node)| node.position(77));
        _ = htree::parse_node(bytes, csum).map(|node| node.entries().count());
    }
    _ = htree::verify_dx(bytes, seed);
    htree::seal_dx(&mut copy, seed);

    for depth in [None, Some(0), Some(1)] {
        if let Ok(node) = ExtentNode::parse(bytes, depth, 0..random.next()) {
            _ = (node.extents().last(), node.children().last(), node.first());
            _ = node.position(FileBlock(random.next() as u32));
        }
    }
    _ = extent::verify_extent_block(bytes, seed);
    extent::seal_extent_block(&mut copy, seed);

    if let Ok(raw) = RawInode::read(bytes) {
        _ = (raw.kind(), raw.size(), raw.sectors(true, 4096), raw.file_acl(), raw.device());
        _ = (raw.atime(), raw.ctime(), raw.mtime(), raw.crtime(), raw.version());
        _ = raw.write(&mut copy);
    }
    _ = inode::verify_inode(bytes, seed);
    inode::seal_inode(&mut copy, seed);
    xattr::area_entries(bytes).for_each(|entry| _ = entry.map(|e| xattr::verify_entry_hash(&e)));
    if let Ok(entries) = xattr::block_entries(bytes) {
        entries.for_each(|entry| _ = entry.map(|e| xattr::verify_entry_hash(&e)));
    }
    _ = xattr::verify_xattr_block(bytes, &SUMS, BlockNo(3));
    _ = xattr::write_area(
        &mut copy,
        &[Xattr { index: 1, name: b"n", value: XattrValue::Here(b"v") }],
    );

    _ = orphan::verify_orphan_block(bytes, seed, BlockNo(9));
    _ = orphan::entries(bytes).count();
    _ = RawGroupDesc::read(bytes, 64).map(|d| d.verify_block_bitmap(&SUMS, 64, bytes, 99_999));
    _ = group_desc::verify_slot(bytes, &SUMS, GroupNo(3));
    let (from, limit) = (random.next() as u32, random.next() as u32);
    _ = (bitmap::find_next_zero(bytes, from % 9999, limit), bitmap::count_zeros(bytes, limit));
    _ = bitmap::longest_free_run(bytes, 0, limit);
    bitmap::set_range(&mut copy, from, limit);
}

fn read_journal(bytes: &[u8]) {
    if let Ok(sb) = RawJournalSuperblock::read(bytes) {
        _ = JournalLayout::new(&sb, 4096, 1024).map(|layout| layout.after(u32::MAX, u32::MAX));
        _ = sb.feature_names();
    }
    for checksum in [JournalChecksum::None, JournalChecksum::V2, JournalChecksum::V3] {
        for is_64bit in [false, true] {
            let format =
                JournalFormat { block_size: 1024, checksum, is_64bit, seed: 1, uuid: [0; 16] };
            _ = block::header(bytes);
            _ = block::tags(bytes, &format).filter(|t| t.matches(&format, Tid(1), bytes)).count();
            _ = block::verify_tail(bytes, &format);
            _ = block::verify_commit(bytes, &format);
            _ = CommitBlock::read(bytes);
            _ = block::revoked_blocks(bytes, &format).map(Iterator::count);
        }
    }
}

/// Sound blocks of every kind, to be damaged.
fn sound_blocks() -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut add = |fill: &dyn Fn(&mut [u8])| {
        let mut block = vec![0; 1024];
        fill(&mut block);
        blocks.push(block);
    };
    add(&|b| {
        dir_entry::init_first_block(b, Ino(12), Ino(2), true, true);
        (0..30).for_each(|n| {
            _ = dir_entry::insert(b, format!("f{n}").as_bytes(), Ino(n + 3), None, true);
        });
    });
    let root = DxRoot { hash: HashVersion::HalfMd4, levels: 1, own: Ino(12), parent: Ino(2) };
    let entries: Vec<DxEntry> =
        (0..50).map(|n| DxEntry { hash: n * 8, block: FileBlock(n + 1) }).collect();
    add(&|b| _ = htree::write_root(b, &root, true, true, &entries));
    add(&|b| _ = htree::write_node(b, true, &entries));
    let extents: Vec<Extent> = (0..40)
        .map(|n| Extent {
            first: FileBlock(n * 9),
            len: 5,
            start: BlockNo(n.into()),
            unwritten: n % 2 == 0,
        })
        .collect();
    add(&|b| _ = extent::write_leaf(b, &extents));
    let children: Vec<ExtentIndex> = (0..40)
        .map(|n| ExtentIndex { first: FileBlock(n * 9), child: BlockNo(u64::from(n) + 1) })
        .collect();
    add(&|b| _ = extent::write_index(b, 1, &children));
    let attributes: Vec<Xattr<'_>> = [b"a", b"b", b"c"]
        .map(|name| Xattr { index: 1, name, value: XattrValue::Here(&[7; 90]) })
        .to_vec();
    add(&|b| _ = xattr::write_block(b, &attributes));
    add(&|b| _ = xattr::write_area(b, &attributes));
    add(&orphan::init_block);
    let format = JournalFormat {
        block_size: 1024,
        checksum: JournalChecksum::V2,
        is_64bit: true,
        seed: 1,
        uuid: [0; 16],
    };
    add(&|b| {
        let mut writer = block::DescriptorWriter::new(b, &format, Tid(5));
        (0..20).for_each(|n| _ = writer.push_with_checksum(BlockNo(n), false, 0));
        writer.finish();
    });
    add(&|b| {
        let mut writer = block::RevokeWriter::new(b, &format, Tid(5));
        (0..20).for_each(|n| _ = writer.push(BlockNo(n)));
        writer.finish();
    });
    blocks
}

#[test]
fn damaged_structures() {
    let sound = sound_blocks();
    for seed in 0..20_000_u64 {
        let mut random = Random(seed);
        let mut bytes = sound[random.below(sound.len())].clone();
        random.damage(&mut bytes);
        let result = std::panic::catch_unwind(move || {
            read_everything(&bytes, &mut random);
            read_journal(&bytes);
        });
        assert!(result.is_ok(), "SEED={seed}");
    }
}

#[test]
fn random_bytes_of_any_length() {
    for seed in 0..5_000_u64 {
        let mut random = Random(seed);
        let len = random.below(1100);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        let result = std::panic::catch_unwind(move || {
            read_everything(&bytes, &mut random);
            read_journal(&bytes);
            read_superblock(&bytes, &mut random);
        });
        assert!(result.is_ok(), "SEED={seed}");
    }
}

#[test]
fn damaged_superblocks() {
    let sound = sound_superblock();
    assert!(Layout::new(&sound, None).is_ok());
    for seed in 0..50_000_u64 {
        let mut random = Random(seed);
        let mut bytes = sound.bytes().to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(0x180);
            bytes[at] = random.next() as u8;
        }
        let result = std::panic::catch_unwind(move || read_superblock(&bytes, &mut random));
        assert!(result.is_ok(), "SEED={seed}");
    }
}
