//! Values of attributes in inodes of their own (ea_inode).
//!
//! Fault model: a value that is lost, cut or another one's; counts of references, sizes and counts
//! of blocks that disagree with the entries; equal values that are not shared; values that stay
//! when nobody refers to them, or go while somebody does; a change that fails half way, for want of
//! blocks or inodes. A model judges values, e2fsck the image, the kernel both. Not covered: crashes
//! (the crash kit, `--format ea_inode`).

mod common;

use common::{assert_clean, have, mke2fs, mount, mount_with, new};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use uext4::{ErrorKind, InodeRef, MountOptions, SetAttr, Volume, XattrMode};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

type Attributes = BTreeMap<String, Vec<u8>>;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn create(volume: &Volume, name: &str) -> InodeRef {
    let root = volume.root().unwrap();
    volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
}

fn lookup(volume: &Volume, name: &str) -> InodeRef {
    volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap()
}

fn unlink(volume: &Volume, name: &str) {
    volume.unlink(&volume.root().unwrap(), name.as_bytes()).unwrap();
}

fn set(volume: &Volume, inode: &InodeRef, name: &str, value: &[u8]) -> Result<(), ErrorKind> {
    let result = volume.xattr_set(inode, name.as_bytes(), value, XattrMode::Any);
    result.map_err(|error| error.kind().clone())
}

/// One of few values, most of which need an inode.
fn value(n: u64) -> Vec<u8> {
    const LENGTHS: [usize; 10] = [0, 30, 700, 967, 969, 4041, 5000, 12_345, 33_000, 65_536];
    let len = LENGTHS[n as usize % LENGTHS.len()];
    (0..len).map(|at| (at as u64 * 31 + n / 3) as u8).collect()
}

fn assert_values(volume: &Volume, inode: &InodeRef, want: &Attributes, what: &str) {
    let mut names = volume.xattr_list(inode).unwrap();
    names.sort();
    let wanted: Vec<_> = want.keys().map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(names, wanted, "{what}");
    for (name, value) in want {
        let found = volume.xattr_get(inode, name.as_bytes()).unwrap();
        assert!(found == *value, "{what} {name}: {} bytes for {}", found.len(), value.len());
    }
}

fn free_inodes(volume: &Volume) -> u64 {
    volume.stat_fs().inodes_free
}

#[test]
fn values_are_those_of_a_model() {
    if !have("mke2fs") {
        return;
    }
    let shapes = [
        "-b 1024 -O ea_inode",
        "-b 4096 -O ea_inode -I 1024",
        "-b 1024 -I 128 -O ea_inode,^extent,^64bit,^metadata_csum,^orphan_file",
        "-b 1024 -O ea_inode,bigalloc -C 8192",
        "-b 1024 -O ea_inode,inline_data",
        "-b 1024 -O ea_inode,^has_journal",
    ];
    for (seed, shape) in (1_u64..).zip(shapes) {
        let device = Arc::new(mke2fs(48, shape));
        let mut state = seed * 0x9e37_79b9;
        let mut model: BTreeMap<String, Attributes> = BTreeMap::new();
        let mut free = 0;
        for round in 0..3 {
            let volume = mount(&device);
            if round == 0 {
                free = free_inodes(&volume);
            }
            for (name, attributes) in &model {
                assert_values(&volume, &lookup(&volume, name), attributes, shape);
            }
            for _ in 0..150 {
                let file = format!("f{}", random(&mut state) % 24);
                if random(&mut state).is_multiple_of(12) && model.remove(&file).is_some() {
                    unlink(&volume, &file);
                    continue;
                }
                let inode = match model.contains_key(&file) {
                    true => lookup(&volume, &file),
                    false => create(&volume, &file),
                };
                let attributes = model.entry(file).or_default();
                let name = format!("user.n{}", random(&mut state) % 6);
                if random(&mut state).is_multiple_of(4) {
                    let removed = volume.xattr_remove(&inode, name.as_bytes());
                    assert_eq!(removed.is_ok(), attributes.remove(&name).is_some(), "{shape}");
                    continue;
                }
                let value = value(random(&mut state));
                match set(&volume, &inode, &name, &value) {
                    Ok(()) => _ = attributes.insert(name, value),
                    // A value fills the block, and the next has no room even for its entry.
                    Err(error) => assert_eq!(error, ErrorKind::NoSpace, "{shape}"),
                }
                assert_values(&volume, &inode, attributes, shape);
            }
            volume.close().unwrap();
            assert_clean(&device);
        }
        let volume = mount(&device);
        model.keys().for_each(|name| unlink(&volume, name));
        assert_eq!(free_inodes(&volume), free, "{shape}: values stay");
        volume.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn equal_values_share_an_inode() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(24, "-b 1024 -O ea_inode"));
    let volume = mount(&device);
    let free = free_inodes(&volume);
    let (one, two) = (create(&volume, "one"), create(&volume, "two"));
    for (inode, name) in [(&one, "user.a"), (&one, "user.b"), (&two, "user.a")] {
        set(&volume, inode, name, &value(7)).unwrap();
    }
    assert_eq!(free_inodes(&volume), free - 3);
    // Of the same length.
    set(&volume, &two, "user.b", &value(17)).unwrap();
    assert_eq!(free_inodes(&volume), free - 4);
    // Each has blocks for both of its values.
    assert!(
        volume.attr(&one).blocks_512 >= 2 * 2 * 13 && volume.attr(&two).blocks_512 >= 2 * 2 * 13
    );
    set(&volume, &one, "user.a", b"short").unwrap();
    volume.xattr_remove(&one, b"user.b").unwrap();
    assert_eq!(free_inodes(&volume), free - 4, "two refers to it");
    drop(two);
    unlink(&volume, "two");
    assert_eq!(free_inodes(&volume), free - 1);
    drop(one);
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_full_file_system_keeps_the_old_value() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, "-b 1024 -N 64 -O ea_inode"));
    let volume = mount(&device);
    let (mut model, mut refused) = (BTreeMap::<String, Vec<u8>>::new(), 0);
    let inode = create(&volume, "file");
    let other = create(&volume, "other");
    for n in 0..400_u64 {
        // Different values, so that none is shared.
        let mut bytes = vec![3; 65_000];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        let name = format!("user.n{}", n % 40);
        match set(&volume, &inode, &name, &bytes) {
            Ok(()) => _ = model.insert(name, bytes),
            Err(error) => {
                assert_eq!(error, ErrorKind::NoSpace);
                refused += 1;
            }
        }
        if n == 20 {
            let most = volume.stat_fs().blocks_available as usize * 1024 - (200 << 10);
            volume.open_file(&other).unwrap().write_at(0, &vec![1; most]).unwrap();
        }
    }
    assert!(refused > 0 && !model.is_empty());
    assert_values(&volume, &inode, &model, "full");
    drop((inode, other));
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount(&device);
    assert_values(&volume, &lookup(&volume, "file"), &model, "again");
    unlink(&volume, "file");
    volume.close().unwrap();
    assert_clean(&device);
}

