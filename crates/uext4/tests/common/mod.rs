//! Images for tests of the engine: made by mke2fs, checked by e2fsck.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::{InodeRef, MountOptions, NewInode, Owner, SetAttr, Volume};
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, Gate, HookedDevice, HookedRequest, MemoryDevice,
    Operation, SharedDevice, Times,
};
use uext4_ondisk::FileKind;

/// Whether the oracle is installed; says so when a test must be skipped.
pub fn have(tool: &str) -> bool {
    let found = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"]
        .iter()
        .any(|dir| std::path::Path::new(dir).join(tool).exists());
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

/// A file system made by mke2fs in memory.
pub fn mke2fs(mib: u64, options: &str) -> MemoryDevice {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file().set_len(mib << 20).expect("size");
    let output = Command::new("/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .args(options.split_whitespace())
        .arg(file.path())
        .output()
        .expect("mke2fs runs");
    assert!(output.status.success(), "mke2fs {options}: {output:?}");
    MemoryDevice::load(file.path()).expect("image")
}

/// What e2fsck says of an image: its exit status and output.
pub fn e2fsck(device: &MemoryDevice, flags: &str) -> (i32, String) {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    device.save(file.path()).expect("image");
    let output =
        Command::new("/sbin/e2fsck").arg(flags).arg(file.path()).output().expect("e2fsck runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

/// Asserts that e2fsck finds nothing.
pub fn assert_clean(device: &MemoryDevice) {
    let (code, text) = e2fsck(device, "-fn");
    assert_eq!(code, 0, "e2fsck -fn:\n{text}");
}

/// Changes an image with debugfs.
pub fn debugfs(device: &MemoryDevice, commands: &[String]) -> MemoryDevice {
    let image = tempfile::NamedTempFile::new().unwrap();
    device.save(image.path()).unwrap();
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), commands.join("\n")).unwrap();
    let output = Command::new("/sbin/debugfs")
        .arg("-w")
        .arg("-f")
        .arg(script.path())
        .arg(image.path())
        .output()
        .expect("debugfs runs");
    assert!(output.status.success(), "{output:?}");
    // A command that it does not know changes nothing, and is no failure.
    assert!(!String::from_utf8_lossy(&output.stderr).contains("invalid"), "{output:?}");
    MemoryDevice::load(image.path()).unwrap()
}

/// Mounts a device that the caller keeps a hand on.
pub fn mount(device: &Arc<MemoryDevice>) -> Volume {
    mount_with(device, MountOptions::default())
}

pub fn mount_with(device: &Arc<MemoryDevice>, options: MountOptions) -> Volume {
    let shared: SharedDevice = device.clone();
    Volume::open(shared, options).expect("mount")
}

pub fn new(kind: FileKind, mode: u16) -> NewInode {
    NewInode { kind, mode, owner: Owner { uid: 1000, gid: 1000 }, rdev: uext4::Device::default() }
}

/// A file as bytes, changed in the same way.
#[derive(Default)]
pub struct Model(pub Vec<u8>);

impl Model {
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        self.resize(self.0.len().max(offset + data.len()));
        self.0[offset..offset + data.len()].copy_from_slice(data);
    }

    pub fn resize(&mut self, size: usize) {
        self.0.resize(size, 0);
    }

    pub fn zero(&mut self, offset: usize, end: usize) {
        let end = end.min(self.0.len());
        self.0[offset.min(end)..end].fill(0);
    }

    pub fn at(&self, offset: usize, len: usize) -> &[u8] {
        let end = (offset + len).min(self.0.len());
        &self.0[offset.min(end)..end]
    }
}

/// Writes `count` blocks with holes between them.
pub fn scatter(volume: &Volume, inode: &InodeRef, count: u64) {
    let block = u64::from(volume.layout().block_size);
    let file = volume.open_file(inode).unwrap();
    for n in 0..count {
        file.write_at(2 * n * block, &vec![n as u8; block as usize]).unwrap();
    }
    file.sync(false).unwrap();
}

/// A change that makes a file so long.
pub fn cut(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Has the device fail at the `nth` operation of a kind from now on.
pub fn arm(device: &FaultDevice, operation: Operation, nth: u64, times: Times) {
    device.reset();
    device.arm(FaultPlan { operation, nth, times, fault: Fault::Io });
}

/// A device on which requests that `holds` names wait at `gate`.
pub fn gated(
    inner: SharedDevice,
    gate: &Arc<Gate>,
    holds: impl Fn(HookedRequest<'_>) -> bool + Send + Sync + 'static,
) -> SharedDevice {
    let gate = Arc::clone(gate);
    Arc::new(HookedDevice::new(inner, move |request| {
        if holds(request) {
            gate.pass();
        }
    }))
}

/// Waits for a condition, at most 20 seconds.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// So many seconds after the epoch.
pub fn at(secs: i64) -> uext4::Timestamp {
    uext4::Timestamp { secs, nanos: 0 }
}

/// The place of an inode's `i_block` on the device.
pub fn map_of(volume: &Volume, inode: &InodeRef) -> u64 {
    let layout = volume.layout();
    let (group, index) = layout.group_of_ino(inode.ino()).unwrap();
    let table = layout.byte_of(volume.group_desc(group).inode_table());
    table + u64::from(index) * u64::from(layout.inode_size) + 40
}

/// The block number at a byte of the device.
pub fn number(device: &MemoryDevice, at: u64) -> u32 {
    let mut bytes = [0; 4];
    device.read_at(at, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// Changes the block number at a byte of the device.
pub fn set_number(device: &MemoryDevice, at: u64, number: u32) {
    device.write_at(at, &number.to_le_bytes()).unwrap();
}
