//! `uext4 mkfs`: what it makes is clean, and it destroys nothing unasked.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use common::{Mounted, Scratch, assert_clean, at, run_fails, run_ok};

fn mkfs(words: &[&str], image: &std::path::Path, size: Option<&str>) -> Vec<OsString> {
    let words = std::iter::once("mkfs").chain(words.iter().copied()).map(OsString::from);
    words.chain([image.into()]).chain(size.map(OsString::from)).collect()
}

#[test]
fn makes_clean_file_systems_of_all_shapes() {
    let scratch = Scratch::new();
    for (words, size) in [
        (&[][..], "16M"),
        (&[], "600M"),
        (&["-b", "4096", "-I", "512", "-m", "1", "-L", "label"], "64M"),
        (&["-b", "1024", "-i", "8192", "-J", "size=4"], "65536"),
        (&["-O", "orphan_file,metadata_csum_seed,^resize_inode", "-N", "5000"], "100M"),
        (&["-O", "^has_journal,^metadata_csum,uninit_bg", "-T", "news"], "32M"),
        (&["-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=7:8"], "40M"),
    ] {
        let image = scratch.path("image");
        run_ok(mkfs(words, &image, Some(size)));
        assert_clean(&image);
        if common::has("dumpe2fs") {
            run_ok(["info".into(), image.clone().into_os_string()]);
        }
        // A made file is sparse.
        let meta = image.metadata().unwrap();
        assert!(meta.blocks() * 512 < meta.len() / 2, "{words:?}: not sparse");
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn what_it_makes_can_be_used() {
    let scratch = Scratch::new();
    let (image, source) = (scratch.path("image"), scratch.path("source"));
    tree::make(&source);
    let want = tree::describe(&source);
    let mut words = mkfs(&["-q", "-d"], &image, Some("96M"));
    words.insert(3, source.clone().into());
    assert_eq!(run_ok(words), b"");
    assert_clean(&image);
    let back = scratch.path("back");
    run_ok(["cp".into(), "-r".into(), at(&image, "/."), make_dir(&back)]);
    let mut found = tree::describe(&back);
    found.remove(std::path::Path::new("lost+found"));
    tree::assert_same(&want, &found);
    if let Some(why) = common::no_mount() {
        skip!("{why}");
    }
    let mount = Mounted::new(&image, &scratch.path("mnt"), "");
    fs::write(mount.path("new"), b"new").unwrap();
    mount.end();
    assert_clean(&image);
}

fn make_dir(path: &std::path::Path) -> OsString {
    fs::create_dir(path).unwrap();
    path.into()
}

#[test]
fn nothing_is_lost_unasked() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    run_fails(mkfs(&[], &image, None), "give a size");
    assert!(!image.exists());
    run_ok(mkfs(&["-q"], &image, Some("16M")));
    let before = fs::read(&image).unwrap();
    run_fails(mkfs(&[], &image, None), "ext4");
    run_fails(mkfs(&[], &image, Some("16M")), "use -F");
    run_fails(mkfs(&["-b", "512"], &image, None), "image");
    assert!(before == fs::read(&image).unwrap(), "changed all the same");
    run_ok(mkfs(&["-F", "-q", "-L", "second"], &image, None));
    assert_clean(&image);

    let held = File::open(&image).unwrap();
    held.try_lock().unwrap();
    run_fails(mkfs(&["-F"], &image, None), "in use");
    drop(held);

    for (words, size, want) in [
        (&["-t", "xfs"][..], "16M", "ext2, ext3 and ext4 are made"),
        (&["-O", "dirdata"], "16M", "dirdata"),
        (&["-E", "encoding=utf7"], "16M", "want utf8"),
        (&["-E", "encoding_flags=strict"], "16M", "encoding="),
        (&["-O", "nonsense"], "16M", "nonsense"),
        (&["-E", "nonsense"], "16M", "nonsense"),
        (&["-J", "device=/dev/null"], "16M", "character device"),
        (&["-I", "100"], "16M", "inode"),
        (&[], "10k", "mkfs"),
        (&[], "lots", "not a size"),
        (&["-d", "/no/such"], "16M", "directory"),
    ] {
        let other = scratch.path("other");
        run_fails(mkfs(words, &other, Some(size)), want);
        assert!(!other.exists(), "{words:?} left a file");
    }
    let directory = scratch.dir.path();
    run_fails(mkfs(&[], directory, Some("16M")), "directory");
    run_fails(mkfs(&[], &scratch.path("no/where"), Some("16M")), "no such");
}

/// Fault model: a mkfs that fails once the file is made or lengthened, also where it opens it again
/// for an offset or past the page cache; a file that it did not make goes, or is not as it was.
#[test]
fn what_a_failed_mkfs_leaves_is_what_was_there() {
    let scratch = Scratch::new();
    let (new, link) = (scratch.path("new"), scratch.path("link"));
    let (empty, data) = (scratch.path("empty"), scratch.path("data"));
    std::os::unix::fs::symlink(scratch.path("nothing"), &link).unwrap();
    fs::write(&empty, "").unwrap();
    fs::write(&data, "data").unwrap();
    for place in ["", "@1M"] {
        for words in [&["-I", "100"][..], &["-D", "-I", "100"]] {
            let fails = |image: &std::path::Path, words: &[&str]| {
                let mut named = image.to_path_buf().into_os_string();
                named.push(place);
                // Quiet where the page cache cannot be bypassed.
                let args = mkfs(words, named.as_ref(), Some("16M"));
                run_fails(std::iter::once("-q".into()).chain(args), "inode");
            };
            fails(&new, words);
            fails(&link, words);
            fails(&empty, words);
            fails(&data, &[words, &["-F"]].concat());
            assert!(!new.exists(), "{place} {words:?}");
            assert!(link.is_symlink(), "{place} {words:?}");
            assert_eq!(fs::read(&empty).unwrap(), b"", "{place} {words:?}");
            assert_eq!(fs::read(&data).unwrap(), b"data", "{place} {words:?}");
        }
    }
    let held = File::open(&empty).unwrap();
    held.try_lock().unwrap();
    run_fails(mkfs(&[], &empty, Some("16M")), "in use");
    drop(held);
    run_ok(mkfs(&["-q"], &empty, Some("16M")));
    run_ok(mkfs(&["-q", "-F", "-D"], &data, Some("16M")));
    assert_clean(&empty);
    assert_clean(&data);
}

#[test]
fn a_partition_is_made_and_used_in_place() {
    let scratch = Scratch::new();
    let image = scratch.path("disk");
    fs::write(&image, vec![0xaa; 1 << 20]).unwrap();
    File::options().write(true).open(&image).unwrap().set_len(33 << 20).unwrap();
    let mut partition = image.clone().into_os_string();
    partition.push("@1M");
    run_ok(["mkfs".into(), "-q".into(), partition.clone()]);
    let mut inside = partition.clone();
    inside.push(":/dir");
    run_ok(["mkdir".into(), inside.clone()]);
    inside.push("/..");
    assert_eq!(run_ok(["ls".into(), inside]), b"dir\nlost+found\n");
    assert!(fs::read(&image).unwrap()[..1 << 20].iter().all(|byte| *byte == 0xaa));
}
