//! `uext4 mkfs -d`: the image holds what the directory holds, whatever the features.
//!
//! Fault model: the builder lays out every structure by itself, so each may be wrong by itself: a
//! count, a checksum, a node of a tree, an entry in the wrong leaf, bytes in the wrong place. Two
//! checkers look at the structures; the kernel looks every name up and reads every byte.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use common::{Scratch, assert_clean, run_fails, run_ok};
use uext4_sim::mount::{KernelMount, why_no_loop};
use uext4_sim::tree::compare::{Scope, trees};

/// `mkfs` with options, a source, an image and a size.
fn mkfs(words: &[&str], source: &Path, image: &Path, size: &str) -> Vec<OsString> {
    let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
    words.chain(["-d".into(), source.into(), image.into(), size.into()]).collect()
}

/// The tree of all tests, with a directory whose hash tree has a level of nodes in small blocks.
fn make_source(scratch: &Scratch) -> std::path::PathBuf {
    let source = scratch.path("source");
    tree::make(&source);
    let wide = source.join("wide");
    fs::create_dir(&wide).unwrap();
    for n in 0..3000 {
        fs::write(wide.join(format!("a name that fills its leaf soon {n:0100}")), "").unwrap();
    }
    source
}

#[test]
fn the_kernel_reads_what_was_there() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    for words in [
        &[][..],
        &["-b", "1024"],
        &["-b", "2048", "-I", "512"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2", "-I", "1024", "-b", "4096"],
        &["-O", "bigalloc", "-b", "1024", "-C", "8192"],
        &["-O", "^dir_index,^metadata_csum,uninit_bg,^flex_bg"],
        &["-O", "inline_data,orphan_file,metadata_csum_seed,meta_bg,^resize_inode"],
        &["-g", "2048", "-b", "1024", "-O", "sparse_super2"],
    ] {
        let image = scratch.path("image");
        run_ok(mkfs(words, &source, &image, "128M"));
        assert_clean(&image);
        run_ok(["fsck".into(), image.clone().into_os_string()]);
        if let Some(why) = why_no_loop() {
            println!("skipped: {why}");
            continue;
        }
        let point = scratch.path("mnt");
        let mount = KernelMount::start(&image, &point, true).unwrap();
        let differences = trees(&source, &point, Scope::default());
        mount.unmount().unwrap();
        assert_eq!(differences, Ok(Vec::new()), "{words:?}");
        fs::remove_file(&image).unwrap();
    }
}

/// Fault model: a cluster of more blocks than an extent has room for is taken twice, or its second
/// half is mapped to the start of another one.
#[test]
fn clusters_may_be_larger_than_extents() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    let content: Vec<u8> = (0..100_u32 << 20).step_by(4).flat_map(u32::to_le_bytes).collect();
    fs::write(source.join("file"), &content[..40 << 20]).unwrap();
    fs::write(source.join("longer"), &content).unwrap();
    let image = scratch.path("image");
    let words = ["-O", "bigalloc,^has_journal", "-b", "1024", "-C", "67108864"];
    run_ok(mkfs(&words, &source, &image, "8G"));
    assert_clean(&image);
    for (name, len) in [("file", 40 << 20), ("longer", content.len())] {
        let mut place = image.clone().into_os_string();
        place.push(format!(":/{name}"));
        assert!(run_ok(["cat".into(), place]) == content[..len], "{name}");
    }
}

#[test]
fn inodes_are_as_many_as_the_tree_needs() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    for n in 0..3000 {
        fs::write(source.join(n.to_string()), "").unwrap();
    }
    let image = scratch.path("image");
    // The second has a share of 376.4 inodes for each of 8 groups.
    for words in [&[][..], &["-b", "1024", "-g", "1024"]] {
        run_ok(mkfs(words, &source, &image, "8M"));
        assert_clean(&image);
        fs::remove_file(&image).unwrap();
    }
    run_fails(mkfs(&["-N", "500"], &source, &image, "8M"), "3011 inodes are needed");
    run_fails(mkfs(&["-i", "65536"], &source, &image, "8M"), "inodes are needed");
}

