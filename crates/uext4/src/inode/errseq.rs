//! Writeback errors, reported once to every open handle.
//!
//! What: a sequence number that grows with each failure. An open handle remembers the number that
//! it saw last; a sync reports the latest failure if the number has grown since.
//! Kernel counterpart: `lib/errseq.c`.

use crate::error::Error;
use crate::sync::{LockRank, Mutex};

/// Failures of an inode's writeback.
#[derive(Debug)]
pub struct ErrorSequence {
    latest: Mutex<(u64, Option<Box<Error>>)>,
}

/// The failures that one open handle has reported.
#[derive(Debug)]
pub struct ErrorCursor {
    seen: Mutex<u64>,
}

impl Default for ErrorSequence {
    fn default() -> Self {
        Self { latest: Mutex::new(LockRank::Leaf, (0, None)) }
    }
}

impl ErrorSequence {
    /// Records a failure.
    pub fn record(&self, error: Error) {
        let mut latest = self.latest.lock();
        latest.0 += 1;
        latest.1 = Some(Box::new(error));
    }

    /// A cursor for a handle that is opened now: it reports failures from here on.
    #[must_use]
    pub fn cursor(&self) -> ErrorCursor {
        ErrorCursor { seen: Mutex::new(LockRank::Table, self.latest.lock().0) }
    }

    /// The latest failure, if `cursor` has not reported it yet.
    #[must_use]
    pub fn check(&self, cursor: &ErrorCursor) -> Option<Error> {
        let mut seen = cursor.seen.lock();
        let latest = self.latest.lock();
        if *seen == latest.0 {
            return None;
        }
        *seen = latest.0;
        latest.1.as_deref().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn each_cursor_reports_a_failure_once() {
        let sequence = ErrorSequence::default();
        let (a, b) = (sequence.cursor(), sequence.cursor());
        sequence.record(Error::new(ErrorKind::Io, "x"));
        let late = sequence.cursor();
        assert!(sequence.check(&a).is_some() && sequence.check(&a).is_none());
        assert!(sequence.check(&b).is_some() && sequence.check(&late).is_none());
    }
}
