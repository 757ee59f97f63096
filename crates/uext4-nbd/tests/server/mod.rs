//! An NBD server for tests: it dies when it is told, forgets what was not flushed, and lies.
//!
//! Its bytes are in memory: `current` is what reads see, `durable` what a restart finds. A flush
//! copies what was written since the last one.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What the server can and does.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    pub(crate) len: u64,
    pub(crate) structured: bool,
    pub(crate) read_only: bool,
    pub(crate) flush: bool,
    pub(crate) fua: bool,
    pub(crate) multi: bool,
    /// Least and most bytes of a request.
    pub(crate) sizes: Option<(u32, u32)>,
    /// How long each request takes, flushes included; they run at the same time.
    pub(crate) delay: Duration,
    /// Answers so many requests, and then no more.
    pub(crate) silent_after: Option<u64>,
    /// Ends the connection at each request of this command.
    pub(crate) dies_at: Option<u16>,
    /// Answers each request of this command with this error.
    pub(crate) fails: Option<(u16, u32)>,
    /// Sent in place of each reply.
    pub(crate) garbage: Option<Vec<u8>>,
}

impl Manner {
    pub(crate) fn new(len: u64) -> Self {
        Self {
            len,
            structured: true,
            read_only: false,
            flush: true,
            fua: true,
            multi: true,
            sizes: None,
            delay: Duration::ZERO,
            silent_after: None,
            dies_at: None,
            fails: None,
            garbage: None,
        }
    }

    fn flags(&self) -> u16 {
        let flags = [(self.read_only, 2), (self.flush, 4), (self.fua, 8), (true, 32), (true, 64)];
        let set = flags.into_iter().filter_map(|(is, flag)| is.then_some(flag));
        1 + set.sum::<u16>() + if self.multi { 256 } else { 0 }
    }
}

/// What is stored, whichever server is running.
#[derive(Debug, Default)]
pub(crate) struct Store {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Pieces of [`PIECE`] bytes in which the two may differ.
    dirty: BTreeSet<usize>,
}

const PIECE: usize = 64 << 10;

impl Store {
    /// Bytes that are about to change.
    fn changing(&mut self, range: Range<usize>) -> &mut [u8] {
        if !range.is_empty() {
            self.dirty.extend(range.start / PIECE..=(range.end - 1) / PIECE);
        }
        &mut self.current[range]
    }

    fn flush(&mut self) {
        for piece in std::mem::take(&mut self.dirty) {
            let range = piece * PIECE..self.current.len().min((piece + 1) * PIECE);
            self.durable[range.clone()].copy_from_slice(&self.current[range]);
        }
    }

    /// What was not flushed is gone.
    fn forget(&mut self, len: usize) {
        self.durable.resize(len, 0);
        self.current = self.durable.clone();
        self.dirty.clear();
    }
}

/// What a server was asked for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) durable_writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) connections: AtomicU64,
}

/// A server, which is started and killed as often as one likes.
pub(crate) struct Server {
    pub(crate) socket: PathBuf,
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) asked: Arc<Asked>,
    running: Option<Running>,
}

struct Running {
    streams: Arc<Mutex<Vec<UnixStream>>>,
    is_over: Arc<AtomicBool>,
    accepts: JoinHandle<()>,
}

