//! `uext4 verity` beside fsverity(1): the same digests, by both hash functions, for sizes around
//! the ends of blocks and levels.
//!
//! Fault model: a level, a salt or the end of the file hashed otherwise than everybody else does.

#[macro_use]
mod common;

use common::{Mounted, Scratch, at, no_mount, run_fails, run_ok, system};
use std::ffi::OsString;
use std::fs;

const SIZES: [usize; 8] = [0, 1, 4095, 4096, 4097, 128 * 4096, 128 * 4096 + 1, 3_000_000];

#[test]
fn digests_are_those_of_fsverity() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let make = ["mkfs", "-q", "-b", "4096", "-O", "verity"].map(OsString::from);
    run_ok([&make[..], &[image.clone().into(), "32M".into()]].concat());
    for (number, size) in SIZES.into_iter().enumerate() {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 4099) as u8).collect();
        let host = scratch.path(format!("file{number}"));
        fs::write(&host, &bytes).unwrap();
        let (algorithm, block, salt) = match number % 3 {
            0 => ("sha256", "4096", ""),
            1 => ("sha512", "4096", "00ff17"),
            _ => ("sha256", "1024", "0102030405060708"),
        };
        let options = [
            format!("--hash-alg={algorithm}"),
            format!("--block-size={block}"),
            format!("--salt={salt}"),
        ];
        let options: Vec<&String> = options.iter().filter(|o| !o.ends_with("salt=")).collect();
        let judge = system("fsverity").arg("digest").args(&options).arg(&host).output();
        let Some(judge) = judge.ok().filter(|output| output.status.success()) else {
            skip!("fsverity is not installed")
        };
        let inside = at(&image, &format!("/file{number}"));
        run_ok([OsString::from("cp"), host.into(), inside.clone()]);
        let enable = ["verity", "--enable"].map(OsString::from);
        let options: Vec<OsString> = options.into_iter().map(OsString::from).collect();
        let said = run_ok([&enable[..], &options[..], std::slice::from_ref(&inside)].concat());
        let word = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes).split_whitespace().next().unwrap_or("").to_owned()
        };
        assert_eq!(word(&said), word(&judge.stdout), "{size} bytes, {algorithm}, {block}");
        assert_eq!(word(&run_ok([OsString::from("verity"), inside.clone()])), word(&said));
        assert!(run_ok([OsString::from("cat"), inside]) == bytes);
    }
    default_block_size(&scratch);
    let judge = system("e2fsck").arg("-fn").arg(&image).output().unwrap();
    assert!(judge.status.success(), "{}", String::from_utf8_lossy(&judge.stdout));
    run_ok([OsString::from("fsck"), "-n".into(), image.clone().into()]);
    run_fails([OsString::from("verity"), at(&image, "/lost+found")], "not a regular file");
    let again = ["verity", "--enable"].map(OsString::from);
    run_fails([&again[..], &[at(&image, "/file1")]].concat(), "the file has a Merkle tree");
}

/// Blocks of a tree are as large as those of the file system where nothing is said.
/// A mapping for writing would change what every program reads, until the cache is dropped.
#[test]
fn a_mount_opens_no_sealed_file_for_writing() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let make = ["mkfs", "-q", "-b", "4096", "-O", "verity"].map(OsString::from);
    run_ok([&make[..], &[image.clone().into(), "32M".into()]].concat());
    let host = scratch.path("file");
    fs::write(&host, [7; 10_000]).unwrap();
    run_ok([OsString::from("cp"), host.into(), at(&image, "/sealed")]);
    run_ok(["verity".into(), "--enable".into(), at(&image, "/sealed")]);
    let mounted = Mounted::new(&image, &scratch.path("mnt"), "");
    let path = mounted.path("sealed");
    for (read, append) in [(true, false), (false, false), (false, true)] {
        let mut options = fs::OpenOptions::new();
        let opened = options.read(read).write(!append).append(append).open(&path);
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EPERM), "{read} {append}");
    }
    assert!(fs::read(&path).unwrap() == [7; 10_000]);
    mounted.end();
}

fn default_block_size(scratch: &Scratch) {
    let image = scratch.path("of1k");
    let make = ["mkfs", "-q", "-b", "1024", "-O", "verity"].map(OsString::from);
    run_ok([&make[..], &[image.clone().into(), "16M".into()]].concat());
    let host = scratch.path("host");
    fs::write(&host, vec![9; 5000]).unwrap();
    let judge =
        system("fsverity").args(["digest", "--block-size=1024"]).arg(&host).output().unwrap();
    let inside = at(&image, "/f");
    run_ok([OsString::from("cp"), host.into(), inside.clone()]);
    let said = run_ok([OsString::from("verity"), "--enable".into(), inside.clone()]);
    let digest = judge.stdout.split(|&byte| byte == b' ').next().unwrap();
    assert!(said.starts_with(digest), "{}", String::from_utf8_lossy(&said));
}
