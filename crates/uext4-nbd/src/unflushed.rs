//! Changes that a server may forget: what was complete since the last flush.
//!
//! # What
//! A map of the ranges that were changed, each with the newest change of it. When a server is
//! reached again, they are made once more. Changes in flight are not here: their requests are sent
//! again, after that.
//!
//! # Invariants
//! - Pieces do not overlap, so their order does not matter.
//! - A change is entered when it is complete, so one that fails leaves what it would have replaced.
//! - A piece goes with a flush only if its change was complete when the flush began. A change that
//!   is durable by itself takes what it replaces out, and is not kept: where nothing is kept, there
//!   is nothing to flush.
//! - No more than twice the bytes are held that are counted: what is left of a piece shares its
//!   memory only while it is at least half of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What happens to a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// These bytes.
    Data(Arc<[u8]>),
    /// Zeroes.
    Zeroes,
    /// Its bytes are not needed.
    Trim,
}

/// A piece of a change.
#[derive(Clone, Debug)]
struct Piece {
    len: u64,
    change: Change,
    /// Where in the data the piece begins.
    from: usize,
    /// When it was complete.
    epoch: u64,
}

impl Piece {
    fn bytes(&self) -> usize {
        PIECE_BYTES + if let Change::Data(_) = self.change { size(self.len) } else { 0 }
    }

    /// What lies in a range of the piece.
    fn part(&self, part: Range<u64>) -> Self {
        let from = self.from + size(part.start);
        let len = part.end - part.start;
        match &self.change {
            Change::Data(data) if size(len) < data.len() / 2 => {
                let change = Change::Data(Arc::from(&data[from..from + size(len)]));
                Self { len, change, from: 0, epoch: self.epoch }
            }
            _ => Self { len, from, ..self.clone() },
        }
    }
}

/// A length that is that of bytes in memory.
fn size(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// A change to be made once more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) change: Change,
}

/// The changes since the last flush.
#[derive(Debug)]
pub(crate) struct Unflushed {
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
    epoch: u64,
}

/// What a piece takes besides its bytes.
const PIECE_BYTES: usize = 128;

impl Unflushed {
    pub(crate) fn new() -> Self {
        Self { pieces: BTreeMap::new(), bytes: 0, epoch: 1 }
    }

    /// Memory that is held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A change that is complete.
    pub(crate) fn complete(&mut self, offset: u64, len: u64, change: &Change) {
        self.cut_out(offset, offset + len);
        let piece = Piece { len, change: change.clone(), from: 0, epoch: self.epoch };
        self.put(offset, piece);
    }

    /// A change that is complete and durable.
    pub(crate) fn complete_durably(&mut self, offset: u64, len: u64) {
        self.cut_out(offset, offset + len);
    }

