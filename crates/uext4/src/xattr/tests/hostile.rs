//! Damaged attributes: errors, never a panic.
//!
//! Fault model: bytes of the attribute block and of the inode's own attributes changed at random in
//! an image without checksums, which would catch most of it.

use crate::extent::harness::{Folder, Harness, make_image};
use crate::xattr::{AttributeChange, Mode, Release, get, list};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::acl::Acl;

#[test]
fn damaged_attributes_are_survived() {
    let folder = Folder::new();
    let args = ["-b", "1024", "-O", "^metadata_csum"];
    let Some(image) = make_image(&folder, "16M", &args) else { return };
    let harness = Harness::open(&image);
    let file = harness.inode("file0");
    for (name, len) in [("user.a", 20), ("trusted.b", 10), ("user.c", 300), ("security.d", 200)] {
        let value = vec![7; len];
        let change = AttributeChange::plan(&file, name.as_bytes(), Some(&value), Mode::Any);
        let change = change.unwrap();
        harness.run(change.credits(), |handle| change.apply(handle)).unwrap();
    }
    let (ino, block) = (file.ino(), file.attributes().file_acl);
    assert_ne!(block, 0);
    let (group, index) = harness.space.layout().group_of_ino(ino).unwrap();
    let inode_at = harness.space.inode_table(group).get() * 1024 + u64::from(index) * 256;
    drop(file);
    harness.close_and_check();

    let device = MemoryDevice::load(&image).unwrap();
    for seed in 0..400 {
        let mut rng = StdRng::seed_from_u64(seed);
        let damaged = device.snapshot();
        for _ in 0..rng.random_range(1..6) {
            let at = match rng.random_bool(0.5) {
                true => block * 1024 + rng.random_range(0..128),
                false => inode_at + 160 + rng.random_range(0..96),
            };
            damaged.write_at(at, &[rng.random()]).unwrap();
        }
        let harness = Harness::open_device(damaged, folder.path("image"));
        let file = harness.inodes.get(ino).unwrap();
        for name in list(&file).unwrap_or_default() {
            let _ = get(&file, &name);
        }
        for (name, value) in [(&b"user.a"[..], Some(&b"x"[..])), (b"user.c", None)] {
            if let Ok(change) = AttributeChange::plan(&file, name, value, Mode::Any) {
                let _ = harness.run(change.credits(), |handle| change.apply(handle));
            }
        }
        if let Ok(Release::Some(release) | Release::Rest(release)) =
            AttributeChange::plan_release(&file)
        {
            let _ = harness.run(release.credits(), |handle| release.apply(handle));
        }
        drop(file);
        let _ = harness.journal.close();
    }
}

#[test]
fn damaged_lists_are_survived() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..20_000 {
        let mut value: Vec<u8> = (0..rng.random_range(0..60)).map(|_| rng.random()).collect();
        let plausible = [2, 0, 0, 0, 1, 0, 7, 0, 0, 0, 0, 0, 4, 0, 5, 0, 0, 0, 0, 0, 32, 0];
        let keep = rng.random_range(0..value.len() + 1).min(plausible.len());
        value[..keep].copy_from_slice(&plausible[..keep]);
        if let Ok(Some(acl)) = Acl::from_caller(&value) {
            assert_eq!(Acl::from_disk(&acl.to_disk()).unwrap(), acl);
        }
        let _ = Acl::from_disk(&value);
    }
}
