//! The states that a loss of power allows, from a recording.
//!
//! # What
//! Between the return of one flush and that of the next stands a *window*: what the earlier flush
//! promised is there, and of the writes since then any subset, torn. A FUA write is there whole
//! from its return on, so a window falls into *moments*, one for each FUA write and one for its
//! end; a moment has the FUA writes before it and any subset of the others before it.
//!
//! - **Prefix**: every moment with all and with none of its writes.
//! - **Exhaustive**: a moment with at most [`Depth::exhaustive_max`] pieces of 4096 bytes (or of
//!   512, or else whole writes) gives every subset of them.
//! - **Random**: beyond that seeded subsets: of whole writes, of pieces of 4096 and of 512 bytes.
//!
//! With two devices ([`uext4_device::PartDevice`]) a flush promises the writes to its own: a window
//! then ends with the return of a flush of either, and what waits for the other may still be lost.
//!
//! A subset that lacks an earlier write and has a later one is what reordering leaves. The
//! superblock is never torn inside 4096 bytes: that its checksum does not survive a tear between
//! its two sectors is the format's own limit.

use super::digest;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::ops::Range;
use uext4_device::{Device, Event, MemoryDevice, Recording};

/// How much of each moment is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Every subset of so many pieces.
    pub exhaustive_max: u32,
    /// Random subsets of each kind, of a moment with more.
    pub random: u32,
}

/// A state of the medium.
pub(super) struct CrashState {
    /// The bytes.
    pub(super) device: MemoryDevice,
    /// Events before this one have happened.
    pub(super) moment: usize,
    /// Digest of the image.
    pub(super) digest: u128,
    /// What it is, for messages.
    pub(super) name: String,
}

/// Sizes of the pieces in which a write may be on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tear {
    Whole,
    Pages,
    Sectors,
}

/// A part of a write or punch.
struct Piece<'a> {
    offset: u64,
    /// `None`: zeroes (a punch).
    bytes: Option<&'a [u8]>,
    len: u64,
}

/// Walks the windows of a recording in order.
pub(super) struct Windows<'a> {
    recording: &'a Recording,
    /// Start of the image in the medium, whose first page is never torn.
    image_start: u64,
    /// Returns of flushes, rising; the end of the log.
    ends: Vec<usize>,
    next: usize,
    /// Return of the flush before the window.
    begin: usize,
    /// The same of the window before.
    last_begin: usize,
    /// Everything that is promised.
    device: MemoryDevice,
    /// Events before the window that nothing promises yet, rising.
    pending: Vec<usize>,
    digest: u128,
}

/// One window.
pub(super) struct Window {
    /// Its number.
    pub(super) index: usize,
    pending: Vec<usize>,
    begin: usize,
    end: usize,
}

