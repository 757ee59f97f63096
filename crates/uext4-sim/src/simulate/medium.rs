//! The simulated device.
//!
//! # What
//! Requests take simulated time, so that others run meanwhile; several are under way at once.
//! Writes are volatile until a flush that began after their end has returned. At a drawn request
//! the power fails: every request fails from then on, and [`Medium::after_power_loss`] gives an
//! image with everything durable and a drawn part of the rest, some of it torn; as
//! [`Medium::at_this_moment`] does of a power loss that might be now. A read gives what was there
//! when it began, or when it ends.
//!
//! # Failures
//! - For a stretch of time, or of requests, writes fail, with EIO or ENOSPC.
//! - A thread that has asked for [`Medium::trouble`] has one of its next requests fail.
//!
//! # Invariants
//! No lock is held while a request sleeps. The superblock is never torn: that its checksum stands
//! in its second sector is the format's own limit.

use super::plan::Speed;
use super::scene::Failing;
use crate::oracle::JUNK;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Duration;
use uext4_device::{Device, MemoryDevice, WriteRun};
use uext4_schedule::time::Instant;
use uext4_schedule::{thread, witness};

/// Bytes that no loss of power tears: the superblock.
const WHOLE: u64 = 4096;

/// A device whose every decision a seed draws.
#[derive(Debug)]
pub struct Medium {
    /// What a read finds.
    now: MemoryDevice,
    /// What is promised.
    durable: MemoryDevice,
    speed: Speed,
    discards: bool,
    /// It says of itself that it is behind a network.
    is_far: bool,
    /// Requests are printed.
    tells: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: StdRng,
    requests: u64,
    flushes: u64,
    cut_at: Option<u64>,
    is_off: bool,
    /// Writes fail in this stretch of time.
    failing: Option<(Stretch, bool)>,
    /// Writes and flushes that failed.
    failed: u64,
    /// Requests that a thread has left until one fails.
    trouble: HashMap<usize, u32>,
    /// One of these has failed.
    has_troubled: bool,
    /// Writes that no flush has promised, in the order of their ends; those under way last.
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// What the engine was at when the power failed.
    stage: Option<String>,
}

/// When writes fail.
#[derive(Clone, Copy, Debug)]
enum Stretch {
    Time(Instant, Instant),
    Requests(u64, u64),
    Flushes(u64, u64),
}

/// How long a request takes.
#[derive(Clone, Copy, Debug, Default)]
struct Takes {
    time: Duration,
    /// It takes longer: until others have ended so many iterations.
    iterations: u32,
    /// A read gives what was there at first.
    is_old: bool,
}

/// Most bytes at each end of a discarded range that change.
const SCRIBBLED: u64 = 32 << 10;

/// Longest time of a request that waits for iterations of others.
const LINGER_MAX: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
struct Pending {
    offset: u64,
    bytes: Vec<u8>,
    has_ended: bool,
}

/// Behind every number of a write that has ended.
const UNDER_WAY: u64 = 1 << 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Read,
    Write,
    Flush,
    Discard,
}

