//! Attributes on whole images, checked by e2fsck and by the kernel's getfattr and setfattr.
//!
//! Fault model: entries, values, hashes and reference counts where the format does not have them;
//! space lost when attributes move between inode and block. Not covered: damaged images.

mod hostile;
mod value_inode;

use super::{AttributeChange, AttributeEdit, Mode, Release, get, list};
use crate::error::{ErrorKind, Result};
use crate::extent::harness::{FILES, Folder, Harness, Mount, make_image, must, tool};
use crate::inode::Inode;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn set(
    harness: &Harness,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
    mode: Mode,
) -> Result<()> {
    let change = AttributeChange::plan(inode, name, value, mode)?;
    harness.run(change.credits(), |handle| change.apply(handle))
}

fn all(inode: &Inode) -> Model {
    let names = list(inode).unwrap();
    names
        .into_iter()
        .map(|name| {
            let value = get(inode, &name).unwrap();
            (name, value)
        })
        .collect()
}

fn kind(result: Result<()>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

/// What the kernel shows of a file, but for what a security module adds by itself.
fn seen_by_kernel(mount: &Mount, file: &str) -> Model {
    let out =
        must("getfattr", &["-d", "-m", "-", "-e", "hex", "--absolute-names", &mount.path(file)]);
    out.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| {
            let hex = value.strip_prefix("0x").unwrap();
            let byte = |i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
            (name.as_bytes().to_vec(), (0..hex.len() / 2).map(byte).collect())
        })
        .collect()
}

fn has_getfattr() -> bool {
    tool("getfattr", &["--version"]).is_some()
}

#[test]
fn random_changes_agree_with_a_model_and_the_kernel() {
    let shapes: &[&[&str]] = &[
        &["-b", "1024"],
        &["-b", "4096"],
        &["-b", "4096", "-I", "1024", "-O", "^metadata_csum"],
        &["-b", "1024", "-I", "128"],
    ];
    for (seed, args) in shapes.iter().enumerate() {
        let folder = Folder::new();
        let Some(image) = make_image(&folder, "32M", args) else { return };
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let harness = Harness::open(&image);
        let inodes: Vec<_> = FILES.iter().map(|name| harness.inode(name)).collect();
        let mut models = vec![Model::new(); inodes.len()];
        for step in 0..2_000 {
            let at = rng.random_range(0..inodes.len());
            let (inode, model) = (&inodes[at], &mut models[at]);
            let prefix = ["user.", "trusted.", "security."][rng.random_range(0..3)];
            let name = format!("{prefix}n{}", "x".repeat(rng.random_range(0..12))).into_bytes();
            if rng.random_bool(0.3) {
                let result = set(&harness, inode, &name, None, Mode::Any);
                match model.remove(&name) {
                    Some(_) => result.unwrap(),
                    None => assert_eq!(kind(result), ErrorKind::NoXattr),
                }
                continue;
            }
            let len = [0, 3, 20, 60, 300, 1000][rng.random_range(0..6)];
            let value: Vec<u8> = (0..rng.random_range(0..=len)).map(|_| rng.random()).collect();
            match set(&harness, inode, &name, Some(&value), Mode::Any) {
                Ok(()) => _ = model.insert(name, value),
                Err(error) => assert_eq!(*error.kind(), ErrorKind::NoSpace),
            }
            if step % 50 == 0 {
                assert_eq!(all(inode), *model);
            }
        }
        drop(inodes);
        harness.close_and_check();
        if !has_getfattr() {
            return;
        }
        let Some(mount) = Mount::new(&folder, image.to_str().unwrap()) else { return };
        for (file, model) in FILES.iter().zip(&models) {
            assert_eq!(seen_by_kernel(&mount, file), *model);
        }
    }
}

