//! Blocks of 8 to 64 KiB, which are read and checked and not written.
//!
//! Fault model: a structure that is larger than in blocks of 4 KiB (records of 64 KiB, more than
//! 128 inodes of a block), an index of large nodes, an image that is changed. mke2fs fills it; the
//! kernel here mounts no such one. Not covered: logs of large blocks that must be replayed.

#[macro_use]
mod common;

use common::{Scratch, assert_clean, at, run_fails, run_ok, system};
use std::fs::{self, File};

#[test]
fn large_blocks_are_read_and_not_written() {
    for (block_size, features) in [
        ("8192", "^64bit"),
        ("16384", "^extent,^64bit"),
        ("65536", "^metadata_csum"),
        ("65536", "64bit"),
    ] {
        println!("{block_size} {features}");
        let scratch = Scratch::new();
        let tree = scratch.path("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        for n in 0..900 {
            let name = format!("sub/a file with a name that is as long as it needs to be {n}");
            fs::write(tree.join(name), n.to_string()).unwrap();
        }
        let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 31 + n / 257) as u8).collect();
        fs::write(tree.join("big"), &big).unwrap();
        let image = scratch.path("image");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = system("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", block_size, "-O", features, "-d"])
            .arg(&tree)
            .arg(&image)
            .output();
        let Ok(made) = made else { skip!("no mke2fs") };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        assert_clean(&image);
        let before = fs::read(&image).unwrap();
        run_ok(["fsck".into(), image.clone().into_os_string()]);
        run_ok(["freefrag".into(), image.clone().into_os_string()]);
        assert!(run_ok(["cat".into(), at(&image, "/big")]) == big);
        let out = scratch.path("out");
        run_ok(["cp".into(), "-r".into(), at(&image, "/sub"), out.clone().into_os_string()]);
        let count = fs::read_dir(&out).unwrap().count();
        assert_eq!(count, 900);
        for n in [0, 450, 899] {
            let name = format!("a file with a name that is as long as it needs to be {n}");
            assert_eq!(fs::read_to_string(out.join(name)).unwrap(), n.to_string());
        }
        run_fails(["mkdir".into(), at(&image, "/new")], "blocks above 4096 bytes");
        assert!(fs::read(&image).unwrap() == before, "the image was changed");
    }
}
