//! Partitions of disk images and of disks, made by sgdisk, sfdisk and parted, and by hand where
//! those have no way: named, made into file systems, used, and mounted by the kernel, with every
//! byte around them as it was.
//!
//! Fault model: a place or a size that is not the partition's; neighbours, the tables and the
//! backup GPT overwritten; a table that is not understood as the kernel understands it. Not
//! covered: tables that lie (unit tests of `partition`).

#[macro_use]
mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{Scratch, assert_clean, has, run, run_fails, run_ok, shell, system};

const DISK: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// How a table is made.
#[derive(Clone, Copy)]
enum Table {
    /// By a script of the shell, on a file named `disk`.
    Script(&'static str),
    /// Byte by byte.
    ByHand(fn(&File)),
}

/// As [`disk`], with a table that is made in one way or the other.
fn disk_with(scratch: &Scratch, table: Table) -> PathBuf {
    match table {
        Table::Script(script) => disk(scratch, script),
        Table::ByHand(write) => {
            let path = disk(scratch, "true");
            write(&File::options().write(true).open(&path).unwrap());
            path
        }
    }
}

/// A boot record with entries of type, first sector and number of sectors, at a byte of a disk.
fn boot_record(disk: &File, at: u64, entries: &[(u8, u32, u32)]) {
    let mut record = [0; 512];
    for (entry, (kind, first, count)) in record[446..510].chunks_mut(16).zip(entries) {
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
    }
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    disk.write_all_at(&record, at).unwrap();
}

/// Two partitions: 1 to 11 MiB and 11 to 21, in sectors of 4096 bytes.
const LARGE_MBR: Table =
    Table::ByHand(|disk| boot_record(disk, 0, &[(0x83, 256, 2560), (0x83, 2816, 2560)]));

/// The same by a GPT, without its backup.
const LARGE_GPT: Table = Table::ByHand(|disk| {
    const SECTOR: u64 = 4096;
    boot_record(disk, 0, &[(0xee, 1, u32::MAX)]);
    let mut array = vec![0; 128 * 128];
    for (entry, (first, last)) in array.chunks_mut(128).zip([(256_u64, 2815_u64), (2816, 5375)]) {
        entry[..32].fill(7);
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
    }
    let last = DISK / SECTOR - 1;
    let mut header = b"EFI PART\0\0\x01\0\x5c\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    for word in [1, last, 6, last - 5] {
        header.extend(word.to_le_bytes());
    }
    header.extend([9; 16]);
    header.extend(2_u64.to_le_bytes());
    header.extend([128, 128, crc32fast::hash(&array)].map(u32::to_le_bytes).concat());
    let sum = crc32fast::hash(&header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    disk.write_all_at(&array, 2 * SECTOR).unwrap();
    disk.write_all_at(&header, SECTOR).unwrap();
});

/// A disk image of 32 MiB, every byte 0xa7, with a table that a script of the shell makes.
fn disk(scratch: &Scratch, script: &str) -> PathBuf {
    let path = scratch.path("disk");
    fs::write(&path, vec![0xa7; DISK as usize]).unwrap();
    // No table of an earlier life: the tools ask otherwise.
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0; MIB as usize], 0).unwrap();
    file.write_all_at(&vec![0; MIB as usize], DISK - MIB).unwrap();
    shell(&format!("PATH=$PATH:/sbin:/usr/sbin; {script}"), scratch.dir.path());
    path
}

/// Three partitions: 1 to 11 MiB, 11 to 21, 21 to 31.
const GPT: &str = "sgdisk -n1:2048:22527 -n2:22528:43007 -n3:43008:63487 disk >/dev/null";
const MBR: &str = "printf 'label: dos\n2048,20480\n22528,20480\n43008,20480\n' | sfdisk -q disk";

/// A name of an image with words behind it.
fn part(image: &Path, words: &str) -> OsString {
    let mut name = image.as_os_str().to_owned();
    name.push(words);
    name
}

fn mkfs(words: &[&str], image: &Path, part_words: &str, size: Option<&str>) -> Vec<OsString> {
    let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
    words.chain([part(image, part_words)]).chain(size.map(OsString::from)).collect()
}