/// More values than one handle releases, in the inode and in the block.
#[test]
fn a_file_with_many_values_is_deleted() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096 -I 2048 -J size=4 -O ea_inode"));
    let volume = mount(&device);
    let free = free_inodes(&volume);
    let inode = create(&volume, "file");
    for n in 0..200_u64 {
        let mut bytes = vec![5; 4200];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        set(&volume, &inode, &format!("user.n{n}"), &bytes).unwrap();
    }
    assert_eq!(free_inodes(&volume), free - 201);
    drop(inode);
    unlink(&volume, "file");
    assert_eq!(free_inodes(&volume), free);
    volume.close().unwrap();
    assert_clean(&device);
}

/// Another owner and other bits of the mode: nothing of it concerns the values.
#[test]
fn values_stay_with_a_file_that_changes() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(24, "-b 1024 -O ea_inode"));
    let volume = mount_with(&device, MountOptions::default());
    let inode = create(&volume, "file");
    set(&volume, &inode, "user.a", &value(8)).unwrap();
    let change = SetAttr { uid: Some(7), mode: Some(0o600), ..SetAttr::default() };
    volume.set_attr(&inode, &change).unwrap();
    volume.open_file(&inode).unwrap().write_at(0, &[1; 3000]).unwrap();
    drop(inode);
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount(&device);
    let want = Attributes::from([("user.a".to_owned(), value(8))]);
    assert_values(&volume, &lookup(&volume, "file"), &want, "changed");
    volume.close().unwrap();
}

/// A loop mount by the kernel, unmounted when dropped.
struct Mounted<'p>(&'p Path);