impl Server {
    /// A server that is not started.
    pub(crate) fn new(folder: &Path) -> Self {
        let socket = folder.join("nbd.sock");
        Self { socket, store: Arc::default(), asked: Arc::default(), running: None }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket.display())
    }

    /// Starts it on what is durable.
    pub(crate) fn start(&mut self, manner: Manner) {
        assert!(self.running.is_none(), "it runs");
        self.store.lock().unwrap().forget(usize::try_from(manner.len).unwrap());
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).unwrap();
        let streams: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let (kept, over) = (Arc::clone(&streams), Arc::clone(&is_over));
        let (store, asked) = (Arc::clone(&self.store), Arc::clone(&self.asked));
        let accepts = thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut kept = kept.lock().unwrap();
                if over.load(Ordering::SeqCst) {
                    return;
                }
                kept.push(stream.try_clone().unwrap());
                drop(kept);
                let connection = Connection {
                    manner: manner.clone(),
                    store: Arc::clone(&store),
                    asked: Arc::clone(&asked),
                    over: Arc::clone(&over),
                    answers: Arc::new(Mutex::new(stream.try_clone().unwrap())),
                };
                thread::spawn(move || connection.serve(stream));
            }
        });
        self.running = Some(Running { streams, is_over, accepts });
    }

    /// Kills it: every connection ends, and what is not durable is gone.
    pub(crate) fn kill(&mut self) {
        let Some(Running { streams, is_over, accepts }) = self.running.take() else { return };
        {
            // No request changes the store any more: each looks at the word under this lock.
            let _store = self.store.lock().unwrap();
            is_over.store(true, Ordering::SeqCst);
        }
        for stream in streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.socket);
        accepts.join().unwrap();
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Ends one of its newest connections; the server goes on.
    pub(crate) fn cut(&self, number: usize) {
        let running = self.running.as_ref().expect("it runs");
        let streams = running.streams.lock().unwrap();
        let newest = &streams[streams.len().saturating_sub(4)..];
        let _ = newest[number % newest.len()].shutdown(std::net::Shutdown::Both);
    }

    /// Sets what a start will find. It is not running.
    pub(crate) fn load(&self, bytes: Vec<u8>) {
        self.store.lock().unwrap().durable = bytes;
    }

    /// What a restart would find.
    pub(crate) fn durable(&self) -> Vec<u8> {
        self.store.lock().unwrap().durable.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Clone)]
struct Connection {
    manner: Manner,
    store: Arc<Mutex<Store>>,
    asked: Arc<Asked>,
    over: Arc<AtomicBool>,
    answers: Arc<Mutex<UnixStream>>,
}

/// A request as it came.
struct Request {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u32,
    data: Vec<u8>,
}

impl Connection {
    fn serve(self, mut stream: UnixStream) {
        self.asked.connections.fetch_add(1, Ordering::SeqCst);
        // The client may go at any time.
        let Ok(structured) = self.handshake(&mut stream) else { return };
        let mut running = Vec::new();
        let _ = self.requests(&mut stream, structured, &mut running);
        // As servers do: what was asked for is done before the connection is ended.
        running.into_iter().for_each(|thread| drop(thread.join()));
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }

