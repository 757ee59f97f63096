//! `uext4 diff`: every kind of difference is told, nothing else is, and the images do not change.
//!
//! Fault model: a difference that is missed, above all content that changed while inode, times and
//! mapping stayed; a difference told where there is none (other places on the device, bytes behind
//! the end of a file, holes against zeroes); a damaged directory that never ends. debugfs makes the
//! differences, so that nothing changes but what is meant.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{Mounted, Scratch, at, has, no_mount, run, run_ok, system};

/// What the verb printed; its status must be the one that is wanted.
fn diff(args: &[&OsStr], status: i32) -> String {
    let output = run([OsStr::new("diff")].iter().chain(args));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    assert_eq!(said.is_empty(), status != 2, "{said}");
    String::from_utf8(output.stdout).unwrap()
}

fn same(a: &Path, b: &Path, options: &[&str]) {
    let options = options.iter().map(OsStr::new);
    let args: Vec<&OsStr> = options.chain([a.as_os_str(), b.as_os_str()]).collect();
    assert_eq!(diff(&args, 0), "");
}

fn differs(a: &Path, b: &Path, options: &[&str], want: &str) {
    let options = options.iter().map(OsStr::new);
    let args: Vec<&OsStr> = options.chain([a.as_os_str(), b.as_os_str()]).collect();
    assert_eq!(diff(&args, 1), want);
}

/// Runs commands of debugfs, which must say nothing but its version.
fn debugfs(image: &Path, commands: &[&str]) {
    for command in commands {
        let output = system("debugfs").args(["-w", "-R", command]).arg(image).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{command}: {said}");
    }
}

/// Where a byte of a file lies in its image.
fn place(image: &Path, path: &str, byte: u64) -> u64 {
    let listed = run_ok(["extents".into(), "--json".into(), at(image, path)]);
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let field = |value: &serde_json::Value, name: &str| value[name].as_u64().unwrap();
    let block_size = field(&listed[0], "block_size");
    let block = byte / block_size;
    let extents = listed[0]["extents"].as_array().unwrap();
    let extent = extents
        .iter()
        .find(|it| (0..field(it, "length")).contains(&block.wrapping_sub(field(it, "logical"))))
        .expect("the byte has a block");
    (field(extent, "physical") + block - field(extent, "logical")) * block_size + byte % block_size
}

/// Changes one byte of a file, in its block alone.
fn flip(image: &Path, path: &str, byte: u64) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let (at, mut old) = (place(image, path, byte), [0]);
    file.read_exact_at(&mut old, at).unwrap();
    file.write_all_at(&[!old[0]], at).unwrap();
}

fn copy(scratch: &Scratch, image: &Path, name: &str) -> PathBuf {
    let to = scratch.path(name);
    fs::copy(image, &to).unwrap();
    to
}

/// An image with files of several kinds, by mke2fs.
fn image(scratch: &Scratch, extra: &[&str]) -> Option<PathBuf> {
    if !has("debugfs") {
        return None;
    }
    let source = scratch.path("source");
    fs::create_dir_all(source.join("dir/deep")).unwrap();
    for (name, size) in [("a", 10_000), ("b", 3_000_000), ("dir/c", 1), ("dir/deep/d", 70_000)] {
        let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8 | 1).collect();
        fs::write(source.join(name), bytes).unwrap();
    }
    std::os::unix::fs::symlink("a", source.join("link")).unwrap();
    fs::hard_link(source.join("a"), source.join("dir/hard")).unwrap();
    let from = source.to_str().unwrap();
    scratch.image("a.img", 32, &[&["-d", from], extra].concat())
}

