//! Direct requests on their way to the device.
//!
//! What: the start of a request that needs nothing but the device: its read-side critical section,
//! its look-up, and one request of the device for each piece.
//! Invariants: those of `requests`; a look-up takes no lock and reads no tree.
//! Locking: a [`Starting`] holds the queue's lock.

use super::DirectIo;
use super::pieces::{Piece, Places};
use super::queue::{DirectOp, DirectRequest};
use super::requests::{Inner, PIECE_SHIFT, Slot};
use crate::inode::Inode;
use crate::sync::MutexGuard;
use uext4_device::{QueueOp, QueueRequest};

/// The right to start requests of a queue.
pub(super) struct Starting<'a> {
    direct: &'a DirectIo,
    inner: MutexGuard<'a, Inner>,
}

impl<'a> Starting<'a> {
    pub(super) fn new(direct: &'a DirectIo, inner: MutexGuard<'a, Inner>) -> Self {
        Self { direct, inner }
    }

    /// Hands a request to the device, if nothing has to be done but its I/O; else returns it.
    pub(super) fn push(
        &mut self,
        inode: &Inode,
        request: DirectRequest,
    ) -> std::result::Result<(), DirectRequest> {
        let (offset, len) = (request.offset, request.buf.len());
        let durable = request.op == DirectOp::WriteDurable;
        let places = match request.op {
            DirectOp::Read => self.direct.places_to_read(inode, offset, len),
            DirectOp::Write | DirectOp::WriteDurable => {
                self.direct.places_to_write(inode, offset, len, durable)
            }
        };
        match places {
            Some(places) => self.start(request, places),
            None => Err(request),
        }
    }

    /// Hands the pieces of a request to the device, if it takes them all.
    fn start(
        &mut self,
        request: DirectRequest,
        Places { guard, pieces, converts }: Places<'_>,
    ) -> std::result::Result<(), DirectRequest> {
        let inner = &mut *self.inner;
        let Some(device) = &mut inner.device else { return Err(request) };
        if !is_aligned(&request, &pieces, device.alignment()) {
            return Err(request);
        }
        let has_room = pieces.len() == 1 || device.depth() - device.in_flight() >= pieces.len();
        let Some(slot) = inner.free.pop_if(|_| has_room) else { return Err(request) };
        let op = match request.op {
            DirectOp::Read => QueueOp::Read,
            // A write that has to be converted is made durable together with its mapping.
            DirectOp::WriteDurable if self.direct.context.options.barrier && converts.is_none() => {
                QueueOp::WriteDurable
            }
            DirectOp::Write | DirectOp::WriteDurable => QueueOp::Write,
        };
        let DirectRequest { file, op: asked, offset, buf, tag } = request;
        if let [piece] = &pieces[..] {
            let pushed = device.push(QueueRequest { op, offset: piece.at, buf, tag: slot as u64 });
            if let Err(QueueRequest { buf, .. }) = pushed {
                inner.free.push(slot);
                return Err(DirectRequest { file, op: asked, offset, buf, tag });
            }
        } else {
            inner.splits[slot].begin(pieces.len());
            let mut rest = buf;
            for (number, piece) in pieces.iter().enumerate() {
                // The last piece also gets the memory of the buffer behind its length.
                let buf = match number + 1 == pieces.len() {
                    true => std::mem::take(&mut rest),
                    false => rest.split_to(piece.len),
                };
                let tag = (slot | number << PIECE_SHIFT) as u64;
                let pushed = device.push(QueueRequest { op, offset: piece.at, buf, tag });
                pushed.expect("a queue takes what it has room for");
            }
        }
        let (token, pieces) = (guard.into_token(), pieces.len());
        inner.slots[slot] = Some(Slot { file, op: asked, offset, tag, token, pieces, converts });
        Ok(())
    }
}

fn is_aligned(request: &DirectRequest, pieces: &[Piece], alignment: usize) -> bool {
    let mut address = request.buf.as_ptr().addr();
    pieces.iter().all(|piece| {
        let fits = (address | piece.len).is_multiple_of(alignment)
            && piece.at.is_multiple_of(alignment as u64);
        address += piece.len;
        fits
    })
}
