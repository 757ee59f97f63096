//! Tests of the mapped device.
//!
//! # Fault model
//! Bytes misplaced or lost between stores, loads, the file and a reopened device; a store that is
//! full, before and after the file was opened (a touched hole would end the test program by
//! SIGBUS). Not covered: loss of power; `MAP_SYNC` is pretended, no machine of ours has it.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::device::SharedDevice;
use crate::file::FileDevice;

const CHUNK: u64 = 2 << 20;

/// A folder on tmpfs; `None`, said so, where `/dev/shm` is none.
fn folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").ok();
    let usable = folder.as_ref().is_some_and(|folder| {
        let file = tempfile::tempfile_in(folder).unwrap();
        is_byte_addressable(&file).unwrap()
    });
    if !usable {
        println!("skipped: /dev/shm is no tmpfs");
    }
    folder.filter(|_| usable)
}

fn sparse(path: &Path, len: u64) {
    File::create(path).unwrap().set_len(len).unwrap();
}

#[test]
fn random_requests_by_several_threads() {
    const LEN: usize = 3 * CHUNK as usize + 12_345;
    let Some(folder) = folder() else { return };
    let path = folder.path().join("image");
    for (round, when) in [Allocate::AtOpen, Allocate::AtWrite].into_iter().enumerate() {
        for sync in [false, true] {
            let offset = 1000 * round as u64;
            sparse(&path, LEN as u64 + offset);
            let mut device = DaxDevice::open_with(&path, offset, Access::ReadWrite, when).unwrap();
            if sync {
                device.map.pretend_sync();
            }
            assert!(device.fresh_zeroes() && device.len() == LEN as u64);
            assert_eq!(device.backing.is_some(), when == Allocate::AtWrite);
            let mut model = vec![0_u8; LEN];
            std::thread::scope(|scope| {
                for (thread, part) in model.chunks_mut(LEN.div_ceil(3)).enumerate() {
                    let device = &device;
                    scope
                        .spawn(move || work(device, thread * LEN.div_ceil(3), part, thread as u64));
                }
            });
            device.flush().unwrap();
            assert!(!device.fresh_zeroes());
            drop(device);
            assert!(fs::read(&path).unwrap()[offset as usize..] == model, "{when:?} {sync}");
            let device = DaxDevice::open(&path, offset, Access::ReadOnly).unwrap();
            let mut all = vec![1; LEN];
            device.read_at(0, &mut all).unwrap();
            assert!(all == model);
        }
        fs::remove_file(&path).unwrap();
    }
}

fn work(device: &DaxDevice, start: usize, model: &mut [u8], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..300 {
        let most = [64, 5000, 70_000][random.random_range(0..3)];
        let len = random.random_range(0..most);
        let at = random.random_range(0..model.len() - len);
        let fill: u8 = random.random();
        let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add((at / 3) as u8)).collect();
        let offset = (start + at) as u64;
        match random.random_range(0..4) {
            0 => device.write_at(offset, &bytes).unwrap(),
            1 => device.write_fua(offset, &bytes).unwrap(),
            2 => device.dax().unwrap().store(offset, &bytes).unwrap(),
            _ => {
                let (one, two) = bytes.split_at(len / 3);
                device.write_vectored_at(offset, &[one, &[], two]).unwrap();
            }
        }
        model[at..at + len].copy_from_slice(&bytes);
        let len = random.random_range(0..100_000);
        let at = random.random_range(0..model.len() - len);
        let mut back = vec![9; len];
        device.read_at((start + at) as u64, &mut back).unwrap();
        assert!(back == model[at..at + len]);
    }
}

/// Overlapping stores and loads: any mixture, and no torn program.
#[test]
fn overlapping_requests_mix() {
    let Some(folder) = folder() else { return };
    let path = folder.path().join("image");
    sparse(&path, 1 << 16);
    let device = DaxDevice::open(&path, 0, Access::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for fill in 1..=4_u8 {
            let device = &device;
            scope.spawn(move || {
                let mut back = vec![0; 8192];
                for round in 0..500 {
                    device.write_at(round % 7 * 100, &[fill; 8000]).unwrap();
                    device.read_at(50, &mut back).unwrap();
                    assert!(back.iter().all(|byte| *byte <= 4));
                }
            });
        }
    });
}

