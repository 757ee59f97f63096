//! One io_uring, for one file.
//!
//! # What
//! Sets up a ring with the best features of the kernel, registers the file and memory, and enters
//! the kernel. `ring_writer` uses it for the writes of one call, `uring_queue` for asynchronous
//! requests. Both argue why passing addresses to the kernel is sound.
//!
//! # One thread
//! Since Linux 6.1 the kernel processes completions only when the ring's thread asks for them
//! (`DEFER_TASKRUN`), so they do not interrupt it and come in batches. Such a ring belongs to the
//! thread that first enters it. Another thread gets `EEXIST`, and can neither reap requests in
//! flight nor learn when they end. But it can close the ring: the kernel then finishes all requests
//! and afterwards releases the registered files. One of them is an end of a pipe that nothing else
//! has open, so the other end shows when that has happened ([`Ring::close_and_wait`]).

use std::fs::File;
use std::io::{self, PipeReader};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{Builder, IoUring, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bounce::AlignedBuf;
use crate::direct::Alignment;
use crate::io_memory::{IoBuf, IoMemory};

/// Index of the file in the ring's table.
pub(crate) const FILE: types::Fixed = types::Fixed(0);
/// Consecutive system calls without progress after which a ring is given up.
pub(crate) const IDLE_MAX: u32 = 100;
pub(crate) const IDLE_WAIT: Duration = Duration::from_millis(1);

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

/// How long a wait may be prolonged to gather completions, in microseconds.
const GATHER_WAIT_US: u32 = 50;

/// The threads that use a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Any threads, one at a time.
    Any,
    /// The thread that first enters it. With `polled`, waiting polls the device.
    One { polled: bool },
}

/// A ring for one file.
pub(crate) struct Ring {
    io: IoUring,
    /// Memory registered with the ring, if the kernel allowed it. Dropped after the ring.
    memory: Vec<IoMemory>,
    fixed: bool,
    polled: bool,
    /// Whether the thread that first enters the ring must still enable it.
    asleep: bool,
    /// At end of file once the kernel has closed the ring of one thread.
    closed: Option<PipeReader>,
}

