//! Encrypted files beside what the command's tests ask: old bytes behind the end of a file,
//! policies that the kernel refuses, a wrong key, memory.
//!
//! Fault model: a truncate that was completed without the key, which leaves its tail; a policy that
//! depends on what the file system may change; another key by the descriptor of the right one; a
//! read as large as the file. Not covered: what the kernel makes of the files (`encryption.rs` of
//! the command).

mod common;

use common::{assert_clean, debugfs, have, mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, InodeRef, MasterKey, MountOptions, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;
use uext4_ondisk::encryption::{
    FLAG_IV_INO_LBLK_32, FLAG_IV_INO_LBLK_64, KeyName, MODE_AES_256_CTS, MODE_AES_256_XTS, Policy,
};

fn key() -> MasterKey {
    let bytes: Vec<u8> = (0..64).collect();
    MasterKey::new(&bytes, None).unwrap()
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    mount_with(device, MountOptions { keys: vec![key()], ..MountOptions::default() })
}

fn policy() -> Policy {
    Policy {
        key: KeyName::Identifier(key().identifier()),
        contents_mode: MODE_AES_256_XTS,
        names_mode: MODE_AES_256_CTS,
        flags: 3,
        log2_data_unit: 0,
    }
}

fn directory(volume: &Volume) -> InodeRef {
    volume.create(&volume.root().unwrap(), b"d", &new(FileKind::Directory, 0o755)).unwrap()
}

fn file(volume: &Volume) -> InodeRef {
    let dir = directory(volume);
    volume.set_encryption_policy(&dir, &policy()).unwrap();
    volume.create(&dir, b"f", &new(FileKind::Regular, 0o644)).unwrap()
}

#[test]
fn a_tail_that_was_left_stays_hidden_when_a_range_lengthens_the_file() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -O encrypt,^metadata_csum"));
    let volume = open(&device);
    let inode = file(&volume);
    volume.open_file(&inode).unwrap().write_at(0, &[7; 1000]).unwrap();
    let ino = inode.ino();
    drop(inode);
    volume.close().unwrap();
    // As after the clean-up of an orphan without the key.
    let left = debugfs(&device, &[format!("set_inode_field <{ino}> size 100")]);
    let keep_size = false;
    let modes = [
        AllocateMode::Allocate { keep_size },
        AllocateMode::UnshareRange { keep_size },
        AllocateMode::ZeroRange { keep_size },
    ];
    for mode in modes {
        let device = Arc::new(left.snapshot());
        let volume = open(&device);
        let inode = volume.inode(ino).unwrap();
        let opened = volume.open_file(&inode).unwrap();
        opened.allocate(mode, 2000, 3000).unwrap();
        let shown = |volume: &Volume| {
            let mut bytes = vec![1; 5000];
            let opened = volume.open_file(&volume.inode(ino).unwrap()).unwrap();
            assert_eq!(opened.read_at(0, &mut bytes).unwrap(), 5000, "{mode:?}");
            bytes
        };
        let want = [vec![7; 100], vec![0; 4900]].concat();
        assert!(shown(&volume) == want, "{mode:?}: old bytes behind the end");
        volume.sync().unwrap();
        drop((opened, inode));
        volume.abandon();
        let volume = open(&device);
        assert!(shown(&volume) == want, "{mode:?}: old bytes after a crash");
        volume.close().unwrap();
    }
}

#[test]
fn policies_that_need_stable_inodes() {
    if !have("mke2fs") {
        return;
    }
    for (features, is_stable) in [("encrypt", false), ("encrypt,stable_inodes", true)] {
        let device = Arc::new(mke2fs(16, &format!("-b 1024 -O {features}")));
        let volume = open(&device);
        let dir = directory(&volume);
        let kind_of = |policy: Policy| {
            volume.set_encryption_policy(&dir, &policy).map_err(|error| error.kind().clone())
        };
        let of_root = volume.set_encryption_policy(&volume.root().unwrap(), &policy());
        assert_eq!(*of_root.unwrap_err().kind(), ErrorKind::NotPermitted);
        let hashed = Policy { flags: FLAG_IV_INO_LBLK_32, ..policy() };
        // Only units of a block.
        let refused = kind_of(Policy { log2_data_unit: 9, ..hashed });
        assert_eq!(refused, Err(ErrorKind::InvalidArgument));
        if !is_stable {
            for flags in [FLAG_IV_INO_LBLK_32, FLAG_IV_INO_LBLK_64] {
                let refused = kind_of(Policy { flags, ..policy() });
                assert_eq!(refused, Err(ErrorKind::InvalidArgument), "{flags:#x}");
            }
            assert_eq!(kind_of(policy()), Ok(()));
        } else {
            assert_eq!(kind_of(Policy { log2_data_unit: 10, ..hashed }), Ok(()));
        }
        drop(dir);
        volume.close().unwrap();
    }
}