impl<'a> Windows<'a> {
    pub(super) fn new(recording: &'a Recording) -> Windows<'a> {
        Windows::of_image_at(recording, 0)
    }

    /// The same of a medium in which the image begins at a byte.
    pub(super) fn of_image_at(recording: &'a Recording, image_start: u64) -> Windows<'a> {
        let mut ends: Vec<usize> = recording
            .events()
            .iter()
            .filter_map(|event| match event {
                Event::Flush { completed_at, .. } => *completed_at,
                _ => None,
            })
            .collect();
        ends.push(recording.events().len());
        ends.sort_unstable();
        ends.dedup();
        let device = recording.base().snapshot();
        let digest = digest::of_image(&device);
        Windows {
            recording,
            image_start,
            ends,
            next: 0,
            begin: 0,
            last_begin: 0,
            device,
            pending: Vec::new(),
            digest,
        }
    }

    /// The next window.
    pub(super) fn advance(&mut self) -> Option<Window> {
        let end = *self.ends.get(self.next)?;
        let index = self.next;
        // The begin of the window before, and of this one.
        let last_begin = std::mem::replace(&mut self.last_begin, self.begin);
        let begin = std::mem::replace(&mut self.begin, end);
        self.next += 1;
        let events = self.recording.events();
        let promises = promises_before(events, begin);
        let mut waiting = std::mem::take(&mut self.pending);
        waiting.extend(last_begin..begin);
        let (new, pending): (Vec<usize>, Vec<usize>) =
            waiting.into_iter().partition(|&at| is_promised(&promises, at, &events[at]));
        let new = new.iter().map(|&at| &events[at]);
        let pieces: Vec<Piece<'_>> = new.flat_map(|e| pieces(e, Tear::Whole, 0)).collect();
        let pages = pages_of(pieces.iter());
        let before: u128 = sum(&self.device, &pages);
        pieces.iter().for_each(|piece| piece.apply(&self.device));
        self.digest ^= before ^ sum(&self.device, &pages);
        self.pending = pending;
        Some(Window { index, pending: self.pending.clone(), begin, end })
    }

    /// Calls `visit` for each state of the window, until it says no.
    pub(super) fn states(
        &self,
        window: &Window,
        depth: Depth,
        rng: &mut StdRng,
        visit: &mut dyn FnMut(CrashState) -> bool,
    ) {
        let events = self.recording.events();
        // A FUA write that has returned before the window began is there.
        let fua = |at: &usize| matches!(events[*at], Event::Write { fua: true, .. });
        let mut moments: Vec<usize> =
            (window.begin..window.end).filter(fua).filter(|&at| at > window.begin).collect();
        moments.push(window.end);
        for moment in moments {
            let pending = window.pending.iter().copied();
            let waiting: Vec<usize> = pending.chain(window.begin..moment).collect();
            if !self.moment(&waiting, moment, depth, rng, visit) {
                return;
            }
        }
    }

    /// The states of the moment before event `moment`, with the events `waiting` in any subset.
    fn moment(
        &self,
        waiting: &[usize],
        moment: usize,
        depth: Depth,
        rng: &mut StdRng,
        visit: &mut dyn FnMut(CrashState) -> bool,
    ) -> bool {
        let count = |tear| {
            let events = waiting.iter().map(|&at| &self.recording.events()[at]);
            events
                .filter(|event| !is_fua(event))
                .map(|event| pieces(event, tear, self.image_start).len())
                .sum()
        };
        let (sectors, pages, writes): (usize, usize, usize) =
            (count(Tear::Sectors), count(Tear::Pages), count(Tear::Whole));
        let all = |tear, visit: &mut dyn FnMut(CrashState) -> bool| {
            let pieces: usize = count(tear);
            (0..1_u64 << pieces).rev().all(|bits| {
                visit(self.state(waiting, moment, tear, "", &mut |at| bits >> at & 1 == 1))
            })
        };
        let most = depth.exhaustive_max as usize;
        let fits = [(Tear::Sectors, sectors), (Tear::Pages, pages), (Tear::Whole, writes)];
        let exhaustive = fits.iter().find(|(_, count)| *count <= most);
        let go_on = match exhaustive {
            Some((tear, _)) => all(*tear, visit),
            None => {
                visit(self.state(waiting, moment, Tear::Whole, "all", &mut |_| true))
                    && visit(self.state(waiting, moment, Tear::Whole, "none", &mut |_| false))
            }
        };
        let complete = matches!(exhaustive, Some((Tear::Sectors, _)));
        go_on && (complete || self.random(waiting, moment, depth, rng, visit))
    }

    fn random(
        &self,
        waiting: &[usize],
        moment: usize,
        depth: Depth,
        rng: &mut StdRng,
        visit: &mut dyn FnMut(CrashState) -> bool,
    ) -> bool {
        for tear in [Tear::Whole, Tear::Pages, Tear::Sectors] {
            for _ in 0..depth.random {
                let odds = [0.15, 0.5, 0.85][rng.random_range(0..3)];
                let mut choose = |_| rng.random_bool(odds);
                if !visit(self.state(waiting, moment, tear, "random", &mut choose)) {
                    return false;
                }
            }
        }
        true
    }

    /// The state with the chosen pieces of `waiting`.
    fn state(
        &self,
        waiting: &[usize],
        moment: usize,
        tear: Tear,
        how: &str,
        choose: &mut dyn FnMut(usize) -> bool,
    ) -> CrashState {
        let mut chosen = Vec::new();
        let mut bits = String::new();
        let mut number = 0;
        for event in waiting.iter().map(|&at| &self.recording.events()[at]) {
            if is_fua(event) {
                chosen.extend(pieces(event, Tear::Whole, 0));
                continue;
            }
            for piece in pieces(event, tear, self.image_start) {
                let taken = choose(number);
                number += 1;
                if number <= 64 {
                    bits.push(if taken { '1' } else { '0' });
                }
                if taken {
                    chosen.push(piece);
                }
            }
        }
        let device = self.device.snapshot();
        let pages = pages_of(chosen.iter());
        let before = sum(&device, &pages);
        chosen.iter().for_each(|piece| piece.apply(&device));
        let digest = self.digest ^ before ^ sum(&device, &pages);
        let first = waiting.first().copied().unwrap_or(moment);
        let name = format!("{first}..{moment} {how} {tear:?} {bits}");
        CrashState { device, moment, digest, name }
    }
}

/// The states of a medium that keeps the order of writes and promises nothing more: every `step`th
/// prefix of the recording, and the whole. Calls `visit` until it says no.
pub(super) fn prefixes(
    recording: &Recording,
    step: usize,
    visit: &mut dyn FnMut(CrashState) -> bool,
) {
    let device = recording.base().snapshot();
    let events = recording.events();
    for (place, event) in events.iter().enumerate() {
        pieces(event, Tear::Whole, 0).iter().for_each(|piece| piece.apply(&device));
        let moment = place + 1;
        if moment % step != 0 && moment != events.len() {
            continue;
        }
        let device = device.snapshot();
        let digest = digest::of_image(&device);
        let name = format!("0..{moment} in order");
        if !visit(CrashState { device, moment, digest, name }) {
            return;
        }
    }
}

/// A flush: its place, and the bytes that it covers.
type Promise = (usize, Range<u64>);

/// The last flush of each range of bytes that had returned by `moment`.
fn promises_before(events: &[Event], moment: usize) -> Vec<Promise> {
    let mut promises: Vec<Promise> = Vec::new();
    for (at, event) in events[..moment].iter().enumerate().rev() {
        let Event::Flush { completed_at: Some(end), within } = event else { continue };
        if *end <= moment && promises.iter().all(|(_, range)| range != within) {
            promises.push((at, within.clone()));
        }
        // There are two devices at most, and a flush of all.
        if promises.len() == 2 || *within == (0..u64::MAX) && *end <= moment {
            break;
        }
    }
    promises
}

/// Whether the event at `at` is covered by a flush that began after it.
fn is_promised(promises: &[Promise], at: usize, event: &Event) -> bool {
    let offset = match event {
        Event::Write { offset, .. } | Event::Punch { offset, .. } => *offset,
        Event::Flush { .. } | Event::Mark(_) => return true,
    };
    promises.iter().any(|(flush, within)| at < *flush && within.contains(&offset))
}

fn is_fua(event: &Event) -> bool {
    matches!(event, Event::Write { fua: true, .. })
}

/// The parts of an event that are on the medium whole or not at all.
fn pieces(event: &Event, tear: Tear, image_start: u64) -> Vec<Piece<'_>> {
    match event {
        Event::Write { offset, bytes, .. } => match tear {
            Tear::Whole => {
                vec![Piece { offset: *offset, bytes: Some(bytes), len: bytes.len() as u64 }]
            }
            Tear::Pages => split(*offset, bytes, |_| 4096),
            Tear::Sectors => {
                let first_page = image_start..image_start + 4096;
                split(*offset, bytes, |at| if first_page.contains(&at) { 4096 } else { 512 })
            }
        },
        Event::Punch { offset, len, .. } => {
            vec![Piece { offset: *offset, bytes: None, len: *len }]
        }
        Event::Flush { .. } | Event::Mark(_) => Vec::new(),
    }
}

fn split(offset: u64, bytes: &[u8], unit: impl Fn(u64) -> u64) -> Vec<Piece<'_>> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    let mut at = offset;
    while !rest.is_empty() {
        let unit = unit(at);
        let count = ((unit - at % unit) as usize).min(rest.len());
        let (part, tail) = rest.split_at(count);
        parts.push(Piece { offset: at, bytes: Some(part), len: count as u64 });
        at += count as u64;
        rest = tail;
    }
    parts
}

