//! Reads images that mke2fs, debugfs and e2fsck made, structure by structure.
//!
//! Fault model: a wrong offset, checksum, hash or limit in this crate. Every checksum of every
//! image is verified, and computed again by the writer; every name of a hashed directory must
//! stand where its hash says. Not covered: features that mke2fs does not write, signed names.
//!
//! Needs mke2fs, debugfs and e2fsck; says so and passes where they are missing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use uext4_ondisk::extent::{ExtentEntries, ExtentNode};
use uext4_ondisk::features::Compat;
use uext4_ondisk::hash::DirHasher;
use uext4_ondisk::journal::superblock::{JournalLayout, RawJournalSuperblock};
use uext4_ondisk::{
    BlockNo, FileKind, GroupFlags, GroupNo, Ino, InodeFlags, Layout, RawGroupDesc, RawInode,
    RawSuperblock, bitmap, checksum::InodeSeed, dir_entry, extent, group_desc, htree, inode,
    orphan, xattr,
};

/// Runs a tool; `None`, said aloud, when it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<Output> {
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    match Command::new(name).args(args).env("PATH", path).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: {name}: {error}");
            None
        }
    }
}

/// An open image.
struct Image {
    file: File,
    sb: RawSuperblock,
    layout: Layout,
    descs: Vec<RawGroupDesc>,
}

