//! Set-id bits and capabilities of files whose content is changed.
//!
//! Fault model: bits that stay where an ordinary user writes; capabilities that stay where anybody
//! writes; rights that go by a call that fails or changes nothing; handles for what is not set; a
//! right that stays with the thread. Not covered: crashes in
//! between (a handle is whole or not), the kernel's copy of the mode (the mount tests).

mod common;

use common::{have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::{
    AllocateMode, ErrorKind, FileKind, InodeRef, OpenFile, Privs, SetAttr, Volume, XattrMode,
    removing_privs,
};
use uext4_ondisk::InodeFlags;

fn set_mode(volume: &Volume, file: &OpenFile, mode: u16) {
    let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
    volume.set_attr(file.inode(), &change).unwrap();
}

type Change = fn(&OpenFile) -> uext4::Result<()>;

/// Every way to change the content of an open file.
const CHANGES: [(&str, Change); 9] = [
    ("write", |file| file.write_at(0, b"x").map(drop)),
    ("append", |file| file.append(b"x").map(drop)),
    ("direct write", |file| file.write_direct_at(0, &[7; 4096]).map(drop)),
    ("durable direct write", |file| file.write_direct_durably_at(0, &[7; 4096]).map(drop)),
    ("allocate", |file| file.allocate(AllocateMode::Allocate { keep_size: true }, 8192, 8192)),
    ("punch", |file| file.allocate(AllocateMode::PunchHole, 8192, 8192)),
    ("zero", |file| file.allocate(AllocateMode::ZeroRange { keep_size: true }, 8192, 8192)),
    ("collapse", |file| file.allocate(AllocateMode::CollapseRange, 8192, 8192)),
    ("insert", |file| file.allocate(AllocateMode::InsertRange, 8192, 8192)),
];

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
    let size = |kill_priv| SetAttr { size: Some(60_000), kill_priv, ..SetAttr::default() };
    for (what, change) in CHANGES {
        let change = || change(&file);
        set_mode(&volume, &file, 0o6755);
        change().unwrap();
        assert_eq!(mode(), 0o6755, "{what} by a program with CAP_FSETID");
        let (done, cleared) = removing_privs(Privs::All, change);
        done.unwrap();
        assert_eq!((mode(), cleared), (0o755, true), "{what}");
        let (done, cleared) = removing_privs(Privs::All, change);
        done.unwrap();
        assert_eq!((mode(), cleared), (0o755, false), "{what} again");
    }
    // Without the right to run it set-group-id is no right.
    set_mode(&volume, &file, 0o6644);
    removing_privs(Privs::All, || file.write_at(0, b"x")).0.unwrap();
    let group = volume.attr(&inode).gid;
    assert_eq!((mode(), volume.bare_set_gid(&inode)), (0o2644, Some(group)));
    removing_privs(Privs::AllOutsideGroup, || file.write_at(0, b"x")).0.unwrap();
    assert_eq!((mode(), volume.bare_set_gid(&inode)), (0o644, None));
    set_mode(&volume, &file, 0o6755);
    volume.set_attr(&inode, &size(None)).unwrap();
    assert_eq!(mode(), 0o6755);
    volume.set_attr(&inode, &size(Some(Privs::All))).unwrap();
    assert_eq!(mode(), 0o755);
    drop(file);
    volume.close().unwrap();
    common::assert_clean(&device);
}

const CAPABILITY: &[u8] = b"security.capability";
/// cap_net_raw=ep, as setcap(8) stores it.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn has_capability(volume: &Volume, inode: &InodeRef) -> bool {
    match volume.xattr_get(inode, CAPABILITY) {
        Ok(value) => value == NET_RAW,
        Err(error) if *error.kind() == ErrorKind::NoXattr => false,
        Err(error) => panic!("{error}"),
    }
}

