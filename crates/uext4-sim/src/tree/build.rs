//! Makes a directory tree with everything that ext4 holds.

use crate::mount::is_root;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How large a tree is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Entries of the ordinary part.
    pub entries: u64,
    /// Names of the one large directory.
    pub names: u64,
    /// Bytes of the one large file.
    pub large_bytes: u64,
    /// Bytes of the sparse file, nearly all a hole; 0: there is none.
    pub sparse_bytes: u64,
    /// Largest value of an extended attribute, in bytes: attributes share one block.
    pub xattr_bytes: usize,
    /// Longest target of a symbolic link, in bytes.
    pub target_bytes: usize,
}

/// Enough for targets of all kinds: in the inode's map, behind it, and in a block.
const TARGET_BYTES: usize = 199;

impl Size {
    /// What issue the main job asks for: 45,000 entries, 200,000 names, 3 GiB.
    #[must_use]
    pub fn full(entries: u64) -> Size {
        Size {
            entries,
            names: 200_000,
            large_bytes: 3 << 30,
            sparse_bytes: 1 << 40,
            xattr_bytes: 3_000,
            target_bytes: TARGET_BYTES,
        }
    }

    /// For one of many images: 5,000 entries, and a file that needs indirect blocks.
    #[must_use]
    pub fn of_image(sparse_bytes: u64, xattr_bytes: usize) -> Size {
        Size {
            entries: 3_500,
            names: 1_600,
            large_bytes: 7 << 20,
            sparse_bytes,
            xattr_bytes,
            target_bytes: TARGET_BYTES,
        }
    }

    /// For a test suite: a second or two.
    #[must_use]
    pub fn small() -> Size {
        Size {
            entries: 1_200,
            names: 3_000,
            large_bytes: 24 << 20,
            sparse_bytes: 1 << 32,
            xattr_bytes: 700,
            target_bytes: TARGET_BYTES,
        }
    }
}

/// Names of the parts.
pub const LARGE_DIRECTORY: &str = "large directory";
/// The large file.
pub const LARGE_FILE: &str = "large file";
/// The sparse file.
pub const SPARSE_FILE: &str = "sparse file";
/// The ordinary part.
pub const ORDINARY: &str = "ordinary";

struct Builder {
    rng: StdRng,
    made: u64,
    files: Vec<PathBuf>,
    /// Directories with the times that they get when everything in them stands.
    directories: Vec<PathBuf>,
    is_root: bool,
    xattr_bytes: usize,
    target_bytes: usize,
}

/// Makes a tree at `root`, which must not exist. Returns the number of entries.
///
/// # Errors
/// Those of the system calls.
pub fn build(root: &Path, size: &Size) -> io::Result<u64> {
    let mut builder = Builder {
        rng: StdRng::seed_from_u64(45_000),
        made: 0,
        files: Vec::new(),
        directories: Vec::new(),
        is_root: is_root(),
        xattr_bytes: size.xattr_bytes,
        target_bytes: size.target_bytes,
    };
    builder.directory(root)?;
    let ordinary = root.join(ORDINARY);
    builder.directory(&ordinary)?;
    let mut folders = vec![ordinary];
    while builder.made < size.entries {
        let within = builder.rng.random_range(0..folders.len());
        let folder = folders[within].clone();
        if builder.rng.random_range(0..30) == 0 {
            let path = folder.join(builder.name());
            builder.directory(&path)?;
            folders.push(path);
        } else {
            builder.entry(&folder)?;
        }
    }
    builder.large_directory(&root.join(LARGE_DIRECTORY), size.names)?;
    builder.large_file(&root.join(LARGE_FILE), size.large_bytes)?;
    if size.sparse_bytes > 0 {
        builder.sparse_file(&root.join(SPARSE_FILE), size.sparse_bytes)?;
    }
    // Children first, so that no directory is written after its times were set.
    while let Some(path) = builder.directories.pop() {
        builder.attributes(&path, FileType::Directory)?;
    }
    Ok(builder.made)
}

impl Builder {
    /// A name that does not exist yet: short, long, with blanks, or of bytes that are no UTF-8.
    fn name(&mut self) -> PathBuf {
        let mut name = format!("{}", self.made).into_bytes();
        match self.rng.random_range(0..8) {
            0 => name.extend_from_slice(b" with blanks and 'quotes'"),
            1 => name.extend_from_slice(&[b'-', 0xff, 0xfe, 0x80, b'\n', 0xc3]),
            2 => name.resize(self.rng.random_range(100..=255), b'n'),
            _ => {}
        }
        PathBuf::from(OsStr::from_bytes(&name))
    }

