//! Many direct requests at a time, by one thread.
//!
//! What: [`DirectQueue`]: requests are pushed, started together, and reaped in any order. A push
//! keeps the request and does nothing else: the locked instructions of a start wait for the
//! caller's stores into its buffers, which so happens once for all that start together. A read of
//! written blocks, or an overwrite of them, is a request of the device for each piece. Writes to
//! unwritten blocks go the same way, and are converted when they are reaped. All else waits for
//! the next reap, which does it in groups that share device writes and handles.
//! Invariants: a buffer moves in with its request and comes back with its completion, whatever
//! comes of it. What is done in groups is done with nothing held that a helper of others needs: the
//! owner may be the one who waits for its own requests.
//! Locking: none for a pure overwrite but the queue's own; see `requests`.

use super::super::Files;
use super::gather::Write;
use super::in_place::Conversion;
use super::known::{DirectFile, KnownFiles};
use super::requests::{Ended, InPlace, Requests, device_depth};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::InodeRef;
use std::sync::Arc;
use uext4_device::{IoBuf, IoMemory, QueueOptions};
use uext4_ondisk::FileKind;

/// What a queue should be like.
#[derive(Debug, Clone)]
pub struct DirectOptions {
    /// Requests that it can hold, 1 to 4096.
    pub depth: usize,
    /// Whether reaping may spin on the device instead of sleeping, where the device can.
    pub polled: bool,
    /// Memory that most buffers are of, to be registered with the kernel once.
    pub memory: Vec<IoMemory>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOp {
    /// Fills the buffer, as far as the file goes.
    Read,
    /// Writes the buffer.
    Write,
    /// Writes the buffer; done when that is durable, and what is needed to read it back.
    WriteDurable,
}

/// One request.
#[derive(Debug)]
pub struct DirectRequest {
    /// A file that was registered.
    pub file: DirectFile,
    /// What is done.
    pub op: DirectOp,
    /// Byte of the file; a multiple of 512, as is the buffer's length.
    pub offset: u64,
    /// The bytes; come back with the completion.
    pub buf: IoBuf,
    /// The caller's number for it; comes back with the completion.
    pub tag: u64,
}

/// One completion.
#[derive(Debug)]
pub struct DirectDone {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer.
    pub buf: IoBuf,
    /// Bytes read or written: fewer than asked only at the end of the file, or where there was no
    /// space for more. Errors as of `OpenFile::read_direct_at` and `write_direct_at`.
    pub result: Result<usize>,
}

/// One thread's direct requests. Requests are in no order with each other: who needs one waits.
/// Dropping the queue waits for what is on the device; what has not been started may not be done.
#[derive(Debug)]
pub struct DirectQueue {
    files: Arc<Files>,
    requests: Arc<Requests>,
    known: KnownFiles,
    /// Not looked at yet.
    pushed: Vec<DirectRequest>,
    /// To be done at the next reap.
    waiting: Vec<DirectRequest>,
    /// Refused at once.
    refused: Vec<DirectDone>,
    /// Filled and emptied by each reap.
    ended: Ended,
    in_flight: usize,
    depth: usize,
}

impl DirectQueue {
    pub(crate) fn new(files: &Arc<Files>, options: DirectOptions) -> Result<Self> {
        let DirectOptions { depth, polled, memory } = options;
        let device = files.cache().device();
        let device = device
            .queue(QueueOptions { depth: device_depth(depth), polled, memory })
            .map_err(|e| Error::io(format!("making a queue of {depth} requests"), e))?;
        let requests = Requests::new(Arc::clone(files), device, depth)?;
        Ok(Self {
            files: Arc::clone(files),
            requests: Arc::new(requests),
            known: KnownFiles::default(),
            pushed: Vec::with_capacity(depth),
            waiting: Vec::new(),
            refused: Vec::new(),
            ended: Ended::new(depth),
            in_flight: 0,
            depth,
        })
    }

    /// Makes a regular file known to the queue, which holds it until
    /// [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// `IsADirectory` for anything else.
    pub fn register(&mut self, inode: &InodeRef) -> Result<DirectFile> {
        if inode.kind() != FileKind::Regular {
            return Err(Error::new(
                ErrorKind::IsADirectory,
                "only regular files are read directly",
            ));
        }
        let file = self.known.insert(inode.clone());
        self.requests.register(file, inode);
        Ok(file)
    }

