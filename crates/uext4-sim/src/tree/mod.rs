//! Directory trees with everything that ext4 holds, and what is checked with them.
//!
//! # How
//! [`build()`](build::build) makes a tree in a folder of the host. *Forward*: it is untarred into a
//! mount by uext4; `e2fsck -fn` must find nothing, and the kernel's mount of the image must show
//! the identical tree. *Backward*: it is untarred into a mount by the kernel; uext4 must show it
//! identical; then names are removed and files rewritten through uext4
//! ([`change()`](change::change)) and in the folder, and the kernel must show what the
//! folder holds.
//!
//! # Not covered
//! Access, change and birth times (tar does not restore them); more bytes than memory holds.

pub mod build;
pub mod change;
pub mod compare;

use crate::mount::{FuseMount, KernelMount, is_root, run, why_no_loop};
use crate::nbd_file::NbdFile;
use crate::oracle::{self, image_folder, program};
use crate::remote::Export;
use crate::tree::build::Size;
use crate::tree::compare::Scope;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use uext4_device::{Access, FileDevice};

/// Who makes the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// `mke2fs -t ext4`.
    Mke2fs,
    /// `uext4 mkfs`.
    Uext4,
}

/// A folder with a tree and room for images. Removed when dropped.
#[derive(Debug)]
pub struct Trial {
    folder: tempfile::TempDir,
    binary: PathBuf,
    image_bytes: u64,
    /// Entries of the tree.
    pub entries: u64,
}

/// Name of the tree in its folder and in the images.
const TREE: &str = "tree";

