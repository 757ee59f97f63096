//! Where a run keeps its images, and how each target reaches them.
//!
//! Invariants: everything lies in two temporary folders that go with the [`Stage`]; a loop device
//! goes with its [`Medium`].

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use uext4_device::FileDevice;

use crate::block_device::is_block_device;
use crate::command;
use crate::directory::Folder;
use crate::error::{Doing, Error, Result};
use crate::leftovers;
use crate::load::{SMALL_FILE_BYTES, SMALL_FILES};
use crate::machine;
use crate::mount::Mount;
use crate::plan::Plan;
use crate::slow_file;
use crate::tree::{Tree, scaled};

/// Where images lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory (`/dev/shm`): what software costs.
    Ram,
    /// In the folder for large temporary files (`/var/tmp`): what the disk and its flushes cost,
    /// too.
    Disk,
    /// In memory, with flushes that take so long (see [`crate::slow_file`]).
    Slow(Duration),
}

impl Store {
    /// Its name in commands and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::Slow(_) => "slow",
        }
    }

    /// What a flush takes at least, where that is set.
    #[must_use]
    pub const fn flush(self) -> Option<Duration> {
        match self {
            Self::Slow(flush) => Some(flush),
            Self::Ram | Self::Disk => None,
        }
    }

    pub(crate) const fn default_folder(self) -> &'static str {
        match self {
            Self::Ram | Self::Slow(_) => RAM,
            Self::Disk => "/var/tmp",
        }
    }
}

/// How uext4 and fuse2fs reach the image. The kernel always mounts it by a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// They open the file, as their user would.
    Natural,
    /// They open a loop device, as the kernel must.
    Device,
}

impl Route {
    /// Its name in commands and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::Device => "device",
        }
    }
}

const RAM: &str = "/dev/shm";
/// How the names of a run's folders begin: nothing else is ever removed.
pub(crate) const FOLDER_PREFIX: &str = "uext4-lab-";
/// Smallest image that is made, in bytes.
const IMAGE_BYTES_MIN: u64 = 64 << 20;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of statfs(2).
const MEMORY_FILE_SYSTEMS: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// Folders of a run.
#[derive(Debug)]
pub(crate) struct Stage {
    images: TempDir,
    sources: TempDir,
    image_bytes: u64,
}

impl Stage {
    /// Makes the folders for the loads on a tree; `folder` replaces the store's own.
    pub(crate) fn for_tree(
        store: Store,
        folder: Option<&Path>,
        tree: &Tree,
        scale: f64,
    ) -> Result<Self> {
        let data = tree_data_bytes(tree, scale);
        let stage = Self::new(store, folder, tree_image_bytes(tree, scale))?;
        // Two images with data in them, the archive, and for M7 both trees themselves.
        require_room(stage.images.path(), 3 * data)?;
        require_room(stage.sources.path(), 3 * data)?;
        Ok(stage)
    }

    /// Makes the folders, for images of that length.
    pub(crate) fn new(store: Store, folder: Option<&Path>, image_bytes: u64) -> Result<Self> {
        let folder = &plain(folder.unwrap_or(Path::new(store.default_folder())))?;
        let make = |folder: &Path| {
            let made = tempfile::Builder::new()
                .prefix(&format!("{FOLDER_PREFIX}{}-", std::process::id()))
                .tempdir_in(folder)
                .doing(format_args!("making a folder in {}", folder.display()))?;
            leftovers::add(made.path());
            Ok::<_, Error>(made)
        };
        let images = make(folder)?;
        let kind = rustix::fs::statfs(folder).doing("statfs")?.f_type;
        if store == Store::Disk && MEMORY_FILE_SYSTEMS.contains(&kind) {
            let text = format!("{} is in memory: name a folder on a disk", folder.display());
            return Err(Error::new(text));
        }
        // Where loads come from must not differ between the stores.
        let sources = make(if Path::new(RAM).is_dir() { Path::new(RAM) } else { folder })?;
        Ok(Self { images, sources, image_bytes })
    }

    /// Where images lie.
    pub(crate) fn folder(&self) -> &Path {
        self.images.path()
    }

    /// An image of the run.
    pub(crate) fn image(&self, name: &str) -> PathBuf {
        self.images.path().join(format!("{name}.img"))
    }

