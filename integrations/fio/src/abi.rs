// SPDX-License-Identifier: GPL-2.0-only
//! The functions of `uext4_fio.h`, which says what each is for.
//!
//! # Safety
//! All of them trust the C part with the same things: pointers to strings are valid and end with a
//! zero byte; a buffer has the length that is given with it and nobody else uses it during the
//! call; a session is one that [`uext4_fio_attach`] gave and [`uext4_fio_detach`] did not take, a
//! file one that [`uext4_fio_open`] gave and [`uext4_fio_close`] did not take; places for results
//! are valid and aligned. Sessions and files may be used by many threads.
//!
//! A queue is used by one thread at a time. The memory that it is made with is valid and
//! initialised until [`uext4_fio_queue_free`] has returned, and the bytes of a request are left
//! alone from [`uext4_fio_queue_push`] until [`uext4_fio_queue_reap`] has answered it; no two
//! requests in a queue share bytes.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use uext4::{AllocateMode, DirectOp, IoMemory};

use crate::file::{self, File, How};
use crate::line::{Failure, Result};
use crate::queue::Queue;
use crate::session::{self, Session};

const CREATE: c_int = 1;
const DIRECT: c_int = 2;

/// A negative errno, for failures that fio words by itself.
fn negative(failure: &Failure) -> c_int {
    -failure.errno.max(1)
}

fn status(result: Result<()>) -> c_int {
    result.map_or_else(|failure| negative(&failure), |()| 0)
}

/// Puts a line where the C part wants it, cut to fit, with a zero byte.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
unsafe fn tell(line: &str, to: *mut c_char, len: usize) {
    let Some(room) = len.checked_sub(1) else { return };
    let count = line.len().min(room);
    // SAFETY: `count` and the zero byte behind it fit into the `len` bytes at `to`; a string of
    // this side does not overlap them.
    unsafe {
        std::ptr::copy_nonoverlapping(line.as_ptr().cast(), to, count);
        to.add(count).write(0);
    }
}

/// # Safety
/// `text` is a valid string that outlives the result.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: as demanded of the caller.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Opens or joins an image.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_attach(
    image: *const c_char,
    options: *const c_char,
    session: *mut *const Session,
    message: *mut c_char,
    message_len: usize,
) -> c_int {
    // SAFETY: both are strings, see the module.
    let (image, options) = unsafe { (bytes(image), bytes(options)) };
    let options = std::str::from_utf8(options);
    let opened = options
        .map_err(|_| Failure::invalid("mount_opts: is not UTF-8"))
        .and_then(|options| session::attach(Path::new(OsStr::from_bytes(image)), options));
    let (code, line) = match &opened {
        Ok(opened) => (0, opened.notice().unwrap_or("")),
        Err(failure) => (negative(failure), &*failure.line),
    };
    // SAFETY: the message's place has that length, see the module.
    unsafe { tell(line, message, message_len) };
    if let Ok(opened) = opened {
        // SAFETY: a valid place, see the module.
        unsafe { session.write(Arc::into_raw(opened)) };
    }
    code
}

/// Leaves an image.
///
/// # Safety
/// See the module; the session is not used again by whoever attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_detach(
    session: *const Session,
    message: *mut c_char,
    message_len: usize,
) -> c_int {
    // SAFETY: it came from `Arc::into_raw` in `attach`, and is given back once.
    let session = unsafe { Arc::from_raw(session) };
    // SAFETY: the message's place has that length, see the module.
    unsafe { ended(session::detach(&session), message, message_len) }
}

/// Closes whatever is open.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_close_all(message: *mut c_char, message_len: usize) -> c_int {
    // SAFETY: the message's place has that length, see the module.
    unsafe { ended(session::close_all(), message, message_len) }
}

/// # Safety
/// `message` is valid for writes of `len` bytes.
unsafe fn ended(closed: Result<()>, message: *mut c_char, len: usize) -> c_int {
    let line = closed.as_ref().map_or_else(|failure| &*failure.line, |()| "");
    // SAFETY: as demanded of the caller.
    unsafe { tell(line, message, len) };
    status(closed)
}

/// Size of a file.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_size(
    session: *const Session,
    path: *const c_char,
    size: *mut u64,
) -> c_int {
    // SAFETY: a live session and a string, see the module.
    let (session, path) = unsafe { (&*session, bytes(path)) };
    match file::size(session, path) {
        Ok(found) => {
            // SAFETY: a valid place, see the module.
            unsafe { size.write(found) };
            0
        }
        Err(failure) => negative(&failure),
    }
}

/// Removes a file.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_unlink(session: *const Session, path: *const c_char) -> c_int {
    // SAFETY: a live session and a string, see the module.
    let (session, path) = unsafe { (&*session, bytes(path)) };
    status(file::unlink(session, path))
}

/// Opens a file.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_open(
    session: *const Session,
    path: *const c_char,
    flags: c_int,
    place: *mut *mut File,
) -> c_int {
    // SAFETY: `session` came from `Arc::into_raw` and is live; the count that the new `Arc` will
    // give back is taken first.
    let session = unsafe {
        Arc::increment_strong_count(session);
        Arc::from_raw(session)
    };
    // SAFETY: a string, see the module.
    let path = unsafe { bytes(path) };
    let how = How { create: flags & CREATE != 0, direct: flags & DIRECT != 0 };
    match File::open(&session, path, how) {
        Ok(file) => {
            // SAFETY: a valid place, see the module.
            unsafe { place.write(Box::into_raw(Box::new(file))) };
            0
        }
        Err(failure) => negative(&failure),
    }
}

