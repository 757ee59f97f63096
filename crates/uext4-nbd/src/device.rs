//! The device on an export.

use std::fmt;
use std::io;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustix::io::Errno;
use uext4_device::{
    Device, FlushLatch, Lease, ReadRun, WriteRun, about_to_sleep, check_read, check_write,
};

use crate::answer::{Content, Ticket};
use crate::error::{Fault, NbdError};
use crate::export::Export;
use crate::keeper;
use crate::options::NbdOptions;
use crate::request::Action;
use crate::session::Session;
use crate::stream::Place;
use crate::unflushed::Change;
use crate::uri::NbdUri;
use crate::wire::STATE_ZERO;

/// Most bytes of one call that are on their way at a time.
const FLYING_MAX: usize = 16 << 20;
/// Most bytes of one request to read, so that the connections share a large one.
const READ_MAX: u32 = 1 << 20;
/// Longest range of one request without data, in bytes: a disk that has to write its zeroes takes a
/// moment for them.
const RANGE_MAX: u64 = 64 << 20;
/// What such a request counts, so that a few are on their way.
const RANGE_COUNTS: usize = FLYING_MAX / 8;
/// Most events that wait to be heard; further ones are lost.
const EVENTS_MAX: usize = 64;
/// Most questions for holes: an export that needs more is not called empty.
const QUESTIONS_MAX: u32 = 64;

/// An export of an NBD server, as a device.
///
/// # Locking
/// `edges` is held shared to change whole units, and alone to change a part of one. Order: `edges`,
/// `flushes`, the state of the session; `edges` is the only one that is held during I/O of others.
pub struct NbdDevice {
    session: Arc<Session>,
    keeper: Option<JoinHandle<()>>,
    flushes: FlushLatch,
    edges: RwLock<()>,
    fresh: AtomicBool,
}

impl fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = &self.session.export;
        f.debug_struct("NbdDevice")
            .field("uri", &self.session.place.uri)
            .field("export", export)
            .finish()
    }
}

impl NbdDevice {
    /// Opens an export.
    ///
    /// # Errors
    /// No connection, a server that does not serve the export or does not speak the protocol, an
    /// export that can only be read where it is to be written.
    pub fn open(uri: &NbdUri, options: NbdOptions) -> Result<Self, NbdError> {
        Self::try_open(uri, options).map_err(|fault| fault.at(uri))
    }

    fn try_open(uri: &NbdUri, options: NbdOptions) -> Result<Self, Fault> {
        let options = options.within_bounds();
        let deadline = Instant::now() + options.timeout;
        let place = Place::new(uri)?;
        let served = place.serve(deadline, options.patience())?;
        let export = served.agreed.export;
        if export.read_only() && !options.read_only {
            let why = "can only be read; open it read-only";
            return Err(Fault::Denied(Errno::ROFS, why.to_owned()));
        }
        let session = Arc::new(Session::new(place, options, export));
        let mut device = Self {
            session: Arc::clone(&session),
            keeper: None,
            flushes: FlushLatch::default(),
            edges: RwLock::new(()),
            fresh: AtomicBool::new(false),
        };
        keeper::start(&session, served)?;
        let (tell, told) = sync_channel(EVENTS_MAX);
        let teller = thread::Builder::new().name("nbd-events".to_owned());
        let of = Arc::clone(&session);
        // It ends with the keeper, and is not waited for: what hears the events may wait.
        teller.spawn(move || {
            of.options.on_thread();
            told.iter().for_each(|event| of.options.tell(&event));
        })?;
        let keeper = thread::Builder::new().name("nbd-keeper".to_owned());
        device.keeper = Some(keeper.spawn(move || keeper::keep(&session, &tell))?);
        device.session.learn_identity()?;
        device.fresh.store(device.reads_as_zeroes()?, Ordering::Relaxed);
        Ok(device)
    }

