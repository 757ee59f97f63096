//! Reading values in inodes of their own (ea_inode) that the kernel wrote, and to whom orphans
//! belong. Writing them is in `tests/value_inodes.rs`.
//!
//! Fault model: a value of another length or of another inode, the rest of its last block; an inode
//! that holds a value and is found by number; each thing that entry and inode both say, changed in
//! one of them alone.

use super::{all, has_getfattr, seen_by_kernel, set};
use crate::error::ErrorKind;
use crate::extent::harness::{FILES, Folder, Harness, Mount, make_image, must};
use crate::xattr::{Mode, get};
use std::path::PathBuf;
use uext4_ondisk::{Ino, xattr};

/// An image with large values, and what the kernel reads of [`FILES`].
fn image_of_kernel(folder: &Folder, args: &[&str]) -> Option<(PathBuf, Vec<super::Model>)> {
    if !has_getfattr() {
        return None;
    }
    let image = make_image(folder, "32M", args)?;
    let mount = Mount::new(folder, image.to_str().unwrap())?;
    let text = |len: usize| (0..len).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let set = |file: &str, name: &str, value: &String| {
        must("setfattr", &["-n", name, "-v", value, &mount.path(file)]);
    };
    let values: Vec<String> = [5_000, 12_345, 60_000].into_iter().map(text).collect();
    for (file, value) in FILES.iter().zip([&values[0], &values[1], &values[2], &values[1]]) {
        set(file, "user.small", &"s".to_owned());
        set(file, "user.large", value);
        set(file, "trusted.other", &values[0]);
    }
    let seen = FILES.iter().map(|file| seen_by_kernel(&mount, file)).collect();
    Some((image, seen))
}

/// The inode with the value of `user.large`.
fn value_inode(harness: &Harness, file: &str) -> Ino {
    let inode = harness.inode(file);
    let area = inode.attributes().xattr_area.clone();
    let block = inode.attributes().file_acl;
    let in_block = (block != 0).then(|| super::super::read::block_of(&inode).unwrap().unwrap());
    let bytes = in_block.as_ref().map(|buffer| buffer.read().to_vec()).unwrap_or_default();
    let of_block = xattr::block_entries(&bytes).into_iter().flatten();
    let mut entries = xattr::area_entries(&area).chain(of_block).map(Result::unwrap);
    entries.find(|entry| entry.name == b"large").unwrap().value_inode
}

#[test]
fn values_of_the_kernel_are_read() {
    let shapes: &[&[&str]] = &[
        &["-b", "1024", "-O", "ea_inode"],
        &["-b", "4096", "-O", "ea_inode"],
        &["-b", "4096", "-I", "1024", "-O", "ea_inode,^metadata_csum"],
        &["-b", "1024", "-I", "128", "-O", "ea_inode,metadata_csum_seed"],
    ];
    for args in shapes {
        let folder = Folder::new();
        let Some((image, seen)) = image_of_kernel(&folder, args) else { return };
        let harness = Harness::open(&image);
        for (file, want) in FILES.iter().zip(&seen) {
            assert_eq!(want.len(), 3);
            assert!(all(&harness.inode(file)) == *want, "{args:?} {file}");
        }
        let shared = value_inode(&harness, FILES[1]);
        assert_eq!(value_inode(&harness, FILES[3]), shared, "the kernel shares equal values");
        let error = harness.inodes.get(shared).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NotFound, "an inode with a value is no file");
        harness.close_and_check();
    }
}

#[test]
fn values_that_do_not_fit_their_entry_are_refused() {
    let args = ["-b", "1024", "-I", "512", "-O", "ea_inode"];
    let folder = Folder::new();
    let Some((image, seen)) = image_of_kernel(&folder, &args) else { return };
    let path = image.to_str().unwrap();
    let value = value_inode(&Harness::open(&image), FILES[2]);
    let want = &seen[2][&b"user.large"[..]];
    let debugfs = |field: &str, to: &str| {
        must("debugfs", &["-w", "-R", &format!("sif <{value}> {field} {to}"), path]);
    };
    let read = || get(&Harness::open(&image).inode(FILES[2]), b"user.large");
    let original = std::fs::read(&image).unwrap();
    for (field, to, why) in [
        ("flags", "0x80000", "holds no value"),
        ("mode", "040600", "holds a value, and is no file"),
        ("size", "59999", "another size"),
        ("size", "0x7fffffff", "another size"),
        ("atime", "@305419896", "another hash"),
        ("block[0]", "0", ""),
    ] {
        debugfs(field, to);
        let error = read().map(|value| format!("{field}: {} bytes", value.len())).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{field}: {error}");
        assert!(error.to_string().contains(why), "{field}: {error}");
        std::fs::write(&image, &original).unwrap();
    }
    assert!(read().unwrap() == *want);
    // As Lustre names the owner: the checksum does not count.
    let owner = Harness::open(&image).inode(FILES[2]);
    let (ino, generation) = (owner.ino(), owner.generation());
    debugfs("mtime", &format!("@{ino}"));
    debugfs("generation", &generation.to_string());
    debugfs("atime", "@305419896");
    assert!(read().unwrap() == *want);
}

#[test]
fn an_orphan_belongs_to_the_owner_of_the_last_reference() {
    let folder = Folder::new();
    let Some(image) = make_image(&folder, "16M", &["-b", "1024", "-O", "ea_inode"]) else { return };
    let harness = Harness::open(&image);
    let files = [FILES[0], FILES[1]].map(|file| harness.inode(file));
    for (uid, file) in (7..).zip(&files) {
        harness.run(1, |handle| file.update(handle, |of| of.uid = uid)).unwrap();
        set(&harness, file, b"user.large", Some(&[9; 5000]), Mode::Any).unwrap();
    }
    let value = harness.inodes.get_value(value_inode(&harness, FILES[1])).unwrap();
    let state = || {
        let of = value.attributes();
        (of.links, of.uid)
    };
    assert_eq!(state(), (1, 7));
    set(&harness, &files[0], b"user.large", None, Mode::Any).unwrap();
    assert_eq!(state(), (1, 7));
    set(&harness, &files[1], b"user.large", None, Mode::Any).unwrap();
    assert_eq!(state(), (0, 8));
}
