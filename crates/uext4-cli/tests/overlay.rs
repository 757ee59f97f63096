//! Overlays: mounts that write to a file beside an image, and `uext4 overlay`.
//!
//! Fault model: a byte of the image changes; a base that is not the one of an overlay, or has
//! changed; a commit that is cut off; files that are no overlays, or lie. Not covered: losses of
//! power (unit tests of `uext4_device::stored_overlay`, and the crash kit's form `overlay`).

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{
    Mounted, Scratch, as_nobody, assert_clean, at, has, is_root, run, run_fails, run_ok, shell,
    system, wait_until,
};
use uext4::{MountOptions, NewInode, Owner, Volume};
use uext4_device::stored_overlay::{Layout, StoredOverlay, commit, create};
use uext4_device::{Access, Fault, FaultDevice, FaultPlan, FileDevice, Operation, Times};

/// Mounts an image with words of the command line before its name.
fn mounted(words: &[&OsStr], image: &Path, dir: &Path) -> Mounted {
    fs::create_dir_all(dir).unwrap();
    let words = [OsStr::new("mount")].into_iter().chain(words.iter().copied());
    run_ok(words.chain([image.as_os_str(), dir.as_os_str()]));
    Mounted::of(dir)
}

fn over(file: &Path) -> [&OsStr; 2] {
    [OsStr::new("--overlay"), file.as_os_str()]
}

fn overlay(action: &str, names: &[&Path]) -> Vec<OsString> {
    let names = names.iter().map(|name| name.as_os_str().to_owned());
    ["overlay".into(), action.into()].into_iter().chain(names).collect()
}

fn info(file: &Path) -> serde_json::Value {
    let words = overlay("info", &[OsStr::new("--json").as_ref(), file]);
    serde_json::from_slice(&run_ok(words)).expect("JSON")
}

/// An image, and an overlay of it with a file `new`, made without a mount.
fn pair(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (image, file) = (scratch.path("base.img"), scratch.path("changes.ovl"));
    run_ok(["mkfs", "-q", image.to_str().unwrap(), "16M"]);
    run_ok([OsString::from("mkdir"), at(&image, "/dir")]);
    let base = Arc::new(FileDevice::open(&image, Access::ReadOnly, 0).unwrap());
    let layout = Layout::new(16 << 20).unwrap();
    let store = Arc::new(FileDevice::create(&file, layout.store_len()).unwrap());
    create(&*store, &*base, b"base.img").unwrap();
    let overlay = StoredOverlay::open(store, base).unwrap();
    let volume = Volume::open(Arc::new(overlay), MountOptions::default()).unwrap();
    let new = NewInode {
        kind: uext4::FileKind::Regular,
        mode: 0o644,
        owner: Owner { uid: 0, gid: 0 },
        rdev: uext4::Device::default(),
    };
    let inode = volume.create(&volume.root().unwrap(), b"new", &new).unwrap();
    volume.open_file(&inode).unwrap().write_at(0, &[7; 50_000]).unwrap();
    volume.close().unwrap();
    (image, file)
}

