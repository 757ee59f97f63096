//! `uext4 cp` and the verbs round it: a tree with everything in it goes into an image and comes
//! back the same; e2fsck finds nothing.
//!
//! Not covered: owners and devices when the test does not run as root.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use common::{Scratch, assert_clean, at, run, run_fails, run_ok};

/// Feature sets that must all take the tree.
const FORMATS: [&[&str]; 4] = [
    &[],
    &["-O", "orphan_file,metadata_csum_seed"],
    &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    &["-I", "128", "-b", "2048"],
];

#[test]
fn a_tree_goes_in_and_comes_back() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    tree::make(&source);
    let want = tree::describe(&source);
    for (i, format) in FORMATS.iter().enumerate() {
        let Some(image) = scratch.image(&format!("image{i}"), 128, format) else {
            skip!("no mke2fs")
        };
        run_ok(["cp".into(), "-r".into(), source.clone().into_os_string(), at(&image, "/")]);
        assert_clean(&image);
        let back = scratch.path(format!("back{i}"));
        run_ok(["cp".into(), "-r".into(), at(&image, "/source"), back.clone().into_os_string()]);
        // Inodes of 128 bytes hold whole seconds up to 2038.
        if format.contains(&"128") {
            assert_eq!(tree::describe(&back).len(), want.len());
        } else {
            tree::assert_same(&want, &tree::describe(&back));
        }
        // Once more over what is there: files are replaced, directories merged.
        run_ok(["cp".into(), "-r".into(), source.clone().into_os_string(), at(&image, "/")]);
        assert_clean(&image);
        run_ok(["rm".into(), "-r".into(), at(&image, "/source")]);
        assert_clean(&image);
        let left = run_ok(["ls".into(), at(&image, "/")]);
        assert_eq!(left, b"lost+found\n");
        fs::remove_dir_all(&back).unwrap();
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn between_and_within_images() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    tree::make(&source);
    let want = tree::describe(&source);
    let Some(one) = scratch.image("one", 96, &[]) else { skip!("no mke2fs") };
    let two = scratch.image("two", 96, &["-b", "1024"]).unwrap();
    run_ok(["cp".into(), "-r".into(), source.into_os_string(), at(&one, "/a")]);
    run_ok(["cp".into(), "-r".into(), at(&one, "/a"), at(&one, "/b")]);
    run_ok(["cp".into(), "-r".into(), at(&one, "/b"), at(&two, "/c")]);
    let back = scratch.path("back");
    run_ok(["cp".into(), "-r".into(), at(&two, "/c"), back.clone().into_os_string()]);
    tree::assert_same(&want, &tree::describe(&back));
    assert_clean(&one);
    assert_clean(&two);
    run_fails(["cp".into(), at(&one, "/a/big"), at(&one, "/a/big")], "same file");
}

#[test]
fn destinations_follow_cp() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let dir = scratch.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), b"f").unwrap();
    let file = dir.join("f").into_os_string();
    run_ok(["mkdir".into(), "-p".into(), at(&image, "/x/y")]);
    run_ok(["cp".into(), file.clone(), at(&image, "/x/y")]);
    run_ok(["cp".into(), file.clone(), at(&image, "/x/renamed")]);
    run_ok(["cp".into(), "-r".into(), dir.join(".").into_os_string(), at(&image, "/x")]);
    run_fails(["cp".into(), file.clone(), at(&image, "/no/")], "not found");
    run_fails(["cp".into(), file.clone(), at(&image, "/no/where")], "not found");
    run_fails(["cp".into(), file.clone(), file.clone(), at(&image, "/x/f")], "not a directory");
    let listed = run_ok(["ls".into(), "-R".into(), at(&image, "/x")]);
    assert_eq!(listed, b"/x:\nf\nrenamed\ny\n\n/x/y:\nf\n");
    // Several out at once, into a directory.
    let out = scratch.path("out");
    fs::create_dir(&out).unwrap();
    let args = ["cp".into(), at(&image, "/x/f"), at(&image, "/x/renamed"), out.clone().into()];
    run_ok::<OsString>(args);
    assert_eq!(fs::read(out.join("renamed")).unwrap(), b"f");
    // -n leaves what is there.
    fs::write(out.join("f"), b"mine").unwrap();
    run_ok(["cp".into(), "-n".into(), at(&image, "/x/f"), out.clone().into_os_string()]);
    assert_eq!(fs::read(out.join("f")).unwrap(), b"mine");
    assert_clean(&image);
}