    /// What the server lacks, in a line; `None` if it has all that a file system can use.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        let export = self.export();
        let lacks = [
            (!export.flushes(), "flush, so that what it holds may be lost with it"),
            (!export.writes_through(), "FUA, so that each commit takes a flush"),
        ];
        let lacks: Vec<&str> =
            lacks.into_iter().filter_map(|(is, what)| is.then_some(what)).collect();
        let told = !lacks.is_empty() && !self.session.options.read_only;
        told.then(|| format!("the server has no {}", lacks.join("; no ")))
    }

    fn export(&self) -> &Export {
        &self.session.export
    }

    /// Whether the server says that all of the export is holes.
    fn reads_as_zeroes(&self) -> io::Result<bool> {
        if self.export().allocation.is_none() || self.session.options.read_only {
            return Ok(false);
        }
        let mut offset = 0;
        for _ in 0..QUESTIONS_MAX {
            let most = u64::from(u32::MAX - u32::MAX % self.export().unit);
            let len = u32::try_from((self.len() - offset).min(most)).unwrap_or(u32::MAX);
            let ticket = self.session.ask(Action::Status, offset, len)?;
            let answer = ticket.wait();
            if let Some(failure) = self.session.failure() {
                return Err(failure);
            }
            // A server that cannot tell now: nothing is known.
            let Ok(Content::Extents(extents)) = answer else { return Ok(false) };
            if extents.is_empty() || extents.iter().any(|(_, flags)| flags & STATE_ZERO == 0) {
                return Ok(false);
            }
            // The last one may reach further than was asked for.
            offset += extents.iter().map(|(len, _)| u64::from(*len)).sum::<u64>();
            if offset >= self.len() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Length of a request without data from an offset on, to an end.
    fn range_from(&self, offset: u64, end: u64) -> u32 {
        u32::try_from((end - offset).min(RANGE_MAX)).unwrap_or(u32::MAX)
    }

    fn check_change(&self, offset: u64, len: u64) -> io::Result<()> {
        check_write(self.len(), self.read_only(), offset, len)
    }

    fn is_whole(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(self.export().unit.into())
    }

    /// The units that a range touches: where they begin and end.
    fn units(&self, offset: u64, len: u64) -> (u64, u64) {
        let unit = u64::from(self.export().unit);
        (offset - offset % unit, (offset + len).next_multiple_of(unit))
    }

    /// Reads whole units: ranges, which fill the buffers one after the other.
    fn read_whole(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        bufs: &mut [&mut [u8]],
    ) -> io::Result<()> {
        let most = self.export().request_max.min(READ_MAX);
        let mut scatter = Scatter { bufs, at: 0 };
        let mut calls = Calls::default();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let len = u32::try_from((range.end - at).min(most.into())).unwrap_or(most);
                if calls.bytes + len as usize > FLYING_MAX {
                    calls.next(&mut scatter);
                }
                calls.add(self.session.ask(Action::Read, at, len), len as usize);
                at += u64::from(len);
            }
        }
        calls.all(&mut scatter)
    }

    /// Changes whole units by the bytes of the runs.
    fn write_whole(&self, runs: &[WriteRun<'_>], durable: bool) -> io::Result<()> {
        let most = self.export().request_max as usize;
        let durable = durable || self.export().is_durable_only_by_fua();
        let mut calls = Calls::default();
        for run in runs {
            let mut at = run.offset;
            let mut pieces = Pieces { bufs: run.bufs, at: 0, most };
            while let Some(data) = pieces.next() {
                let len = data.len();
                if calls.bytes + len > FLYING_MAX {
                    calls.next(&mut Nowhere);
                }
                if let Err(error) = self.bound() {
                    calls.failed.get_or_insert(error);
                    return calls.all(&mut Nowhere);
                }
                let count = u32::try_from(len).unwrap_or(u32::MAX);
                let action = Action::Change { change: Change::Data(data), durable };
                calls.add(self.session.ask(action, at, count), len);
                at += len as u64;
            }
        }
        calls.all(&mut Nowhere)
    }

    /// Flushes where changes would take more memory than they may.
    fn bound(&self) -> io::Result<()> {
        if self.session.unflushed_bytes() < self.session.options.unflushed_bytes {
            return Ok(());
        }
        self.flush()
    }

    fn write_runs(&self, runs: &[WriteRun<'_>], durable: bool) -> io::Result<()> {
        for run in runs {
            self.check_change(run.offset, total_len(run.bufs))?;
        }
        about_to_sleep();
        self.fresh.store(false, Ordering::Relaxed);
        if runs.iter().all(|run| self.is_whole(run.offset, total_len(run.bufs))) {
            let _shared = self.edges.read();
            return self.write_whole(runs, durable);
        }
        for run in runs {
            self.write_part(run, durable)?;
        }
        Ok(())
    }

    /// Changes parts of units, which are read before.
    fn write_part(&self, run: &WriteRun<'_>, durable: bool) -> io::Result<()> {
        let len = total_len(run.bufs);
        let (from, to) = self.units(run.offset, len);
        let index = |at: u64| usize::try_from(at - from).unwrap_or(usize::MAX);
        let mut whole = vec![0; index(to)];
        let _alone = self.edges.write();
        self.read_whole(once(from..to), &mut [&mut whole])?;
        let mut at = index(run.offset);
        for buf in run.bufs {
            whole[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        self.write_whole(&[WriteRun { offset: from, bufs: &[&whole] }], durable)
    }

    /// Changes a range without data: only the whole units in it. False: the server cannot, and
    /// nothing has changed.
    fn change_range(&self, offset: u64, len: u64, change: &Change) -> io::Result<bool> {
        let unit = u64::from(self.export().unit);
        let (mut at, end) = (offset.next_multiple_of(unit), (offset + len) / unit * unit);
        about_to_sleep();
        let _shared = self.edges.read();
        self.fresh.store(false, Ordering::Relaxed);
        let mut calls = Calls::default();
        let mut is_first = true;
        while at < end {
            let count = self.range_from(at, end);
            if let Err(error) = self.bound() {
                calls.failed.get_or_insert(error);
                break;
            }
            let durable = self.export().is_durable_only_by_fua();
            let action = Action::Change { change: change.clone(), durable };
            let ticket = self.session.ask(action, at, count);
            if is_first {
                is_first = false;
                match ticket?.wait() {
                    Err(error) if is_unsupported(&error) => return Ok(false),
                    answer => drop(answer?),
                }
            } else {
                if calls.bytes + RANGE_COUNTS > FLYING_MAX {
                    calls.next(&mut Nowhere);
                }
                calls.add(ticket, RANGE_COUNTS);
            }
            at += u64::from(count);
        }
        calls.all(&mut Nowhere).map(|()| true)
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.session.close();
        match self.keeper.take() {
            // It has nothing to tell, and does not panic.
            Some(keeper) => drop(keeper.join()),
            None => self.session.drain(Duration::ZERO),
        }
    }
}

impl Device for NbdDevice {
    fn len(&self) -> u64 {
        self.export().len
    }

    fn read_only(&self) -> bool {
        self.session.options.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_vectored_at(offset, &mut [buf])
    }

    fn name(&self) -> String {
        self.session.place.uri.short_name()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[buf])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.write_runs(&[WriteRun { offset, bufs }], false)
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.write_runs(writes, false)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        check_read(self.len(), offset, total)?;
        about_to_sleep();
        if self.is_whole(offset, total as u64) {
            return self.read_whole(once(offset..offset + total as u64), bufs);
        }
        let (from, to) = self.units(offset, total as u64);
        let index = |at: u64| usize::try_from(at - from).unwrap_or(usize::MAX);
        let mut whole = vec![0; index(to)];
        self.read_whole(once(from..to), &mut [&mut whole])?;
        Scatter { bufs, at: 0 }.take(&whole[index(offset)..][..total]);
        Ok(())
    }

    fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
        for run in &*reads {
            check_read(self.len(), run.offset, run.buf.len())?;
        }
        if !reads.iter().all(|run| self.is_whole(run.offset, run.buf.len() as u64)) {
            return reads.iter_mut().try_for_each(|run| self.read_at(run.offset, run.buf));
        }
        about_to_sleep();
        let range = |run: &ReadRun<'_>| run.offset..run.offset + run.buf.len() as u64;
        let ranges: Vec<Range<u64>> = reads.iter().map(range).collect();
        let mut bufs: Vec<&mut [u8]> = reads.iter_mut().map(|run| &mut *run.buf).collect();
        self.read_whole(ranges, &mut bufs)
    }

    fn set_lease(&self, lease: Option<Arc<Lease>>) {
        self.session.set_lease(lease);
    }

    fn is_far(&self) -> bool {
        true
    }

    /// Shared with flushes that wait. A failure is not forgotten: what the server held then may be
    /// lost.
    fn flush(&self) -> io::Result<()> {
        if self.read_only() {
            return Ok(());
        }
        about_to_sleep();
        self.flushes.flush(|| match self.session.flush()? {
            Some(ticket) => ticket.wait().map(drop),
            None => Ok(()),
        })
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_many_fua(&[WriteRun { offset, bufs: &[buf] }])
    }

    /// A durable write that fails may take others with it: a server that makes it by a write and an
    /// fsync(2) learns of a failure once, and later ones succeed over pages that are gone.
    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        for run in writes {
            self.check_change(run.offset, total_len(run.bufs))?;
        }
        self.flushes.check()?;
        if !self.export().writes_through() {
            self.write_runs(writes, false)?;
            return if self.export().flushes() { self.flush() } else { Ok(()) };
        }
        let written = self.write_runs(writes, true);
        if let Err(error) = &written
            && error.kind() != io::ErrorKind::StorageFull
        {
            self.flushes.latch(error);
        }
        written
    }

    fn writes_through(&self) -> bool {
        self.export().writes_through()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.check_change(offset, len)?;
        if !self.export().writes_zeroes() || !self.is_whole(offset, len) {
            return Ok(false);
        }
        self.change_range(offset, len, &Change::Zeroes)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.check_change(offset, len)?;
        if !self.export().trims() {
            return Ok(false);
        }
        self.change_range(offset, len, &Change::Trim)
    }

    fn fresh_zeroes(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }
}