#[test]
fn every_kind_of_difference_is_told() {
    let scratch = Scratch::new();
    let Some(a) = image(&scratch, &[]) else { skip!("no mke2fs or debugfs") };
    let b = copy(&scratch, &a, "b.img");
    let before = fs::read(&a).unwrap();
    same(&a, &b, &[]);
    debugfs(
        &b,
        &[
            "sif a mode 0100755",
            "sif b uid 7",
            "sif b gid 8",
            "sif dir/c mtime 20200102030405",
            "ea_set dir/c user.x 1",
            "rm link",
            "symlink link other",
            "mknod pipe p",
            "mkdir new",
            "write /dev/null new/empty",
            "unlink dir/hard",
            "rm dir/deep/d",
            "mkdir dir/deep/d",
            "sif / mtime @1",
            "sif dir mtime @1",
            "sif dir/deep mtime @1",
        ],
    );
    flip(&b, "/b", 2_000_003);
    let same_times = copy(&scratch, &a, "c.img");
    debugfs(&same_times, &["sif / mtime @1", "sif dir mtime @1", "sif dir/deep mtime @1"]);
    let a = same_times;
    let lines = [
        "M /a: mode 0644 -> 0755",
        "M /b: owner 0:0 -> 7:8, content at byte 2000003",
        "M /dir/c: mtime, xattr +user.x",
        "T /dir/deep/d/: type file -> directory",
        "D /dir/hard: link to /a",
        "M /link: target a -> other",
        "A /new/",
        "A /new/empty",
        "A /pipe",
    ];
    let owner = fs::metadata(scratch.path("source")).map(|found| {
        use std::os::unix::fs::MetadataExt;
        format!("owner {}:{} ->", found.uid(), found.gid())
    });
    let want = lines.join("\n").replace("owner 0:0 ->", &owner.unwrap()) + "\n";
    // debugfs writes a symbolic link with times of its own.
    let told = diff(&[a.as_os_str(), b.as_os_str()], 1).replace("/link: mtime, ", "/link: ");
    let told = told.replace("/link: mode 0777 -> 0777, ", "/link: ");
    assert_eq!(told, want);
    let content = "M /b: content at byte 2000003\nT /dir/deep/d/: type file -> directory\n\
                   D /dir/hard\nM /link: target a -> other\nA /new/\nA /new/empty\nA /pipe\n";
    differs(&a, &b, &["--content-only"], content);
    // The other way round, and of directories.
    let [from, to] = [at(&b, "/new"), at(&a, "/dir/deep")];
    let told = diff(&["--no-times".as_ref(), &from, &to], 1);
    assert!(told.ends_with("A /dir/deep/d\nD /new/empty\n"), "{told}");
    let told = diff(&["--json".as_ref(), a.as_os_str(), b.as_os_str()], 1);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let entries = told["entries"].as_array().unwrap();
    assert_eq!(entries.len(), lines.len());
    assert_eq!(entries[1]["differences"][1]["first_byte"], 2_000_003);
    assert_eq!((&told["same"], &entries[8]["kind"]), (&false.into(), &"fifo".into()));
    assert!(fs::read(scratch.path("a.img")).unwrap() == before, "the image has changed");
}

/// Times and mapping say that a file is the same: only its bytes tell.
#[test]
fn content_is_compared_by_its_bytes() {
    let scratch = Scratch::new();
    let Some(a) = image(&scratch, &[]) else { skip!("no mke2fs or debugfs") };
    for byte in [0, 4095, 4096, 1 << 20, 2_999_999] {
        let b = copy(&scratch, &a, "b.img");
        flip(&b, "/b", byte);
        differs(&a, &b, &[], &format!("M /b: content at byte {byte}\n"));
        same(&a, &b, &["--trust-times"]);
        let told = diff(&[&at(&a, "/b"), &at(&b, "/b")], 1);
        assert_eq!(told, format!("M /b: content at byte {byte}\n"));
    }
    // Two files, the first difference of each, also where blocks do not ascend with the file.
    let b = copy(&scratch, &a, "b.img");
    for (path, byte) in [("/b", 2_500_000), ("/b", 1_200_000), ("/dir/c", 0)] {
        flip(&b, path, byte);
    }
    let want = "M /b: content at byte 1200000\nM /dir/c: content at byte 0\n";
    differs(&a, &b, &[], want);
    // Behind the end of a file its last block has bytes that are not the file's.
    let b = copy(&scratch, &a, "b.img");
    let behind = place(&b, "/dir/c", 0) + 1;
    let file = File::options().write(true).open(&b).unwrap();
    file.write_all_at(&[9; 100], behind).unwrap();
    same(&a, &b, &[]);
}

#[test]
fn links_and_renames() {
    let scratch = Scratch::new();
    let Some(a) = image(&scratch, &[]) else { skip!("no mke2fs or debugfs") };
    let b = copy(&scratch, &a, "b.img");
    let times = ["--no-times"];
    // A link is cut: a file of its own with the same content takes the name.
    run_ok(["rm".into(), at(&b, "/dir/hard")]);
    run_ok(["cp".into(), at(&b, "/a"), at(&b, "/dir/hard")]);
    differs(&a, &b, &times, "M /dir/hard: link to /a -> none\n");
    differs(&b, &a, &times, "M /dir/hard: link to none -> /a\n");
    same(&a, &b, &["--content-only"]);
    // A directory, a file in it, and a file whose content has changed.
    let b = copy(&scratch, &a, "b.img");
    run_ok(["mv".into(), at(&b, "/dir/deep"), at(&b, "/deeper")]);
    run_ok(["mv".into(), at(&b, "/b"), at(&b, "/bb")]);
    run_ok(["mv".into(), at(&b, "/dir/c"), at(&b, "/c")]);
    let plain =
        "A /bb\nA /c\nA /deeper/\nA /deeper/d\nD /b\nD /dir/c\nD /dir/deep/\nD /dir/deep/d\n";
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let told = diff(&["--no-times".as_ref(), a.as_os_str(), b.as_os_str()], 1);
    assert_eq!(sorted(&told), sorted(plain));
    let renames = ["--renames", "--no-times"];
    let moved = "R /b -> /bb\nR /dir/c -> /c\nR /dir/deep/ -> /deeper/\n";
    differs(&a, &b, &renames, moved);
    flip(&b, "/bb", 5);
    debugfs(&b, &["sif deeper/d mode 0100700"]);
    let want = "D /b\nA /bb\nR /dir/c -> /c\nR /dir/deep/ -> /deeper/\n\
                M /deeper/d: mode 0644 -> 0700\n";
    differs(&a, &b, &renames, want);
}