/// Not as good as others, but of megabytes in a second.
fn hash(bytes: &[u8]) -> u64 {
    let mix =
        |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    let number = |word: &[u8]| word.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    bytes.chunks(8).fold(bytes.len() as u64, |hash, word| mix(hash, number(word)))
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

impl Medium {
    /// Over an image that is durable.
    pub(super) fn new(image: &MemoryDevice, seed: u64, speed: Speed, discards: bool) -> Medium {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            requests: 0,
            flushes: 0,
            cut_at: None,
            is_off: false,
            failing: None,
            failed: 0,
            trouble: HashMap::new(),
            has_troubled: false,
            pending: BTreeMap::new(),
            next: 0,
            stage: None,
        };
        let state = Mutex::new(state);
        let (now, durable) = (image.snapshot(), image.snapshot());
        Medium { now, durable, speed, discards, is_far: false, tells: false, state }
    }

    /// It says of itself that it is behind a network, and writes through.
    pub(super) fn far(self, is_far: bool) -> Medium {
        Medium { is_far, ..self }
    }

    /// Requests are printed.
    pub(super) fn verbose(self, tells: bool) -> Medium {
        Medium { tells, ..self }
    }

    /// The power fails at the request so many from now.
    pub(super) fn cut_at(&self, request: u64) {
        let mut state = self.state.lock();
        state.cut_at = Some(state.requests + request);
    }

    /// The power fails now.
    pub(super) fn cut_now(&self) {
        let mut state = self.state.lock();
        if !state.is_off {
            state.is_off = true;
            state.stage = Some(uext4_schedule::stages());
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.state.lock().is_off
    }

    /// Writes fail for some time, from now on reckoned.
    pub(super) fn fail_writes(&self, failing: Failing, for_space: bool) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let stretch = match failing {
            Failing::Time { begin, length } => Stretch::Time(now + begin, now + begin + length),
            Failing::Requests { first, count } => {
                let first = state.requests + first;
                Stretch::Requests(first, first + count)
            }
            Failing::Flushes { first, count } => {
                let first = state.flushes + first;
                Stretch::Flushes(first, first + count)
            }
        };
        state.failing = Some((stretch, for_space));
    }

    /// The device works from now on.
    pub(super) fn mend(&self) {
        self.state.lock().failing = None;
    }

    /// Whether a write or flush has failed while the power was on.
    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().failed > 0
    }

    /// One of the next requests of the calling thread fails.
    pub(super) fn trouble(&self, requests: u32) {
        self.state.lock().trouble.insert(thread::number(), requests);
    }

    /// Takes [`Medium::trouble`] back; whether it has struck.
    pub(super) fn calm(&self) -> bool {
        self.state.lock().trouble.remove(&thread::number()) == Some(u32::MAX)
    }

    /// Whether the calling thread's trouble has struck.
    pub(super) fn has_struck(&self) -> bool {
        self.state.lock().trouble.get(&thread::number()) == Some(&u32::MAX)
    }

    /// Whether the trouble of any thread has struck.
    pub(super) fn has_troubled(&self) -> bool {
        self.state.lock().has_troubled
    }

    /// What the engine was at when the power failed.
    pub(super) fn stage(&self) -> Option<String> {
        self.state.lock().stage.clone()
    }

    /// The image that a loss of power leaves: what is durable, and a part of the rest.
    pub(super) fn after_power_loss(&self) -> MemoryDevice {
        let mut state = self.state.lock();
        state.is_off = true;
        let roll = state.rng.random_range(0..8);
        self.image(&mut state, roll)
    }

    /// The image that a loss of power would leave now. Often nothing but what is durable, for that
    /// shows what was promised too early.
    pub(super) fn at_this_moment(&self) -> MemoryDevice {
        let mut state = self.state.lock();
        let roll = state.rng.random_range(0..8);
        let roll = if state.rng.random_bool(0.4) { 0 } else { roll };
        self.image(&mut state, roll)
    }

    fn image(&self, state: &mut State, roll: u32) -> MemoryDevice {
        let image = self.durable.snapshot();
        let State { rng, pending, .. } = state;
        // All, none, whole writes, pages, sectors.
        let piece = match roll {
            0 => return image,
            1 => None,
            2..=4 => Some(u64::MAX),
            5 => Some(4096),
            _ => Some(512),
        };
        let odds = rng.random_range(10..=90);
        for write in pending.values() {
            let mut at = 0;
            let len = write.bytes.len() as u64;
            while at < len {
                let place = write.offset + at;
                let size = match piece {
                    Some(piece) if place < WHOLE => piece.max(WHOLE),
                    Some(piece) => piece,
                    None => u64::MAX,
                };
                // Pieces are pieces of the device, not of the write.
                let end = place.checked_next_multiple_of(size).unwrap_or(u64::MAX);
                let end = if end == place { place.saturating_add(size) } else { end };
                let count = (end - place).min(len - at);
                if piece.is_none() || rng.random_range(0..100) < odds {
                    let bytes = &write.bytes[at as usize..(at + count) as usize];
                    image.write_at(place, bytes).expect("inside the device");
                }
                at += count;
            }
        }
        image
    }

    /// A request begins: whether it fails, and how long it takes.
    fn begin(&self, kind: RequestKind, offset: u64, bytes: Option<&[u8]>) -> io::Result<Takes> {
        let begun = self.draw(kind, offset, bytes);
        if self.tells {
            let (name, len) = (std::thread::current(), bytes.map_or(0, <[u8]>::len));
            let (name, now) = (name.name().unwrap_or_default(), Instant::now());
            println!("{now:?} {name}: {kind:?} of {len} at {offset}: {begun:?}");
        }
        begun
    }

    fn draw(&self, kind: RequestKind, offset: u64, bytes: Option<&[u8]>) -> io::Result<Takes> {
        witness(kind as u64 ^ offset << 2);
        bytes.into_iter().for_each(|bytes| witness(hash(bytes)));
        let mut state = self.state.lock();
        state.requests += 1;
        if state.cut_at.is_some_and(|at| state.requests >= at) && !state.is_off {
            state.is_off = true;
            state.stage = Some(uext4_schedule::stages());
        }
        if state.is_off {
            return Err(eio());
        }
        match state.trouble.get_mut(&thread::number()) {
            Some(0) => {
                state.has_troubled = true;
                state.trouble.insert(thread::number(), u32::MAX);
                return Err(eio());
            }
            Some(left) if *left != u32::MAX => *left -= 1,
            _ => {}
        }
        state.flushes += u64::from(kind == RequestKind::Flush);
        let (requests, flushes) = (state.requests, state.flushes);
        let is_in = |stretch| match stretch {
            Stretch::Time(begin, end) => (begin..end).contains(&Instant::now()),
            Stretch::Requests(first, end) => (first..end).contains(&requests),
            Stretch::Flushes(first, end) => {
                kind == RequestKind::Flush && (first..end).contains(&flushes)
            }
        };
        if kind != RequestKind::Read
            && let Some((stretch, for_space)) = state.failing
            && is_in(stretch)
        {
            state.failed += 1;
            let error = if for_space { rustix::io::Errno::NOSPC } else { rustix::io::Errno::IO };
            return Err(io::Error::from_raw_os_error(error.raw_os_error()));
        }
        let most = if kind == RequestKind::Flush { self.speed.flush } else { self.speed.request };
        let most = most.as_nanos() as u64;
        let is_slow = state.rng.random_range(0..100) < self.speed.slow_percent;
        let slow = if is_slow { [8, 8, 100][state.rng.random_range(0..3)] } else { 1 };
        let nanos = if most == 0 { 0 } else { state.rng.random_range(most / 10..=most) };
        let lingers = state.rng.random_range(0..100) < self.speed.linger_percent;
        let iterations =
            if lingers { state.rng.random_range(1..=self.speed.iterations) } else { 0 };
        let is_old = state.rng.random();
        Ok(Takes { time: Duration::from_nanos(nanos * slow), iterations, is_old })
    }

    fn pass(&self, Takes { time, iterations, .. }: Takes) -> io::Result<()> {
        if iterations > 0 {
            thread::linger(iterations, LINGER_MAX);
        }
        if time.is_zero() {
            uext4_schedule::point();
        } else {
            thread::sleep(time);
        }
        if self.is_off() { Err(eio()) } else { Ok(()) }
    }

    /// A write may be on the medium from now on.
    fn launch(&self, offset: u64, bytes: Vec<u8>) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let number = UNDER_WAY + state.next;
        state.pending.insert(number, Pending { offset, bytes, has_ended: false });
        number
    }

    /// A write has ended: reads find it.
    fn land(&self, number: u64) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.next += 1;
        let ended = state.next;
        let mut write = state.pending.remove(&number).expect("a write under way");
        self.now.write_at(write.offset, &write.bytes)?;
        write.has_ended = true;
        state.pending.insert(ended, write);
        Ok(ended)
    }

    /// A write that has ended is durable, with those before it at the same place.
    fn promise(&self, number: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(last) = state.pending.get(&number).cloned() else { return Ok(()) };
        let (start, end) = (last.offset, last.offset + last.bytes.len() as u64);
        let meets =
            |write: &Pending| write.offset < end && start < write.offset + write.bytes.len() as u64;
        let before: Vec<u64> =
            state.pending.range(..=number).filter(|(_, w)| meets(w)).map(|(n, _)| *n).collect();
        for number in before {
            if let Some(write) = state.pending.remove(&number) {
                self.durable.write_at(write.offset, &write.bytes)?;
            }
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.now.len() => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        }
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> io::Result<u64> {
        self.check(offset, bytes.len() as u64)?;
        let takes = self.begin(RequestKind::Write, offset, Some(&bytes))?;
        let number = self.launch(offset, bytes);
        self.pass(takes)?;
        self.land(number)
    }
}

