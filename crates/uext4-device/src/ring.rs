//! One ring of io_uring and the writes in flight on it.
//!
//! # What
//! [`Ring::write`] puts the requests of a call into the submission queue, many at a time, and
//! returns when the kernel has answered all of them. The file is registered, and so is the ring's
//! own aligned memory where the limit on locked memory allows it; buffers that direct I/O cannot
//! take are copied there.
//!
//! # Soundness
//! The kernel reads buffers and lists of buffers by address, behind the compiler's back, from the
//! moment a request is pushed until its completion is reaped. Three kinds of memory are read:
//! - the caller's buffers, borrowed by [`Pieces`] for longer than the call;
//! - the lists of those buffers, in `Pieces`, which the call borrows shared, so they stay;
//! - slots of the ring's [`Arena`], which lives until the ring's file descriptor is closed; a slot
//!   that a request reads is marked taken and is not written before that request was reaped.
//!
//! So all that must hold is: **the call does not end with a request in flight.** The loop ends only
//! at `in_flight == 0`. Should a panic unwind through it, [`InFlight`]'s `Drop` waits for what the
//! kernel has taken. Requests pushed and never taken (the kernel refused the system call) stay in
//! the queue; the ring is then marked broken, is never entered again, and closes, which drops them.
//!
//! # Kernels
//! Only operations of Linux 5.6. A request that the kernel cut short, interrupted or had no memory
//! for is handed back to the caller, who makes it by `pwrite`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use crate::bounce::{AlignedBuf, Gather};
use crate::direct::Alignment;
use crate::piece::{PIECE_MAX, Pieces};
use crate::room::is_full;

/// Requests in flight at most. Disks gain little beyond 64; the completion queue has twice as many
/// places, so it cannot overflow.
const DEPTH: u32 = 128;
/// Unit in which the arena is lent, in bytes.
const SLOT: usize = 16 * 1024;
/// Slots of an arena: one for each bit of its map. 2 MiB, 8 of the largest requests.
const SLOTS: u32 = u128::BITS;
/// System calls in a row that may move nothing before the ring is given up.
pub(crate) const IDLE_MAX: u32 = 100;
pub(crate) const IDLE_WAIT: Duration = Duration::from_millis(1);
/// The file's place in the ring's table.
const FILE: types::Fixed = types::Fixed(0);
/// `IORING_ENTER_GETEVENTS`.
pub(crate) const GETEVENTS: u32 = 1;

const _: () = assert!(PIECE_MAX <= SLOT * SLOTS as usize);

/// A ring. One call at a time uses it.
pub(crate) struct Ring {
    // Before the arena: the file descriptor closes first.
    io: IoUring,
    arena: Option<Arena>,
    broken: bool,
}

impl Ring {
    /// Makes a ring for one open file; with an arena where the file's I/O is direct.
    pub(crate) fn open(file: &File, align: Option<Alignment>) -> io::Result<Ring> {
        // The caller waits for its own completions, so nothing need interrupt it (Linux 5.19).
        let io = IoUring::builder()
            .setup_coop_taskrun()
            .build(DEPTH)
            .or_else(|_| IoUring::builder().build(DEPTH))?;
        io.submitter().register_files(&[file.as_raw_fd()])?;
        let arena = align.map(|align| Arena::new(&io, align));
        Ok(Ring { io, arena, broken: false })
    }

    /// Whether the ring must be closed and not be used again.
    pub(crate) fn broken(&self) -> bool {
        self.broken
    }

    /// Makes all of the requests; returns the numbers of those that must be made in another way.
    /// After an error no more requests are begun.
    pub(crate) fn write(&mut self, pieces: &Pieces<'_>) -> io::Result<Vec<usize>> {
        let slots = vec![Slots::default(); pieces.len()];
        InFlight { ring: self, pieces, slots, next: 0, count: 0, left: Vec::new(), failed: None }
            .run()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel closes a ring some time after its last descriptor. Let go of the file and of
        // locked memory now. Errors: there is nothing left to do about them.
        let _ = self.io.submitter().unregister_files();
        if self.arena.as_ref().is_some_and(|arena| arena.registered) {
            let _ = self.io.submitter().unregister_buffers();
        }
    }
}

/// Aligned memory of a ring, lent in runs of slots.
struct Arena {
    memory: AlignedBuf,
    registered: bool,
    /// A bit for each slot that a request reads.
    taken: u128,
}

/// A run of slots; empty: none.
#[derive(Clone, Copy, Default)]
struct Slots {
    first: u32,
    count: u32,
}

impl Slots {
    fn mask(self) -> u128 {
        let ones = if self.count == SLOTS { u128::MAX } else { (1 << self.count) - 1 };
        ones << self.first
    }

    fn start(self) -> usize {
        self.first as usize * SLOT
    }
}

impl Arena {
    fn new(io: &IoUring, align: Alignment) -> Arena {
        let memory = AlignedBuf::new(SLOT * SLOTS as usize, align.for_memory());
        let whole =
            libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: memory.len() };
        // SAFETY: the memory stays where it is (it is on the heap, and the arena that owns it
        // lives in the ring) until the ring unregisters it and closes. The kernel only reads it:
        // no request of this module but writes to the file names it.
        let registered = unsafe { io.submitter().register_buffers(&[whole]) };
        // Above RLIMIT_MEMLOCK: the same memory serves, unregistered.
        Arena { memory, registered: registered.is_ok(), taken: 0 }
    }

    /// The first run of free slots that holds `len` bytes.
    fn take(&mut self, len: usize) -> Option<Slots> {
        let count = len.div_ceil(SLOT) as u32;
        (0..=SLOTS - count).map(|first| Slots { first, count }).find(|slots| {
            let free = self.taken & slots.mask() == 0;
            if free {
                self.taken |= slots.mask();
            }
            free
        })
    }

    fn give_back(&mut self, slots: Slots) {
        self.taken &= !slots.mask();
    }
}

