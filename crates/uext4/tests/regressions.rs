//! Bugs that were found by reading the engine, one scenario each; every one failed before it was
//! mended.
//!
//! Fault model: that of each scenario, told above it.

mod common;
use common::{assert_clean, e2fsck, gated, have, mke2fs, mount, mount_with, new, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uext4::{AllocateMode, ErrorKind, MountOptions, SetAttr, SetTime, Volume};
use uext4_device::{Device, Gate, MemoryDevice, SharedDevice};
use uext4_ondisk::FileKind;

/// 1: a block leaves the cache between the snapshot and its publication.
#[test]
fn a_block_stays_in_memory_until_its_commit_is_published() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(128, "-b 1024 -N 20000 -J size=16"));
    {
        let v = mount(&memory);
        let root = v.root().unwrap();
        for i in 0..4000 {
            v.create(&root, format!("d{i}").as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
        }
        drop(root);
        v.close().unwrap();
    }
    let gate = Arc::new(Gate::default());
    let device = gated(memory.clone(), &gate, |request| request.is_durable());
    let o = MountOptions {
        cache_bytes: 4 << 20,
        commit_interval_ms: 900_000,
        ..MountOptions::default()
    };
    let v = Volume::open(device, o).unwrap();
    let root = v.root().unwrap();
    let d = v.lookup(&root, b"d17").unwrap();
    v.create(&d, b"new", &new(FileKind::Regular, 0o644)).unwrap();
    let opened = gate.close();
    let v2 = v.clone();
    let t = std::thread::spawn(move || v2.sync());
    wait_until("the flush of the commit", || gate.is_met());
    for round in 0..3 {
        for i in 0..4000 {
            if i == 17 {
                continue;
            }
            let x = v.lookup(&root, format!("d{i}").as_bytes()).unwrap();
            let mut n = 0;
            v.read_dir(&x, 0, &mut |_| {
                n += 1;
                true
            })
            .unwrap();
            assert_eq!(n, 2, "{round}");
        }
    }
    let found = v.lookup(&d, b"new").map(|i| i.ino());
    drop(opened);
    t.join().unwrap().unwrap();
    println!("while committing: {found:?}");
    assert!(found.is_ok());
}

/// 2: several edits in one handle overflow a leaf twice.
#[test]
fn many_edits_of_one_leaf_find_their_nodes() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(256, "-b 1024 -J size=16"));
    let o = MountOptions { commit_interval_ms: 900_000, ..MountOptions::default() };
    let v = mount_with(&memory, o);
    let root = v.root().unwrap();
    let i = v.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    let f = v.open_file(&i).unwrap();
    f.allocate(AllocateMode::Allocate { keep_size: false }, 0, 60_000 * 1024).unwrap();
    for block in (0..40_000u64).step_by(4) {
        f.write_at(block * 1024, &[7; 1024]).unwrap();
    }
    f.sync(false).unwrap();
    let mut seed = 12345u64;
    for round in 0..2000 {
        let base = 200 * (round % 190);
        for _ in 0..8 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            f.write_at((base + seed % 200) * 1024, &[7; 1024]).unwrap();
        }
        if let Err(e) = f.sync(false) {
            panic!("round {round}: {e}");
        }
    }
    for round in 0..2000 {
        for _ in 0..8 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            f.write_at((40_000 + 30 * (round / 4) + seed % 150) * 1024, &[7; 1024]).unwrap();
        }
        if let Err(e) = f.sync(false) {
            panic!("round {round}: {e}");
        }
    }
}

fn patched_loop() -> Arc<MemoryDevice> {
    let memory = Arc::new(mke2fs(16, "-b 1024 -O ^metadata_csum,^dir_index"));
    let ino = {
        let v = mount(&memory);
        let root = v.root().unwrap();
        let d = v.create(&root, b"dir", &new(FileKind::Directory, 0o755)).unwrap();
        v.create(&d, b"selfsame", &new(FileKind::Directory, 0o755)).unwrap();
        let n = d.ino().get();
        drop((root, d));
        v.close().unwrap();
        n
    };
    let mut all = vec![0; memory.len() as usize];
    memory.read_at(0, &mut all).unwrap();
    let mut done = 0;
    for at in 0..all.len() - 8 {
        if &all[at..at + 8] == b"selfsame" && at % 1024 >= 32 {
            memory.write_at(at as u64 - 8, &ino.to_le_bytes()).unwrap();
            done += 1;
        }
    }
    assert!(done > 0);
    memory
}

