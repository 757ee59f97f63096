//! The use of the log and of the running transaction.

use super::Journal;
use uext4_ondisk::Tid;

/// The use of the log and of the running transaction at one moment. Positions and sizes are in
/// file-system blocks; positions count from the start of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSpace {
    /// Blocks of the log.
    pub blocks: u32,
    /// Blocks that recovery would not need. One of them is never written.
    pub free: u32,
    /// Next block to be written.
    pub head: u32,
    /// First block that recovery would need; the head if there is none.
    pub tail: u32,
    /// Oldest transaction that recovery would need; the running one if there is none.
    pub tail_tid: Tid,
    /// Latest durable transaction.
    pub durable_tid: Tid,
    /// The running transaction.
    pub running_tid: Tid,
    /// Its open handles.
    pub handles: u32,
    /// Credits taken: blocks that it has or may still get from open handles and reservations.
    pub credits: u32,
    /// Most credits of a transaction.
    pub credits_max: u32,
}

impl Journal {
    /// The use of the log now. Does not wait.
    #[must_use]
    pub fn log_space(&self) -> LogSpace {
        let running = self.running_state.load();
        let state = self.state.lock();
        let (tail_tid, tail) = state.ring.oldest().unwrap_or((running.tid, state.ring.head));
        LogSpace {
            blocks: if self.has_log() { self.map.len() } else { 0 },
            free: if self.has_log() { state.ring.free + 1 } else { 0 },
            head: state.ring.head,
            tail,
            tail_tid,
            durable_tid: state.durable,
            running_tid: running.tid,
            handles: running.handles,
            credits: running.credits,
            credits_max: self.credits_max,
        }
    }
}
