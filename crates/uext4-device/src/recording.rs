//! A finished recording, and the states that it allows.
//!
//! # What
//! A finished log over a base image. `recording_device` states the fault model; this module
//! applies it.
//!
//! # Invariants
//! - A [`State`] of [`Recording::states`] holds every event before its position and none after.
//! - [`Recording::states`] and its like take each flush for one of the whole device.
//! - Positions only grow. The `device` of a state is a snapshot, so a caller may replay a journal
//!   on it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::memory::MemoryDevice;

/// One entry of the log. Positions are indices into [`Recording::events`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A completed write.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
        /// Durable by itself.
        fua: bool,
        /// Length of the log when the write was issued. All events before that were complete.
        issued_at: usize,
    },
    /// A completed deallocation; reads as zero.
    Punch {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Length of the log when the punch was issued.
        issued_at: usize,
    },
    /// A flush, at the position where it started.
    Flush {
        /// Length of the log when it returned `Ok`; `None` if it failed or never returned.
        completed_at: Option<usize>,
        /// The bytes that it covers: all, or those of a part ([`PartDevice`](crate::PartDevice)).
        within: Range<u64>,
    },
    /// A mark of the caller.
    Mark(u64),
}

/// The kind of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutKind {
    /// Before the first event.
    Start,
    /// At a completed flush: everything before its start is durable.
    Flush,
    /// Just after a FUA write.
    Fua,
    /// After the last event.
    End,
}

/// A position in the log at which the power may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The kind.
    pub kind: CutKind,
    /// The events before this position are applied.
    pub position: usize,
}

/// The bytes of the medium at a cut.
#[derive(Debug)]
pub struct State {
    /// Number of the state in [`Recording::states`], from 0.
    pub index: usize,
    /// The kind of its cut.
    pub kind: CutKind,
    /// The events before this position are applied.
    pub position: usize,
    /// Writes and punches since the previous state; 0 means that the bytes are the same.
    pub changes: usize,
    /// The bytes, which the caller may change.
    pub device: MemoryDevice,
}

/// A log of events over a base image.
#[derive(Debug, Clone)]
pub struct Recording {
    base: Arc<MemoryDevice>,
    events: Vec<Event>,
}

impl Recording {
    pub(crate) fn new(base: Arc<MemoryDevice>, events: Vec<Event>) -> Recording {
        Recording { base, events }
    }

    /// The bytes before the first event.
    #[must_use]
    pub fn base(&self) -> &MemoryDevice {
        &self.base
    }

    /// The log.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Number of flushes that completed.
    #[must_use]
    pub fn flush_count(&self) -> usize {
        self.flush_positions().count()
    }

    /// Every cut in the order of the log: start, each completed flush and FUA write, end.
    #[must_use]
    pub fn cuts(&self) -> Vec<Cut> {
        let mut cuts = vec![Cut { kind: CutKind::Start, position: 0 }];
        for (position, event) in self.events.iter().enumerate() {
            match event {
                Event::Flush { completed_at: Some(_), .. } => {
                    cuts.push(Cut { kind: CutKind::Flush, position });
                }
                Event::Write { fua: true, .. } => {
                    cuts.push(Cut { kind: CutKind::Fua, position: position + 1 });
                }
                _ => {}
            }
        }
        cuts.push(Cut { kind: CutKind::End, position: self.events.len() });
        cuts
    }

    /// The state at each cut. Each costs only its own changes.
    #[must_use]
    pub fn states(&self) -> States<'_> {
        States {
            recording: self,
            current: self.base.snapshot(),
            position: 0,
            cuts: self.cuts().into_iter().enumerate(),
        }
    }

    /// The prefix cut at the start of completed flush `k` (from 0), `None` if there are fewer.
    #[must_use]
    pub fn state_at_flush(&self, k: usize) -> Option<MemoryDevice> {
        self.flush_positions().nth(k).map(|position| self.prefix(position))
    }

    /// The base with the first `position` events applied.
    ///
    /// # Panics
    /// If the log is shorter than `position`.
    #[must_use]
    pub fn prefix(&self, position: usize) -> MemoryDevice {
        let device = self.base.snapshot();
        for event in &self.events[..position] {
            apply(event, &device);
        }
        device
    }

    /// Positions of the writes and punches that may or may not be on the medium when the power
    /// fails just before the flush after completed flush `k` has returned: those between the start
    /// of flush `k` and the end of the next one (or of the log). Any subset of them that are not
    /// FUA, torn at sectors, is a legal outcome. `k = None`: before the first flush.
    #[must_use]
    pub fn unflushed_after(&self, k: Option<usize>) -> Vec<usize> {
        let next = k.map_or(0, |k| k + 1);
        let start = match k {
            None => 0,
            Some(k) => self.flush_positions().nth(k).unwrap_or(self.events.len()),
        };
        let end = self
            .flush_positions()
            .nth(next)
            .and_then(|position| match self.events[position] {
                Event::Flush { completed_at, .. } => completed_at,
                _ => None,
            })
            .unwrap_or(self.events.len());
        (start..end.max(start)).filter(|at| self.events[*at].changes_bytes()).collect()
    }

    /// The prefix before `position`, followed by the events at `chosen` in that order.
    ///
    /// # Panics
    /// If a position is not in the log.
    #[must_use]
    pub fn state_with(&self, position: usize, chosen: &[usize]) -> MemoryDevice {
        let device = self.prefix(position);
        for at in chosen {
            apply(&self.events[*at], &device);
        }
        device
    }

    /// The caller's marks before a position, in the order of the log.
    pub fn marks_before(&self, position: usize) -> impl Iterator<Item = u64> + '_ {
        self.events[..position].iter().filter_map(|event| match event {
            Event::Mark(number) => Some(*number),
            _ => None,
        })
    }

    fn flush_positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.events.iter().enumerate().filter_map(|(position, event)| {
            matches!(event, Event::Flush { completed_at: Some(_), .. }).then_some(position)
        })
    }
}