#[test]
fn a_copy_out_stays_in_its_target() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let source = scratch.path("t");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), b"from the image").unwrap();
    fs::write(source.join("name"), b"from the image").unwrap();
    run_ok(["cp".into(), "-r".into(), source.into_os_string(), at(&image, "/")]);
    // The target has links that lead out where the image has a directory and a file.
    let (out, outside) = (scratch.path("out"), scratch.path("outside"));
    fs::create_dir_all(out.join("t")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), b"untouched").unwrap();
    symlink(&outside, out.join("t/sub")).unwrap();
    symlink(outside.join("precious"), out.join("t/name")).unwrap();
    let args = ["cp".into(), "-r".into(), at(&image, "/t"), out.clone().into_os_string()];
    run_fails(args, "non-directory");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(outside.join("precious")).unwrap(), b"untouched");
    assert!(out.join("t/name").symlink_metadata().unwrap().is_file());
}

/// A script of the shell with `$U`, the command, and `$I`, an image that has `/f` with `from the
/// image`; it must succeed.
fn script(scratch: &Scratch, image: &std::path::Path, script: &str) {
    let command = std::env::var_os("UEXT4_COPIED").unwrap_or_else(|| common::UEXT4.into());
    let output = Command::new("timeout")
        .args(["-k", "5", "60", "bash", "-ec", script])
        .env("U", command)
        .env("I", image)
        .current_dir(scratch.dir.path())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {:?}: {said}", output.status);
}

fn with_f(scratch: &Scratch) -> Option<std::path::PathBuf> {
    let image = scratch.image("image", 16, &[])?;
    let file = scratch.path("f");
    fs::write(&file, b"from the image\n").unwrap();
    run_ok(["cp".into(), file.into_os_string(), at(&image, "/f")]);
    Some(image)
}

/// What a name on the command line leads to is written and stays what it is, as with cp(1). Fault
/// model: a link, a device or a fifo that is removed for a file.
#[test]
fn a_named_target_is_written_in_place() {
    let scratch = Scratch::new();
    let Some(image) = with_f(&scratch) else { skip!("no mke2fs") };
    let cases = [
        // A link to a file, and one inside of a named directory; longer content goes.
        "seq 1000 > end; ln -s end l; $U cp $I:/f l; test -L l; cmp end f",
        "seq 1000 > end; $U cp -r $I:/f l; test -L l; cmp end f",
        "mkdir d; ln -s ../end d/f; echo > end; $U cp $I:/f d; test -L d/f; cmp end f",
        // But not where a recursive copy could have made the link itself.
        "ln -sf ../end d/f; echo k > end; $U cp -r $I:/f d; test ! -L d/f; test $(cat end) = k",
        // A fifo, a pipe and a file by the name of standard output; a hole is zeros there.
        "mkfifo p; cat p > got & $U cp $I:/f p; wait $!; test -p p; cmp got f",
        "ln -s /dev/stdout out; $U cp $I:/f out | cmp - f; test -L out",
        "ln -s /proc/self/fd/1 out2; $U cp $I:/f out2 > got; test -L out2; cmp got f",
        "truncate -s 3M h; echo x >> h; truncate -s 5M h; $U cp h $I:/h; $U cp $I:/h out | cmp - h",
        // A regular file is replaced: its other names keep what they had.
        "echo old > a; ln a b; $U cp $I:/f a; cmp a f; test $(cat b) = old",
        "ln -sf /dev/null n; $U cp $I:/f n; test -L n -a -c /dev/null",
    ];
    for case in cases {
        script(&scratch, &image, case);
    }
    let path = |name: &str| scratch.path(name).into_os_string();
    symlink("nowhere", scratch.path("dangling")).unwrap();
    run_fails(["cp".into(), at(&image, "/f"), path("dangling")], "dangling: not writing through");
    assert!(!scratch.path("nowhere").exists());
    run_fails(["cp".into(), at(&image, "/f"), image.clone().into()], "an image of this command");
    // Messages name what could not be written.
    symlink("/dev/full", scratch.path("full")).unwrap();
    run_fails(["cp".into(), at(&image, "/f"), path("full")], "full: No space left");
    assert_clean(&image);
}

