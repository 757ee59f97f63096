//! Files with a Merkle tree (fs-verity): losses of power while one is sealed, damage to a sealed
//! one, and calls that would change it.
//!
//! Fault model: power lost at any moment of a sealing, with torn and reordered writes; one bit
//! changed in any block of data, tree or descriptor. Not covered: signatures, which are kept and
//! not looked at.

use std::sync::Arc;
use uext4::{
    Error, ErrorKind, FileKind, InodeRef, MountOptions, NewInode, Owner, SetAttr, VerityParameters,
    Volume,
};
use uext4_device::{Device, MemoryDevice, RecordingDevice, SharedDevice};
use uext4_ondisk::verity::Algorithm;
use uext4_sim::crash::{Checker, Depth, Judge, each_state};

const BYTES: usize = 150_000;

fn parameters(block_size: u32) -> VerityParameters {
    VerityParameters { algorithm: Algorithm::Sha256, block_size, salt: vec![1, 2, 3] }
}

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 4096) as u8).collect()
}

fn open(device: SharedDevice) -> Volume {
    Volume::open(device, MountOptions::default()).unwrap()
}

fn file(volume: &Volume) -> InodeRef {
    volume.lookup(&volume.root().unwrap(), b"file").unwrap()
}

fn read(volume: &Volume) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; BYTES];
    let file = volume.open_file(&file(volume)).unwrap();
    let mut done = 0;
    // In pieces that end inside blocks, so that pages are filled from all sides.
    while done < BYTES {
        let end = BYTES.min(done + 7_000);
        done += file.read_at(done as u64, &mut bytes[done..end])?;
    }
    Ok(bytes)
}

/// A volume with one file.
fn made(block_size: u32) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = uext4_mkfs::Options {
        block_size: Some(block_size),
        journal_mib: Some(if block_size == 1024 { 1 } else { 4 }),
        features: "verity".into(),
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&*device, &options).unwrap();
    let volume = open(device.clone());
    let root = volume.root().unwrap();
    let kind = FileKind::Regular;
    let new = NewInode { kind, mode: 0o644, owner: Owner::default(), rdev: Default::default() };
    let made = volume.create(&root, b"file", &new).unwrap();
    volume.open_file(&made).unwrap().write_at(0, &content()).unwrap();
    volume.close().unwrap();
    device.snapshot()
}

#[test]
fn power_lost_while_a_file_is_sealed() {
    let recorder = Arc::new(RecordingDevice::over(made(1024)));
    let volume = open(recorder.clone());
    volume.enable_verity(&file(&volume), parameters(1024)).unwrap();
    volume.close().unwrap();
    let (mut sealed, mut open_still) = (0, 0);
    let depth = Depth { exhaustive_max: 4, random: 2 };
    each_state(&recorder.recording(), depth, 1, &mut |state, name| {
        let device = Arc::new(state.snapshot());
        let volume = open(device.clone());
        match volume.verity_digest(&file(&volume)) {
            Ok(_) => sealed += 1,
            Err(error) => {
                assert_eq!(*error.kind(), ErrorKind::NoXattr, "{name}: {error}");
                open_still += 1;
            }
        }
        assert!(read(&volume).unwrap() == content(), "{name}: another content");
        volume.close().unwrap();
        // Nothing is behind the end of a file that is not sealed: the checker would say so.
        let found = Checker.findings(&device).unwrap();
        assert!(found.is_empty(), "{name}: {found:?}");
        true
    });
    println!("{sealed} sealed, {open_still} not");
    assert!(sealed > 5 && open_still > 20, "{sealed} {open_still}");
}

#[test]
fn a_bit_that_changed_is_found() {
    for (fs_block, tree_block) in [(1024, 1024), (4096, 1024), (4096, 4096)] {
        let device = Arc::new(made(fs_block));
        let volume = open(device.clone());
        let inode = file(&volume);
        volume.enable_verity(&inode, parameters(tree_block)).unwrap();
        let mut blocks = Vec::new();
        volume
            .extents(&inode, uext4::FileBlock(0), &mut |extent| {
                blocks.extend((0..extent.len).map(|n| extent.start.get() + u64::from(n)));
                true
            })
            .unwrap();
        drop(inode);
        volume.close().unwrap();
        let mut whole = 0;
        for block in &blocks {
            let changed = Arc::new(device.snapshot());
            let at = block * u64::from(fs_block) + block * 37 % u64::from(fs_block);
            let mut byte = [0];
            changed.read_at(at, &mut byte).unwrap();
            changed.write_at(at, &[byte[0] ^ 0x10]).unwrap();
            let volume = open(changed);
            match read(&volume) {
                // Padding behind the tree, and behind the descriptor.
                Ok(bytes) => {
                    assert!(bytes == content(), "block {block}: wrong bytes were shown");
                    whole += 1;
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}"),
            }
            volume.abandon();
        }
        println!("{fs_block} {tree_block}: {} blocks, {whole} of padding", blocks.len());
        assert!(whole * 10 <= blocks.len(), "{whole} of {}", blocks.len());
    }
}

