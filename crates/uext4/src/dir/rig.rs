//! An engine on an image in memory, below the volume layer, for the tests of directories and of
//! attributes.
//!
//! Needs mke2fs, e2fsck and debugfs; tests say so and pass where they are missing.

use super::Insertion;
use crate::alloc::Space;
use crate::cache::{BlockKind, Cache, PageBudget};
use crate::dir;
use crate::error::Result;
use crate::extent;
use crate::inode::{Attributes, Inode, InodeRef, InodeTable};
use crate::journal::{Handle, Journal, JournalConfig, LogLocation, recover};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{FileKind, Incompat, Ino, Layout, RawSuperblock};

/// Runs a tool; `None`, said aloud, when it is not installed.
pub(crate) fn tool(name: &str, args: &[&str]) -> Option<Output> {
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    match Command::new(name).args(args).env("PATH", path).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: {name}: {error}");
            None
        }
    }
}

/// Runs a tool that must succeed; its output.
pub(crate) fn must(name: &str, args: &[&str]) -> String {
    let output = tool(name, args).unwrap_or_else(|| panic!("{name} is missing"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{name} {args:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A folder that is deleted when dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("uext4-dir-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Files that images are made with: names of a test are links to them.
pub(crate) const FILES: &[&str] = &["file0", "file1", "file2", "file3"];

/// Makes an image with the directory `d` and [`FILES`]; `None` without tools.
pub(crate) fn make_image(folder: &Folder, size: &str, args: &[&str]) -> Option<PathBuf> {
    let tree = folder.path("tree");
    std::fs::create_dir_all(format!("{tree}/d")).unwrap();
    for file in FILES {
        std::fs::write(format!("{tree}/{file}"), b"").unwrap();
    }
    let image = folder.path("image");
    let mut all = vec!["-q", "-F", "-t", "ext4", "-d", &tree];
    all.extend(args);
    all.extend([image.as_str(), size]);
    tool("mke2fs", &[])?;
    must("mke2fs", &all);
    Some(image.into())
}

/// An open engine.
pub(crate) struct Rig {
    pub(crate) space: Arc<Space>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) inodes: Arc<InodeTable>,
    budget: Arc<PageBudget>,
    device: Arc<MemoryDevice>,
    superblock: RawSuperblock,
    image: PathBuf,
    /// Names given to each inode by the test.
    links: BTreeMap<Ino, u32>,
}

impl Rig {
    pub(crate) fn open(image: &Path) -> Self {
        let device = Arc::new(MemoryDevice::load(image).unwrap());
        let shared: SharedDevice = device.clone();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
        let superblock = RawSuperblock::read(&bytes).unwrap();
        let layout = Arc::new(Layout::new(&superblock, Some(device.len())).unwrap());
        let location = LogLocation::find(&*device, &layout, &superblock).unwrap();
        let runs: Vec<_> = location.runs.iter().map(|&(_, start, len)| (start, len)).collect();
        let recovered = recover(&shared, &layout, location, false).unwrap();
        let cache = Arc::new(Cache::new(shared, Arc::clone(&layout), 64 << 20));
        let config = JournalConfig { commit_interval: Duration::from_secs(5), images_max: 4096 };
        let journal = recovered.open(&cache, config).unwrap();
        let space = Space::open(cache, Arc::clone(&journal), &superblock, &runs).unwrap();
        let budget = Arc::new(PageBudget::new(16 << 20, layout.block_size));
        let inodes = InodeTable::new(Arc::clone(&space), Arc::clone(&budget), 1000);
        let image = image.to_owned();
        Self { space, journal, inodes, budget, device, superblock, image, links: BTreeMap::new() }
    }

    /// The inode of a path of one or more names.
    pub(crate) fn inode(&self, path: &str) -> InodeRef {
        let mut inode = self.inodes.get(Ino::ROOT).unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let entry = dir::lookup(&self.space, &inode, name.as_bytes()).unwrap();
            inode = self.inodes.get(entry.expect("the name is there").ino).unwrap();
        }
        inode
    }

    /// The inodes of [`FILES`].
    pub(crate) fn files(&self) -> Vec<Ino> {
        FILES.iter().map(|name| self.inode(name).ino()).collect()
    }

    pub(crate) fn run<T>(
        &self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'_>) -> Result<T>,
    ) -> Result<T> {
        self.journal.run(credits, operation)
    }

    /// Adds a name for a regular file.
    pub(crate) fn link(&mut self, dir: &Inode, name: &[u8], ino: Ino) -> Result<()> {
        let insertion = Insertion::plan(&self.space, dir, name)?;
        self.run(insertion.credits(), |handle| insertion.apply(handle, ino, FileKind::Regular))?;
        *self.links.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Removes a name that a test has added.
    pub(crate) fn unlink(&mut self, dir: &Inode, name: &[u8]) -> Result<()> {
        let entry = dir::lookup(&self.space, dir, name)?.expect("the name is there");
        self.run(1, |handle| entry.remove(handle))?;
        *self.links.entry(entry.ino).or_default() -= 1;
        Ok(())
    }

    /// Makes a directory.
    pub(crate) fn mkdir(&mut self, parent: &Inode, name: &[u8]) -> Result<InodeRef> {
        let insertion = Insertion::plan(&self.space, parent, name)?;
        let mut claim = self.space.claim_inode(parent.ino(), true)?;
        let mut attributes = Attributes::new(self.space.layout(), FileKind::Directory, 0o755, 7);
        attributes.links = 2;
        let kind = FileKind::Directory;
        let inode = Inode::create(&self.space, &self.budget, claim.ino(), kind, attributes)?;
        let inode = Arc::new(inode);
        let mut growth = extent::claim_growth(&self.space, &inode, 1)?;
        let credits = insertion.credits() + dir::init_credits(&inode) + 2 + 1;
        self.run(credits, |handle| {
            self.space.take_inode(handle, &mut claim, true)?;
            dir::init(&self.space, handle, &inode, &mut growth, parent.ino())?;
            insertion.apply(handle, inode.ino(), kind)?;
            parent.update(handle, |attributes| attributes.links += 1)
        })?;
        Ok(self.inodes.insert(inode))
    }

    /// Every name of a directory, read in steps of at most `step` entries.
    pub(crate) fn read_all(&self, dir: &Inode, step: usize) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut names = Vec::new();
        let mut cursor = 0;
        loop {
            let before = names.len();
            cursor = self.read_some(dir, cursor, step, &mut names)?;
            if names.len() == before {
                return Ok(names);
            }
        }
    }

    /// Up to `count` entries from `cursor` on; the cursor behind them.
    pub(crate) fn read_some(
        &self,
        dir: &Inode,
        mut cursor: u64,
        count: usize,
        names: &mut Vec<(Vec<u8>, Ino)>,
    ) -> Result<u64> {
        let end = names.len() + count;
        dir::read(&self.space, dir, cursor, &mut |entry| {
            if names.len() == end {
                return false;
            }
            assert!(entry.next > cursor, "cursors rise");
            cursor = entry.next;
            names.push((entry.name.to_vec(), entry.ino));
            true
        })?;
        Ok(cursor)
    }

    /// The links of `files` that the image has already, but for the name in the root, are the
    /// test's.
    pub(crate) fn continue_links(&mut self, files: &[Ino]) {
        for &ino in files {
            let links = self.inodes.get(ino).unwrap().attributes().links;
            self.links.insert(ino, links - 1);
        }
    }

    /// Closes the engine and writes the image; e2fsck must find nothing wrong with it.
    pub(crate) fn close_and_check(self) {
        for (&ino, &links) in &self.links {
            let inode = self.inodes.get(ino).unwrap();
            self.run(1, |handle| inode.update(handle, |a| a.links = 1 + links)).unwrap();
        }
        self.journal.close().unwrap();
        let mut superblock = self.superblock;
        let free = self.space.journaled_free_counts();
        superblock.set_free_blocks_count(free.blocks);
        superblock.s_free_inodes_count.set(u32::try_from(free.inodes).unwrap());
        let recover = superblock.s_feature_incompat.get() & !Incompat::RECOVER.bits();
        superblock.s_feature_incompat.set(recover);
        superblock.seal();
        self.device.write_at(SUPERBLOCK_OFFSET, superblock.bytes()).unwrap();
        self.device.save(&self.image).unwrap();
        must("e2fsck", &["-fn", self.image.to_str().unwrap()]);
    }

    /// Reads a block of a directory as what it may be, for tests that look at shapes.
    pub(crate) fn index_levels(&self, dir: &Inode) -> Option<u8> {
        let at = extent::block_of(&self.space, dir, uext4_ondisk::FileBlock(0)).unwrap();
        let kind = BlockKind::DirIndex { seed: dir.seed() };
        let buffer = self.space.cache().read(at, kind).unwrap();
        let has_csum = self.space.layout().has_metadata_csum();
        let root = uext4_ondisk::htree::parse_root(&buffer.read(), has_csum, 2).ok()?.0;
        Some(root.levels)
    }
}

/// An image mounted by the kernel; unmounted when dropped.
pub(crate) struct Mount(String);

impl Mount {
    /// `None`, said aloud, where the kernel cannot mount the image for us.
    pub(crate) fn new(folder: &Folder, image: &str) -> Option<Self> {
        let point = folder.path("mount");
        std::fs::create_dir_all(&point).unwrap();
        let output = tool("mount", &["-t", "ext4", "-o", "loop", image, &point])?;
        if !output.status.success() {
            eprintln!("skipped: mount: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(Self(point))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = tool("umount", &[&self.0]);
    }
}