    fn directory(&mut self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)?;
        self.made += 1;
        self.directories.push(path.to_owned());
        Ok(())
    }

    fn entry(&mut self, folder: &Path) -> io::Result<()> {
        let path = folder.join(self.name());
        self.made += 1;
        match self.rng.random_range(0..40) {
            0..=2 => {
                let len = self.rng.random_range(1..=self.target_bytes);
                let target: Vec<u8> =
                    (0..len).map(|_| self.rng.random_range(b'!'..=b'~')).collect();
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), &path)?;
                return self.attributes(&path, FileType::Symlink);
            }
            3..=4 if !self.files.is_empty() => {
                let which = self.rng.random_range(0..self.files.len());
                return fs::hard_link(&self.files[which], &path);
            }
            5 => {
                rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
                return self.attributes(&path, FileType::Fifo);
            }
            6 if self.is_root => {
                let device = rustix::fs::makedev(self.rng.random_range(1..4000), 1000);
                let kind = FileType::CharacterDevice;
                rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device)?;
                return self.attributes(&path, FileType::CharacterDevice);
            }
            _ => {}
        }
        let len = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(20_000..200_000),
            1..=4 => 0,
            _ => self.rng.random_range(1..8_000),
        };
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes[..]);
        fs::write(&path, &bytes)?;
        self.files.push(path.clone());
        self.attributes(&path, FileType::RegularFile)
    }

    /// Names in an order of their own, most of them empty files.
    fn large_directory(&mut self, path: &Path, names: u64) -> io::Result<()> {
        self.directory(path)?;
        for number in 0..names {
            // A full period of a linear generator: every number once, not in order.
            let name = format!("{:08}", (number * 7_919 + 13) % names.next_power_of_two().max(1));
            let name = path.join(format!("{name}-{number}"));
            match number % 50 {
                0 => std::os::unix::fs::symlink(format!("{number}"), &name)?,
                1 => fs::create_dir(&name)?,
                _ => drop(File::create(&name)?),
            }
            self.made += 1;
        }
        Ok(())
    }

    fn large_file(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = File::create(path)?;
        let mut piece = vec![0; 1 << 20];
        self.rng.fill(&mut piece[..]);
        let mut at = 0;
        while at < bytes {
            // Each piece is told from the others.
            let number = format!("{at:020}");
            piece[..number.len()].copy_from_slice(number.as_bytes());
            let count = piece.len().min((bytes - at) as usize);
            file.write_all_at(&piece[..count], at)?;
            at += count as u64;
        }
        self.made += 1;
        self.attributes(path, FileType::RegularFile)
    }

    fn sparse_file(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(bytes)?;
        for part in 0..16 {
            file.write_all_at(&[part as u8 + 1; 5_000], bytes / 16 * part + 4_096 * part)?;
        }
        self.made += 1;
        self.attributes(path, FileType::RegularFile)
    }

    fn attributes(&mut self, path: &Path, kind: FileType) -> io::Result<()> {
        if self.is_root {
            let uid = Uid::from_raw(self.rng.random_range(0..100_000));
            let gid = Gid::from_raw(self.rng.random_range(0..100_000));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(CWD, path, Some(uid), Some(gid), flags)?;
        }
        if kind != FileType::Symlink {
            // The owner can always read and write, so that an ordinary user may make the tree.
            let special = if self.is_root { 0o7777 } else { 0o777 };
            let mode = self.rng.random_range(0..=0o7777) & special | 0o700;
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
        }
        let may_have = matches!(kind, FileType::RegularFile | FileType::Directory);
        if may_have && self.rng.random_range(0..10) == 0 {
            let mut value = vec![0; self.rng.random_range(1..self.xattr_bytes)];
            self.rng.fill(&mut value[..]);
            rustix::fs::lsetxattr(path, "user.large", &value, XattrFlags::empty())?;
            rustix::fs::lsetxattr(path, "user.small", b"value", XattrFlags::empty())?;
        }
        let modified = Timespec {
            tv_sec: self.rng.random_range(-1_000_000_000..8_000_000_000),
            tv_nsec: self.rng.random_range(0..1_000_000_000),
        };
        let times = Timestamps { last_access: modified, last_modification: modified };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}