#[test]
fn ranges_access_and_stores_are_checked() {
    let Some(folder) = folder() else { return };
    let path = folder.path().join("image");
    sparse(&path, 3 * CHUNK);
    let reader = DaxDevice::open(&path, 0, Access::ReadOnly).unwrap();
    assert!(reader.read_only() && !reader.fresh_zeroes());
    let mut bytes = [1; 5000];
    reader.read_at(CHUNK - 2500, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 5000]);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "reading a hole fills nothing");
    assert_eq!(reader.write_at(0, b"x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    reader.flush().unwrap();
    let in_use = DaxDevice::open(&path, 0, Access::ReadWrite).unwrap_err();
    assert!(matches!(in_use, OpenError::InUse { .. }), "{in_use}");
    drop(reader);

    let device: SharedDevice = Arc::new(DaxDevice::open(&path, 0, Access::ReadWrite).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, 3 * CHUNK);
    assert!(matches!(FileDevice::open(&path, Access::ReadOnly, 0), Err(OpenError::InUse { .. })));
    assert!(device.write_at(3 * CHUNK - 1, b"xy").is_err());
    assert!(device.write_vectored_at(3 * CHUNK - 1, &[b"x", b"y"]).is_err());
    assert_eq!(device.read_at(3 * CHUNK - 1, &mut [1]).unwrap(), ());
    assert!(device.read_at(u64::MAX, &mut [1]).is_err());
    assert!(device.fresh_zeroes());
    assert!(!device.punch(0, CHUNK).unwrap() && !device.discard(0, CHUNK).unwrap());
    assert!(device.queue(crate::queue::QueueOptions::new(4)).is_ok());
    drop(device);

    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("image");
    sparse(&path, 4096);
    if !is_byte_addressable(&File::open(&path).unwrap()).unwrap() {
        let error = DaxDevice::open(&path, 0, Access::ReadWrite).unwrap_err();
        assert!(matches!(error, OpenError::NotByteAddressable { .. }), "{error}");
    }
}

/// Needs root, to mount a store that is small; says so without it.
#[test]
fn a_full_store_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=8m", "none"];
    match Command::new("mount").args(mount).arg(folder.path()).output() {
        Ok(output) if output.status.success() => {}
        other => return println!("skipped: {other:?}"),
    }
    let checked = std::panic::catch_unwind(|| {
        let path = folder.path().join("image");
        sparse(&path, 64 << 20);
        let error = DaxDevice::open(&path, 0, Access::ReadWrite).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "nothing was kept");

        let open = || DaxDevice::open_with(&path, 0, Access::ReadWrite, Allocate::AtWrite);
        let device = open().unwrap();
        let mut written = 0;
        let error = loop {
            match device.write_at(written, &[7; 4096]) {
                Ok(()) => written += 4096,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert_eq!(written, 4 * CHUNK);
        // What was written is there, can be written again, and holes are read.
        device.write_at(0, &[8; 4096]).unwrap();
        let mut bytes = vec![1; 8192];
        device.read_at(written - 4096, &mut bytes).unwrap();
        assert!(bytes[..4096].iter().all(|byte| *byte == 7));
        assert!(bytes[4096..].iter().all(|byte| *byte == 0));
        drop(device);
        // The same again, of a file that is in part there.
        let device = open().unwrap();
        assert!(device.write_at(written, &[1]).is_err() && !device.fresh_zeroes());
        device.read_at(2 * CHUNK, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    });
    assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
    checked.unwrap();
}

/// Fault model: a mapped partition that is written past its end.
#[test]
fn a_limit_is_an_end() {
    let Some(folder) = folder() else { return };
    let path = folder.path().join("image");
    fs::write(&path, [7; 12288]).unwrap();
    let device = DaxDevice::open(&path, 4096, Access::ReadWrite).unwrap().limited_to(4096);
    assert_eq!(device.len(), 4096);
    device.write_at(0, &[1; 4096]).unwrap();
    assert!(device.write_at(4095, &[1; 2]).is_err());
    assert!(device.store(4096, &[1]).is_err() && device.load(4096, &mut [0]).is_err());
    assert!(device.write_vectored_at(0, &[&[1; 4096], &[1]]).is_err());
    drop(device);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes, [[7; 4096], [1; 4096], [7; 4096]].concat());
}
