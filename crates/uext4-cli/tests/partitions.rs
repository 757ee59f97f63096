//! Partitions of disk images and of disks, made by sgdisk, sfdisk and parted: named, made into
//! file systems, used, and mounted by the kernel, with every byte around them as it was.
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

use common::{Scratch, assert_clean, has, run_fails, run_ok, shell, system};

const DISK: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

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
    if !has("sfdisk") || !has("parted") {
        skip!("no sfdisk or parted");
    }
    let logical = "parted -s disk mklabel msdos mkpart primary 1MiB 4MiB \
        mkpart extended 4MiB 31MiB mkpart logical 5MiB 15MiB mkpart logical 16MiB 30MiB";
    let big_sectors =
        "printf 'label: gpt\n256,2560\n2816,2560\n' | sfdisk -q --sector-size 4096 disk";
    for (table, words, range) in [
        (logical, "@p5", 5 * MIB..15 * MIB),
        (logical, "@p6", 16 * MIB..30 * MIB),
        (logical, "@5M", 5 * MIB..15 * MIB),
        (big_sectors, "@p2", 11 * MIB..21 * MIB),
        (big_sectors, "@1M", MIB..11 * MIB),
    ] {
        if table == big_sectors && !sfdisk_knows_sectors() {
            eprintln!("skipped: this sfdisk has no --sector-size");
            continue;
        }
        let image = disk(&scratch, table);
        let before = fs::read(&image).unwrap();
        run_ok(mkfs(&[], &image, words, None));
        assert_only(&image, &before, &range);
        assert_fills(&scratch, &image, &range);
    }
}

fn sfdisk_knows_sectors() -> bool {
    let help = system("sfdisk").arg("--help").output().unwrap();
    String::from_utf8_lossy(&help.stdout).contains("--sector-size")
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
    let big = "printf 'label: dos\n256,2560\n2816,2560\n' | sfdisk -q --sector-size 4096 disk";
    let second = 11 * MIB..21 * MIB;
    for (table, sector) in [(GPT, "512"), (MBR, "512"), (big, "4096")] {
        for is_disk in [false, true] {
            // A file says nothing of its sectors, and an MBR neither.
            if sector == "4096" && (!is_disk || !sfdisk_knows_sectors()) {
                continue;
            }
            let image = disk(&scratch, table);
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
            run_ok(mkfs(&[], &name, "@p2", None));
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
