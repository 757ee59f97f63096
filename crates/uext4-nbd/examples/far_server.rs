//! A proxy that puts a server of network block devices further away.
//!
//! `far_server LISTEN SERVER MICROSECONDS`: listens at the socket LISTEN and passes all bytes on to
//! the socket SERVER; what the server says arrives that much later. So each request, a flush
//! included, takes that much longer, and any number of them are on their way at a time. nbdkit's
//! delay filter does not delay flushes.

use std::env;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes that are passed on at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Most chunks on their way.
const CHUNKS_MAX: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [listen, server, delay] = args.as_slice() else {
        return Err("far_server LISTEN SERVER MICROSECONDS".into());
    };
    let delay = Duration::from_micros(delay.parse()?);
    for client in UnixListener::bind(listen)?.incoming() {
        let (client, server) = (client?, UnixStream::connect(server)?);
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || report(pass(from, to)));
        thread::spawn(move || report(pass_late(server, client, delay)));
    }
    Ok(())
}

fn report(passed: io::Result<()>) {
    // A side that is gone ends the other.
    if let Err(error) = passed
        && !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
    {
        eprintln!("far_server: {error}");
    }
}

/// Passes bytes on at once.
fn pass(mut from: UnixStream, mut to: UnixStream) -> io::Result<()> {
    let passed = io::copy(&mut from, &mut to).map(drop);
    let _ = to.shutdown(Shutdown::Write);
    passed
}

/// Passes bytes on when they have been on their way for so long.
fn pass_late(mut from: UnixStream, mut to: UnixStream, delay: Duration) -> io::Result<()> {
    let (sender, receiver) = sync_channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let late = thread::spawn(move || -> io::Result<()> {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            to.write_all(&bytes)?;
        }
        to.shutdown(Shutdown::Both)
    });
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 || sender.send((Instant::now() + delay, chunk[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(sender);
    late.join().unwrap_or(Ok(()))
}
