//! Images in sparse files, made by mke2fs, and what other tools say of them.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uext4::{MountOptions, NewInode, Owner, Volume};
use uext4_device::{Access, FileDevice, SharedDevice};
use uext4_ondisk::{FileKind, RawSuperblock};
use uext4_resize::{Report, ResizeError, fitting_blocks, resize};
use uext4_sim::growth::Open;

/// Whether a tool is installed; says so when a test must be skipped.
pub fn have(tool: &str) -> bool {
    let found = ["/sbin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join(tool).exists());
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

/// Standard output of a tool, and its exit status.
pub fn run(tool: &str, words: &str, image: &Path) -> (i32, String) {
    let mut command = Command::new(Path::new("/sbin").join(tool));
    command.args(words.split_whitespace()).arg(image);
    let output = command.output().expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text.into_owned())
}

/// Makes a file system of `kib` KiB in a new file.
pub fn mke2fs(image: &Path, kib: u64, words: &str) {
    File::create(image).and_then(|file| file.set_len(kib << 10)).expect("an image");
    let words = format!("-q -F -t ext4 -E lazy_itable_init=1,nodiscard {words}");
    let (status, said) = run("mke2fs", &words, image);
    assert_eq!(status, 0, "mke2fs {words}: {said}");
}

/// The superblock of an image.
pub fn superblock(image: &Path) -> RawSuperblock {
    let bytes = std::os::unix::fs::FileExt::read_exact_at;
    let mut buffer = [0; 1024];
    bytes(&File::open(image).expect("an image"), &mut buffer, 1024).expect("a superblock");
    RawSuperblock::read(&buffer).expect("a superblock")
}

pub fn open(image: &Path) -> Result<Volume, ResizeError> {
    let device = FileDevice::open(image, Access::ReadWrite, 0).expect("an image");
    Ok(Volume::open(Arc::new(device) as SharedDevice, MountOptions::default())?)
}

/// Grows an image, whose file becomes as long as it must.
pub fn grow(image: &Path, kib: u64) -> Result<Report, ResizeError> {
    let sb = superblock(image);
    let block_size = 1024_u64 << sb.s_log_block_size.get();
    let blocks = fitting_blocks(&sb, (kib << 10) / block_size)?;
    let file = File::options().write(true).open(image).expect("an image");
    if file.metadata().expect("an image").len() < kib << 10 {
        file.set_len(kib << 10).expect("room");
    }
    drop(file);
    resize(blocks, &mut || open(image))
}

/// Grows what `open` opens, for `uext4_sim::growth`.
pub fn grow_to(sb: &RawSuperblock, blocks: u64, open: Open<'_>) -> Result<BTreeSet<u64>, String> {
    let told = |error: ResizeError| error.to_string();
    let blocks = fitting_blocks(sb, blocks).map_err(told)?;
    let report = resize(blocks, &mut || Ok(open()?)).map_err(told)?;
    let steps = report.steps.iter().map(|shape| shape.blocks);
    Ok(steps.chain([report.old.blocks]).collect())
}

/// Asserts that neither e2fsck nor our checker finds anything.
pub fn assert_clean(image: &Path, what: &str) {
    let (status, said) = run("e2fsck", "-fn", image);
    assert_eq!(status, 0, "{what}: e2fsck -fn: {said}");
    let device = FileDevice::open(image, Access::ReadOnly, 0).expect("an image");
    let options = uext4_fsck::Options { threads: 1, findings_max: 10 };
    let report = uext4_fsck::check(&device, &options, &mut ()).expect("a check");
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{what}: {findings:#?}");
}

/// Writes a file with known bytes.
pub fn write_file(volume: &Volume, name: &str, len: usize) {
    let root = volume.root().expect("a root");
    let (owner, rdev) = (Owner { uid: 0, gid: 0 }, uext4::Device::default());
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, owner, rdev };
    let inode = volume.create(&root, name.as_bytes(), &new).expect("a file");
    volume.open_file(&inode).and_then(|file| file.write_at(0, &bytes(name, len))).expect("written");
}

/// The bytes of that file.
pub fn bytes(name: &str, len: usize) -> Vec<u8> {
    let seed: usize = name.bytes().map(usize::from).sum();
    (0..len).map(|at| ((at * 31 + seed) ^ (at >> 9)) as u8).collect()
}