/// 3: an entry that names its own directory.
#[test]
fn a_directory_that_holds_itself_is_refused() {
    if !have("mke2fs") {
        return;
    }
    let memory = patched_loop();
    let v = mount(&memory);
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let root = v.root().unwrap();
        let d = v.lookup(&root, b"dir").unwrap();
        let r = v.rmdir(&d, b"selfsame");
        tx.send(r.map_err(|e| e.to_string())).unwrap();
    });
    println!("{:?}", rx.recv_timeout(Duration::from_secs(3)).expect("rmdir hangs"));
}

/// 4: partial overwrites under memory pressure.
#[test]
fn a_partial_overwrite_keeps_the_rest_under_memory_pressure() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(128, "-b 4096"));
    let o = MountOptions { cache_bytes: 512 << 10, ..MountOptions::default() };
    let v = mount_with(&memory, o);
    let root = v.root().unwrap();
    let big = v.create(&root, b"big", &new(FileKind::Regular, 0o644)).unwrap();
    let bf = Arc::new(v.open_file(&big).unwrap());
    bf.write_at(0, &vec![1; 32 << 20]).unwrap();
    let a = v.create(&root, b"a", &new(FileKind::Regular, 0o644)).unwrap();
    let af = Arc::new(v.open_file(&a).unwrap());
    af.write_at(0, &vec![0xaa; 8 << 20]).unwrap();
    v.sync().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for t in 0..6u64 {
        let (bf, stop) = (bf.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            let mut s = t + 99;
            let mut buf = vec![0; 4096];
            while !stop.load(Ordering::Relaxed) {
                s ^= s << 13;
                s ^= s >> 7;
                s ^= s << 17;
                bf.read_at(s % 8000 * 4096, &mut buf).unwrap();
            }
        }));
    }
    let mut s = 4242u64;
    let mut bad = 0;
    let mut n = 0u64;
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        let block = s % 2048;
        let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            af.write_at(block * 4096 + 100, &[0xaa]).unwrap();
        }));
        if r.is_err() {
            bad += 1;
            println!("panic after {n}");
            break;
        }
        let mut b = [0; 64];
        af.read_at(block * 4096 + 2000, &mut b).unwrap();
        if b != [0xaa; 64] {
            bad += 1;
            println!("after {n} writes block {block} reads {:?}", &b[..4]);
            break;
        }
        n += 1;
    }
    stop.store(true, Ordering::Relaxed);
    for t in threads {
        t.join().unwrap();
    }
    println!("{n} writes");
    assert_eq!(bad, 0);
}

/// 7: a damaged log is refused once only.
#[test]
fn a_damaged_log_is_refused_every_time() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(32, "-b 4096"));
    let v = mount(&memory);
    let root = v.root().unwrap();
    for i in 0..20 {
        v.create(&root, format!("x{i}").as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    }
    v.sync().unwrap();
    drop(root);
    v.abandon();
    let mut all = vec![0; memory.len() as usize];
    memory.read_at(0, &mut all).unwrap();
    let mut hit = 0;
    for b in 0..all.len() / 4096 {
        let h = &all[b * 4096..b * 4096 + 8];
        if h == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 1] {
            memory.write_at((b as u64 + 2) * 4096 + 2000, b"garbage!").unwrap();
            hit += 1;
            break;
        }
    }
    assert_eq!(hit, 1);
    let first = Volume::open(memory.clone() as SharedDevice, MountOptions::default())
        .map(|_| ())
        .map_err(|e| e.to_string());
    let second = Volume::open(memory.clone() as SharedDevice, MountOptions::default())
        .map(|_| ())
        .map_err(|e| e.to_string());
    println!("first {first:?}\nsecond {second:?}");
    assert!(first.is_err() && second.is_err());
}

/// 8: after damage with errors=remount-ro, fsync and close say Ok while data is lost.
#[test]
fn a_sync_after_damage_says_no() {
    if !have("mke2fs") {
        return;
    }
    let memory = patched_loop();
    // make `selfsame` name inode 5 (reserved)
    let mut all = vec![0; memory.len() as usize];
    memory.read_at(0, &mut all).unwrap();
    for at in 0..all.len() - 8 {
        if &all[at..at + 8] == b"selfsame" && at % 1024 >= 32 {
            memory.write_at(at as u64 - 8, &5u32.to_le_bytes()).unwrap();
        }
    }
    let o = MountOptions {
        errors: Some(uext4::config::OnError::RemountReadOnly),
        ..MountOptions::default()
    };
    let v = mount_with(&memory, o);
    let root = v.root().unwrap();
    let i = v.create(&root, b"data", &new(FileKind::Regular, 0o644)).unwrap();
    let f = v.open_file(&i).unwrap();
    f.write_at(0, b"acknowledged").unwrap();
    let d = v.lookup(&root, b"dir").unwrap();
    assert!(v.lookup(&d, b"selfsame").is_err());
    let synced = f.sync(false).map_err(|e| e.to_string());
    drop((root, i, f, d));
    let closed = v.close().map_err(|e| e.to_string());
    let v = mount(&memory);
    let root = v.root().unwrap();
    let size = v.lookup(&root, b"data").map(|i| v.attr(&i).size).map_err(|e| e.to_string());
    println!("fsync {synced:?} close {closed:?} size after {size:?}");
    assert!(synced.is_err() || size == Ok(12));
}

