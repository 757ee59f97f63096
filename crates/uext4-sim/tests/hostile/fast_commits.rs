//! Fast commits whose records say anything, sealed as a kernel seals them.
//!
//! Fault model: as that of the program. Records of every type with inodes, blocks and names that
//! are there or not, lengths at their limits, and inodes with any bytes. What can be opened must be
//! closed again.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::checksum::crc32c;
use uext4_ondisk::journal::replay::{ReplayLimits, plan};
use uext4_ondisk::journal::superblock::{JournalIncompat, JournalLayout, RawJournalSuperblock};

pub(crate) const BLOCK: usize = 1024;
const CASES: u64 = 4_000;

/// A volume of a few files that nobody has closed.
fn left() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = uext4_mkfs::Options {
        block_size: Some(1024),
        journal_mib: Some(2),
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&*device, &options).unwrap();
    let volume = Volume::open(device.clone(), MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    for n in 0..12_u64 {
        let kind = if n % 4 == 3 { FileKind::Directory } else { FileKind::Regular };
        let new = NewInode { kind, mode: 0o644, owner: Owner::default(), rdev: Default::default() };
        let made = volume.create(&root, format!("file {n}").as_bytes(), &new).unwrap();
        if kind == FileKind::Regular {
            let file = volume.open_file(&made).unwrap();
            file.write_at(n * 3000, &[n as u8; 9000]).unwrap();
            file.sync(false).unwrap();
        }
    }
    volume.abandon();
    device.snapshot()
}

/// The journal of an image whose log lies in one piece.
pub(crate) struct Log {
    at: u64,
    layout: JournalLayout,
    tid: u32,
}

/// Says in the journal's superblock that there are fast commits.
pub(crate) fn enable(device: &MemoryDevice) -> Log {
    let mut block = vec![0; BLOCK];
    let magic = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let at = (0..device.len())
        .step_by(BLOCK)
        .find(|&at| device.read_at(at, &mut block).is_ok() && block.starts_with(&magic))
        .expect("a journal");
    let mut raw = RawJournalSuperblock::read(&block).unwrap();
    let incompat = raw.incompat() | JournalIncompat::FAST_COMMIT;
    raw.s_feature_incompat.set(incompat.bits());
    raw.s_num_fc_blks.set(64);
    raw.seal();
    device.write_at(at, raw.bytes()).unwrap();
    let layout = JournalLayout::new(&raw, BLOCK as u32, raw.s_maxlen.get()).unwrap();
    let read = |block: u32, bytes: &mut [u8]| device.read_at(at + u64::from(block) * 1024, bytes);
    let replay = plan(&layout, ReplayLimits::new(16 << 10), read).unwrap();
    Log { at, layout, tid: replay.next_tid.get().wrapping_sub(1) }
}

fn record(rng: &mut StdRng) -> Vec<u8> {
    let ino = |rng: &mut StdRng| match rng.random_range(0..12) {
        0 => rng.random(),
        1 => rng.random_range(0..4000),
        2 => 2,
        _ => rng.random_range(11..30_u32),
    };
    let mut value = ino(rng).to_le_bytes().to_vec();
    let kind = rng.random_range(1..=6_u16);
    match kind {
        1 => {
            value.extend(rng.random_range(0..40_u32).to_le_bytes());
            let len = [1, 4, 40, 0x8002, 0, 0xffff][rng.random_range(0..6)];
            value.extend((len as u16).to_le_bytes());
            value.extend([0, 0]);
            let start =
                if rng.random_ratio(1, 8) { rng.random() } else { rng.random_range(0..16_384_u32) };
            value.extend(start.to_le_bytes());
        }
        2 => {
            value.extend(rng.random_range(0..40_u32).to_le_bytes());
            let len = if rng.random_ratio(1, 8) { u32::MAX } else { rng.random_range(0..40) };
            value.extend(len.to_le_bytes());
        }
        3..=5 => {
            value.extend(ino(rng).to_le_bytes());
            let name = match rng.random_range(0..6) {
                0 => b"..".to_vec(),
                1 => vec![b'/'; rng.random_range(1..=255)],
                _ => format!("file {}", rng.random_range(0..16)).into_bytes(),
            };
            value.extend(name);
        }
        _ => {
            let mut inode = vec![0_u8; [128, 160, 256][rng.random_range(0..3)]];
            if rng.random_ratio(1, 3) {
                rng.fill(&mut inode[..]);
            }
            let mode = [0o100_644, 0o040_755, 0o120_777, 0o020_600, 0][rng.random_range(0..5)];
            inode[0..2].copy_from_slice(&(mode as u16).to_le_bytes());
            inode[26..28].copy_from_slice(&rng.random_range(0..4_u16).to_le_bytes());
            let flags = if rng.random_ratio(1, 5) { rng.random() } else { 0x8_0000_u32 };
            inode[32..36].copy_from_slice(&flags.to_le_bytes());
            value.extend(inode);
        }
    }
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((value.len() as u16).to_le_bytes());
    bytes.extend(value);
    bytes
}

impl Log {
    /// Writes one fast commit of records in one block.
    pub(crate) fn put(&self, device: &MemoryDevice, records: &[Vec<u8>]) {
        let mut bytes = [9, 0, 8, 0, 0, 0, 0, 0].to_vec();
        bytes.extend(self.tid.to_le_bytes());
        for record in records {
            if bytes.len() + record.len() + 16 > BLOCK {
                break;
            }
            bytes.extend(record);
        }
        let rest = (BLOCK - bytes.len() - 4) as u16;
        bytes.extend([8, 0]);
        bytes.extend(rest.to_le_bytes());
        bytes.extend(self.tid.to_le_bytes());
        let crc = crc32c(0, &bytes);
        bytes.extend(crc.to_le_bytes());
        bytes.resize(BLOCK, 0);
        let at = self.at + u64::from(self.layout.fast_commits.start) * 1024;
        device.write_at(at, &bytes).unwrap();
    }
}

#[test]
fn records_that_say_anything() {
    let base = left();
    let log = enable(&base);
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..CASES {
        let mut rng = StdRng::seed_from_u64(seed);
        let device = Arc::new(base.snapshot());
        let records: Vec<_> = (0..rng.random_range(1..9)).map(|_| record(&mut rng)).collect();
        log.put(&device, &records);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let volume = Volume::open(device, MountOptions::default())?;
            volume.close()
        }));
        match ended {
            Ok(Ok(())) => opened += 1,
            Ok(Err(error)) => {
                refused += 1;
                assert!(!format!("{error:?}").contains("Internal"), "seed {seed}: {error:?}");
            }
            Err(_) => panic!("seed {seed}: a panic"),
        }
    }
    println!("{opened} opened, {refused} refused");
    // Both happen, or nothing is tested.
    assert!(opened > CASES / 20 && refused > CASES / 20, "{opened} {refused}");
}
