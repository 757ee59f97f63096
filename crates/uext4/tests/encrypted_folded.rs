//! Directories that are encrypted and fold case: with the key by any spelling, without it by the
//! names that are shown.
//!
//! Fault model: a hash that does not follow its name or is of another name; room for it that is
//! forgotten in a gap, a split or a packed leaf; a spelling that is not found or doubled; a tree
//! whose hash function is that of other directories; names without the key that are not found.
//! e2fsck judges records, hashes and trees. Not covered: what a kernel makes of them.

mod common;

use common::{assert_clean, have, mke2fs, mount, mount_with, new};
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::{ErrorKind, Ino, InodeRef, MasterKey, MountOptions, RenameMode, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::encryption::{KeyName, MODE_AES_256_CTS, MODE_AES_256_XTS, Policy};
use uext4_ondisk::{FileKind, InodeFlags};

const COUNT: usize = 1500;

fn key() -> MasterKey {
    MasterKey::new(&[7; 64], Some([1; 8])).unwrap()
}

fn with_key(device: &Arc<MemoryDevice>) -> Volume {
    mount_with(device, MountOptions { keys: vec![key()], ..MountOptions::default() })
}

fn policy(padding: u8) -> Policy {
    Policy {
        key: KeyName::Identifier(key().identifier()),
        contents_mode: MODE_AES_256_XTS,
        names_mode: MODE_AES_256_CTS,
        flags: padding,
        log2_data_unit: 0,
    }
}

fn make(volume: &Volume, dir: &InodeRef, name: &str, kind: FileKind) -> Result<Ino, ErrorKind> {
    let made = volume.create(dir, name.as_bytes(), &new(kind, 0o755));
    made.map(|made| made.ino()).map_err(|error| error.kind().clone())
}

fn find(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Result<Ino, ErrorKind> {
    volume.lookup(dir, name).map(|found| found.ino()).map_err(|error| error.kind().clone())
}

fn set_folding(volume: &Volume, dir: &InodeRef, folds: bool) -> Result<(), ErrorKind> {
    let mut flags = InodeFlags::from_bits_retain(volume.flags(dir));
    flags.set(InodeFlags::CASEFOLD, folds);
    volume.set_flags(dir, flags.bits()).map_err(|error| error.kind().clone())
}

fn directory(volume: &Volume, name: &str) -> InodeRef {
    volume
        .create(&volume.root().unwrap(), name.as_bytes(), &new(FileKind::Directory, 0o755))
        .unwrap()
}

/// Every entry but the dots, read in steps.
fn list(volume: &Volume, dir: &InodeRef, step: usize) -> BTreeMap<Vec<u8>, Ino> {
    let (mut names, mut cursor) = (BTreeMap::new(), 0);
    loop {
        let mut left = step;
        volume
            .read_dir(dir, cursor, &mut |entry| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                cursor = entry.next;
                let is_dot = matches!(entry.name, b"." | b"..");
                let doubled = !is_dot && names.insert(entry.name.to_vec(), entry.ino).is_some();
                assert!(!doubled, "{:?} is listed twice", entry.name);
                true
            })
            .unwrap();
        if left > 0 {
            return names;
        }
    }
}

/// Names of all lengths.
fn name(n: usize) -> String {
    match n % 3 {
        0 => format!("Name{n}"),
        1 => format!("Stra\u{df}e {n:0>width$}", width = 1 + n % 240),
        _ => format!("A name of middling length, number {n}"),
    }
}

fn other(name: &str) -> String {
    name.replace("\u{df}", "ss").to_uppercase()
}

/// Options that make a directory grow by a tree, by blocks, with and without checksums.
const OPTIONS: [&str; 3] = [
    "-b 1024 -O encrypt,casefold,^metadata_csum",
    "-b 1024 -O encrypt,casefold,^dir_index",
    "-b 1024 -O encrypt,casefold",
];

#[test]
fn names_are_found_by_any_spelling_with_the_key_and_as_shown_without() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    for (at, options) in OPTIONS.into_iter().enumerate() {
        let device = Arc::new(mke2fs(64, options));
        let volume = with_key(&device);
        let dir = directory(&volume, "d");
        // Either may come first.
        if at == 0 {
            set_folding(&volume, &dir, true).unwrap();
        }
        volume.set_encryption_policy(&dir, &policy(at as u8)).unwrap();
        set_folding(&volume, &dir, true).unwrap();
        let mut inodes = BTreeMap::new();
        for n in 0..COUNT {
            let kind = if n % 50 == 0 { FileKind::Directory } else { FileKind::Regular };
            inodes.insert(name(n), make(&volume, &dir, &name(n), kind).unwrap());
        }
        change_some(&volume, &dir, &mut inodes);
        with_the_key(&volume, &dir, &inodes);
        drop(dir);
        volume.close().unwrap();
        assert_clean(&device);

        without_the_key(&device, &mut inodes);
        assert_clean(&device);
        let volume = with_key(&device);
        let dir = volume.lookup(&volume.root().unwrap(), b"d").unwrap();
        with_the_key(&volume, &dir, &inodes);
        drop(dir);
        volume.close().unwrap();
    }
}