/// One call's requests; waits for them when it goes.
struct InFlight<'r, 'p, 'b> {
    ring: &'r mut Ring,
    pieces: &'p Pieces<'b>,
    /// The arena's slots of each request that is in flight and was copied.
    slots: Vec<Slots>,
    /// Next request to push.
    next: usize,
    /// Requests pushed and not reaped.
    count: usize,
    /// Requests that the kernel did not make whole.
    left: Vec<usize>,
    failed: Option<io::Error>,
}

impl InFlight<'_, '_, '_> {
    fn run(mut self) -> io::Result<Vec<usize>> {
        let mut idle = 0;
        loop {
            if self.failed.is_none() {
                self.push_all();
            }
            if self.count == 0 {
                break;
            }
            // While more requests wait for a place, half of them coming back is worth a refill.
            let more = self.next < self.pieces.len() && self.failed.is_none();
            let wanted = if more { self.count.div_ceil(2) } else { self.count };
            let entered = self.ring.io.submit_and_wait(wanted);
            let reaped = self.reap();
            match entered {
                Ok(_) => idle = 0,
                Err(error) if is_passing(&error) && (reaped > 0 || idle < IDLE_MAX) => {
                    idle = if reaped > 0 { 0 } else { idle + 1 };
                    if idle > 1 {
                        std::thread::sleep(IDLE_WAIT);
                    }
                }
                Err(_) => {
                    self.give_up();
                    break;
                }
            }
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => {
                self.left.extend(self.next..self.pieces.len());
                Ok(std::mem::take(&mut self.left))
            }
        }
    }

    /// Pushes as many requests as there is room for.
    fn push_all(&mut self) {
        while self.next < self.pieces.len() && self.count < DEPTH as usize {
            let Some(entry) = self.prepare(self.next) else { return };
            // SAFETY: the entry's addresses stay valid until it is reaped; see Soundness above.
            // `count` is raised at once, so a panic from here on waits for it.
            if unsafe { self.ring.io.submission().push(&entry) }.is_err() {
                self.free_slots(self.next);
                return;
            }
            self.count += 1;
            self.next += 1;
        }
    }

    /// The request, with its bytes in the arena if they must be there; `None` if it is full.
    fn prepare(&mut self, index: usize) -> Option<squeue::Entry> {
        let piece = self.pieces.get(index);
        let slices = self.pieces.slices(index);
        let entry = match &mut self.ring.arena {
            Some(arena) if piece.copied => {
                let slots = arena.take(piece.len)?;
                self.slots[index] = slots;
                let to = &mut arena.memory[slots.start()..slots.start() + piece.len];
                Gather::new(slices).fill(to);
                let len = piece.len as u32;
                if arena.registered {
                    opcode::WriteFixed::new(FILE, to.as_ptr(), len, 0).offset(piece.at).build()
                } else {
                    opcode::Write::new(FILE, to.as_ptr(), len).offset(piece.at).build()
                }
            }
            // `IoSlice` is an iovec in memory; the standard library promises it.
            _ => {
                let list = slices.as_ptr().cast::<libc::iovec>();
                opcode::Writev::new(FILE, list, slices.len() as u32).offset(piece.at).build()
            }
        };
        Some(entry.user_data(index as u64))
    }

    /// Takes the completions that are there; returns how many.
    fn reap(&mut self) -> usize {
        let mut reaped = 0;
        loop {
            // One at a time: the queue is not borrowed while its entry is looked at.
            let Some(entry) = self.ring.io.completion().next() else { return reaped };
            reaped += 1;
            self.count -= 1;
            let index = entry.user_data() as usize;
            self.free_slots(index);
            let result = entry.result();
            if result >= 0 {
                if result as usize != self.pieces.get(index).len {
                    self.left.push(index);
                }
                continue;
            }
            let error = io::Error::from_raw_os_error(-result);
            let canceled = error.raw_os_error() == Some(libc::ECANCELED);
            if is_passing(&error) || canceled || is_full(&error) {
                // Without a ring a write can wait for room, and keeps nobody from the ring.
                self.left.push(index);
            } else {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn free_slots(&mut self, index: usize) {
        let slots = std::mem::take(&mut self.slots[index]);
        if let Some(arena) = &mut self.ring.arena {
            arena.give_back(slots);
        }
    }

    /// Waits for the requests that the kernel has taken; the others it will never get.
    fn give_up(&mut self) {
        let untaken = {
            let mut queue = self.ring.io.submission();
            queue.sync();
            queue.len()
        };
        if untaken > 0 {
            self.ring.broken = true;
        }
        while self.count > untaken {
            // SAFETY: gives the kernel no entries and no memory; it only waits for a completion.
            let waited = unsafe { self.ring.io.submitter().enter::<()>(0, 1, GETEVENTS, None) };
            if self.reap() == 0 && waited.is_err() {
                std::thread::sleep(IDLE_WAIT);
            }
        }
        if untaken > 0 {
            // Entries are taken in order, so these are the last that were pushed.
            self.next -= untaken;
            self.count = 0;
        }
    }
}

impl Drop for InFlight<'_, '_, '_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.give_up();
        }
    }
}

/// Whether the same request may well succeed a moment later, or by another way.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