impl<'p> Mounted<'p> {
    /// `None`, with a message, if the kernel cannot mount here.
    fn new(image: &Path, point: &'p Path) -> Option<Self> {
        let output =
            Command::new("mount").args(["-o", "loop"]).arg(image).arg(point).output().ok()?;
        if !output.status.success() {
            eprintln!("skipped: mount: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(Self(point))
    }

    fn try_run(&self, tool: &str, args: &[&str], file: &str) -> Output {
        Command::new(tool).args(args).arg(self.0.join(file)).output().unwrap()
    }

    fn run(&self, tool: &str, args: &[&str], file: &str) -> Vec<u8> {
        let output = self.try_run(tool, args, file);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tool} {file}: {stderr}");
        output.stdout
    }

    fn set(&self, file: &str, name: &str, value: &[u8]) {
        self.run("setfattr", &["-n", name, "-v", &hex(value)], file);
    }

    fn assert_value(&self, file: &str, name: &str, want: &[u8]) {
        let args = ["--only-values", "--absolute-names", "-n", name];
        assert!(self.run("getfattr", &args, file) == want, "{file} {name}");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// As one argument, which has 128 KiB at most.
fn hex(value: &[u8]) -> String {
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(hex.len() + 3 < 128 << 10);
    format!("0x{hex}")
}

/// The same changes by both: which have room, and which values get an inode.
#[test]
fn values_go_where_the_kernel_puts_them() {
    if !have("mke2fs") || !have("setfattr") {
        return;
    }
    let shapes = ["-b 1024 -O ea_inode", "-b 1024 -I 128 -O ea_inode", "-b 4096 -O ea_inode"];
    for (seed, shape) in (1_u64..).zip(shapes) {
        let folder = tempfile::tempdir().unwrap();
        let (image, point) = (folder.path().join("image"), folder.path().join("point"));
        std::fs::create_dir(&point).unwrap();
        let made = mke2fs(32, shape);
        made.save(&image).unwrap();
        let (device, mut state) = (Arc::new(made), seed * 0x9e37_79b9);
        let volume = mount(&device);
        {
            let Some(kernel) = Mounted::new(&image, &point) else { return };
            for file in ["a", "b"] {
                std::fs::write(point.join(file), b"").unwrap();
                create(&volume, file);
            }
            for step in 0..150 {
                let file = ["a", "b"][random(&mut state) as usize % 2];
                let name = format!("user.n{}", random(&mut state) % 24);
                let inode = lookup(&volume, file);
                let (ours, kernels) = if random(&mut state).is_multiple_of(5) {
                    let args = ["-x", name.as_str()];
                    let ours = volume.xattr_remove(&inode, name.as_bytes()).is_ok();
                    (ours, kernel.try_run("setfattr", &args, file))
                } else {
                    const LENGTHS: [usize; 10] =
                        [10, 200, 900, 964, 965, 968, 969, 4036, 4040, 4041];
                    let mut value = vec![b'v'; LENGTHS[random(&mut state) as usize % 10]];
                    value[..8].copy_from_slice(&random(&mut state).to_le_bytes());
                    let args = ["-n", name.as_str(), "-v", &hex(&value)];
                    let ours = set(&volume, &inode, &name, &value).is_ok();
                    (ours, kernel.try_run("setfattr", &args, file))
                };
                assert_eq!(ours, kernels.status.success(), "{shape}: step {step} {name} of {file}");
            }
        }
        let free = free_inodes(&volume);
        volume.close().unwrap();
        assert_clean(&device);
        let kernels = Arc::new(MemoryDevice::load(&image).unwrap());
        let volume = mount(&kernels);
        assert_eq!(free_inodes(&volume), free, "{shape}");
        volume.close().unwrap();
    }
}

#[test]
fn the_kernel_and_uext4_change_the_same_values() {
    if !have("mke2fs") || !have("setfattr") {
        return;
    }
    let shapes = [
        "-b 1024 -O ea_inode",
        "-b 4096 -O ea_inode",
        "-b 1024 -I 128 -O ea_inode,^metadata_csum",
        "-b 1024 -O ea_inode,inline_data",
    ];
    for shape in shapes {
        let folder = tempfile::tempdir().unwrap();
        let (image, point) = (folder.path().join("image"), folder.path().join("point"));
        std::fs::create_dir(&point).unwrap();
        mke2fs(32, shape).save(&image).unwrap();
        let large = |n: u64| value(10 * n + 7);
        {
            let Some(kernel) = Mounted::new(&image, &point) else { return };
            for file in ["a", "b", "c", "d"] {
                std::fs::write(point.join(file), b"x").unwrap();
                for n in 0..3 {
                    kernel.set(file, &format!("user.n{n}"), &large(n));
                }
            }
        }
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        assert_clean(&device);
        let volume = mount(&device);
        let want = |n| format!("user.n{n}");
        let three: Attributes = (0..3).map(|n| (want(n), large(n))).collect();
        for file in ["a", "b", "c", "d"] {
            assert_values(&volume, &lookup(&volume, file), &three, shape);
        }
        // A block that the kernel shares is copied; a value of the kernel is left, by a change,
        // by a removal, and with the file.
        set(&volume, &lookup(&volume, "a"), "user.n0", &large(5)).unwrap();
        set(&volume, &lookup(&volume, "a"), "user.n4", &large(2)).unwrap();
        volume.xattr_remove(&lookup(&volume, "b"), b"user.n1").unwrap();
        unlink(&volume, "c");
        let e = create(&volume, "e");
        set(&volume, &e, "user.n5", &large(5)).unwrap();
        drop(e);
        volume.close().unwrap();
        assert_clean(&device);
        device.save(&image).unwrap();
        {
            let kernel = Mounted::new(&image, &point).unwrap();
            for (file, name, n) in [
                ("a", "user.n0", 5),
                ("a", "user.n1", 1),
                ("a", "user.n4", 2),
                ("b", "user.n0", 0),
                ("b", "user.n2", 2),
                ("d", "user.n1", 1),
                ("e", "user.n5", 5),
            ] {
                kernel.assert_value(file, name, &large(n));
            }
            kernel.run("setfattr", &["-x", "user.n0"], "a");
            kernel.set("b", "user.n2", &large(6));
            std::fs::remove_file(point.join("d")).unwrap();
            std::fs::remove_file(point.join("e")).unwrap();
        }
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        assert_clean(&device);
        let volume = mount(&device);
        let b = Attributes::from([(want(0), large(0)), (want(2), large(6))]);
        assert_values(&volume, &lookup(&volume, "b"), &b, shape);
        ["a", "b"].iter().for_each(|file| unlink(&volume, file));
        volume.close().unwrap();
        assert_clean(&device);
    }
}
