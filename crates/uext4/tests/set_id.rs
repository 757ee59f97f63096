//! Set-id bits and those who change the content of files.
//!
//! Fault model: bits that stay where an ordinary user writes; handles for bits that are not set; a
//! right that stays with the thread. Not covered: crashes in between (a handle is whole or not),
//! the kernel's copy of the mode (the mount tests).

mod common;

use common::{have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::{AllocateMode, FileKind, OpenFile, SetAttr, Volume, clearing_set_id};

fn set_mode(volume: &Volume, file: &OpenFile, mode: u16) {
    let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
    volume.set_attr(file.inode(), &change).unwrap();
}

#[test]
fn each_change_of_content_takes_them_away() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o755)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[1; 64 << 10]).unwrap();
    file.sync(false).unwrap();
    let mode = || volume.attr(&inode).mode;
    let block = [7; 4096];
    let allocate = |mode| file.allocate(mode, 8192, 8192);
    let size = |kill_priv| SetAttr { size: Some(60_000), kill_priv, ..SetAttr::default() };
    let changes: [(&str, &dyn Fn() -> uext4::Result<()>); 9] = [
        ("write", &|| file.write_at(0, b"x").map(drop)),
        ("append", &|| file.append(b"x").map(drop)),
        ("direct write", &|| file.write_direct_at(0, &block).map(drop)),
        ("durable direct write", &|| file.write_direct_durably_at(0, &block).map(drop)),
        ("allocate", &|| allocate(AllocateMode::Allocate { keep_size: true })),
        ("punch", &|| allocate(AllocateMode::PunchHole)),
        ("zero", &|| allocate(AllocateMode::ZeroRange { keep_size: true })),
        ("collapse", &|| allocate(AllocateMode::CollapseRange)),
        ("insert", &|| allocate(AllocateMode::InsertRange)),
    ];
    for (what, change) in changes {
        set_mode(&volume, &file, 0o6755);
        change().unwrap();
        assert_eq!(mode(), 0o6755, "{what} by a program with CAP_FSETID");
        let (done, cleared) = clearing_set_id(change);
        done.unwrap();
        assert_eq!((mode(), cleared), (0o755, true), "{what}");
        let (done, cleared) = clearing_set_id(change);
        done.unwrap();
        assert_eq!((mode(), cleared), (0o755, false), "{what} again");
    }
    // Without the right to run it set-group-id is no right.
    set_mode(&volume, &file, 0o6644);
    clearing_set_id(|| file.write_at(0, b"x")).0.unwrap();
    assert_eq!(mode(), 0o2644);
    set_mode(&volume, &file, 0o6755);
    volume.set_attr(&inode, &size(false)).unwrap();
    assert_eq!(mode(), 0o6755);
    volume.set_attr(&inode, &size(true)).unwrap();
    assert_eq!(mode(), 0o755);
    drop(file);
    volume.close().unwrap();
    common::assert_clean(&device);
}

#[test]
fn no_handle_where_no_bit_is_set() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o755)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    file.sync(false).unwrap();
    let handles = || volume.stats().counters.iter().find(|(name, _)| *name == "handles").unwrap().1;
    let before = handles();
    for _ in 0..100 {
        clearing_set_id(|| file.write_at(0, b"x")).0.unwrap();
    }
    assert_eq!(handles(), before);
}
