//! The rings of a device.
//!
//! # What
//! As many rings as processors, within bounds, each opened when it is first needed. A thread tries
//! the same ring first, so that a lone writer keeps its ring warm, and then any free one before it
//! waits.
//!
//! # Invariants
//! - Rings write through an open file of their own, because the kernel closes rings late, and the
//!   image's locks, which belong to the device's first open file, must end with the device.
//!
//! # Locking
//! Each ring's lock is held during the I/O of the call that uses it.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::direct::Alignment;
use crate::piece::Pieces;
use crate::ring_writer::RingWriter;

/// The rings of one open file.
pub(crate) struct Rings {
    rings: Box<[Mutex<Option<RingWriter>>]>,
    file: File,
    align: Option<Alignment>,
}

/// Fewest rings, so that the checkpointer does not wait for the log.
const RINGS_MIN: usize = 2;
/// Most rings, because each has 2 MiB of memory.
const RINGS_MAX: usize = 8;

impl Rings {
    /// Rings for a file. Opens the first one, to find out whether the system allows it.
    pub(crate) fn open(file: File, align: Option<Alignment>) -> io::Result<Rings> {
        let first = RingWriter::open(&file, align)?;
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let rings: Box<[_]> =
            (0..processors.clamp(RINGS_MIN, RINGS_MAX)).map(|_| Mutex::new(None)).collect();
        *rings[0].lock() = Some(first);
        Ok(Rings { rings, file, align })
    }

    /// Executes all requests. Returns the indices of those that must be executed in another way.
    pub(crate) fn write(&self, pieces: &Pieces<'_>) -> io::Result<Vec<usize>> {
        let mut place = self.take();
        // A ring that unwinds does not come back: requests of this call may be left in its queue.
        let mut ring = match place.take() {
            Some(ring) => ring,
            None => match RingWriter::open(&self.file, self.align) {
                Ok(ring) => ring,
                // No descriptor or no memory is left for one more.
                Err(_) => return Ok((0..pieces.len()).collect()),
            },
        };
        let result = ring.write(pieces);
        if !ring.broken() {
            *place = Some(ring);
        }
        result
    }

    fn take(&self) -> MutexGuard<'_, Option<RingWriter>> {
        let hint = thread_number();
        let place = |step: usize| &self.rings[(hint + step) % self.rings.len()];
        let free = (0..self.rings.len()).find_map(|step| place(step).try_lock());
        free.unwrap_or_else(|| place(0).lock())
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").field("rings", &self.rings.len()).finish_non_exhaustive()
    }
}

/// A small number of the calling thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            let mine = NEXT.fetch_add(1, Ordering::Relaxed);
            number.set(Some(mine));
            mine
        })
    })
}
