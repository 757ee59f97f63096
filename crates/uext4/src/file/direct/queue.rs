//! Many direct requests of one thread in flight.
//!
//! What: the requests of a [`DirectQueue`] are pushed, started together, and reaped in any order. A
//! push keeps the request and does nothing else, because the locked instructions of a start wait
//! for the caller's stores into its buffers: so there is one such wait for all requests that start
//! together. A read of written blocks, or an overwrite of them, becomes one request of the device
//! for each piece. Writes to unwritten blocks take the same path, and are converted when they are
//! reaped. All other requests wait for the next reap, which does them in groups that share device
//! writes and handles.
//! Invariants: a buffer moves in with its request and always comes back with its completion. While
//! the owner does requests in groups it does not hold the lock that helpers need, because it may
//! have to wait for requests of its own.
//! Locking: a pure overwrite takes no lock but the queue's own; see `requests`.

use super::DirectIo;
use super::gather::GatheredWrite;
use super::in_place::Conversion;
use super::registered_files::{DirectFile, RegisteredFiles};
use super::requests::{Ended, InPlace, Requests, device_depth};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::InodeRef;
use std::sync::Arc;
use uext4_device::{IoBuf, IoMemory, QueueOptions};
use uext4_ondisk::FileKind;

/// Options of a queue.
#[derive(Debug, Clone)]
pub struct DirectOptions {
    /// Most requests in the queue, 1 to 4096.
    pub depth: usize,
    /// Whether reaping may poll the device instead of sleeping, if the device can.
    pub polled: bool,
    /// Memory that most buffers are part of. It is registered with the kernel once.
    pub memory: Vec<IoMemory>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOp {
    /// Fills the buffer, as far as the file goes.
    Read,
    /// Writes the buffer.
    Write,
    /// Writes the buffer. Complete when the data is durable, and all that is needed to read it
    /// back.
    WriteDurable,
}

/// One request.
#[derive(Debug)]
pub struct DirectRequest {
    /// A registered file.
    pub file: DirectFile,
    /// The operation.
    pub op: DirectOp,
    /// Byte of the file. A multiple of 512, as is the length of the buffer.
    pub offset: u64,
    /// The buffer, which comes back with the completion.
    pub buf: IoBuf,
    /// A number of the caller's choice, which comes back with the completion.
    pub tag: u64,
}

/// One completion.
#[derive(Debug)]
pub struct DirectDone {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer.
    pub buf: IoBuf,
    /// The number of bytes read or written: fewer than asked only at the end of the file, or if
    /// there was no space for more. The errors are those of `OpenFile::read_direct_at` and
    /// `write_direct_at`.
    pub result: Result<usize>,
}

/// Direct requests of one thread. Requests are in no order with each other: a caller that needs an
/// order waits for completions. Dropping the queue waits for requests on the device; requests that
/// have not been started may not be done.
#[derive(Debug)]
pub struct DirectQueue {
    direct: Arc<DirectIo>,
    requests: Arc<Requests>,
    registered: RegisteredFiles,
    /// Pushed, and not looked at yet.
    pushed: Vec<DirectRequest>,
    /// To be done at the next reap.
    waiting: Vec<DirectRequest>,
    /// Requests that were refused at once.
    refused: Vec<DirectDone>,
    /// Filled and emptied by each reap.
    ended: Ended,
    in_flight: usize,
    depth: usize,
}

impl DirectQueue {
    pub(crate) fn new(direct: &Arc<DirectIo>, options: DirectOptions) -> Result<Self> {
        let DirectOptions { depth, polled, memory } = options;
        let device = direct.context.cache().device();
        let device = device
            .queue(QueueOptions { depth: device_depth(depth), polled, memory })
            .map_err(|e| Error::io(format!("making a queue of {depth} requests"), e))?;
        let requests = Requests::new(Arc::clone(direct), device, depth)?;
        Ok(Self {
            direct: Arc::clone(direct),
            requests: Arc::new(requests),
            registered: RegisteredFiles::default(),
            pushed: Vec::with_capacity(depth),
            waiting: Vec::new(),
            refused: Vec::new(),
            ended: Ended::new(depth),
            in_flight: 0,
            depth,
        })
    }

    /// Registers a regular file with the queue, which holds it until
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
        let file = self.registered.insert(inode.clone());
        self.requests.register(file, inode);
        Ok(file)
    }

