//! Every sort of finding, injected one by one.
//!
//! Fault model: one field of one structure of a sound image is wrong. Its checksum is right unless
//! the checksum is the fault. Each fault must be found with its code, and the sound image must have
//! no finding. The second test damages images at random, and requires that every code is found
//! except those in `RARE`. Not covered: that nothing else is found.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use uext4_device::{Device, MemoryDevice};
use uext4_fsck::{CODES, CheckError, Options, Report, check};
use uext4_ondisk::dir_entry::DirBlock;
use uext4_ondisk::{
    BlockNo, Compat, FileKind, GroupNo, Incompat, Ino, InodeFlags, RawGroupDesc, RawInode,
    RawSuperblock, RoCompat, bitmap,
};
use uext4_sim::anatomy::{Anatomy, Seal, Structure, bytes};
use uext4_sim::shape;
use uext4_sim::structure_damage::Mutator;

/// A sound image that faults are injected into.
struct Base {
    device: MemoryDevice,
    anatomy: Anatomy,
}

fn have_tools() -> bool {
    let have = ["mke2fs", "e2fsck"].iter().all(|tool| uext4_sim::oracle::program(tool).is_some());
    if !have {
        println!("skipped: mke2fs and e2fsck are not installed");
    }
    have
}

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let options = "-t ext4 -b 1024 -g 2048 -N 512 -O orphan_file,quota";
        let device = shape::image(options, 8).expect("image");
        let anatomy = Anatomy::of(&device);
        Base { device, anatomy }
    })
}

/// A copy of the image with a fault in it.
struct Faulty<'a> {
    device: MemoryDevice,
    anatomy: &'a Anatomy,
}

type Fault = fn(&Faulty<'_>);

impl Faulty<'_> {
    fn target(&self, wanted: impl Fn(Seal) -> bool) -> &Structure {
        self.anatomy.targets.iter().find(|t| wanted(t.seal)).expect("target")
    }

    fn edit_unsealed(&self, target: &Structure, edit: impl FnOnce(&mut [u8])) {
        let mut image = bytes(&self.device, target.at, target.len);
        edit(&mut image);
        self.device.write_at(target.at, &image).expect("memory");
    }

    fn edit(&self, wanted: impl Fn(Seal) -> bool, edit: impl FnOnce(&mut [u8])) {
        let target = self.target(wanted);
        self.edit_unsealed(target, edit);
        self.anatomy.seal(&self.device, target);
    }

    fn spoil(&self, wanted: impl Fn(Seal) -> bool, at: usize) {
        self.edit_unsealed(self.target(wanted), |image| image[at] ^= 1);
    }

    fn sb(&self, edit: impl FnOnce(&mut RawSuperblock)) {
        self.edit(
            |seal| seal == Seal::Superblock,
            |image| edit(RawSuperblock::mut_from_prefix(image).expect("superblock")),
        );
    }

    fn desc(&self, edit: impl FnOnce(&mut RawGroupDesc)) {
        self.edit(
            |seal| seal == Seal::Desc(GroupNo(1)),
            |image| edit(RawGroupDesc::mut_from_prefix(image).expect("descriptor")),
        );
    }

    fn inode(&self, ino: u32, edit: impl FnOnce(&mut RawInode)) {
        self.edit(
            |seal| seal == Seal::Inode(Ino(ino)),
            |image| edit(RawInode::mut_from_prefix(image).expect("inode")),
        );
    }

    fn read(&self, ino: Ino) -> RawInode {
        let target = self.target(|seal| seal == Seal::Inode(ino));
        RawInode::from_prefix(&bytes(&self.device, target.at, target.len)).expect("inode")
    }

    /// The first inode, not a reserved one, that is as wanted.
    fn find(&self, wanted: impl Fn(&RawInode) -> bool) -> u32 {
        let ordinary = self.anatomy.inodes.iter().filter(|ino| ino.get() > 11);
        let found = ordinary.copied().find(|ino| wanted(&self.read(*ino)));
        found.expect("inode").get()
    }

    fn kind(&self, kind: FileKind) -> u32 {
        self.find(|raw| raw.kind() == Some(kind))
    }

    /// A small file.
    fn file(&self) -> u32 {
        self.find(|raw| raw.kind() == Some(FileKind::Regular) && (1..1000).contains(&raw.size()))
    }

    /// The file with holes and a node block.
    fn fragments(&self) -> u32 {
        self.find(|raw| raw.i_block[6] == 1 && raw.kind() == Some(FileKind::Regular))
    }

    /// A directory of one block.
    fn dir(&self) -> u32 {
        self.find(|raw| raw.kind() == Some(FileKind::Directory) && raw.size() == 1024)
    }

    /// The first block of a directory of one block, as a target.
    fn dir_block(&self, edit: impl FnOnce(&mut [u8])) {
        let raw = self.read(Ino(self.dir()));
        let start = u32::from_le_bytes(*raw.i_block[20..].first_chunk().expect("start"));
        let at = u64::from(start) * 1024;
        let target = self.anatomy.targets.iter().find(|t| t.at == at).expect("block");
        self.edit_unsealed(target, edit);
        self.anatomy.seal(&self.device, target);
    }

    /// A leaf of the directory with files of their own.
    fn leaf_of_files(&self, edit: impl FnOnce(&mut [u8])) {
        let is_leaf = |t: &&Structure| matches!(t.seal, Seal::DirLeaf(_));
        let mut leaves = self.anatomy.targets.iter().filter(is_leaf);
        let target = leaves.find(|t| bytes(&self.device, t.at + 8, 4) == b"file").expect("leaf");
        self.edit_unsealed(target, edit);
        self.anatomy.seal(&self.device, target);
    }

    /// A node of the extent tree of a file that is not one of the file system's own.
    fn leaf(&self, edit: impl FnOnce(&mut [u8])) {
        let is_leaf = |t: &&Structure| {
            matches!(t.seal, Seal::Extent(_)) && t.owner.is_some_and(|owner| owner.get() > 10)
        };
        let target = self.anatomy.targets.iter().find(is_leaf).expect("leaf");
        self.edit_unsealed(target, edit);
        self.anatomy.seal(&self.device, target);
    }

    fn journal(&self, edit: impl FnOnce(&mut [u8])) {
        self.edit(|seal| seal == Seal::JournalSuperblock, edit);
    }

    fn free_block(&self) -> u32 {
        let target = self.target(|seal| seal == Seal::BlockBitmap(GroupNo(2)));
        let map = bytes(&self.device, target.at, target.len);
        1 + 2 * 2048 + bitmap::find_next_zero(&map, 0, 2048).expect("free block")
    }
}

