//! A volume on a directory, served by this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use uext4::{MountOptions, Volume};
use uext4_device::SharedDevice;
use uext4_fuse::attach::{self, Detach};
use uext4_fuse::{FuseBlk, FuseOptions, IoUring, Session, Stopper};

use super::leftovers;
use crate::error::{Error, Result};
use crate::record::{Recorder, Recording};

/// How long an unmount waits for those that were killed.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// A mount. It ends when it is dropped, even while processes use it.
pub(super) struct Mounted {
    dir: PathBuf,
    volume: Volume,
    stopper: Stopper,
    session: Option<Session>,
}

impl Mounted {
    /// Mounts for commands that nobody records.
    pub(super) fn plain(device: SharedDevice, dir: &Path, options: &FuseOptions) -> Result<Self> {
        // sync(2) is answered at once, and no loop device is needed.
        let options = FuseOptions { fuseblk: FuseBlk::Off, ..own(options) };
        Self::start(device, dir, |volume| Session::start(volume, dir, &options))
    }

    /// Mounts, and records what is done there.
    pub(super) fn recorded(
        device: SharedDevice,
        dir: &Path,
        options: &FuseOptions,
        recording: &Arc<Recording>,
    ) -> Result<Self> {
        let recorder = |handler| Recorder::new(handler, Arc::clone(recording));
        let options = own(options);
        Self::start(device, dir, |volume| Session::start_with(volume, dir, &options, recorder))
    }

    fn start(
        device: SharedDevice,
        dir: &Path,
        start: impl FnOnce(Volume) -> std::result::Result<Session, uext4_fuse::MountError>,
    ) -> Result<Self> {
        let volume = Volume::open(device, MountOptions::default())?;
        match start(volume.clone()) {
            Ok(session) => {
                let (dir, stopper) = (dir.to_owned(), session.stopper());
                Ok(Self { dir, volume, stopper, session: Some(session) })
            }
            Err(error) => {
                volume.abandon();
                Err(Error::new(error.to_string()))
            }
        }
    }

    /// Unmounts and leaves a clean file system.
    pub(super) fn close(mut self) -> Result<()> {
        self.unmount()?;
        Ok(self.volume.clone().close()?)
    }

    /// Unmounts; what was written is of no use.
    pub(super) fn discard(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let failed = |error| Error::new(format!("cannot unmount {}: {error}", self.dir.display()));
        let until = Instant::now() + PATIENCE;
        loop {
            match attach::detach(&self.dir, Detach::WhenIdle) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    leftovers::kill(&self.dir, None);
                    if Instant::now() > until {
                        // A user that is no child of ours: its calls fail from now on.
                        let aborted = self.stopper.abort();
                        attach::detach(&self.dir, Detach::Lazy).map_err(failed)?;
                        aborted.map_err(failed)?;
                        break;
                    }
                    thread::sleep(POLL);
                }
                ended => break ended.map_err(failed)?,
            }
        }
        session.join().map_err(failed)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A caller that wanted the error has called `close`.
        let _ = self.unmount();
        self.volume.clone().abandon();
    }
}

/// What every mount of a test has, whatever the user wants.
fn own(options: &FuseOptions) -> FuseOptions {
    let allow_other = rustix::process::geteuid().is_root() && !options.fakeroot;
    FuseOptions {
        // Each write is a request before it returns.
        writeback_cache: false,
        io_uring: IoUring::Off,
        sandbox: false,
        fs_name: "uext4-crashtest".into(),
        allow_other: options.allow_other || allow_other,
        ..options.clone()
    }
}
