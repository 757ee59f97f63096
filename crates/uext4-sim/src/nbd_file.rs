//! A network block device as a file, by nbdfuse of libnbd: for judges that know no such devices.
//!
//! # Invariants
//! The mount and its process end with the value.

use crate::mount::unmount_by_force;
use crate::oracle::{expect_clean, expect_recovery_only};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for the file, and for the end of its process.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// The file `disk` in a folder of its own.
#[derive(Debug)]
pub struct NbdFile {
    child: Child,
    point: PathBuf,
}

impl NbdFile {
    /// The export with that URI, in a folder that is made if it is missing.
    ///
    /// # Errors
    /// nbdfuse cannot be run, or has ended; no file in time.
    pub fn open(uri: &Path, point: &Path) -> Result<Self, String> {
        fs::create_dir_all(point).map_err(|error| format!("{}: {error}", point.display()))?;
        let mut command = Command::new("nbdfuse");
        command.arg(point.join("disk")).arg(uri).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| format!("nbdfuse: {error}"))?;
        let mut file = Self { child, point: point.to_owned() };
        let deadline = Instant::now() + PATIENCE;
        while !file.path().exists() {
            if let Ok(Some(status)) = file.child.try_wait() {
                return Err(format!("nbdfuse ended: {status}"));
            }
            if Instant::now() > deadline {
                return Err("nbdfuse: no file in time".into());
            }
            std::thread::sleep(POLL);
        }
        Ok(file)
    }

    fn path(&self) -> PathBuf {
        self.point.join("disk")
    }

    /// Asserts that `e2fsck -fn` finds nothing.
    ///
    /// # Errors
    /// What it found.
    pub fn expect_clean(&self) -> Result<(), String> {
        expect_clean(&self.path())
    }

    /// Has `e2fsck -fy` recover what is on the export: the journal and orphans, nothing else.
    ///
    /// # Errors
    /// What else it did; what a second one finds.
    pub fn expect_recovery_only(&self) -> Result<(), String> {
        match expect_recovery_only(&self.path())? {
            Some(_) => self.expect_clean(),
            // It has failed at an orphan, and what it leaves says nothing of the image.
            None => Ok(()),
        }
    }
}

impl Drop for NbdFile {
    fn drop(&mut self) {
        // It ends by itself when its mount is gone, which it may be about to make.
        let deadline = Instant::now() + PATIENCE;
        loop {
            unmount_by_force(&self.point);
            let is_running = self.child.try_wait().is_ok_and(|status| status.is_none());
            if !is_running || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        unmount_by_force(&self.point);
    }
}