/// Write, unmount, mount again, look at it read-only, commit.
#[test]
fn a_mount_writes_to_the_overlay_alone() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    run_ok([OsString::from("mkdir"), at(&image, "/old")]);
    fs::set_permissions(&image, PermissionsExt::from_mode(0o444)).unwrap();
    let before = fs::read(&image).unwrap();
    let file = scratch.path("changes.ovl");

    let mount = mounted(&over(&file), &image, &dir);
    fs::write(mount.path("new"), [5; 300_000]).unwrap();
    fs::rename(mount.path("old"), mount.path("renamed")).unwrap();
    // Others may read the image meanwhile, and nobody may write it or the overlay.
    let listed = run_ok([OsString::from("ls"), at(&image, "/")]);
    assert!(String::from_utf8_lossy(&listed).contains("old"));
    run_fails([OsString::from("mkdir"), at(&image, "/more")], "");
    run_fails(overlay("discard", &[&file]), "in use");
    run_fails(overlay("commit", &[&file, &image]), "in use");
    mount.end();
    assert!(fs::read(&image).unwrap() == before, "the image has changed");
    let told = info(&file);
    assert_eq!(told["state"], "open");
    assert_eq!(told["base"]["bytes"], 32 << 20);
    assert_eq!(told["base"]["name"], image.canonicalize().unwrap().to_str().unwrap());
    let held = told["held_bytes"].as_u64().unwrap();
    assert!((300_000..4 << 20).contains(&held), "{held}");

    let held_before = fs::read(&file).unwrap();
    let words = [OsStr::new("--read-only")].into_iter().chain(over(&file));
    let mount = mounted(&words.collect::<Vec<_>>(), &image, &dir);
    assert!(fs::read(mount.path("new")).unwrap() == [5; 300_000]);
    assert!(mount.path("renamed").is_dir() && !mount.path("old").exists());
    assert!(fs::write(mount.path("more"), "x").is_err());
    mount.end();
    assert!(fs::read(&file).unwrap() == held_before, "a read-only mount has written");

    let mount = mounted(&over(&file), &image, &dir);
    fs::write(mount.path("second"), "mount").unwrap();
    mount.end();
    assert!(fs::read(&image).unwrap() == before, "the image has changed");
    fs::set_permissions(&image, PermissionsExt::from_mode(0o644)).unwrap();
    let said = run_ok(overlay("commit", &[&file, &image]));
    assert!(String::from_utf8_lossy(&said).contains("bytes written into"));
    assert_eq!(run_ok([OsString::from("cat"), at(&image, "/new")]), [5; 300_000]);
    assert_eq!(run_ok([OsString::from("cat"), at(&image, "/second")]), b"mount");
    assert_clean(&image);
    assert_eq!(info(&file)["state"], "empty");
    // The empty file is as good as a new one, now over the image as it is.
    let mount = mounted(&over(&file), &image, &dir);
    assert!(mount.path("renamed").is_dir());
    mount.end();
}

/// A daemon that is killed leaves an overlay that holds what was synced.
#[test]
fn a_killed_daemon_leaves_what_was_synced() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let file = scratch.path("changes.ovl");
    let kill = |mount: Mounted| {
        let daemon = mount.daemon().to_string();
        assert!(system("kill").args(["-9", &daemon]).status().unwrap().success());
        wait_until("it is gone", || fs::read_dir(&dir).is_err());
        run_ok([OsStr::new("umount"), dir.as_os_str()]);
        mount.forget();
    };
    // The image itself has a dirty journal, too.
    let mount = mounted(&[], &image, &dir);
    fs::write(mount.path("below"), "image").unwrap();
    File::open(mount.path("below")).unwrap().sync_all().unwrap();
    kill(mount);
    let before = fs::read(&image).unwrap();
    let mount = mounted(&over(&file), &image, &dir);
    assert_eq!(fs::read(mount.path("below")).unwrap(), b"image");
    fs::write(mount.path("synced"), [3; 100_000]).unwrap();
    File::open(mount.path("synced")).unwrap().sync_all().unwrap();
    kill(mount);
    let mount = mounted(&over(&file), &image, &dir);
    assert!(fs::read(mount.path("synced")).unwrap() == [3; 100_000]);
    mount.end();
    assert!(fs::read(&image).unwrap() == before, "the image has changed");
    run_ok(overlay("commit", &[&file, &image]));
    assert_clean(&image);
}

/// What is not clean is in the overlay, and the image needs no check.
#[test]
fn messages_of_a_mount_name_the_overlay() {
    let scratch = Scratch::new();
    let Ok((_, dir)) = common::ready(&scratch, 8) else { return };
    let (image, file) = (scratch.path("nj.img"), scratch.path("changes.ovl"));
    run_ok(["mkfs", "-q", "-O", "^has_journal", image.to_str().unwrap(), "16M"]);
    let mount = mounted(&over(&file), &image, &dir);
    fs::write(mount.path("new"), "x").unwrap();
    let daemon = mount.daemon().to_string();
    assert!(system("kill").args(["-9", &daemon]).status().unwrap().success());
    wait_until("it is gone", || fs::read_dir(&dir).is_err());
    run_ok([OsStr::new("umount"), dir.as_os_str()]);
    mount.forget();
    let words = ["mount".as_ref(), "--overlay".as_ref(), file.as_os_str(), image.as_os_str()];
    let output = run(words.into_iter().chain([dir.as_os_str()]));
    let mount = Mounted::of(&dir);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("changes.ovl: has no journal and was not unmounted cleanly"), "{said}");
    assert!(said.contains("e2fsck on the image after uext4 overlay commit"), "{said}");
    mount.end();
}

