//! A connection while it is made: connecting, the handshake, all with an end in time.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustls::ClientConnection;

use crate::error::{Fault, Result};
use crate::handshake::{self, Agreed};
use crate::tls::{self, Trust};
use crate::uri::{NbdUri, Server};

/// The longest time that connecting and agreeing take: a server that is there is faster, and one
/// that was not may be by then.
const TRY: Duration = Duration::from_secs(5);
/// Between tries of a socket whose queue is full.
const STEP: Duration = Duration::from_millis(10);
/// How long a last word may take.
const HURRY: Duration = Duration::from_millis(100);

/// A socket, for one thread that reads and one that writes.
#[derive(Debug)]
pub(crate) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Wire {
    fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Self> {
        let mut failed = io::Error::new(ErrorKind::HostUnreachable, "the host has no address");
        for (tried, address) in addresses.iter().enumerate() {
            // Each address has its share of the time.
            let share = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            match TcpStream::connect_timeout(address, left(deadline)? / share) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self::Tcp(stream));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn write_timeout(&self) -> io::Result<Option<Duration>> {
        match self {
            Self::Tcp(stream) => stream.write_timeout(),
            Self::Unix(stream) => stream.write_timeout(),
        }
    }

    fn set_timeouts(&self, read: Option<Duration>, write: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(Some(write))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(Some(write))
            }
        }
    }

    /// Ends one direction, or both; a thread that reads or writes there returns.
    pub(crate) fn shut_down(&self, how: Shutdown) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Ends it at once: what this system has not sent yet is never sent, not even when a path that
    /// was cut is there again.
    pub(crate) fn cut_off(&self) {
        if let Self::Tcp(stream) = self {
            // Without it the connection ends as any other.
            let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
        self.shut_down(Shutdown::Read);
    }

    /// Lets no write wait any more.
    pub(crate) fn hurry(&self) -> io::Result<()> {
        self.set_timeouts(None, HURRY)
    }

    /// Writes the slices one after the other, within the time that one write may take.
    pub(crate) fn write_slices(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        let mut begin = None;
        while !slices.is_empty() {
            // A server that takes a byte at a time is no better than one that takes none.
            let begin = begin.get_or_insert_with(Instant::now);
            if begin.elapsed() > self.write_timeout()?.unwrap_or(Duration::MAX) {
                return Err(ErrorKind::TimedOut.into());
            }
            let written = match self {
                Self::Tcp(stream) => (&*stream).write_vectored(slices),
                Self::Unix(stream) => (&*stream).write_vectored(slices),
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Read for &Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => (&*stream).read(buf),
            Wire::Unix(stream) => (&*stream).read(buf),
        }
    }
}

impl Write for &Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => (&*stream).write(buf),
            Wire::Unix(stream) => (&*stream).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket whose every call ends by a time.
struct Bounded<'a> {
    wire: &'a Wire,
    deadline: Instant,
}

impl Bounded<'_> {
    fn bounded<T>(&mut self, mut call: impl FnMut(&mut &Wire) -> io::Result<T>) -> io::Result<T> {
        let left = left(self.deadline)?;
        self.wire.set_timeouts(Some(left), left)?;
        call(&mut self.wire).map_err(|error| match error.kind() {
            // What the system says of a timeout.
            ErrorKind::WouldBlock => {
                let why = "the server does not answer, or takes no more clients";
                io::Error::new(ErrorKind::TimedOut, why)
            }
            _ => error,
        })
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.bounded(|wire| wire.read(buf))
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.bounded(|wire| wire.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection on which an export is served.
pub(crate) struct Served {
    pub(crate) wire: Wire,
    pub(crate) tls: Option<ClientConnection>,
    pub(crate) agreed: Agreed,
}

/// A server, and what is to be known to connect to it again without reading a file.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) uri: NbdUri,
    /// Where it listens. A daemon may have another working directory when it connects again.
    server: Server,
    trust: Option<Trust>,
    /// Where the host was found last.
    addresses: Mutex<Vec<SocketAddr>>,
}

impl Place {
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn new(uri: &NbdUri) -> Result<Self> {
        let trust = uri.tls.as_ref().map(tls::trust).transpose()?;
        let server = uri.absolute()?.server;
        Ok(Self { uri: uri.clone(), server, trust, addresses: Mutex::default() })
    }

    /// Connects and agrees with the server, by a time. Later a write may take `patience`, a read
    /// any time.
    pub(crate) fn serve(&self, deadline: Instant, patience: Duration) -> Result<Served> {
        let deadline = deadline.min(Instant::now() + TRY);
        let wire = match &self.server {
            Server::Unix(path) => Wire::Unix(connect_unix(path, deadline)?),
            Server::Tcp { host, port } => self.connect_tcp(host, *port, deadline)?,
        };
        let mut bounded = Bounded { wire: &wire, deadline };
        handshake::greet(&mut bounded)?;
        let (tls, agreed) = match &self.trust {
            None => (None, handshake::choose(&mut bounded, &self.uri.export)?),
            Some(trust) => {
                handshake::start_tls(&mut bounded)?;
                let mut tls = trust.client()?;
                while tls.is_handshaking() {
                    tls.complete_io(&mut bounded).map_err(not_trusted)?;
                }
                let mut stream = rustls::Stream::new(&mut tls, &mut bounded);
                // A server may refuse the client's certificate only now.
                let agreed = handshake::choose(&mut stream, &self.uri.export);
                let agreed = agreed.map_err(|fault| match fault {
                    Fault::Io(error) => not_known(error),
                    fault => fault,
                })?;
                (Some(tls), agreed)
            }
        };
        wire.set_timeouts(None, patience)?;
        Ok(Served { wire, tls, agreed })
    }

    /// Connects where the host was found last, or else where it is found now.
    fn connect_tcp(&self, host: &str, port: u16, deadline: Instant) -> io::Result<Wire> {
        let known = self.addresses.lock().clone();
        let half = Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2;
        let again = match known.is_empty() {
            true => None,
            false => Some(Wire::connect(&known, half)),
        };
        if let Some(Ok(wire)) = again {
            return Ok(wire);
        }
        let found: Vec<SocketAddr> = match ((host, port).to_socket_addrs(), again) {
            (Ok(found), _) => found.collect(),
            // A daemon may not be able to look up any more.
            (Err(_), Some(again)) => return again,
            (Err(error), None) if error.raw_os_error().is_some() => return Err(error),
            // The errors of a look-up have no number.
            (Err(error), None) => return Err(io::Error::new(ErrorKind::HostUnreachable, error)),
        };
        let wire = Wire::connect(&found, deadline)?;
        *self.addresses.lock() = found;
        Ok(wire)
    }
}

/// Connects to a socket by its path. The system would wait without an end for a server whose queue
/// is full.
fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Err(Errno::AGAIN) => std::thread::sleep(STEP.min(left(deadline)?)),
            connected => {
                connected?;
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
        }
    }
}

/// An error of TLS itself is no error of the wire.
fn not_trusted(error: io::Error) -> Fault {
    match error.kind() {
        ErrorKind::InvalidData => Fault::no_tls(format!("TLS: {error}")),
        _ => error.into(),
    }
}

/// The same after the handshake of TLS, with which a server may be done before it has looked at the
/// client's certificate. Many then end the connection without a word.
fn not_known(error: io::Error) -> Fault {
    let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    if !ends.contains(&error.kind()) {
        return not_trusted(error);
    }
    let why = "TLS: the server ended the connection: it may ask for a client's certificate that it \
               knows (client-cert.pem in tls-certificates=DIR)";
    Fault::no_tls(why)
}