/// The kernel has no blocks of a tree that are larger than a block of the file system, and takes no
/// descriptor whose signature would go past its end.
#[test]
fn a_descriptor_that_the_kernel_refuses_is_refused() {
    let device = Arc::new(made(1024));
    let volume = open(device.clone());
    let inode = file(&volume);
    for block_size in [2048, 4096, 65536] {
        let error = volume.enable_verity(&inode, parameters(block_size)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unsupported, "{error}");
    }
    volume.enable_verity(&inode, parameters(1024)).unwrap();
    let mut last = 0;
    volume
        .extents(&inode, uext4::FileBlock(0), &mut |extent| {
            last = extent.start.get() + u64::from(extent.len) - 1;
            true
        })
        .unwrap();
    drop(inode);
    volume.close().unwrap();
    // A signature that is longer than what is behind the descriptor.
    device.write_at(last * 1024 + 4, &[1]).unwrap();
    let volume = open(device.clone());
    let error = volume.verity_digest(&file(&volume)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
    volume.close().unwrap();
    device.write_at(last * 1024 + 4, &[0]).unwrap();
    // The binary logarithm in the descriptor.
    device.write_at(last * 1024 + 2, &[12]).unwrap();
    let volume = open(device);
    let error = volume.verity_digest(&file(&volume)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(*read(&volume).unwrap_err().kind(), ErrorKind::Unsupported);
    volume.close().unwrap();
}

/// Neither a tree of nine levels nor one behind the largest file; blocks of no tree.
#[test]
fn a_tree_that_cannot_be_is_refused() {
    let volume = open(Arc::new(made(4096)));
    let inode = file(&volume);
    for block_size in [0, 512, 3000] {
        let error = volume.enable_verity(&inode, parameters(block_size)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    for (size, block_size) in [(5 << 40, 1024), ((1 << 44) - 4096, 4096)] {
        volume.set_attr(&inode, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        let algorithm = Algorithm::Sha512;
        let parameters = VerityParameters { algorithm, ..parameters(block_size) };
        let error = volume.enable_verity(&inode, parameters).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::FileTooBig, "{size}: {error}");
    }
}

/// No room for the tree: the file stays as it is, with nothing behind its end.
#[test]
fn a_sealing_that_fails_takes_everything_back() {
    let device = Arc::new(made(1024));
    let volume = open(device.clone());
    let inode = file(&volume);
    let handle = volume.open_file(&inode).unwrap();
    let blocks = || {
        let mut blocks = 0;
        let mut count = |extent: uext4::Extent| {
            blocks += extent.len;
            true
        };
        volume.extents(&inode, uext4::FileBlock(0), &mut count).unwrap();
        blocks
    };
    let before = blocks();
    let root = volume.root().unwrap();
    let kind = FileKind::Regular;
    let new = NewInode { kind, mode: 0o644, owner: Owner::default(), rdev: Default::default() };
    let other = volume.open_file(&volume.create(&root, b"other", &new).unwrap()).unwrap();
    let mut len = 0;
    while let Ok(written @ 1..) = other.write_at(len, &[5; 1024]) {
        len += written as u64;
    }
    let error = volume.enable_verity(&inode, parameters(1024)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(blocks(), before);
    handle.write_at(0, &content()[..1]).unwrap();
    assert!(read(&volume).unwrap() == content());
    drop((handle, inode, other));
    volume.close().unwrap();
    assert!(Checker.findings(&device).unwrap().is_empty());
}

#[test]
fn the_content_of_a_sealed_file_never_changes() {
    let volume = open(Arc::new(made(4096)));
    let inode = file(&volume);
    let handle = volume.open_file(&inode).unwrap();
    volume.enable_verity(&inode, parameters(4096)).unwrap();
    let refused = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Exists), "{error}");
    };
    refused(handle.write_at(0, b"x").map(drop));
    refused(handle.write_direct_at(0, &[0; 4096]).map(drop));
    refused(handle.append(b"x").map(drop));
    let size = uext4::SetAttr { size: Some(1), ..uext4::SetAttr::default() };
    refused(volume.set_attr(&inode, &size).map(drop));
    refused(handle.allocate(uext4::AllocateMode::PunchHole, 0, 4096));
    refused(handle.allocate(uext4::AllocateMode::Allocate { keep_size: true }, 1 << 20, 4096));
    refused(volume.enable_verity(&inode, parameters(4096)));
    assert!(read(&volume).unwrap() == content());
    let mut direct = vec![0; 8192];
    assert_eq!(handle.read_direct_at(0, &mut direct).unwrap(), 8192);
    assert!(direct == content()[..8192]);
    // Names and attributes do.
    let mode = uext4::SetAttr { mode: Some(0o400), ..uext4::SetAttr::default() };
    volume.set_attr(&inode, &mode).unwrap();
    let root = volume.root().unwrap();
    volume.link(&inode, &root, b"again").unwrap();
    volume.unlink(&root, b"file").unwrap();
    volume.unlink(&root, b"again").unwrap();
    drop((handle, inode));
    volume.close().unwrap();
}