/// A partition is a base, and a commit changes nothing outside.
#[test]
fn a_partition_is_a_base() {
    if !has("sgdisk") {
        skip!("no sgdisk");
    }
    let scratch = Scratch::new();
    let (_, dir) = ready!(&scratch, 8);
    let disk = scratch.path("disk");
    fs::write(&disk, vec![0xa7; 32 << 20]).unwrap();
    shell("dd if=/dev/zero of=disk bs=1M count=1 conv=notrunc 2>/dev/null", scratch.dir.path());
    shell("PATH=$PATH:/sbin:/usr/sbin; sgdisk -n1:2048:34815 disk >/dev/null", scratch.dir.path());
    let (part, file) = (scratch.path("disk@p1"), scratch.path("changes.ovl"));
    run_ok(["mkfs", "-q", "-F", part.to_str().unwrap()]);
    let before = fs::read(&disk).unwrap();
    let mount = mounted(&over(&file), &part, &dir);
    fs::write(mount.path("new"), "partition").unwrap();
    mount.end();
    assert!(fs::read(&disk).unwrap() == before, "the disk has changed");
    assert!(info(&file)["base"]["name"].as_str().unwrap().ends_with("disk@p1"));
    run_fails(overlay("commit", &[&file, &disk]), "and the image has 33554432");
    run_ok(overlay("commit", &[&file, &part]));
    assert_eq!(run_ok([OsString::from("cat"), at(&part, "/new")]), b"partition");
    let after = fs::read(&disk).unwrap();
    let (start, end) = (1 << 20, 17 << 20);
    assert!(after[..start] == before[..start] && after[end..] == before[end..]);
}

/// Cut off at some writes, and finished by the command; nothing else is let at it meanwhile.
#[test]
fn a_commit_that_was_cut_off_is_finished() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let (whole, spare) = (fs::read(&image).unwrap(), scratch.path("spare.ovl"));
    fs::copy(&file, &spare).unwrap();
    for nth in [2, 3, 6] {
        fs::write(&image, &whole).unwrap();
        fs::copy(&spare, &file).unwrap();
        {
            let base = FileDevice::open(&image, Access::ReadWrite, 0).unwrap();
            let base = FaultDevice::new(Arc::new(base));
            let (operation, times) = (Operation::Write, Times::Onwards);
            base.arm(FaultPlan { operation, nth, times, fault: Fault::Short });
            let store = FileDevice::open(&file, Access::ReadWrite, 0).unwrap();
            commit(&store, &base, &mut |_| ()).unwrap_err();
        }
        assert_eq!(info(&file)["state"], "half committed");
        run_fails(overlay("discard", &[&file]), "is half committed");
        let dir = scratch.dir.path();
        let words = ["mount".as_ref(), "--overlay".as_ref(), file.as_os_str()];
        let refused = run(words.into_iter().chain([image.as_os_str(), dir.as_os_str()]));
        assert!(!refused.status.success(), "{refused:?}");
        nothing_uses(&image);
        let said = run_ok(overlay("commit", &[&file, &image]));
        assert!(String::from_utf8_lossy(&said).contains("finishes a commit that was cut off"));
        assert_eq!(run_ok([OsString::from("cat"), at(&image, "/new")]), [7; 50_000]);
        assert_clean(&image);
        // Once more does nothing.
        let said = run_ok(overlay("commit", &[&file, &image]));
        assert!(String::from_utf8_lossy(&said).contains("holds nothing"));
    }
}

/// An image that is half committed is refused by uext4 in a line that says what to do, by e2fsck
/// and by the kernel, and stays as it is.
fn nothing_uses(image: &Path) {
    let before = fs::read(image).unwrap();
    let name = image.as_os_str();
    run_fails(["ls".into(), at(image, "/")], "uext4 overlay commit");
    run_fails(["mkdir".into(), at(image, "/more")], "uext4 overlay commit");
    let output = run(["fsck".as_ref(), name]);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("uext4 overlay commit"));
    run_fails(["label".as_ref(), name, "NEW".as_ref()], "uext4 overlay commit");
    run_fails(["resize".as_ref(), name, "20M".as_ref()], "uext4 overlay commit");
    for checks in [["-fy"], ["-p"]] {
        let output = system("e2fsck").args(checks).arg(name).output().unwrap();
        assert!(output.status.code().unwrap() & 8 != 0, "{output:?}");
    }
    if is_root() {
        let dir = image.with_file_name("loop");
        fs::create_dir_all(&dir).unwrap();
        let mount = system("mount").args(["-o", "loop"]).arg(name).arg(&dir).output().unwrap();
        assert!(!mount.status.success(), "{mount:?}");
    }
    assert!(fs::read(image).unwrap() == before, "the image has changed");
}

