//! One connection in use: many threads send requests, one thread reads replies.
//!
//! # Locking
//! `sending` orders what is sent; `tls` is held to encrypt or decrypt, never while the socket is
//! waited for, so that a full socket in one direction does not stop the other.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;

use parking_lot::Mutex;
use rustls::ClientConnection;
use zerocopy::IntoBytes;

use crate::stream::Wire;
use crate::wire::{RawRequest, command};

/// Most bytes that are encrypted at once: a TLS record.
const RECORD: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Which connection of the device it is; none has the same number later.
    pub(crate) number: u64,
    wire: Wire,
    sending: Mutex<()>,
    tls: Option<Mutex<ClientConnection>>,
}

impl Link {
    pub(crate) fn new(number: u64, wire: Wire, tls: Option<ClientConnection>) -> Self {
        Self { number, wire, sending: Mutex::new(()), tls: tls.map(Mutex::new) }
    }

    /// Sends a request: its header, and its data if it has any.
    pub(crate) fn send(&self, header: &RawRequest, data: &[u8]) -> io::Result<()> {
        let header = header.as_bytes();
        let _order = self.sending.lock();
        let Some(tls) = &self.tls else {
            return self.wire.write_slices(&mut [IoSlice::new(header), IoSlice::new(data)]);
        };
        let mut first = header.to_vec();
        let (with_header, rest) = data.split_at(data.len().min(RECORD - header.len()));
        first.extend(with_header);
        let mut encrypted = Vec::new();
        for record in std::iter::once(&*first).chain(rest.chunks(RECORD)) {
            encrypted.clear();
            let mut tls = tls.lock();
            tls.writer().write_all(record)?;
            while tls.wants_write() {
                tls.write_tls(&mut encrypted)?;
            }
            drop(tls);
            (&self.wire).write_all(&encrypted)?;
        }
        Ok(())
    }

    /// Sends nothing more. The server executes what it was sent, and ends the connection.
    pub(crate) fn finish(&self) {
        self.wire.shut_down(Shutdown::Write);
    }

    /// Tells the server that this is the end, unless another thread is sending.
    pub(crate) fn say_goodbye(&self) {
        let Some(free) = self.sending.try_lock() else { return };
        drop(free);
        // Whether it hears this does not matter.
        let _ = self.wire.hurry();
        let _ = self.send(&RawRequest::new(command::DISCONNECT, 0, 0, 0, 0), &[]);
    }

    /// Ends the connection without what was not sent yet, once nobody has it any more; the thread
    /// that reads returns.
    pub(crate) fn cut_off(&self) {
        self.wire.cut_off();
    }

    /// Ends the connection; the thread that reads returns.
    pub(crate) fn shut_down(&self) {
        self.wire.shut_down(Shutdown::Both);
    }
}

/// What one thread reads from a connection.
pub(crate) struct Incoming<'a> {
    link: &'a Link,
    /// Bytes of the wire that TLS has not taken yet.
    raw: Vec<u8>,
    taken: usize,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(link: &'a Link) -> Self {
        Self { link, raw: Vec::new(), taken: 0 }
    }

    fn read_encrypted(
        &mut self,
        tls: &Mutex<ClientConnection>,
        buf: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            let mut state = tls.lock();
            match state.reader().read(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.taken < self.raw.len() {
                let mut left = &self.raw[self.taken..];
                self.taken += state.read_tls(&mut left)?;
                state.process_new_packets().map_err(io::Error::other)?;
                continue;
            }
            drop(state);
            self.raw.resize(4 * RECORD, 0);
            let read = (&self.link.wire).read(&mut self.raw);
            self.raw.truncate(*read.as_ref().unwrap_or(&0));
            self.taken = 0;
            if read? == 0 {
                return Ok(0);
            }
        }
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.link.tls {
            None => (&self.link.wire).read(buf),
            Some(tls) => self.read_encrypted(tls, buf),
        }
    }
}
