//! Files and queues for tests of direct I/O.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::common::{assert_clean, new};
use uext4::{DirectOptions, DirectQueue, FileKind, IoBuf, OpenFile, Volume};
use uext4_device::MemoryDevice;

pub fn file(volume: &Volume, name: &str) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

pub fn read(file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    let count = file.read_direct_at(offset, &mut buf).unwrap();
    buf.truncate(count);
    buf
}

pub fn number(volume: &Volume, name: &str) -> u64 {
    volume.stats().number(name).unwrap()
}

pub fn queue(volume: &Volume, depth: usize) -> DirectQueue {
    volume.direct_queue(DirectOptions { depth, polled: false, memory: Vec::new() }).unwrap()
}

pub fn buf(fill: u8, len: usize) -> IoBuf {
    let mut buf = IoBuf::new(len).unwrap();
    buf.fill(fill);
    buf
}

pub fn close(volume: Volume, device: &MemoryDevice) {
    volume.close().unwrap();
    assert_clean(device);
}
