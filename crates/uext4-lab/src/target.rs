//! What loads are run on: uext4 in two forms, and its peers.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use uext4::config::DaxMode;
use uext4::{MountOptions, Volume};
use uext4_device::{Access, DaxDevice, FileDevice, FileOptions};

use crate::command;
use crate::error::{Doing, Error, Result};
use crate::load::Load;
use crate::mount::{self, Mount};
use crate::plan::Plan;
use crate::stage::{Loop, Medium, Route, Stage};

/// What a load is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The library, in this process.
    Uext4,
    /// `uext4 mount`.
    Uext4Mount,
    /// The kernel's ext4 on a loop device.
    Kernel,
    /// A directory that is mounted already.
    Dir,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
    /// bindfs over the kernel's ext4: what FUSE alone costs.
    Bindfs,
    /// The crate rust-fs-ext4, in this process: not in every build.
    RustFsExt4,
    /// `mke2fs -d`, for building images.
    Mke2fs,
    /// No file system: the same bytes and flushes, batched by hand.
    Raw,
}

impl Target {
    /// All of them, uext4 first.
    pub const ALL: [Self; 9] = [
        Self::Uext4,
        Self::Uext4Mount,
        Self::Kernel,
        Self::Dir,
        Self::Fuse2fs,
        Self::Bindfs,
        Self::RustFsExt4,
        Self::Mke2fs,
        Self::Raw,
    ];

    /// Its name in commands and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uext4 => "uext4",
            Self::Uext4Mount => "uext4-mount",
            Self::Kernel => "kernel",
            Self::Dir => "dir",
            Self::Fuse2fs => "fuse2fs",
            Self::Bindfs => "bindfs",
            Self::RustFsExt4 => "rust-fs-ext4",
            Self::Mke2fs => "mke2fs",
            Self::Raw => "raw",
        }
    }

    /// The target of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Whether this is uext4 and no peer.
    #[must_use]
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Uext4 | Self::Uext4Mount)
    }

    /// Whether the kernel's ext4 reads and writes the image.
    #[must_use]
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::Bindfs)
    }

    /// Whether it works on an image that is there before.
    #[must_use]
    pub const fn has_image(self) -> bool {
        !matches!(self, Self::Dir | Self::Mke2fs | Self::Raw)
    }

    /// Whether the load means anything on this target.
    #[must_use]
    pub fn takes(self, load: &Load) -> bool {
        load.targets.contains(&self)
    }

    /// Whether it can be run with so many threads: calls of rust-fs-ext4 are for one at a time.
    pub(crate) fn takes_threads(self, threads: u32) -> bool {
        self != Self::RustFsExt4 || threads == 1
    }

    /// Why this machine cannot run it; `None` if it can.
    #[must_use]
    pub fn obstacle(self, plan: &Plan) -> Option<String> {
        let is_root = rustix::process::geteuid().is_root();
        // A device that is given needs none; the kernel lays the first image out on one.
        let by_loop = plan.route == Route::Device && plan.lent.is_none();
        let needs_loop = self.is_kernel() || (by_loop && !matches!(self, Self::Mke2fs | Self::Dir));
        if needs_loop && !is_root {
            return Some("a loop device needs root".to_owned());
        }
        if needs_loop && !Path::new("/dev/loop-control").exists() {
            return Some("this system has no loop devices".to_owned());
        }
        let is_slow = plan.store.flush().is_some();
        if is_slow
            && self != Self::Dir
            && let Some(why) = mount::fuse_obstacle()
        {
            return Some(format!("slow flushes need FUSE: {why}"));
        }
        let missing = |program: &str| {
            command::find(program).is_none().then(|| format!("{program} is not installed"))
        };
        match self {
            Self::Uext4 | Self::Raw => None,
            Self::Uext4Mount if plan.command.is_none() => {
                Some("the uext4 command is not at hand".to_owned())
            }
            Self::Uext4Mount => mount::fuse_obstacle(),
            Self::Dir => plan.dir.is_none().then(|| "no directory is given: --dir".to_owned()),
            Self::Kernel => missing("mount").or_else(|| missing("losetup")),
            Self::Bindfs => Self::Kernel
                .obstacle(plan)
                .or_else(|| missing("bindfs"))
                .or_else(mount::fuse_obstacle),
            Self::Fuse2fs => missing("fuse2fs").or_else(mount::fuse_obstacle),
            Self::RustFsExt4 if !cfg!(feature = "peer-rust-fs-ext4") => {
                Some("this build is without it (--features peer-rust-fs-ext4)".to_owned())
            }
            // Its own device takes the length of a file.
            Self::RustFsExt4 => {
                (plan.route == Route::Device).then(|| "it opens image files alone".to_owned())
            }
            Self::Mke2fs => missing("mke2fs"),
        }
    }

    /// The image as this target opens it.
    pub(crate) fn medium(self, plan: &Plan, image: &Path) -> Result<Medium> {
        let by_loop = self.is_kernel() || plan.route == Route::Device;
        Medium::of(plan, image, if by_loop { Loop::Cached } else { Loop::None })
    }

    /// Opens or mounts the file system with these mount options, separated by commas.
    pub(crate) fn start(
        self,
        plan: &Plan,
        stage: &Stage,
        medium: &Medium,
        options: &str,
    ) -> Result<Opened> {
        let device = medium.path();
        match self {
            Self::Uext4 => return Ok(Opened::Library(open(device, false, options)?)),
            Self::Dir => return Ok(Opened::Mount(Mount::there(device))),
            _ => {}
        }
        let (dir, log) = (stage.mount_point()?, stage.source("daemon.log"));
        let mount = match self {
            Self::Uext4Mount => {
                let program = plan.command.as_ref();
                let program =
                    program.ok_or_else(|| Error::new("the uext4 command is not at hand"))?;
                let mut command = Command::new(program);
                command.args(["mount", "--foreground"]);
                if !options.is_empty() {
                    command.args(["-o", options]);
                }
                command.arg(device).arg(&dir);
                Mount::fuse(command, &dir, &log)?
            }
            Self::Fuse2fs => {
                let program = command::find("fuse2fs").unwrap_or_else(|| "fuse2fs".into());
                let mut command = Command::new(program);
                command.arg("-f").arg(device).arg(&dir);
                Mount::fuse(command, &dir, &log)?
            }
            Self::Kernel => Mount::kernel(device, &dir, options)?,
            Self::Bindfs => {
                let below = Mount::kernel(device, &stage.lower_mount_point()?, options)?;
                let program = command::find("bindfs").unwrap_or_else(|| "bindfs".into());
                let mut command = Command::new(program);
                // By itself it serves one request after the other.
                command.args(["-f", "--multithreaded"]).arg(below.dir()).arg(&dir);
                Mount::fuse(command, &dir, &log)?.over(below)
            }
            Self::Uext4 | Self::Dir | Self::RustFsExt4 | Self::Mke2fs | Self::Raw => {
                return Err(Error::new("not a mount"));
            }
        };
        Ok(Opened::Mount(mount))
    }
}

