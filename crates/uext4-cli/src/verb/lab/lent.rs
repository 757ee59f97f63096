//! `--device` and `--dir`: what runs are given instead of images of the lab.

use std::path::{Path, PathBuf};

use uext4_lab::{Plan, Route, Store, Target};

use super::run::route;
use super::{failed, not_measured};
use crate::failure::{At, Result, Why};

/// A block device or a directory to run on.
#[derive(clap::Args)]
pub(super) struct Lent {
    /// Block device that every target works on, instead of image files: its content is lost
    #[arg(long, value_name = "DEV", conflicts_with = "path")]
    device: Option<PathBuf>,
    /// Use the device of --device though something is on it
    #[arg(long, requires = "device")]
    force: bool,
    /// Directory that is mounted already, as the target `dir` in the place of `kernel`: loads run
    /// in new folders of it, which are removed; nothing is formatted, mounted or checked by e2fsck
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Lent {
    /// How images are opened, with `path` as it was asked for; refuses what does not go together.
    pub(super) fn route(&self, store: Store, path: &str) -> Result<Route> {
        let is_slow = store.flush().is_some();
        for (what, given) in [("--device", &self.device), ("--dir", &self.dir)] {
            if is_slow && given.is_some() {
                let why = format!("{what} has its own flushes, not slow ones");
                return Err(Why::new(why).at("lab", store.name()));
            }
        }
        if self.device.is_some() || is_slow { Ok(Route::Device) } else { route(path) }
    }

    /// Puts the directory in the place of the kernel's ext4 on an image.
    pub(super) fn replace_kernel(&self, targets: &mut Vec<Target>) {
        if self.dir.is_some() && !targets.contains(&Target::Dir) {
            targets.retain(|target| *target != Target::Kernel);
            targets.push(Target::Dir);
        }
    }

    /// The directory itself.
    pub(super) fn dir(&self) -> Result<Option<PathBuf>> {
        self.dir.as_deref().map(plain).transpose()
    }

    /// Takes the device for the plan, if there is one.
    pub(super) fn take(&self, plan: &mut Plan) -> Result<()> {
        let Some(path) = &self.device else { return Ok(()) };
        let taken =
            plain(path).and_then(|path| plan.take_device(&path, self.force).map_err(failed));
        taken.map_err(not_measured)
    }
}

/// The device or directory itself, where a link names it.
fn plain(path: &Path) -> Result<PathBuf> {
    path.canonicalize().at("lab", path.display())
}
