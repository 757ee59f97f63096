//! The open `/dev/fuse` of a mount: requests are read from it, answers and notices written to it.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use uext4_device::about_to_sleep;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{InvalInodeOut, OutHeader, RetrieveOut};
use crate::company;

/// Until a read is tried again for which the kernel had no memory.
const PAUSE: Duration = Duration::from_millis(10);

const INVAL_INODE: i32 = 2;
const RETRIEVE: i32 = 5;

/// One descriptor of a connection. The answer of a request goes by the descriptor that it came by.
pub(crate) struct Connection(OwnedFd);

/// What a read brought.
pub(crate) enum Read {
    /// A request of so many bytes.
    Request(usize),
    /// The file system is unmounted.
    End,
}

impl Connection {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Another descriptor of the same connection, with a queue of answers of its own.
    pub(crate) fn another(&self) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        uext4_device::clone_fuse(self.0.as_fd(), &device)?;
        Ok(Self(device.into()))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits for a request.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Read> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Read::Request(len)),
                // NOENT: the program was interrupted before its request was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                // Somebody who has the same open file made it non-blocking.
                Err(Errno::AGAIN) => self.wait_readable(),
                // It may pass, and without a reader nothing is ever forgotten.
                Err(Errno::NOMEM) => thread::sleep(PAUSE),
                Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => return Ok(Read::End),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait_readable(&self) {
        use rustix::event::{PollFd, PollFlags, poll};
        // An error: the next read tells.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None);
    }

    /// Whether a request is waiting.
    pub(crate) fn has_request(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the file system is still mounted, and the connection has not been cut.
    pub(crate) fn is_alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ends = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut ends, Some(&now)).is_ok_and(|ended| ended == 0)
    }

    /// Answers a request. A program that was killed meanwhile, and an unmounted file system, take
    /// no answer.
    pub(crate) fn answer(&self, unique: u64, answer: Result<&[u8], Errno>) {
        let (error, bytes) = match answer {
            Ok(bytes) => (0, bytes),
            Err(errno) => (-errno.raw_os_error(), &[][..]),
        };
        let len = size_of::<OutHeader>() + bytes.len();
        // At most a request's bytes, which fit.
        let header = OutHeader { len: len as u32, error, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(bytes)];
        let sent = rustix::io::writev(&self.0, &parts);
        if matches!(sent, Err(Errno::INVAL | Errno::NOMEM)) && error == 0 {
            // An answer that the kernel does not understand, or has no memory for: its client must
            // not wait for ever.
            self.answer(unique, Err(Errno::IO));
        }
    }

    fn notify<T: IntoBytes + Immutable>(&self, code: i32, notice: &T) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() + size_of::<T>();
        let header = OutHeader { len: len as u32, error: code, unique: 0 };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(notice.as_bytes())];
        rustix::io::writev(&self.0, &parts).map(drop)
    }
}

/// Tells the kernel what it cannot know.
#[derive(Clone)]
pub struct Notifier {
    pub(crate) connection: Arc<Connection>,
    retrieved: Arc<AtomicU64>,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, retrieved: Arc::default() }
    }

    /// Has the kernel ask for the attributes of an inode again.
    ///
    /// # Errors
    /// `ENOENT`: it knows no such inode.
    pub fn forget_attributes(&self, node: u64) -> Result<(), Errno> {
        // A negative offset leaves the pages alone.
        self.connection.notify(INVAL_INODE, &InvalInodeOut { ino: node, off: -1, len: 0 })
    }

    /// Has the kernel write the dirty pages of an inode, and drop all its pages. Returns when its
    /// WRITE requests have been answered. A handler that calls this is about to sleep.
    ///
    /// # Errors
    /// `EDEADLK`: nothing was done, because no other thread can be had to serve those requests.
    /// `ENOENT`: it knows no such inode. Another: a page was dirtied again meanwhile.
    pub fn write_back(&self, node: u64) -> Result<(), Errno> {
        about_to_sleep();
        let _waiting = company::wait_for_others().ok_or(Errno::DEADLK)?;
        self.connection.notify(INVAL_INODE, &InvalInodeOut { ino: node, off: 0, len: 0 })
    }

    /// Has the kernel send a NOTIFY_REPLY request, by the queue of the processor that this runs on.
    /// `file` is a regular file that it knows; others are refused (6.18).
    pub(crate) fn ask_for_a_request(&self, file: u64) -> Result<(), Errno> {
        // Programs' requests do not come that far. Odd numbers are those of interrupts: the kernel
        // takes such a one for a mismatch when it is answered by io_uring, and logs that.
        let notify_unique = self.retrieved.fetch_add(2, Ordering::Relaxed) | 1 << 63;
        let notice = RetrieveOut { notify_unique, nodeid: file, offset: 0, size: 0, padding: 0 };
        self.connection.notify(RETRIEVE, &notice)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Fault model: a server that is given a non-blocking descriptor, and looks without end while
    /// nothing is to be done.
    #[test]
    fn a_descriptor_that_does_not_block_is_waited_for() {
        let sleeps = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary")).unwrap();
            line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
        };
        let (server, kernel) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&server, true).unwrap();
        let connection = Connection::new(server.into());
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            rustix::io::write(&kernel, b"request").unwrap();
        });
        let before = sleeps();
        let read = connection.read(&mut [0; 16]).unwrap();
        assert_ne!(sleeps(), before);
        late.join().unwrap();
        assert!(matches!(read, Read::Request(7)));
    }

    /// Fault model: an odd number, which is that of an interrupt.
    #[test]
    fn requests_that_are_asked_for_have_even_numbers_of_their_own() {
        let (mut kernel, connection) = io::pipe().unwrap();
        let notifier = Notifier::new(Arc::new(Connection::new(connection.into())));
        let mut numbers = Vec::new();
        for _ in 0..2 {
            notifier.ask_for_a_request(12).unwrap();
            let mut notice = [0; size_of::<OutHeader>() + size_of::<RetrieveOut>()];
            kernel.read_exact(&mut notice).unwrap();
            let number = notice[16..24].try_into().map(u64::from_ne_bytes).unwrap();
            assert!(number.is_multiple_of(2) && number >= 1 << 63, "{number:x}");
            numbers.push(number);
        }
        assert_ne!(numbers[0], numbers[1]);
    }
}
