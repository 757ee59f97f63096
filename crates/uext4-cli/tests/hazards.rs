//! Copies and removals that could lose what nobody named.
//!
//! Fault model: one operand replaces what another just made; a copy is written through a link that
//! the command itself made, over an image of the command, or into itself; damage makes a removal or
//! a copy go where it has no end or nobody sent it; rights come from the target's directory; a
//! failure leaves a copy that passes for a good one.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{Scratch, assert_clean, at, has, run, run_fails, run_ok, system};

/// What a file of an image holds.
fn cat(image: &Path, path: &str) -> Vec<u8> {
    run_ok(["cat".into(), at(image, path)])
}

fn copy(options: &str, from: &[OsString], to: impl Into<OsString>) -> Vec<OsString> {
    let words = ["cp", options].map(OsString::from).into_iter();
    words.chain(from.iter().cloned()).chain([to.into()]).collect()
}

#[test]
fn no_operand_takes_the_place_of_another() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let (tree, out, outside) = (scratch.path("t"), scratch.path("out"), scratch.path("outside"));
    for name in ["a", "b", "d", "l"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    fs::create_dir(&out).unwrap();
    fs::write(&outside, "untouched").unwrap();
    fs::write(tree.join("a/x"), "one").unwrap();
    fs::write(tree.join("b/x"), "other").unwrap();
    symlink(&outside, tree.join("l/x")).unwrap();
    run_ok(copy("-rT", &[tree.into()], at(&image, "/")));
    let both = [at(&image, "/a/x"), at(&image, "/b/x")];
    // Out of the image, within it, and by moves: the first one stays.
    run_fails(copy("-r", &both, &out), "was just made by this command");
    assert_eq!(fs::read(out.join("x")).unwrap(), b"one");
    // Another run may replace it.
    run_ok(copy("-r", &both[1..], &out));
    assert_eq!(fs::read(out.join("x")).unwrap(), b"other");
    let words = ["mv".into()].into_iter().chain(both).chain([at(&image, "/d")]);
    run_fails(words.collect::<Vec<_>>(), "/b/x: cannot move to /d/x: was just made");
    assert_eq!((cat(&image, "/d/x"), cat(&image, "/b/x")), (b"one".to_vec(), b"other".to_vec()));
    // A link that was just made is not written through.
    fs::remove_file(out.join("x")).unwrap();
    let both = [at(&image, "/l/x"), at(&image, "/b/x")];
    run_fails(copy("-P", &both, &out), "was just made by this command");
    assert_eq!(fs::read(&outside).unwrap(), b"untouched");
    assert_clean(&image);
}

#[test]
fn images_of_a_command_are_neither_replaced_nor_copied() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("disk.img", 16, &[]) else { skip!("no mke2fs") };
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/disk.img"), "not an image").unwrap();
    fs::write(tree.join("sub/other"), "other").unwrap();
    run_ok(copy("-rT", &[tree.into()], at(&image, "/")));
    // The name is met below the operand, and by another image's files.
    let here = scratch.dir.path();
    run_fails(copy("-r", &[at(&image, "/sub/.")], here), "disk.img: is an image of this command");
    assert_eq!(fs::read(scratch.path("other")).unwrap(), b"other");
    assert_eq!(cat(&image, "/sub/other"), b"other");
    run_fails(
        copy("-r", &[here.into()], at(&image, "/in")),
        "disk.img: is an image of this command; not copied",
    );
    let name = here.file_name().unwrap().to_str().unwrap();
    assert_eq!(cat(&image, "/in/other"), b"other", "{name}");
    assert_clean(&image);
}

/// An image in which debugfs gave `/a` a second name below itself, and directories many names.
fn damaged(scratch: &Scratch) -> Option<std::path::PathBuf> {
    let image = scratch.image("damaged", 16, &["-O", "^has_journal"])?;
    if !has("debugfs") {
        return None;
    }
    let mut requests = String::from("mkdir a\nmkdir a/b\nmkdir two\nln a a/b/x\nln two a/y\n");
    requests.push_str("mkdir d0\n");
    for level in 0..24 {
        let (here, next) = (format!("d{level}"), format!("d{}", level + 1));
        requests.push_str(&format!("mkdir {next}\nln {next} {here}/l\nln {next} {here}/r\n"));
    }
    let script = scratch.path("script");
    fs::write(&script, requests).unwrap();
    let made = system("debugfs").arg("-wf").arg(&script).arg(&image).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for (dir, name) in [("/a/b", "precious"), ("/a", "dear"), ("/two", "other")] {
        let file = scratch.path(name);
        fs::write(&file, name).unwrap();
        run_ok(["cp".into(), file.into(), at(&image, &format!("{dir}/{name}"))]);
    }
    Some(image)
}

