//! A device that is closed holds nothing. Alone in its program: a child that another test starts
//! holds every file of the program between its fork and its exec.

use std::path::Path;
use std::process::Command;

use uext4_device::{Access, Device, FileDevice, FileOptions, Submission, WriteRun};

/// Opens, writes by ring and closes, again and again: rings close late, the image is free at once.
fn open_and_close(path: &Path) {
    let submission = Submission::Uring;
    let options = FileOptions { submission, ..FileOptions::auto(Access::ReadWrite) };
    for round in 0..100 {
        let device = match FileDevice::open_with(path, &options) {
            Ok(device) => device,
            Err(error) => panic!("round {round}: {error}"),
        };
        let bytes = [3; 4096];
        let bufs = [&bytes[..]];
        let runs: Vec<_> =
            (0..64).map(|run| WriteRun { offset: run * 8192, bufs: &bufs }).collect();
        device.write_many(&runs).unwrap();
    }
}

#[test]
fn the_image_is_free_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, [0; 1 << 20]).unwrap();
    open_and_close(&path);

    if !rustix::process::geteuid().is_root() {
        println!("skipped the loop device: attaching one needs root");
        return;
    }
    match Command::new("losetup").args(["-f", "--show"]).arg(&path).output() {
        Ok(output) if output.status.success() => {
            let name = String::from_utf8(output.stdout).unwrap();
            let checked = std::panic::catch_unwind(|| open_and_close(Path::new(name.trim())));
            let detached = Command::new("losetup").arg("-d").arg(name.trim()).status().unwrap();
            assert!(detached.success());
            checked.unwrap();
        }
        other => println!("skipped the loop device: {other:?}"),
    }
}
