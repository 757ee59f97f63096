//! Tests of partition tables.
//!
//! Fault model: tables that are damaged, and tables that are made to hurt: sizes and places of any
//! value under right checksums, chains that bite their tails. Tables by real tools are read in
//! `tests/partitions.rs`.

use uext4_device::{MemoryDevice, MeteredDevice};
use zerocopy::{FromZeros, IntoBytes};

use super::raw::{BootRecord, GptEntry, GptHeader};
use super::*;

const LEN: u64 = 1 << 20;

/// A header with its array of entries, (number, first and last LBA), in sectors of `sector` bytes.
/// `change` has the header before its checksum is made.
fn write_gpt(
    disk: &MemoryDevice,
    sector: u32,
    is_backup: bool,
    entries: &[(u32, u64, u64)],
    change: impl FnOnce(&mut GptHeader),
) {
    let size = u64::from(sector);
    let last = LEN / size - 1;
    let array_sectors = (128 * 128_u64).div_ceil(size);
    let array_lba = if is_backup { last - array_sectors } else { 2 };
    let mut array = vec![GptEntry::new_zeroed(); 128];
    for (number, first, last) in entries {
        let entry = &mut array[*number as usize - 1];
        (entry.kind, entry.first_lba, entry.last_lba) = ([7; 16], (*first).into(), (*last).into());
    }
    disk.write_at(array_lba * size, array.as_bytes()).unwrap();
    let mut header = GptHeader {
        signature: GptHeader::SIGNATURE,
        revision: 0x1_0000.into(),
        header_size: 92.into(),
        my_lba: if is_backup { last } else { 1 }.into(),
        first_usable_lba: (2 + array_sectors).into(),
        last_usable_lba: (last - array_sectors - 1).into(),
        entry_lba: array_lba.into(),
        entries: 128.into(),
        entry_size: 128.into(),
        entries_crc32: crc32fast::hash(array.as_bytes()).into(),
        ..GptHeader::new_zeroed()
    };
    let at = header.my_lba.get() * size;
    change(&mut header);
    header.header_crc32 = header.checksum().into();
    disk.write_at(at, header.as_bytes()).unwrap();
}

/// A record at an LBA: type, first LBA and number of sectors of each entry.
fn write_record(disk: &MemoryDevice, at: u64, entries: &[(u8, u32, u32)]) {
    let mut record = BootRecord { signature: [0x55, 0xaa], ..BootRecord::new_zeroed() };
    for (slot, (kind, first, count)) in record.entries.iter_mut().zip(entries) {
        (slot.kind, slot.first_lba, slot.sectors) = (*kind, (*first).into(), (*count).into());
    }
    disk.write_at(at * 512, record.as_bytes()).unwrap();
}

fn of(disk: &MemoryDevice) -> Table {
    read(disk, Some(512)).unwrap().unwrap()
}

fn why<T: fmt::Debug>(result: Result<T, Why>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn either_copy_of_a_gpt_is_read_with_sectors_of_either_size() {
    for sector in [512, 4096] {
        let size = u64::from(sector);
        let entries = [(1, 64, 127), (7, 128, 128)];
        let disk = MemoryDevice::new(LEN);
        assert!(read(&disk, Some(512)).unwrap().is_none());
        write_record(&disk, 0, &[(0xee, 1, u32::MAX)]);
        assert!(why(read(&disk, Some(512))).contains("damaged"), "a protective record alone");
        write_gpt(&disk, sector, true, &entries, |_| {});
        let check = |table: Table| {
            assert_eq!((table.kind, table.len), ("GPT", LEN));
            assert_eq!(table.partition(1).unwrap(), 64 * size..128 * size);
            assert_eq!(table.partition(7).unwrap(), 128 * size..129 * size);
            assert_eq!(why(table.partition(2)), "has no partition 2 (it has 1, 7)");
            assert_eq!(table.room_end(64 * size).unwrap(), 128 * size);
            assert_eq!(table.room_end(100 * size).unwrap(), 128 * size);
            // Free, up to the next partition.
            assert_eq!(table.room_end(50 * size).unwrap(), 64 * size);
            for taken in [0, 1, size, 2 * size, LEN - 1, LEN - size] {
                assert!(why(table.room_end(taken)).contains("in the partition table"), "{taken}");
            }
        };
        check(of(&disk));
        write_gpt(&disk, sector, false, &entries, |_| {});
        check(of(&disk));
        // A bit of an entry, of the header: the backup is used.
        for at in [2 * size + 33, size + 50] {
            let mut byte = [0];
            disk.read_at(at, &mut byte).unwrap();
            disk.write_at(at, &[byte[0] ^ 1]).unwrap();
            check(of(&disk));
        }
        disk.write_at(LEN - size + 16, &[0; 4]).unwrap();
        assert!(why(read(&disk, Some(512))).contains("damaged"), "neither copy");
    }
}

#[test]
fn partitions_that_are_not_alone_or_not_there_have_no_room() {
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[(0xee, 1, u32::MAX)]);
    let entries = [(1, 64, 127), (2, 100, 200), (3, 1900, 3000), (4, 2000, 2047), (5, 300, 299)];
    write_gpt(&disk, 512, false, &entries, |_| {});
    let table = of(&disk);
    assert_eq!(why(table.room_end(64 * 512)), "partition 1 overlaps partition 2");
    assert_eq!(why(table.room_end(100 * 512)), "partition 1 overlaps partition 2");
    // What is there all the same never reaches into its neighbour.
    for (start, end) in [(64, 100), (100, 128), (128, 201), (150, 201), (250, 1900), (1900, 2000)] {
        assert_eq!(table.nearest_end(start * 512), Some(end * 512), "{start}");
    }
    assert_eq!(table.nearest_end(LEN), None);
    assert!(why(table.partition(3)).contains("ends at byte 1536512, but the disk at 1048576"));
    assert!(why(table.room_end(2000 * 512)).contains("overlaps"));
    assert!(why(table.partition(5)).contains("no partition 5"));
}

