//! Bad input gets one clear line on standard error and status 1: never a panic, never a hang.
//!
//! Fault model: wrong files, damaged superblocks and journals, wrong paths, wrong options, images
//! in use. Not covered: damage deeper in the metadata (the engine's own tests).

#[macro_use]
mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Scratch, at, run, run_fails, run_ok};

/// Each reading and writing verb on one image that is no good.
fn every_verb(image: &Path, want: &str) {
    every_verb_but_mount(image, want);
    let scratch = Scratch::new();
    let dir = scratch.dir.path().as_os_str().to_owned();
    run_fails(["mount".into(), image.as_os_str().to_owned(), dir], want);
}

fn every_verb_but_mount(image: &Path, want: &str) {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    for verb in ["ls", "cat", "stat", "extents", "frag", "rm", "mkdir"] {
        run_fails([OsString::from(verb), at(image, "/x")], want);
    }
    run_fails([OsString::from("freefrag"), image.into()], want);
    run_fails([OsString::from("mv"), at(image, "/x"), at(image, "/y")], want);
    run_fails([OsString::from("cp"), at(image, "/x"), out.into()], want);
    run_fails([OsString::from("cp"), "/etc/hostname".into(), at(image, "/x")], want);
}

/// The verbs that need no path in an image that is no good; `fsck` says so by its own status.
fn verbs_of_whole_images(image: &Path, want: &str) {
    for verb in ["info", "stats", "freefrag", "frag", "trim"] {
        run_fails([OsString::from(verb), image.into()], want);
    }
    let output = run([OsString::from("fsck"), image.into()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.lines().count() == 1 && said.contains(want), "{said}");
}

fn poke(image: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn files_that_are_no_file_systems() {
    let scratch = Scratch::new();
    let make = |name: &str, content: &[u8]| {
        let path = scratch.path(name);
        fs::write(&path, content).unwrap();
        path
    };
    every_verb(&make("empty", b""), "empty");
    let noise: Vec<u8> =
        (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (name, content) in [("short", &[1; 512][..]), ("zeroes", &[0; 1 << 20]), ("noise", &noise)]
    {
        let image = make(name, content);
        every_verb(&image, name);
        run_fails([OsString::from("info"), image.into()], name);
    }
    every_verb(scratch.dir.path(), "directory");
    every_verb(Path::new("/dev/null"), "/dev/null");
    every_verb(&scratch.path("missing"), "missing");
}

/// What people have by mistake in place of an image is named, with the way on, by every verb.
#[test]
fn other_formats_are_named() {
    let scratch = Scratch::new();
    let of_bytes = |name: &str, at: u64, bytes: &[u8]| {
        let path = scratch.path(name);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        poke(&path, at, bytes);
        path
    };
    for (name, at, bytes, want) in [
        ("xfs", 0, &b"XFSB"[..], "contains an xfs file system: mount it as such (mount -t xfs)"),
        (
            "btrfs",
            65_600,
            b"_BHRfS_M",
            "contains a btrfs file system: mount it as such (mount -t btrfs)",
        ),
        ("squashfs", 0, b"hsqs", "contains a squashfs file system: unpack it (unsquashfs)"),
        ("qcow2", 0, b"QFI\xfb", "a qcow2 disk image: convert it first (qemu-img convert -O raw)"),
        ("vmdk", 0, b"KDMV", "a VMDK disk image: convert it"),
        ("luks", 0, b"LUKS\xba\xbe", "a LUKS volume: open it first (cryptsetup open)"),
        ("vma", 0, b"VMA\0", "a VMA archive of Proxmox: unpack it first (vma extract)"),
        ("fat", 82, b"FAT32   ", "a FAT file system: copy by mtools (mcopy -i)"),
        ("iso", 32_769, b"CD001", "an ISO 9660 file system: unpack it (bsdtar -x)"),
        ("ntfs", 3, b"NTFS    ", "an NTFS file system: mount it as such (mount -t ntfs3)"),
        ("boot", 510, &[0x55, 0xaa], "contains a boot sector, not ext4"),
    ] {
        let image = of_bytes(name, at, bytes);
        every_verb(&image, want);
        verbs_of_whole_images(&image, want);
    }
    // As their own tools make them; the input is an image, as it would be.
    of_bytes("plain.img", 1080, &[0x53, 0xef]);
    for (tool, script, want) in [
        ("gzip", "gzip -c plain.img > made", "a gzip archive: unpack it first (gunzip)"),
        ("xz", "xz -0c plain.img > made", "an xz archive: unpack it first (unxz)"),
        ("zstd", "zstd -qc plain.img > made", "a zstd archive: unpack it first (unzstd)"),
        ("bzip2", "bzip2 -c plain.img > made", "a bzip2 archive: unpack it"),
        ("tar", "tar cf made plain.img", "a tar archive: unpack it"),
        (
            "mkswap",
            "truncate -s 1M made; mkswap -q made 2>/dev/null",
            "swap space: it has no files",
        ),
        (
            "sgdisk",
            "truncate -s 4M made; sgdisk -n3:2048:4095 made",
            "has a partition table (GPT): name a partition, made@p3",
        ),
        (
            "sfdisk",
            "truncate -s 4M made; echo 2048,2048 | sfdisk -q made",
            "has a partition table (MBR): name a partition, made@p1",
        ),
    ] {
        if !common::has(tool) {
            eprintln!("skipped: no {tool}");
            continue;
        }
        let script = format!("rm -f made; PATH=$PATH:/sbin:/usr/sbin; {{ {script}; }} >made.log");
        let script =
            if want.contains("archive") { script.replace(" >made.log", "") } else { script };
        common::shell(&script, scratch.dir.path());
        let made = scratch.path("made");
        let want = want.replace("made@", &format!("{}@", made.display()));
        every_verb(&made, &want);
        verbs_of_whole_images(&made, &want);
    }
}

/// Of several partitions that with an ext4 file system is proposed; and one in which there is none
/// is said to be what it is.
#[test]
fn the_partition_to_name_is_told() {
    let scratch = Scratch::new();
    if !common::has("sgdisk") || !common::has("mkswap") {
        skip!("no sgdisk or mkswap");
    }
    let script = "PATH=$PATH:/sbin:/usr/sbin; truncate -s 24M disk
        sgdisk -n1:2048:4095 -n2:4096:24575 -n3:24576:49118 disk >disk.log
        truncate -s 1M swap; mkswap -q swap 2>swap.log
        dd if=swap of=disk bs=1M seek=1 conv=notrunc";
    common::shell(&format!("exec 2>shell.log; {script}"), scratch.dir.path());
    let image = scratch.path("disk");
    let part = |name: &str| {
        let mut named = image.clone().into_os_string();
        named.push(name);
        named
    };
    run_ok(["mkfs".into(), "-q".into(), part("@p2")]);
    let want = format!("name a partition, {}@p2", image.display());
    every_verb(&image, &want);
    verbs_of_whole_images(&image, &want);
    every_verb(Path::new(&part("@p1")), "disk@p1: contains swap space: it has no files");
    every_verb(Path::new(&part("#1")), "disk@p1: contains swap space: it has no files");
    every_verb(Path::new(&part("@p4")), "has no partition 4 (it has 1, 2, 3)");
    every_verb(Path::new(&part("@2Q")), "@2Q is neither a partition (@p1) nor an offset (bytes");
    let plain = scratch.path("plain");
    File::create(&plain).unwrap().set_len(1 << 20).unwrap();
    every_verb(&plain.with_file_name("plain@p1"), "plain: has no partition table");
}

/// Where a size is wrong its suffixes are named.
#[test]
fn wrong_sizes_are_told_how_to_be_right() {
    let scratch = Scratch::new();
    let new = || scratch.path("new").into_os_string();
    let mkfs = |words: &[&str]| {
        let words = words.iter().map(OsString::from);
        [OsString::from("mkfs"), new()].into_iter().chain(words).collect::<Vec<_>>()
    };
    for size in ["256MB", "256MiB", "1.5G", "lots", "-1"] {
        run_fails(mkfs(&["--", size]), "KiB, or blocks with -b; or with a suffix s, K, M, G or T");
    }
    run_fails(mkfs(&["16M", "-E", "offset=1MB"]), "suffix s, K, M, G or T");
    for args in [mkfs(&["16M", "-b", "4kB"]), vec!["trim".into(), "-m".into(), "4kB".into(), new()]]
    {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("suffix s (sectors), K, M, G or T"), "{said}");
    }
    assert!(!Path::new(&new()).exists());
}

#[test]
fn damaged_superblocks() {
    let scratch = Scratch::new();
    let plain = ["-O", "^metadata_csum,^metadata_csum_seed"];
    let Some(image) = scratch.image("image", 16, &plain) else { skip!("no mke2fs") };

    let truncated = scratch.path("truncated");
    fs::copy(&image, &truncated).unwrap();
    File::options().write(true).open(&truncated).unwrap().set_len(2 << 20).unwrap();
    every_verb(&truncated, "truncated");

    for (name, offset, bytes, want) in [
        ("magic", 0x38, &[0x12, 0x34][..], "magic"),
        // s_feature_incompat: a bit that no ext4 has.
        ("feature", 0x60 + 3, &[0x40], "feature"),
        ("blocks", 0x04, &[0xff, 0xff, 0xff, 0x7f], "blocks of"),
        ("block-size", 0x18, &[200, 0, 0, 0], "s_log_block_size"),
        ("per-group", 0x20, &[0, 0, 0, 0], "superblock"),
        ("inode-size", 0x58, &[7, 0], "inode"),
    ] {
        let damaged = scratch.path(name);
        fs::copy(&image, &damaged).unwrap();
        poke(&damaged, 1024 + offset, bytes);
        every_verb(&damaged, want);
    }

    let checked = scratch.image("checked", 16, &["-O", "metadata_csum"]).unwrap();
    poke(&checked, 1024 + 0x78, b"changed behind the checksum");
    every_verb(&checked, "checksum");
}

#[test]
fn damaged_journals() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 64, &["-b", "4096"]) else { skip!("no mke2fs") };
    let Some(first) = journal_start(&image) else { skip!("no debugfs") };
    // Magic number of the journal's superblock.
    let damaged = scratch.path("journal-magic");
    fs::copy(&image, &damaged).unwrap();
    poke(&damaged, first * 4096, &[0; 4]);
    every_verb(&damaged, "journal");
    // s_feature_incompat of the journal: a bit that no jbd2 has.
    let damaged = scratch.path("journal-feature");
    fs::copy(&image, &damaged).unwrap();
    poke(&damaged, first * 4096 + 0x28, &[0x40, 0, 0, 0]);
    every_verb(&damaged, "journal");
}

