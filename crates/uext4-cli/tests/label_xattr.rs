//! `label` and `xattr`, beside e2label(8), getfattr(1) and setfattr(1) on the kernel's mount.
//!
//! Fault model: a label that is not in the superblock or in one of its backups, or has no checksum;
//! an attribute left out, told under another name or with other bytes; a dump that the other
//! program reads as something else; a form of a value that is taken for another. Crashes
//! after a change of a label: `label.rs` of the engine.

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::kernel::Kernel;
use common::{Scratch, UEXT4, assert_clean, at, has, run, run_fails, run_ok, shell, system};

fn xattr(action: &str, words: &[&OsStr]) -> Vec<u8> {
    run_ok([OsStr::new("xattr"), OsStr::new(action)].into_iter().chain(words.iter().copied()))
}

#[test]
fn labels_are_those_of_e2label() {
    let scratch = Scratch::new();
    let small = ["-b", "1024", "-g", "1024", "-L", "first"];
    let Some(image) = scratch.image("image", 16, &small) else { skip!("no mke2fs") };
    let label = |words: &[&str]| {
        let all = [OsStr::new("label"), image.as_os_str()].into_iter();
        run_ok(all.chain(words.iter().map(OsStr::new)))
    };
    let theirs = || system("e2label").arg(&image).output().unwrap().stdout;
    assert_eq!(label(&[]), b"first\n");
    for new in ["sixteen bytes ok", "x", "", "root"] {
        assert_eq!(label(&[new]), b"");
        assert_eq!(label(&[]), format!("{new}\n").as_bytes());
        assert_eq!(theirs(), format!("{new}\n").as_bytes());
    }
    assert_clean(&image);
    // Group 1 begins behind block 0, which no group has: a backup of the superblock.
    let at_backup = ["-o", "superblock=1025", "-o", "blocksize=1024", "-h"];
    let backup = system("dumpe2fs").args(at_backup).arg(&image).output().unwrap();
    let backup = String::from_utf8_lossy(&backup.stdout).into_owned();
    assert!(backup.contains("Filesystem volume name:   root"), "{backup}");
    let json = run_ok([OsStr::new("label"), OsStr::new("--json"), image.as_os_str()]);
    assert_eq!(json, b"{\n  \"label\": \"root\"\n}\n");
    let bytes = fs::read(&image).unwrap();
    let too_long = [OsStr::new("label"), image.as_os_str(), OsStr::new("seventeen bytes !")];
    run_fails(too_long, "at most 16 bytes");
    assert_eq!(label(&[]), b"root\n");
    assert!(fs::read(&image).unwrap().len() == bytes.len());
}

/// Attributes of every namespace and of odd names and values, on the tree of an image.
const ATTRIBUTES: &str = "
    mkdir -p d/e; : >d/file; ln -s file d/link; : >\"d/new
line\"
    setfattr -n user.text -v 'a \"text\" \\ of' d/file
    setfattr -n user.empty d/file
    setfattr -n user.binary -v 0x00ff0a0d d/file
    setfattr -n user.line -v \"$(printf 'one line and\\ntwo lines of it')\" d/file
    setfattr -n user.na=me -v 1 d/e; setfattr -n user.z -v z \"d/new
line\"
    setfattr -n trusted.t -v t d/e; setfattr -n security.s -v s d/e
    setfattr -h -n trusted.link -v l d/link";

/// Sets an access list with a named user in the form of xattr(7), where setfacl may be missing.
const ACL: &str = "0x02000000 01000600ffffffff 0200040039300000 04000400ffffffff \
    10000600ffffffff 20000000ffffffff";

/// The records of a dump by path, whatever their order.
fn records(dump: &[u8]) -> Vec<String> {
    let mut all: Vec<String> = String::from_utf8_lossy(dump)
        .split("\n\n")
        .filter(|record| !record.is_empty())
        .map(|record| {
            let mut lines: Vec<&str> = record.lines().collect();
            lines[1..].sort_unstable();
            lines.join("\n")
        })
        .collect();
    all.sort();
    all
}

fn getfattr(dir: &Path) -> Vec<String> {
    getfattr_by(dir, &["-h"])
}