impl Piece<'_> {
    fn apply(&self, device: &MemoryDevice) {
        let done = match self.bytes {
            Some(bytes) => device.write_at(self.offset, bytes),
            None => device.punch(self.offset, self.len).map(drop),
        };
        // The recorded device had the same length and took the same request.
        assert!(done.is_ok(), "a recorded request must fit");
    }
}

fn pages_of<'a>(pieces: impl Iterator<Item = &'a Piece<'a>>) -> BTreeSet<u64> {
    let page = digest::PAGE;
    pieces
        .flat_map(|piece| piece.offset / page..(piece.offset + piece.len).div_ceil(page))
        .map(|number| number * page)
        .collect()
}

fn sum(device: &MemoryDevice, pages: &BTreeSet<u64>) -> u128 {
    pages.iter().fold(0, |sum, &at| sum ^ digest::of_page(device, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use uext4_device::RecordingDevice;

    #[test]
    fn a_flush_promises_what_stood_before_it_once_it_has_returned() {
        let write = || Event::Write { offset: 0, bytes: [1].into(), fua: false, issued_at: 0 };
        let flush = |completed_at| Event::Flush { completed_at, within: 0..u64::MAX };
        let events =
            [write(), flush(Some(3)), write(), write(), flush(None), flush(Some(7)), write()];
        let durable: Vec<usize> = (0..=7)
            .map(|moment| promises_before(&events, moment).first().map_or(0, |(at, _)| *at))
            .collect();
        assert_eq!(durable, [0, 0, 0, 1, 1, 1, 1, 5]);
    }

    /// Two writes, a flush, two writes, a FUA write, one write: every outcome and no other.
    #[test]
    fn all_subsets_come_and_nothing_else() {
        let device = RecordingDevice::over(MemoryDevice::new(32 * 4096));
        let write = |n: u64| device.write_at(n * 8192, &[n as u8 + 1; 512]).unwrap();
        write(0);
        write(1);
        device.flush().unwrap();
        write(2);
        write(3);
        device.write_fua(4 * 8192, &[5; 512]).unwrap();
        write(5);
        let recording = device.recording();
        let mut windows = Windows::new(&recording);
        let mut found = BTreeSet::new();
        let mut rng = StdRng::seed_from_u64(1);
        let depth = Depth { exhaustive_max: 6, random: 2 };
        while let Some(window) = windows.advance() {
            windows.states(&window, depth, &mut rng, &mut |state| {
                assert_eq!(state.digest, digest::of_image(&state.device), "{}", state.name);
                let there = (0..6_u64).map(|n| {
                    let mut byte = [0];
                    state.device.read_at(n * 8192, &mut byte).unwrap();
                    byte[0] != 0
                });
                found.insert(there.collect::<Vec<bool>>());
                true
            });
        }
        let legal = |there: &[bool]| {
            let flushed = there[0] && there[1];
            // What comes after the flush needs it; what comes after the FUA write needs that.
            (flushed || !there[2..].contains(&true)) && (!there[5] || there[4])
        };
        let all = (0..64_u32).map(|bits| (0..6).map(|n| bits >> n & 1 == 1).collect());
        let wanted: BTreeSet<Vec<bool>> = all.filter(|there: &Vec<bool>| legal(there)).collect();
        assert_eq!(found, wanted);
    }

    /// Of two devices each is flushed alone: what the flush of one leaves in the cache of the other
    /// may be lost, and what it promises may not.
    #[test]
    fn a_flush_of_one_device_promises_nothing_of_the_other() {
        let device = std::sync::Arc::new(RecordingDevice::over(MemoryDevice::new(8 * 4096)));
        let parts = [0..4 * 4096, 4 * 4096..8 * 4096]
            .map(|range| uext4_device::PartDevice::recorded(device.clone(), range));
        parts[0].write_at(0, &[1; 512]).unwrap();
        parts[1].write_at(0, &[2; 512]).unwrap();
        parts[1].flush().unwrap();
        parts[1].write_fua(4096, &[3; 512]).unwrap();
        parts[0].flush().unwrap();
        parts[0].write_at(4096, &[4; 512]).unwrap();
        let recording = device.recording();
        let mut windows = Windows::new(&recording);
        let (mut found, mut rng) = (BTreeSet::new(), StdRng::seed_from_u64(1));
        let depth = Depth { exhaustive_max: 6, random: 0 };
        while let Some(window) = windows.advance() {
            windows.states(&window, depth, &mut rng, &mut |state| {
                assert_eq!(state.digest, digest::of_image(&state.device), "{}", state.name);
                found.insert([0, 4, 5, 1].map(|page| {
                    let mut byte = [0];
                    state.device.read_at(page * 4096, &mut byte).unwrap();
                    byte[0] != 0
                }));
                true
            });
        }
        let all = (0..16_u32).map(|bits| [0, 1, 2, 3].map(|n| bits >> n & 1 == 1));
        // The FUA write needs the flush of its own device alone, the last write all before it.
        let legal =
            |[data, log, fua, last]: &[bool; 4]| (!fua || *log) && (!last || *data && *log && *fua);
        assert_eq!(found, all.filter(legal).collect());
    }
}
