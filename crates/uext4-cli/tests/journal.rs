//! `journal`, beside debugfs' logdump.
//!
//! Fault model: a transaction, a block or a revoke left out, told twice or of another transaction;
//! damage that is not told, or that ends the listing; a log without end; an image that is changed.
//! Logs of the kernel and of uext4. Not covered: checksums of the kernel's version 1.

#[macro_use]
mod common;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::dirty::image_and_dirty;
use common::kernel::Kernel;
use common::{Scratch, has, run, run_fails, run_ok, system};
use serde_json::Value;

/// What logdump and `journal` both say: kind, transaction, block, log block.
type Facts = BTreeSet<(&'static str, u64, u64, u64)>;

fn number(line: &str, before: &str) -> Option<u64> {
    let rest = line.split(before).nth(1)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn of_debugfs(image: &Path) -> Facts {
    let output = system("debugfs").args(["-R", "logdump -a"]).arg(image).output().unwrap();
    let mut facts = Facts::new();
    let mut sequence = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(found) = number(line, "expected sequence ") {
            sequence = found;
            if line.contains("(commit block)") {
                facts.insert(("commit", found, 0, number(line, "at block ").unwrap()));
            }
        } else if line.contains("logged at journal block") {
            let (block, at) = (number(line, "FS block "), number(line, "journal block "));
            facts.insert(("block", sequence, block.unwrap(), at.unwrap()));
        } else if let Some(block) = number(line, "Revoke FS block ") {
            facts.insert(("revoke", sequence, block, 0));
        }
    }
    facts
}

fn json(image: &Path) -> Value {
    let words = ["journal", "--blocks", "--json"].map(OsString::from);
    let text = run_ok(words.into_iter().chain([image.into()]));
    serde_json::from_slice(&text).unwrap()
}

fn of_uext4(said: &Value) -> Facts {
    let mut facts = Facts::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for transaction in said["transactions"].as_array().unwrap() {
        let tid = transaction["tid"].as_u64().unwrap();
        if transaction["commit"].is_string() {
            facts.insert(("commit", tid, 0, transaction["last_block"].as_u64().unwrap()));
        }
        for block in list(&transaction["blocks"]) {
            let [block, at] = ["block", "log_block"].map(|key| block[key].as_u64().unwrap());
            facts.insert(("block", tid, block, at));
        }
        for block in list(&transaction["revoked"]) {
            facts.insert(("revoke", tid, block.as_u64().unwrap(), 0));
        }
    }
    facts
}

/// Both say the same of a log, which has something of every kind; nothing changes.
fn is_same_as_debugfs(image: &Path) -> Value {
    let before = fs::read(image).unwrap();
    let said = json(image);
    let (ours, theirs) = (of_uext4(&said), of_debugfs(image));
    assert_eq!(ours, theirs);
    for kind in ["block", "commit", "revoke"] {
        assert!(ours.iter().any(|(found, ..)| *found == kind), "no {kind}: {said:#}");
    }
    assert_eq!(said["recovery"]["needed"], true);
    let committed = ours.iter().filter(|(kind, ..)| *kind == "commit").count();
    assert_eq!(said["recovery"]["transactions"], committed);
    run_ok([OsStr::new("journal"), OsStr::new("-bO"), image.as_os_str()]);
    assert!(fs::read(image).unwrap() == before, "the image has changed");
    said
}

#[test]
fn logs_of_uext4_are_as_debugfs_shows_them() {
    let scratch = Scratch::new();
    if !has("debugfs") {
        skip!("no debugfs");
    }
    let (clean, dirty) = image_and_dirty(&scratch, &[]);
    let said = is_same_as_debugfs(&dirty);
    // Where the bitmaps, the inodes and the superblock are is known.
    let roles = said.to_string();
    for role in ["superblock", "block bitmap of group 0", "inodes 1 to 4, of group 0"] {
        assert!(roles.contains(&format!("\"role\":\"{role}\"")), "no {role}: {said:#}");
    }
    // Closed, the log is empty, and what was in it can still be seen.
    let empty = json(&clean);
    assert_eq!(
        (&empty["transactions"], &empty["recovery"]["needed"]),
        (&Value::Array(vec![]), &Value::Bool(false))
    );
    let text = run_ok([OsStr::new("journal"), OsStr::new("-O"), clean.as_os_str()]);
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("\nTransaction ") && text.ends_with("Recovery: nothing to do\n"),
        "{text}"
    );
}