/// The same of devices that are the test's own, since the fault is to remove them.
#[test]
fn devices_are_never_removed() {
    if !common::is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let Some(image) = with_f(&scratch) else { skip!("no mke2fs") };
    script(&scratch, &image, "mkdir -p t dev s; mknod dev/null c 1 3; mknod dev/b b 7 250");
    let path = |name: &str| scratch.path(name).into_os_string();
    script(&scratch, &image, "$U cp $I:/f dev/null; test -c dev/null");
    run_fails(["cp".into(), at(&image, "/f"), path("dev/b")], "dev/b: is a block device");
    script(&scratch, &image, "test -b dev/b; mkfifo s/fifo; ln -s ../dev/null dev/l");
    run_ok(["cp".into(), "-r".into(), path("s"), at(&image, "/")]);
    run_fails(["cp".into(), at(&image, "/s/fifo"), path("dev/l")], "dev/l: is a symbolic link");
    run_fails(["cp".into(), at(&image, "/s/fifo"), path("dev/null")], "a character device");
    // In a tree neither written nor removed.
    run_ok(["mkdir".into(), at(&image, "/dev")]);
    run_ok(["cp".into(), path("f"), at(&image, "/dev/null")]);
    let tree = ["cp".into(), "-r".into(), at(&image, "/dev"), scratch.dir.path().into()];
    run_fails::<OsString>(tree, "dev/null: is a character device");
    script(&scratch, &image, "test -c dev/null -a -b dev/b -a -L dev/l");
}

/// What cp(1) reads to its end is read to its end. Fault model: a name that a canonical path does
/// not lead to, a copy of a fifo in place of its bytes.
#[test]
fn pipes_and_devices_are_read() {
    let scratch = Scratch::new();
    let Some(image) = with_f(&scratch) else { skip!("no mke2fs") };
    let cases = [
        "echo x | $U cp /dev/stdin $I:/a; test $($U cat $I:/a) = x",
        "$U cp <(echo a) $I:/b; test $($U cat $I:/b) = a",
        "mkfifo p; seq 300000 > p & $U cp p $I:/c; seq 300000 | cmp - <($U cat $I:/c)",
        "$U cp /dev/null $I:/d; test -z \"$($U cat $I:/d)\"",
        "$U cp /dev/stdin $I:/e < f; $U cat $I:/e | cmp - f",
        "$U cp /dev/stdin $I:/e <<< here; test $($U cat $I:/e) = here",
        // Kept as it is where trees are copied.
        "$U cp -r p $I:/p; $U stat --json $I:/p | grep -q fifo",
    ];
    for case in cases {
        script(&scratch, &image, case);
    }
    assert_clean(&image);
}