impl Event {
    fn changes_bytes(&self) -> bool {
        matches!(self, Event::Write { .. } | Event::Punch { .. })
    }
}

/// Iterator over the states of a recording: see [`Recording::states`].
#[derive(Debug)]
pub struct States<'a> {
    recording: &'a Recording,
    current: MemoryDevice,
    position: usize,
    cuts: std::iter::Enumerate<std::vec::IntoIter<Cut>>,
}

impl Iterator for States<'_> {
    type Item = State;

    fn next(&mut self) -> Option<State> {
        let (index, cut) = self.cuts.next()?;
        let new = &self.recording.events[self.position..cut.position];
        for event in new {
            apply(event, &self.current);
        }
        self.position = cut.position;
        Some(State {
            index,
            kind: cut.kind,
            position: cut.position,
            changes: new.iter().filter(|event| event.changes_bytes()).count(),
            device: self.current.snapshot(),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.cuts.size_hint()
    }
}

impl ExactSizeIterator for States<'_> {}

fn apply(event: &Event, device: &MemoryDevice) {
    let result: io::Result<()> = match event {
        Event::Write { offset, bytes, .. } => device.write_at(*offset, bytes),
        Event::Punch { offset, len, .. } => device.punch(*offset, *len).map(drop),
        Event::Flush { .. } | Event::Mark(_) => Ok(()),
    };
    // The wrapped device had the same length and took the same request.
    assert!(result.is_ok(), "a recorded request must fit its own base: {event:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording_device::RecordingDevice;

    fn bytes(device: &MemoryDevice) -> Vec<u8> {
        let mut all = vec![0; 4];
        device.read_at(0, &mut all).unwrap();
        all
    }

    fn sample() -> Recording {
        let memory = MemoryDevice::new(4096);
        memory.write_at(0, &[7, 7, 7, 7]).unwrap();
        let device = RecordingDevice::over(memory);
        device.write_at(0, &[1]).unwrap(); // 0
        device.flush().unwrap(); // 1
        device.write_vectored_at(1, &[&[2], &[3]]).unwrap(); // 2
        device.mark(5); // 3
        device.write_fua(3, &[4]).unwrap(); // 4
        device.punch(0, 1).unwrap(); // 5
        device.flush().unwrap(); // 6
        device.write_at(0, &[9]).unwrap(); // 7
        device.recording()
    }

    #[test]
    fn states_are_the_prefixes_at_each_cut() {
        let recording = sample();
        let seen: Vec<_> = recording
            .states()
            .map(|state| (state.kind, state.position, state.changes, bytes(&state.device)))
            .collect();
        assert_eq!(
            seen,
            [
                (CutKind::Start, 0, 0, vec![7, 7, 7, 7]),
                (CutKind::Flush, 1, 1, vec![1, 7, 7, 7]),
                (CutKind::Fua, 5, 2, vec![1, 2, 3, 4]),
                (CutKind::Flush, 6, 1, vec![0, 2, 3, 4]),
                (CutKind::End, 8, 1, vec![9, 2, 3, 4]),
            ]
        );
        assert_eq!(recording.states().len(), 5);
        assert_eq!(bytes(&recording.state_at_flush(1).unwrap()), [0, 2, 3, 4]);
        assert!(recording.state_at_flush(2).is_none());
        assert_eq!(recording.marks_before(4).collect::<Vec<_>>(), [5]);
        assert_eq!(recording.marks_before(3).count(), 0);
    }

    #[test]
    fn unflushed_writes_can_be_chosen() {
        let recording = sample();
        assert_eq!(recording.unflushed_after(None), [0]);
        assert_eq!(recording.unflushed_after(Some(0)), [2, 4, 5]);
        assert_eq!(recording.unflushed_after(Some(1)), [7]);
        assert_eq!(recording.unflushed_after(Some(9)), [0; 0]);
        assert_eq!(bytes(&recording.state_with(1, &[5, 4])), [0, 7, 7, 4]);
    }

    /// A crash may keep any of the writes of one call and lose the others.
    #[test]
    fn each_of_several_writes_is_an_event() {
        let device = RecordingDevice::over(MemoryDevice::new(4096));
        let run = |offset| crate::WriteRun { offset, bufs: &[&[1], &[2]] };
        device.write_many(&[run(0), run(2)]).unwrap();
        let recording = device.recording();
        assert_eq!(recording.unflushed_after(None), [0, 1]);
        assert_eq!(bytes(&recording.state_with(0, &[1])), [0, 0, 1, 2]);
    }

    #[test]
    fn a_state_is_the_callers_to_change() {
        let recording = sample();
        for state in recording.states() {
            state.device.write_at(0, &[0xee; 4096]).unwrap();
        }
        assert_eq!(bytes(recording.base()), [7, 7, 7, 7]);
        assert_eq!(bytes(&recording.states().last().unwrap().device), [9, 2, 3, 4]);
    }
}