impl Device for Medium {
    fn len(&self) -> u64 {
        self.now.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let takes = self.begin(RequestKind::Read, offset, None)?;
        if takes.is_old {
            self.now.read_at(offset, buf)?;
        }
        self.pass(takes)?;
        if takes.is_old { Ok(()) } else { self.now.read_at(offset, buf) }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset, buf.to_vec()).map(drop)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.write(offset, bufs.concat()).map(drop)
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        let mut under_way = Vec::new();
        let mut longest = Takes::default();
        let mut failed = Ok(());
        for run in writes {
            let bytes = run.bufs.concat();
            self.check(run.offset, bytes.len() as u64)?;
            match self.begin(RequestKind::Write, run.offset, Some(&bytes)) {
                Ok(takes) => {
                    longest.time = longest.time.max(takes.time);
                    longest.iterations = longest.iterations.max(takes.iterations);
                    under_way.push(self.launch(run.offset, bytes));
                }
                Err(error) => failed = Err(error),
            }
        }
        self.pass(longest)?;
        for number in under_way {
            self.land(number)?;
        }
        failed
    }

    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        writes.iter().try_for_each(|run| self.write_fua(run.offset, &run.bufs.concat()))
    }

    fn is_far(&self) -> bool {
        self.is_far
    }

    fn writes_through(&self) -> bool {
        self.is_far
    }

    fn flush(&self) -> io::Result<()> {
        let takes = self.begin(RequestKind::Flush, 0, None)?;
        let ended: Vec<u64> = {
            let state = self.state.lock();
            state.pending.iter().filter(|(_, write)| write.has_ended).map(|(n, _)| *n).collect()
        };
        self.pass(takes)?;
        ended.into_iter().try_for_each(|number| self.promise(number))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let number = self.write(offset, buf.to_vec())?;
        self.promise(number)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.write(offset, vec![0; usize::try_from(len).unwrap_or(usize::MAX)])?;
        Ok(true)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        if !self.discards {
            return Ok(false);
        }
        let takes = self.begin(RequestKind::Discard, offset, None)?;
        self.pass(takes)?;
        // It reads as anything until it is written again: as junk, but for the middle of much.
        let part = len.min(SCRIBBLED);
        for at in [offset, offset + len - part] {
            self.write(at, vec![JUNK ^ 0xff; part as usize])?;
        }
        Ok(true)
    }
}