impl Ring {
    /// Creates a ring of `depth` requests for an open file.
    ///
    /// # Errors
    /// The error of the system: `ENOSYS`, `EPERM`, no memory, no descriptors.
    pub(crate) fn open(
        file: &File,
        depth: usize,
        users: Users,
        memory: &[IoMemory],
    ) -> io::Result<Ring> {
        let depth = depth as u32;
        let polled = users == Users::One { polled: true };
        let new = || {
            let mut builder = IoUring::builder();
            if polled {
                builder.setup_iopoll();
            }
            builder
        };
        let deferred = |builder: &mut Builder| {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            builder.setup_submit_all().setup_r_disabled().build(depth)
        };
        let cooperative = |builder: &mut Builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().build(depth)
        };
        let shared = || cooperative(&mut new()).or_else(|_| new().build(depth));
        let (io, asleep) = match users {
            Users::Any => (shared()?, false),
            Users::One { .. } => match deferred(&mut new()) {
                Ok(io) => (io, true),
                Err(_) => (shared()?, false),
            },
        };
        let closed = match users {
            Users::Any => {
                io.submitter().register_files(&[file.as_raw_fd()])?;
                None
            }
            Users::One { .. } => {
                let (reader, writer) = io::pipe()?;
                io.submitter().register_files(&[file.as_raw_fd(), writer.as_raw_fd()])?;
                Some(reader)
            }
        };
        let memory = memory.to_vec();
        let mut ring = Ring { io, memory, fixed: false, polled, asleep, closed };
        ring.register_memory();
        Ok(ring)
    }

    /// Whether a polled ring can read this file. Only some devices have queues to poll.
    pub(crate) fn can_poll(file: &File, at: u64, align: Alignment) -> bool {
        let Ok(mut ring) = Ring::open(file, 1, Users::One { polled: true }, &[]) else {
            return false;
        };
        let mut buf = ManuallyDrop::new(AlignedBuf::new(align.unit, align.for_memory()));
        let entry = opcode::Read::new(FILE, buf.as_mut_ptr(), buf.len() as u32).offset(at).build();
        let mut answer = None;
        // SAFETY: the buffer is freed below, when the request was answered or the ring closed,
        // and never if neither happens.
        let mut ended = unsafe { ring.push(&entry) }.is_err();
        while !ended {
            let entered = ring.enter(1);
            answer = ring.completions().next().map(|entry| entry.result());
            ended = answer.is_some();
            if !ended && entered.is_err_and(|error| !is_passing(&error)) {
                ended = ring.close_and_wait(Duration::from_secs(1));
                break;
            }
        }
        if ended {
            drop(ManuallyDrop::into_inner(buf));
        }
        answer == Some(align.unit as i32)
    }

    fn register_memory(&mut self) {
        if self.memory.is_empty() {
            return;
        }
        let list: Vec<_> = self
            .memory
            .iter()
            .map(|memory| libc::iovec {
                iov_base: memory.start().as_ptr().cast(),
                iov_len: memory.len(),
            })
            .collect();
        // SAFETY: the ring holds the memory until it is closed. Registering reads and writes
        // nothing; each user of the ring argues for its requests that name a part of it.
        let registered = unsafe { self.io.submitter().register_buffers(&list) };
        // Above RLIMIT_MEMLOCK, or if too large, the same memory is used unregistered.
        self.fixed = registered.is_ok();
    }

    /// Index under which a buffer's memory is registered.
    pub(crate) fn fixed(&self, buf: &IoBuf) -> Option<u16> {
        if !self.fixed {
            return None;
        }
        self.memory.iter().position(|memory| buf.is_of(memory)).map(|index| index as u16)
    }

    /// Whether memory is registered.
    pub(crate) fn has_fixed(&self) -> bool {
        self.fixed
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled
    }

    /// Adds a request to the submission queue.
    ///
    /// # Errors
    /// The queue is full.
    ///
    /// # Safety
    /// All memory whose address is in the entry stays valid and untouched until the request is
    /// answered, or until the ring is dropped without having been entered since.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<(), squeue::PushError> {
        // SAFETY: the caller's promise.
        unsafe { self.io.submission().push(entry) }
    }

    /// Number of pushed requests that the kernel has not taken.
    pub(crate) fn untaken(&mut self) -> usize {
        let mut queue = self.io.submission();
        queue.sync();
        queue.len()
    }

    /// Submits the pushed requests and waits for `want` completions. It may return with fewer.
    pub(crate) fn enter(&mut self, want: usize) -> io::Result<()> {
        self.wake()?;
        self.io.submit_and_wait(want).map(drop)
    }

    /// [`Ring::enter`], but a wait for fewer than `gather` completions is prolonged until
    /// there are `gather` or `GATHER_WAIT_US` have passed, if the kernel can (Linux 6.12).
    pub(crate) fn enter_gathering(&mut self, want: usize, gather: usize) -> io::Result<()> {
        if want == 0 || gather <= want || self.polled || !self.io.params().is_feature_min_timeout()
        {
            return self.enter(want);
        }
        self.wake()?;
        let args = types::SubmitArgs::new().min_wait_usec(GATHER_WAIT_US);
        match self.io.submitter().submit_with_args(gather, &args) {
            // The time is over without a completion.
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => self.enter(want),
            entered => entered.map(drop),
        }
    }

    /// Waits for a completion without submitting anything.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        self.wake()?;
        // SAFETY: gives the kernel no entries and no memory; it only waits for a completion.
        unsafe { self.io.submitter().enter::<()>(0, 1, GETEVENTS, None).map(drop) }
    }

    fn wake(&mut self) -> io::Result<()> {
        if self.asleep {
            self.io.submitter().register_enable_rings()?;
            self.asleep = false;
        }
        Ok(())
    }

    /// Whether completions appear only when the ring is entered.
    pub(crate) fn has_work(&mut self) -> bool {
        self.polled || self.io.submission().taskrun()
    }

    /// The available completions.
    pub(crate) fn completions(&mut self) -> cqueue::CompletionQueue<'_> {
        self.io.completion()
    }

    /// Closes the ring and waits until the kernel has ended every request that it took. False if it
    /// has not in time, and may still use their memory.
    pub(crate) fn close_and_wait(mut self, limit: Duration) -> bool {
        let Some(closed) = self.closed.take() else { return false };
        drop(self);
        let Ok(limit) = Timespec::try_from(limit) else { return false };
        loop {
            let mut waiting = [PollFd::new(&closed, PollFlags::IN)];
            match poll(&mut waiting, Some(&limit)) {
                Ok(count) => return count > 0 && waiting[0].revents().contains(PollFlags::HUP),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether an error of [`Ring::enter`] says that another thread owns the ring.
    pub(crate) fn is_of_another_thread(error: &io::Error) -> bool {
        error.raw_os_error() == Some(libc::EEXIST)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel closes a ring some time after its last descriptor. The file and the locked
        // memory are released now. Errors are ignored, because nothing can be done about them.
        let _ = self.io.submitter().unregister_files();
        if self.fixed {
            let _ = self.io.submitter().unregister_buffers();
        }
    }
}

/// Whether the same request may succeed a moment later, or in another way.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