    /// A place for what loads read.
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.sources.path().join(name)
    }

    /// Where what loads read lies, and what is written about a run while it is made.
    pub(crate) fn sources(&self) -> &Path {
        self.sources.path()
    }

    /// A directory to mount on.
    pub(crate) fn mount_point(&self) -> Result<PathBuf> {
        let dir = self.images.path().join("mnt");
        std::fs::create_dir_all(&dir).doing("making the mount point")?;
        Ok(dir)
    }

    /// A directory for the mount that another one is served from.
    pub(crate) fn lower_mount_point(&self) -> Result<PathBuf> {
        let dir = self.images.path().join("below");
        std::fs::create_dir_all(&dir).doing("making the mount point")?;
        Ok(dir)
    }

    /// Length of the images, in bytes.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Makes an empty file system.
    pub(crate) fn format(&self, image: &Path) -> Result<()> {
        format(image, self.image_bytes)
    }
}

/// Bytes of the tree in an image, or of the small files if they are more.
fn tree_data_bytes(tree: &Tree, scale: f64) -> u64 {
    let small_files = u64::from(scaled(SMALL_FILES, scale)) * SMALL_FILE_BYTES as u64;
    let entries = tree.entries.len() as u64 * 4096;
    (tree.bytes() + entries).max(small_files)
}

/// Length of the images of loads on the tree: with room for twice the data, because an image that
/// is almost full is another load.
pub(crate) fn tree_image_bytes(tree: &Tree, scale: f64) -> u64 {
    (2 * tree_data_bytes(tree, scale)).next_multiple_of(1 << 20).max(IMAGE_BYTES_MIN)
}

/// A folder without links in its path, and in a form that fio and the mount table do not change.
pub(crate) fn plain(folder: &Path) -> Result<PathBuf> {
    let path = folder.canonicalize().doing(folder.display())?;
    let is_plain =
        |text: &str| text.chars().all(|c| c.is_alphanumeric() || "/._-+,=@%".contains(c));
    if path.to_str().is_some_and(is_plain) {
        return Ok(path);
    }
    let text = "images need a folder whose path has letters, digits and /._-+,=@% alone";
    Err(Error::new(format!("{}: {text}", folder.display())))
}

/// Makes an empty file system, as `mke2fs -t ext4 -b 4096` would.
pub(crate) fn format(image: &Path, bytes: u64) -> Result<()> {
    // Small images, too, have the block size of large ones.
    let options = uext4_mkfs::Options { block_size: Some(4096), ..uext4_mkfs::Options::default() };
    format_with(image, bytes, &options)
}

/// Makes an empty file system by our own mkfs.
pub(crate) fn format_with(image: &Path, bytes: u64, options: &uext4_mkfs::Options) -> Result<()> {
    let device = FileDevice::create(image, bytes).doing("making an image")?;
    let owner = machine::caller();
    let root_owner = options.root_owner.or(Some((owner.uid, owner.gid)));
    let options = uext4_mkfs::Options { root_owner, ..options.clone() };
    uext4_mkfs::format(&device, &options).doing("mkfs").map(|_| ())
}

/// Free space in the file system of a folder, in bytes.
pub(crate) fn room(dir: &Path) -> Result<u64> {
    let free = rustix::fs::statvfs(dir).doing("statvfs")?;
    Ok(free.f_bavail * free.f_frsize)
}

fn require_room(dir: &Path, bytes: u64) -> Result<()> {
    let free = room(dir)?;
    if free >= bytes {
        return Ok(());
    }
    let (need, free) = (bytes >> 20, free >> 20);
    let text = format!("{} has {free} MiB free, {need} needed: use --scale", dir.display());
    Err(Error::new(text))
}

/// Copies an image file with its holes.
pub(crate) fn copy_image(from: &Path, to: &Path) -> Result<()> {
    command::run("cp", &["--sparse=auto".as_ref(), from.as_os_str(), to.as_os_str()])?;
    Ok(())
}

/// Makes what was written to a file durable.
pub(crate) fn sync_file(path: &Path) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.sync_all()).doing(format_args!("syncing {}", path.display()))
}