#[test]
fn damage_makes_no_verb_go_where_nobody_sent_it() {
    let scratch = Scratch::new();
    let Some(image) = damaged(&scratch) else { skip!("no mke2fs or debugfs") };
    run_fails(["rm".into(), "-r".into(), at(&image, "/a/b")], "second name of a directory");
    assert_eq!(
        (cat(&image, "/a/dear"), cat(&image, "/two/other")),
        (b"dear".into(), b"other".into())
    );
    // A second name as the operand itself.
    run_fails(["rm".into(), "-r".into(), at(&image, "/a/y")], "second name of a directory");
    assert_eq!(cat(&image, "/two/other"), b"other");
    // 24 levels of two names each would be 16 million directories.
    let out = scratch.path("out");
    let output = run(copy("-r", &[at(&image, "/d0")], &out));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 24), "{said}");
    assert!(said.lines().all(|line| line.ends_with("a second name of a directory; run fsck")));
    let count = walk(&out);
    assert_eq!(count, 24, "each directory once");
}

/// Directories below a directory.
fn walk(dir: &Path) -> usize {
    let below = fs::read_dir(dir).unwrap().map(|entry| 1 + walk(&entry.unwrap().path()));
    below.sum()
}

#[test]
fn a_copy_has_the_rights_of_its_source() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let dir = scratch.path("dir");
    fs::create_dir(&dir).unwrap();
    if !has("setfacl") || !set_default_list(&dir) {
        skip!("no access lists here");
    }
    let source = scratch.path("f");
    fs::write(&source, "f").unwrap();
    fs::set_permissions(&source, PermissionsExt::from_mode(0o660)).unwrap();
    run_ok(copy("-r", &[source.clone().into(), dir.clone().into()], at(&image, "/")));
    // Into directories that hand lists down, of an image and of the host.
    run_ok(copy("-r", &[source.into()], at(&image, "/dir/f")));
    run_ok(copy("-r", &[at(&image, "/f")], dir.join("f")));
    let list = system("getfacl").args(["-cE"]).arg(dir.join("f")).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert_eq!(list.trim(), "user::rw-\ngroup::rw-\nother::---");
    let named = run_ok(["xattr".into(), "list".into(), at(&image, "/dir/f")]);
    assert!(named.is_empty(), "{}", String::from_utf8_lossy(&named));
    // The directory itself keeps what it has.
    let named = run_ok(["xattr".into(), "list".into(), at(&image, "/dir")]);
    assert!(named.starts_with(b"system.posix_acl_default"), "{}", String::from_utf8_lossy(&named));
    assert_clean(&image);
}

fn set_default_list(dir: &Path) -> bool {
    let set = system("setfacl").args(["-m", "d:u:1234:rwx"]).arg(dir).output();
    set.is_ok_and(|output| output.status.success())
}

#[test]
fn what_fails_of_a_file_leaves_the_rest_of_it_right() {
    let scratch = Scratch::new();
    let extra = ["-b", "1024", "-I", "128"];
    let Some(image) = scratch.image("image", 8, &extra) else { skip!("no mke2fs") };
    let source = scratch.path("f");
    fs::write(&source, "f").unwrap();
    fs::set_permissions(&source, PermissionsExt::from_mode(0o755)).unwrap();
    let value = "v".repeat(3000);
    let set = |name: &str, value: &str| {
        let set = system("setfattr").args(["-n", name, "-v", value]).arg(&source).output();
        set.is_ok_and(|output| output.status.success())
    };
    if !has("setfattr") || !set("user.a", &value) || !set("user.b", "kept") {
        skip!("no extended attributes here");
    }
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&source).unwrap().set_modified(time).unwrap();
    run_fails(copy("-r", &[source.into()], at(&image, "/f")), "attribute user.a: ");
    let stat = run_ok(["stat".into(), "--json".into(), at(&image, "/f")]);
    let stat = String::from_utf8(stat).unwrap();
    assert!(stat.contains("\"mtime\": \"2001-09-09T01:46:40"), "{stat}");
    let list = String::from_utf8(run_ok(["ls".into(), "-l".into(), at(&image, "/f")])).unwrap();
    assert!(list.starts_with("-rwxr-xr-x"), "{list}");
    let value = run_ok(["xattr".into(), "get".into(), at(&image, "/f"), "user.b".into()]);
    assert!(String::from_utf8_lossy(&value).contains("kept"));
    assert_clean(&image);
}

#[test]
fn what_a_name_leads_to_is_what_is_copied() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 8, &[]) else { skip!("no mke2fs") };
    fs::create_dir(scratch.path("real")).unwrap();
    fs::write(scratch.path("real/f"), "f").unwrap();
    symlink("real", scratch.path("link")).unwrap();
    let mut slashed = scratch.path("link").into_os_string();
    slashed.push("/");
    run_ok(copy("-r", &[slashed], at(&image, "/copy")));
    assert_eq!(cat(&image, "/copy/f"), b"f");
    // Files of /proc say that they are empty.
    if let Ok(version) = fs::read("/proc/version") {
        run_ok(copy("-r", &["/proc/version".into()], at(&image, "/version")));
        assert_eq!(cat(&image, "/version"), version);
    }
    run_ok(["ln".into(), "-s".into(), "/copy".into(), at(&image, "/abs")]);
    let found = run_ok(["find".into(), at(&image, "/abs/")]);
    assert!(String::from_utf8_lossy(&found).contains("/abs/f"), "{found:?}");
    assert_clean(&image);
}