/// The image differs from `before` inside of a range only, and there it does.
fn assert_only(image: &Path, before: &[u8], range: &Range<u64>) {
    let after = fs::read(image).unwrap();
    assert_eq!(after.len(), before.len());
    let (start, end) = (range.start as usize, range.end as usize);
    assert!(after[..start] == before[..start], "changed before byte {start}");
    assert!(after[end..] == before[end..], "changed behind byte {end}");
    assert!(after[start..end] != before[start..end], "nothing was made");
}

/// The file system of a part as a file of its own is clean, and fills it.
fn assert_fills(scratch: &Scratch, image: &Path, range: &Range<u64>) {
    let alone = scratch.path("alone");
    let bytes = &fs::read(image).unwrap()[range.start as usize..range.end as usize];
    fs::write(&alone, bytes).unwrap();
    assert_clean(&alone);
    let blocks = u32::from_le_bytes(bytes[1028..1032].try_into().unwrap());
    let block_size = 1024_u64 << u32::from_le_bytes(bytes[1048..1052].try_into().unwrap());
    let used = u64::from(blocks) * block_size;
    assert!(range.end - range.start - used < block_size, "{used} bytes of {range:?}");
}

#[test]
fn mkfs_at_an_offset_keeps_to_its_partition() {
    let scratch = Scratch::in_memory();
    for (tool, table) in [("sgdisk", GPT), ("sfdisk", MBR)] {
        if !has(tool) {
            skip!("no {tool}");
        }
        for (words, range) in [
            ("@1M", MIB..11 * MIB),
            ("@11534336", 11 * MIB..21 * MIB),
            ("@p3", 21 * MIB..31 * MIB),
            ("#2", 11 * MIB..21 * MIB),
        ] {
            let image = disk(&scratch, table);
            let before = fs::read(&image).unwrap();
            run_ok(mkfs(&[], &image, words, None));
            assert_only(&image, &before, &range);
            assert_fills(&scratch, &image, &range);
            if tool == "sgdisk" {
                let verified = system("sgdisk").arg("-v").arg(&image).output().unwrap();
                let said = String::from_utf8_lossy(&verified.stdout).into_owned();
                assert!(said.contains("No problems found"), "{said}");
            }
        }
    }
}

#[test]
fn mkfs_refuses_what_is_not_a_partitions_own() {
    let scratch = Scratch::in_memory();
    for (tool, table) in [("sgdisk", GPT), ("sfdisk", MBR)] {
        if !has(tool) {
            skip!("no {tool}");
        }
        let image = disk(&scratch, table);
        let before = fs::read(&image).unwrap();
        let unasked = "no partition starts there (p1 at 1048576, p2 at 11534336, p3 at 22020096)";
        for (force, words, size, want) in [
            (false, "@2M", None, unasked),
            (false, "@512", None, unasked),
            (false, "", None, "contains a partition table"),
            (false, "@p4", None, "has no partition 4 (it has 1, 2, 3)"),
            (false, "@p1", Some("20M"), "20971520 bytes do not fit: there is room for 10485760"),
            (true, "@p1", Some("20M"), "do not fit"),
            (true, "@1M", Some("20M"), "do not fit"),
            (true, "@2M", Some("10M"), "do not fit"),
            (false, "@32M", None, "use -F"),
            (true, "@32M", None, "the disk ends at byte"),
            (false, "@1Q", None, "neither a partition (@p1) nor an offset (bytes, or with"),
        ] {
            let force: &[&str] = if force { &["-F"] } else { &[] };
            run_fails(mkfs(force, &image, words, size), want);
            assert!(fs::read(&image).unwrap() == before, "{words}: changed all the same");
        }
        // With -F also inside of a partition, but never past its end.
        run_ok(mkfs(&["-F"], &image, "@2M", None));
        assert_only(&image, &before, &(2 * MIB..11 * MIB));
        // What is there asks for -F in a partition, too.
        run_ok(mkfs(&[], &image, "@p2", None));
        run_fails(mkfs(&[], &image, "@p2", None), "ext4 file system; use -F");
        run_fails(mkfs(&[], &image, "@11M", None), "ext4 file system; use -F");
        run_ok(mkfs(&["-F"], &image, "#2", None));
    }
    if has("sgdisk") {
        // The last sectors are the backup's.
        let image = disk(&scratch, GPT);
        let before = fs::read(&image).unwrap();
        for at in [DISK - 512, DISK - 33 * 512] {
            run_fails(mkfs(&["-F"], &image, &format!("@{at}"), None), "in the partition table");
        }
        // Neither copy is whole.
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(b"x", 512 + 70).unwrap();
        file.write_all_at(b"x", DISK - 512 + 70).unwrap();
        let damaged = fs::read(&image).unwrap();
        run_fails(mkfs(&[], &image, "@1M", None), "damaged (both copies); use -F");
        run_fails(mkfs(&["-F"], &image, "@p1", None), "damaged (both copies)");
        assert!(fs::read(&image).unwrap() == damaged);
        // By the backup alone.
        file.write_all_at(&before[DISK as usize - 512..], DISK - 512).unwrap();
        let before = fs::read(&image).unwrap();
        run_ok(mkfs(&[], &image, "@p1", None));
        assert_only(&image, &before, &(MIB..11 * MIB));
    }
}

