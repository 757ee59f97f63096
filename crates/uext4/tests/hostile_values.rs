//! Attributes whose values are in inodes of their own (ea_inode), on damaged images.
//!
//! Fault model: an entry that names a free inode, one of another file, a directory or its own
//! inode; a value that the bitmap shows as free, that a directory names, or that is on the list of
//! orphans while attributes refer to it; more entries of no values than one handle releases; a
//! value with attributes of its own; a directory that is marked as a value; a set that fails half
//! way. debugfs makes the images, with quota and without. No other file may lose its value, a file
//! can be deleted, a value is never taken for a file, and usage is what e2fsck counts.

mod common;

use common::{e2fsck, have, mke2fs, mount, mount_with, new};
use std::process::Command;
use std::sync::Arc;
use uext4::config::OnError;
use uext4::{ErrorKind, InodeRef, MountOptions, Volume, XattrMode};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, Ino};

/// Lengths of the values of `f` and `g`, by which debugfs tells their inodes apart.
const F: usize = 5000;
const G: usize = 6000;

fn create(volume: &Volume, name: &str) -> InodeRef {
    volume.create(&volume.root().unwrap(), name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
}

fn lookup(volume: &Volume, name: &str) -> Result<InodeRef, ErrorKind> {
    let found = volume.lookup(&volume.root().unwrap(), name.as_bytes());
    found.map_err(|error| error.kind().clone())
}

fn set(volume: &Volume, inode: &InodeRef, value: &[u8]) -> Result<(), ErrorKind> {
    let result = volume.xattr_set(inode, b"user.a", value, XattrMode::Any);
    result.map_err(|error| error.kind().clone())
}

fn get(volume: &Volume, name: &str) -> Result<Vec<u8>, ErrorKind> {
    let value = volume.xattr_get(&lookup(volume, name)?, b"user.a");
    value.map_err(|error| error.kind().clone())
}

fn is_corrupt<T>(result: &Result<T, ErrorKind>) -> bool {
    matches!(result, Err(ErrorKind::Corrupt(_)))
}

/// Runs debugfs on an image, which it may change. Returns what it prints.
fn debugfs(device: &MemoryDevice, commands: &[String]) -> (Arc<MemoryDevice>, String) {
    let (image, script) =
        (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    device.save(image.path()).unwrap();
    std::fs::write(script.path(), commands.join("\n")).unwrap();
    let output = Command::new("/sbin/debugfs")
        .arg("-w")
        .arg("-f")
        .args([script.path(), image.path()])
        .output()
        .expect("debugfs runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (Arc::new(MemoryDevice::load(image.path()).unwrap()), text)
}

/// An image whose files `f` and `g` have a value each. The numbers of `f` and of both values,
/// and of the inodes that are free in their group.
struct Image {
    device: Arc<MemoryDevice>,
    f: Ino,
    value_of_f: u32,
    value_of_g: u32,
    free_in_group: u32,
}

/// Has a test done with an image of each kind.
fn each(test: impl Fn(Image)) {
    if have("mke2fs") && have("debugfs") {
        ["ea_inode", "ea_inode,quota"].map(Image::new).into_iter().for_each(test);
    }
}

/// What debugfs says of the first inodes.
fn stats(device: &MemoryDevice) -> String {
    let commands: Vec<String> = (12..60).map(|ino| format!("stat <{ino}>")).collect();
    debugfs(device, &commands).1
}

/// The inode with this length, of those that debugfs told of.
fn of_size(text: &str, size: usize) -> u32 {
    let at = text.find(&format!("Size: {size}\n")).expect("the value has an inode");
    let number = text[..at].rsplit("Inode: ").next().unwrap();
    number.split_whitespace().next().unwrap().parse().unwrap()
}

impl Image {
    fn new(features: &str) -> Self {
        let options = format!("-b 1024 -m 0 -O {features},^metadata_csum,^orphan_file");
        let device = Arc::new(mke2fs(16, &options));
        let volume = mount(&device);
        let f = create(&volume, "f");
        set(&volume, &f, &[b'f'; F]).unwrap();
        set(&volume, &create(&volume, "g"), &[b'g'; G]).unwrap();
        let f = f.ino();
        volume.close().unwrap();
        let (_, groups) = debugfs(&device, &["stats".to_owned()]);
        let free = groups.split(" free inodes").next().and_then(|text| text.split(' ').next_back());
        let free_in_group = free.unwrap().parse().unwrap();
        let text = stats(&device);
        let (value_of_f, value_of_g) = (of_size(&text, F), of_size(&text, G));
        Self { value_of_f, value_of_g, device, f, free_in_group }
    }

    fn change(&mut self, commands: &[String]) {
        self.device = debugfs(&self.device, commands).0;
    }

    /// Marks the value of `f` as free.
    fn free_value_of_f(&mut self) {
        let free = self.free_in_group + 1;
        self.change(&[
            format!("freei <{}>", self.value_of_f),
            format!("set_bg 0 free_inodes_count {free}"),
            "set_bg 0 checksum calc".to_owned(),
        ]);
    }

    /// Lets the entry of `f` name another inode, and say another length.
    fn refer(&mut self, ino: u32, size: usize) {
        self.replace((self.value_of_f, F), (ino, size));
    }

    /// Replaces what an entry says: inode and length.
    fn replace(&mut self, from: (u32, usize), to: (u32, usize)) {
        let [from, to] =
            [from, to].map(|(ino, size)| [ino.to_le_bytes(), (size as u32).to_le_bytes()].concat());
        let file = tempfile::NamedTempFile::new().unwrap();
        self.device.save(file.path()).unwrap();
        let mut bytes = std::fs::read(file.path()).unwrap();
        let places: Vec<usize> =
            (0..bytes.len() - 8).step_by(4).filter(|&at| bytes[at..at + 8] == from).collect();
        assert!(!places.is_empty(), "the entry is there");
        places.into_iter().for_each(|at| bytes[at..at + 8].copy_from_slice(&to));
        std::fs::write(file.path(), bytes).unwrap();
        self.device = Arc::new(MemoryDevice::load(file.path()).unwrap());
    }

    /// Closes the volume; `g` still has its value, now and later. Without `f`, which e2fsck counts
    /// otherwise while its entry is bad, usage is right.
    fn assert_g(&self, volume: Volume) {
        assert_eq!(get(&volume, "g").unwrap(), [b'g'; G]);
        volume.close().unwrap();
        let volume = mount(&self.device);
        assert_eq!(get(&volume, "g").unwrap(), [b'g'; G]);
        let has_f = lookup(&volume, "f").is_ok();
        volume.close().unwrap();
        let (_, text) = e2fsck(&self.device, "-fn");
        assert!(has_f || !text.contains("quota"), "{text}");
    }
}

/// A new file gets the number of the value, and must not get its inode in memory.
#[test]
fn a_value_that_looks_free_is_not_read() {
    each(|mut image| {
        image.free_value_of_f();
        let read_only = MountOptions { read_only: true, ..MountOptions::default() };
        let volume = mount_with(&image.device, read_only);
        assert_eq!(get(&volume, "f").unwrap(), [b'f'; F], "nothing gets its number");
        volume.close().unwrap();
        let volume = mount(&image.device);
        assert!(is_corrupt(&get(&volume, "f")));
        let files: Vec<_> = (0..64).map(|n| create(&volume, &format!("new{n}"))).collect();
        let taken = files.iter().find(|file| file.ino().get() == image.value_of_f);
        let taken = taken.expect("the number is given to a file");
        assert_eq!(volume.attr(taken).size, 0);
        volume.open_file(taken).unwrap().write_at(0, b"data").unwrap();
        assert!(is_corrupt(&get(&volume, "f")), "it is a file");
        drop(files);
        image.assert_g(volume);
    });
}

#[test]
fn no_name_leads_to_a_value() {
    each(|mut image| {
        image.change(&[format!("link <{}> x", image.value_of_f)]);
        let volume = mount(&image.device);
        assert!(is_corrupt(&lookup(&volume, "x")));
        assert_eq!(get(&volume, "f").unwrap(), [b'f'; F]);
        assert!(is_corrupt(&lookup(&volume, "x")), "it is in memory now");
        let removed = volume.unlink(&volume.root().unwrap(), b"x");
        assert!(is_corrupt(&removed.map_err(|error| error.kind().clone())));
        assert_eq!(get(&volume, "f").unwrap(), [b'f'; F]);
        image.assert_g(volume);
    });
}

/// The new value may get the number that the old entry names.
#[test]
fn a_new_value_is_not_mistaken_for_a_lost_one() {
    each(|mut image| {
        image.change(&[format!("clri <{}>", image.value_of_f)]);
        image.free_value_of_f();
        let volume = mount(&image.device);
        let f = lookup(&volume, "f").unwrap();
        let free = volume.stat_fs().inodes_free;
        match set(&volume, &f, &[b'n'; F]) {
            Ok(()) => assert_eq!(get(&volume, "f").unwrap(), [b'n'; F]),
            result => assert!(is_corrupt(&result)),
        }
        assert_eq!(volume.stat_fs().inodes_free, free);
        drop(f);
        volume.unlink(&volume.root().unwrap(), b"f").unwrap();
        image.assert_g(volume);
    });
}

/// The entry of `f` names the value of `g`: removing it, or `f`, leaves `g` as it is.
#[test]
fn an_entry_cannot_release_the_value_of_another_file() {
    each(|mut image| {
        image.refer(image.value_of_g, G);
        let volume = mount(&image.device);
        let f = lookup(&volume, "f").unwrap();
        let removed = volume.xattr_remove(&f, b"user.a").map_err(|error| error.kind().clone());
        assert!(is_corrupt(&removed));
        assert!(is_corrupt(&set(&volume, &f, b"short")));
        assert_eq!(get(&volume, "g").unwrap(), [b'g'; G]);
        drop(f);
        volume.unlink(&volume.root().unwrap(), b"f").unwrap();
        image.assert_g(volume);
    });
}

#[test]
fn a_bad_entry_does_not_keep_a_file() {
    each(|image| {
        const LOST_FOUND: u32 = 11;
        let own = image.f.get();
        let (unused, lost, of_g) = (200, image.value_of_f, image.value_of_g);
        for (ino, size) in
            [(unused, F), (LOST_FOUND, F), (own, F), (2, F), (u32::MAX, F), (lost, 7), (of_g, F)]
        {
            let mut image = Image { device: Arc::clone(&image.device), ..image };
            image.refer(ino, size);
            let volume = mount(&image.device);
            let free = volume.stat_fs().inodes_free;
            volume.unlink(&volume.root().unwrap(), b"f").unwrap();
            assert_eq!(lookup(&volume, "f").unwrap_err(), ErrorKind::NotFound);
            assert_eq!(volume.stat_fs().inodes_free, free + 1, "{ino}: f alone is deleted");
            assert!(lookup(&volume, "lost+found").is_ok());
            image.assert_g(volume);
        }
    });
}

/// The file goes before the volume becomes read-only.
#[test]
fn a_file_with_a_bad_entry_is_the_last_change_of_errors_remount_ro() {
    each(|mut image| {
        image.refer(200, F);
        let errors = Some(OnError::RemountReadOnly);
        let volume = mount_with(&image.device, MountOptions { errors, ..MountOptions::default() });
        volume.unlink(&volume.root().unwrap(), b"f").unwrap();
        let made = volume.create(&volume.root().unwrap(), b"new", &new(FileKind::Regular, 0o644));
        assert_eq!(*made.unwrap_err().kind(), ErrorKind::ReadOnly);
        drop(volume);
        let volume = mount(&image.device);
        assert_eq!(lookup(&volume, "f").unwrap_err(), ErrorKind::NotFound);
        image.assert_g(volume);
    });
}

/// A count of references that is too high keeps the value, one of 0 is not lowered.
#[test]
fn a_wrong_count_is_not_believed() {
    each(|image| {
        for (count, freed) in [(0, 1), (5, 1), (1, 2)] {
            let mut image = Image { device: Arc::clone(&image.device), ..image };
            image.change(&[format!("sif <{}> version {count}", image.value_of_f)]);
            let volume = mount(&image.device);
            let free = volume.stat_fs().inodes_free;
            volume.unlink(&volume.root().unwrap(), b"f").unwrap();
            assert_eq!(volume.stat_fs().inodes_free, free + freed, "count of {count}");
            image.assert_g(volume);
        }
    });
}

#[test]
fn a_value_in_use_is_no_orphan() {
    each(|mut image| {
        let value = image.value_of_f;
        image.change(&[format!("sif <{value}> links_count 0"), format!("ssv last_orphan {value}")]);
        let volume = mount(&image.device);
        assert!(is_corrupt(&get(&volume, "f")));
        image.assert_g(volume);
        image.change(&[format!("sif <{value}> links_count 1"), format!("sif <{value}> dtime 0")]);
        let volume = mount(&image.device);
        assert_eq!(get(&volume, "f").unwrap(), [b'f'; F]);
        image.assert_g(volume);
    });
}

/// The image is sound here, and full.
#[test]
fn a_set_that_fails_leaves_nothing() {
    each(|image| {
        let volume = mount(&image.device);
        let filler = create(&volume, "filler");
        let most = volume.stat_fs().blocks_available as usize * 1024 - (40 << 10);
        volume.open_file(&filler).unwrap().write_at(0, &vec![1; most]).unwrap();
        volume.sync().unwrap();
        let before = volume.stat_fs();
        let f = lookup(&volume, "f").unwrap();
        assert_eq!(set(&volume, &f, &[3; 65_000]), Err(ErrorKind::NoSpace));
        assert_eq!(volume.stat_fs().inodes_free, before.inodes_free);
        assert_eq!(get(&volume, "f").unwrap(), [b'f'; F]);
        drop((f, filler));
        image.assert_g(volume);
        common::assert_clean(&image.device);
    });
}

/// None of the first entries that the deletion releases has a value, so that no count changes.
#[test]
fn entries_of_no_values_are_charged_off() {
    const SIZES: std::ops::Range<usize> = 2000..2020;
    each(|mut image| {
        let volume = mount(&image.device);
        let f = lookup(&volume, "f").unwrap();
        for size in SIZES {
            let name = format!("user.{size}");
            volume.xattr_set(&f, name.as_bytes(), &vec![1; size], XattrMode::Any).unwrap();
        }
        drop(f);
        volume.close().unwrap();
        let text = stats(&image.device);
        for size in SIZES {
            image.replace((of_size(&text, size), size), (2, size));
        }
        let volume = mount(&image.device);
        let f = lookup(&volume, "f").unwrap();
        volume.unlink(&volume.root().unwrap(), b"f").unwrap();
        // So that the transaction of the deletion has no block yet.
        volume.sync().unwrap();
        drop(f);
        volume.delete_unlinked().unwrap();
        volume.sync().unwrap();
        image.assert_g(volume);
    });
}

/// Deleting the value would take its own values off usage.
#[test]
fn a_value_has_no_attributes() {
    each(|mut image| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'n'; 3000]).unwrap();
        let (path, value) = (file.path().display(), image.value_of_f);
        image.change(&[format!("ea_set -f {path} <{value}> user.n")]);
        let volume = mount(&image.device);
        assert!(is_corrupt(&get(&volume, "f")));
        volume.unlink(&volume.root().unwrap(), b"f").unwrap();
        image.assert_g(volume);
    });
}

/// It would count for nobody, and then, without the mark, for its owner.
#[test]
fn a_directory_is_no_value() {
    const VALUE: u32 = 0x20_0000;
    each(|mut image| {
        let volume = mount(&image.device);
        let root = volume.root().unwrap();
        volume.create(&root, b"d", &new(FileKind::Directory, 0o755)).unwrap();
        drop(root);
        volume.close().unwrap();
        image.change(&[format!("sif /d flags {:#x}", 0x8_0000 | VALUE)]);
        let volume = mount(&image.device);
        assert!(is_corrupt(&lookup(&volume, "d")));
        image.assert_g(volume);
    });
}