fn change_some(volume: &Volume, dir: &InodeRef, inodes: &mut BTreeMap<String, Ino>) {
    let rename = |from: &str, to: &str| {
        volume.rename(dir, from.as_bytes(), dir, to.as_bytes(), RenameMode::Replace).unwrap();
    };
    for n in (1..COUNT).step_by(7) {
        let ino = inodes.remove(&name(n)).unwrap();
        match n % 4 {
            // Gaps that others are put into, which need room for hashes.
            0 => match n % 50 {
                0 => volume.rmdir(dir, other(&name(n)).as_bytes()).unwrap(),
                _ => volume.unlink(dir, other(&name(n)).as_bytes()).unwrap(),
            },
            1 => {
                rename(&name(n), &format!("renamed {n}"));
                inodes.insert(format!("renamed {n}"), ino);
            }
            _ => {
                rename(&other(&name(n)), &other(&name(n)));
                let respelled = name(n).replace('a', "A");
                rename(&name(n), &respelled);
                inodes.insert(respelled, ino);
            }
        }
    }
    for n in 0..200 {
        let name = format!("gap{n}");
        inodes.insert(name.clone(), make(volume, dir, &name, FileKind::Regular).unwrap());
    }
}

fn with_the_key(volume: &Volume, dir: &InodeRef, inodes: &BTreeMap<String, Ino>) {
    let listed = list(volume, dir, 9);
    let want = inodes.iter().map(|(name, ino)| (name.clone().into_bytes(), *ino));
    assert!(listed == want.collect(), "{} names", listed.len());
    for (name, ino) in inodes {
        for spelling in [name.clone(), other(name)] {
            assert_eq!(find(volume, dir, spelling.as_bytes()), Ok(*ino), "{spelling:?}");
            let made = make(volume, dir, &spelling, FileKind::Regular);
            assert_eq!(made, Err(ErrorKind::Exists), "{spelling:?}");
        }
        let missing = format!("{name}.");
        assert_eq!(find(volume, dir, missing.as_bytes()), Err(ErrorKind::NotFound));
    }
    let below = inodes.keys().find(|n| n.starts_with("Name") && n.ends_with('0')).unwrap();
    let below = volume.lookup(dir, below.as_bytes()).unwrap();
    let flags = InodeFlags::from_bits_retain(volume.flags(&below));
    if below.kind() == FileKind::Directory {
        assert!(flags.contains(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT));
        let ino = make(volume, &below, "Below", FileKind::Regular).unwrap();
        assert_eq!(find(volume, &below, b"BELOW"), Ok(ino));
        volume.unlink(&below, b"below").unwrap();
    }
}

/// Removes every third name.
fn without_the_key(device: &Arc<MemoryDevice>, inodes: &mut BTreeMap<String, Ino>) {
    let volume = mount(device);
    let dir = volume.lookup(&volume.root().unwrap(), b"d").unwrap();
    let listed = list(&volume, &dir, 11);
    assert_eq!(listed.len(), inodes.len());
    let mut by_ino: BTreeMap<Ino, String> = inodes.iter().map(|(n, i)| (*i, n.clone())).collect();
    for (at, (shown, ino)) in listed.iter().enumerate() {
        assert!(shown.is_ascii() && shown.len() >= 32, "{shown:?}");
        assert_eq!(find(&volume, &dir, shown), Ok(*ino));
        let name = by_ino.remove(ino).expect("each inode once");
        assert_eq!(find(&volume, &dir, name.as_bytes()), Err(ErrorKind::NotFound));
        let is_directory = volume.inode(*ino).unwrap().kind() == FileKind::Directory;
        if at % 3 == 0 && !is_directory {
            volume.unlink(&dir, shown).unwrap();
            assert_eq!(find(&volume, &dir, shown), Err(ErrorKind::NotFound));
            inodes.remove(&name);
        }
    }
    assert_eq!(make(&volume, &dir, "new", FileKind::Regular), Err(ErrorKind::NoKey));
    assert_eq!(set_folding(&volume, &dir, false), Err(ErrorKind::NoKey));
    drop(dir);
    volume.close().unwrap();
}