/// What is written to an image after a cut is not lost: the commit is not finished over it.
#[test]
fn a_commit_is_not_finished_over_an_image_that_was_used() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let pristine = fs::read(&image).unwrap();
    {
        let base = FileDevice::open(&image, Access::ReadWrite, 0).unwrap();
        let base = FaultDevice::new(Arc::new(base));
        let (operation, times) = (Operation::Write, Times::Onwards);
        base.arm(FaultPlan { operation, nth: 3, times, fault: Fault::Short });
        let store = FileDevice::open(&file, Access::ReadWrite, 0).unwrap();
        commit(&store, &base, &mut |_| ()).unwrap_err();
    }
    let cut = fs::read(&image).unwrap();
    // Put back from a copy of before, and used.
    fs::write(&image, &pristine).unwrap();
    run_ok([OsString::from("mkdir"), at(&image, "/since")]);
    let before = [fs::read(&file).unwrap(), fs::read(&image).unwrap()];
    run_fails(overlay("commit", &[&file, &image]), "is half committed and cannot be finished");
    assert!([fs::read(&file).unwrap(), fs::read(&image).unwrap()] == before);
    // Put back and not used, or as it was cut: it is finished.
    for bytes in [&pristine, &cut] {
        let (spare, copy) = (scratch.path("spare.ovl"), scratch.path("copy.img"));
        fs::copy(&file, &spare).unwrap();
        fs::write(&copy, bytes).unwrap();
        run_ok(overlay("commit", &[&spare, &copy]));
        assert_clean(&copy);
    }
    // No overlay is made over the image as it was cut.
    fs::write(&image, &cut).unwrap();
    let Ok((_, dir)) = common::ready(&scratch, 8) else { return };
    fs::create_dir(&dir).unwrap();
    let new = scratch.path("new.ovl");
    let words = ["mount".as_ref(), "--overlay".as_ref(), new.as_os_str()];
    run_fails(words.into_iter().chain([image.as_os_str(), dir.as_os_str()]), "overlay commit");
    assert!(!new.exists());
}

#[test]
fn a_discard_empties_it() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let before = fs::read(&image).unwrap();
    run_ok(overlay("info", &[&file]));
    run_ok(overlay("discard", &[&file]));
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(info(&file)["state"], "empty");
    run_ok(overlay("discard", &[&file]));
    assert!(fs::read(&image).unwrap() == before);
}

/// A crash while an overlay is made leaves its length, or a header without the name.
#[test]
fn an_overlay_that_was_half_made_is_an_empty_one() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let sound = fs::read(&file).unwrap();
    let hole = File::create(&file).unwrap();
    hole.set_len(sound.len() as u64).unwrap();
    assert_eq!(info(&file)["state"], "empty");
    for words in [overlay("discard", &[&file]), overlay("commit", &[&file, &image])] {
        assert!(String::from_utf8_lossy(&run_ok(words)).contains("holds nothing"));
    }
    hole.write_all_at(&sound[..512], 0).unwrap();
    assert_eq!(info(&file)["state"], "open");
    assert_eq!(info(&file)["base"]["name"], "");
    hole.set_len(0).unwrap();
    hole.set_len(sound.len() as u64).unwrap();
    let Ok((_, dir)) = common::ready(&scratch, 8) else { return };
    let mount = mounted(&over(&file), &image, &dir);
    fs::write(mount.path("more"), "x").unwrap();
    mount.end();
    assert_eq!(info(&file)["state"], "open");
}