#[test]
fn what_cannot_be_stored_is_told_and_nothing_is_left() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), vec![1; 9 << 20]).unwrap();
    let image = scratch.path("image");
    run_fails(mkfs(&[], &source, &image, "8M"), "not enough space for the files");
    fs::write(source.join("lost+found"), "").unwrap();
    run_fails(mkfs(&[], &source, &image, "64M"), "lost+found: is no directory");
    assert!(!image.exists());
}

/// Makes an image with the time of a build, on so many processors, and returns its bytes.
fn reproducible(source: &Path, image: &Path, epoch: &str, processors: &str) -> Vec<u8> {
    let uext4 = env!("CARGO_BIN_EXE_uext4");
    let mut command = match common::has("taskset") {
        true => common::system("taskset"),
        false => common::system(uext4),
    };
    if common::has("taskset") {
        command.args(["-c", processors, uext4]);
    }
    let words = ["mkfs", "-q", "-L", "root", "-d"];
    command.args(words).arg(source).arg(image).env("SOURCE_DATE_EPOCH", epoch);
    assert!(command.status().unwrap().success());
    let bytes = fs::read(image).unwrap();
    assert_clean(image);
    fs::remove_file(image).unwrap();
    bytes
}

/// Fault model: a clock, a random number, a number, a hole or an order of the host's, or the order
/// in which threads finish gets into the image.
#[test]
fn two_builds_are_the_same_to_the_byte() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    // Zeros that the host stores, and those it does not: a copy turns one into the other.
    let mut mixed = vec![0; 600 << 10];
    mixed[200 << 10..(200 << 10) + 5000].fill(1);
    mixed[599 << 10] = 1;
    fs::write(source.join("zeros"), &mixed).unwrap();
    fs::write(source.join("small zeros"), &mixed[180 << 10..220 << 10]).unwrap();
    let copy = scratch.path("a folder elsewhere");
    let mut cp = common::system("cp");
    let copied = cp.args(["-a", "--sparse=always"]).arg(&source).arg(&copy).status().unwrap();
    assert!(copied.success());
    // What is copied is listed otherwise, and has other inode numbers; what is read, another atime.
    fs::read(copy.join("big")).unwrap();
    let image = scratch.path("image");
    let one = reproducible(&source, &image, "1700000000", "0");
    let other = reproducible(&copy, &image, "1700000000", "0,1");
    assert!(one == other, "the images differ");
    assert!(one != reproducible(&copy, &image, "1700000001", "0,1"));
    fs::write(copy.join("empty"), "no more").unwrap();
    assert!(one != reproducible(&copy, &image, "1700000000", "0,1"));
}

#[test]
fn sizes_follow_the_content() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    let size = |words: &[&str]| {
        let image = scratch.path("image");
        let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
        run_ok(words.chain(["-d".into(), source.clone().into(), image.clone().into()]));
        assert_clean(&image);
        let info = run_ok(["info".into(), "--json".into(), image.clone().into_os_string()]);
        let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
        let bytes = fs::metadata(&image).unwrap().len();
        fs::remove_file(&image).unwrap();
        (bytes, info)
    };
    let free = |info: &serde_json::Value| {
        let number = |name: &str| {
            info["superblock"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {info}"))
        };
        100.0 * number("free_blocks") / number("block_count")
    };
    let (least, info) = size(&["--shrink"]);
    assert!(free(&info) < 2.0, "{info}");
    let (usual, info) = size(&[]);
    assert!((10.0..14.0).contains(&free(&info)), "{info}");
    let (half, info) = size(&["--free", "50"]);
    assert!((50.0..56.0).contains(&free(&info)), "{info}");
    assert!(least < usual && usual < half);
    // The journal takes most of it.
    let (large_journal, info) = size(&["--shrink", "-J", "size=64"]);
    assert!(free(&info) < 2.0 && large_journal < (64 << 20) + least, "{info}");
    let (other, _) = size(&["--shrink", "-b", "1024", "-t", "ext3"]);
    assert!(other < usual);
    // It can grow, but from a size that the first plan does not have.
    let (growing, _) = size(&["--shrink", "-E", "resize=400M"]);
    assert!(least <= growing && growing < usual);
    let image = scratch.path("image");
    fs::write(&image, "there").unwrap();
    let words = ["mkfs", "--shrink", "-d"].map(OsString::from);
    run_fails(words.into_iter().chain([source.into(), image.into()]), "is there");
}