/// Opens a volume in this process, with mount options separated by commas.
pub(crate) fn open(image: &Path, read_only: bool, options: &str) -> Result<Volume> {
    let (mut options, mut file) = parse_options(options)?;
    if read_only {
        options.read_only = true;
        file.access = Access::ReadOnly;
    }
    if options.dax == DaxMode::Always {
        let device = DaxDevice::open(image, 0, file.access).doing("mapping the image")?;
        return Ok(Volume::open(Arc::new(device), options)?);
    }
    let device = FileDevice::open_with(image, &file).doing("opening the image")?;
    Ok(Volume::open(Arc::new(device), options)?)
}

/// Mount options of uext4, separated by commas: those of a volume, and those of its device.
///
/// # Errors
/// The first that uext4 does not know.
pub fn parse_options(options: &str) -> Result<(MountOptions, FileOptions)> {
    let (mut volume, mut file) = (MountOptions::default(), FileOptions::auto(Access::ReadWrite));
    for word in options.split(',').filter(|word| !word.is_empty()) {
        if !file.parse(word).map_err(Error::new)? {
            volume.parse(word).map_err(|error| Error::new(error.to_string()))?;
        }
    }
    Ok((volume, file))
}

/// Variants that differ, in their order: one that says what the default or another before it says,
/// in whatever words, is the same candidate a second time.
///
/// # Errors
/// The first option that uext4 does not know.
pub fn distinct_variants(variants: &[String]) -> Result<Vec<String>> {
    let (mut known, mut distinct) = (vec![parse_options("")?], Vec::new());
    for variant in variants {
        let mut options = parse_options(variant)?;
        // That the default was said in words makes no other mount.
        options.0.delalloc_given = false;
        if !known.contains(&options) {
            known.push(options);
            distinct.push(variant.clone());
        }
    }
    Ok(distinct)
}

/// A target that is ready for a load.
pub(crate) enum Opened {
    Library(Volume),
    Mount(Mount),
}

impl Opened {
    /// Closes or unmounts it: on return everything has been given to the image.
    pub(crate) fn end(self) -> Result<()> {
        match self {
            Self::Library(volume) => Ok(volume.close()?),
            Self::Mount(mount) => mount.end(),
        }
    }

    /// Most memory that a server has used so far, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> Option<u64> {
        match self {
            Self::Library(_) => None,
            Self::Mount(mount) => mount.peak_rss_kib(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: the same candidate twice in each round, as if its runs were two things.
    #[test]
    fn variants_that_say_the_same_are_one() {
        let words = [
            "nodelalloc",
            "nodelalloc",
            "",
            "delalloc",
            "noatime,nodelalloc",
            "nodelalloc,noatime",
            "journal_join=herd",
        ];
        let words = words.map(str::to_owned);
        let wanted = ["nodelalloc", "noatime,nodelalloc", "journal_join=herd"];
        assert_eq!(distinct_variants(&words).unwrap(), wanted);
        assert!(distinct_variants(&["sideways".to_owned()]).is_err());
    }
}