impl Image {
    fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, 1024).unwrap();
        let sb = RawSuperblock::read(&bytes).unwrap();
        let mut sealed = sb;
        sealed.s_checksum.set(0);
        sealed.seal();
        assert_eq!(sealed, sb);
        let layout = Layout::new(&sb, Some(file.metadata().unwrap().len())).unwrap();
        let mut image = Self { file, sb, layout, descs: Vec::new() };
        image.descs = (0..image.layout.group_count).map(|g| image.desc(GroupNo(g))).collect();
        image
    }

    fn block(&self, block: BlockNo) -> Vec<u8> {
        assert!(self.layout.is_valid_block(block), "{block:?}");
        let mut bytes = vec![0; self.layout.block_size as usize];
        self.file.read_exact_at(&mut bytes, self.layout.byte_of(block)).unwrap();
        bytes
    }

    fn desc(&self, group: GroupNo) -> RawGroupDesc {
        let (block, at) = self.layout.desc_place(group).unwrap();
        let size = self.layout.desc_size;
        let mut slot = self.block(block)[at as usize..][..size.into()].to_vec();
        group_desc::verify_slot(&slot, &self.layout.checksums, group).unwrap();
        let before = slot.clone();
        group_desc::seal_slot(&mut slot, &self.layout.checksums, group);
        assert_eq!(slot, before);
        RawGroupDesc::read(&slot, size).unwrap()
    }

    fn slot(&self, ino: Ino) -> Vec<u8> {
        let (group, index) = self.layout.group_of_ino(ino).unwrap();
        let per_block = self.layout.inodes_per_block();
        let table = self.descs[group.get() as usize].inode_table();
        let block = self.block(table.plus((index / per_block).into()));
        let size = self.layout.inode_size as usize;
        block[(index % per_block) as usize * size..][..size].to_vec()
    }

    fn inode(&self, ino: Ino) -> (RawInode, InodeSeed) {
        let mut slot = self.slot(ino);
        let raw = RawInode::read(&slot).unwrap();
        let seed = self.layout.checksums.inode_seed(ino, raw.i_generation.get());
        inode::verify_inode(&slot, seed).unwrap();
        let before = slot.clone();
        inode::seal_inode(&mut slot, seed);
        raw.write(&mut slot).unwrap();
        assert_eq!(slot, before);
        (raw, seed)
    }

    /// File block to device block, by the extent tree; checks every node.
    fn map(&self, raw: &RawInode, seed: InodeSeed) -> BTreeMap<u32, BlockNo> {
        let blocks = self.layout.first_data_block.get()..self.layout.blocks_count;
        let mut map = BTreeMap::new();
        let mut nodes = vec![(raw.i_block.to_vec(), None)];
        while let Some((bytes, depth)) = nodes.pop() {
            if depth.is_some() {
                extent::verify_extent_block(&bytes, seed).unwrap();
                let mut again = bytes.clone();
                extent::seal_extent_block(&mut again, seed);
                assert_eq!(again, bytes);
            }
            let node = ExtentNode::parse(&bytes, depth, blocks.clone()).unwrap();
            for e in node.extents().filter(|e| !e.unwritten) {
                map.extend((0..e.len).map(|n| (e.first.plus(n).get(), e.start.plus(n.into()))));
            }
            assert_eq!(node.depth == 0, matches!(node.entries, ExtentEntries::Leaf(_)));
            for child in node.children() {
                nodes.push((self.block(child.child), Some(node.depth - 1)));
            }
        }
        map
    }

    /// Checks bitmaps and their counts; returns the inodes in use.
    fn check_groups(&self) -> Vec<Ino> {
        let (layout, checksums) = (&self.layout, &self.layout.checksums);
        let mut inodes = Vec::new();
        let mut free_blocks = 0;
        for (group, desc) in (0..).map(GroupNo).zip(&self.descs) {
            free_blocks += u64::from(desc.free_blocks());
            let lazy = checksums.has_group_checksum();
            if !(lazy && desc.flags().contains(GroupFlags::BLOCK_UNINIT)) {
                let map = self.block(desc.block_bitmap());
                let bits = layout.clusters_per_group;
                desc.verify_block_bitmap(checksums, layout.desc_size, &map, bits).unwrap();
                let zeros = bitmap::count_zeros(&map, layout.blocks_in_group(group));
                assert_eq!(zeros, desc.free_blocks(), "group {group}");
                let past = layout.blocks_in_group(group);
                let bits = layout.block_size * 8;
                assert!(bitmap::all_set(&map, past, bits - past));
            }
            if !(lazy && desc.flags().contains(GroupFlags::INODE_UNINIT)) {
                let map = self.block(desc.inode_bitmap());
                let bits = layout.inodes_per_group;
                desc.verify_inode_bitmap(checksums, layout.desc_size, &map, bits).unwrap();
                assert_eq!(bitmap::count_zeros(&map, bits), desc.free_inodes());
                let used = (0..bits).filter(|&bit| bitmap::test(&map, bit));
                inodes.extend(used.map(|bit| layout.ino_of(group, bit)));
            }
        }
        assert_eq!(free_blocks, self.sb.free_blocks_count());
        inodes
    }

    fn check_directory(&self, ino: Ino) -> usize {
        let (raw, seed) = self.inode(ino);
        let has_csum = self.layout.has_metadata_csum();
        let map = self.map(&raw, seed);
        let blocks: BTreeMap<u32, Vec<u8>> =
            map.iter().map(|(n, block)| (*n, self.block(*block))).collect();
        let mut names = 0;
        let leaves = if raw.flags().contains(InodeFlags::INDEX) {
            self.check_index(&blocks, seed)
        } else {
            blocks.keys().map(|n| (*n, 0, u32::MAX)).collect()
        };
        let (hash, root_names) = match blocks.get(&0) {
            Some(block) if raw.flags().contains(InodeFlags::INDEX) => {
                (htree::parse_root(block, has_csum, 1).unwrap().0.hash, 2)
            }
            _ => (uext4_ondisk::hash::HashVersion::HalfMd4, 0),
        };
        let hasher = DirHasher {
            version: hash,
            unsigned: self.sb.hash_is_unsigned(),
            seed: self.sb.hash_seed(),
            folds: false,
        };
        for (n, least, most) in leaves {
            let block = &blocks[&n];
            dir_entry::verify_dir_leaf(block, seed).unwrap();
            let mut again = block.clone();
            dir_entry::seal_dir_leaf(&mut again, seed);
            assert_eq!(&again, block);
            for entry in dir_entry::DirBlock::new(block).live() {
                let entry = entry.unwrap();
                names += 1;
                let hash = hasher.hash(entry.name).0;
                assert!((least..=most).contains(&hash) || entry.is_dot());
                assert_eq!(entry.kind(), self.inode(entry.ino).0.kind());
                assert_eq!(dir_entry::find(block, entry.name).unwrap(), Some(entry));
            }
        }
        names + root_names
    }

    /// Checks the index of a directory; returns the leaves, each with its range of hashes.
    fn check_index(
        &self,
        blocks: &BTreeMap<u32, Vec<u8>>,
        seed: InodeSeed,
    ) -> Vec<(u32, u32, u32)> {
        let has_csum = self.layout.has_metadata_csum();
        let check = |block: &Vec<u8>| {
            htree::verify_dx(block, seed).unwrap();
            let mut again = block.clone();
            htree::seal_dx(&mut again, seed);
            assert_eq!(&again, block);
        };
        check(&blocks[&0]);
        let (root, node) = htree::parse_root(&blocks[&0], has_csum, htree::MAX_LEVELS).unwrap();
        let mut level: Vec<_> = node.entries().collect();
        for _ in 0..root.levels {
            let mut below = Vec::new();
            for entry in level {
                let block = &blocks[&entry.block.get()];
                check(block);
                let node = htree::parse_node(block, has_csum).unwrap();
                let mut entries: Vec<_> = node.entries().collect();
                entries[0].hash = entry.hash;
                below.extend(entries);
            }
            level = below;
        }
        let ends = level.iter().skip(1).map(|e| e.hash | 1).chain([u32::MAX]);
        level.iter().zip(ends).map(|(e, end)| (e.block.get(), e.hash & !1, end)).collect()
    }

    fn check_attributes(&self, ino: Ino) -> Vec<(String, Vec<u8>)> {
        let (raw, _) = self.inode(ino);
        let slot = self.slot(ino);
        let area = uext4_ondisk::inode::xattr_offset(&slot).map_or(&[][..], |at| &slot[at..]);
        let mut all: Vec<_> = xattr::area_entries(area).map(Result::unwrap).collect();
        let block;
        if raw.file_acl() != 0 {
            let at = BlockNo(raw.file_acl());
            block = self.block(at);
            xattr::verify_xattr_block(&block, &self.layout.checksums, at).unwrap();
            let found: Vec<_> = xattr::block_entries(&block).unwrap().map(Result::unwrap).collect();
            found.iter().for_each(|e| xattr::verify_entry_hash(e).unwrap());
            let header = xattr::RawXattrHeader::from_prefix(&block).unwrap();
            let hash = xattr::block_hash(found.iter().map(|e| e.hash));
            // e2fsprogs leaves it 0: "not to be shared".
            assert!([0, hash].contains(&header.h_hash.get()));
            all.extend(found);
        }
        let name = |e: &xattr::XattrEntry<'_>| {
            let prefix = xattr::prefix_of(e.index).unwrap();
            format!("{prefix}{}", String::from_utf8_lossy(e.name))
        };
        all.iter().map(|e| (name(e), e.value.to_vec())).collect()
    }

    fn check_journal(&self) {
        let (raw, seed) = self.inode(Ino::JOURNAL);
        let map = self.map(&raw, seed);
        let sb = RawJournalSuperblock::read(&self.block(map[&0])).unwrap();
        let mut again = sb;
        again.seal();
        assert_eq!(again, sb);
        let layout = JournalLayout::new(&sb, self.layout.block_size, map.len() as u32).unwrap();
        assert!(layout.is_empty() && layout.end == map.len() as u32);
    }

    fn check_orphan_file(&self) {
        let ino = Ino(self.sb.s_orphan_file_inum.get());
        let (raw, seed) = self.inode(ino);
        for block_no in self.map(&raw, seed).into_values() {
            let mut block = self.block(block_no);
            orphan::verify_orphan_block(&block, seed, block_no).unwrap();
            assert_eq!(orphan::entries(&block).count(), 0);
            let before = block.clone();
            orphan::init_block(&mut block);
            orphan::seal_orphan_block(&mut block, seed, block_no);
            assert_eq!(block, before);
        }
    }
}

