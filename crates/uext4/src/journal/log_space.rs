//! How full the log and the running transaction are.

use super::Journal;
use uext4_ondisk::Tid;

/// The log and the running transaction at a moment. Blocks of the log are counted from the start
/// of the journal, in file-system blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSpace {
    /// Blocks of the log.
    pub blocks: u32,
    /// Blocks that hold nothing that a crash would need; one of them is never written.
    pub free: u32,
    /// Next block to be written.
    pub head: u32,
    /// First block that a crash would need; the head, if none.
    pub tail: u32,
    /// Oldest transaction that a crash would need; the running one, if none.
    pub tail_tid: Tid,
    /// Latest durable transaction.
    pub durable_tid: Tid,
    /// The running transaction.
    pub running_tid: Tid,
    /// Its open handles.
    pub handles: u32,
    /// Credits taken: blocks that it has and may still get from open handles.
    pub credits: u32,
    /// Most credits of a transaction.
    pub credits_max: u32,
}

impl Journal {
    /// How full the log is. Waits for nobody.
    #[must_use]
    pub fn log_space(&self) -> LogSpace {
        let running = self.running_state.load();
        let state = self.state.lock();
        let (tail_tid, tail) = state.ring.oldest().unwrap_or((running.tid, state.ring.head));
        LogSpace {
            blocks: if self.map.is_empty() { 0 } else { self.map.len() },
            free: if self.map.is_empty() { 0 } else { state.ring.free + 1 },
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
