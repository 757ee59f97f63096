//! Files and directories whose data is in the inode (inline_data).
//!
//! Fault model: bytes that are lost, shown twice or shown behind the end when the data grows in the
//! inode, moves to a block, is cut or punched, or meets extended attributes that want the same
//! room; an entry or a cursor that does not survive the move of a directory; a change that needs a
//! block where there is none; damage that says more than the inode holds. A model judges content,
//! e2fsck the image. Not covered: crashes (the crash kit, `--format inline_data`), and what the
//! kernel makes of the files (`features` of the command's tests).

mod common;

use common::{Model, assert_clean, cut, have, mke2fs, mount, mount_with, new};
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, InodeRef, MountOptions, RenameMode, Volume, XattrMode};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::{FileKind, InodeFlags};

const INLINE: u32 = InodeFlags::INLINE_DATA.bits();

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn create(volume: &Volume, dir: &InodeRef, name: &str) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
}

fn mkdir(volume: &Volume, dir: &InodeRef, name: &str) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap()
}

fn is_inline(volume: &Volume, inode: &InodeRef) -> bool {
    volume.flags(inode) & INLINE != 0
}

fn read_all(volume: &Volume, inode: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    let len = volume.open_file(inode).unwrap().read_at(0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// One change of a file and its model.
fn change(volume: &Volume, inode: &InodeRef, model: &mut Model, most: usize, state: &mut u64) {
    let file = volume.open_file(inode).unwrap();
    let at = random(state) as usize % most;
    let len = 1 + random(state) as usize % (most / 4);
    match random(state) % 16 {
        0..=6 => {
            let bytes: Vec<u8> = (0..len).map(|_| 1 + (random(state) % 250) as u8).collect();
            assert_eq!(file.write_at(at as u64, &bytes).unwrap(), len);
            model.write(at, &bytes);
        }
        7 | 8 => {
            let (begin, written) = file.append(&vec![7; len / 4 + 1]).unwrap();
            assert_eq!((begin as usize, written), (model.0.len(), len / 4 + 1));
            model.write(begin as usize, &vec![7; len / 4 + 1]);
        }
        9..=11 => {
            volume.set_attr(inode, &cut(at as u64)).unwrap();
            model.resize(at);
        }
        12 => {
            file.allocate(AllocateMode::PunchHole, at as u64, len as u64).unwrap();
            model.zero(at, at + len);
        }
        13 => {
            let value = vec![b'v'; random(state) as usize % 40];
            let name = format!("user.{}", random(state) % 2);
            volume.xattr_set(inode, name.as_bytes(), &value, XattrMode::Any).unwrap();
        }
        14 => _ = volume.xattr_remove(inode, b"user.0"),
        _ => file.sync(random(state).is_multiple_of(2)).unwrap(),
    }
}

#[test]
fn files_hold_what_was_written_in_the_inode_and_out_of_it() {
    if !have("mke2fs") {
        return;
    }
    // The most that a file gets, so that some stay in the inode and others leave it.
    let shapes = [
        ("-b 1024 -O inline_data", 200, ""),
        ("-b 4096 -O inline_data -I 1024", 1200, ""),
        ("-b 1024 -O inline_data -I 512", 500, "nodelalloc"),
        ("-b 1024 -O inline_data", 200, "data=journal"),
        ("-b 1024 -O inline_data,^extent,^64bit", 200, ""),
    ];
    for (seed, (shape, most, options)) in (1_u64..).zip(shapes) {
        let device = Arc::new(mke2fs(24, shape));
        let mut mount_options = MountOptions::default();
        if !options.is_empty() {
            mount_options.parse(options).unwrap();
        }
        let mut state = seed * 0x9e37_79b9;
        let (mut models, mut left) = (BTreeMap::new(), 0);
        for round in 0..4 {
            let volume = mount_with(&device, mount_options.clone());
            let root = volume.root().unwrap();
            for n in 0..12 {
                let name = format!("f{}", round * 6 + n);
                let model: &mut Model = models.entry(name.clone()).or_default();
                let inode = volume
                    .lookup(&root, name.as_bytes())
                    .unwrap_or_else(|_| create(&volume, &root, &name));
                for _ in 0..25 {
                    let small = if n % 3 == 0 { 60 } else { most };
                    change(&volume, &inode, model, small, &mut state);
                    assert!(read_all(&volume, &inode) == model.0, "{shape} {name}");
                }
                left += usize::from(!is_inline(&volume, &inode));
                assert!(volume.xattr_list(&inode).unwrap().iter().all(|x| x.starts_with(b"user.")));
            }
            volume.close().unwrap();
            assert_clean(&device);
            let volume = mount(&device);
            let root = volume.root().unwrap();
            for (name, model) in &models {
                let inode = volume.lookup(&root, name.as_bytes()).unwrap();
                assert!(read_all(&volume, &inode) == model.0, "{shape} {name}, read again");
            }
            volume.close().unwrap();
        }
        assert!((8..40).contains(&left), "{left} of 48 left the inode");
    }
}

#[test]
fn other_doors_see_the_same_bytes() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -O inline_data"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = create(&volume, &root, "file");
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[5; 100]).unwrap();
    assert!(is_inline(&volume, &inode));
    // As the kernel: to some programs a file without a block is a hole.
    assert_eq!((volume.attr(&inode).size, volume.attr(&inode).blocks_512), (100, 1));
    assert_eq!(file.seek_data(7).unwrap(), 7);
    assert_eq!(file.seek_hole(7).unwrap(), 100);
    let mut bytes = vec![0; 512];
    assert_eq!(file.read_direct_at(0, &mut bytes).unwrap(), 100);
    assert!(bytes[..100] == [5; 100] && bytes[100..] == [0; 412]);
    // `system.data` is no attribute that anybody could name.
    for name in [&b"system.data"[..], b"user.data"] {
        assert!(volume.xattr_get(&inode, name).is_err());
        assert!(volume.xattr_remove(&inode, name).is_err());
    }
    assert!(volume.xattr_set(&inode, b"system.data", b"x", XattrMode::Any).is_err());
    // Cut and lengthened, it has zeroes.
    volume.set_attr(&inode, &cut(70)).unwrap();
    volume.set_attr(&inode, &cut(110)).unwrap();
    assert!(is_inline(&volume, &inode));
    assert_eq!(read_all(&volume, &inode), [vec![5; 70], vec![0; 40]].concat());
    assert_eq!(file.write_at(500, &[]).unwrap(), 0);
    assert_eq!(volume.attr(&inode).size, 110);
    // A direct write, and fallocate, need blocks.
    file.write_direct_at(512, &[6; 512]).unwrap();
    assert!(!is_inline(&volume, &inode));
    let want = [vec![5; 70], vec![0; 442], vec![6; 512]].concat();
    assert_eq!(read_all(&volume, &inode), want);
    let other = create(&volume, &root, "other");
    let file = volume.open_file(&other).unwrap();
    file.write_at(3, b"abc").unwrap();
    file.allocate(AllocateMode::Allocate { keep_size: true }, 0, 5000).unwrap();
    assert!(!is_inline(&volume, &other));
    assert_eq!(read_all(&volume, &other), b"\0\0\0abc");
    // A link without a name, and one that gets it.
    let nameless = volume.create_unlinked(&root, &new(FileKind::Regular, 0o600)).unwrap();
    volume.open_file(&nameless).unwrap().write_at(0, b"later").unwrap();
    volume.link(&nameless, &root, b"named").unwrap();
    drop((file, nameless));
    volume.close().unwrap();
    assert_clean(&device);
}