/// Makes a populated image; `None` when a tool is missing.
fn make(dir: &Path, args: &[&str], size: &str) -> Option<std::path::PathBuf> {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("many")).unwrap();
    for n in 0..1500 {
        fs::write(tree.join(format!("many/a rather long name, number {n}.txt")), b"x").unwrap();
    }
    fs::write(tree.join("small"), vec![1_u8; 5000]).unwrap();
    std::os::unix::fs::symlink("small", tree.join("link")).unwrap();
    let image = dir.join("image");
    let (image_arg, tree_arg) = (image.to_str().unwrap(), tree.to_str().unwrap());
    let mut all = vec!["-q", "-F", "-t", "ext4", "-d", tree_arg];
    all.extend(args);
    all.extend([image_arg, size]);
    let output = tool("mke2fs", &all)?;
    assert!(output.status.success(), "{output:?}");
    let value = dir.join("value");
    fs::write(&value, [0x55; 700]).unwrap();
    for request in [
        format!("ea_set -f {} /small user.large", value.display()),
        "ea_set /small user.note short".to_owned(),
        "ea_set /small security.label x".to_owned(),
    ] {
        let output = tool("debugfs", &["-w", "-R", &request, image_arg])?;
        assert!(output.status.success(), "{output:?}");
    }
    // Fragmented free space and a sparse file: an extent tree with index nodes.
    let sparse = dir.join("sparse");
    let file = File::create(&sparse).unwrap();
    for n in 0..700 {
        file.write_all_at(&[n as u8 | 1; 4096], n * 3 * 4096).unwrap();
    }
    let request = format!("write {} sparse", sparse.display());
    tool("debugfs", &["-w", "-R", &request, image_arg])?;
    // Builds the hash trees. Exit status 1: the file system was changed.
    let output = tool("e2fsck", &["-fyD", image_arg])?;
    assert!(output.status.code() < Some(2), "{output:?}");
    Some(image)
}