#[test]
fn logs_of_the_kernel_are_as_debugfs_shows_them() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 32, &["-b", "1024"]) else { skip!("no mke2fs") };
    let (dir, dirty) = (scratch.path("mnt"), scratch.path("dirty"));
    let Some(mounted) = Kernel::mount(&image, &dir) else { skip!("no loop mount") };
    let sync = || File::open(&dir).unwrap().sync_all().unwrap();
    for number in 0..4 {
        fs::create_dir(dir.join(format!("d{number}"))).unwrap();
        fs::write(dir.join(format!("d{number}/file")), [7; 3000]).unwrap();
        sync();
    }
    // A folder that something looks at meanwhile is freed, and revoked, by a later transaction.
    for number in 1..4 {
        fs::remove_dir_all(dir.join(format!("d{number}"))).unwrap();
        sync();
    }
    fs::copy(&image, &dirty).unwrap();
    drop(mounted);
    is_same_as_debugfs(&dirty);
}

#[test]
fn fast_commits_of_the_kernel_are_told() {
    let scratch = Scratch::new();
    let extra = ["-b", "1024", "-O", "fast_commit"];
    let Some(image) = scratch.image("image", 32, &extra) else { skip!("no mke2fs") };
    let (dir, dirty) = (scratch.path("mnt"), scratch.path("dirty"));
    let Some(mounted) = Kernel::mount(&image, &dir) else { skip!("no loop mount") };
    File::create(dir.join("first")).unwrap().sync_all().unwrap();
    let file = File::create(dir.join("second")).unwrap();
    file.write_all_at(&[1; 5000], 0).unwrap();
    file.sync_all().unwrap();
    fs::copy(&image, &dirty).unwrap();
    drop((file, mounted));
    let said = json(&dirty);
    let records = said["fast_commits"]["records"].as_array().cloned().unwrap_or_default();
    let is_create = |it: &Value| it["kind"] == "create" && it["name"] == "second";
    assert!(records.iter().any(is_create), "{said:#}");
    assert!(records.iter().any(|it| it["kind"] == "add_range" && it["blocks"] == 5), "{said:#}");
    let text = run_ok([OsStr::new("journal"), dirty.as_os_str()]);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("create in directory 2: inode") && text.contains(", second\n"), "{text}");
}

fn poke(image: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn damage_is_told() {
    let scratch = Scratch::new();
    let (_, dirty) = image_and_dirty(&scratch, &[]);
    let said = json(&dirty);
    let first = said["transactions"][0].clone();
    let at = first["blocks"][1]["log_block"].as_u64().unwrap();
    // A journal by mkfs is in one piece: its first block is where its superblock is.
    let bytes = fs::read(&dirty).unwrap();
    let is_superblock = |block: &[u8]| block.starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4]);
    let start = bytes.chunks(1024).position(is_superblock).unwrap() as u64;
    let byte = |log_block: u64| (start + log_block) * 1024 + 700;
    poke(&dirty, byte(at));
    let text = String::from_utf8(run_ok([OsStr::new("journal"), dirty.as_os_str()])).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("Transaction ")).count();
    assert_eq!(lines, said["transactions"].as_array().unwrap().len());
    assert!(text.contains(&format!("wrong checksums at {at}\n")), "{text}");
    assert!(text.contains("1 images are damaged"), "{text}");
    poke(&dirty, byte(at));
    // A descriptor: a recovery that reads on would write what it does not know.
    poke(&dirty, byte(first["first_block"].as_u64().unwrap()));
    let text = String::from_utf8(run_ok([OsStr::new("journal"), dirty.as_os_str()])).unwrap();
    assert!(text.contains("\nRecovery: fails: journal block "), "{text}");
    poke(&dirty, byte(first["first_block"].as_u64().unwrap()));
    // The superblock of the journal.
    poke(&dirty, byte(0) - 600);
    run_fails([OsStr::new("journal"), dirty.as_os_str()], "journal superblock");
}

#[test]
fn journals_of_their_own_and_none() {
    let scratch = Scratch::new();
    let [log, image, none] = ["log", "image", "none"].map(|name| scratch.path(name));
    let words = |words: &[&dyn AsRef<OsStr>]| -> Vec<OsString> {
        words.iter().map(|word| word.as_ref().to_owned()).collect()
    };
    run_ok(words(&[&"mkfs", &"-q", &"-b", &"1024", &"-O", &"journal_dev", &log, &"8M"]));
    let device = format!("device={}", log.display());
    run_ok(words(&[&"mkfs", &"-q", &"-J", &device, &image, &"32M"]));
    run_ok(words(&[&"mkfs", &"-q", &"-O", &"^has_journal", &none, &"8M"]));
    run_fails(words(&[&"journal", &none]), "has no journal");
    run_fails(words(&[&"journal", &image]), "is on another device: --journal-device");
    let of = |words: Vec<OsString>| String::from_utf8(run_ok(words)).unwrap();
    let by_image = of(words(&[&"--journal-device", &log, &"journal", &image]));
    let by_device = of(words(&[&"journal", &log]));
    assert!(by_image.contains("Journal users: ") && by_image.contains(&*log.to_string_lossy()));
    let behind = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(behind(&by_image), behind(&by_device));
    let wrong = run(words(&[&"--journal-device", &image, &"journal", &image]));
    assert_eq!(wrong.status.code(), Some(1));
}
