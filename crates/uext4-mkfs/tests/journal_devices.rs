//! Compares journal devices, and file systems on them, with those that mke2fs makes of the same
//! options, byte for byte.
//!
//! Fault model: any difference but in `s_kbytes_written`, and with it the superblock's checksum:
//! mke2fs counts its own writes there. Needs mke2fs 1.47, and for file systems on a journal device
//! root, because mke2fs takes block devices alone; says so and passes where something is missing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use uext4_device::{
    Access, Device, Fault, FaultDevice, FaultPlan, FileDevice, MemoryDevice, Operation, Times,
};
use uext4_mkfs::{JournalDevice, Options, format, format_with_journal};
use uext4_ondisk::{GroupNo, Layout, RawSuperblock};

const TIME: u32 = 1_700_000_000;
const UUID: &str = "11111111-2222-3333-4444-555555555555";
const JOURNAL_UUID: &str = "99999999-2222-3333-4444-555555555555";
const HASH_SEED: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";

fn tool(name: &str, args: &[&str]) -> Option<Output> {
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(name);
    command.args(args).env("PATH", path).env("E2FSPROGS_FAKE_TIME", TIME.to_string());
    let output = command.output().map_err(|error| eprintln!("skipped: {name}: {error}"));
    output.ok()
}

fn has_mke2fs() -> bool {
    let Some(output) = tool("mke2fs", &["-V"]) else { return false };
    let version = String::from_utf8_lossy(&output.stderr).contains("mke2fs 1.47");
    if !version {
        eprintln!("skipped: mke2fs is not 1.47");
    }
    version
}

fn hex(text: &str) -> [u8; 16] {
    *uuid::Uuid::parse_str(text).unwrap().as_bytes()
}

/// A loop device over an image, until it is dropped.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Option<Loop> {
        let output = tool("losetup", &["-f", "--show", image.to_str()?])?;
        if !output.status.success() {
            eprintln!("skipped: losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        Some(Loop(String::from_utf8(output.stdout).ok()?.trim().to_owned()))
    }

    fn number(&self) -> u32 {
        std::fs::metadata(&self.0).unwrap().rdev() as u32
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup", &["-d", &self.0]);
    }
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn image(&self, name: &str, len: u64) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    }
}

fn write(path: &Path) -> FileDevice {
    FileDevice::open(path, Access::ReadWrite, 0).unwrap()
}