#[test]
fn verbs_that_read_leave_the_image_alone() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let file = scratch.path("file");
    fs::write(&file, b"content").unwrap();
    run_ok(["cp".into(), file.into_os_string(), at(&image, "/file")]);
    let before = (fs::read(&image).unwrap(), image.metadata().unwrap().mtime_nsec());
    assert_eq!(run_ok(["cat".into(), at(&image, "/file")]), b"content");
    run_ok(["ls".into(), "-laR".into(), at(&image, "/")]);
    run_ok(["stat".into(), at(&image, "/file")]);
    run_ok(["info".into(), image.clone().into_os_string()]);
    let out = scratch.path("out").into_os_string();
    run_ok(["cp".into(), "-r".into(), at(&image, "/"), out]);
    let after = (fs::read(&image).unwrap(), image.metadata().unwrap().mtime_nsec());
    assert!(before == after, "the image changed");
}

#[test]
fn small_verbs() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let inside = |path: &str| at(&image, path);
    run_ok(["mkdir".into(), "-m".into(), "1750".into(), inside("/d")]);
    run_ok(["mkdir".into(), "-p".into(), inside("/d/e/f"), inside("/d/e/f")]);
    let file = scratch.path("file");
    fs::write(&file, b"12345").unwrap();
    run_ok(["cp".into(), file.into_os_string(), inside("/d/e/file")]);
    run_ok(["mv".into(), inside("/d/e/file"), inside("/d/other")]);
    run_ok(["mv".into(), inside("/d/other"), inside("/d/e")]);
    assert_eq!(run_ok(["cat".into(), inside("/d/e/other")]), b"12345");
    run_fails(["mv".into(), inside("/d"), inside("/d/e")], "into itself");
    let long = String::from_utf8(run_ok(["ls".into(), "-ld".into(), inside("/d")])).unwrap();
    assert!(long.starts_with("drwxr-x--T 3 "), "{long}");
    let json = run_ok(["stat".into(), "--json".into(), inside("/d/e/other")]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json[0]["size"], 5);
    assert_eq!(json[0]["kind"], "file");
    let json = run_ok(["ls".into(), "--json".into(), inside("/d/e")]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json[0]["entries"][0]["name"], "f");
    run_ok(["rm".into(), "-f".into(), inside("/none")]);
    run_ok(["rm".into(), "-d".into(), inside("/d/e/f")]);
    run_fails(["rm".into(), "-d".into(), inside("/d")], "not empty");
    run_ok(["rm".into(), "-r".into(), inside("/d")]);
    assert_clean(&image);
}

#[test]
fn info_reads_as_dumpe2fs() {
    let scratch = Scratch::new();
    for (i, format) in FORMATS.iter().enumerate() {
        let Some(image) = scratch.image(&format!("image{i}"), 128, format) else {
            skip!("no mke2fs")
        };
        let theirs = common::system("dumpe2fs").env("TZ", "UTC").arg(&image).output().unwrap();
        let ours = run_ok(["info".into(), image.into_os_string()]);
        assert_eq!(rows(&ours), rows(&theirs.stdout));
    }
}

/// Descriptors in meta groups, clusters, backups: every fixed structure is where dumpe2fs finds it,
/// and the checker finds nothing.
#[test]
fn fixed_structures_are_where_dumpe2fs_finds_them() {
    if !common::has("dumpe2fs") {
        skip!("no dumpe2fs");
    }
    let scratch = Scratch::new();
    for options in [
        "-b 1024 -O bigalloc,meta_bg,^resize_inode",
        "-b 1024 -O bigalloc",
        "-b 1024 -g 4096 -C 2048 -O bigalloc,meta_bg,^resize_inode",
        "-b 1024 -g 4096 -C 2048 -O bigalloc,meta_bg,sparse_super2,^resize_inode",
        "-b 1024 -g 4096 -C 2048 -O bigalloc,meta_bg,^flex_bg,^resize_inode",
        "-b 1024 -g 1024 -O meta_bg,^flex_bg,^resize_inode",
        "-b 1024 -g 1024 -O meta_bg,sparse_super2,^resize_inode",
        "-b 1024 -O sparse_super2,^resize_inode",
        "-b 2048 -g 1024 -C 4096 -O bigalloc,meta_bg,^resize_inode",
        "-b 2048 -g 1024 -O meta_bg,^resize_inode",
        "-b 4096 -g 2048 -C 8192 -O bigalloc,meta_bg,^resize_inode",
        "-b 4096 -g 2048 -C 8192 -O bigalloc,^flex_bg",
        "-b 4096 -g 512 -O meta_bg,^resize_inode",
    ] {
        println!("{options}");
        let words: Vec<&str> = options.split(' ').collect();
        let Some(image) = scratch.image("image", 256, &words) else { skip!("no mke2fs") };
        let theirs = common::system("dumpe2fs").env("TZ", "UTC").arg(&image).output().unwrap();
        let ours = run_ok(["info".as_ref(), image.as_os_str()]);
        assert_eq!(rows(&ours), rows(&theirs.stdout));
        assert_clean(&image);
        fs::remove_file(image).unwrap();
    }
}