#[test]
fn a_large_read_past_the_pages_takes_little_memory() {
    const LEN: usize = 32 << 20;
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096 -O encrypt"));
    let volume = open(&device);
    let inode = file(&volume);
    let opened = volume.open_file(&inode).unwrap();
    let content: Vec<u8> = (0..LEN).map(|at| (at / 4096 + at) as u8).collect();
    opened.write_at(0, &content).unwrap();
    opened.drop_cached().unwrap();
    let mut bytes = vec![0; LEN];
    let taken = allocation_counter::measure(|| {
        assert_eq!(opened.read_direct_at(0, &mut bytes).unwrap(), LEN);
    });
    assert!(bytes == content);
    assert!(taken.bytes_max < 4 << 20, "{} bytes", taken.bytes_max);
    drop((opened, inode));
    volume.close().unwrap();
}

/// With a wrong key a name is shown by what that makes of it or, if that is no name, as without a
/// key. 400 names of 16 stored bytes have about 48 of the second kind.
#[test]
fn what_a_wrong_key_lists_is_found_and_removed() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let descriptor = [9; 8];
    for features in ["encrypt", "encrypt,^dir_index"] {
        let device = Arc::new(mke2fs(16, &format!("-b 1024 -O {features}")));
        let open = |fill: u8| {
            let key = MasterKey::new(&[fill; 64], Some(descriptor)).unwrap();
            mount_with(&device, MountOptions { keys: vec![key], ..MountOptions::default() })
        };
        let volume = open(1);
        let dir = directory(&volume);
        let of_version_1 = Policy { key: KeyName::Descriptor(descriptor), flags: 0, ..policy() };
        volume.set_encryption_policy(&dir, &of_version_1).unwrap();
        for n in 0..400 {
            let name = format!("{n}").into_bytes();
            volume.create(&dir, &name, &new(FileKind::Regular, 0o644)).unwrap();
        }
        // Shown whole without a key, and by its beginning and a digest.
        volume.create(&dir, &[b'l'; 140], &new(FileKind::Regular, 0o644)).unwrap();
        volume.create(&dir, &[b'L'; 255], &new(FileKind::Regular, 0o644)).unwrap();
        drop(dir);
        volume.close().unwrap();

        let volume = open(2);
        let dir = volume.lookup(&volume.root().unwrap(), b"d").unwrap();
        let mut listed = Vec::new();
        volume
            .read_dir(&dir, 0, &mut |entry| {
                listed.push((entry.name.to_vec(), entry.ino));
                true
            })
            .unwrap();
        let named = |name: &[u8]| name != b"." && name != b"..";
        listed.retain(|(name, _)| named(name));
        assert_eq!(listed.len(), 402);
        let undeciphered = listed.iter().filter(|(name, _)| name.is_ascii()).count();
        assert!(undeciphered > 20, "{undeciphered}");
        for (name, ino) in &listed {
            assert_eq!(volume.lookup(&dir, name).unwrap().ino(), *ino, "{name:?}");
            let again = volume.create(&dir, name, &new(FileKind::Regular, 0o644));
            assert_eq!(*again.unwrap_err().kind(), ErrorKind::Exists);
        }
        for (name, _) in &listed {
            volume.unlink(&dir, name).unwrap();
        }
        drop(dir);
        volume.rmdir(&volume.root().unwrap(), b"d").unwrap();
        volume.close().unwrap();
        assert_clean(&device);
    }
}