#[test]
fn inside_of_another_file_system_needs_a_second_thought() {
    let scratch = Scratch::in_memory();
    let image = scratch.path("disk");
    run_ok(mkfs(&[], &image, "", Some("32M")));
    let before = fs::read(&image).unwrap();
    run_fails(mkfs(&[], &image, "@16M", None), "the whole image contains an ext2");
    assert!(fs::read(&image).unwrap() == before);
    run_ok(mkfs(&["-F"], &image, "@16M", None));
}

#[test]
fn tables_with_sectors_of_4096_bytes_and_logical_partitions() {
    let scratch = Scratch::in_memory();
    let logical = Table::Script(
        "parted -s disk mklabel msdos mkpart primary 1MiB 4MiB \
        mkpart extended 4MiB 31MiB mkpart logical 5MiB 15MiB mkpart logical 16MiB 30MiB",
    );
    for (table, options, words, range) in [
        (logical, &[][..], "@p5", 5 * MIB..15 * MIB),
        (logical, &[], "@p6", 16 * MIB..30 * MIB),
        (logical, &[], "@5M", 5 * MIB..15 * MIB),
        (LARGE_GPT, &[], "@p2", 11 * MIB..21 * MIB),
        (LARGE_GPT, &[], "@1M", MIB..11 * MIB),
        (LARGE_MBR, &["--sector-size", "4096"], "@p1", MIB..11 * MIB),
        (LARGE_MBR, &["--sector-size", "4096"], "@p2", 11 * MIB..21 * MIB),
        (LARGE_MBR, &["--sector-size", "4K"], "@11M", 11 * MIB..21 * MIB),
    ] {
        if matches!(table, Table::Script(_)) && !has("parted") {
            eprintln!("skipped: no parted");
            continue;
        }
        let image = disk_with(&scratch, table);
        let before = fs::read(&image).unwrap();
        run_ok(mkfs(options, &image, words, None));
        assert_only(&image, &before, &range);
        assert_fills(&scratch, &image, &range);
    }
}

/// What lies in the partitions of a file says which sectors its MBR counts. Fault model: partitions
/// looked for at an eighth of their places, where `mkfs` writes into what is there.
#[test]
fn an_image_of_a_disk_with_large_sectors_is_read_as_the_disk() {
    let scratch = Scratch::in_memory();
    let image = disk_with(&scratch, LARGE_MBR);
    run_fails([OsString::from("info"), part(&image, "@p1")], "superblock");
    for size in ["1024", "x"] {
        let refused = run(mkfs(&["--sector-size", size], &image, "@p1", None));
        assert!(!refused.status.success(), "{size}");
    }
    run_ok(mkfs(&["--sector-size", "4096"], &image, "@p2", None));
    let before = fs::read(&image).unwrap();
    let host = scratch.path("host");
    fs::write(&host, b"from user space").unwrap();
    run_ok(["cp".into(), host.into(), part(&image, "@p2:/file")]);
    assert_eq!(run_ok(["cat".into(), part(&image, "@p2:/file")]), b"from user space");
    run_fails([OsString::from("info"), image.clone().into()], "(MBR): name a partition");
    assert_only(&image, &before, &(11 * MIB..21 * MIB));
    // The neighbour, now that one is known.
    let before = fs::read(&image).unwrap();
    run_ok(mkfs(&[], &image, "@p1", None));
    assert_only(&image, &before, &(MIB..11 * MIB));
    assert_fills(&scratch, &image, &(MIB..11 * MIB));
}

