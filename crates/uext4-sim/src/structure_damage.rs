//! Seeded damage to sound images: structures changed field by field, most of them sealed again.
//!
//! Fault model: one to three structures of any sort, each with up to four fields changed, a part
//! of another structure copied over it, or names pointed elsewhere. Not covered: damage that spans
//! structures and agrees with itself.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::dir_entry::DirBlock;
use zerocopy::little_endian::U32;

use crate::anatomy::{Anatomy, Seal, Structure, bytes};

/// A source of damage; the same seed does the same.
#[derive(Debug)]
pub struct Mutator(StdRng);

impl Mutator {
    /// Damage by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound.max(1))
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// Changes structures of an image; says which. One in four is left without a new checksum.
    ///
    /// # Panics
    /// The device cannot be read or written.
    pub fn damage(&mut self, device: &MemoryDevice, anatomy: &Anatomy) -> String {
        let mut what = Vec::new();
        let count = if self.one_in(2) { 1 } else { 1 + self.below(3) };
        for _ in 0..count {
            let target = self.choose(anatomy);
            match target.seal {
                Seal::DirLeaf(_) if self.one_in(3) => self.redirect(device, anatomy, target),
                _ if self.one_in(8) => self.transplant(device, anatomy, target),
                _ => self.change_fields(device, anatomy, target),
            }
            let sealed = !self.one_in(4);
            if sealed {
                anatomy.seal(device, target);
            }
            let mark = if sealed { "" } else { ", not sealed" };
            what.push(format!("{:?} at {:#x}{mark}", target.seal, target.at));
        }
        what.join("; ")
    }

    /// Every sort of structure is as likely as every other, however many there are of it.
    fn choose<'a>(&mut self, anatomy: &'a Anatomy) -> &'a Structure {
        let mut sorts: BTreeMap<u8, Vec<&Structure>> = BTreeMap::new();
        for target in &anatomy.targets {
            sorts.entry(sort_of(target.seal)).or_default().push(target);
        }
        let sorts: Vec<Vec<&Structure>> = sorts.into_values().collect();
        let sort = self.pick(&sorts);
        self.pick::<&Structure>(sort)
    }

    /// Gives fields of one to four bytes values that are often just wrong enough.
    fn change_fields(&mut self, device: &MemoryDevice, anatomy: &Anatomy, target: &Structure) {
        let blocks = anatomy.layout.blocks_count;
        let count = if self.one_in(2) { 1 } else { 1 + self.below(4) };
        for _ in 0..count {
            // What steers a structure stands at its start.
            let range = if self.one_in(2) { target.used.min(160) } else { target.used };
            let width = *self.pick(&[1, 2, 2, 4, 4, 4]);
            let at = target.at + (self.below(range) / width * width) as u64;
            let old = bytes(device, at, width);
            let mut word = [0; 4];
            word[..old.len()].copy_from_slice(&old);
            let old = U32::from_bytes(word).get();
            let new = match self.below(12) {
                0 => 0,
                1 => u32::MAX,
                2 => old.wrapping_add(1),
                3 => old.wrapping_sub(1),
                4 => 1 << self.below(32),
                5 => old ^ (1 << self.below(32)),
                6 => self.below(64) as u32,
                7 => u32::try_from(blocks).unwrap_or(u32::MAX),
                8 => self.below(blocks as usize) as u32,
                9 => self.pick(&anatomy.inodes).get(),
                10 => old.swap_bytes(),
                _ => self.0.random(),
            };
            // At the end of the device a part of it is lost.
            let _ = device.write_at(at, &U32::new(new).to_bytes()[..width]);
        }
    }

    /// Copies a part of another structure of the same sort: blocks and names with two owners.
    fn transplant(&mut self, device: &MemoryDevice, anatomy: &Anatomy, target: &Structure) {
        let sort = sort_of(target.seal);
        let fits = |t: &&Structure| sort_of(t.seal) == sort && t.len == target.len;
        let others: Vec<&Structure> = anatomy.targets.iter().filter(fits).collect();
        let other = *self.pick(&others);
        let ranges = [(40, 60), (0, 128), (0, target.len), (12, 12), (100, 4), (0, 40)];
        let (from, len) = *self.pick(&ranges);
        if from < target.len {
            let part = bytes(device, other.at + from as u64, len.min(target.len - from));
            device.write_at(target.at + from as u64, &part).expect("memory");
        }
    }

    /// Points a name to another inode: loops, hard links to directories, reserved and free inodes.
    fn redirect(&mut self, device: &MemoryDevice, anatomy: &Anatomy, target: &Structure) {
        let block = bytes(device, target.at, target.len);
        let offsets: Vec<u32> =
            DirBlock::new(&block).live().map_while(|entry| entry.ok().map(|e| e.offset)).collect();
        let Some(&offset) = offsets.get(self.below(offsets.len())) else { return };
        let ino = match self.below(6) {
            0 => self.below(14) as u32,
            1 => self.below(anatomy.layout.inodes_count as usize + 2) as u32,
            _ => self.pick(&anatomy.inodes).get(),
        };
        device.write_at(target.at + u64::from(offset), &U32::new(ino).to_bytes()).expect("memory");
    }
}

fn sort_of(seal: Seal) -> u8 {
    match seal {
        Seal::Superblock => 0,
        Seal::Desc(_) => 1,
        Seal::BlockBitmap(_) => 2,
        Seal::InodeBitmap(_) => 3,
        Seal::Inode(_) => 4,
        Seal::Extent(_) => 5,
        Seal::DirLeaf(_) => 6,
        Seal::DirIndex(_) => 7,
        Seal::Xattr(_) => 8,
        Seal::Orphan(..) => 9,
        Seal::JournalSuperblock => 10,
        Seal::LogBlock => 11,
        Seal::LogImage(_) => 12,
        Seal::None => 13,
        Seal::Mmp => 14,
        Seal::Quota => 15,
        Seal::Value => 16,
    }
}