fn getfattr_by(dir: &Path, words: &[&str]) -> Vec<String> {
    let all = words.iter().chain(&["-R", "-d", "-m", "-", "d"]);
    let output = system("getfattr").args(all).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    records(&output.stdout)
}

#[test]
fn a_dump_is_that_of_getfattr() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    if !has("getfattr") || !has("setfattr") {
        skip!("no getfattr");
    }
    let dir = scratch.path("mnt");
    let Some(mounted) = Kernel::mount(&image, &dir) else { skip!("no loop mount") };
    shell(ATTRIBUTES, &dir);
    let theirs = getfattr(&dir);
    drop(mounted);
    // An access list that the engine makes is one that the kernel reads.
    let file = at(&image, "/d/file");
    let name = OsStr::new("system.posix_acl_access");
    xattr("set", &[&file, name, OsStr::new(ACL)]);
    let top = at(&image, "/d");
    let dump = xattr("dump", &["-h".as_ref(), "-R".as_ref(), &top]);
    let followed = xattr("dump", &["-R".as_ref(), &top]);
    let (kernels, kernels_followed) = {
        let _mounted = Kernel::mount(&image, &dir).unwrap();
        (getfattr(&dir), getfattr_by(&dir, &[]))
    };
    assert_eq!(records(&dump), kernels);
    // The attributes of a link would be restored to what it leads to.
    assert_eq!(records(&followed), kernels_followed);
    assert_ne!(kernels, kernels_followed);
    assert!(kernels.concat().contains("system.posix_acl_access=0sAgAAAAEABgD"), "{kernels:?}");
    assert_eq!(theirs.len(), kernels.len());
    restored_by_both(&scratch, &image, &dump, &kernels);
}