fn journal_start(image: &Path) -> Option<u64> {
    let output = common::system("debugfs").args(["-R", "bmap <8> 0"]).arg(image).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[test]
fn images_in_use_are_refused() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let held = File::open(&image).unwrap();
    held.try_lock().unwrap();
    every_verb_but_mount(&image, "in use");
    // A mount waits for the image first, and says so.
    let output = run(["mount".into(), image.clone().into(), scratch.dir.path().as_os_str().into()]
        as [OsString; 3]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("in use: waiting up to 10 s"), "{said}");
    assert!(lines[1].contains("in use: mounted, or held by another process"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    drop(held);
    run_ok([OsString::from("ls"), at(&image, "/")]);
}

#[test]
fn images_without_permission() {
    if common::is_root() {
        // Root may read everything.
        return common::as_nobody("images_without_permission");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
    fs::set_permissions(&image, mode).unwrap();
    every_verb(&image, "permission");
}

#[test]
fn wrong_paths() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let host = scratch.path("host");
    fs::write(&host, b"x").unwrap();
    let inside = |path: &str| at(&image, path);
    run_ok(["cp".into(), host.clone().into_os_string(), inside("/file")]);
    for (args, want) in [
        (vec!["ls".into(), inside("/none")], "not found"),
        (vec!["ls".into(), inside("/file/below")], "not a directory"),
        (vec!["ls".into(), inside("/file/")], "not a directory"),
        (vec!["cat".into(), inside("/lost+found")], "is a directory"),
        (vec!["stat".into(), inside("/none")], "not found"),
        (vec!["mkdir".into(), inside("/file")], "exists"),
        (vec!["mkdir".into(), inside("/a/b")], "not found"),
        (vec!["mkdir".into(), inside("/")], "is the root directory"),
        (vec!["rm".into(), inside("/none")], "not found"),
        (vec!["rm".into(), inside("/lost+found")], "is a directory"),
        (vec!["rm".into(), "-r".into(), inside("/")], "is the root directory"),
        (vec!["mv".into(), inside("/none"), inside("/x")], "not found"),
        (vec!["mv".into(), inside("/file"), inside("/file/x")], "not a directory"),
        (vec!["cp".into(), inside("/lost+found"), host.clone().into()], "omitting"),
        (vec!["cp".into(), inside("/none"), host.clone().into()], "not found"),
        (vec!["cp".into(), "/no/such".into(), inside("/x")], "no such file"),
        (vec!["cp".into(), host.clone().into(), host.clone().into()], "neither"),
        (vec!["cp".into(), "-r".into(), inside("/"), inside("/lost+found")], "into itself"),
        (vec!["cat".into(), host.clone().into()], "image:/path"),
    ] {
        let args: Vec<OsString> = args;
        run_fails(args, want);
    }
    common::assert_clean(&image);
}

#[test]
fn small_slips_are_told() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("q.img", 16, &[]) else { skip!("no mke2fs") };
    let rel = |tail: &str| OsString::from(format!("{}:{tail}", image.display()));
    let (etc, want) = (|| OsString::from("/etc/passwd"), "not of the form IMAGE:/path");
    run_fails(["cp".into(), etc(), rel("etc/")], want);
    run_fails(["cp".into(), etc(), rel("f")], want);
    run_fails(["cp".into(), rel("f"), scratch.path("out").into()], want);
    run_fails(["cp".into(), rel("f"), at(&image, "/f")], want);
    let new = || scratch.path("new").into_os_string();
    run_fails(
        ["mkfs".into(), "-d".into(), "/nonexist".into(), new(), "16M".into()],
        "/nonexist: No such file or directory",
    );
    run_fails(["mkfs".into(), "-d".into(), etc(), new(), "16M".into()], "is not a tar archive");
    run_fails(["mkfs".into(), new(), "0".into()], "too small");
    assert!(!scratch.path("new").exists());
}

/// The message names the step that leads on, and the step works.
#[test]
fn a_mount_whose_daemon_was_killed() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = common::Mounted::new(&image, &dir, "");
    // The kernel keeps these attributes, and answers with them when the daemon is gone.
    fs::metadata(&dir).unwrap();
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    common::wait_until("the daemon to be gone", || fs::read_dir(&dir).is_err());
    let again = [OsString::from("mount"), image.clone().into(), dir.clone().into()];
    run_fails(again, "not connected: its daemon is gone; uext4 umount");
    let output = run(["umount".as_ref(), dir.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("daemon had been killed"), "{said}");
    mount.forget();
    common::Mounted::new(&image, &dir, "").end();
    common::assert_clean(&image);
}

#[test]
fn wrong_mounts() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let dir = scratch.path("dir");
    fs::create_dir(&dir).unwrap();
    let (image, dir) = (image.as_os_str(), dir.as_os_str());
    let words = |options: &str, dir: &std::ffi::OsStr| -> Vec<OsString> {
        ["mount".into(), "-o".into(), options.into(), image.to_owned(), dir.to_owned()].to_vec()
    };
    run_fails(words("frobnicate", dir), "frobnicate");
    run_fails(words("commit=never", dir), "commit=never");
    run_fails(words("threads=0", dir), "threads");
    run_fails(words("fakeroot,allow_other", dir), "fakeroot");
    if common::no_mount().is_none() {
        run_fails(words("ro", scratch.path("nowhere").as_os_str()), "nowhere");
        run_fails(words("ro", image), "not a directory");
    }
    run_fails(["umount".into(), dir.to_owned()], "not mounted");
    run_fails(["umount".into(), OsString::from("/proc")], "is proc, not a mount of uext4; use um");
    run_fails(["sync".into(), dir.to_owned()], "not on a uext4 mount");
}

