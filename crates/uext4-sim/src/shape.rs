//! Small images of many shapes, by mke2fs: with something of everything that ext2 to ext4 have.

mod furnish;

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use uext4_device::MemoryDevice;

use crate::oracle::{image_folder, program};

/// What mke2fs is told, and MiB.
pub const SHAPES: &[(&str, u64)] = &[
    ("-t ext4 -b 1024 -N 512", 6),
    ("-t ext4 -b 4096 -N 512 -J size=4", 16),
    ("-t ext4 -b 1024 -g 2048 -N 512 -O orphan_file,metadata_csum_seed", 8),
    ("-t ext4 -b 1024 -N 512 -O ^metadata_csum,uninit_bg", 6),
    ("-t ext4 -b 1024 -I 128 -N 512 -O ^metadata_csum,^64bit,^flex_bg", 6),
    ("-t ext4 -b 2048 -I 512 -N 512 -O ^has_journal,^resize_inode,sparse_super2", 6),
    ("-t ext4 -b 1024 -g 1024 -N 512 -O ^has_journal,^resize_inode,meta_bg", 6),
    ("-t ext2 -b 1024 -N 512", 4),
    ("-t ext3 -b 1024 -I 128 -N 512 -O dir_index", 6),
    ("-t ext4 -b 1024 -N 512 -O inline_data,^has_journal", 4),
    ("-t ext4 -b 1024 -C 8192 -N 512 -O bigalloc,^has_journal,^resize_inode", 8),
    ("-t ext4 -b 1024 -N 512 -O ea_inode,large_dir,^has_journal", 6),
    ("-t ext4 -b 4096 -N 512 -O ea_inode,^has_journal,^metadata_csum", 8),
    ("-t ext4 -b 1024 -N 512 -O quota,project,^has_journal -E quotatype=usrquota:grpquota", 6),
    ("-t ext4 -b 1024 -C 4096 -N 512 -O bigalloc,quota,project,^has_journal,^resize_inode", 8),
    ("-t ext4 -b 1024 -N 512 -O casefold,^has_journal", 6),
    ("-t ext4 -b 4096 -N 512 -O casefold,inline_data,orphan_file -J size=4", 16),
    ("-t ext4 -b 1024 -N 512 -O encrypt,stable_inodes,^has_journal", 6),
    ("-t ext4 -b 4096 -N 512 -O encrypt,inline_data,^has_journal", 8),
    ("-t ext4 -b 1024 -N 512 -O verity,^has_journal", 6),
    ("-t ext4 -b 1024 -N 512 -O mmp,^has_journal", 6),
    ("-t ext4 -b 8192 -N 512 -O ^has_journal", 16),
    ("-t ext4 -b 1024 -N 512 -O fast_commit", 8),
];

/// Features with which the engine adds something.
const FURNISHED: [&str; 5] = ["casefold", "encrypt", "verity", "quota", "ea_inode"];

/// Makes an image.
///
/// # Errors
/// mke2fs or e2fsck are missing, or fail.
pub fn image(options: &str, mib: u64) -> io::Result<MemoryDevice> {
    let folder = image_folder()?;
    let tree = folder.path().join("tree");
    fill(&tree)?;
    let device = image_of(&tree, options, mib)?;
    if FURNISHED.iter().any(|feature| options.contains(feature)) {
        return furnish::furnish(device).map_err(io::Error::other);
    }
    Ok(device)
}

/// Makes an image of a directory of the host.
///
/// # Errors
/// mke2fs or e2fsck are missing, or fail.
pub fn image_of(tree: &Path, options: &str, mib: u64) -> io::Result<MemoryDevice> {
    let folder = image_folder()?;
    let path = folder.path().join("image");
    fs::File::create(&path)?.set_len(mib << 20)?;
    let mke2fs = tool("mke2fs")?;
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
    command.args(options.split_whitespace()).arg("-d").arg(tree).arg(&path);
    run(&mut command, &[0])?;
    // Directories get their hash trees.
    run(Command::new(tool("e2fsck")?).arg("-fyD").arg(&path), &[0, 1])?;
    MemoryDevice::load(&path)
}

fn tool(name: &str) -> io::Result<std::path::PathBuf> {
    program(name).ok_or_else(|| io::Error::other(format!("{name} is not installed")))
}

fn run(command: &mut Command, fine: &[i32]) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.code().is_some_and(|code| fine.contains(&code)) {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?}: {output:?}")))
}

/// Files of every kind: hashed directories of one and two levels, fragments, holes, links,
/// attributes in the inode and in blocks.
pub(crate) fn fill(tree: &Path) -> io::Result<()> {
    let dir = |name: &str| {
        let path = tree.join(name);
        fs::create_dir_all(&path)?;
        Ok::<_, io::Error>(path)
    };
    let deep = dir("a/b/c/d")?;
    fs::write(deep.join("leaf"), [7; 5000])?;
    let target = tree.join("target");
    fs::write(&target, b"0123456789")?;
    let names = dir("names")?;
    let long = "n".repeat(170);
    for n in 0..300 {
        fs::hard_link(&target, names.join(format!("{n}-{long}")))?;
    }
    let some = dir("some")?;
    for n in 0..60 {
        fs::write(some.join(format!("file with a longer name {n}")), vec![1; n * 37])?;
    }
    for n in 0..8 {
        dir(&format!("dir{n}/sub"))?;
    }
    let fragments = fs::File::create(tree.join("fragments"))?;
    for n in 0..200_u64 {
        fragments.write_all_at(&[n as u8; 100], n * 16384)?;
    }
    let sparse = fs::File::create(tree.join("sparse"))?;
    sparse.write_all_at(b"end", 1 << 28)?;
    symlink("target", tree.join("fast"))?;
    symlink("a/".repeat(100), tree.join("slow"))?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )?;
    attributes(tree)
}

fn attributes(tree: &Path) -> io::Result<()> {
    let set = |path: &Path, name: &str, len: usize| {
        let flags = rustix::fs::XattrFlags::empty();
        // Folders that know no attributes make images without.
        let _ = rustix::fs::setxattr(path, name, &vec![9; len], flags);
    };
    for (name, len) in [("small", 20), ("medium", 300), ("large", 700)] {
        let path = tree.join(format!("with {name}"));
        fs::write(&path, [3; 100])?;
        set(&path, "user.first", 12);
        set(&path, &format!("user.{name}"), len);
    }
    Ok(())
}
