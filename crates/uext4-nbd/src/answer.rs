//! What a request comes back with, and the wait for it.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// What a served request has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// The bytes of a read.
    Bytes(Vec<u8>),
    /// Lengths from the request's offset on, and the flags of each.
    Extents(Vec<(u32, u32)>),
}

/// Where the answer goes.
#[derive(Debug)]
pub(crate) struct Sink(SyncSender<io::Result<Content>>);

impl Sink {
    pub(crate) fn put(self, result: io::Result<Content>) {
        // Nobody waits for it any more.
        let _ = self.0.try_send(result);
    }
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Ticket(Receiver<io::Result<Content>>);

impl Ticket {
    pub(crate) fn new() -> (Sink, Self) {
        let (sender, receiver) = sync_channel(1);
        (Sink(sender), Self(receiver))
    }

    /// Waits for the answer, but no longer than that.
    pub(crate) fn wait_for(self, time: Duration) -> io::Result<Content> {
        let gone = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"));
        self.0.recv_timeout(time).unwrap_or_else(gone)
    }

    /// Waits for the answer.
    pub(crate) fn wait(self) -> io::Result<Content> {
        let gone = |_| Err(io::Error::new(io::ErrorKind::NotConnected, "the device was closed"));
        self.0.recv().unwrap_or_else(gone)
    }
}
