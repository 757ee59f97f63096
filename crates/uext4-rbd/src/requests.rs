//! Requests to an image, many on their way at a time, by one thread.
//!
//! What: a call sends its requests (`rbd_aio_*`) and waits for the oldest where too many are on
//! their way, and in the end for all. Threads of librbd answer.
//!
//! Before each request the gate of the call is asked, which fails when the image is not this
//! client's any more: a call may take long.
//!
//! Invariant: a buffer that librbd was given is borrowed until its request is done: every
//! [`Ticket`] is waited for before the call returns, also where it unwinds.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

use libc::iovec;
use uext4_device::{ReadRun, WriteRun};

use crate::cluster::{answer, count_of};
use crate::ffi::{self, Handle};
use crate::health::ends;
use crate::image::Image;

/// Most bytes of one call that are on their way at a time, and most requests.
const FLYING_MAX: usize = 16 << 20;
const REQUESTS_MAX: usize = 256;
/// Most bytes of one request, a quarter of an ordinary object, so that stores share a large one;
/// most buffers of it.
const REQUEST_MAX: usize = 1 << 20;
const BUFFERS_MAX: usize = 256;
/// Longest range of one request without data, in bytes, and what such a request counts.
const RANGE_MAX: u64 = 64 << 20;
const RANGE_COUNTS: usize = FLYING_MAX / 8;

/// Fails when nothing may be asked any more.
pub(crate) type Gate<'a> = dyn Fn() -> io::Result<()> + 'a;

/// A change of a range without data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// It reads as zeroes afterwards.
    Zeroes,
    /// It reads as anything afterwards.
    Discard,
}

/// Fills buffers one after the other, from an offset (bytes).
pub(crate) fn read(
    image: &Image,
    gate: &Gate<'_>,
    offset: u64,
    bufs: &mut [&mut [u8]],
) -> io::Result<()> {
    let mut calls = Calls::new(image, gate);
    calls.scatter(offset, bufs.iter_mut().map(|buf| part(buf)), Way::Read);
    calls.all()
}

/// Fills the buffers of runs, in any order.
pub(crate) fn read_many(
    image: &Image,
    gate: &Gate<'_>,
    runs: &mut [ReadRun<'_>],
) -> io::Result<()> {
    let mut calls = Calls::new(image, gate);
    for run in runs {
        calls.scatter(run.offset, std::iter::once(part(run.buf)), Way::Read);
    }
    calls.all()
}

fn part(buf: &mut [u8]) -> iovec {
    iovec { iov_base: buf.as_mut_ptr().cast::<c_void>(), iov_len: buf.len() }
}

/// Changes what runs say, in any order.
pub(crate) fn write(image: &Image, gate: &Gate<'_>, runs: &[WriteRun<'_>]) -> io::Result<()> {
    let mut calls = Calls::new(image, gate);
    for run in runs {
        let bufs = run.bufs.iter().map(|buf| iovec {
            // librbd does not write to it: its type is that of readv(2) as well.
            iov_base: buf.as_ptr().cast_mut().cast::<c_void>(),
            iov_len: buf.len(),
        });
        calls.scatter(run.offset, bufs, Way::Write);
    }
    calls.all()
}

/// Changes a range of `len` bytes.
pub(crate) fn change(
    image: &Image,
    gate: &Gate<'_>,
    offset: u64,
    len: u64,
    change: Change,
) -> io::Result<()> {
    let mut calls = Calls::new(image, gate);
    let mut at = offset;
    while at < offset + len {
        let now = (offset + len - at).min(RANGE_MAX);
        calls.make_room(RANGE_COUNTS);
        calls.add(RANGE_COUNTS, Vec::new(), None, |image, completion, _| match change {
            // SAFETY: image and completion are open.
            Change::Discard => unsafe { ffi::rbd_aio_discard(image, at, now, completion) },
            Change::Zeroes => {
                let now = usize::try_from(now).unwrap_or(usize::MAX);
                // SAFETY: the same.
                unsafe { ffi::rbd_aio_write_zeroes(image, at, now, completion, 0, 0) }
            }
        });
        at += now;
    }
    calls.all()
}