/// 10: close with an unlinked inode still held, orphan file.
#[test]
fn a_closed_volume_has_no_orphans() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(16, "-b 1024 -O orphan_file"));
    let v = mount(&memory);
    let root = v.root().unwrap();
    let i = v.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    v.unlink(&root, b"f").unwrap();
    v.close().unwrap();
    drop((root, i));
    let (code, text) = e2fsck(&memory, "-fn");
    println!("{code} {text}");
    assert_eq!(code, 0);
}

/// 6: fsync of a file whose inode left memory after an in-place write.
#[test]
fn a_sync_flushes_what_was_written_before_the_inode_left_memory() {
    if !have("mke2fs") {
        return;
    }
    let memory = mke2fs(256, "-b 4096 -N 30000");
    let rec = uext4_device::MeteredDevice::new(Arc::new(memory));
    let rec = Arc::new(rec);
    let o = MountOptions {
        cache_bytes: 2 << 20,
        dirty_expire_ms: 1,
        commit_interval_ms: 900_000,
        ..MountOptions::default()
    };
    let v = Volume::open(rec.clone() as SharedDevice, o).unwrap();
    let root = v.root().unwrap();
    let a = v.create(&root, b"a", &new(FileKind::Regular, 0o644)).unwrap();
    let f = v.open_file(&a).unwrap();
    f.write_at(0, &vec![1; 64 << 10]).unwrap();
    let big = v.create(&root, b"big", &new(FileKind::Regular, 0o644)).unwrap();
    let b = v.open_file(&big).unwrap();
    b.write_at(0, &vec![1; 4 << 20]).unwrap();
    for i in 0..3000 {
        v.create(&root, format!("n{i}").as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    }
    v.sync().unwrap();
    // In-place overwrite, then its times go into a transaction that is committed.
    f.write_at(0, &vec![2; 64 << 10]).unwrap();
    v.set_attr(&a, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    let g = v.create(&root, b"g", &new(FileKind::Regular, 0o644)).unwrap();
    v.open_file(&g).unwrap().sync(false).unwrap();
    drop((f, a));
    std::thread::sleep(Duration::from_millis(500));
    let before = rec.read_meter();
    // Dirty pages of another file press it out, in place as well.
    let _ = &b;
    std::thread::sleep(Duration::from_secs(7));
    for i in 0..3000 {
        v.lookup(&root, format!("n{i}").as_bytes()).unwrap();
    }
    for i in 0..3000 {
        v.lookup(&root, format!("n{i}").as_bytes()).unwrap();
    }
    println!("{:?}", rec.read_meter().since(&before));
    let a = v.lookup(&root, b"a").unwrap();
    let f = v.open_file(&a).unwrap();
    f.sync(false).unwrap();
    let after = rec.read_meter();
    println!(
        "writes {} flushes {} fua {}",
        after.writes - before.writes,
        after.flushes - before.flushes,
        after.fua_writes - before.fua_writes
    );
    assert!(after.flushes > before.flushes, "no flush since the overwrite");
}

/// A clean page over a hole, left by a write that was refused, became dirty when the file was cut
/// inside it: a block was allocated that was not reserved, and a full volume said "no space".
#[test]
fn cutting_a_file_inside_a_hole_needs_no_space() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, "-b 1024"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    let sparse = volume.create(&root, b"sparse", &new(FileKind::Regular, 0o644)).unwrap();
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    volume.set_attr(&sparse, &size(5_000)).unwrap();
    let fill = volume.create(&root, b"fill", &new(FileKind::Regular, 0o644)).unwrap();
    let fill = volume.open_file(&fill).unwrap();
    let mut end = 0;
    for len in [1 << 20, 64 << 10, 1 << 10] {
        let mode = AllocateMode::Allocate { keep_size: true };
        while end < 16 << 20 && fill.allocate(mode, end, len).is_ok() {
            end += len;
        }
    }
    let file = volume.open_file(&sparse).unwrap();
    let refused = file.write_at(4_200, &[1; 10]).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::NoSpace);
    volume.set_attr(&sparse, &size(4_300)).unwrap();
    volume.sync().unwrap();
    drop((root, sparse, fill, file));
    volume.close().unwrap();
    assert_clean(&device);
}
