//! An engine on an image in memory, below the volume layer, for the tests of the layers that are
//! built on extents.
//!
//! Needs mke2fs, e2fsck and debugfs; tests say so and pass where they are missing.

use crate::alloc::Space;
use crate::cache::{Cache, PageBudget};
use crate::config::{AllocOptions, DaxMode, MountOptions};
use crate::error::Result;
use crate::inode::{Inode, InodeContext, InodeRef, InodeTable, OrphanList, ValueInodes};
use crate::journal::{FreeSpaceHooks, Handle, Journal, LeftLog, LogLocation, recover};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{Incompat, Ino, Layout, RawSuperblock};

/// Runs a tool. `None`, with a message, when it is not installed.
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

/// Runs a tool that must succeed. Returns its output.
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
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
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
pub(crate) struct Harness {
    pub(crate) space: Arc<Space>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) device: Arc<MemoryDevice>,
    superblock: RawSuperblock,
    image: PathBuf,
    /// Names given to each inode by the test; the inodes learn of them at the end.
    pub(crate) links: BTreeMap<Ino, u32>,
    _orphans: Arc<NoOrphans>,
}

/// Nothing is deleted here.
#[derive(Debug)]
struct NoOrphans;

impl OrphanList for NoOrphans {
    fn add(&self, _: &mut Handle<'_>, _: &Arc<Inode>) -> Result<()> {
        Ok(())
    }

    fn remove(&self, _: &mut Handle<'_>, _: &Inode) -> Result<()> {
        Ok(())
    }
}

impl Harness {
    pub(crate) fn open(image: impl AsRef<Path>) -> Self {
        Self::open_device(MemoryDevice::load(image.as_ref()).unwrap(), image)
    }

    /// Opens a copy of `image`, perhaps a changed one.
    pub(crate) fn open_device(device: MemoryDevice, image: impl AsRef<Path>) -> Self {
        let device = Arc::new(device);
        let shared: SharedDevice = device.clone();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
        let superblock = RawSuperblock::read(&bytes).unwrap();
        let layout = Arc::new(Layout::new(&superblock, Some(device.len())).unwrap());
        let location = LogLocation::find(&*device, &layout, &superblock).unwrap();
        let runs: Vec<_> = location.runs.iter().map(|&(_, start, len)| (start, len)).collect();
        let recovered = recover(&shared, &layout, location, LeftLog::Wipe).unwrap();
        let cache = Arc::new(Cache::new(shared, Arc::clone(&layout), 64 << 20));
        let journal = recovered.prepare(&cache, &MountOptions::default(), 4096).unwrap();
        journal.begin().unwrap();
        let options = AllocOptions::default();
        let shared = Arc::clone(&cache);
        let space = Space::open(shared, Arc::clone(&journal), &superblock, &runs, options).unwrap();
        let budget = Arc::new(PageBudget::new(16 << 20, layout.block_size, &Arc::default()));
        let (space_of, dax) = (Arc::clone(&space), DaxMode::Never);
        let context = InodeContext {
            cache,
            space: space_of,
            budget,
            dax,
            keys: Default::default(),
            values: ValueInodes::default(),
        };
        let inodes = InodeTable::new(context, 1000);
        let orphans = Arc::new(NoOrphans);
        inodes.context().values.attach(&inodes, &orphans, true);
        let image = image.as_ref().to_owned();
        Self {
            space,
            journal,
            inodes,
            device,
            superblock,
            image,
            links: BTreeMap::new(),
            _orphans: orphans,
        }
    }

    /// The inode of a path in the image as it was opened.
    pub(crate) fn inode(&self, path: &str) -> InodeRef {
        let stat = must("debugfs", &["-R", &format!("stat /{path}"), self.image_path()]);
        let number = stat.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        self.inodes.get(Ino(number.expect("debugfs says the number"))).unwrap()
    }

    fn image_path(&self) -> &str {
        self.image.to_str().unwrap()
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
        let (blocks, inodes) = self.space.journaled_free();
        superblock.set_free_blocks_count(blocks);
        superblock.s_free_inodes_count.set(inodes);
        let recover = superblock.s_feature_incompat.get() & !Incompat::RECOVER.bits();
        superblock.s_feature_incompat.set(recover);
        superblock.seal();
        self.device.write_at(SUPERBLOCK_OFFSET, superblock.bytes()).unwrap();
        self.device.save(&self.image).unwrap();
        must("e2fsck", &["-fn", self.image_path()]);
    }
}

/// An image that the kernel has mounted. Unmounted when dropped.
pub(crate) struct Mount(String);

impl Mount {
    /// `None`, with a message, if the kernel cannot mount the image.
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
        // Busy while another process still looks at the mount, as a scanner of all mounts does.
        for _ in 0..200 {
            if tool("umount", &[&self.0]).is_none_or(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(std::thread::panicking(), "{} stays mounted", self.0);
    }
}