/// Also beside other attributes, in the inode and in a block, and where an earlier write has found
/// that there are none.
#[test]
fn no_writer_keeps_capabilities() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    for (number, others) in [0, 1, 2000].into_iter().enumerate() {
        let name = format!("file{number}");
        let new = new(FileKind::Regular, 0o4755);
        let inode = volume.create(&root, name.as_bytes(), &new).unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, &[1; 64 << 10]).unwrap();
        file.sync(false).unwrap();
        let set = |name: &[u8], value: &[u8]| {
            volume.xattr_set(&inode, name, value, XattrMode::Any).unwrap();
        };
        if others > 0 {
            set(b"user.other", &vec![b'o'; others]);
        }
        for privs in [Privs::Capabilities, Privs::All] {
            for (what, change) in CHANGES {
                set(CAPABILITY, &NET_RAW);
                change(&file).unwrap();
                assert!(has_capability(&volume, &inode), "{what} by nobody in particular");
                let (done, removed) = removing_privs(privs, || change(&file));
                done.unwrap();
                assert!(!has_capability(&volume, &inode), "{what}, {others} {privs:?}");
                assert!(removed, "{what}");
                let (done, removed) = removing_privs(privs, || change(&file));
                done.unwrap();
                assert!(!removed, "{what} again");
            }
            set(CAPABILITY, &NET_RAW);
            let size = |kill_priv| SetAttr { size: Some(60_000), kill_priv, ..SetAttr::default() };
            volume.set_attr(&inode, &size(None)).unwrap();
            assert!(has_capability(&volume, &inode));
            volume.set_attr(&inode, &size(Some(privs))).unwrap();
            assert!(!has_capability(&volume, &inode), "a cut");
            let is_set_id = volume.attr(&inode).mode & 0o4000 != 0;
            assert_eq!(is_set_id, privs == Privs::Capabilities);
        }
        if others > 0 {
            assert_eq!(volume.xattr_get(&inode, b"user.other").unwrap().len(), others);
        }
    }
    volume.close().unwrap();
    common::assert_clean(&device);
}

/// Calls that change nothing: what they are asked is nothing, or cannot be.
const NO_CHANGES: [(&str, Change, Option<ErrorKind>); 13] = [
    ("a write of nothing", |file| file.write_at(0, b"").map(drop), None),
    ("a write of nothing far away", |file| file.write_at(1 << 62, b"").map(drop), None),
    ("an empty append", |file| file.append(b"").map(drop), None),
    ("an empty direct write", |file| file.write_direct_at(0, &[]).map(drop), None),
    ("a write too far", |file| file.write_at(1 << 62, b"x").map(drop), TOO_BIG),
    ("a direct write too far", |file| file.write_direct_at(1 << 62, &[1; 512]).map(drop), TOO_BIG),
    ("a direct write of 3", |file| file.write_direct_at(0, b"abc").map(drop), INVALID),
    ("allocate of nothing", |file| file.allocate(GROW, 0, 0), INVALID),
    ("allocate too far", |file| file.allocate(GROW, 1 << 62, 1), TOO_BIG),
    ("allocate past all", |file| file.allocate(GROW, u64::MAX, 1), INVALID),
    ("punch of nothing", |file| file.allocate(AllocateMode::PunchHole, 0, 0), INVALID),
    ("collapse of 3", |file| file.allocate(AllocateMode::CollapseRange, 0, 3), INVALID),
    (
        "insert behind the end",
        |file| file.allocate(AllocateMode::InsertRange, 1 << 30, 4096),
        INVALID,
    ),
];
const GROW: AllocateMode = AllocateMode::Allocate { keep_size: false };
const TOO_BIG: Option<ErrorKind> = Some(ErrorKind::FileTooBig);
const INVALID: Option<ErrorKind> = Some(ErrorKind::InvalidArgument);

#[test]
fn what_changes_nothing_takes_nothing_away() {
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
    set_mode(&volume, &file, 0o6755);
    volume.xattr_set(&inode, CAPABILITY, &NET_RAW, XattrMode::Any).unwrap();
    let keeps = |what: &str| {
        assert_eq!(volume.attr(&inode).mode, 0o6755, "{what}");
        assert!(has_capability(&volume, &inode), "{what}");
    };
    for (what, call, error) in NO_CHANGES {
        let (done, removed) = removing_privs(Privs::All, || call(&file));
        assert_eq!(done.map_err(|error| error.kind().clone()).err(), error, "{what}");
        assert!(!removed, "{what}");
        keeps(what);
    }
    let far = SetAttr { size: Some(1 << 62), kill_priv: Some(Privs::All), ..SetAttr::default() };
    let failed = volume.set_attr(&inode, &far).unwrap_err();
    assert_eq!(*failed.kind(), ErrorKind::FileTooBig);
    keeps("a length that no file has");
    volume.set_flags(&inode, volume.flags(&inode) | InodeFlags::APPEND.bits()).unwrap();
    let (done, _) = removing_privs(Privs::All, || file.write_at(0, b"x"));
    assert_eq!(*done.unwrap_err().kind(), ErrorKind::NotPermitted);
    keeps("a write into what is append-only");
    let (done, _) = removing_privs(Privs::All, || file.append(b"x"));
    assert_eq!(done.unwrap(), (64 << 10, 1));
    assert_eq!(volume.attr(&inode).mode, 0o755);
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
    volume.xattr_set(&inode, b"user.other", b"x", XattrMode::Any).unwrap();
    file.sync(false).unwrap();
    let handles = || volume.stats().counters.iter().find(|(name, _)| *name == "handles").unwrap().1;
    let before = handles();
    for _ in 0..100 {
        removing_privs(Privs::All, || file.write_at(0, b"x")).0.unwrap();
    }
    assert_eq!(handles(), before);
}
