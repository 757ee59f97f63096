//! The stream of an archive on its way out: one thread fills buffers, another one compresses and
//! writes them.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use uext4_archive::{Encoder, Format};

/// Bytes of a buffer.
const BUFFER_BYTES: usize = 1 << 20;
/// Buffers that may wait for the thread that writes.
const BUFFERS_MAX: usize = 3;

/// The side that fills.
pub(super) struct Filling {
    buffer: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

/// The side that writes.
pub(super) struct Writing {
    full: Receiver<Vec<u8>>,
    empty: Sender<Vec<u8>>,
}

/// Both sides.
pub(super) fn new() -> (Filling, Writing) {
    let (full_in, full_out) = sync_channel(BUFFERS_MAX);
    let (empty_in, empty_out) = channel();
    let buffer = Vec::with_capacity(BUFFER_BYTES);
    let filling = Filling { buffer, full: full_in, empty: empty_out };
    (filling, Writing { full: full_out, empty: empty_in })
}

impl Filling {
    fn pass_on(&mut self) -> io::Result<()> {
        let next = self.empty.try_recv();
        let next = next.unwrap_or_else(|_| Vec::with_capacity(BUFFER_BYTES));
        let full = std::mem::replace(&mut self.buffer, next);
        // The other side has gone only after a failure, which it tells itself.
        self.full.send(full).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Filling {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() == BUFFER_BYTES {
            self.pass_on()?;
        }
        let count = bytes.len().min(BUFFER_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.pass_on() }
    }
}

impl Writing {
    /// Writes until the other side is gone.
    pub(super) fn run(self, format: Format, out: impl Write) -> io::Result<()> {
        let mut encoder = Encoder::new(format, out)?;
        for mut buffer in self.full {
            encoder.write_all(&buffer)?;
            buffer.clear();
            // The other side may have ended.
            let _ = self.empty.send(buffer);
        }
        encoder.finish()?.flush()
    }
}