/// Sets two bytes.
fn put16(image: &mut [u8], at: usize, value: u16) {
    image[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Sets four bytes.
fn put32(image: &mut [u8], at: usize, value: u32) {
    image[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The root entry's device block of an inode with one extent.
fn set_start(raw: &mut RawInode, block: u32) {
    put32(&mut raw.i_block, 20, block);
}

const FAULTS: &[(&str, Fault)] = &[
    ("superblock.checksum", |p| p.spoil(|s| s == Seal::Superblock, 0x78)),
    ("superblock.geometry", |p| p.sb(|sb| sb.s_blocks_per_group.set(9))),
    ("superblock.device_size", |p| p.sb(|sb| sb.set_blocks_count(1 << 30))),
    ("superblock.reserved_blocks", |p| p.sb(|sb| sb.set_reserved_blocks_count(8000))),
    ("superblock.mmp", |p| {
        p.sb(|sb| {
            sb.s_feature_incompat.set(sb.s_feature_incompat.get() | Incompat::MMP.bits());
            sb.s_mmp_block.set(3);
        });
    }),
    ("superblock.checksum_type", |p| p.sb(|sb| sb.s_checksum_type = 2)),
    ("superblock.free_blocks", |p| p.sb(|sb| sb.set_free_blocks_count(1))),
    ("superblock.free_inodes", |p| p.sb(|sb| sb.s_free_inodes_count.set(1))),
    ("superblock.extra_isize", |p| p.sb(|sb| sb.s_want_extra_isize.set(333))),
    ("superblock.errors", |p| p.sb(|sb| sb.s_state.set(3))),
    ("superblock.future_time", |p| p.sb(|sb| sb.s_mtime.set(u32::MAX))),
    ("superblock.large_file", |p| {
        p.inode(p.fragments(), |raw| raw.set_size(1 << 33));
        p.sb(|sb| {
            let bits = sb.s_feature_ro_compat.get() & !RoCompat::LARGE_FILE.bits();
            sb.s_feature_ro_compat.set(bits);
        });
    }),
    ("superblock.reserved_gdt", |p| {
        p.sb(|sb| {
            sb.s_feature_compat.set(sb.s_feature_compat.get() & !Compat::RESIZE_INODE.bits());
        })
    }),
    ("resize.stale", |p| {
        p.sb(|sb| {
            sb.s_feature_compat.set(sb.s_feature_compat.get() & !Compat::RESIZE_INODE.bits());
        })
    }),
    ("group.checksum", |p| p.spoil(|s| s == Seal::Desc(GroupNo(1)), 20)),
    ("group.block_bitmap_place", |p| p.desc(|d| d.set_block_bitmap(BlockNo(0)))),
    ("group.inode_bitmap_place", |p| p.desc(|d| d.set_inode_bitmap(BlockNo(99_999)))),
    ("group.inode_table_place", |p| p.desc(|d| d.set_inode_table(BlockNo(8190)))),
    ("group.overlap", |p| p.desc(|d| d.set_inode_bitmap(d.block_bitmap()))),
    ("group.unused_inodes", |p| p.desc(|d| d.set_itable_unused(5000))),
    ("group.uninit_last", |p| p.edit(|s| s == Seal::Desc(GroupNo(3)), |image| image[18] |= 2)),
    ("group.free_blocks", |p| p.desc(|d| d.set_free_blocks(3))),
    ("group.free_inodes", |p| p.desc(|d| d.set_free_inodes(127))),
    ("group.directories", |p| p.desc(|d| d.set_used_dirs(99))),
    ("quota.file", |p| p.inode(3, |raw| raw.set_size(1024))),
    ("quota.usage", |p| p.inode(p.file(), |raw| raw.set_uid(77))),
    ("journal.inode", |p| p.inode(8, |raw| raw.i_links_count.set(0))),
    ("journal.superblock", |p| p.journal(|image| image[15] = 9)),
    ("journal.not_marked", |p| p.journal(|image| image[31] = 1)),
    ("journal.dirty", |p| {
        p.journal(|image| image[31] = 1);
        p.sb(|sb| sb.s_feature_incompat.set(sb.s_feature_incompat.get() | 4));
    }),
    ("journal.errno", |p| p.journal(|image| image[35] = 5)),
    ("journal.unexpected", |p| {
        p.sb(|sb| {
            sb.s_feature_compat.set(sb.s_feature_compat.get() & !Compat::HAS_JOURNAL.bits());
        })
    }),
    ("orphan.inode", |p| {
        p.inode(p.file(), |raw| {
            raw.i_links_count.set(0);
            raw.i_dtime.set(20);
        });
        // Only on file systems that were mounted.
        p.sb(|sb| sb.s_mtime.set(1 << 30));
    }),
    ("orphan.file", |p| p.spoil(|s| matches!(s, Seal::Orphan(..)), 1016)),
    ("orphan.file_dirty", |p| p.edit(|s| matches!(s, Seal::Orphan(..)), |image| image[0] = 20)),
    ("orphan.present", |p| {
        p.sb(|sb| {
            let bits = sb.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits();
            sb.s_feature_ro_compat.set(bits);
        })
    }),
    ("resize.inode", |p| p.inode(7, |raw| raw.i_block[0] = 1)),
    ("resize.blocks", |p| {
        let raw = p.read(Ino(7));
        let root = u32::from_le_bytes(*raw.i_block[52..].first_chunk().expect("root"));
        p.device.write_at(u64::from(root) * 1024 + 20, &[1; 4]).expect("memory");
    }),
    ("inode.checksum", |p| p.spoil(|s| s == Seal::Inode(Ino(p.file())), 8)),
    ("inode.mode", |p| p.inode(p.file(), |raw| raw.i_mode.set(0o150_644))),
    ("inode.reserved_mode", |p| p.inode(8, |raw| raw.i_mode.set(0o40_600))),
    ("inode.dtime", |p| p.inode(p.file(), |raw| raw.i_dtime.set(1 << 30))),
    ("inode.zero_dtime", |p| p.inode(p.file(), |raw| raw.i_links_count.set(0))),
    ("inode.root", |p| p.inode(2, |raw| raw.i_mode.set(0o100_755))),
    ("inode.extra_size", |p| p.inode(p.file(), |raw| raw.i_extra_isize.set(131))),
    ("inode.flags", |p| p.inode(p.file(), |raw| raw.set_flags(raw.flags() | InodeFlags::INDEX))),
    ("inode.size", |p| p.inode(p.fragments(), |raw| raw.set_size(1))),
    ("inode.blocks", |p| p.inode(p.file(), |raw| raw.i_blocks_lo.set(7))),
    ("inode.unused_field", |p| p.inode(p.file(), |raw| raw.i_obso_faddr.set(1))),
    ("inode.device", |p| {
        p.inode(p.kind(FileKind::Fifo), |raw| {
            raw.set_flags(InodeFlags::EXTENTS);
        })
    }),
    ("inode.special_size", |p| p.inode(p.kind(FileKind::Fifo), |raw| raw.set_size(5))),
    ("inode.symlink", |p| p.inode(p.kind(FileKind::Symlink), |raw| raw.set_size(5))),
    ("inode.inline_data", |p| p.inode(p.file(), |raw| raw.set_flags(InodeFlags::INLINE_DATA))),
    ("inode.encryption", |p| {
        p.inode(p.file(), |raw| {
            raw.set_flags(raw.flags() | InodeFlags::ENCRYPT);
        })
    }),
    ("extent.header", |p| p.leaf(|image| image[0] = 0)),
    ("extent.checksum", |p| p.spoil(|s| matches!(s, Seal::Extent(_)), 8)),
    ("extent.order", |p| p.leaf(|image| put32(image, 24, 0))),
    ("extent.range", |p| p.leaf(|image| put32(image, 20, 1 << 30))),
    ("extent.length", |p| p.leaf(|image| put16(image, 16, 0))),
    ("extent.key", |p| p.leaf(|image| put32(image, 12, 1))),
    ("extent.end", |p| {
        p.leaf(|image| {
            let last = 12 * usize::from(image[2]);
            put32(image, last, 1 << 20);
        })
    }),
    ("extent.unwritten_dir", |p| p.inode(p.dir(), |raw| put16(&mut raw.i_block, 16, 0x8001))),
    ("block.shared", |p| p.inode(p.file(), |raw| set_start(raw, 2))),
    ("block.range", |p| {
        p.inode(p.file(), |raw| {
            raw.set_flags(InodeFlags::empty());
            raw.i_block.fill(0xee);
        })
    }),
    ("block.too_big", |p| p.inode(p.dir(), |raw| put32(&mut raw.i_block, 12, 1 << 22))),
    ("xattr.place", |p| p.inode(p.file(), |raw| raw.set_file_acl(1 << 40))),
    ("xattr.inode", |p| {
        let file = Ino(p.file());
        // An entry whose value lies behind the inode.
        p.edit(
            |seal| seal == Seal::Inode(file),
            |image| {
                put32(image, 160, 0xea02_0000);
                put32(image, 164, 0x7000_0101);
                put32(image, 172, 8);
            },
        );
    }),
    ("xattr.block", |p| p.edit(|s| matches!(s, Seal::Xattr(_)), |image| image[0] = 1)),
    ("xattr.checksum", |p| p.spoil(|s| matches!(s, Seal::Xattr(_)), 0x14)),
    ("xattr.refcount", |p| p.edit(|s| matches!(s, Seal::Xattr(_)), |image| image[4] = 9)),
    ("xattr.hash", |p| p.edit(|s| matches!(s, Seal::Xattr(_)), |image| image[44] ^= 1)),
    ("xattr.value_inode", |p| p.edit(|s| matches!(s, Seal::Xattr(_)), |image| image[36] = 12)),
    ("dir.hole", |p| {
        p.inode(p.dir(), |raw| {
            put32(&mut raw.i_block, 12, 1);
            raw.set_size(2048);
        })
    }),
    ("dir.empty", |p| p.inode(p.dir(), |raw| put16(&mut raw.i_block, 2, 0))),
    ("dir.block", |p| p.dir_block(|image| put16(image, 4, 3))),
    ("dir.checksum", |p| p.spoil(|s| matches!(s, Seal::DirLeaf(_)), 7)),
    ("dir.no_checksum", |p| p.dir_block(|image| image[1019] = 0)),
    ("dir.dot", |p| p.dir_block(|image| put32(image, 0, 2))),
    ("dir.dotdot", |p| p.dir_block(|image| image[20] = b'x')),
    ("dir.parent", |p| p.dir_block(|image| put32(image, 12, 11))),
    ("dir.unconnected", |p| p.dir_block(|image| put32(image, 24, 0))),
    ("entry.inode", |p| p.dir_block(|image| put32(image, 24, 5))),
    ("entry.unused_inode", |p| p.dir_block(|image| put32(image, 24, 500))),
    ("entry.name", |p| p.dir_block(|image| image[32] = b'/')),
    ("entry.type", |p| p.dir_block(|image| image[31] = 5)),
    ("entry.type_unset", |p| p.dir_block(|image| image[31] = 0)),
    ("entry.directory_link", |p| p.dir_block(|image| put32(image, 24, 2))),
    ("htree.root", |p| p.edit(|s| matches!(s, Seal::DirIndex(_)), |image| image[28] = 9)),
    ("htree.checksum", |p| p.spoil(|s| matches!(s, Seal::DirIndex(_)), 40)),
    ("htree.hash", |p| p.edit(|s| matches!(s, Seal::DirIndex(_)), |image| put32(image, 40, 2))),
    ("htree.node", |p| {
        p.edit(
            |s| matches!(s, Seal::DirIndex(_)),
            |image| {
                put32(image, 36, 0xfff_ffff);
            },
        )
    }),
    ("htree.unreferenced", |p| {
        p.edit(
            |s| matches!(s, Seal::DirIndex(_)),
            |image| {
                put32(image, 36, 0xfff_ffff);
            },
        )
    }),
    ("htree.referenced", |p| {
        p.edit(
            |s| matches!(s, Seal::DirIndex(_)),
            |image| {
                image.copy_within(36..40, 44);
            },
        )
    }),
    ("link.count", |p| p.inode(p.file(), |raw| raw.i_links_count.set(7))),
    ("link.unattached", |p| p.leaf_of_files(|image| put32(image, 0, 0))),
    ("entry.duplicate", |p| {
        p.leaf_of_files(|image| {
            let names: Vec<_> = DirBlock::new(image)
                .map_while(Result::ok)
                .map(|entry| (entry.offset as usize + 8, entry.name.len()))
                .collect();
            let (from, len) = names[0];
            let (to, _) = *names[1..].iter().find(|(_, other)| *other == len).expect("same length");
            image.copy_within(from..from + len, to);
        })
    }),
    ("bitmap.blocks", |p| p.edit(|s| s == Seal::BlockBitmap(GroupNo(0)), |image| image[9] ^= 1)),
    ("bitmap.inodes", |p| p.edit(|s| s == Seal::InodeBitmap(GroupNo(0)), |image| image[2] ^= 1)),
    ("bitmap.blocks_checksum", |p| p.spoil(|s| s == Seal::BlockBitmap(GroupNo(0)), 9)),
    ("bitmap.inodes_checksum", |p| p.spoil(|s| s == Seal::InodeBitmap(GroupNo(0)), 9)),
    ("bitmap.blocks_padding", |p| {
        p.edit(|s| s == Seal::BlockBitmap(GroupNo(0)), |image| image[1000] = 0);
    }),
    ("bitmap.inodes_padding", |p| {
        p.edit(|s| s == Seal::InodeBitmap(GroupNo(0)), |image| image[1000] = 0);
    }),
    ("inode.bad_blocks", |p| {
        p.device.write_at(slot_of(p, 1) + 40, &2_u32.to_le_bytes()).expect("memory");
    }),
];

fn slot_of(p: &Faulty<'_>, ino: u64) -> u64 {
    p.target(|seal| seal == Seal::Inode(Ino(2))).at + ino * 256 - 512
}

fn report(device: &MemoryDevice) -> Result<Report, CheckError> {
    check(device, &Options::default(), &mut ())
}

#[test]
fn an_injected_fault_is_found_under_its_code() {
    if !have_tools() {
        return;
    }
    let base = base();
    let sound = report(&base.device).expect("sound image");
    assert!(sound.findings.is_empty(), "{:#?}", sound.findings);
    let mut missed = Vec::new();
    for (code, fault) in FAULTS {
        let faulty = Faulty { device: base.device.snapshot(), anatomy: &base.anatomy };
        assert!(faulty.free_block() > 2048);
        fault(&faulty);
        match report(&faulty.device) {
            Ok(report) if report.has(code) => {}
            Ok(report) => missed.push((*code, format!("{:?}", report.findings))),
            Err(error) => missed.push((*code, error.to_string())),
        }
    }
    let text: Vec<_> = missed.iter().map(|(code, found)| format!("{code}: {found}\n")).collect();
    assert!(missed.is_empty(), "missed:\n{}", text.concat());
}

/// Codes that neither an injected fault nor random damage brings up here: `device.read` needs a
/// failing device (see `a_failing_device_is_a_finding`), `superblock.magic` a backup where the
/// usual ones stand (see `a_lost_superblock_is_found_again`), the others features of other images,
/// which the folder of images has.
const RARE: &[&str] = &[
    "device.read",
    "journal.device",
    "journal.device_user",
    "superblock.magic",
    "superblock.mmp",
    "xattr.value_refcount",
    "extent.depth",
    "group.uninit",
    "block.map",
];

#[test]
fn every_code_is_met() {
    if !have_tools() {
        return;
    }
    let mut met: BTreeSet<&str> = FAULTS.iter().map(|(code, _)| *code).collect();
    for (shape, mib) in shape::SHAPES {
        let device = shape::image(shape, *mib).expect("image");
        let anatomy = Anatomy::of(&device);
        for seed in 0..150 {
            let copy = device.snapshot();
            Mutator::new(seed).damage(&copy, &anatomy);
            if let Ok(report) = report(&copy) {
                met.extend(report.findings.iter().map(|finding| finding.code));
            }
        }
    }
    let missing: Vec<&str> = CODES
        .iter()
        .map(|code| code.code)
        .filter(|code| !met.contains(code) && !RARE.contains(code))
        .collect();
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn a_failing_device_is_a_finding() {
    #[derive(Debug)]
    struct Failing(MemoryDevice);
    impl Device for Failing {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_only(&self) -> bool {
            true
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
            if offset >= 1 << 20 {
                return Err(std::io::Error::other("worn out"));
            }
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
            Err(std::io::Error::other("read-only"))
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn punch(&self, _: u64, _: u64) -> std::io::Result<bool> {
            Ok(false)
        }
    }
    let device = MemoryDevice::new(32 << 20);
    uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).expect("format");
    assert!(report(&device).expect("check").findings.is_empty());
    let report = check(&Failing(device), &Options::default(), &mut ()).expect("check");
    assert!(report.has("device.read") && !report.is_clean());
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let device = MemoryDevice::new(32 << 20);
    uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).expect("format");
    device.punch(1 << 16, 1 << 20).expect("memory");
    let all = report(&device).expect("check");
    assert!(all.errors > 3);
    let options = Options { findings_max: 2, ..Options::default() };
    let some = check(&device, &options, &mut ()).expect("check");
    assert_eq!((some.findings.len(), some.errors), (2, all.errors));
    assert_eq!(some.findings, all.findings[..2]);
}

#[test]
fn a_lost_superblock_is_found_again() {
    let device = MemoryDevice::new(32 << 20);
    uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).expect("format");
    device.punch(1024, 1024).expect("memory");
    let report = report(&device).expect("check");
    assert!(report.has("superblock.magic") && report.counts.inodes_used == 11);
}

#[test]
fn what_is_no_file_system_is_refused() {
    let device = MemoryDevice::new(1 << 20);
    assert!(matches!(report(&device), Err(CheckError::NoFileSystem)));
    assert!(matches!(report(&MemoryDevice::new(10)), Err(CheckError::NoFileSystem)));
}

/// docs/fsck.md lists every code, with its severity.
#[test]
fn the_list_of_codes_is_complete() {
    let page = include_str!("../../../docs/fsck.md");
    for code in CODES {
        let row = format!("| `{}` | {} |", code.code, code.severity.name());
        assert!(page.contains(&row), "docs/fsck.md lacks a row {row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, CODES.len(), "docs/fsck.md has rows for codes that do not exist");
    let unique: BTreeSet<&str> = CODES.iter().map(|code| code.code).collect();
    assert_eq!(unique.len(), CODES.len(), "a code stands for two things");
}