    /// Whether all that is complete is durable.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// A flush begins. It covers what is complete; its number is for [`Self::flushed`].
    pub(crate) fn begin_flush(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    /// A flush has ended well.
    pub(crate) fn flushed(&mut self, flush: u64) {
        let mut freed = 0;
        self.pieces.retain(|_, piece| {
            let stays = piece.epoch > flush;
            freed += if stays { 0 } else { piece.bytes() };
            stays
        });
        self.bytes -= freed;
    }

    /// All changes that are kept.
    pub(crate) fn again(&self) -> Vec<Again> {
        let again = |(offset, piece): (&u64, &Piece)| {
            let change = match &piece.change {
                Change::Data(data) if data.len() != size(piece.len) => {
                    Change::Data(Arc::from(&data[piece.from..piece.from + size(piece.len)]))
                }
                change => change.clone(),
            };
            Again { offset: *offset, len: piece.len, change }
        };
        self.pieces.iter().map(again).collect()
    }

    /// Takes a range out of all pieces.
    fn cut_out(&mut self, from: u64, to: u64) {
        let before = self.pieces.range(..from).next_back().map(|(offset, _)| *offset);
        let inside = self.pieces.range(from..to).map(|(offset, _)| *offset);
        let touched: Vec<u64> = before.into_iter().chain(inside).collect();
        for offset in touched {
            let end = offset + self.pieces[&offset].len;
            if end <= from {
                continue;
            }
            let Some(piece) = self.pieces.remove(&offset) else { continue };
            self.bytes -= piece.bytes();
            for (start, stop) in [(offset, from.min(end)), (to.max(offset), end)] {
                if start < stop {
                    self.put(start, piece.part(start - offset..stop - offset));
                }
            }
        }
    }

    fn put(&mut self, offset: u64, piece: Piece) {
        self.bytes += piece.bytes();
        self.pieces.insert(offset, piece);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPACE: usize = 24;

    /// A step of the model.
    #[derive(Clone, Debug)]
    enum Step {
        /// A complete change: offset, length, kind.
        Complete(usize, usize, u8),
        /// A change that is durable when it is complete: offset, length.
        Durable(usize, usize),
        /// A flush begins; the one before it has ended, well or not.
        Flush(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let complete = (0..SPACE, 1..SPACE, 0..3_u8);
        let step = prop_oneof![
            5 => complete.prop_map(|(at, len, kind)| Step::Complete(at, len, kind)),
            2 => (0..SPACE, 1..SPACE).prop_map(|(at, len)| Step::Durable(at, len)),
            1 => any::<bool>().prop_map(Step::Flush),
        ];
        prop::collection::vec(step, 1..80)
    }

    proptest! {
        /// Fault model: a change is lost, is older than another of its range, or stays for ever.
        /// A server holds what the last flush covered; a replay must give the newest bytes.
        #[test]
        fn a_replay_makes_what_a_server_forgot(steps in steps()) {
            let mut log = Unflushed::new();
            let (mut newest, mut durable) = ([0_u8; SPACE], [0_u8; SPACE]);
            // A flush that runs: its number, and what it covers.
            let mut running: Option<(u64, [u8; SPACE])> = None;
            let mut content = 0_u8;
            for step in steps {
                match step {
                    Step::Complete(at, len, kind) => {
                        let len = len.min(SPACE - at);
                        content = content.wrapping_add(1).max(1);
                        let (byte, change) = match kind {
                            0 => (0, Change::Zeroes),
                            _ => (content, Change::Data(vec![content; len].into())),
                        };
                        log.complete(at as u64, len as u64, &change);
                        newest[at..at + len].fill(byte);
                    }
                    Step::Durable(at, len) => {
                        let len = len.min(SPACE - at);
                        content = content.wrapping_add(1).max(1);
                        log.complete_durably(at as u64, len as u64);
                        newest[at..at + len].fill(content);
                        durable[at..at + len].fill(content);
                        // The flush under way does not undo it.
                        if let Some((_, covered)) = &mut running {
                            covered[at..at + len].fill(content);
                        }
                    }
                    Step::Flush(ends_well) => {
                        if let Some((flush, covered)) = running.take().filter(|_| ends_well) {
                            durable = covered;
                            log.flushed(flush);
                        }
                        running = Some((log.begin_flush(), newest));
                    }
                }
                let mut replayed = durable;
                for again in log.again() {
                    let (at, len) = (size(again.offset), size(again.len));
                    match again.change {
                        Change::Data(data) => replayed[at..at + len].copy_from_slice(&data),
                        _ => replayed[at..at + len].fill(0),
                    }
                }
                prop_assert_eq!(replayed, newest);
                prop_assert!(!log.is_empty() || durable == newest, "nothing to flush");
            }
            let flush = log.begin_flush();
            log.flushed(flush);
            prop_assert_eq!((log.bytes(), log.again().len()), (0, 0));
        }
    }

    /// Fault model: what is left of large writes holds all of their memory.
    #[test]
    fn what_is_left_of_a_piece_does_not_hold_the_rest() {
        let mut log = Unflushed::new();
        let large = Change::Data(vec![1; 1 << 20].into());
        log.complete(0, 1 << 20, &large);
        log.complete(4096, (1 << 20) - 4096, &Change::Zeroes);
        let Change::Data(left) = &log.pieces[&0].change else { panic!("zeroes") };
        assert_eq!((left.len(), log.bytes()), (4096, 4096 + 2 * PIECE_BYTES));
    }
}