fn check(args: &[&str], size: &str) {
    let dir = tempfile::tempdir().unwrap();
    if let Some(path) = make(dir.path(), args, size) {
        let image = Image::open(&path);
        let (mut names, mut hashed, mut deep) = (0, 0, 0);
        for ino in image.check_groups() {
            let (raw, seed) = image.inode(ino);
            if raw.kind() == Some(FileKind::Directory) {
                names += image.check_directory(ino);
                hashed += u32::from(raw.flags().contains(InodeFlags::INDEX));
            } else if raw.flags().contains(InodeFlags::EXTENTS) {
                image.map(&raw, seed);
                deep += u32::from(raw.i_block[6] > 0);
            }
            if raw.kind() == Some(FileKind::Regular) && raw.size() == 5000 {
                let mut found = image.check_attributes(ino);
                found.sort();
                assert_eq!(found.len(), 3);
                assert_eq!(found[0], ("security.label".to_owned(), b"x".to_vec()));
                assert_eq!(found[1], ("user.large".to_owned(), vec![0x55; 700]));
            }
        }
        assert!(names > 1500 && hashed == 1 && deep == 1, "{names} {hashed} {deep}");
        image.check_journal();
        if image.layout.features.compat.contains(Compat::ORPHAN_FILE) {
            image.check_orphan_file();
        }
    }
}

#[test]
fn default_image() {
    check(&[], "64M");
}

#[test]
fn small_blocks_and_inodes() {
    check(&["-b", "1024", "-I", "128"], "64M");
}

#[test]
fn checksum_seed_and_orphan_file() {
    check(&["-b", "2048", "-O", "metadata_csum_seed,orphan_file"], "100M");
}

#[test]
fn group_checksums_only() {
    check(&["-O", "^metadata_csum,uninit_bg,^64bit", "-I", "512"], "300M");
}

#[test]
fn no_checksums() {
    check(&["-O", "^metadata_csum,^flex_bg,sparse_super2", "-b", "1024"], "64M");
}

#[test]
fn given_hash_seed() {
    check(&["-E", "hash_seed=01020304-0506-0708-090a-0b0c0d0e0f10"], "64M");
}
