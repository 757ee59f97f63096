//! The process that unmounts for a daemon that no longer can.
//!
//! What: a confined daemon ([`crate::confine`]) can call neither umount2(2) nor fusermount3(1). So
//! it starts this command once more, before it gives anything up, with one end of a socket as the
//! standard input. That keeper waits there: it can end the one mount that it was started for, and
//! nothing else, so that a daemon that was taken over gains nothing by it. It ends with its daemon.
//!
//! Protocol: a byte of [`Wish`] asks; the answer is the byte of an errno, 0 for success.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use uext4_fuse::Stopper;
use uext4_fuse::attach::{self, Detach};
use uext4_fuse::mountinfo::{self, MountPoint};

use crate::mount_table;

/// The name that the keeper is started by, and has in ps(1).
const NAME: &str = "uext4-keeper";

/// `EPERM`, for a refusal without a number of its own.
const NO: u8 = 1;

/// What a daemon can ask for.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Wish {
    /// The mount is there: remember which it is.
    Remember = b'm',
    /// It answers: have mount(8) know of it.
    Note = b'n',
    /// Unmount, lazily where it is in use.
    Unmount = b'u',
    /// Cut the connection.
    Abort = b'a',
}

/// The keeper of a daemon, which ends when this is dropped.
pub(crate) struct Keeper {
    /// One wish and its answer at a time.
    socket: Mutex<UnixStream>,
    process: Child,
}

impl Keeper {
    /// Starts the keeper of a mount on `dir`.
    ///
    /// # Errors
    /// What the system says of a new process.
    pub(crate) fn start(dir: &Path) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .arg(dir.canonicalize()?)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of the reach of Ctrl-C, which is the daemon's.
            .process_group(0)
            .current_dir("/")
            .spawn()?;
        Ok(Self { socket: Mutex::new(ours), process })
    }

    /// Has the keeper remember the mount, which was just made.
    pub(crate) fn remember(&self) -> io::Result<()> {
        self.ask(Wish::Remember)
    }

    /// Has mount(8) know of the mount, which answers by now.
    pub(crate) fn note(&self) -> io::Result<()> {
        self.ask(Wish::Note)
    }

    /// As [`Stopper::unmount`].
    pub(crate) fn unmount(&self) -> io::Result<()> {
        self.ask(Wish::Unmount)
    }

    fn ask(&self, wish: Wish) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.write_all(&[wish as u8])?;
        let mut answer = [0];
        socket.read_exact(&mut answer)?;
        match answer {
            [0] => Ok(()),
            [errno] => Err(io::Error::from_raw_os_error(errno.into())),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have gone already.
        let _ = socket.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// What ends a mount.
pub(crate) enum Ender {
    /// The daemon itself.
    Own(Stopper),
    /// Its keeper.
    Keeper(Arc<Keeper>),
    /// The program that mounted, and gave the connection to the daemon.
    Other,
}

impl Ender {
    /// As [`Stopper::unmount`].
    pub(crate) fn unmount(&self) -> io::Result<()> {
        match self {
            Self::Own(stopper) => stopper.unmount(),
            Self::Keeper(keeper) => keeper.unmount(),
            Self::Other => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// As [`Stopper::abort`].
    pub(crate) fn abort(&self) -> io::Result<()> {
        match self {
            Self::Own(stopper) => stopper.abort(),
            Self::Keeper(keeper) => keeper.ask(Wish::Abort),
            Self::Other => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether the mount is not the daemon's to unmount.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::Other)
    }
}

/// Runs the keeper, if `words`, the program's name first, are its call.
pub(crate) fn run(words: &[OsString]) -> Option<ExitCode> {
    if words.first()? != NAME {
        return None;
    }
    let _ = rustix::thread::set_name(c"uext4-keeper");
    // It has to outlive its daemon, which ends in its own time: a service manager signals both.
    let heard = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&heard));
    }
    Some(match serve(Path::new(words.get(1)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Does what the daemon asks for, until that is gone.
fn serve(dir: &Path) -> io::Result<()> {
    let mut socket = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let mut device = None;
    let mut wish = [0];
    while socket.read(&mut wish)? > 0 {
        let mounted = || -> io::Result<Option<(u32, u32)>> {
            let found = mountinfo::find(dir)?.filter(MountPoint::is_ours);
            Ok(found.map(|mount| mount.device))
        };
        let done = match wish[0] {
            b'm' => mounted().and_then(|found| {
                device = found;
                device.map(drop).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
            }),
            b'n' => {
                mount_table::add(dir);
                Ok(())
            }
            b'u' => mounted().and_then(|found| match found {
                Some(_) if found == device => unmount(dir),
                // What was mounted over it since, or in its place, is not the daemon's.
                _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }),
            b'a' => match device {
                Some(device) => attach::abort(dir, mountinfo::connection(device)),
                None => Err(io::ErrorKind::Unsupported.into()),
            },
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        let errno = match done {
            Ok(()) => 0,
            // The words of fusermount3 have no number.
            Err(error) => error.raw_os_error().and_then(|e| u8::try_from(e).ok()).unwrap_or(NO),
        };
        socket.write_all(&[errno])?;
    }
    Ok(())
}

/// Lazily where it is in use.
fn unmount(dir: &Path) -> io::Result<()> {
    match attach::detach(dir, Detach::WhenIdle) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            attach::detach(dir, Detach::Lazy)?;
        }
        other => other?,
    }
    mount_table::remove(dir);
    Ok(())
}
