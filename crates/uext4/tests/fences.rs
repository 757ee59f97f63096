//! What a sync after direct overwrites costs other threads: nothing, where a device writes.
//!
//! Fault model: a heavy fence, which interrupts each processor that runs a thread of the process.
//! Fences are counted for the process, so this is the only test of its program. Not covered:
//! byte-addressable devices, where such a sync takes one.

mod common;

use common::{have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::FileKind;
use uext4_device::heavy_fences;

#[test]
fn a_sync_after_direct_overwrites_interrupts_nobody() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"a", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_direct_at(0, &[1; 64 << 10]).unwrap();
    file.sync(false).unwrap();
    // What is learnt once.
    file.write_direct_at(0, &[2; 4096]).unwrap();
    file.sync(true).unwrap();
    let (fences, overwrites) = (heavy_fences(), volume.stats().number("direct_overwrites"));
    for round in 0..100_u8 {
        file.write_direct_at(4096, &[round; 4096]).unwrap();
        file.sync(true).unwrap();
    }
    let done = volume.stats().number("direct_overwrites").unwrap() - overwrites.unwrap();
    assert_eq!(done, 100, "each went the fast way");
    assert_eq!(heavy_fences() - fences, 0);
    drop((file, inode));
    volume.close().unwrap();
}
