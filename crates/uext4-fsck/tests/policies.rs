//! Encryption policies of inodes and their directories, judged by the checker and by e2fsck -fn.
//!
//! Fault model: a byte of one inode's encryption context is changed and the inode is sealed again.
//! Needs mke2fs and e2fsck; says so and passes where they are missing.

use uext4_device::{Device, MemoryDevice};
use uext4_fsck::{Options, check};
use uext4_sim::anatomy::{Anatomy, Seal, bytes};
use uext4_sim::oracle::{self, Oracle, judge};
use uext4_sim::shape;

/// Where the context of an inode stands on the device; `None`: it has none.
fn context_at(device: &MemoryDevice, at: u64, len: usize) -> Option<u64> {
    let slot = bytes(device, at, len);
    // Version, modes and flags of the policy that `shape` makes.
    let found = slot.windows(8).position(|part| part == [2, 1, 4, 3, 0, 0, 0, 0])?;
    Some(at + found as u64)
}

#[test]
fn a_policy_that_is_not_that_of_the_directory_is_found() {
    if oracle::program("mke2fs").is_none() || oracle::e2fsck().is_none() {
        println!("skipped: mke2fs and e2fsck are not installed");
        return;
    }
    let options = "-t ext4 -b 1024 -N 512 -O encrypt,^has_journal";
    let sound = shape::image(options, 6).expect("image");
    let anatomy = Anatomy::of(&sound);
    let oracle = Oracle::new().expect("e2fsck");
    let context = |target: &uext4_sim::anatomy::Structure| match target.seal {
        Seal::Inode(_) => context_at(&sound, target.at, target.len).map(|at| (target.clone(), at)),
        _ => None,
    };
    // The first is the directory.
    let encrypted: Vec<_> = anatomy.targets.iter().filter_map(context).collect();
    let (dir, file, everyone) = (&encrypted[..1], &encrypted[5..6], &encrypted[..]);
    let other = "names an inode that is encrypted otherwise";
    let cases: [(&str, &[_], u64, u8, Option<&str>); 10] = [
        ("version", file, 0, 3, Some(other)),
        ("no version", file, 0, 0, Some("has an encryption context that is damaged")),
        ("version 1 of 40 bytes", file, 0, 1, Some("has an encryption context that is damaged")),
        ("mode", file, 1, 7, Some(other)),
        ("reserved byte", file, 6, 1, Some(other)),
        ("identifier", file, 23, 0xaa, Some(other)),
        ("nonce", file, 24, 0xaa, None),
        ("identifier of the directory", dir, 9, 0xaa, Some(other)),
        ("all of a version that nobody knows", everyone, 0, 9, None),
        ("all of no version", everyone, 0, 0, Some("has an encryption context that is damaged")),
    ];
    for (name, targets, offset, value, want) in cases {
        let device = sound.snapshot();
        for (target, at) in targets {
            device.write_at(at + offset, &[value]).expect("memory");
            anatomy.seal(&device, target);
        }
        let report = check(&device, &Options::default(), &mut ()).expect("a file system");
        let told: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        match want {
            Some(want) => assert!(told.iter().any(|line| line.contains(want)), "{name}: {told:?}"),
            None => assert!(told.is_empty(), "{name}: {told:?}"),
        }
        let path = oracle.put(&device, "image").expect("image");
        let theirs = judge(&path, "-fn").expect("e2fsck");
        assert_eq!(theirs.code == 0, want.is_none(), "{name}: {}", theirs.text);
    }
}