    /// Lets go of a file: one that has lost its names can be deleted from then on.
    ///
    /// # Errors
    /// `InvalidArgument` while a request of it is under way, and for a file that the queue does not
    /// know.
    pub fn unregister(&mut self, file: DirectFile) -> Result<()> {
        self.known.get(file).ok_or_else(no_file)?;
        let mut unstarted = self.pushed.iter().chain(&self.waiting);
        let waits = unstarted.any(|request| request.file == file);
        if waits || !self.requests.unregister(file) {
            let why = "a request of this file is under way";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        self.known.remove(file);
        Ok(())
    }

    /// Requests that it holds at most.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Requests that were pushed and not yet reaped.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a request. It starts at the next `submit` or `reap`.
    ///
    /// # Errors
    /// The request itself if the queue is full. Whatever else is wrong with it is told by its
    /// completion.
    #[inline]
    pub fn push(&mut self, request: DirectRequest) -> std::result::Result<(), DirectRequest> {
        // There is capacity for all. To see it here makes the push below no call, so that the
        // request is never copied behind the caller's stores.
        if self.in_flight == self.depth || self.pushed.len() == self.pushed.capacity() {
            return Err(request);
        }
        self.in_flight += 1;
        self.pushed.push(request);
        Ok(())
    }

    /// Starts what needs nothing but the device. All else is done when it is reaped.
    ///
    /// # Errors
    /// What the system says of the queue itself, not of a request.
    pub fn submit(&mut self) -> Result<()> {
        self.start_pushed();
        self.requests.submit()
    }

    /// Hands to the device what needs nothing else, and sorts the rest.
    fn start_pushed(&mut self) {
        if self.pushed.is_empty() {
            return;
        }
        let mut starting = self.requests.starting();
        for request in self.pushed.drain(..) {
            let inode = self.known.get(request.file).ok_or_else(no_file);
            let aligned = super::check_alignment(request.offset, request.buf.len());
            match inode.and_then(|inode| aligned.map(|()| inode)) {
                Err(error) => self.refused.push(refuse(request, error)),
                Ok(inode) => self.waiting.extend(starting.push(inode, request).err()),
            }
        }
    }

    /// Starts everything, waits until at least `at_least` requests are done (or all, if fewer are
    /// in flight), and appends those that are to `done`.
    ///
    /// # Errors
    /// As [`DirectQueue::submit`]; what was done by then is in `done`.
    pub fn reap(&mut self, at_least: usize, done: &mut Vec<DirectDone>) -> Result<()> {
        let before = done.len();
        let result = self.reap_uncounted(at_least, done);
        self.in_flight -= done.len() - before;
        result
    }

    fn reap_uncounted(&mut self, at_least: usize, done: &mut Vec<DirectDone>) -> Result<()> {
        let before = done.len();
        self.start_pushed();
        done.append(&mut self.refused);
        if !self.waiting.is_empty() {
            self.requests.submit()?;
            self.do_waiting(done);
        }
        let missing = at_least.min(self.in_flight).saturating_sub(done.len() - before);
        let result = self.requests.reap(missing, &mut self.ended);
        done.append(&mut self.ended.done);
        if !self.ended.in_place.is_empty() {
            self.convert(done);
        }
        result
    }

    /// Does what could not be done by the device alone.
    fn do_waiting(&mut self, done: &mut Vec<DirectDone>) {
        let mut writes = Vec::new();
        let waiting = std::mem::take(&mut self.waiting);
        let entered = self.files.enter();
        for request in waiting {
            if let (Err(error), true) = (&entered, request.op != DirectOp::Read) {
                done.push(refuse(request, error.clone()));
            } else if let Some(request) = self.do_alone(request, done) {
                writes.push(request);
            }
        }
        if writes.is_empty() {
            return;
        }
        self.write_together(writes, done);
    }

    fn write_together(&self, writes: Vec<DirectRequest>, done: &mut Vec<DirectDone>) {
        let mut gathered: Vec<Write<'_>> = writes
            .iter()
            .map(|request| {
                let durable = request.op == DirectOp::WriteDurable;
                Write::new(&self.known[request.file], request.offset, &request.buf, durable)
            })
            .collect();
        self.files.write_gathered(&mut gathered);
        let results: Vec<Result<usize>> = gathered.into_iter().map(Write::into_result).collect();
        for (request, result) in writes.into_iter().zip(results) {
            self.tell(request, result, done);
        }
    }

    fn tell(&self, request: DirectRequest, result: Result<usize>, done: &mut Vec<DirectDone>) {
        let DirectRequest { tag, buf, .. } = request;
        done.push(DirectDone { tag, buf, result: self.files.watch(result) });
    }

    /// Makes written what requests have put data in; makes those again for which that is too late.
    fn convert(&mut self, done: &mut Vec<DirectDone>) {
        let mut ended = std::mem::take(&mut self.ended.in_place);
        let entered = self.files.enter();
        if let Err(error) = &entered {
            // Nobody sees what was put into unwritten blocks.
            done.extend(ended.drain(..).map(|one| refuse(one.request, error.clone())));
        }
        ended.sort_unstable_by_key(|one| (one.request.file.number, one.request.offset));
        let (mut list, mut again) = (Vec::new(), Vec::new());
        while let Some(first) = ended.first() {
            let file = first.request.file;
            let count = ended.iter().take_while(|one| one.request.file == file).count();
            let conversion = |InPlace { request, version }: &InPlace| {
                Conversion::new(request.offset, request.buf.len(), *version)
            };
            list.extend(ended[..count].iter().map(conversion));
            let inode = &self.known[file];
            self.files.convert(inode, &mut list);
            let is_durable = |one: &InPlace| one.request.op == DirectOp::WriteDurable;
            let synced = match ended[..count].iter().any(is_durable) {
                true => self.files.sync(inode, true),
                false => Ok(()),
            };
            for (one, conversion) in ended.drain(..count).zip(list.drain(..)) {
                let len = one.request.buf.len();
                match conversion.is_done {
                    true if is_durable(&one) => {
                        self.tell(one.request, synced.clone().map(|()| len), done);
                    }
                    true => self.tell(one.request, Ok(len), done),
                    false => again.push(one.request),
                }
            }
        }
        if !again.is_empty() {
            self.write_together(again, done);
        }
        drop(entered);
        self.ended.in_place = ended;
    }

    /// Does a request that need not go with others; gives back a write that should.
    fn do_alone(
        &self,
        mut request: DirectRequest,
        done: &mut Vec<DirectDone>,
    ) -> Option<DirectRequest> {
        let inode = &self.known[request.file];
        let (offset, len) = (request.offset, request.buf.len());
        // Who closed the way holds the file, which is needed now, until what is on the device has
        // ended. That is ended here: else somebody would have to take over this thread's ring.
        if inode.overwrites().is_none_or(|overwrites| overwrites.enter().is_none()) {
            self.requests.settle();
        }
        let writes = request.op != DirectOp::Read;
        if let Err(error) = self.files.prepare(inode, offset, len, writes) {
            let error = self.files.watch::<()>(Err(error)).err();
            done.extend(error.map(|error| refuse(request, error)));
            return None;
        }
        request = self.requests.starting().push(inode, request).err()?;
        let result = match request.op {
            DirectOp::Read => match self.files.read_fast(inode, offset, &mut request.buf) {
                Some(read) => read,
                None => self.files.read_slowly(inode, offset, &mut request.buf),
            },
            DirectOp::Write | DirectOp::WriteDurable => {
                let durable = request.op == DirectOp::WriteDurable;
                let written = self.files.write_fast(inode, offset, &request.buf, durable);
                let Some(written) = written else { return Some(request) };
                written
            }
        };
        self.tell(request, result, done);
        None
    }
}

impl Drop for DirectQueue {
    fn drop(&mut self) {
        self.requests.close();
    }
}

fn no_file() -> Error {
    Error::new(ErrorKind::InvalidArgument, "no file of this queue")
}

fn refuse(request: DirectRequest, error: Error) -> DirectDone {
    DirectDone { tag: request.tag, buf: request.buf, result: Err(error) }
}