/// Another process has made it since it was seen to be empty.
#[test]
fn a_file_that_has_data_is_not_made_anew() {
    let scratch = Scratch::new();
    let (_, file) = pair(&scratch);
    let before = fs::read(&file).unwrap();
    let made = FileDevice::create_unless_filled(&file, before.len() as u64).unwrap();
    assert!(made.is_none());
    assert!(fs::read(&file).unwrap() == before);
    let new = scratch.path("new");
    assert!(FileDevice::create_unless_filled(&new, 5000).unwrap().is_some());
    assert_eq!(new.metadata().unwrap().len(), 5000);
}

/// A block device cannot become empty, so it is refused before it holds anything.
#[test]
fn a_block_device_is_no_overlay() {
    if !is_root() {
        skip!("no loop devices but for root");
    }
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let attach = system("losetup").args(["-f", "--show"]).arg(&file).output().unwrap();
    if !attach.status.success() {
        skip!("no loop device");
    }
    let device = String::from_utf8(attach.stdout).unwrap();
    let device = Path::new(device.trim());
    let before = [fs::read(&file).unwrap(), fs::read(&image).unwrap()];
    let refused = "is a block device";
    let results = [
        run(overlay("commit", &[device, &image])),
        run(overlay("discard", &[device])),
        run([
            "mount".as_ref(),
            "--overlay".as_ref(),
            device.as_os_str(),
            image.as_os_str(),
            "/".as_ref(),
        ]),
    ];
    assert!(system("losetup").arg("-d").arg(device).status().unwrap().success());
    for output in results {
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(refused), "{output:?}");
    }
    assert!([fs::read(&file).unwrap(), fs::read(&image).unwrap()] == before);
}

/// Each is one line, and leaves both files as they are.
#[test]
fn what_does_not_go_together_is_refused() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let (other, text) = (scratch.path("other.img"), scratch.path("text"));
    run_ok(["mkfs", "-q", other.to_str().unwrap(), "16M"]);
    let changed = scratch.path("changed.img");
    fs::copy(&image, &changed).unwrap();
    run_ok([OsString::from("mkdir"), at(&changed, "/more")]);
    fs::write(&text, "some text, which is no overlay\n".repeat(1000)).unwrap();
    let long = scratch.path("long.img");
    run_ok(["mkfs", "-q", long.to_str().unwrap(), "17M"]);
    let cases: [(&Path, &Path, &str); 6] = [
        (&file, &other, "is an overlay of another image: of the file system"),
        (&file, &changed, "its image has changed since the overlay was made"),
        (&file, &long, "is an overlay of 16777216 bytes, and the image has 17825792"),
        (&text, &image, "is not an overlay of uext4"),
        (&image, &image, "not that of its image"),
        (&scratch.path("missing"), &image, "No such file"),
    ];
    for (file, image, want) in cases {
        let before = [fs::read(file).ok(), fs::read(image).ok()];
        run_fails(overlay("commit", &[file, image]), want);
        assert!([fs::read(file).ok(), fs::read(image).ok()] == before, "{want}");
    }
    run_fails(overlay("info", &[&text]), "is not an overlay of uext4");
    run_fails(overlay("info", &[scratch.dir.path()]), "is a directory");
    run_fails(["ls".into(), at(&file, "/")], "contains an overlay: name its image");
    let Ok((_, dir)) = common::ready(&scratch, 8) else { return };
    fs::create_dir(&dir).unwrap();
    for (file, image, want) in &cases[..5] {
        let words = ["mount".as_ref(), "--overlay".as_ref(), file.as_os_str()];
        run_fails(words.into_iter().chain([image.as_os_str(), dir.as_os_str()]), want);
    }
    let missing = scratch.path("missing");
    let words = ["mount".as_ref(), "-r".as_ref(), "--overlay".as_ref(), missing.as_os_str()];
    run_fails(words.into_iter().chain([image.as_os_str(), dir.as_os_str()]), "No such file");
    assert!(!missing.exists());
    // An image that cannot be mounted leaves no file behind.
    let words = ["mount".as_ref(), "--overlay".as_ref(), missing.as_os_str()];
    run_fails(words.into_iter().chain([text.as_os_str(), dir.as_os_str()]), "superblock");
    assert!(!missing.exists());
}

/// What a change of an image is, and does.
type Change<'a> = (&'a str, Box<dyn Fn() + 'a>);