/// Drops a synced file from the page cache, so that a run on a disk reads the disk. Has no effect
/// in memory.
pub(crate) fn drop_cached(path: &Path) -> Result<()> {
    sync_file(path)?;
    let file = File::open(path).doing(format_args!("opening {}", path.display()))?;
    fadvise(&file, 0, None, Advice::DontNeed).doing("fadvise")
}

/// Whether a loop device stands before an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loop {
    /// No.
    None,
    /// Yes; it reads and writes the image through the page cache.
    Cached,
    /// Yes; it passes the page cache by where the store lets it.
    Direct,
}

/// An image as a target opens it.
#[derive(Debug)]
pub(crate) struct Medium {
    image: PathBuf,
    /// The loop device that was put before it.
    loop_device: Option<PathBuf>,
    direct: bool,
    /// The folder that it is instead of an image.
    folder: Option<Folder>,
    /// The mount that the loop device lies over, if its flushes are slow.
    slow: Option<Mount>,
}

impl Medium {
    /// The image, with a loop device before it or not. What is a block device needs none.
    pub(crate) fn new(image: &Path, by_loop: Loop) -> Result<Self> {
        let mut medium = Self::bare(image);
        if is_block_device(image) {
            return Ok(medium);
        }
        medium.attach(image, by_loop)?;
        Ok(medium)
    }

    /// The image as a plan has it: with a loop device before it or not, and with slow flushes of
    /// that in the store that has them.
    pub(crate) fn of(plan: &Plan, image: &Path, by_loop: Loop) -> Result<Self> {
        match plan.store.flush().filter(|_| by_loop != Loop::None) {
            None => Self::new(image, by_loop),
            Some(flush) => {
                let shown = slow_file::show(plan, image, flush)?;
                let (mut medium, place) = (Self::bare(image), shown.dir().to_path_buf());
                medium.slow = Some(shown);
                medium.attach(&place, by_loop)?;
                Ok(medium)
            }
        }
    }

    fn bare(image: &Path) -> Self {
        let image = image.to_path_buf();
        Self { image, loop_device: None, direct: false, folder: None, slow: None }
    }

    fn attach(&mut self, file: &Path, by_loop: Loop) -> Result<()> {
        let attach = |direct: &str| {
            let direct = format!("--direct-io={direct}");
            let args: [&OsStr; 4] =
                ["--find".as_ref(), "--show".as_ref(), direct.as_ref(), file.as_os_str()];
            command::run("losetup", &args)
        };
        let device = match by_loop {
            Loop::None => return Ok(()),
            Loop::Cached => attach("off")?,
            Loop::Direct => match attach("on") {
                Ok(device) => {
                    self.direct = true;
                    device
                }
                Err(_) => attach("off")?,
            },
        };
        self.loop_device = Some(device.trim().into());
        Ok(())
    }

    /// A new folder of a directory that is mounted already.
    pub(crate) fn folder_in(dir: &Path) -> Result<Self> {
        let folder = Folder::new(dir)?;
        let mut medium = Self::bare(folder.path());
        medium.folder = Some(folder);
        Ok(medium)
    }

    /// The block device that a target opens, if it opens one.
    pub(crate) fn block_device(&self) -> Option<&Path> {
        Some(self.path()).filter(|path| is_block_device(path))
    }

    /// Whether the loop device passes the page cache by.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// What to open.
    pub(crate) fn path(&self) -> &Path {
        self.loop_device.as_deref().unwrap_or(&self.image)
    }

    /// Brings what was written to the image.
    pub(crate) fn sync(&self) -> Result<()> {
        if let Some(folder) = &self.folder {
            return folder.sync();
        }
        if let Some(device) = &self.loop_device {
            sync_file(device)?;
        }
        sync_file(&self.image)
    }

    /// Takes the loop device or the folder away.
    pub(crate) fn release(mut self) -> Result<()> {
        if let Some(folder) = self.folder.take() {
            return folder.remove();
        }
        self.detach()?;
        self.slow.take().map_or(Ok(()), Mount::end)
    }

    fn detach(&mut self) -> Result<()> {
        match self.loop_device.take() {
            Some(device) => {
                command::run("losetup", &["--detach".as_ref(), device.as_os_str()]).map(|_| ())
            }
            None => Ok(()),
        }
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        // A failure that matters was reported by `release`.
        let _ = self.detach();
    }
}
