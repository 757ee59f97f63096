//! `uext4 resize` from outside: what it grows, what it refuses and with which words, and what the
//! kernel makes of the result.
//!
//! Fault model: an image that a refusal has changed; content that a growth loses; space that cannot
//! be used. Not covered here: shapes of file systems and losses of power (crate uext4-resize).

#[macro_use]
mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::kernel::Kernel;
use common::{Scratch, assert_clean, at, has, run_fails, run_ok, shell, system};

const MIB: u64 = 1 << 20;

fn image(scratch: &Scratch, words: &[&str], size: &str) -> PathBuf {
    let image = scratch.path("image");
    let mut args: Vec<&str> = vec!["mkfs", "-q"];
    args.extend(words);
    args.extend([image.to_str().unwrap(), size]);
    run_ok(args);
    let file = scratch.path("file");
    fs::write(&file, content()).unwrap();
    run_ok(["cp".into(), file.into_os_string(), at(&image, "/kept")]);
    image
}

fn dir_of(scratch: &Scratch) -> PathBuf {
    scratch.path("")
}

fn content() -> Vec<u8> {
    (0..700_000_u32).map(|at| (at >> 8) as u8 ^ at as u8).collect()
}

fn resize(image: &Path, words: &[&str]) -> String {
    let mut args = vec!["resize", image.to_str().unwrap()];
    args.extend(words);
    String::from_utf8(run_ok(args)).unwrap()
}

fn assert_kept(image: &Path) {
    assert!(run_ok(["cat".into(), at(image, "/kept")]) == content(), "the file that was there");
    assert_clean(image);
}

#[test]
fn an_image_grows_with_its_file() {
    let scratch = Scratch::new();
    let image = image(&scratch, &[], "40M");
    let before = fs::read(&image).unwrap();
    let said = resize(&image, &["-n", "300M"]);
    assert!(said.contains("would grow from 40960 to 307200 blocks"), "{said}");
    assert!(fs::read(&image).unwrap() == before, "a dry run changed the image");
    let said = resize(&image, &["300M"]);
    assert!(said.contains("grown from 40960 to 307200 blocks"), "{said}");
    assert_eq!(fs::metadata(&image).unwrap().len(), 300 * MIB);
    assert_kept(&image);
    let said = resize(&image, &["+100M", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["new"]["bytes"], 400 * MIB);
    assert_eq!((&said["changed"], &said["old"]["blocks"]), (&true.into(), &307_200.into()));
    assert!(resize(&image, &[]).contains("nothing to do"));
    assert!(resize(&image, &["400M"]).contains("nothing to do"));
    // The file has become longer by other means.
    File::options().write(true).open(&image).unwrap().set_len(600 * MIB).unwrap();
    assert_eq!(resize(&image, &["-q"]), "");
    assert!(resize(&image, &["614400"]).contains("has 614400 blocks already"));
    assert_kept(&image);
}

#[test]
fn what_cannot_grow_is_refused_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let image = image(&scratch, &[], "40M");
    let before = fs::read(&image).unwrap();
    let refuse = |words: &[&str], want: &str| {
        let mut args = vec!["resize", image.to_str().unwrap()];
        args.extend(words);
        run_fails(args, want);
        assert!(fs::read(&image).unwrap() == before, "{words:?}: a refusal changed the image");
    };
    refuse(&["20M"], "shrinking is not supported yet");
    refuse(&["9000000T"], "so large a file is not possible");
    refuse(&["5000T"], "cannot have");
    let file = File::open(&image).unwrap();
    file.try_lock().unwrap();
    refuse(&["80M"], "in use");
    drop(file);
    if !has("debugfs") {
        skip!("debugfs, which marks errors, is not installed");
    }
    // Its bitmap does not agree with its descriptor.
    shell("cp image other; debugfs -w -R 'setb 40900' other", &dir_of(&scratch));
    let other = scratch.path("other");
    let before = fs::read(&other).unwrap();
    run_fails(["resize", other.to_str().unwrap(), "80M"], "needs a check (corrupt: group");
    assert!(fs::read(&other).unwrap() == before, "a refusal changed the image");
    shell("debugfs -w -R 'ssv state 3' image", &dir_of(&scratch));
    run_fails(["resize", image.to_str().unwrap(), "80M"], "has errors: repair it first (e2fsck");
    assert_eq!(fs::metadata(&image).unwrap().len(), 40 * MIB);
}

#[test]
fn a_file_system_of_a_partition_fills_it_and_no_more() {
    if !has("sfdisk") {
        skip!("sfdisk is not installed");
    }
    let scratch = Scratch::new();
    let whole = image(&scratch, &[], "40M");
    let bytes = fs::read(&whole).unwrap();
    shell(
        "truncate -s 200M disk; printf 'label: gpt\\nstart=1MiB, size=40MiB\\n' | sfdisk -q disk",
        &dir_of(&scratch),
    );
    let disk = scratch.path("disk");
    File::options().write(true).open(&disk).unwrap().write_all_at(&bytes, MIB).unwrap();
    let part = format!("{}@p1", disk.display());
    run_fails(["resize", &part, "80M"], "make the partition larger first (growpart");
    shell("echo 'start=1MiB, size=150MiB' | sfdisk -q -N 1 disk", &dir_of(&scratch));
    assert!(resize(Path::new(&part), &[]).contains("to 153600 blocks"));
    run_fails(["resize", &part, "+1M"], "its partition has only");
    assert!(run_ok(["cat", &format!("{part}:/kept")]) == content());
    shell("dd if=disk of=part bs=1M skip=1 count=150 status=none", &dir_of(&scratch));
    assert_kept(&scratch.path("part"));
    shell("sfdisk -q --verify disk", &dir_of(&scratch));
}

/// A log that a kernel has left is replayed first; the kernel mounts the result and fills it.
#[test]
fn the_kernel_fills_what_has_grown() {
    let scratch = Scratch::new();
    let dir = scratch.path("mnt");
    for words in [&["-b", "4096"][..], &["-b", "1024", "-O", "^resize_inode"]] {
        let image = image(&scratch, words, "40M");
        let copy = scratch.path("copy");
        {
            let Some(_kernel) = Kernel::mount(&image, &dir) else { skip!("no loop mounts") };
            fs::write(dir.join("late"), "synced").unwrap();
            assert!(system("sync").arg(dir.join("late")).status().unwrap().success());
            shell("cp image copy", &dir_of(&scratch));
        }
        resize(&copy, &["300M"]);
        assert_kept(&copy);
        {
            let _kernel = Kernel::mount(&copy, &dir).unwrap();
            assert_eq!(fs::read(dir.join("late")).unwrap(), b"synced");
            assert!(fs::read(dir.join("kept")).unwrap() == content());
            let zeroes = "dd if=/dev/zero of=mnt/filler bs=64K status=none 2>/dev/null || true";
            shell(zeroes, &dir_of(&scratch));
            let filler = fs::metadata(dir.join("filler")).unwrap().len();
            assert!(filler > 250 * MIB, "only {filler} bytes fitted");
            let free = rustix::fs::statvfs(&dir).unwrap().f_bavail;
            assert!(free <= 8, "{free} blocks are left");
        }
        assert_kept(&copy);
        fs::remove_file(image).unwrap();
    }
}