/// Partitions that overlap: the start of the next one ends what is named by its byte. Fault model:
/// a file system that is written up to the end of the disk.
#[test]
fn an_offset_is_bounded_where_partitions_overlap() {
    let scratch = Scratch::in_memory();
    let image = disk_with(
        &scratch,
        Table::ByHand(|disk| boot_record(disk, 0, &[(0x83, 2048, 20_480), (0x83, 12_288, 20_480)])),
    );
    let put = |megabytes: &str| {
        let alone = scratch.path("alone");
        let _ = fs::remove_file(&alone);
        run_ok(mkfs(&["-F"], &alone, "", Some(megabytes)));
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(&fs::read(&alone).unwrap(), MIB).unwrap();
    };
    put("10M");
    run_fails(mkfs(&["-F"], &image, "@1M", None), "partition 1 overlaps partition 2");
    run_fails([OsString::from("ls"), part(&image, "@1M:/")], "device");
    put("5M");
    run_ok([OsString::from("ls"), part(&image, "@1M:/")]);
}

/// Partition tables by hand, and what the kernel makes of them, or partx(8) where the kernel looks
/// for no partitions. Fault model: an entry that one of them counts and the other does not, so that
/// `@p6` is another's partition.
#[test]
fn partitions_have_the_numbers_that_linux_gives_them() {
    let scratch = Scratch::in_memory();
    if !has("partx") {
        skip!("no partx");
    }
    let rubbish = (0x20, 0x6f72_7245, 0x0a0d_0a0d);
    let mut compared = 0;
    for (chain, room) in [
        // Rubbish, and entries that would leave the extended partition or the part of it.
        (&[(0x83, 64, 2000), (0x05, 8192, 8192), rubbish, (0x83, 4096, 4096)][..], 40_000),
        (&[(0x83, 64, 2000), (0x05, 8192, 8192), (0x83, 4096, 35_905), rubbish], 40_000),
        (&[(0x83, 64, 2000), (0x05, 8192, 8192), (0x83, 4096, 35_904), (0x83, 0, 0)], 40_000),
        // The link first, and the partition behind it.
        (&[(0x05, 8192, 8192), (0x83, 64, 2000), (0x07, 3000, 100), rubbish], 40_000),
        (&[(0x83, 64, 2000), (0x83, 4096, 100), (0x0f, 8192, 100), (0x05, 9000, 1)], 40_000),
    ] {
        let image = disk(&scratch, "true");
        let file = File::options().write(true).open(&image).unwrap();
        let primary = [(0x83, 2048, 2048), (0x05, 4096, room), (0, 0, 0), (0x83, 50_000, 1000)];
        boot_record(&file, 0, &primary);
        boot_record(&file, 4096 * 512, chain);
        let next = [(0x83, 64, 1000), (0, 0, 0), (0x83, 2000, 6192), (0x83, 2000, 6193)];
        boot_record(&file, (4096 + 8192) * 512, &next);
        let mut theirs = by_partx(&image);
        if let Some(device) = Loop::new(&image, &["-P"]).ok().filter(|_| common::is_root()) {
            let by_kernel = device.partitions();
            if !by_kernel.is_empty() {
                theirs = by_kernel;
            }
        }
        // The extended partition itself has a number, and is none.
        let theirs = theirs.iter().filter(|(number, _)| *number != 2);
        let listed: Vec<_> = theirs.map(|(n, start)| format!("p{n} at {start}")).collect();
        let want = format!("no partition starts there ({})", listed.join(", "));
        run_fails(mkfs(&[], &image, "@512", None), &want);
        compared += listed.len();
    }
    assert!(compared > 15, "{compared}");
}