/// A dump is restored by uext4 on one image and by setfattr on the kernel's mount of another.
fn restored_by_both(scratch: &Scratch, image: &Path, dump: &[u8], kernels: &[String]) {
    let copies = ["ours", "theirs"].map(|name| scratch.path(name));
    let dir = scratch.path("mnt");
    let file = scratch.path("dump");
    fs::write(&file, dump).unwrap();
    for copy in &copies {
        fs::copy(image, copy).unwrap();
        let mounted = Kernel::mount(copy, &dir).unwrap();
        shell(
            "for f in d/file d/e d/link d/new*; do getfattr -h -m - \"$f\" | sed 1d |
            while read -r n; do [ -z \"$n\" ] || setfattr -h -x \"$(printf \"$n\")\" \"$f\"; done
            done",
            &dir,
        );
        assert!(getfattr(&dir).is_empty());
        drop(mounted);
    }
    xattr("restore", &["-h".as_ref(), copies[0].as_os_str(), file.as_os_str()]);
    let mounted = Kernel::mount(&copies[1], &dir).unwrap();
    shell(&format!("setfattr -h --restore={}", file.display()), &dir);
    drop(mounted);
    for copy in &copies {
        let mounted = Kernel::mount(copy, &dir).unwrap();
        assert_eq!(getfattr(&dir), kernels, "{}", copy.display());
        drop(mounted);
        assert_clean(copy);
    }
}

fn made(scratch: &Scratch) -> PathBuf {
    let image = scratch.path("image");
    run_ok(["mkfs".as_ref(), "-q".as_ref(), image.as_os_str(), "8M".as_ref()]);
    run_ok([OsString::from("touch"), at(&image, "/a"), at(&image, "/b=\n")]);
    image
}

#[test]
fn values_come_back_in_every_form() {
    let scratch = Scratch::new();
    let image = made(&scratch);
    let (a, name) = (at(&image, "/a"), OsStr::new("user.x"));
    for (given, want) in [
        ("plain", &b"plain"[..]),
        ("\"q\\\"\\101\"", b"q\"A"),
        ("0x00ff", b"\0\xff"),
        ("0sAP8=", b"\0\xff"),
        ("-", b"-"),
        (r#""a\1b\q""#, b"a\x01b\\q"),
        (r"plain\\", b"plain\\"),
        (r"x\101y", b"xAy"),
        (r#""\777\12345""#, b"\xffS45"),
        (r#"\"q\""#, b"\"q\""),
        (r#""a"b""#, b"a\"b"),
        (r"end\", b"end\\"),
        ("\"", b"\""),
        ("", b""),
    ] {
        xattr("set", &[&a, name, given.as_ref()]);
        assert_eq!(xattr("get", &[&a, name]), want, "{given}");
    }
    xattr("set", &["--raw".as_ref(), &a, name, "0x00ff".as_ref()]);
    assert_eq!(xattr("get", &["-e".as_ref(), "text".as_ref(), &a, name]), b"\"0x00ff\"\n");
    let mut child = Command::new(UEXT4)
        .args(["xattr", "set", "--from", "-"])
        .args([&a, name])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\xff\0").unwrap();
    assert!(child.wait().unwrap().success());
    let json = String::from_utf8(xattr("get", &["--json".as_ref(), &a, name])).unwrap();
    assert!(json.contains("\"name\": \"user.x\"") && json.contains("\"value_hex\": \"ff00\""));

    // Kept across a dump of the root, which begins at the directory that is named.
    xattr("set", &[&at(&image, "/b=\n"), "user.y".as_ref(), "1".as_ref()]);
    let dump = xattr("dump", &["-R".as_ref(), image.as_os_str()]);
    assert_eq!(dump, b"# file: a\nuser.x=0s/wA=\n\n# file: b=\\012\nuser.y=\"1\"\n\n");
    assert_eq!(run_ok(["xattr".as_ref(), "--dump".as_ref(), a.as_os_str()]), &dump[..25]);
    let listed = xattr("list", &[&a]);
    assert_eq!(listed, b"user.x\n");
    xattr("rm", &[&a, name]);
    assert_eq!(xattr("list", &[&a]), b"");
    run_fails(["xattr".as_ref(), "get".as_ref(), a.as_os_str(), name], "user.x: ");
}

#[test]
fn bad_words_change_nothing() {
    let scratch = Scratch::new();
    let image = made(&scratch);
    let a = at(&image, "/a");
    let set = |words: &[&str], want: &str| {
        let words =
            words.iter().map(|word| if *word == "A" { a.as_os_str() } else { word.as_ref() });
        run_fails([OsStr::new("xattr"), "set".as_ref()].into_iter().chain(words), want);
    };
    set(&["A", "user.", "x"], "more than its prefix");
    set(&["A", "other.x", "x"], "");
    set(&["A", "user.x", "0xzz"], "hexadecimal");
    set(&["A", "user.x", "0s!"], "base64");
    set(&["--replace", "A", "user.x", "1"], "");
    set(&["A", "system.posix_acl_access", "0x01"], "");
    assert_eq!(xattr("list", &[&a]), b"");
    let dump = scratch.path("dump");
    // A line that is wrong ends it; a file that is missing does not.
    let records = "# file: none\nuser.x=1\n\n# file: ../a\nuser.x=\"1\"\nuser.y=0xz\n";
    fs::write(&dump, records).unwrap();
    let output = run(["xattr".as_ref(), "--restore".as_ref(), image.as_os_str(), dump.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains("/none: ") && said.contains("line 6: no hexadecimal"), "{said}");
    assert_eq!(xattr("list", &[&a]), b"user.x\n");
    // What belongs to no file is told, also after the empty line that ends a file's attributes.
    for records in ["user.z=1\n", "# file: a\nuser.x=2\n\nuser.z=1\n"] {
        fs::write(&dump, records).unwrap();
        let restore = ["xattr".as_ref(), "--restore".as_ref(), image.as_os_str(), dump.as_os_str()];
        run_fails(restore, "no \"# file:\" is before the attribute");
    }
    assert_eq!(xattr("list", &[&a]), b"user.x\n");
    // As xattr(7); an image that has one can be rid of it.
    run_ok(["ln".into(), "-s".into(), OsString::from("a"), at(&image, "/link")]);
    let link = at(&image, "/link");
    set(&["-h", link.to_str().unwrap(), "user.x", "1"], "peration not permitted");
}
