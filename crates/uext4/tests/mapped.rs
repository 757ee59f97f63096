//! A volume on a mapped device, which it knows nothing of.
//!
//! Fault model: a store or load of the device that is misplaced or lost, also between devices of
//! two kinds on one image. Crashes are the business of `uext4-sim`.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{have, new};
use uext4::{MountOptions, Volume};
use uext4_device::{Access, Allocate, DaxDevice, FileDevice, SharedDevice};
use uext4_ondisk::FileKind;

const FILES: usize = 40;

fn data(file: usize) -> Vec<u8> {
    (0..file * file * 1777).map(|at| (at * 31 / 7 + file) as u8).collect()
}

fn fill(volume: &Volume, files: std::ops::Range<usize>) {
    let root = volume.root().unwrap();
    for file in files {
        let name = format!("file {file}");
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        let open = volume.open_file(&inode).unwrap();
        for (index, part) in data(file).chunks(100_000).enumerate() {
            assert_eq!(open.write_at(index as u64 * 100_000, part).unwrap(), part.len());
        }
        if file % 3 == 0 {
            open.sync(false).unwrap();
        }
    }
}

fn check(volume: &Volume, files: std::ops::Range<usize>) {
    let root = volume.root().unwrap();
    for file in files {
        let inode = volume.lookup(&root, format!("file {file}").as_bytes()).unwrap();
        let want = data(file);
        let mut bytes = vec![0; want.len()];
        let open = volume.open_file(&inode).unwrap();
        assert_eq!(open.read_at(0, &mut bytes).unwrap(), bytes.len());
        assert!(bytes == want, "file {file}");
    }
}

fn on(device: impl uext4_device::Device + 'static, work: impl FnOnce(&Volume)) {
    let device: SharedDevice = Arc::new(device);
    let volume = Volume::open(device, MountOptions::default()).unwrap();
    work(&volume);
    volume.close().unwrap();
}

fn assert_clean(image: &Path) {
    let output = Command::new("/sbin/e2fsck").arg("-fn").arg(image).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_volume_lives_on_a_mapped_image() {
    if !have("mke2fs") {
        return;
    }
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    for when in [Allocate::AtOpen, Allocate::AtWrite] {
        let image = folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let mut mke2fs = Command::new("/sbin/mke2fs");
        assert!(mke2fs.args(["-qF", "-t", "ext4"]).arg(&image).status().unwrap().success());
        let open = |access| DaxDevice::open_with(&image, 0, access, when);
        match open(Access::ReadWrite) {
            Ok(device) => on(device, |volume| fill(volume, 0..FILES / 2)),
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        }
        assert_clean(&image);
        on(FileDevice::open(&image, Access::ReadWrite, 0).unwrap(), |volume| {
            check(volume, 0..FILES / 2);
            fill(volume, FILES / 2..FILES);
        });
        on(open(Access::ReadWrite).unwrap(), |volume| {
            check(volume, 0..FILES);
            let root = volume.root().unwrap();
            for file in (0..FILES).step_by(2) {
                volume.unlink(&root, format!("file {file}").as_bytes()).unwrap();
            }
        });
        assert_clean(&image);
        on(open(Access::ReadOnly).unwrap(), |volume| check(volume, 1..2));
    }
}