fn total_len(bufs: &[&[u8]]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Whether a server that says so cannot do what it was asked for, rather than has failed.
fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let unsupported = [Errno::INVAL, Errno::OPNOTSUPP, Errno::OVERFLOW].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| unsupported.contains(&errno))
}

/// The bytes of buffers, in pieces of `most` bytes.
struct Pieces<'a> {
    bufs: &'a [&'a [u8]],
    /// Bytes of the first buffer that are taken.
    at: usize,
    most: usize,
}

impl Pieces<'_> {
    fn next(&mut self) -> Option<Arc<[u8]>> {
        let mut piece = Vec::new();
        while let Some((first, rest)) = self.bufs.split_first().filter(|_| piece.len() < self.most)
        {
            let left = &first[self.at..];
            let now = left.len().min(self.most - piece.len());
            let bytes = &left[..now];
            self.at += now;
            if self.at == first.len() {
                (self.bufs, self.at) = (rest, 0);
            }
            // Most pieces are of one buffer, and are copied once.
            if piece.is_empty() && (now == self.most || self.bufs.is_empty()) && now > 0 {
                return Some(Arc::from(bytes));
            }
            piece.extend_from_slice(bytes);
        }
        (!piece.is_empty()).then(|| Arc::from(piece))
    }
}

/// Where answers go, in the order of their requests.
trait Takes {
    fn take(&mut self, bytes: &[u8]);
}