/// The same tree in other formats lies in other places, with holes or zeroes, in inodes or blocks.
#[test]
fn other_formats_with_the_same_tree_are_the_same() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    tree::make(&source);
    // A hole, and zeroes in its place.
    let file = File::create(source.join("sparse")).unwrap();
    file.write_all_at(b"end", 9_000_000).unwrap();
    let formats: [&[&str]; 4] = [
        &[],
        &["-b", "1024", "-O", "^metadata_csum,^64bit,^extent"],
        &["-O", "inline_data", "-I", "512"],
        &["-O", "bigalloc", "-C", "16384"],
    ];
    let mut first: Option<PathBuf> = None;
    for (number, format) in formats.iter().enumerate() {
        let name = format!("image{number}");
        let Some(image) = scratch.image(&name, 128, format) else { skip!("no mke2fs") };
        if number == 1 {
            fs::write(source.join("sparse"), [&vec![0; 9_000_000][..], b"end"].concat()).unwrap();
        }
        run_ok(["cp".into(), "-r".into(), source.clone().into_os_string(), at(&image, "/t")]);
        if let Some(first) = &first {
            let sides = [at(first, "/t"), at(&image, "/t")];
            let args: Vec<OsString> =
                ["diff".into(), "--no-times".into()].into_iter().chain(sides).collect();
            assert_eq!(String::from_utf8_lossy(&run_ok(args)), "");
        }
        first.get_or_insert(image);
    }
}

/// A copy of an image in use has a journal to replay; it is compared as replayed, and not changed.
#[test]
fn dirty_journals_are_replayed_in_memory() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let Some(image) = image(&scratch, &[]) else { skip!("no mke2fs or debugfs") };
    let clean = copy(&scratch, &image, "clean.img");
    let mounted = Mounted::new(&image, &scratch.path("mnt"), "");
    fs::write(mounted.path("new"), vec![3; 100_000]).unwrap();
    fs::write(mounted.path("a"), "short").unwrap();
    run_ok([OsStr::new("sync"), mounted.dir.as_os_str()]);
    let dirty = copy(&scratch, &image, "dirty.img");
    mounted.end();
    let before = fs::read(&dirty).unwrap();
    same(&dirty, &image, &[]);
    let want = "M /a: size 10000 -> 5, content at byte 0\n\
                M /dir/hard: size 10000 -> 5, content at byte 0\nA /new\n";
    differs(&clean, &dirty, &["--no-times"], want);
    assert!(fs::read(&dirty).unwrap() == before, "the image has changed");
}

/// Without the key names and blocks can be compared, with it the content.
#[test]
fn encrypted_files() {
    let scratch = Scratch::new();
    let Some(a) = scratch.image("a.img", 32, &["-O", "encrypt"]) else { skip!("no mke2fs") };
    let key = scratch.path("key");
    fs::write(&key, [5; 64]).unwrap();
    let with = |words: &[&OsStr]| {
        let key = [OsStr::new("--key"), key.as_os_str()];
        run([words, &key].concat())
    };
    let file = scratch.path("file");
    fs::write(&file, vec![6; 20_000]).unwrap();
    run_ok(["mkdir".into(), at(&a, "/secret")]);
    assert!(with(&["encrypt".as_ref(), &at(&a, "/secret")]).status.success());
    assert!(with(&["cp".as_ref(), file.as_ref(), &at(&a, "/secret/file")]).status.success());
    let b = copy(&scratch, &a, "b.img");
    same(&a, &b, &[]);
    let names = run_ok(["ls".into(), at(&b, "/secret")]);
    let path = format!("/secret/{}", String::from_utf8(names).unwrap().trim());
    flip(&b, &path, 9_000);
    differs(&a, &b, &[], &format!("M {path}: content\n"));
    let told = with(&["diff".as_ref(), a.as_ref(), b.as_ref()]).stdout;
    let told = String::from_utf8(told).unwrap();
    let byte = told.trim().strip_prefix("M /secret/file: content at byte ").expect(&told);
    assert!((8_192..=9_000).contains(&byte.parse().unwrap()), "{told}");
}

#[test]
fn trouble_is_told_and_ends() {
    let scratch = Scratch::new();
    let Some(a) = image(&scratch, &[]) else { skip!("no mke2fs or debugfs") };
    let missing = scratch.path("missing");
    assert_eq!(diff(&[a.as_os_str(), missing.as_os_str()], 2), "");
    assert_eq!(diff(&[a.as_os_str(), &at(&a, "/nothing")], 2), "");
    // Two directories that contain each other, twice.
    let b = copy(&scratch, &a, "b.img");
    debugfs(&b, &["ln dir dir/deep/up", "ln dir dir/deep/again"]);
    let output = run([OsStr::new("diff"), b.as_os_str(), b.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.lines().all(|line| line.contains("or a loop; run fsck")), "{said}");
}