#[test]
fn attributes_that_the_kernel_set_are_read_and_changed() {
    if !has_getfattr() {
        return;
    }
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "32M", &["-b", "4096"]) else { return };
    let path = image.to_str().unwrap().to_owned();
    let Some(mount) = Mount::new(&folder, &path) else { return };
    let long = "v".repeat(2_000);
    for file in FILES {
        // The same large value on every file: the kernel shares the block.
        must("setfattr", &["-n", "user.long", "-v", &long, &mount.path(file)]);
    }
    must("setfattr", &["-n", "user.short", "-v", "s", &mount.path("file0")]);
    must("setfattr", &["-n", "security.own", "-v", "label", &mount.path("file1")]);
    must("setfattr", &["-n", "user.\u{e4}", "-v", "umlaut", &mount.path("file2")]);
    let has_acl = tool("setfacl", &["--version"]).is_some();
    if has_acl {
        must("setfacl", &["-m", "u:1000:rw,g:50:r", &mount.path("file3")]);
        must("setfacl", &["-d", "-m", "u:1000:rwx", &mount.path("d")]);
    }
    let files = [FILES, &["d"]].concat();
    let before: Vec<Model> = files.iter().map(|file| seen_by_kernel(&mount, file)).collect();
    drop(mount);

    let harness = Harness::open(&image);
    for (file, model) in files.iter().zip(&before) {
        assert_eq!(all(&harness.inode(file)), *model, "{file}");
    }
    // One leaves the shared block by a change, one by removal, one as a deleted inode does.
    set(&harness, &harness.inode("file0"), b"user.long", Some(&[1; 3_000]), Mode::Replace).unwrap();
    set(&harness, &harness.inode("file1"), b"user.long", None, Mode::Any).unwrap();
    let released = harness.inode("file2");
    let Release::Rest(release) = AttributeChange::plan_release(&released).unwrap() else {
        panic!("a block is to be released");
    };
    harness.run(release.credits(), |handle| release.apply(handle)).unwrap();
    assert_eq!(released.attributes().file_acl, 0);
    let third = harness.inode("file3");
    set(&harness, &third, b"user.more", Some(b"m"), Mode::Create).unwrap();
    let want: Vec<Model> = files.iter().map(|file| all(&harness.inode(file))).collect();
    assert_eq!(want[3][&b"user.long"[..]], long.as_bytes());
    drop((released, third));
    harness.close_and_check();

    let mount = Mount::new(&folder, &path).unwrap();
    for (file, model) in files.iter().zip(&want) {
        assert_eq!(seen_by_kernel(&mount, file), *model, "{file}");
    }
}

#[test]
fn the_last_of_a_shared_block_changes_it_in_place() {
    if !has_getfattr() {
        return;
    }
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
    let Some(mount) = Mount::new(&folder, image.to_str().unwrap()) else { return };
    for file in &FILES[..2] {
        must("setfattr", &["-n", "user.long", "-v", &"v".repeat(500), &mount.path(file)]);
    }
    drop(mount);
    let harness = Harness::open(&image);
    let (one, other) = (harness.inode("file0"), harness.inode("file1"));
    let shared = one.attributes().file_acl;
    assert_eq!(shared, other.attributes().file_acl, "the kernel shares equal blocks");
    // Both are planned while the block is shared; the second finds itself alone.
    let plan = |inode| AttributeChange::plan(inode, b"user.long", Some(&[2; 600]), Mode::Any);
    let (first, second) = (plan(&one).unwrap(), plan(&other).unwrap());
    harness.run(first.credits(), |handle| first.apply(handle)).unwrap();
    harness.run(second.credits(), |handle| second.apply(handle)).unwrap();
    assert_ne!(one.attributes().file_acl, shared);
    assert_eq!(other.attributes().file_acl, shared);
    drop((one, other));
    harness.close_and_check();
}

