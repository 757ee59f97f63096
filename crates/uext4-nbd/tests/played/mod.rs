//! A server that plays a script, and the device on it: for what servers answer that mean harm.
//!
//! A script has a greeting, and an answer to each message of the client; a message that it has no
//! answer to ends the connection. Each connection gets the whole script.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use uext4_device::Device;
use uext4_nbd::{NbdDevice, NbdOptions, NbdUri};

/// Length of the export, in bytes.
const LEN: u64 = 1 << 20;
/// Longest wait of the player for a message, and the timeout of the device.
const TIMEOUT: Duration = Duration::from_millis(50);

/// What a server says, answer by answer.
pub(crate) type Script = Vec<Vec<u8>>;

/// Opens a device on the script and makes one request of each kind. Whether all went well.
///
/// # Panics
/// This machine has no sockets or files.
pub(crate) fn play(folder: &Path, script: &Script) -> bool {
    let socket = folder.join("played.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let over = Arc::new(AtomicBool::new(false));
    let (told, script) = (Arc::clone(&over), script.clone());
    let server = thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            if told.load(Ordering::SeqCst) {
                return;
            }
            // The client may go at any time.
            let _ = answer(stream, &script);
        }
    });
    let uri: NbdUri = format!("nbd+unix:///disk?socket={}", socket.display()).parse().expect("URI");
    let went_well = requests(&uri).is_ok();
    over.store(true, Ordering::SeqCst);
    // Wakes the thread that accepts.
    let _ = UnixStream::connect(&socket);
    server.join().expect("the player does not panic");
    std::fs::remove_file(&socket).expect("its socket");
    went_well
}

fn answer(mut stream: UnixStream, script: &Script) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut script = script.iter();
    let Some(greeting) = script.next() else { return Ok(()) };
    stream.write_all(greeting)?;
    // The flags, which have no answer.
    stream.read_exact(&mut [0; 4])?;
    let mut message = vec![0; 64 << 10];
    for answer in script {
        if stream.read(&mut message)? == 0 {
            return Ok(());
        }
        stream.write_all(answer)?;
    }
    // The answer to the last message is read before the connection ends.
    stream.read(&mut message).map(drop)
}

/// Requests whose messages are those of [`valid`].
fn requests(uri: &NbdUri) -> Result<(), Box<dyn std::error::Error>> {
    let options = NbdOptions { timeout: TIMEOUT, connections: 1, ..NbdOptions::new() };
    let device = NbdDevice::open(uri, options)?;
    let write = device.write_at(4096, &[7; 4096]);
    let mut read = vec![0; 1024];
    let read = device.read_at(4096, &mut read);
    let flush = device.flush();
    let punch = device.punch(0, 4096);
    let discard = device.discard(8192, 4096);
    let all = [write, read, flush, punch.map(drop), discard.map(drop)];
    Ok(all.into_iter().collect::<io::Result<()>>()?)
}

/// A script in which all goes well, with replies in chunks or simple ones.
pub(crate) fn valid(structured: bool) -> Script {
    let mut script = vec![b"NBDMAGICIHAVEOPT\x00\x03".to_vec()];
    let mut export = vec![0, 0];
    export.extend(LEN.to_be_bytes());
    // Flush, FUA, trim, write zeroes.
    export.extend((1_u16 | 4 | 8 | 32 | 64).to_be_bytes());
    let sizes = [&[0, 3][..], &512_u32.to_be_bytes(), &4096_u32.to_be_bytes()].concat();
    let sizes = [&sizes[..], &(32_u32 << 20).to_be_bytes()].concat();
    if structured {
        script.push(option(8, 1, &[]));
        let context = [&1_u32.to_be_bytes()[..], b"base:allocation"].concat();
        script.push([option(10, 4, &context), option(10, 1, &[])].concat());
    } else {
        script.push(option(8, (1 << 31) + 1, b"not known"));
    }
    script.push([option(7, 3, &export), option(7, 3, &sizes), option(7, 1, &[])].concat());
    if structured {
        transmission_in_chunks(&mut script);
    } else {
        // The start of the disk, and what was written.
        for cookie in 1..=6 {
            let bytes = [0, 8192, 0, 1024, 0, 0, 0][cookie];
            let (cookie, bytes) = (cookie as u64, &[7; 8192][..bytes]);
            script.push(simple(cookie, bytes));
        }
    }
    script
}

fn transmission_in_chunks(script: &mut Script) {
    let start = [&[0; 8][..], &8192_u32.to_be_bytes()].concat();
    script.push(chunk(1, 2, 1, &start));
    // Half of the export is a hole.
    let half = u32::try_from(LEN / 2).expect("a length").to_be_bytes();
    let extents = [&1_u32.to_be_bytes()[..], &half, &[0; 4], &half, &3_u32.to_be_bytes()].concat();
    script.push(chunk(1, 5, 2, &extents));
    script.push(simple(3, &[]));
    let data = [&4608_u64.to_be_bytes()[..], &[7; 512]].concat();
    let hole = [&4096_u64.to_be_bytes()[..], &512_u32.to_be_bytes()].concat();
    script.push([chunk(0, 1, 4, &data), chunk(0, 2, 4, &hole), chunk(1, 0, 4, &[])].concat());
    script.push(chunk(1, 0, 5, &[]));
    script.push(simple(6, &[]));
    // An error with words, of a trim, which is no fault of the server.
    let error = [&95_u32.to_be_bytes()[..], &4_u16.to_be_bytes(), b"none"].concat();
    script.push(chunk(1, (1 << 15) + 1, 7, &error));
}

fn option(option: u32, kind: u32, text: &[u8]) -> Vec<u8> {
    let len = u32::try_from(text.len()).expect("a short text");
    let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    for word in [option, kind, len] {
        reply.extend(word.to_be_bytes());
    }
    reply.extend(text);
    reply
}

fn simple(cookie: u64, bytes: &[u8]) -> Vec<u8> {
    let header = [0x6744_6698_u32.to_be_bytes(), [0; 4]].concat();
    [&header[..], &cookie.to_be_bytes(), bytes].concat()
}

fn chunk(flags: u16, kind: u16, cookie: u64, bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("a short chunk");
    let mut chunk = 0x668e_33ef_u32.to_be_bytes().to_vec();
    chunk.extend(flags.to_be_bytes());
    chunk.extend(kind.to_be_bytes());
    chunk.extend(cookie.to_be_bytes());
    chunk.extend(len.to_be_bytes());
    chunk.extend(bytes);
    chunk
}