/// Lines without the lists of free blocks and inodes, and without differences of white space.
fn rows(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text)
        .lines()
        .filter(|line| !line.starts_with("  Free "))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn a_full_image_is_told_and_stays_whole() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 8, &["-O", "^has_journal"]) else {
        skip!("no mke2fs")
    };
    drop(fs::remove_file(&image));
    let image = scratch.image("image", 16, &["-J", "size=4"]).unwrap();
    let big = scratch.path("big");
    fs::write(&big, vec![1; 20 << 20]).unwrap();
    let output = run(["cp".into(), big.into_os_string(), at(&image, "/big")]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(stderr.contains("no space"), "{stderr}");
    assert_clean(&image);
    // No half of it is left.
    run_fails(["cat".into(), at(&image, "/big")], "not found");
    let small = scratch.path("small");
    fs::write(&small, b"fits").unwrap();
    run_ok(["cp".into(), small.into_os_string(), at(&image, "/small")]);
    assert_clean(&image);
}

/// Set-id bits come out of an image where owner and group are the image's, and nowhere else. Fault
/// model: a right that is lost by its owner's own copy, or won by another's. cp(1) is the measure.
#[test]
fn set_id_bits_come_out_for_their_owner_alone() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    for path in [scratch.dir.path(), &source] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    fs::set_permissions(&image, fs::Permissions::from_mode(0o666)).unwrap();
    let owners = [("own", 65_534, 65_534), ("group", 65_534, 4242), ("roots", 0, 0)];
    for (name, uid, gid) in owners {
        let path = source.join(name);
        fs::write(&path, b"x").unwrap();
        std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    }
    run_ok(["cp".into(), "-r".into(), source.clone().into_os_string(), at(&image, "/")]);
    let copy = |groups: &str, words: &[&OsStr]| {
        let mut command = Command::new("setpriv");
        let output = command
            .args(["--reuid=65534", "--regid=65534", groups])
            .args(words)
            .current_dir(&scratch.dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let program = scratch.path("uext4");
    fs::copy(common::UEXT4, &program).unwrap();
    let modes = |dir: &str| {
        let owned = owners.map(|(name, ..)| scratch.path(dir).join(name).metadata().unwrap());
        owned.map(|meta| (meta.mode() & 0o7777, meta.uid(), meta.gid()))
    };
    for (round, groups) in ["--clear-groups", "--groups=4242"].iter().enumerate() {
        let (ours, theirs) = (format!("ours{round}"), format!("theirs{round}"));
        let inside = at(&image, "/source");
        let word = OsStr::new;
        copy(groups, &[program.as_os_str(), word("cp"), word("-r"), &inside, word(&ours)]);
        copy(groups, &[word("cp"), word("-a"), source.as_os_str(), word(&theirs)]);
        assert_eq!(modes(&ours), modes(&theirs), "{groups}");
        assert_eq!(modes(&ours)[0].0, 0o6755);
        assert_eq!(modes(&ours)[2].0, 0o755);
    }
}
