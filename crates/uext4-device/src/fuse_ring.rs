//! A place for requests of a FUSE connection, over io_uring.
//!
//! # What
//! Since Linux 6.14 a FUSE server can take its requests from an io_uring instead of reading
//! `/dev/fuse`. The server gives the kernel *entries*: memory for one request and its answer. Each
//! processor has a queue of entries, and a program's request goes to an entry of the processor that
//! the program runs on. A [`FuseRing`] is one entry with a ring of its own, so that any thread that
//! sleeps over a request holds up nobody else's. A call commits the answer of one request and waits
//! for the next one: one system call a request.
//!
//! # Memory The kernel reads and writes an entry's memory while the entry's thread is inside
//! [`FuseRing::register`], [`FuseRing::wait`], [`FuseRing::give`] or [`FuseRing::commit`]
//! (`IORING_SETUP_DEFER_TASKRUN`: all work of the ring is done by that thread, in its own calls).
//! These take `&mut self`, so no slice of the memory is alive then.
//!
//! Source: `Documentation/filesystems/fuse/fuse-io-uring.rst`; `include/uapi/linux/fuse.h`
//! (`struct fuse_uring_req_header`, `struct fuse_uring_cmd_req`).

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::cqueue;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};

/// `FUSE_IO_URING_CMD_REGISTER`, `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

/// Place of `len` in a submission entry (`struct io_uring_sqe`).
const SQE_LEN: usize = 24;
/// What `len` says of a registration: headers and payload.
const VECTORS: u32 = 2;

/// `struct fuse_uring_req_header`.
#[repr(C)]
struct Headers {
    /// The protocol's header of a request, or of an answer.
    in_out: [u8; 128],
    /// The structure that the request's kind begins with.
    op: [u8; 128],
    flags: u64,
    commit_id: u64,
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

/// `struct fuse_uring_cmd_req`, and what is free of a command's 80 bytes.
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
    free: [u8; 56],
}

/// The memory that an entry names to the kernel.
struct Memory {
    headers: Headers,
    payload: Vec<u8>,
    vectors: [libc::iovec; VECTORS as usize],
}

/// Why an entry was not registered.
#[derive(Debug)]
pub enum Unregistered {
    /// The kernel's FUSE refused it. A connection whose first entries are not all taken gives its
    /// requests out by `/dev/fuse`.
    Refused(io::Error),
    /// The kernel's FUSE was not reached.
    Failed(io::Error),
}

impl fmt::Display for Unregistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "the kernel refuses to register: {error}"),
            Self::Failed(error) => write!(f, "registering fails: {error}"),
        }
    }
}

/// One entry of a queue, and the ring that it is served by. It belongs to the thread that opened
/// it.
pub struct FuseRing {
    io: IoUring<Entry128, cqueue::Entry>,
    queue: u16,
    /// Owned; a raw pointer, because the kernel knows its address.
    memory: *mut Memory,
    /// The kernel may still use the memory.
    is_registered: bool,
    /// Registering has brought a request already.
    has_request: bool,
    _of_one_thread: PhantomData<*const ()>,
}