/// Makes every change durable that was complete before.
pub(crate) fn flush(image: &Image, gate: &Gate<'_>) -> io::Result<()> {
    let mut calls = Calls::new(image, gate);
    // SAFETY: image and completion are open.
    calls.add(0, Vec::new(), None, |image, done, _| unsafe { ffi::rbd_aio_flush(image, done) });
    calls.all()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// A request that is on its way.
struct Ticket {
    completion: Handle,
    /// The library may look at the list until the request is done.
    _buffers: Vec<iovec>,
    /// What it counts.
    bytes: usize,
    /// Whether as many are to be read.
    is_read: bool,
}

impl Ticket {
    /// Waits for the answer.
    fn wait(self) -> io::Result<()> {
        // SAFETY: the completion is open until this is dropped.
        unsafe { ffi::rbd_aio_wait_for_complete(self.completion) };
        // SAFETY: the same, and the request is done.
        let value = unsafe { ffi::rbd_aio_get_return_value(self.completion) };
        let count = answer(i64::try_from(value).unwrap_or(i64::MAX))?;
        let is_short = self.is_read && usize::try_from(count) != Ok(self.bytes);
        if is_short { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // SAFETY: the completion is open, and is not used again. Waiting for one that is done
        // returns at once.
        unsafe {
            ffi::rbd_aio_wait_for_complete(self.completion);
            ffi::rbd_aio_release(self.completion);
        }
    }
}

/// Requests of one call. Private to this module, so that each is dropped before the buffers are
/// the caller's again.
struct Calls<'a> {
    image: &'a Image,
    gate: &'a Gate<'a>,
    flying: VecDeque<Ticket>,
    bytes: usize,
    failed: Option<io::Error>,
}

impl<'a> Calls<'a> {
    fn new(image: &'a Image, gate: &'a Gate<'a>) -> Self {
        Self { image, gate, flying: VecDeque::new(), bytes: 0, failed: None }
    }

    /// Sends requests for buffers that lie one after the other from an offset on.
    fn scatter(&mut self, offset: u64, bufs: impl Iterator<Item = iovec>, way: Way) {
        let (mut at, mut list, mut len) = (offset, Vec::new(), 0);
        for mut buf in bufs {
            while buf.iov_len > 0 {
                let now = buf.iov_len.min(REQUEST_MAX - len);
                list.push(iovec { iov_base: buf.iov_base, iov_len: now });
                buf.iov_base = buf.iov_base.wrapping_byte_add(now);
                buf.iov_len -= now;
                len += now;
                if len == REQUEST_MAX || list.len() == BUFFERS_MAX {
                    self.send(at, std::mem::take(&mut list), len, way);
                    at += len as u64;
                    len = 0;
                }
            }
        }
        if len > 0 {
            self.send(at, list, len, way);
        }
    }

    fn send(&mut self, offset: u64, list: Vec<iovec>, len: usize, way: Way) {
        self.make_room(len);
        self.add(len, list, Some(way), |image, completion, list| {
            let count = count_of(list.len());
            match way {
                // SAFETY: image and completion are open. The buffers are borrowed by the caller of
                // this module, and nobody else has them until the ticket is done; the list moves
                // into the ticket without its elements being moved.
                Way::Read => unsafe {
                    ffi::rbd_aio_readv(image, list.as_ptr(), count, offset, completion)
                },
                // SAFETY: the same, for buffers that nobody changes.
                Way::Write => unsafe {
                    ffi::rbd_aio_writev(image, list.as_ptr(), count, offset, completion)
                },
            }
        });
    }

    /// Waits until a request of that many bytes may be sent.
    fn make_room(&mut self, bytes: usize) {
        while self.flying.len() >= REQUESTS_MAX
            || (!self.flying.is_empty() && self.bytes + bytes > FLYING_MAX)
        {
            self.next();
        }
    }

    /// Sends a request. Nothing is sent any more after a failure.
    fn add(
        &mut self,
        bytes: usize,
        buffers: Vec<iovec>,
        way: Option<Way>,
        start: impl FnOnce(Handle, Handle, &[iovec]) -> i32,
    ) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = (self.gate)() {
            return self.fail(error);
        }
        let mut completion = null_mut();
        // SAFETY: the place lives during the call; there is no callback that could be called.
        let made = unsafe { ffi::rbd_aio_create_completion(null_mut(), None, &raw mut completion) };
        let sent = answer(made).and_then(|_| {
            answer(start(self.image.handle(), completion, &buffers)).inspect_err(|_| {
                // SAFETY: the completion is of no request, and is not used again.
                unsafe { ffi::rbd_aio_release(completion) };
            })
        });
        match sent {
            Ok(_) => {
                self.bytes += bytes;
                self.flying.push_back(Ticket {
                    completion,
                    _buffers: buffers,
                    bytes,
                    is_read: way == Some(Way::Read),
                });
            }
            Err(error) => self.fail(error),
        }
    }

    /// Waits for the oldest.
    fn next(&mut self) {
        let Some(ticket) = self.flying.pop_front() else { return };
        self.bytes -= ticket.bytes;
        if let Err(error) = ticket.wait() {
            self.fail(error);
        }
    }

    /// Keeps the first failure, or the first that ends the device: a request that was not answered
    /// may still be made, and must not be hidden by another one's error.
    fn fail(&mut self, error: io::Error) {
        if self.failed.as_ref().is_none_or(|failed| ends(&error) && !ends(failed)) {
            self.failed = Some(error);
        }
    }

    /// Waits for all. See [`Calls::fail`] for the result.
    ///
    /// # Errors
    /// The failure.
    fn all(mut self) -> io::Result<()> {
        while !self.flying.is_empty() {
            self.next();
        }
        self.failed.map_or(Ok(()), Err)
    }
}