    /// Unregisters a file. If it has lost its names it can be deleted from then on.
    ///
    /// # Errors
    /// `InvalidArgument` while a request of the file is under way, and for a file that is not
    /// registered.
    pub fn unregister(&mut self, file: DirectFile) -> Result<()> {
        self.registered.get(file).ok_or_else(no_file)?;
        let mut unstarted = self.pushed.iter().chain(&self.waiting);
        let is_waiting = unstarted.any(|request| request.file == file);
        if is_waiting || !self.requests.unregister(file) {
            let why = "a request of this file is under way";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        self.registered.remove(file);
        Ok(())
    }

    /// Most requests in the queue.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of requests that were pushed and not yet reaped.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a request. It starts at the next `submit` or `reap`.
    ///
    /// # Errors
    /// Returns the request if the queue is full. Any other error is reported by its completion.
    #[inline]
    pub fn push(&mut self, request: DirectRequest) -> std::result::Result<(), DirectRequest> {
        // There is always capacity. The check lets the compiler inline the push below, so that the
        // request is never copied behind the caller's stores.
        if self.in_flight == self.depth || self.pushed.len() == self.pushed.capacity() {
            return Err(request);
        }
        self.in_flight += 1;
        self.pushed.push(request);
        Ok(())
    }

    /// Starts the requests that need nothing but the device. The others are done when they are
    /// reaped.
    ///
    /// # Errors
    /// Errors of the queue itself, not of a request.
    pub fn submit(&mut self) -> Result<()> {
        self.start_pushed();
        self.requests.submit()
    }

    /// Hands those pushed requests to the device that need nothing else, and sorts the rest.
    fn start_pushed(&mut self) {
        if self.pushed.is_empty() {
            return;
        }
        let mut starting = self.requests.starting();
        for request in self.pushed.drain(..) {
            let inode = self.registered.get(request.file).ok_or_else(no_file);
            let aligned = super::check_alignment(request.offset, request.buf.len());
            match inode.and_then(|inode| aligned.map(|()| inode)) {
                Err(error) => self.refused.push(refuse(request, error)),
                Ok(inode) => self.waiting.extend(starting.push(inode, request).err()),
            }
        }
    }

    /// Starts everything, waits until at least `at_least` requests are complete (or all, if fewer
    /// are in flight), and appends the completions to `done`.
    ///
    /// # Errors
    /// Those of [`DirectQueue::submit`]. Completions that came before are in `done`.
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

    /// Does the requests that need more than the device.
    fn do_waiting(&mut self, done: &mut Vec<DirectDone>) {
        let mut writes = Vec::new();
        let waiting = std::mem::take(&mut self.waiting);
        let entered = self.direct.context.begin_call();
        for request in waiting {
            if let (Err(error), true) = (&entered, request.op != DirectOp::Read) {
                done.push(refuse(request, error.clone()));
            } else if let Some(request) = self.do_one(request, done) {
                writes.push(request);
            }
        }
        if writes.is_empty() {
            return;
        }
        self.write_together(writes, done);
    }

    fn write_together(&self, writes: Vec<DirectRequest>, done: &mut Vec<DirectDone>) {
        let mut gathered: Vec<GatheredWrite<'_>> = writes
            .iter()
            .map(|request| {
                let durable = request.op == DirectOp::WriteDurable;
                GatheredWrite::new(
                    &self.registered[request.file],
                    request.offset,
                    &request.buf,
                    durable,
                )
            })
            .collect();
        self.direct.write_gathered(&mut gathered);
        let results: Vec<Result<usize>> =
            gathered.into_iter().map(GatheredWrite::into_result).collect();
        for (request, result) in writes.into_iter().zip(results) {
            self.tell(request, result, done);
        }
    }

    fn tell(&self, request: DirectRequest, result: Result<usize>, done: &mut Vec<DirectDone>) {
        let DirectRequest { tag, buf, .. } = request;
        done.push(DirectDone { tag, buf, result: self.direct.context.watch(result) });
    }

    /// Converts the blocks that writes in place have put data in. Does those writes again whose
    /// blocks cannot be converted any more.
    fn convert(&mut self, done: &mut Vec<DirectDone>) {
        let mut ended = std::mem::take(&mut self.ended.in_place);
        let entered = self.direct.context.begin_call();
        if let Err(error) = &entered {
            // The data in unwritten blocks is invisible.
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
            let inode = &self.registered[file];
            self.direct.convert(inode, &mut list);
            let is_durable = |one: &InPlace| one.request.op == DirectOp::WriteDurable;
            let synced = match ended[..count].iter().any(is_durable) {
                true => self.direct.syncs.sync(inode, true),
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

    /// Does a request that gains nothing from a group; returns a write that should go into one.
    fn do_one(
        &self,
        mut request: DirectRequest,
        done: &mut Vec<DirectDone>,
    ) -> Option<DirectRequest> {
        let inode = &self.registered[request.file];
        let (offset, len) = (request.offset, request.buf.len());
        // A thread that has disabled the fast path holds the file lock, which is needed now, until
        // the requests on the device have ended. They are ended here, because otherwise that thread
        // would have to take over this thread's ring.
        if inode.direct_io().is_none_or(|direct_io| direct_io.read_lock_counted().is_none()) {
            self.requests.settle();
        }
        let writes = request.op != DirectOp::Read;
        if let Err(error) = self.direct.prepare(inode, offset, len, writes) {
            let error = self.direct.context.watch::<()>(Err(error)).err();
            done.extend(error.map(|error| refuse(request, error)));
            return None;
        }
        request = self.requests.starting().push(inode, request).err()?;
        let result = match request.op {
            DirectOp::Read => match self.direct.read_fast(inode, offset, &mut request.buf) {
                Some(read) => read,
                None => self.direct.read_slowly(inode, offset, &mut request.buf),
            },
            DirectOp::Write | DirectOp::WriteDurable => {
                let durable = request.op == DirectOp::WriteDurable;
                let written = self.direct.write_fast(inode, offset, &request.buf, durable);
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