impl FuseRing {
    /// A ring on a connection to the kernel (an open `/dev/fuse`), with `payload` bytes for a
    /// request's or answer's data. Nothing is registered yet.
    ///
    /// # Errors
    /// The kernel has no io_uring, forbids it, or lacks memory or descriptors.
    pub fn open(connection: BorrowedFd<'_>, queue: u16, payload: usize) -> io::Result<Self> {
        let io = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(2)?;
        io.submitter().register_files(&[connection.as_raw_fd()])?;
        let memory = Box::new(Memory {
            headers: Headers {
                in_out: [0; 128],
                op: [0; 128],
                flags: 0,
                commit_id: 0,
                payload_len: 0,
                padding: 0,
                reserved: 0,
            },
            payload: vec![0; payload],
            vectors: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2],
        });
        let memory = Box::into_raw(memory);
        // SAFETY: just made, and known to nobody else.
        let parts = unsafe { &mut *memory };
        let vector = |base: *mut u8, iov_len| libc::iovec { iov_base: base.cast(), iov_len };
        parts.vectors = [
            vector((&raw mut parts.headers).cast(), size_of::<Headers>()),
            vector(parts.payload.as_mut_ptr(), payload),
        ];
        Ok(Self {
            io,
            queue,
            memory,
            is_registered: false,
            has_request: false,
            _of_one_thread: PhantomData,
        })
    }

    /// Offers the entry to the kernel, which from now on may give it a request.
    ///
    /// # Errors
    /// The connection does not use io_uring, or has ended; the kernel has no memory for an entry,
    /// or wants more room for a payload.
    pub fn register(&mut self) -> Result<(), Unregistered> {
        // SAFETY: of this ring, and not used by the kernel yet.
        let vectors = unsafe { &raw const (*self.memory).vectors };
        let entry = self.entry(REGISTER, 0, vectors as u64);
        self.is_registered = true;
        let submitted = self.push(&entry).and_then(|()| self.io.submit());
        match submitted {
            Ok(1) => {}
            Ok(_) => return Err(Unregistered::Failed(io::ErrorKind::WouldBlock.into())),
            Err(error) => return Err(Unregistered::Failed(error)),
        }
        // A refusal completes the entry at once; one that was taken completes with a request.
        let refusal = self.io.completion().next().map(|completion| completion.result());
        match refusal {
            Some(error) if error < 0 => {
                self.is_registered = false;
                Err(Unregistered::Refused(io::Error::from_raw_os_error(-error)))
            }
            Some(_) => {
                self.has_request = true;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// `ENOTCONN` and the like: the connection has ended.
    pub fn wait(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.has_request) {
            return Ok(());
        }
        loop {
            if let Some(completion) = self.io.completion().next() {
                let result = completion.result();
                if result < 0 {
                    // The kernel has let go of the memory.
                    self.is_registered = false;
                    return Err(io::Error::from_raw_os_error(-result));
                }
                return Ok(());
            }
            // SAFETY: the only entries in the queue are those of `push`.
            let entered = unsafe { self.io.submitter().enter::<()>(0, 1, GETEVENTS, None) };
            match entered {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => drop(other?),
            }
        }
    }

    /// Gives the answer that [`FuseRing::set_answer`] has put down, and waits for the next request.
    ///
    /// # Errors
    /// As [`FuseRing::wait`].
    pub fn commit(&mut self) -> io::Result<()> {
        self.give_and_wait_for(1)?;
        self.wait()
    }

    /// Gives the answer; the next request is to be waited for by [`FuseRing::wait`].
    ///
    /// # Errors
    /// As [`FuseRing::wait`].
    pub fn give(&mut self) -> io::Result<()> {
        self.give_and_wait_for(0)
    }

    fn give_and_wait_for(&mut self, requests: usize) -> io::Result<()> {
        let entry = self.entry(COMMIT_AND_FETCH, self.headers().commit_id, 0);
        self.push(&entry)?;
        loop {
            match self.io.submit_and_wait(requests) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => return other.map(drop),
            }
        }
    }

    /// The protocol's header of the request.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.headers().in_out
    }

    /// The structure that the request's kind begins with.
    #[must_use]
    pub fn op(&self) -> &[u8] {
        &self.headers().op
    }

    /// What follows it: names, values, data.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let len = self.headers().payload_len as usize;
        let payload = self.payload();
        &payload[..len.min(payload.len())]
    }

    /// The structure, and the memory of the payload, for an answer that is put down in place.
    #[must_use]
    pub fn op_and_payload(&mut self) -> (&[u8], &mut [u8]) {
        // SAFETY: as for `headers`; the fields are apart, and `self` is borrowed for both.
        let memory = unsafe { &mut *self.memory };
        (&memory.headers.op, &mut memory.payload)
    }

    /// Puts down the header of an answer and the length of its payload.
    pub fn set_answer(&mut self, header: &[u8], len: u32) {
        // SAFETY: as for `headers`.
        let memory = unsafe { &mut *self.memory };
        memory.headers.in_out[..header.len()].copy_from_slice(header);
        memory.headers.payload_len = len;
    }

    fn headers(&self) -> &Headers {
        // SAFETY: the memory is this ring's, and the kernel writes it only inside calls that take
        // `&mut self`.
        unsafe { &(*self.memory).headers }
    }

    fn payload(&self) -> &[u8] {
        // SAFETY: as for `headers`.
        unsafe { &(*self.memory).payload }
    }

    fn entry(&self, command: u32, commit_id: u64, address: u64) -> Entry128 {
        let queue = self.queue;
        let words = Command { flags: 0, commit_id, queue, padding: [0; 6], free: [0; 56] };
        // SAFETY: both are 80 bytes, and the structure has no bytes between its fields.
        let words = unsafe { std::mem::transmute::<Command, [u8; 80]>(words) };
        let entry =
            opcode::UringCmd80::new(types::Fixed(0), command).cmd(words).addr(Some(address));
        let mut entry = entry.build();
        if command == REGISTER {
            set_len(&mut entry, VECTORS);
        }
        entry
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: the memory that the entry names lives until the ring has ended, or for ever.
        let pushed = unsafe { self.io.submission().push(entry) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock.into())
    }
}

/// The crate's builder of such entries has no setter of this field.
fn set_len(entry: &mut Entry128, len: u32) {
    let bytes: *mut u8 = (&raw mut *entry).cast();
    // SAFETY: an entry is `struct io_uring_sqe` and 64 bytes more, in the kernel's layout, because
    // it is copied into the ring as it is. The field is 4 bytes at this place, aligned.
    unsafe { bytes.add(SQE_LEN).cast::<u32>().write(len) };
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        // The kernel drops the entry with the ring, perhaps a moment later: memory of an entry
        // whose end it has not told is left to it.
        if !self.is_registered {
            // SAFETY: from `Box::into_raw`, and dropped once.
            drop(unsafe { Box::from_raw(self.memory) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: another layout of the crate's entry.
    #[test]
    fn the_length_of_an_entry_is_where_the_kernel_looks() {
        assert_eq!((size_of::<Entry128>(), size_of::<Headers>()), (128, 288));
        let mut entry = opcode::UringCmd80::new(types::Fixed(0), 1).build();
        set_len(&mut entry, 0x1234);
        let bytes: *const u8 = (&raw const entry).cast();
        // SAFETY: 128 bytes, by the assertion above.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, 128) };
        assert!(bytes[24..28].contains(&0x12) && bytes[24..28].contains(&0x34));
        assert_eq!(bytes.iter().filter(|byte| **byte == 0x12).count(), 1);
    }
}
