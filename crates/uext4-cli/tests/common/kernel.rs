//! The kernel's opinion of an image.

use std::fs;
use std::path::Path;

use super::{is_root, system, wait_until};

/// The kernel's ext4 on an image, by a loop device; unmounted when the test is done with it.
pub(crate) struct Kernel<'a>(&'a Path);

impl<'a> Kernel<'a> {
    pub(crate) fn mount(image: &Path, dir: &'a Path) -> Option<Self> {
        Self::mount_with(image, dir, "defaults")
    }

    pub(crate) fn mount_with(image: &Path, dir: &'a Path, options: &str) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let options = format!("loop,{options}");
        let status =
            system("mount").args(["-t", "ext4", "-o", &options]).arg(image).arg(dir).status();
        (is_root() && status.is_ok_and(|status| status.success())).then(|| Self(dir))
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        // Busy for a moment, while a program starts that another test of this process runs.
        wait_until("the kernel's mount is free", || {
            system("umount").arg(self.0).output().unwrap().status.success()
        });
    }
}
