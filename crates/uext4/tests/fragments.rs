//! Many small extents: leaves of the extent tree that overflow while one writeback inserts several
//! mappings into them.
//!
//! Fault model: none. The tree is e2fsck's to judge, the content the test's.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::Arc;
use uext4_ondisk::FileKind;

const BLOCK: u64 = 1024;

/// Leaves of every fill level get writes into their middle, their end, and both.
#[test]
fn scattered_writes_into_leaves_of_every_fill_level() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    // Around one full leaf below the root, and around five below an index node.
    for fragments in (70..90).chain(410..430) {
        let name = format!("f{fragments}");
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        let mut model = vec![0; ((fragments * 4 + 40) * BLOCK) as usize];
        let mut write = |block: u64, byte: u8| {
            let at = block * BLOCK;
            model[at as usize..(at + BLOCK) as usize].fill(byte);
            file.write_at(at, &[byte; BLOCK as usize]).unwrap();
        };
        for n in 0..fragments {
            write(n * 4, 1);
        }
        file.sync(false).unwrap();
        // One batch of writeback: behind the middle of the last leaf, and past the end.
        for n in 0..8 {
            write((fragments - 10 + n) * 4 + 2, 2);
            write((fragments + n) * 4 + 1, 3);
        }
        file.sync(false).unwrap();
        let end = volume.attr(&inode).size as usize;
        let mut read = vec![9; end];
        assert_eq!(file.read_at(0, &mut read).unwrap(), end);
        assert!(read == model[..end], "content of {name}");
        volume.unlink(&root, name.as_bytes()).unwrap();
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}
