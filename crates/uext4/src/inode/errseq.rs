//! Writeback errors, told once to every open handle.
//!
//! What: a sequence that grows with each failure. An open handle remembers where it was; a sync
//! reports the latest failure if the sequence has moved since.
//! Kernel counterpart: `lib/errseq.c`.

use crate::error::Error;
use crate::sync::{LockRank, Mutex};

/// Failures of an inode's writeback.
#[derive(Debug)]
pub struct ErrorSequence {
    latest: Mutex<(u64, Option<Box<Error>>)>,
}

/// What one open handle has been told.
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
    /// A failure happened.
    pub fn record(&self, error: Error) {
        let mut latest = self.latest.lock();
        latest.0 += 1;
        latest.1 = Some(Box::new(error));
    }

    /// A cursor for a handle that is opened now: failures from here on concern it.
    #[must_use]
    pub fn cursor(&self) -> ErrorCursor {
        ErrorCursor { seen: Mutex::new(LockRank::Table, self.latest.lock().0) }
    }

    /// The latest failure that `cursor` has not been told.
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
    fn each_cursor_is_told_once() {
        let sequence = ErrorSequence::default();
        let (a, b) = (sequence.cursor(), sequence.cursor());
        sequence.record(Error::new(ErrorKind::Io, "x"));
        let late = sequence.cursor();
        assert!(sequence.check(&a).is_some() && sequence.check(&a).is_none());
        assert!(sequence.check(&b).is_some() && sequence.check(&late).is_none());
    }
}
