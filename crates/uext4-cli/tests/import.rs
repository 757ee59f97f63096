//! `uext4 import`: archives of every form and directories go into an image whole, and what a
//! hostile archive holds stays within the target.
//!
//! Fault model: an attribute, a link or a hole that is lost; an entry that is done before what it
//! depends on, also by another spelling of its name; a name that leads out of the target, by `..`,
//! by a slash or through a symbolic link; an archive that ends early.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Scratch, as_nobody, assert_clean, at, is_root, run, run_fails, run_ok};

/// An image with features that importing can need.
fn image(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.path(name);
    run_ok(["mkfs".as_ref(), "-q".as_ref(), path.as_os_str(), "128M".as_ref()]);
    path
}

fn tar(dir: &Path, archive: &Path, options: &[&str]) {
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(archive).arg("-C").arg(dir).args(options).arg(".");
    let output = tar.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The command with a file at its standard input.
fn run_with_input(input: &Path, args: &[&OsStr]) {
    let output = Command::new(common::UEXT4)
        .args(args)
        .stdin(Stdio::from(File::open(input).unwrap()))
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// What is in a directory of an image, copied out and looked at.
fn described(
    scratch: &Scratch,
    image: &Path,
    dir: &str,
) -> std::collections::BTreeMap<PathBuf, String> {
    let out = scratch.path("out");
    run_ok(["cp".into(), "-rT".into(), at(image, dir), out.clone().into_os_string()]);
    let found = tree::describe(&out);
    fs::remove_dir_all(&out).unwrap();
    found
}

#[test]
fn archives_of_every_form_come_in_whole() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    tree::make(&source);
    let want = tree::describe(&source);
    let image = image(&scratch, "image");
    for (number, (name, options)) in [
        ("a.tar", &["--format=posix", "--xattrs", "--acls", "--sparse"][..]),
        ("a.tar.gz", &["--format=posix", "--xattrs", "--sparse", "--gzip"]),
        ("a.tar.zst", &["--format=posix", "--xattrs", "--sparse-version=0.1", "-S", "--zstd"]),
        ("unnamed", &["--format=posix", "--xattrs", "--sparse", "--xz"]),
    ]
    .into_iter()
    .enumerate()
    {
        let archive = scratch.path(name);
        tar(&source, &archive, options);
        let dir = format!("/{number}");
        let target = at(&image, &dir);
        if number % 2 == 0 {
            run_ok(["import".as_ref(), archive.as_os_str(), &target]);
        } else {
            run_with_input(&archive, &["import".as_ref(), "-".as_ref(), &target]);
        }
        // Once more over what is there.
        let alone: [&OsStr; 3] = ["import".as_ref(), "--threads=1".as_ref(), archive.as_os_str()];
        run_ok(alone.into_iter().chain([target.as_os_str()]));
        tree::assert_same(&want, &described(&scratch, &image, &dir));
        assert_clean(&image);
        run_ok(["rm".into(), "-r".into(), target]);
    }
}

#[test]
fn a_directory_comes_in_whole() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    tree::make(&source);
    let image = image(&scratch, "image");
    run_ok(["import".into(), source.clone().into_os_string(), at(&image, "/")]);
    run_ok(["rm".into(), "-r".into(), at(&image, "/lost+found")]);
    let root: &OsStr = source.as_os_str();
    run_ok(["import".as_ref(), root, image.as_os_str()]);
    tree::assert_same(&tree::describe(&source), &described(&scratch, &image, "/"));
    assert_clean(&image);
    run_ok(["import".into(), source.into_os_string(), at(&image, "/new")]);
    run_fails(["import".as_ref(), "/nonexistent".as_ref(), image.as_os_str()], "No such file");
}