#[test]
fn access_lists_are_converted_and_guarded() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
    let harness = Harness::open(&image);
    let (file, dir) = (harness.inode("file0"), harness.inode("d"));
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let plain = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, u32::MAX),
        entry(4, 4, u32::MAX),
        entry(0x20, 4, u32::MAX),
    ]
    .concat();
    let full = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, u32::MAX),
        entry(2, 6, 1000),
        entry(4, 4, u32::MAX),
        entry(0x10, 6, u32::MAX),
        entry(0x20, 4, u32::MAX),
    ]
    .concat();
    let (access, default) = (b"system.posix_acl_access", b"system.posix_acl_default");
    set(&harness, &file, access, Some(&full), Mode::Any).unwrap();
    assert_eq!(get(&file, access).unwrap(), full);
    assert_eq!(list(&file).unwrap(), [access.to_vec()]);
    let denied = set(&harness, &file, default, Some(&full), Mode::Any);
    assert_eq!(kind(denied), ErrorKind::NotPermitted);
    assert_eq!(
        kind(set(&harness, &file, access, Some(&full[..9]), Mode::Any)),
        ErrorKind::InvalidArgument
    );
    // A list that the mode says already is not kept; a default list is.
    set(&harness, &file, access, Some(&plain), Mode::Any).unwrap();
    assert!(list(&file).unwrap().is_empty());
    set(&harness, &dir, default, Some(&plain), Mode::Any).unwrap();
    assert_eq!(get(&dir, default).unwrap(), plain);
    set(&harness, &dir, default, None, Mode::Any).unwrap();
    set(&harness, &dir, default, None, Mode::Any).unwrap();
    assert!(list(&dir).unwrap().is_empty());
    drop((file, dir));
    harness.close_and_check();
}

#[test]
fn several_edits_are_one_change() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
    let harness = Harness::open(&image);
    let file = harness.inode("file0");
    let edit = |name, value| AttributeEdit { name, value, mode: Mode::Create };
    let edits = [
        edit(&b"user.a"[..], Some(&b"1"[..])),
        edit(b"user.b", Some(&[2; 400])),
        edit(b"security.c", Some(b"3")),
    ];
    let change = AttributeChange::plan_all(&file, &edits).unwrap();
    assert!(!change.is_empty());
    harness.run(change.credits(), |handle| change.apply(handle)).unwrap();
    assert_eq!(all(&file).len(), 3);
    let again = AttributeChange::plan(&file, b"user.a", Some(b"1"), Mode::Any).unwrap();
    assert!(again.is_empty());
    drop(again);
    let failing = [edit(b"user.d", Some(b"4")), edit(b"user.a", Some(b"5"))];
    let error = AttributeChange::plan_all(&file, &failing).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Exists);
    assert_eq!(all(&file).len(), 3);
    drop(file);
    harness.close_and_check();
}

/// A plan counts on the room behind the extra fields, which grow when an inode changes. Fault
/// model: an attribute that is gone when the inode is read again, planned for more room.
#[test]
fn extra_fields_keep_their_length_while_attributes_are_planned() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "32M", &["-b", "1024"]) else { return };
    must("debugfs", &["-w", "-R", "sif file0 extra_isize 16", image.to_str().unwrap()]);
    let harness = Harness::open(&image);
    let file = harness.inode("file0");
    let change = AttributeChange::plan(&file, b"user.a", Some(b"1"), Mode::Any).unwrap();
    harness.run(1, |handle| file.update(handle, |attributes| attributes.touch())).unwrap();
    harness.run(change.credits(), |handle| change.apply(handle)).unwrap();
    drop(file);
    harness.close_and_check();
    let harness = Harness::open(&image);
    let file = harness.inode("file0");
    assert_eq!(get(&file, b"user.a").unwrap(), b"1");
    drop(file);
    harness.close_and_check();
}

#[test]
fn bad_names_and_values_are_refused() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024"]) else { return };
    let harness = Harness::open(&image);
    let file = harness.inode("file0");
    let try_set =
        |name: &[u8], value: &[u8]| kind(set(&harness, &file, name, Some(value), Mode::Any));
    assert_eq!(try_set(b"user.", b""), ErrorKind::InvalidArgument);
    assert_eq!(try_set(b"user.a\0b", b""), ErrorKind::InvalidArgument);
    assert_eq!(try_set(b"plain", b""), ErrorKind::Unsupported);
    assert_eq!(try_set(b"system.data", b""), ErrorKind::Unsupported);
    assert_eq!(try_set(&[b"user.", &[b'x'; 251][..]].concat(), b""), ErrorKind::NameTooLong);
    assert_eq!(try_set(b"user.big", &[0; 70_000]), ErrorKind::TooBig);
    assert_eq!(try_set(b"user.big", &[0; 60_000]), ErrorKind::NoSpace);
    assert_eq!(*get(&file, b"user.none").unwrap_err().kind(), ErrorKind::NoXattr);
    drop(file);
    harness.close_and_check();
}