fn mke2fs(args: &[&str], path: &Path) {
    let mut all = vec!["-q", "-F", "-E"];
    let seed = format!("hash_seed={HASH_SEED}");
    all.push(&seed);
    all.extend(args);
    all.push(path.to_str().unwrap());
    let output = tool("mke2fs", &all).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The bytes of an image, without what mke2fs counts of its own in the superblock.
fn bytes(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    let sb = RawSuperblock::read(&bytes[1024..2048]).unwrap();
    let mut copies = vec![1024];
    if let Ok(layout) = Layout::new(&sb, None) {
        let groups = (1..layout.group_count).map(GroupNo).filter(|&g| layout.has_super(g));
        copies.extend(groups.map(|g| layout.byte_of(layout.group_first_block(g)) as usize));
    }
    for at in copies {
        bytes[at + 0x178..at + 0x180].fill(0);
        bytes[at + 0x3fc..at + 0x400].fill(0);
    }
    bytes
}

fn assert_same(ours: &Path, theirs: &Path, what: &str) {
    let (ours, theirs) = (bytes(ours), bytes(theirs));
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let at = ours.iter().zip(&theirs).position(|(our, their)| our != their);
    assert_eq!(at, None, "{what}: byte {at:?}");
}

fn options(uuid: &str) -> Options {
    Options {
        uuid: Some(hex(uuid)),
        hash_seed: Some(hex(HASH_SEED)),
        time: Some(TIME),
        ..Options::default()
    }
}

fn journal_options(block_size: Option<u32>) -> Options {
    Options { block_size, features: "journal_dev".to_owned(), ..options(JOURNAL_UUID) }
}

fn make_journals(folder: &Folder, block_size: Option<u32>, len: u64) -> (PathBuf, PathBuf) {
    let (ours, theirs) = (folder.image("our-journal", len), folder.image("their-journal", len));
    format(&write(&ours), &journal_options(block_size)).unwrap();
    let size = block_size.map(|size| size.to_string());
    let mut args = vec!["-t", "ext4", "-O", "journal_dev", "-U", JOURNAL_UUID];
    args.extend(size.iter().flat_map(|size| ["-b", size]));
    mke2fs(&args, &theirs);
    (ours, theirs)
}

#[test]
fn journal_devices_are_those_of_mke2fs() {
    if !has_mke2fs() {
        return;
    }
    let sizes = [None, Some(1024), Some(2048), Some(4096)];
    for (block_size, len) in sizes.into_iter().flat_map(|b| [(b, 8 << 20), (b, (5 << 20) - 999)]) {
        let folder = Folder::new();
        let (ours, theirs) = make_journals(&folder, block_size, len);
        assert_same(&ours, &theirs, &format!("{block_size:?}, {len} bytes"));
    }
}

#[test]
fn file_systems_on_a_journal_device_are_those_of_mke2fs() {
    if !has_mke2fs() {
        return;
    }
    for block_size in [1024_u32, 2048, 4096] {
        let folder = Folder::new();
        let (our_log, their_log) = make_journals(&folder, Some(block_size), 8 << 20);
        let (ours, theirs) = (folder.image("ours", 48 << 20), folder.image("theirs", 48 << 20));
        let Some(number) = Loop::new(&their_log).map(|device| {
            let journal = format!("device={}", device.0);
            mke2fs(&["-t", "ext4", "-U", UUID, "-J", &journal], &theirs);
            device.number()
        }) else {
            return;
        };
        let log = write(&our_log);
        let journal = JournalDevice::read(&log, number).unwrap();
        format_with_journal(&write(&ours), &options(UUID), Some(&journal)).unwrap();
        assert_same(&ours, &theirs, &format!("file system, {block_size}"));
        assert_same(&our_log, &their_log, &format!("journal, {block_size}"));
        drop(log);
        let args = ["-fn", "-j", our_log.to_str().unwrap(), ours.to_str().unwrap()];
        let checked = tool("e2fsck", &args).unwrap();
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    }
}

/// Each refusal is one line, and neither device changes.
#[test]
fn journals_that_cannot_be_used_are_refused() {
    let folder = Folder::new();
    let log = write(&folder.image("log", 4 << 20));
    let image = write(&folder.image("image", 16 << 20));
    let refusal = |log: &FileDevice, options: &Options| {
        let before = [digest(log), digest(&image)];
        let made = JournalDevice::read(log, 0)
            .and_then(|journal| format_with_journal(&image, options, Some(&journal)));
        assert_eq!([digest(log), digest(&image)], before);
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let begins = |log: &FileDevice, options: &Options, want: &str| {
        let line = refusal(log, options);
        assert!(line.starts_with(want) && !line.contains('\n'), "{line}");
    };
    let own = options(UUID);
    begins(&log, &own, "journal device: no ext4 superblock");
    format(&log, &Options { journal_mib: Some(1), ..options(UUID) }).unwrap();
    begins(&log, &own, "journal device: holds a file system, not a journal");
    format(&log, &journal_options(Some(1024))).unwrap();
    let other = Options { block_size: Some(4096), ..options(UUID) };
    begins(&log, &other, "journal device: its blocks have 1024 bytes");
    let sized = Options { journal_mib: Some(4), ..options(UUID) };
    begins(&log, &sized, "-J size= is of a journal that is made");
    let journal = JournalDevice::read(&log, 0).unwrap();
    // A device that fails gets no journal for nothing.
    let failing = FaultDevice::new(Arc::new(MemoryDevice::new(16 << 20)));
    let (operation, times, fault) = (Operation::Write, Times::Onwards, Fault::Io);
    failing.arm(FaultPlan { operation, nth: 4, times, fault });
    format_with_journal(&failing, &own, Some(&journal)).unwrap_err();
    format_with_journal(&image, &own, Some(&JournalDevice::read(&log, 0).unwrap())).unwrap();
    begins(&log, &own, &format!("journal device: in use by the file system {UUID}"));
    let small = write(&folder.image("small", 1 << 20));
    let error = format(&small, &journal_options(Some(4096))).unwrap_err().to_string();
    assert_eq!(error, "a journal has at least 1024 blocks, not 256");
    assert_eq!(digest(&small), digest(&write(&folder.image("fresh", 1 << 20))));
    let large = write(&folder.image("large", (1 << 42) + (1 << 20)));
    let error = format(&large, &journal_options(Some(4096))).unwrap_err().to_string();
    assert!(error.starts_with("a journal device has at most 1073741824 blocks, not"), "{error}");
    begins(&write(&folder.image("tiny", 2000)), &own, "journal device: no journal device");
}

fn digest(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}