/// The image lies in what is imported into it.
#[test]
fn the_image_does_not_go_into_itself() {
    let scratch = Scratch::new();
    let image = image(&scratch, "image");
    fs::write(scratch.path("file"), b"x").unwrap();
    let dir = scratch.dir.path().as_os_str();
    let output = run(["import".as_ref(), dir, image.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("image: is an image"), "{output:?}");
    assert_eq!(run_ok(["ls".into(), at(&image, "/")]), b"file\nlost+found\n");
}

/// An archive as no program writes it: names, kinds, targets of links and contents.
fn archive(path: &Path, members: &[(&str, char, &str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, target, content) in members {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, "0000644");
        put(108, "0001750");
        put(116, "0001751");
        put(124, &format!("{:011o}", content.len()));
        put(136, "00000001234");
        put(148, "        ");
        put(156, &kind.to_string());
        put(157, target);
        put(257, "ustar\x0000");
        put(265, "worker");
        put(297, "staff");
        // A device of the host's first disk.
        put(329, "0000010");
        put(337, "0000000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        bytes.extend(header);
        bytes.extend(*content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(path, &bytes).unwrap();
    bytes
}

/// Each entry that leads out is refused in one line; those beside it are made.
#[test]
fn nothing_leaves_the_target() {
    let scratch = Scratch::new();
    let image = image(&scratch, "image");
    run_ok(["mkdir".into(), "-p".into(), at(&image, "/etc"), at(&image, "/t")]);
    let (hostile, target) = (scratch.path("hostile.tar"), at(&image, "/t"));
    archive(
        &hostile,
        &[
            ("/etc/absolute", '0', "", b"x"),
            ("../etc/above", '0', "", b"x"),
            ("a/../../etc/above", '0', "", b"x"),
            ("out", '2', "/etc", b""),
            ("out/through", '0', "", b"x"),
            ("out/dir", '5', "", b""),
            ("out/deep/er", '2', "x", b""),
            ("shadow", '1', "../etc/shadow", b""),
            ("passwd", '1', "out/passwd", b""),
            ("root", '1', ".", b""),
            ("disk", '4', "", b""),
            ("good", '0', "", b"good"),
        ],
    );
    let output = run(["import".as_ref(), hostile.as_os_str(), &target]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for (line, want) in said.lines().zip([
        "etc/absolute: has an absolute name; refused without --absolute-names",
        "../etc/above: has '..' in its name",
        "a/../../etc/above: has '..' in its name",
        "out/through: 'out' is a symbolic link, which is not followed without --follow-links",
        "out/dir: 'out' is a symbolic link",
        "out/deep/er: 'out' is a symbolic link",
        "shadow: is a hard link to a file that has '..'",
        "passwd: links to 'out/passwd': 'out' is a symbolic link",
        "root: is a hard link to the target directory",
    ]) {
        assert!(line.starts_with("uext4: import: ") && line.contains(want), "{line}\n{want}");
    }
    assert_eq!(said.lines().count(), 9, "{said}");
    assert_eq!(run_ok(["ls".into(), at(&image, "/etc")]), b"");
    assert_eq!(run_ok(["ls".into(), target.clone()]), b"disk\ngood\nout\n");
    // The options that allow it; the root of the image is never left.
    let allowed = ["--absolute-names", "--follow-links"].map(OsString::from);
    let words = [OsString::from("import")].into_iter().chain(allowed);
    let output = run(words.chain([hostile.into_os_string(), target]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run_ok(["ls".into(), at(&image, "/etc")]), b"deep\ndir\nthrough\n");
    assert_eq!(run_ok(["cat".into(), at(&image, "/t/etc/absolute")]), b"x");
    assert_clean(&image);
}

/// Of several entries of one name the last one counts, whatever threads do meanwhile.
#[test]
fn the_last_entry_of_a_name_counts() {
    let scratch = Scratch::new();
    let image = image(&scratch, "image");
    let twice = scratch.path("twice.tar");
    let names: Vec<String> = (0..200).map(|number| format!("d/{number}")).collect();
    let mut members: Vec<(&str, char, &str, &[u8])> = Vec::new();
    for name in &names {
        members.push((name, '0', "", b"first"));
    }
    for name in &names {
        members.push((name, '0', "", b"last"));
        // A file gives way to a directory, and that to a link.
        members.push(("x", '0', "", b"file"));
        members.push(("x", '5', "", b""));
        members.push(("x", '2', "d", b""));
        members.push(("y", '1', name, b""));
    }
    members.push(("full/x", '0', "", b""));
    members.push(("full", '0', "", b""));
    archive(&twice, &members);
    let why = "full: is a directory with files in it; not replaced";
    run_fails(["import".as_ref(), twice.as_os_str(), &at(&image, "/")], why);
    for name in &names {
        assert_eq!(run_ok(["cat".into(), at(&image, &format!("/{name}"))]), b"last");
    }
    // Without a link in between: only the names themselves are waited for.
    let contents: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let files = |content| {
        let all = names[..100].iter();
        all.map(move |name| (&**name, '0', "", str::as_bytes(content)))
    };
    let members: Vec<(&str, char, &str, &[u8])> =
        contents.iter().flat_map(|content| files(content)).collect();
    archive(&twice, &members);
    let words = ["import".as_ref(), "--threads=8".as_ref(), twice.as_os_str()];
    run_ok(words.into_iter().chain([at(&image, "/").as_os_str()]));
    let files = names[..100].iter().map(|name| at(&image, &format!("/{name}")));
    assert_eq!(run_ok([OsString::from("cat")].into_iter().chain(files)), b"99".repeat(100));
    let listed = run_ok(["stat".into(), at(&image, "/y"), at(&image, "/x")]);
    let listed = String::from_utf8_lossy(&listed).into_owned();
    assert!(listed.contains("Links: 2") && listed.contains("symbolic link"), "{listed}");
    assert_clean(&image);
}

/// A name may be spelled in two ways: where case is folded, and by a link that is followed.
#[test]
fn spellings_of_one_name_are_one_name() {
    let scratch = Scratch::new();
    let (image, spelled) = (scratch.path("image"), scratch.path("spelled.tar"));
    run_ok(
        ["mkfs", "-q", "-E", "encoding=utf8"]
            .map(OsStr::new)
            .into_iter()
            .chain([image.as_os_str(), "64M".as_ref()]),
    );
    run_ok(["mkdir".into(), "-p".into(), at(&image, "/d"), at(&image, "/usr/bin")]);
    run_ok(["chattr".into(), "+F".into(), at(&image, "/d")]);
    run_ok(["ln".into(), "-s".into(), "usr/bin".into(), at(&image, "/bin")]);
    let large = vec![b'l'; 300 << 10];
    let names: Vec<[String; 5]> = (0..20)
        .map(|number| ["d/A", "d/a", "usr/bin/", "bin/", "y"].map(|name| format!("{name}{number}")))
        .collect();
    let mut members: Vec<(&str, char, &str, &[u8])> = Vec::new();
    for [upper, lower, direct, linked, other] in &names {
        // The small one would wait in the queue, while the large one is made at once.
        members.push((upper, '0', "", b"small"));
        members.push((lower, '0', "", &large));
        members.push((direct, '0', "", b"first"));
        members.push((linked, '0', "", b"last"));
        members.push((other, '1', linked, b""));
    }
    // Directories that give way, with other files of theirs in the queue.
    members.extend([("d/G", '5', "", &b""[..]), ("d/g", '0', "", b"file")]);
    members.extend([("bin/e", '5', "", &b""[..]), ("usr/bin/e", '0', "", b"file")]);
    members.extend([("usr/bin/e", '5', "", &b""[..]), ("bin/e/x", '0', "", b"below")]);
    archive(&spelled, &members);
    let words = ["import".as_ref(), "--follow-links".as_ref(), spelled.as_os_str()];
    run_ok(words.into_iter().chain([image.as_os_str()]));
    for [_, lower, direct, _, other] in &names {
        assert!(run_ok(["cat".into(), at(&image, &format!("/{lower}"))]) == large, "{lower}");
        assert_eq!(run_ok(["cat".into(), at(&image, &format!("/{direct}"))]), b"last");
        assert_eq!(run_ok(["cat".into(), at(&image, &format!("/{other}"))]), b"last");
    }
    assert_eq!(run_ok(["cat".into(), at(&image, "/d/G")]), b"file");
    assert_eq!(run_ok(["cat".into(), at(&image, "/usr/bin/e/x")]), b"below");
    assert_clean(&image);
}

/// A hard link to what is not there makes nothing on the way to it.
#[test]
fn a_refused_hard_link_makes_nothing() {
    let scratch = Scratch::new();
    let (image, linked) = (image(&scratch, "image"), scratch.path("linked.tar"));
    archive(&linked, &[("name", '1', "no/such/file", b""), ("good", '0', "", b"x")]);
    let words = ["import".as_ref(), linked.as_os_str(), image.as_os_str()];
    run_fails(words, "name: links to 'no/such/file': 'no' is not there");
    assert_eq!(run_ok(["ls".into(), at(&image, "/")]), b"good\nlost+found\n");
}

/// What came whole is there, and nothing of the rest.
#[test]
fn a_truncated_archive_is_told() {
    let scratch = Scratch::new();
    let image = image(&scratch, "image");
    let whole = scratch.path("whole.tar");
    let large = vec![7; 1 << 20];
    let small = vec![8; 5000];
    let members: [(&str, char, &str, &[u8]); 3] =
        [("first", '0', "", &small), ("large", '0', "", &large), ("last", '0', "", &small)];
    let bytes = archive(&whole, &members);
    let cut = scratch.path("cut.tar");
    for (len, there) in [
        (512 + 5120, "first"),
        (512 + 5120 + 512 + (1 << 19), "first"),
        (512 + 5120 + 512 + (1 << 20) + 600, "first\nlarge"),
        (512 + 5120 + 512 + (1 << 20) + 512 + 5120, "first\nlarge\nlast"),
    ] {
        fs::write(&cut, &bytes[..len]).unwrap();
        let target = at(&image, &format!("/{len}"));
        run_fails(["import".as_ref(), cut.as_os_str(), &target], "archive is truncated after");
        let listed = run(["ls".into(), target]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert_eq!(listed.trim_end(), there, "{len}");
    }
    run_fails(["import".as_ref(), "/dev/null".as_ref(), image.as_os_str()], "is empty");
    for len in [100, 4096] {
        fs::write(&cut, vec![b'x'; len]).unwrap();
        run_fails(["import".as_ref(), cut.as_os_str(), image.as_os_str()], "is not a tar archive");
    }
    assert_clean(&image);
}

/// One line, and the image is consistent.
#[test]
fn a_full_image_ends_it() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    run_ok(["mkfs".as_ref(), "-q".as_ref(), image.as_os_str(), "4M".as_ref()]);
    let large = scratch.path("large.tar");
    let content = vec![9; 100_000];
    let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let members: Vec<_> = names.iter().map(|name| (&**name, '0', "", &content[..])).collect();
    archive(&large, &members);
    run_fails(["import".as_ref(), large.as_os_str(), image.as_os_str()], "No space left");
    assert_clean(&image);
}

/// What is there stays where nothing can take its place.
#[test]
fn a_full_image_keeps_what_it_has() {
    let scratch = Scratch::new();
    let (image, source) = (scratch.path("image"), scratch.path("source"));
    let make = |size: usize| {
        let _ = fs::remove_dir_all(&source);
        fs::create_dir_all(source.join("dir")).unwrap();
        for number in 0..40 {
            fs::write(source.join(format!("dir/{number:02}")), vec![b'x'; size]).unwrap();
        }
    };
    run_ok(["mkfs".as_ref(), "-q".as_ref(), image.as_os_str(), "4M".as_ref()]);
    make(1000);
    let words = ["import".as_ref(), source.as_os_str(), image.as_os_str()];
    run_ok(words);
    make(1 << 20);
    let output = run(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("/dir/") && said.contains("no space left"), "{said}");
    let listed = run_ok(["ls".into(), "-l".into(), at(&image, "/dir")]);
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let files = listed.lines().count() - 1;
    let sizes = listed.lines().filter(|line| line.contains(" 1000 ")).count();
    let large = listed.lines().filter(|line| line.contains(" 1048576 ")).count();
    // One is lost: what is new is written where the old one was.
    assert!(large < 4 && sizes + large == 39 && files == 39, "{listed}");
    // Several operands of cp, too.
    let files = (10..20).map(|number| source.join(format!("dir/{number}")).into_os_string());
    let words = [OsString::from("cp")].into_iter().chain(files).chain([at(&image, "/dir")]);
    let output = run(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    let listed = run_ok(["ls".into(), at(&image, "/dir")]);
    assert_eq!(listed.iter().filter(|byte| **byte == b'\n').count(), 38);
    assert_clean(&image);
}

/// An archive whose files have more attributes than an inode can have.
fn extended(path: &Path, files: &[(&str, usize)]) {
    let mut bytes = Vec::new();
    for (name, attributes) in files {
        let mut records = Vec::new();
        for number in 0..*attributes {
            let text = format!(" SCHILY.xattr.user.{number:04}={}\n", "v".repeat(100));
            let len = text.len() + 3;
            records.extend(format!("{len}{text}").into_bytes());
        }
        let members: [(&str, char, &str, &[u8]); 2] =
            [("pax", 'x', "", &records), (name, '0', "", b"content")];
        let mut one = archive(path, &members);
        one.truncate(one.len() - 1024);
        bytes.extend(one);
    }
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(path, bytes).unwrap();
}

/// They are lost, and the others are not.
#[test]
fn too_many_attributes_end_one_file_alone() {
    let scratch = Scratch::new();
    let (image, many) = (image(&scratch, "image"), scratch.path("many.tar"));
    extended(&many, &[("a", 2), ("b", 100), ("c", 100), ("d", 2)]);
    let words = ["import".as_ref(), "--threads=1".as_ref(), many.as_os_str(), image.as_os_str()];
    let output = run(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains("/b: attribute user.") && said.contains("/c: attribute user."), "{said}");
    assert_eq!(run_ok(["ls".into(), at(&image, "/")]), b"a\nd\nlost+found\n");
    assert_clean(&image);
}

/// A directory that is there gets the access lists of the archive, which may be none.
#[test]
fn a_directory_loses_the_lists_that_an_archive_has_not() {
    let scratch = Scratch::new();
    let (image, source) = (image(&scratch, "image"), scratch.path("source"));
    fs::create_dir_all(source.join("dir")).unwrap();
    let mut set = common::system("setfacl");
    let set = set.args(["-m", "u:5:rwx,d:u:5:rwx"]).arg(source.join("dir")).output();
    if !set.is_ok_and(|output| output.status.success()) {
        skip!("no access lists here");
    }
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    let listed = || run_ok(["xattr".into(), "list".into(), at(&image, "/dir")]);
    assert!(!listed().is_empty());
    let without = scratch.path("without.tar");
    archive(&without, &[("dir", '5', "", b""), ("dir/file", '0', "", b"x")]);
    run_ok(["import".as_ref(), without.as_os_str(), image.as_os_str()]);
    assert!(listed().is_empty());
    assert_clean(&image);
}

/// An ordinary user's image has the owners of the archive, by name if it has names.
#[test]
fn owners_are_in_the_image_alone() {
    if is_root() {
        return as_nobody("owners_are_in_the_image_alone");
    }
    let scratch = Scratch::new();
    let image = image(&scratch, "image");
    let owned = scratch.path("owned.tar");
    archive(&owned, &[("file", '0', "", b"x"), ("null", '3', "", b"")]);
    let owner = |dir: &str| {
        let listed = run_ok(["stat".into(), "--json".into(), at(&image, &format!("{dir}/file"))]);
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let number = |key: &str| {
            let rest = listed.split(&format!("\"{key}\": ")).nth(1).unwrap();
            rest.split([',', '\n']).next().unwrap().to_owned()
        };
        format!("{}:{}", number("uid"), number("gid"))
    };
    let import = |options: &[&str], dir: &str| {
        let words = ["import"].iter().chain(options).map(OsString::from);
        run_ok(words.chain([owned.clone().into_os_string(), at(&image, dir)]));
        owner(dir)
    };
    assert_eq!(import(&[], "/numbers"), "1000:1001");
    let mut passwd = File::create(scratch.path("passwd")).unwrap();
    passwd.write_all(b"root:x:0:0::/:\nworker:x:77:5::/:/bin/sh\n").unwrap();
    fs::write(scratch.path("group"), b"staff:x:88:\n").unwrap();
    run_ok(["mkdir".into(), at(&image, "/etc")]);
    for name in ["passwd", "group"] {
        run_ok(["cp".into(), scratch.path(name).into_os_string(), at(&image, "/etc/")]);
    }
    assert_eq!(import(&[], "/names"), "77:88");
    assert_eq!(import(&["--numeric"], "/numeric"), "1000:1001");
    assert_eq!(import(&["--numeric", "--map-owner", "1000:0:2"], "/range"), "0:1");
    assert_eq!(import(&["--map-owner=u:77:5", "--map-owner=*:6"], "/rules"), "5:6");
    let dir = scratch.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), b"x").unwrap();
    let target = at(&image, "/dir");
    run_ok(["import".into(), "--map-owner=*:0".into(), dir.into_os_string(), target]);
    assert_eq!(owner("/dir"), "0:0");
    assert_clean(&image);
}
