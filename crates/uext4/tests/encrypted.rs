//! Encrypted files beside what the command's tests ask: old bytes behind the end of a file,
//! policies that the kernel refuses, memory.
//!
//! Fault model: a truncate that was completed without the key, which leaves its tail; a policy that
//! depends on what the file system may change; a read as large as the file. Not covered: what the
//! kernel makes of the files (`encryption.rs` of the command).

mod common;

use common::{debugfs, have, mke2fs, mount_with, new};
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