#[test]
fn logical_partitions_are_numbered_as_by_the_kernel() {
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[(0x83, 8, 8), (0x0f, 100, 400), (0, 0, 0), (0x83, 600, 100)]);
    write_record(&disk, 100, &[(0x83, 10, 20), (0x05, 50, 50)]);
    write_record(&disk, 150, &[(0x83, 1, 49), (0x05, 200, 100)]);
    write_record(&disk, 300, &[(0x83, 2, 98)]);
    let table = of(&disk);
    let found: Vec<_> = table.partitions().map(|(n, b)| (n, b.start / 512, b.end / 512)).collect();
    let want = [(1, 8, 16), (4, 600, 700), (5, 110, 130), (6, 151, 200), (7, 302, 400)];
    assert_eq!(found, want);
    assert_eq!(table.kind, "MBR");
    // A record of the chain is not free.
    assert!(why(table.room_end(150 * 512)).contains("in the partition table"));
    assert_eq!(table.room_end(130 * 512).unwrap(), 150 * 512);
    // With partitions of its own the record counts, and a GPT behind it is a left-over.
    write_gpt(&disk, 512, false, &[(1, 64, 127)], |_| {});
    assert_eq!(of(&disk).kind, "MBR");
}

/// A file says nothing of its sectors: what lies in its partitions does. Fault model: a partition
/// read or written at an eighth of its place.
#[test]
fn sectors_of_a_file_are_those_that_fit_what_it_holds() {
    let superblock = |disk: &MemoryDevice, at: u64| disk.write_at(at + 1080, b"\x53\xef").unwrap();
    let start =
        |disk: &MemoryDevice| read(disk, None).unwrap().unwrap().partition(2).unwrap().start;
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[(0x0c, 16, 64), (0x83, 80, 100)]);
    assert_eq!(start(&disk), 80 * 512, "nothing is known");
    // Another file system does as well.
    disk.write_at(16 * 4096 + 54, b"FAT16   ").unwrap();
    assert_eq!(start(&disk), 80 * 4096);
    superblock(&disk, 80 * 512);
    assert_eq!(start(&disk), 80 * 512, "one of each");
    superblock(&disk, 80 * 4096);
    assert_eq!(start(&disk), 80 * 4096, "two of one");
    assert_eq!(read(&disk, Some(512)).unwrap().unwrap().partition(2).unwrap().start, 80 * 512);
    // Sectors that would put a partition behind the end are not those of the disk.
    write_record(&disk, 0, &[(0x0c, 16, 64), (0x83, 80, 200)]);
    assert_eq!(start(&disk), 80 * 512);
    // Logical partitions are found by either size.
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[(0x05, 16, 200)]);
    write_record(&disk, 16 * 8, &[(0x83, 4, 100)]);
    superblock(&disk, 20 * 4096);
    let table = read(&disk, None).unwrap().unwrap();
    assert_eq!(table.partition(5).unwrap(), 20 * 4096..120 * 4096);
    assert!(read(&disk, Some(512)).unwrap().is_none());
}