fn names(volume: &Volume, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    volume
        .read_dir(dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
    assert_eq!(names[..2], [".", ".."]);
    names.drain(..2);
    names.sort();
    names
}

#[test]
fn directories_grow_in_the_inode_and_out_of_it() {
    if !have("mke2fs") {
        return;
    }
    let shapes = [
        "-b 1024 -O inline_data",
        "-b 4096 -O inline_data,^dir_index,^metadata_csum",
        "-b 1024 -O inline_data -I 1024",
        "-b 1024 -O inline_data,^filetype,^extent,^64bit",
    ];
    for (seed, shape) in (1_u64..).zip(shapes) {
        let device = Arc::new(mke2fs(24, shape));
        let mut state = seed * 0x9e37_79b9;
        let mut models: Vec<BTreeMap<String, ()>> = vec![BTreeMap::new(); 6];
        for _ in 0..3 {
            let volume = mount(&device);
            let root = volume.root().unwrap();
            let dirs: Vec<InodeRef> = (0..models.len())
                .map(|n| {
                    let name = format!("d{n}");
                    let found = volume.lookup(&root, name.as_bytes());
                    found.unwrap_or_else(|_| mkdir(&volume, &root, &name))
                })
                .collect();
            for _ in 0..400 {
                let n = random(&mut state) as usize % models.len();
                let len = 1 + random(&mut state) as usize % 12;
                let name = format!("{:0len$}", random(&mut state) % 12);
                let (dir, is_there) = (&dirs[n], models[n].contains_key(&name));
                match random(&mut state) % 8 {
                    0..=2 if !is_there && (n < 4 || models[n].len() < 4) => {
                        create(&volume, dir, &name);
                        models[n].insert(name, ());
                    }
                    0..=3 if is_there => {
                        let new = new(FileKind::Regular, 0o644);
                        let again = volume.create(dir, name.as_bytes(), &new);
                        assert_eq!(*again.unwrap_err().kind(), ErrorKind::Exists);
                    }
                    4 | 5 if is_there => {
                        volume.unlink(dir, name.as_bytes()).unwrap();
                        models[n].remove(&name);
                    }
                    6 if is_there => {
                        // In its directory or into another, over a name or not.
                        let to = if n < 4 { random(&mut state) as usize % 4 } else { n };
                        let new_name = format!("moved{}", random(&mut state) % 5);
                        let (old, new) = (name.as_bytes(), new_name.as_bytes());
                        volume.rename(dir, old, &dirs[to], new, RenameMode::Replace).unwrap();
                        models[n].remove(&name);
                        models[to].insert(new_name, ());
                    }
                    _ => assert_eq!(volume.lookup(dir, name.as_bytes()).is_ok(), is_there),
                }
                assert_eq!(names(&volume, dir), models[n].keys().cloned().collect::<Vec<_>>());
            }
            assert!(is_inline(&volume, &dirs[5]), "{shape}");
            assert!(!is_inline(&volume, &dirs[0]) || shape.contains("-I"), "{shape}");
            drop(dirs);
            volume.close().unwrap();
            assert_clean(&device);
        }
    }
}

#[test]
fn parents_and_cursors_survive_a_move() {
    if !have("mke2fs") {
        return;
    }
    for shape in ["-b 1024 -O inline_data", "-b 1024 -O inline_data,^dir_index"] {
        let device = Arc::new(mke2fs(16, shape));
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let (a, b) = (mkdir(&volume, &root, "a"), mkdir(&volume, &root, "b"));
        let child = mkdir(&volume, &a, "child");
        volume.rename(&a, b"child", &b, b"child", RenameMode::Replace).unwrap();
        assert!(is_inline(&volume, &child));
        assert_eq!(volume.lookup(&child, b"..").unwrap().ino(), b.ino());
        assert_eq!((volume.attr(&a).links, volume.attr(&b).links), (2, 3));
        let into = volume.rename(&root, b"b", &child, b"b", RenameMode::Replace);
        assert_eq!(*into.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(*volume.rmdir(&root, b"b").unwrap_err().kind(), ErrorKind::NotEmpty);
        volume.rmdir(&b, b"child").unwrap();
        volume.rmdir(&root, b"b").unwrap();
        // Listed one by one, while entries move from the inode to a block and to a tree.
        let early: Vec<String> = (0..6).map(|n| format!("early{n}")).collect();
        early.iter().for_each(|name| _ = create(&volume, &a, name));
        let (mut cursor, mut seen) = (0, Vec::new());
        for n in 0.. {
            let mut one = None;
            volume
                .read_dir(&a, cursor, &mut |entry| {
                    let is_first = one.is_none();
                    if is_first {
                        one = Some((String::from_utf8_lossy(entry.name).into_owned(), entry.next));
                    }
                    is_first
                })
                .unwrap();
            let Some((name, next)) = one else { break };
            assert!(next > cursor);
            (cursor, seen) = (next, [seen, vec![name]].concat());
            if n < 40 {
                create(&volume, &a, &format!("late{n}"));
            }
        }
        assert!(!is_inline(&volume, &a));
        seen.retain(|name| name.starts_with("early"));
        seen.sort();
        assert_eq!(seen, early, "{shape}");
        volume.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn a_full_file_system_still_cuts_and_refuses() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, "-b 1024 -O inline_data -m 0 -N 2000"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = create(&volume, &root, "file");
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[3; 120]).unwrap();
    let dir = mkdir(&volume, &root, "dir");
    let big = volume.open_file(&create(&volume, &root, "big")).unwrap();
    let mut at = 0;
    while let Ok(len) = big.write_at(at, &[1; 4096]) {
        at += len as u64;
    }
    big.sync(false).unwrap();
    // Reservations are worst cases; what they left goes to small files.
    for n in 0.. {
        let probe = volume.open_file(&create(&volume, &root, &format!("probe{n}"))).unwrap();
        probe.write_at(0, &[1; 50]).unwrap();
        if probe.write_at(100, &[1; 400]).is_err() {
            break;
        }
        probe.sync(false).unwrap();
    }
    let no_space = |error: uext4::Error| assert_eq!(*error.kind(), ErrorKind::NoSpace, "{error}");
    no_space(file.write_at(100, &[4; 400]).unwrap_err());
    no_space(file.allocate(AllocateMode::Allocate { keep_size: false }, 0, 200).unwrap_err());
    assert_eq!(read_all(&volume, &inode), [3; 120]);
    for n in 0.. {
        let new = new(FileKind::Regular, 0o644);
        if let Err(error) = volume.create(&dir, format!("name{n}").as_bytes(), &new) {
            no_space(error);
            assert_eq!(names(&volume, &dir).len(), n);
            break;
        }
    }
    assert!(is_inline(&volume, &dir) && is_inline(&volume, &inode));
    file.allocate(AllocateMode::PunchHole, 10, 20).unwrap();
    volume.set_attr(&inode, &cut(50)).unwrap();
    assert_eq!(read_all(&volume, &inode), [vec![3; 10], vec![0; 20], vec![3; 20]].concat());
    file.write_at(50, &[9; 70]).unwrap();
    volume.set_attr(&inode, &cut(0)).unwrap();
    let mut names = names(&volume, &dir).into_iter();
    volume.unlink(&dir, names.next().unwrap().as_bytes()).unwrap();
    create(&volume, &dir, "again0");
    drop((file, big));
    volume.close().unwrap();
    assert_clean(&device);
}

/// Byte of an inode's slot on the device, in a file system of one group.
fn slot_of(device: &MemoryDevice, ino: u64) -> u64 {
    let mut number = [0; 4];
    device.read_at(2048 + 8, &mut number).unwrap();
    u64::from(u32::from_le_bytes(number)) * 1024 + (ino - 1) * 256
}

/// Fault model: each field of the form says something that it may not.
#[test]
fn damage_is_refused() {
    if !have("mke2fs") {
        return;
    }
    let shape = "-b 1024 -O inline_data,^metadata_csum,^64bit,^resize_inode -N 64";
    let device = Arc::new(mke2fs(4, shape));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let file = create(&volume, &root, "file");
    volume.open_file(&file).unwrap().write_at(0, &[3; 100]).unwrap();
    let dir = mkdir(&volume, &root, "dir");
    for n in 0..5 {
        create(&volume, &dir, &format!("entry{n}"));
    }
    assert!(is_inline(&volume, &file) && is_inline(&volume, &dir));
    let (file, dir) = (u64::from(file.ino().get()), u64::from(dir.ino().get()));
    volume.close().unwrap();
    let i_block = 0x28;
    let area = 128 + 32;
    // `user.a`, whose 40 bytes are those that the data has beside the block map.
    let mut overlap = [0; 24];
    (overlap[0], overlap[1], overlap[2], overlap[8], overlap[16]) = (1, 1, 52, 40, b'a');
    let damage: [(u64, u64, &[u8]); 15] = [
        (file, area + 24, &overlap), // bytes that are another attribute's as well
        (file, 4, &1000_u32.to_le_bytes()), // larger than the inode
        (file, 0x20, &0x1008_0000_u32.to_le_bytes()), // extents besides
        (file, area, &[0; 4]),       // no attributes
        (file, area + 4 + 1, &[1]),  // another attribute
        (file, area + 4 + 2, &[0xff, 0xff]), // the value is elsewhere
        (file, area + 4 + 4, &[9]),  // in an inode of its own
        (file, area + 4 + 8, &[0xff; 4]), // too long
        (dir, 4, &1024_u32.to_le_bytes()), // another size
        (dir, i_block, &[0; 4]),     // no parent
        (dir, i_block, &[0xff; 4]),  // a parent that does not exist
        (dir, i_block + 4 + 4, &[3]), // a record that is too short
        (dir, i_block + 4 + 4, &[0xf0]), // and one that is too long
        (dir, i_block + 4, &[0xff; 4]), // an inode that does not exist
        (dir, i_block + 4 + 8, b"../"), // a name that cannot be
    ];
    let good: Vec<u8> = whole(&device);
    for (ino, at, bytes) in damage {
        device.write_at(0, &good).unwrap();
        device.write_at(slot_of(&device, ino) + at, bytes).unwrap();
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let touch = |inode: InodeRef| -> uext4::Result<()> {
            match inode.kind() {
                FileKind::Directory => {
                    volume.read_dir(&inode, 0, &mut |_| true)?;
                    volume.lookup(&inode, b"..")?;
                    volume.create(&inode, b"new", &new(FileKind::Regular, 0o644)).map(drop)
                }
                _ => volume.open_file(&inode)?.write_at(0, &[9; 200]).map(drop),
            }
        };
        let name: &[u8] = if ino == file { b"file" } else { b"dir" };
        let touched = volume.lookup(&root, name).and_then(touch);
        let error = touched.expect_err(&format!("byte {at} of inode {ino}"));
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "byte {at} of {ino}: {error}");
        volume.close().unwrap();
    }
}

fn whole(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.len()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}