/// Answers without bytes.
struct Nowhere;

impl Takes for Nowhere {
    fn take(&mut self, _: &[u8]) {}
}

/// Buffers that are filled one after the other.
struct Scatter<'a, 'b> {
    bufs: &'a mut [&'b mut [u8]],
    /// Bytes of the first buffer that are filled.
    at: usize,
}

impl Takes for Scatter<'_, '_> {
    fn take(&mut self, mut bytes: &[u8]) {
        while let Some(first) = self.bufs.first_mut().filter(|_| !bytes.is_empty()) {
            let room = &mut first[self.at..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.at += now.len();
            bytes = later;
            if self.at == first.len() {
                self.at = 0;
                let bufs = std::mem::take(&mut self.bufs);
                self.bufs = bufs.split_first_mut().map_or(&mut [], |(_, rest)| rest);
            }
        }
    }
}

/// Requests of one call that are on their way.
#[derive(Default)]
struct Calls {
    flying: std::collections::VecDeque<(Ticket, usize)>,
    bytes: usize,
    failed: Option<io::Error>,
}

impl Calls {
    fn add(&mut self, ticket: io::Result<Ticket>, bytes: usize) {
        match ticket {
            Ok(ticket) => {
                self.flying.push_back((ticket, bytes));
                self.bytes += bytes;
            }
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Waits for the oldest.
    fn next(&mut self, takes: &mut impl Takes) {
        let Some((ticket, bytes)) = self.flying.pop_front() else { return };
        self.bytes -= bytes;
        match ticket.wait() {
            Ok(Content::Bytes(bytes)) => takes.take(&bytes),
            Ok(_) => {}
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Waits for all: none is on its way when the call returns. The first failure is the result.
    fn all(mut self, takes: &mut impl Takes) -> io::Result<()> {
        while !self.flying.is_empty() {
            self.next(takes);
        }
        self.failed.map_or(Ok(()), Err)
    }
}