#[test]
fn wrong_usage_is_status_2() {
    for args in [&["ls"][..], &["cp", "one"], &["frobnicate"], &["mkdir", "--mode", "9", "x:/y"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("uext4: ") && said.lines().count() == 1, "{args:?}: {said}");
    }
    let before: [&[&str]; 3] = [&[], &["--journal-device", "j"], &["--key=k"]];
    for before in before {
        let output = run(before.iter().chain(&["fsck", "--bogus", "image"]));
        assert_eq!(output.status.code(), Some(16), "{before:?}: the status of fsck(8)");
    }
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let script = "\"$0\" info --json \"$1\" | true; \"$0\" ls -la \"$1:/\" | true";
    let output = std::process::Command::new("sh")
        .args(["-c", script, common::UEXT4])
        .arg(&image)
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}

/// Images that cannot be mapped, or have no room, are refused in one line; `dax=inode` does
/// without.
#[test]
fn wrong_stores_for_dax() {
    if common::no_mount().is_some() {
        skip!("no mounts here");
    }
    let mount = |options: &str, image: &Path, dir: &Path| -> [OsString; 5] {
        ["mount".into(), "-o".into(), options.into(), image.into(), dir.into()]
    };
    let scratch = Scratch::new();
    let (Some(made), dir) = (scratch.image("image", 64, &[]), scratch.path("mnt")) else {
        skip!("no mke2fs");
    };
    fs::create_dir(&dir).unwrap();
    run_fails(mount("dax=always,data=journal", &made, &dir), "not with data=journal");
    run_fails(mount("dax=sometimes", &made, &dir), "one of always, inode, never");
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let on_disk = disk.path().join("image");
    fs::copy(&made, &on_disk).unwrap();
    let kind = common::system("stat").args(["-fc", "%T"]).arg(&on_disk).output().unwrap();
    if !kind.stdout.starts_with(b"tmpfs") {
        run_fails(mount("dax=always", &on_disk, &dir), "is not on tmpfs");
    }
    let (small, is_root) = (scratch.path("small"), common::is_root());
    fs::create_dir(&small).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "size=16m", "none"];
    if !is_root || !common::system("mount").args(tmpfs).arg(&small).status().unwrap().success() {
        skip!("no small tmpfs: not root");
    }
    // Sparse, and more than there is.
    let sparse = small.join("image");
    let copied =
        common::system("cp").arg("--sparse=always").args([&made, &sparse]).status().unwrap();
    let result = std::panic::catch_unwind(|| {
        assert!(copied.success());
        run_fails(mount("dax=always", &sparse, &dir), "No space left");
    });
    assert!(common::system("umount").arg(&small).status().unwrap().success());
    result.unwrap();
}

/// No image that can only be read is made in silence; one of the blocks that the line names can be
/// written.
#[test]
fn an_image_too_small_for_a_journal_is_told() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let mkfs = |size: &str| ["mkfs".into(), image.clone().into_os_string(), OsString::from(size)];
    run_fails(mkfs("0"), "give a larger one");
    run_fails(mkfs("3"), "give a larger size");
    let output = run(mkfs("1M"));
    let said = String::from_utf8_lossy(&output.stderr);
    let want = "it has none; 2048 blocks are enough for one";
    assert!(said.lines().count() == 1 && said.contains(want), "{said}");
    run_ok(["mkdir".into(), at(&image, "/dir")]);
    let mut larger = mkfs("2048").to_vec();
    larger.splice(1..1, ["-q", "-F", "-b", "1024"].map(OsString::from));
    run_ok(larger);
    run_ok(["mkdir".into(), at(&image, "/dir")]);
}

/// What the first tries of a new user are told.
#[test]
fn lines_say_what_to_do() {
    run_fails(["mount", "-o", "loop", "image", "mnt"], "no loop device is needed");
    run_fails(["umount", "/proc"], "use umount(8)");
    let output = run(["mkfs", "-N", "many", "image", "8M"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !said.contains("bytes"), "{said}");
}