/// Fault model: a size that only file systems without a journal have, or that has one by default.
#[test]
fn a_small_tree_asks_for_little() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("few"), scratch.path("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    let words = ["mkfs", "-q", "--shrink", "-d"].map(OsString::from).into_iter();
    run_ok(words.chain([source.clone().into(), image.clone().into()]));
    assert_clean(&image);
    let info = run_ok(["info".into(), "--json".into(), image.clone().into_os_string()]);
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    assert!(info.to_string().contains("has_journal"), "{info}");
    // 1,024 blocks of journal and some metadata.
    assert!(fs::metadata(&image).unwrap().len() < 1200 * 4096, "{info}");
    if let Some(why) = why_no_loop() {
        return println!("skipped: {why}");
    }
    let point = scratch.path("mnt");
    let mount = KernelMount::start(&image, &point, false).unwrap();
    let differences = trees(&source, &point, Scope::default());
    mount.unmount().unwrap();
    assert_eq!(differences, Ok(Vec::new()));
}

/// Fault model: a build environment has no /proc, by which attributes are read elsewhere.
#[test]
fn a_directory_is_read_without_proc() {
    let scratch = Scratch::new();
    let source = make_source(&scratch);
    let image = scratch.path("image");
    let one = reproducible(&source, &image, "1700000000", "0");
    let mut unshare = common::system("unshare");
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    unshare.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_uext4")]);
    unshare.args(["mkfs", "-L", "root", "-d"]).arg(&source).arg(&image);
    let output = unshare.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("unshare") || told.contains("mount") {
        println!("skipped: {told}");
        return;
    }
    assert!(output.status.success() && told.contains("there is no /proc"), "{told}");
    assert!(one == fs::read(&image).unwrap(), "the images differ");
}

/// Fault model: owners of a build under fakeroot are what files really have, as the kernel tells.
#[test]
fn fakeroot_tells_owners() {
    if !common::has("fakeroot") {
        return println!("skipped: no fakeroot");
    }
    let scratch = Scratch::new();
    let script = "mkdir -p t/d; echo x > t/f; ln -s f t/l
        chown 5:6 t/d; chown -h 7:8 t/l; chmod 4711 t/f; mknod t/n c 1 3
        $1 mkfs -q -d t made 8M; $1 mkfs -q -b 4096 imported 8M; $1 import t imported:/
        $1 mkfs -q -b 4096 copied 8M; $1 cp -r t/. copied:/";
    let mut fakeroot = common::system("fakeroot");
    fakeroot.args(["sh", "-ec", script, "sh", common::UEXT4]).current_dir(scratch.dir.path());
    let output = fakeroot.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    for image in ["made", "imported", "copied"] {
        let names = ["/d", "/f", "/l", "/n"].map(|name| common::at(&scratch.path(image), name));
        let names = names.map(|name| name.into_string().unwrap());
        let words = ["stat", "--printf", "%A %u:%g %t,%T\\n"].map(String::from);
        let said = run_ok(words.into_iter().chain(names));
        let want =
            "drwxr-xr-x 5:6 0,0\n-rws--x--x 0:0 0,0\nlrwxrwxrwx 7:8 0,0\ncrw-r--r-- 0:0 1,3\n";
        assert_eq!(String::from_utf8(said).unwrap(), want, "{image}");
        assert_clean(&scratch.path(image));
    }
}