/// The third and fourth entry of a record in a chain, as Linux takes them: only where they lie in
/// the extended partition and in the part of it that the link to the record gives.
#[test]
fn rubbish_in_a_chain_has_no_number() {
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[(0x05, 100, 1000)]);
    let rubbish = (0x20, 0x6f72_7245, 0x0a0d_0a0d);
    write_record(&disk, 100, &[(0x83, 10, 20), (0x05, 50, 50), rubbish, (0x83, 40, 5)]);
    write_record(&disk, 150, &[(0x83, 1, 39), (0x05, 100, 900), (0x83, 30, 21), (0x83, 40, 10)]);
    write_record(&disk, 200, &[(0x83, 1, 99), (0, 0, 0), (0x83, 200, 700), (0x83, 200, 701)]);
    let table = of(&disk);
    let found: Vec<_> = table.partitions().map(|(n, b)| (n, b.start / 512, b.end / 512)).collect();
    let want = [
        (5, 110, 130),
        (6, 140, 145),
        (7, 151, 190),
        // Of (30, 21) one sector is the next record's; (40, 10) fits.
        (8, 190, 200),
        (9, 201, 300),
        (10, 400, 1100),
    ];
    assert_eq!(found, want);
}

#[test]
fn a_boot_sector_is_no_table() {
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[]);
    assert!(read(&disk, Some(512)).unwrap().is_none(), "no partitions");
    write_record(&disk, 0, &[(0x83, 8, 8)]);
    disk.write_at(446 + 16, b"M").unwrap();
    assert!(read(&disk, Some(512)).unwrap().is_none(), "code");
}

/// Reads what a disk says; the work is bounded whatever that is.
fn bounded(disk: MemoryDevice) {
    let disk = MeteredDevice::new(std::sync::Arc::new(disk));
    if let Ok(Some(table)) = read(&disk, Some(512)) {
        for at in [0, 512, 4096, LEN / 2, LEN - 1, LEN, u64::MAX] {
            let _ = table.room_end(at).inspect(|end| assert!(*end > at && *end <= LEN));
        }
        for number in [0, 1, 5, 128, u32::MAX] {
            let _ = table.partition(number).inspect(|bytes| assert!(bytes.end <= LEN));
        }
        assert!(table.listed(|number, _| number.to_string()).len() < 200);
    }
    let reading = disk.read_meter();
    assert!(reading.reads <= 300 && reading.read_bytes <= (16 << 20) + (1 << 18), "{reading:?}");
}

#[test]
fn chains_that_bite_their_tails_end() {
    for next in [0, 1, 100, 199, u32::MAX] {
        let disk = MemoryDevice::new(LEN);
        write_record(&disk, 0, &[(0x05, 100, u32::MAX), (0x05, 100, 1), (0x85, 0, 1)]);
        write_record(&disk, 100, &[(0x83, u32::MAX, u32::MAX), (0x05, next, 1)]);
        write_record(&disk, 101, &[(0x05, 0, 1), (0x83, 1, 1)]);
        bounded(disk);
    }
    let disk = MemoryDevice::new(LEN);
    write_record(&disk, 0, &[(0x05, 100, 400)]);
    write_record(&disk, 100, &[(0x83, 1, 1), (0x05, 0, 1)]);
    assert!(why(read(&disk, Some(512))).contains("damaged"));
}

#[test]
fn numbers_of_any_value_under_right_checksums_do_no_harm() {
    let edges = [0, 1, 2, 33, 34, 127, 128, 2047, 2048, 1 << 31, 1 << 55, u64::MAX - 1, u64::MAX];
    let mut seed = 1_u64;
    let mut draw = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = seed >> 24;
        if random & 1 == 0 { edges[(random >> 1) as usize % edges.len()] } else { random }
    };
    for _ in 0..3000 {
        let disk = MemoryDevice::new(LEN);
        let entries: [(u32, u64, u64); 4] = [1, 2, 3, 128].map(|n| (n, draw(), draw()));
        let is_backup = draw() & 1 == 0;
        write_gpt(&disk, 512, is_backup, &entries, |header| {
            let size = draw() as u32;
            match draw() % 8 {
                0 => header.first_usable_lba = draw().into(),
                1 => header.last_usable_lba = draw().into(),
                2 => header.entry_lba = draw().into(),
                3 => header.entries = size.into(),
                4 => header.entry_size = size.into(),
                5 => header.entry_size = (128 << (size % 24)).into(),
                6 => header.header_size = size.into(),
                _ => {}
            }
        });
        bounded(disk);
    }
}