    fn handshake(&self, stream: &mut UnixStream) -> io::Result<bool> {
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        let mut flags = [0; 4];
        stream.read_exact(&mut flags)?;
        let mut structured = false;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header)?;
            let option = u32::from_be_bytes(header[8..12].try_into().unwrap());
            let len = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let mut data = vec![0; len as usize];
            stream.read_exact(&mut data)?;
            let mut reply = |kind: u32, text: &[u8]| -> io::Result<()> {
                let mut out = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                for word in [option, kind, u32::try_from(text.len()).unwrap()] {
                    out.extend(word.to_be_bytes());
                }
                out.extend(text);
                stream.write_all(&out)
            };
            match option {
                8 if self.manner.structured => {
                    structured = true;
                    reply(1, &[])?;
                }
                7 => {
                    if data[4..8] != *b"disk" {
                        reply((1 << 31) + 6, b"no such export")?;
                        continue;
                    }
                    let mut export = vec![0, 0];
                    export.extend(self.manner.len.to_be_bytes());
                    export.extend(self.manner.flags().to_be_bytes());
                    reply(3, &export)?;
                    if let Some((least, most)) = self.manner.sizes {
                        let mut sizes = vec![0, 3];
                        for size in [least, least, most] {
                            sizes.extend(size.to_be_bytes());
                        }
                        reply(3, &sizes)?;
                    }
                    reply(1, &[])?;
                    return Ok(structured);
                }
                _ => reply((1 << 31) + 1, &[])?,
            }
        }
    }

    fn requests(
        &self,
        stream: &mut UnixStream,
        structured: bool,
        running: &mut Vec<JoinHandle<()>>,
    ) -> io::Result<()> {
        let mut count = 0;
        loop {
            let mut header = [0; 28];
            stream.read_exact(&mut header)?;
            let request = Request {
                flags: u16::from_be_bytes(header[4..6].try_into().unwrap()),
                command: u16::from_be_bytes(header[6..8].try_into().unwrap()),
                cookie: u64::from_be_bytes(header[8..16].try_into().unwrap()),
                offset: u64::from_be_bytes(header[16..24].try_into().unwrap()),
                len: u32::from_be_bytes(header[24..28].try_into().unwrap()),
                data: Vec::new(),
            };
            let mut data = vec![0; if request.command == 1 { request.len as usize } else { 0 }];
            stream.read_exact(&mut data)?;
            let request = Request { data, ..request };
            if request.command == 2 {
                return Ok(());
            }
            if self.manner.dies_at == Some(request.command) {
                return stream.shutdown(std::net::Shutdown::Both);
            }
            count += 1;
            if self.manner.silent_after.is_some_and(|most| count > most) {
                continue;
            }
            if let Some(garbage) = &self.manner.garbage {
                self.answers.lock().unwrap().write_all(garbage)?;
                continue;
            }
            if self.manner.delay.is_zero() {
                self.answer(&request, structured)?;
            } else {
                let own = self.clone();
                running.retain(|thread| !thread.is_finished());
                running.push(thread::spawn(move || {
                    thread::sleep(own.manner.delay);
                    let _ = own.answer(&request, structured);
                }));
            }
        }
    }

    fn answer(&self, request: &Request, structured: bool) -> io::Result<()> {
        let error = match self.manner.fails {
            Some((command, error)) if command == request.command => error,
            // As the protocol has it: EINVAL.
            _ if request.command < 2
                && request.len > self.manner.sizes.map_or(u32::MAX, |of| of.1) =>
            {
                22
            }
            _ => 0,
        };
        let content = if error == 0 { self.execute(request)? } else { Vec::new() };
        let mut out = Vec::new();
        if structured && request.command == 0 && error == 0 {
            out.extend(0x668e_33ef_u32.to_be_bytes());
            // In two chunks, the second half first.
            let half = content.len() / 2;
            let mut chunk = |flags: u16, from: usize, bytes: &[u8]| {
                let mut chunk = Vec::new();
                chunk.extend(flags.to_be_bytes());
                chunk.extend(1_u16.to_be_bytes());
                chunk.extend(request.cookie.to_be_bytes());
                chunk.extend(u32::try_from(bytes.len() + 8).unwrap().to_be_bytes());
                chunk.extend((request.offset + from as u64).to_be_bytes());
                chunk.extend(bytes);
                out.extend(chunk);
            };
            if half > 0 {
                chunk(0, half, &content[half..]);
                chunk(1, 0, &content[..half]);
                let at = 4 + 16 + 8 + content.len() - half;
                out.splice(at..at, 0x668e_33ef_u32.to_be_bytes());
            } else {
                chunk(1, 0, &content);
            }
        } else {
            out.extend(0x6744_6698_u32.to_be_bytes());
            out.extend(error.to_be_bytes());
            out.extend(request.cookie.to_be_bytes());
            out.extend(content);
        }
        self.answers.lock().unwrap().write_all(&out)
    }

    fn execute(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut store = self.store.lock().unwrap();
        if self.over.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let from = usize::try_from(request.offset).unwrap();
        let range = from..from + if request.command == 3 { 0 } else { request.len as usize };
        let asked = &self.asked;
        match request.command {
            0 => {
                asked.reads.fetch_add(1, Ordering::SeqCst);
                return Ok(store.current[range].to_vec());
            }
            1 => {
                asked.writes.fetch_add(1, Ordering::SeqCst);
                store.changing(range.clone()).copy_from_slice(&request.data);
                if request.flags & 1 != 0 {
                    asked.durable_writes.fetch_add(1, Ordering::SeqCst);
                    store.durable[range].copy_from_slice(&request.data);
                }
            }
            3 => {
                asked.flushes.fetch_add(1, Ordering::SeqCst);
                store.flush();
            }
            // A trim forgets for certain: nobody may rely on what was there.
            4 | 6 => store.changing(range).fill(0),
            other => panic!("command {other}"),
        }
        Ok(Vec::new())
    }
}
