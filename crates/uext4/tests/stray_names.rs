//! Directories that fold case, with names that another kernel hashed with their ignored code
//! points.
//!
//! Fault model: names that are in the leaf where they belong by the whole of them, or at its end
//! where a split has put them; two names that are one without what is ignored. The images are made
//! by changing names in place, so e2fsck finds what it finds in those of such kernels. Not covered:
//! directories of a real kernel of that time.

mod common;

use common::{assert_clean, e2fsck, have, mke2fs, mount, new};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uext4::{ErrorKind, Ino, InodeRef, RenameMode, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::casefold::fold_whole;
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::{FileKind, InodeFlags};

/// Number of names that are hashed otherwise.
const STRAYS: usize = 60;

fn regular(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Ino {
    volume.create(dir, name, &new(FileKind::Regular, 0o644)).unwrap().ino()
}

/// The hash of a name, and the one with its ignored code points.
fn hashes(volume: &Volume, name: &[u8]) -> (u32, u32) {
    let hash = volume.layout().name_hash;
    let version = HashVersion::from_raw(hash.default_version).unwrap();
    let DirHasher { unsigned, seed, .. } =
        DirHasher { version, unsigned: hash.unsigned, seed: hash.seed, folds: true };
    let of = |folds, name| DirHasher { version, unsigned, seed, folds }.hash(name).0;
    (of(true, name), of(false, &fold_whole(name)))
}

/// A directory of many names, some of which are replaced by names that are there by their other
/// hash. Returns the image and the new names.
fn image(options: &str) -> (Arc<MemoryDevice>, Vec<String>) {
    let device = Arc::new(mke2fs(32, options));
    let volume = mount(&device);
    let dir = volume.create(&volume.root().unwrap(), b"d", &new(FileKind::Directory, 0o755));
    let dir = dir.unwrap();
    let flags = volume.flags(&dir) | InodeFlags::CASEFOLD.bits();
    volume.set_flags(&dir, flags).unwrap();
    let mut by_hash = BTreeMap::new();
    for n in 0..4000 {
        let name = format!("file{n:06}");
        regular(&volume, &dir, name.as_bytes());
        by_hash.insert(hashes(&volume, name.as_bytes()).0, name);
    }
    let mut replaced = BTreeMap::new();
    for n in 0..STRAYS {
        let name = format!("He{n:05}\u{fe0f}");
        let (hash, whole) = hashes(&volume, name.as_bytes());
        // The leaf of the name before has the other hash as well: leaves begin with a name's hash.
        // None is before where the hash is the smallest: the seed is the image's, and random.
        let Some((before, old)) = by_hash.range(..=whole).next_back() else { continue };
        // Where both hashes lie together the name is no stray.
        let is_stray = by_hash.range(hash.min(*before)..hash.max(*before)).count() > 200;
        if is_stray {
            replaced.insert(old.clone(), name);
        }
    }
    assert!(replaced.len() > STRAYS / 2);
    drop(dir);
    volume.close().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    for at in 0..bytes.len() - 10 {
        if bytes[at..].starts_with(b"file")
            && let Ok(old) = std::str::from_utf8(&bytes[at..at + 10])
            && let Some(name) = replaced.get(old)
        {
            bytes[at..at + 10].copy_from_slice(name.as_bytes());
        }
    }
    std::fs::write(file.path(), bytes).unwrap();
    let device = Arc::new(MemoryDevice::load(file.path()).unwrap());
    (device, replaced.into_values().collect())
}

fn listed(volume: &Volume, dir: &InodeRef, step: usize) -> Vec<String> {
    let mut names = Vec::new();
    let mut cursor = 0;
    loop {
        let end = names.len() + step;
        volume
            .read_dir(dir, cursor, &mut |entry| {
                let is_more = names.len() < end;
                if is_more {
                    assert!(entry.next > cursor);
                    cursor = entry.next;
                    names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                }
                is_more
            })
            .unwrap();
        if names.len() < end {
            return names;
        }
    }
}

fn open(device: &Arc<MemoryDevice>) -> (Volume, InodeRef) {
    let volume = mount(device);
    let dir = volume.lookup(&volume.root().unwrap(), b"d").unwrap();
    (volume, dir)
}

fn ino(volume: &Volume, dir: &InodeRef, name: &str) -> Result<Ino, ErrorKind> {
    volume.lookup(dir, name.as_bytes()).map(|found| found.ino()).map_err(|e| e.kind().clone())
}

const OPTIONS: &str = "-b 1024 -O casefold,^metadata_csum -E encoding=utf8";

#[test]
fn names_that_were_hashed_otherwise_are_listed_found_renamed_and_removed() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let (device, strays) = image(OPTIONS);
    // Hashes that are out of their leaf.
    assert_ne!(e2fsck(&device, "-fn").0, 0);
    let (volume, dir) = open(&device);
    for step in [7, 5000] {
        let names = listed(&volume, &dir, step);
        assert_eq!(names.len(), 4002);
        let names: BTreeSet<_> = names.into_iter().collect();
        assert!(names.len() == 4002 && strays.iter().all(|name| names.contains(name)));
    }
    let create = |name: &str| {
        volume.create(&dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).map(|of| of.ino())
    };
    for name in &strays {
        let found = ino(&volume, &dir, name).unwrap();
        let bare = name.replace('\u{fe0f}', "");
        for other in [name.to_uppercase(), bare.clone()] {
            assert_eq!(ino(&volume, &dir, &other), Ok(found), "{other:?}");
            assert_eq!(*create(&other).unwrap_err().kind(), ErrorKind::Exists);
        }
        assert_eq!(ino(&volume, &dir, &format!("{bare}x")), Err(ErrorKind::NotFound));
    }
    // Splits leave them where they are.
    for n in 0..1500 {
        create(&format!("more{n}")).unwrap();
    }
    assert_eq!(listed(&volume, &dir, 11).len(), 5502);
    let rename = |from: &str, to: &str| {
        volume.rename(&dir, from.as_bytes(), &dir, to.as_bytes(), RenameMode::Replace).unwrap();
    };
    for (n, name) in strays.iter().enumerate() {
        let found = ino(&volume, &dir, name).unwrap();
        match n % 3 {
            0 => volume.unlink(&dir, name.as_bytes()).unwrap(),
            1 => rename(name, &format!("renamed{n}")),
            // Another spelling, which is hashed as any name.
            _ => rename(name, &name.to_uppercase()),
        }
        let kept = if n % 3 == 2 { Ok(found) } else { Err(ErrorKind::NotFound) };
        assert_eq!(ino(&volume, &dir, name), kept);
    }
    drop(dir);
    volume.close().unwrap();
    // None of the strays is left.
    assert_clean(&device);
}

/// Such a kernel has names side by side that are one to others. Each is found by its own name.
#[test]
fn two_names_that_are_one_are_both_found() {
    if !have("mke2fs") {
        return;
    }
    let (device, strays) = image(OPTIONS);
    let (volume, dir) = open(&device);
    let twin = "Twin\u{200b}x01";
    let other = "Twin\u{200b}x02";
    let (first, second) = (regular(&volume, &dir, twin.as_bytes()), ino(&volume, &dir, &strays[0]));
    regular(&volume, &dir, other.as_bytes());
    drop(dir);
    volume.close().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    for at in 0..bytes.len() - 10 {
        if bytes[at..].starts_with(other.as_bytes()) {
            // The same but for what is ignored.
            bytes[at..at + 10].copy_from_slice("Twin\u{200c}x01".as_bytes());
        }
    }
    std::fs::write(file.path(), bytes).unwrap();
    let device = Arc::new(MemoryDevice::load(file.path()).unwrap());
    let (volume, dir) = open(&device);
    let other = "Twin\u{200c}x01";
    assert_eq!(ino(&volume, &dir, twin), Ok(first));
    let second_twin = ino(&volume, &dir, other).unwrap();
    assert_ne!(first, second_twin);
    assert_eq!(ino(&volume, &dir, &strays[0]), second);
    volume.rename(&dir, other.as_bytes(), &dir, twin.as_bytes(), RenameMode::Replace).unwrap();
    assert_eq!(ino(&volume, &dir, twin), Ok(second_twin));
    volume.unlink(&dir, twin.as_bytes()).unwrap();
    assert_eq!(ino(&volume, &dir, twin), Err(ErrorKind::NotFound));
    drop(dir);
    volume.close().unwrap();
}