/// Every verb takes a partition's name, and stays inside of it.
#[test]
fn every_verb_takes_a_partition() {
    let scratch = Scratch::in_memory();
    if !has("sgdisk") {
        skip!("no sgdisk");
    }
    let image = disk(&scratch, GPT);
    let before = fs::read(&image).unwrap();
    run_ok(mkfs(&[], &image, "@p2", None));
    let (host, back) = (scratch.path("host"), scratch.path("back"));
    fs::write(&host, vec![b'x'; 300_000]).unwrap();
    for name in ["@p2", "#2", "@11M"] {
        let at = |path: &str| part(&image, &format!("{name}:{path}"));
        let whole = || part(&image, name);
        let verb = |verb: &str, args: &[OsString]| run_ok([&[OsString::from(verb)], args].concat());
        verb("cp", &[host.clone().into(), at("/file")]);
        verb("mkdir", &[at("/dir")]);
        verb("mv", &[at("/file"), at("/dir/moved")]);
        assert_eq!(verb("ls", &[at("/dir")]), b"moved\n");
        assert_eq!(verb("cat", &[at("/dir/moved")]).len(), 300_000);
        verb("cp", &[at("/dir/moved"), back.clone().into()]);
        assert!(fs::read(&back).unwrap() == fs::read(&host).unwrap());
        for reading in ["stat", "extents", "frag"] {
            verb(reading, &[at("/dir/moved")]);
        }
        for reading in ["info", "fsck", "freefrag", "stats", "frag", "trim"] {
            verb(reading, &[whole()]);
        }
        verb("rm", &["-r".into(), at("/dir")]);
        if let Some(why) = common::no_mount() {
            eprintln!("skipped: {why}");
            continue;
        }
        let mount = common::Mounted::new(Path::new(&whole()), &scratch.path("mnt"), "");
        fs::write(mount.path("new"), b"new").unwrap();
        mount.end();
        assert_eq!(verb("cat", &[at("/new")]), b"new");
    }
    assert_only(&image, &before, &(11 * MIB..21 * MIB));
    assert_fills(&scratch, &image, &(11 * MIB..21 * MIB));
}

/// What partx(8) finds in a file: numbers, and where they start in bytes.
fn by_partx(image: &Path) -> Vec<(u64, u64)> {
    let output = system("partx").args(["-s", "-g", "-o", "NR,START"]).arg(image).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let rows = said.lines().map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap() * 512)
    });
    rows.collect()
}

/// A loop device, detached in the end.
struct Loop(String);

impl Loop {
    fn new(image: &Path, words: &[&str]) -> Result<Self, String> {
        let output = system("losetup").args(["-f", "--show"]).args(words).arg(image).output();
        let output = output.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// What the kernel found on it: numbers, and where they start in bytes.
    fn partitions(&self) -> Vec<(u64, u64)> {
        let name = self.0.trim_start_matches("/dev/");
        let number = |path: &Path, what: &str| -> u64 {
            fs::read_to_string(path.join(what)).unwrap().trim().parse().unwrap()
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(format!("/sys/block/{name}")).unwrap() {
            let path = entry.unwrap().path();
            if path.join("partition").exists() {
                found.push((number(&path, "partition"), number(&path, "start") * 512));
            }
        }
        found.sort_unstable();
        found
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = system("losetup").args(["-d", &self.0]).output();
    }
}

/// The kernel mounts what was made, in an image and on a disk, and finds what was put there.
#[test]
fn the_kernel_mounts_the_partition() {
    let scratch = Scratch::in_memory();
    if !common::is_root() || !has("sgdisk") || !has("sfdisk") {
        skip!("needs root, sgdisk and sfdisk");
    }
    let second = 11 * MIB..21 * MIB;
    for (table, sector) in
        [(Table::Script(GPT), "512"), (Table::Script(MBR), "512"), (LARGE_MBR, "4096")]
    {
        for is_disk in [false, true] {
            let image = disk_with(&scratch, table);
            let before = fs::read(&image).unwrap();
            let made_on = if is_disk {
                match Loop::new(&image, &["-b", sector]) {
                    Ok(device) => Some(device),
                    Err(why) => skip!("losetup: {why}"),
                }
            } else {
                None
            };
            let name = made_on.as_ref().map_or(image.clone(), |device| PathBuf::from(&device.0));
            run_ok(mkfs(&["--sector-size", sector], &name, "@p2", None));
            let host = scratch.path("host");
            fs::write(&host, b"from user space").unwrap();
            run_ok(["cp".into(), host.into(), part(&name, "@p2:/file")]);
            drop(made_on);
            assert_only(&image, &before, &second);
            let (offset, len) = (second.start.to_string(), (second.end - second.start).to_string());
            let device = match Loop::new(&image, &["-o", &offset, "--sizelimit", &len]) {
                Ok(device) => device,
                Err(why) => skip!("losetup: {why}"),
            };
            let script = "mkdir -p kernel; mount $DEVICE kernel
                seen=$(cat kernel/file); umount kernel; test \"$seen\" = 'from user space'";
            shell(&format!("DEVICE={}\n{script}", device.0), scratch.dir.path());
            drop(device);
            assert_fills(&scratch, &image, &second);
        }
    }
}