/// Each of these changes leaves all but the superblock and places far from the start as they are.
#[test]
fn an_image_that_was_used_is_refused_and_left() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let (pristine, folder) = (fs::read(&image).unwrap(), scratch.dir.path());
    let moved = [OsString::from("mv"), at(&image, "/dir"), at(&image, "/moved")];
    let mut changes: Vec<Change<'_>> = vec![
        ("label", Box::new(|| drop(run_ok(["label".as_ref(), image.as_os_str(), "NEW".as_ref()])))),
        ("rename", Box::new(move || drop(run_ok(moved.clone())))),
        ("debugfs", Box::new(|| shell("debugfs -w -R 'ssv mnt_count 9' base.img 2>&1", folder))),
        ("e2fsck", Box::new(|| shell("sleep 1; e2fsck -fy base.img >/dev/null 2>&1", folder))),
    ];
    if is_root() {
        let script = "mkdir -p loop && mount -o loop base.img loop && mv loop/dir loop/moved; \
                      umount loop";
        changes.push(("kernel", Box::new(move || shell(script, folder))));
    }
    for (what, change) in changes {
        fs::write(&image, &pristine).unwrap();
        change();
        let before = [fs::read(&file).unwrap(), fs::read(&image).unwrap()];
        assert!(before[1] != pristine, "{what} has changed nothing");
        run_fails(overlay("commit", &[&file, &image]), "its image has changed");
        assert!([fs::read(&file).unwrap(), fs::read(&image).unwrap()] == before, "{what}");
    }
    fs::write(&image, &pristine).unwrap();
    run_ok(overlay("commit", &[&file, &image]));
    assert_clean(&image);
}

/// Whatever stands in the file: a line, or what it shows; never a crash of the command.
#[test]
fn overlays_that_lie_are_told_of_in_a_line() {
    let scratch = Scratch::new();
    let (image, file) = pair(&scratch);
    let sound = fs::read(&file).unwrap();
    for (at, byte) in [(8, 2), (12, 1), (16, 9), (24, 1), (32, 1), (64, 1), (508, 1), (600, 1)] {
        let mut bytes = sound.clone();
        bytes[at] ^= byte;
        fs::write(&file, &bytes).unwrap();
        let output = run(overlay("info", &[&file]));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.lines().count() <= 1 && !said.contains("panicked"), "{at}: {said}");
        // The name alone is covered by a checksum of its own.
        assert_eq!(output.status.success(), at == 600, "{at}: {said}");
    }
    // Cut off, and longer than its image.
    for len in [511, 4096, sound.len() - 1, sound.len() + 1] {
        fs::write(&file, &sound).unwrap();
        File::options().write(true).open(&file).unwrap().set_len(len as u64).unwrap();
        run_fails(overlay("commit", &[&file, &image]), "is ");
    }
    // Bits without blocks: zeroes in place of the superblock.
    fs::write(&file, &sound).unwrap();
    let store = File::options().write(true).open(&file).unwrap();
    store.write_all_at(&[0xff; 512], 4096).unwrap();
    store.write_all_at(&[0; 4096], 1 << 20).unwrap();
    let Ok((_, dir)) = common::ready(&scratch, 8) else { return };
    fs::create_dir(&dir).unwrap();
    let words = ["mount".as_ref(), "--overlay".as_ref(), file.as_os_str()];
    run_fails(words.into_iter().chain([image.as_os_str(), dir.as_os_str()]), "superblock");
}

/// An image of another user that can be read will do.
#[test]
fn an_ordinary_user_mounts_over_an_image_to_read() {
    if is_root() {
        return as_nobody("an_ordinary_user_mounts_over_an_image_to_read");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let me = rustix::process::geteuid().as_raw().to_string();
    run_ok(["chown".into(), OsString::from(me), at(&image, "/")]);
    fs::set_permissions(&image, PermissionsExt::from_mode(0o444)).unwrap();
    let before = fs::read(&image).unwrap();
    let file = scratch.path("changes.ovl");
    let mount = mounted(&over(&file), &image, &dir);
    fs::write(mount.path("new"), "user").unwrap();
    mount.end();
    assert!(fs::read(&image).unwrap() == before, "the image has changed");
    let mount = mounted(&over(&file), &image, &dir);
    assert_eq!(fs::read(mount.path("new")).unwrap(), b"user");
    mount.end();
}
