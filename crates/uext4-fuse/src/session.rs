//! A mount's life: attach, serve, detach.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use uext4::Volume;
use uext4_fuse_server::{Config, Handler, Monitor, Transport};

use crate::attach::{self, Detach};
use crate::mountinfo::{self, MountPoint};
use crate::options::FuseOptions;
use crate::server::Server;

/// Read-ahead asked for where the kernel lets us set it, in KiB. Its default of 128 KiB keeps too
/// few requests in flight for a sequential reader.
const READ_AHEAD_KIB: u32 = 1024;
/// The same where a request takes a round trip of a network: as many are on their way as fill it.
const READ_AHEAD_FAR_KIB: u32 = 8192;

/// Why a volume could not be mounted.
#[derive(Debug)]
pub struct MountError {
    dir: PathBuf,
    source: io::Error,
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.dir.display(), self.source)
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A mounted volume being served. Dropping it neither unmounts nor waits.
pub struct Session {
    dir: PathBuf,
    session: Arc<dyn Served>,
    connection: Option<u32>,
}

/// A session, whatever answers its requests.
trait Served: Monitor {
    fn join(&self) -> io::Result<()>;
}

impl<H: Handler> Served for uext4_fuse_server::Session<H> {
    fn join(&self) -> io::Result<()> {
        Self::join(self)
    }
}

impl Session {
    /// Mounts `volume` at `dir` and serves it. On return the mount answers.
    ///
    /// The caller keeps its own clone of the volume and closes that after [`Session::join`].
    ///
    /// # Errors
    /// The directory cannot be mounted on, or the kernel does not speak a protocol we do.
    pub fn start(volume: Volume, dir: &Path, options: &FuseOptions) -> Result<Self, MountError> {
        Self::attach(volume, dir, options, |server| server)
    }

    /// As [`Session::start`]; requests go to what `wrap` makes of the handler that answers them.
    ///
    /// # Errors
    /// Those of [`Session::start`].
    pub fn start_with<H: Handler>(
        volume: Volume,
        dir: &Path,
        options: &FuseOptions,
        wrap: impl FnOnce(Arc<dyn Handler>) -> H,
    ) -> Result<Self, MountError> {
        Self::attach(volume, dir, options, |server| Arc::new(wrap(server)))
    }

    fn attach<H: Handler>(
        volume: Volume,
        dir: &Path,
        options: &FuseOptions,
        wrap: impl FnOnce(Arc<Server>) -> Arc<H>,
    ) -> Result<Self, MountError> {
        let failed = |source| MountError { dir: dir.to_owned(), source };
        let dir = dir.canonicalize().map_err(failed)?;
        let mut options = options.clone();
        // The engine may have fallen back to read-only (an unknown ro_compat feature).
        options.read_only |= volume.read_only();
        let root = volume.root().map_err(|error| failed(io::Error::other(error.to_string())))?;
        let server = Server::new(volume, root, &options);
        let connection = attach::attach(&dir, &options).map_err(failed)?;
        match Self::serve(server, wrap, connection, &dir, &options) {
            Ok(session) => Ok(session),
            Err(error) => {
                // Nobody will ever answer: do not leave a dead mount behind.
                let _ = attach::detach(&dir, Detach::Lazy);
                Err(failed(error))
            }
        }
    }

    fn serve<H: Handler>(
        server: Server,
        wrap: impl FnOnce(Arc<Server>) -> Arc<H>,
        connection: std::os::fd::OwnedFd,
        dir: &Path,
        options: &FuseOptions,
    ) -> io::Result<Self> {
        let server = Arc::new(server);
        let config =
            Config { io_uring: options.io_uring, kept_threads: options.threads.unwrap_or(4) };
        let is_far = server.ops.volume.is_far();
        let handler = wrap(Arc::clone(&server));
        let session = uext4_fuse_server::Session::start(connection, handler, &config)?;
        let session = Arc::new(session);
        let monitor: Weak<uext4_fuse_server::Session<H>> = Arc::downgrade(&session);
        server.begin(monitor);
        let mount = mountinfo::find(dir)?;
        if !mount.as_ref().is_some_and(MountPoint::hears_sync) {
            server.write_back_early();
        }
        let device = mount.map(|mount| mount.device);
        if let Some(device) = device {
            let kib = if is_far { READ_AHEAD_FAR_KIB } else { READ_AHEAD_KIB };
            attach::set_read_ahead(device, kib);
        }
        Ok(Self { dir: dir.to_owned(), session, connection: device.map(mountinfo::connection) })
    }

    /// The way that requests take.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        self.session.transport()
    }

    /// A handle that can end the mount from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { dir: self.dir.clone(), connection: self.connection }
    }

    /// Waits until the mount is gone, by whoever unmounted it.
    ///
    /// # Errors
    /// The connection failed in another way than by an unmount.
    pub fn join(self) -> io::Result<()> {
        self.session.join()
    }
}

/// Ends a mount from a signal thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    dir: PathBuf,
    connection: Option<u32>,
}

impl Stopper {
    /// Unmounts; a mount in use leaves the name space now and ends with its last user.
    ///
    /// # Errors
    /// Not ours to unmount, or gone already.
    pub fn unmount(&self) -> io::Result<()> {
        match attach::detach(&self.dir, Detach::WhenIdle) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                attach::detach(&self.dir, Detach::Lazy)
            }
            other => other,
        }
    }

    /// Cuts the connection: programs that still use the mount get errors.
    ///
    /// # Errors
    /// No way to do so on this system.
    pub fn abort(&self) -> io::Result<()> {
        match self.connection {
            Some(connection) => attach::abort(&self.dir, connection),
            None => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }
}