/// A kernel of about Linux 6.12 hashes names with the code points that others ignore. The hash that
/// is stored is then another one; that the name is there by it does not matter to e2fsck.
#[test]
fn names_with_the_hash_of_another_kernel_are_found() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let device = Arc::new(mke2fs(16, OPTIONS[0]));
    let volume = with_key(&device);
    let dir = directory(&volume, "d");
    volume.set_encryption_policy(&dir, &policy(0)).unwrap();
    set_folding(&volume, &dir, true).unwrap();
    let heart = "Heart\u{2764}\u{fe0f}";
    let ino = make(&volume, &dir, heart, FileKind::Regular).unwrap();
    make(&volume, &dir, "other", FileKind::Regular).unwrap();
    drop(dir);
    volume.close().unwrap();

    let volume = mount(&device);
    let dir = volume.lookup(&volume.root().unwrap(), b"d").unwrap();
    let (shown, _) = list(&volume, &dir, 10).into_iter().find(|entry| entry.1 == ino).unwrap();
    drop(dir);
    volume.close().unwrap();
    let hash = hash_shown(&shown);
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    let mut changed = 0;
    for at in (0..bytes.len() - 8).step_by(4) {
        if bytes[at..at + 8] == hash {
            bytes[at..at + 8].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 1, 2, 3, 4]);
            changed += 1;
        }
    }
    // In the directory, and perhaps in the log.
    assert!(changed >= 1);
    std::fs::write(file.path(), bytes).unwrap();
    let device = Arc::new(MemoryDevice::load(file.path()).unwrap());

    let volume = with_key(&device);
    let dir = volume.lookup(&volume.root().unwrap(), b"d").unwrap();
    let spellings = [heart, "heart\u{2764}", "HEART\u{2764}\u{fe0f}"];
    for round in 0..2 {
        for spelling in spellings {
            assert_eq!(find(&volume, &dir, spelling.as_bytes()), Ok(ino), "{round} {spelling}");
            let made = make(&volume, &dir, spelling, FileKind::Regular);
            assert_eq!(made, Err(ErrorKind::Exists));
        }
        // The directory becomes a tree.
        for n in 0..200 * (1 - round) {
            make(&volume, &dir, &name(n), FileKind::Regular).unwrap();
        }
    }
    assert_eq!(list(&volume, &dir, 7).len(), 202);
    volume.sync().unwrap();
    assert_clean(&device);
    volume.unlink(&dir, spellings[1].as_bytes()).unwrap();
    assert_eq!(find(&volume, &dir, heart.as_bytes()), Err(ErrorKind::NotFound));
    drop(dir);
    volume.close().unwrap();
    assert_clean(&device);
}

/// The hashes in a name that is shown without the key: its first 8 bytes in base64url.
fn hash_shown(shown: &[u8]) -> [u8; 8] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |byte| DIGITS.iter().position(|d| *d == byte).unwrap() as u128;
    let bits = shown[..11].iter().fold(0, |bits, byte| (bits << 6) | digit(*byte));
    ((bits >> 2) as u64).to_be_bytes()
}

/// An empty directory may keep a tree.
#[test]
fn a_tree_that_was_emptied_gets_the_hash_function_of_its_new_names() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let device = Arc::new(mke2fs(64, OPTIONS[2]));
    let volume = with_key(&device);
    let fill = |dir: &InodeRef| {
        for n in 0..300 {
            make(&volume, dir, &name(n), FileKind::Regular).unwrap();
        }
    };
    let empty = |dir: &InodeRef| {
        for n in 0..300 {
            volume.unlink(dir, other(&name(n)).as_bytes()).unwrap();
        }
    };
    let check = |dirs: &[InodeRef]| {
        for dir in dirs {
            assert_eq!(list(&volume, dir, 1000).len(), 300);
        }
        volume.sync().unwrap();
        assert_clean(&device);
    };
    let dirs = ["first", "second"].map(|name| directory(&volume, name));
    for dir in &dirs {
        set_folding(&volume, dir, true).unwrap();
        fill(dir);
        assert_eq!(set_folding(&volume, dir, false), Err(ErrorKind::NotEmpty));
        empty(dir);
    }
    let [first, second] = &dirs;
    volume.set_encryption_policy(first, &policy(3)).unwrap();
    set_folding(&volume, second, false).unwrap();
    volume.set_encryption_policy(second, &policy(3)).unwrap();
    set_folding(&volume, second, true).unwrap();
    dirs.iter().for_each(fill);
    check(&dirs);
    // And back to names that are hashed as they are stored.
    empty(first);
    set_folding(&volume, first, false).unwrap();
    fill(first);
    assert_eq!(find(&volume, first, b"NAME0"), Err(ErrorKind::NotFound));
    check(&dirs);
    drop(dirs);
    volume.close().unwrap();
}

#[test]
fn policies_of_version_1_do_not_fold_case() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, OPTIONS[2]));
    let volume = with_key(&device);
    let (first, second) = (directory(&volume, "first"), directory(&volume, "second"));
    let of_version_1 = Policy { key: KeyName::Descriptor([1; 8]), ..policy(3) };
    set_folding(&volume, &first, true).unwrap();
    let refused = volume.set_encryption_policy(&first, &of_version_1).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::InvalidArgument);
    volume.set_encryption_policy(&second, &of_version_1).unwrap();
    assert_eq!(set_folding(&volume, &second, true), Err(ErrorKind::InvalidArgument));
    drop((first, second));
    volume.close().unwrap();
}