/// Closes a file.
///
/// # Safety
/// See the module; the file is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_close(file: *mut File) -> c_int {
    // SAFETY: it came from `Box::into_raw` in `open`, and is given back once.
    let file = unsafe { Box::from_raw(file) };
    status(file.close())
}

/// Reads.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_read(
    file: *const File,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: a live file; `len` bytes of fio's buffers, which fio initialised and leaves alone
    // during the call.
    let (file, buf) = unsafe { (&*file, std::slice::from_raw_parts_mut(buf.cast::<u8>(), len)) };
    count(file.read(offset, buf))
}

/// Writes.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_write(
    file: *const File,
    buf: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: a live file; `len` bytes of fio's buffers, which nobody writes during the call.
    let (file, buf) = unsafe { (&*file, std::slice::from_raw_parts(buf.cast::<u8>(), len)) };
    count(file.write(offset, buf))
}

/// Writes as with `O_DSYNC`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_write_durably(
    file: *const File,
    buf: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: as for `write`.
    let (file, buf) = unsafe { (&*file, std::slice::from_raw_parts(buf.cast::<u8>(), len)) };
    count(file.write_durably(offset, buf))
}

fn count(done: Result<usize>) -> i64 {
    match done {
        Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Err(failure) => i64::from(negative(&failure)),
    }
}

/// Makes a file durable.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_sync(file: *const File, data_only: c_int) -> c_int {
    // SAFETY: a live file, see the module.
    let file = unsafe { &*file };
    status(file.sync(data_only != 0))
}

/// Drops what is cached.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_invalidate(file: *const File) -> c_int {
    // SAFETY: a live file, see the module.
    let file = unsafe { &*file };
    status(file.invalidate())
}

/// Allocates or punches.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_allocate(
    file: *const File,
    what: c_int,
    offset: u64,
    len: u64,
) -> c_int {
    // SAFETY: a live file, see the module.
    let file = unsafe { &*file };
    let mode = match what {
        0 => AllocateMode::Allocate { keep_size: false },
        1 => AllocateMode::Allocate { keep_size: true },
        2 => AllocateMode::PunchHole,
        _ => return -libc::EINVAL,
    };
    status(file.allocate(mode, offset, len))
}

/// Sets the size.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_truncate(file: *const File, size: u64) -> c_int {
    // SAFETY: a live file, see the module.
    let file = unsafe { &*file };
    status(file.truncate(size))
}

/// One answer of a queue, as `struct uext4_done`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Done {
    tag: u64,
    /// Bytes, or a negative errno.
    result: i64,
}

/// Makes a job's queue.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_queue_new(
    session: *const Session,
    depth: usize,
    memory: *mut c_void,
    len: usize,
    place: *mut *mut Queue,
    message: *mut c_char,
    message_len: usize,
) -> c_int {
    let Some(start) = NonNull::new(memory.cast::<u8>()) else { return -libc::EINVAL };
    // SAFETY: the memory outlives the queue, which alone has handles of it, and the bytes of
    // requests are left alone, see the module.
    let memory = unsafe { IoMemory::from_raw(start, len) };
    // SAFETY: a live session, see the module.
    match Queue::new(unsafe { &*session }, depth, memory) {
        Ok(queue) => {
            // SAFETY: a valid place, see the module.
            unsafe { place.write(Box::into_raw(Box::new(queue))) };
            0
        }
        Err(failure) => {
            // SAFETY: the message's place has that length, see the module.
            unsafe { tell(&failure.line, message, message_len) };
            negative(&failure)
        }
    }
}

/// Ends a queue, when what is in it is done.
///
/// # Safety
/// See the module; the queue is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_queue_free(queue: *mut Queue) {
    // SAFETY: it came from `Box::into_raw` in `queue_new`, and is given back once.
    drop(unsafe { Box::from_raw(queue) });
}

/// Hands a request over: `from` is where its bytes begin in the queue's memory.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_queue_push(
    queue: *mut Queue,
    file: *const File,
    op: c_int,
    offset: u64,
    from: usize,
    len: usize,
    tag: u64,
) -> c_int {
    // SAFETY: a live queue that no other thread uses, and a live file, see the module.
    let (queue, file) = unsafe { (&mut *queue, &*file) };
    let op = match op {
        0 => DirectOp::Read,
        1 => DirectOp::Write,
        2 => DirectOp::WriteDurable,
        _ => return -libc::EINVAL,
    };
    if from.checked_add(len).is_none_or(|end| end > queue.memory().len()) {
        return -libc::EFAULT;
    }
    // SAFETY: no other request in the queue has these bytes, and buffers that were answered are
    // gone, see the module and `Queue::reap`.
    let buf = unsafe { queue.memory().buf(from, len) };
    match queue.push(file, op, offset, buf, tag) {
        Ok(true) => 0,
        Ok(false) => -libc::EAGAIN,
        Err(failure) => negative(&failure),
    }
}

/// Starts what was pushed.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_queue_submit(queue: *mut Queue) -> c_int {
    // SAFETY: a live queue that no other thread uses, see the module.
    let queue = unsafe { &mut *queue };
    status(queue.submit())
}

/// Waits for at least `at_least` requests; tells of up to `most`, and how many.
///
/// # Safety
/// See the module; `done` has room for `most`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fio_queue_reap(
    queue: *mut Queue,
    at_least: usize,
    done: *mut Done,
    most: usize,
) -> c_int {
    // SAFETY: a live queue that no other thread uses, see the module.
    let queue = unsafe { &mut *queue };
    let reaped = queue.reap(at_least, most, |place, tag, result| {
        // SAFETY: `place` is below `most`, for which there is room.
        unsafe { done.add(place).write(Done { tag, result }) };
    });
    reaped.map_or_else(|failure| negative(&failure), |n| c_int::try_from(n).unwrap_or(c_int::MAX))
}
