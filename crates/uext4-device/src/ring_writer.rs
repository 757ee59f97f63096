//! The writes of one call, in flight together on an io_uring.
//!
//! # What
//! [`RingWriter::write`] submits the requests of a call, many at a time, and returns when the
//! kernel has answered all of them. Buffers that direct I/O cannot use are copied to aligned memory
//! of the writer, which is registered if the limit on locked memory allows it.
//!
//! # Soundness
//! The kernel reads buffers and lists of buffers by address, unknown to the compiler, from the push
//! of a request until its completion is reaped. It reads three kinds of memory:
//! - the caller's buffers, borrowed by [`Pieces`] for longer than the call;
//! - the lists of those buffers, in `Pieces`, which the call borrows shared, so they stay;
//! - slots of the writer's [`Arena`], whose memory the ring keeps until it is closed. A slot
//!   that a request reads is marked as taken and is not written before that request is reaped.
//!
//! Therefore it suffices that **the call does not end with a request in flight.** The loop ends
//! only at `in_flight == 0`. If a panic unwinds through it, [`InFlight`]'s `Drop` waits for the
//! requests that the kernel has taken. Requests that were pushed and never taken (the kernel
//! refused the system call) stay in the queue. The ring is then marked broken, is never entered
//! again, and closes, which drops them.
//!
//! # Kernels
//! Only operations of Linux 5.6 are used. A request that the kernel cut short, interrupted or had
//! no memory for is returned to the caller, which executes it by `pwrite`.

use std::fs::File;
use std::io;

use io_uring::{opcode, squeue};

use crate::bounce::Gather;
use crate::direct::Alignment;
use crate::io_memory::{IoBuf, IoMemory};
use crate::piece::{PIECE_MAX, Pieces};
use crate::ring::{FILE, IDLE_MAX, IDLE_WAIT, Ring, Users, is_passing};
use crate::room::is_full;

/// Most requests in flight. Disks gain little beyond 64. The completion queue has twice as many
/// places, so it cannot overflow.
const DEPTH: usize = 128;
/// Bytes of a slot of the arena.
const SLOT: usize = 16 * 1024;
/// Slots of an arena: one for each bit of its map. 2 MiB, 8 of the largest requests.
const SLOTS: u32 = u128::BITS;

const _: () = assert!(PIECE_MAX <= SLOT * SLOTS as usize);

/// A ring for writes, used by one call at a time.
pub(crate) struct RingWriter {
    ring: Ring,
    arena: Option<Arena>,
    broken: bool,
}

impl RingWriter {
    /// Creates a ring for one open file, with an arena if its I/O is direct.
    pub(crate) fn open(file: &File, align: Option<Alignment>) -> io::Result<RingWriter> {
        let len = SLOT * SLOTS as usize;
        let memory = align.map(|align| IoMemory::aligned(len, align.for_memory())).transpose()?;
        let ring = Ring::open(file, DEPTH, Users::Any, memory.as_slice())?;
        let arena = memory.map(Arena::new);
        Ok(RingWriter { ring, arena, broken: false })
    }

    /// Whether the ring must be closed and not used again.
    pub(crate) fn broken(&self) -> bool {
        self.broken
    }

    /// Executes all requests. Returns the indices of those that must be executed in another way.
    /// After an error no more requests are started.
    pub(crate) fn write(&mut self, pieces: &Pieces<'_>) -> io::Result<Vec<usize>> {
        let slots = vec![Slots::default(); pieces.len()];
        InFlight { writer: self, pieces, slots, next: 0, count: 0, left: Vec::new(), failed: None }
            .run()
    }
}

/// Aligned memory of a writer, lent in runs of slots.
struct Arena {
    memory: IoBuf,
    /// The slots that requests read, one bit each.
    taken: u128,
}

/// A run of slots, perhaps empty.
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
    fn new(memory: IoMemory) -> Arena {
        let len = memory.len();
        let memory = memory.into_bufs(len).pop().expect("memory of slots is not empty");
        Arena { memory, taken: 0 }
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

/// The requests of one call. Its drop waits for them.
struct InFlight<'r, 'p, 'b> {
    writer: &'r mut RingWriter,
    pieces: &'p Pieces<'b>,
    /// The arena's slots of each copied request in flight.
    slots: Vec<Slots>,
    /// Next request to push.
    next: usize,
    /// Requests pushed and not reaped.
    count: usize,
    /// Requests that the kernel did not complete.
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
            // While more requests wait for a place, a refill pays when half of them have returned.
            let more = self.next < self.pieces.len() && self.failed.is_none();
            let wanted = if more { self.count.div_ceil(2) } else { self.count };
            let entered = self.writer.ring.enter(wanted);
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

    /// Pushes as many requests as fit.
    fn push_all(&mut self) {
        while self.next < self.pieces.len() && self.count < DEPTH {
            let Some(entry) = self.prepare(self.next) else { return };
            // SAFETY: the entry's addresses stay valid until it is reaped; see Soundness above.
            // `count` is raised at once, so a panic from here on waits for it.
            if unsafe { self.writer.ring.push(&entry) }.is_err() {
                self.free_slots(self.next);
                return;
            }
            self.count += 1;
            self.next += 1;
        }
    }

    /// The request, with its bytes copied to the arena if necessary. `None` if the arena is full.
    fn prepare(&mut self, index: usize) -> Option<squeue::Entry> {
        let piece = self.pieces.get(index);
        let slices = self.pieces.slices(index);
        let entry = match &mut self.writer.arena {
            Some(arena) if piece.copied => {
                let slots = arena.take(piece.len)?;
                self.slots[index] = slots;
                let to = &mut arena.memory[slots.start()..slots.start() + piece.len];
                Gather::new(slices).fill(to);
                let len = piece.len as u32;
                if self.writer.ring.has_fixed() {
                    opcode::WriteFixed::new(FILE, to.as_ptr(), len, 0).offset(piece.at).build()
                } else {
                    opcode::Write::new(FILE, to.as_ptr(), len).offset(piece.at).build()
                }
            }
            // The standard library guarantees that `IoSlice` has the layout of an iovec.
            _ => {
                let list = slices.as_ptr().cast::<libc::iovec>();
                opcode::Writev::new(FILE, list, slices.len() as u32).offset(piece.at).build()
            }
        };
        Some(entry.user_data(index as u64))
    }

    /// Reaps the available completions. Returns their number.
    fn reap(&mut self) -> usize {
        let mut reaped = 0;
        loop {
            // One at a time, so that the queue is not borrowed while its entry is processed.
            let Some(entry) = self.writer.ring.completions().next() else { return reaped };
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
                // Without the ring, the write can wait for room and does not block the ring.
                self.left.push(index);
            } else {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn free_slots(&mut self, index: usize) {
        let slots = std::mem::take(&mut self.slots[index]);
        if let Some(arena) = &mut self.writer.arena {
            arena.give_back(slots);
        }
    }

    /// Waits for the requests that the kernel has taken. It never gets the others.
    fn give_up(&mut self) {
        let untaken = self.writer.ring.untaken();
        if untaken > 0 {
            self.writer.broken = true;
        }
        while self.count > untaken {
            let waited = self.writer.ring.wait();
            if self.reap() == 0 && waited.is_err() {
                std::thread::sleep(IDLE_WAIT);
            }
        }
        if untaken > 0 {
            // The kernel takes entries in order, so these are the last pushed.
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

#[cfg(test)]
mod tests;