impl Trial {
    /// Makes the tree. `binary` is the `uext4` command.
    ///
    /// # Errors
    /// Those of making it.
    pub fn new(binary: &Path, size: &Size, image_bytes: u64) -> Result<Trial, String> {
        let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
        rustix::process::umask(rustix::fs::Mode::empty());
        let root = folder.path().join(TREE);
        let entries = build::build(&root, size)
            .map_err(|error| format!("making the tree in {}: {error}", root.display()))?;
        Ok(Trial { folder, binary: binary.to_owned(), image_bytes, entries })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Untars the tree into a mount by uext4; e2fsck and the kernel look at the image. Says what
    /// was done.
    ///
    /// # Errors
    /// What is wrong.
    pub fn forward(&self, maker: Maker) -> Result<String, String> {
        let image = self.make(maker)?;
        let point = self.path("mnt");
        let mount = FuseMount::start(&self.binary, &image, &point)?;
        let start = Instant::now();
        self.untar(&point)?;
        let untarred = start.elapsed();
        let memory = mount.memory_peak_kib().unwrap_or(0) >> 10;
        mount.unmount(&self.binary)?;
        let unmounted = start.elapsed() - untarred;
        oracle::expect_clean(&image)?;
        let judge = self.compare_by_kernel(&image)?;
        remove(&image)?;
        Ok(format!(
            "untarred in {:.1} s, unmounted in {:.1} s, {memory} MiB resident; e2fsck -fn: clean; \
             {judge}",
            untarred.as_secs_f64(),
            unmounted.as_secs_f64()
        ))
    }

    /// Untars the tree into a mount by the kernel; uext4 must show it, and keep it when names are
    /// removed and files rewritten. The tree is changed, too. Says what was done.
    ///
    /// # Errors
    /// What is wrong.
    pub fn backward(&self, maker: Maker) -> Result<String, String> {
        if let Some(why) = why_no_loop() {
            return Ok(format!("skipped: {why}"));
        }
        let image = self.make(maker)?;
        let (kernel_point, point) = (self.path("kernel"), self.path("mnt"));
        let kernel = KernelMount::start(&image, &kernel_point, false)?;
        self.untar(&kernel_point)?;
        kernel.unmount()?;

        let mount = FuseMount::start(&self.binary, &image, &point)?;
        let start = Instant::now();
        same(&self.path(TREE), &point.join(TREE), "uext4's mount of the kernel's image")?;
        let compared = start.elapsed();
        let at = |error: std::io::Error| format!("changing the tree: {error}");
        let changed = change::change(&point.join(TREE)).map_err(at)?;
        mount.unmount(&self.binary)?;
        oracle::expect_clean(&image)?;
        change::change(&self.path(TREE)).map_err(at)?;
        let judge = self.compare_by_kernel(&image)?;
        remove(&image)?;
        Ok(format!(
            "uext4 reads it identical ({:.1} s); {changed} changes; e2fsck -fn: clean; {judge}",
            compared.as_secs_f64()
        ))
    }

    /// As [`Self::forward`], on a network block device, which is copied for the judges.
    ///
    /// # Errors
    /// What is wrong.
    pub fn forward_to(&self, export: &mut dyn Export) -> Result<String, String> {
        let (name, point, image) = (export.name(), self.path("mnt"), self.path("copy.img"));
        run(Command::new(&self.binary).args(["-q", "mkfs", "-F"]).arg(&name))?;
        let mount = FuseMount::start(&self.binary, &name, &point)?;
        let start = Instant::now();
        self.untar(&point)?;
        run(Command::new(&self.binary).arg("sync").arg(&point))?;
        let untarred = start.elapsed();
        mount.unmount(&self.binary)?;
        NbdFile::open(&name, &self.path("file"))?.expect_clean()?;
        export.copy_to(&image)?;
        let judge = self.compare_by_kernel(&image)?;
        remove(&image)?;
        let entries = self.entries;
        let seconds = untarred.as_secs_f64();
        Ok(format!(
            "{entries} entries untarred and synced in {seconds:.1} s; e2fsck -fn through nbdfuse: \
             clean; {judge}"
        ))
    }

    fn make(&self, maker: Maker) -> Result<PathBuf, String> {
        let path = self.path("disk.img");
        let at = |error: std::io::Error| format!("{}: {error}", path.display());
        File::create(&path).and_then(|file| file.set_len(self.image_bytes)).map_err(at)?;
        match maker {
            Maker::Mke2fs => {
                let program = program("mke2fs").ok_or("mke2fs is not installed")?;
                run(Command::new(program).args(["-q", "-F", "-t", "ext4"]).arg(&path))?;
            }
            Maker::Uext4 => {
                run(Command::new(&self.binary).arg("mkfs").arg(&path))?;
            }
        }
        if !is_root() {
            // The mount will be an ordinary user's, which works as root of the image.
            self.open_root(&path)?;
        }
        Ok(path)
    }

    /// Lets everybody write to the root directory of an image.
    fn open_root(&self, image: &Path) -> Result<(), String> {
        let device = FileDevice::open(image, Access::ReadWrite, 0).map_err(|e| e.to_string())?;
        let open = || {
            let volume = uext4::Volume::open(Arc::new(device), uext4::MountOptions::default())?;
            let change = uext4::SetAttr { mode: Some(0o777), ..uext4::SetAttr::default() };
            volume.set_attr(&volume.root()?, &change)?;
            volume.close()
        };
        open().map_err(|error: uext4::Error| error.to_string())
    }

    /// `tar -c | tar -x`, all attributes kept.
    fn untar(&self, to: &Path) -> Result<(), String> {
        let attributes = ["--xattrs", "--xattrs-include=*"];
        let mut pack = Command::new("tar")
            .args(["--format=posix", "-S"])
            .args(attributes)
            .args(["-cf", "-", "-C"])
            .arg(self.folder.path())
            .arg(TREE)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run tar: {error}"))?;
        let pipe = pack.stdout.take().ok_or("tar has no output")?;
        let unpack = Command::new("tar")
            .args(attributes)
            .args(["--numeric-owner", "-xpf", "-", "-C"])
            .arg(to)
            .stdin(pipe)
            .output()
            .map_err(|error| format!("cannot run tar: {error}"))?;
        let packed = pack.wait().map_err(|error| error.to_string())?;
        if !unpack.status.success() || !packed.success() {
            let said = String::from_utf8_lossy(&unpack.stderr).into_owned();
            let last = said.lines().last().unwrap_or("(it said nothing)");
            return Err(format!("tar -c: {packed}, tar -x: {}: {last}", unpack.status));
        }
        Ok(())
    }

    fn compare_by_kernel(&self, image: &Path) -> Result<String, String> {
        if let Some(why) = why_no_loop() {
            let mount = FuseMount::start(&self.binary, image, &self.path("mnt"))?;
            same(&self.path(TREE), &self.path("mnt").join(TREE), "uext4's second mount")?;
            mount.unmount(&self.binary)?;
            return Ok(format!("compared through uext4 (the kernel is skipped: {why})"));
        }
        let point = self.path("kernel");
        let kernel = KernelMount::start(image, &point, true)?;
        same(&self.path(TREE), &point.join(TREE), "the kernel's mount")?;
        kernel.unmount()?;
        Ok("the kernel shows the identical tree".into())
    }
}

fn same(tree: &Path, shown: &Path, shown_by: &str) -> Result<(), String> {
    let differences = compare::trees(tree, shown, Scope::default())?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("{shown_by} differs from the tree:\n  {}", differences.join("\n  ")))
}

fn remove(path: &Path) -> Result<(), String> {
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
}
