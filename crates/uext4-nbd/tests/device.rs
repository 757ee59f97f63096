//! The device on a server of the tests, which dies, forgets and lies.
//!
//! No duration decides a test: times are bounds after which a hang is called one.

mod server;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use server::{Manner, Server};
use uext4_device::{Device, Lease, LeasedDevice, PartDevice, SharedDevice, WriteRun};
use uext4_nbd::{NbdDevice, NbdEvent, NbdOptions, NbdUri};

const LEN: u64 = 4 << 20;

fn options() -> NbdOptions {
    NbdOptions { timeout: Duration::from_secs(20), ..NbdOptions::new() }
}

fn open(server: &Server, options: NbdOptions) -> Result<NbdDevice, String> {
    let uri: NbdUri = server.uri().parse().unwrap();
    NbdDevice::open(&uri, options).map_err(|error| error.to_string())
}

/// Fault model: data at a wrong place, in a wrong order of chunks, of a wrong request; a part of a
/// unit that changes its neighbour.
#[test]
fn what_is_written_is_read_whatever_the_server_can() {
    let folder = tempfile::tempdir().unwrap();
    let base = Manner::new(LEN);
    for manner in [
        base.clone(),
        Manner { structured: false, multi: false, ..base.clone() },
        Manner { sizes: Some((1, 4096)), ..base.clone() },
        Manner { sizes: Some((4096, 8192)), fua: false, ..base.clone() },
        Manner { sizes: Some((512, 32 << 20)), flush: false, ..base },
    ] {
        let mut server = Server::new(folder.path());
        server.start(manner.clone());
        let device = open(&server, options()).unwrap();
        let mut model = vec![0_u8; usize::try_from(LEN).unwrap()];
        let mut random = StdRng::seed_from_u64(7);
        for round in 0..120 {
            let at = random.random_range(0..model.len() - 70_000);
            let len = random.random_range(1..70_000);
            let bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
            let offset = at as u64;
            match round % 6 {
                0 => device.write_at(offset, &bytes).unwrap(),
                1 => device
                    .write_vectored_at(offset, &[&bytes[..len / 3], &bytes[len / 3..]])
                    .unwrap(),
                2 => device.write_fua(offset, &bytes).unwrap(),
                3 => {
                    let half = len / 2;
                    let (one, two) = bytes.split_at(half);
                    let runs = [
                        WriteRun { offset: offset + half as u64, bufs: &[two] },
                        WriteRun { offset, bufs: &[one] },
                    ];
                    device.write_many(&runs).unwrap();
                }
                4 => {
                    if device.punch(offset, len as u64).unwrap() {
                        model[at..at + len].fill(0);
                    }
                    device.write_at(offset, &bytes).unwrap();
                }
                _ => device.write_at(offset, &bytes).unwrap(),
            }
            model[at..at + len].copy_from_slice(&bytes);
            let at = random.random_range(0..model.len() - 70_000);
            let mut read = vec![0; len];
            let (one, two) = read.split_at_mut(len / 2);
            device.read_vectored_at(at as u64, &mut [one, &mut [], two]).unwrap();
            assert!(read == model[at..at + len], "{manner:?} round {round}");
        }
        device.flush().unwrap();
        assert!(!manner.flush || server.durable() == model, "{manner:?}");
        assert!(device.read_at(LEN - 1, &mut [0; 2]).is_err());
        assert!(device.write_at(LEN, &[0]).is_err());
    }
}

/// Fault model: a server forgets what it acknowledged and had not flushed, while many threads write
/// and flush; one of them sees an error, or what it wrote is gone. Each thread has its own blocks
/// and writes numbers that rise, so an older one that comes back is seen too.
#[test]
fn a_server_that_forgets_loses_nothing() {
    const THREADS: u64 = 6;
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 12;
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    let manner = Manner { delay: Duration::from_micros(200), ..Manner::new(LEN) };
    server.start(manner.clone());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    let tell = move |event: &NbdEvent| ears.lock().unwrap().push(event.clone());
    // So few bytes may be kept that the device flushes by itself, too.
    let few = NbdOptions { unflushed_bytes: 300_000, tell: Some(Arc::new(tell)), ..options() };
    let device = open(&server, few).unwrap();
    let stop = AtomicBool::new(false);
    let written: Vec<Vec<u32>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|own| {
                let (device, stop) = (&device, &stop);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(own);
                    let mut newest = vec![0_u32; usize::try_from(BLOCKS).unwrap()];
                    let mut number = 0_u32;
                    while !stop.load(Ordering::SeqCst) {
                        number += 1;
                        let block = random.random_range(0..BLOCKS);
                        let offset = (own * BLOCKS + block) * BLOCK as u64;
                        let bytes = number.to_be_bytes().repeat(BLOCK / 4);
                        match random.random_range(0..8) {
                            0 => device.write_fua(offset, &bytes).unwrap(),
                            1 => {
                                device.write_at(offset, &bytes).unwrap();
                                device.flush().unwrap();
                            }
                            // A part of the block, which is the rest of what the last write was.
                            2 => {
                                device.write_at(offset, &bytes).unwrap();
                                device.write_at(offset + 512, &bytes[512..1024]).unwrap();
                            }
                            _ => device.write_at(offset, &bytes).unwrap(),
                        }
                        newest[usize::try_from(block).unwrap()] = number;
                        let mut read = vec![0; BLOCK];
                        device.read_at(offset, &mut read).unwrap();
                        assert!(read == bytes, "thread {own}, block {block}, write {number}");
                    }
                    newest
                })
            })
            .collect();
        for _ in 0..20 {
            let before = server.asked.writes.load(Ordering::SeqCst);
            // One that has failed ends: the others wait for nobody.
            while server.asked.writes.load(Ordering::SeqCst) < before + 60
                && !threads.iter().any(|thread| thread.is_finished())
            {
                thread::yield_now();
            }
            server.kill();
            server.start(manner.clone());
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    device.flush().unwrap();
    let durable = server.durable();
    for (own, newest) in written.iter().enumerate() {
        for (block, number) in newest.iter().enumerate() {
            let at = (own * usize::try_from(BLOCKS).unwrap() + block) * BLOCK;
            let bytes = number.to_be_bytes().repeat(BLOCK / 4);
            assert!(durable[at..at + BLOCK] == bytes, "thread {own}, block {block}");
        }
    }
    drop(device);
    let heard = heard.lock().unwrap();
    let back = heard.iter().filter(|event| matches!(event, NbdEvent::Back { .. })).count();
    assert!(back >= 15, "{heard:?}");
    assert!(!heard.iter().any(|event| matches!(event, NbdEvent::GivenUp { .. })), "{heard:?}");
}

/// Fault model: a server that stays away is waited for without an end, or its device works again
/// later as if nothing had been lost.
#[test]
fn a_server_that_stays_away_fails_every_request_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.start(Manner::new(LEN));
    let short = NbdOptions { timeout: Duration::from_millis(300), ..options() };
    let device = open(&server, short).unwrap();
    device.write_at(0, &[1; 4096]).unwrap();
    server.kill();
    let error = device.flush().unwrap_err().to_string();
    assert!(error.contains("nbd+unix://"), "{error}");
    server.start(Manner::new(LEN));
    assert!(device.flush().is_err() && device.write_at(0, &[2]).is_err());
    assert!(device.read_at(0, &mut [0]).is_err());
}

/// Fault model: a server that is there and says nothing hangs its caller, or the end of the device.
#[test]
fn a_silent_server_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.start(Manner { silent_after: Some(3), multi: false, ..Manner::new(LEN) });
    let short = NbdOptions { timeout: Duration::from_millis(400), ..options() };
    let device = open(&server, short).unwrap();
    // The thread that watches has looked, and found nothing to wait for.
    thread::sleep(Duration::from_millis(200));
    let failed = (0..100).find_map(|at| device.write_at(at * 4096, &[1; 4096]).err());
    assert!(failed.is_some());
}

/// Fault model: a server that answers replays with an error, or not at all, is waited for without
/// an end; one that does so for a moment is given up.
#[test]
fn a_replay_that_fails_is_tried_until_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let of = |manner: Manner, timeout| {
        let mut server = Server::new(folder.path());
        server.start(Manner::new(LEN));
        let options = NbdOptions { timeout: Duration::from_millis(timeout), ..options() };
        let device = open(&server, options).unwrap();
        device.write_at(4096, &[9; 4096]).unwrap();
        server.kill();
        server.start(manner);
        (server, device)
    };
    let fails = Manner { fails: Some((1, 5)), ..Manner::new(LEN) };
    let (server, device) = of(fails.clone(), 300);
    assert!(device.read_at(0, &mut [0; 512]).is_err());
    drop((device, server));
    let silent = Manner { silent_after: Some(0), ..Manner::new(LEN) };
    let (server, device) = of(silent, 300);
    assert!(device.read_at(0, &mut [0; 512]).is_err());
    drop((device, server));
    let (mut server, device) = of(fails, 20_000);
    while server.asked.connections.load(Ordering::SeqCst) < 20 {
        thread::yield_now();
    }
    server.kill();
    server.start(Manner::new(LEN));
    let mut read = [0; 4096];
    device.read_at(4096, &mut read).unwrap();
    assert_eq!(read, [9; 4096]);
}

/// Fault model: one connection of several ends, and its requests, or those of the others, are lost.
#[test]
fn one_connection_of_several_may_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.start(Manner { delay: Duration::from_micros(300), ..Manner::new(LEN) });
    let device = open(&server, options()).unwrap();
    assert_eq!(server.asked.connections.load(Ordering::SeqCst), 4);
    thread::scope(|scope| {
        for own in 0..4_u8 {
            let device = &device;
            scope.spawn(move || {
                for number in 0..200_u8 {
                    let offset = u64::from(own) * 4096;
                    device.write_at(offset, &[number; 4096]).unwrap();
                    let mut read = [0; 4096];
                    device.read_at(offset, &mut read).unwrap();
                    assert_eq!(read, [number; 4096], "thread {own}");
                }
            });
        }
        for round in 0..10 {
            let before = server.asked.writes.load(Ordering::SeqCst);
            let all = 4 * 200;
            while server.asked.writes.load(Ordering::SeqCst) < (before + 30).min(all) {
                thread::yield_now();
            }
            server.cut(round);
        }
    });
}

/// Fault model: a request that kills its server does so for ever.
#[test]
fn a_request_that_kills_each_server_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.start(Manner { dies_at: Some(4), ..Manner::new(LEN) });
    let short = NbdOptions { timeout: Duration::from_millis(300), ..options() };
    let device = open(&server, short).unwrap();
    let error = device.discard(0, 4096).unwrap_err().to_string();
    assert!(error.contains("nbd+unix://"), "{error}");
}

/// Fault model: an error of the server is no error of the call, or of a later one that is well.
#[test]
fn an_error_of_the_server_is_the_error_of_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.start(Manner { fails: Some((1, 28)), ..Manner::new(LEN) });
    let device = open(&server, options()).unwrap();
    let error = device.write_at(0, &[1; 4096]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    device.read_at(0, &mut [0; 4096]).unwrap();
    drop(device);
    server.kill();

    server.start(Manner { fails: Some((3, 5)), ..Manner::new(LEN) });
    let device = open(&server, options()).unwrap();
    device.write_at(0, &[1; 4096]).unwrap();
    assert!(device.flush().is_err());
    drop(device);
    server.kill();
}

/// Fault model: what must not be opened is opened; the line does not say why.
#[test]
fn exports_that_cannot_be_used_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    let short = || NbdOptions { timeout: Duration::from_millis(300), ..options() };
    let refused = |server: &Server, what: &str| {
        let error = open(server, short()).unwrap_err();
        assert!(error.starts_with("nbd+unix://") && error.contains(what), "{error}");
        assert!(!error.contains('\n'), "{error}");
    };
    refused(&server, "no connection");
    server.start(Manner { read_only: true, ..Manner::new(LEN) });
    refused(&server, "open it read-only");
    let reading = NbdOptions { read_only: true, ..options() };
    let device = open(&server, reading).unwrap();
    assert_eq!(device.write_at(0, &[0]).unwrap_err().raw_os_error(), Some(30));
    drop(device);
    server.kill();
    server.start(Manner { sizes: Some((3, 9)), ..Manner::new(LEN) });
    refused(&server, "3 to 9 bytes");
    server.kill();
    server.start(Manner::new(0));
    refused(&server, "0 bytes");
    let wrong: NbdUri = server.uri().replace("/disk?", "/else?").parse().unwrap();
    let error = NbdDevice::open(&wrong, options()).unwrap_err().to_string();
    assert!(error.contains("has no export \"else\": no such export"), "{error}");
}

/// Fault model: a failure that a program cannot tell from another one, because it has the same
/// errno or none. The certificates of this host do not matter: without any, TLS is refused as well.
#[test]
fn each_failure_of_opening_has_its_errno() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    let errno = |uri: &str| {
        let uri: NbdUri = uri.parse().unwrap();
        NbdDevice::open(&uri, options()).unwrap_err().errno()
    };
    assert_eq!(errno(&server.uri()), 2, "ENOENT: no socket");
    assert_eq!(errno("nbd://127.0.0.1:1/"), 111, "ECONNREFUSED");
    // No name server is asked for a label of more than 63 bytes.
    let host = "x".repeat(64);
    assert_eq!(errno(&format!("nbd://{host}/")), 113, "EHOSTUNREACH: no such host");
    server.start(Manner { read_only: true, ..Manner::new(LEN) });
    assert_eq!(errno(&server.uri()), 30, "EROFS: a read-only export");
    assert_eq!(errno(&server.uri().replace("/disk?", "/else?")), 6, "ENXIO: no such export");
    assert_eq!(errno(&server.uri().replace("nbd+unix", "nbds+unix")), 13, "EACCES: no TLS");
}

/// Fault model: an export that has shrunk is used on.
#[test]
fn an_export_that_shrinks_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.start(Manner::new(LEN));
    let device = open(&server, options()).unwrap();
    server.kill();
    server.start(Manner::new(LEN / 2));
    let error = device.read_at(0, &mut [0; 512]).unwrap_err().to_string();
    assert!(error.contains("shrank from 4194304 to 2097152 bytes"), "{error}");
}

/// Fault model: a server comes back with another disk of the same size, and changes are made again
/// there; or a disk is taken for another one that is the same.
#[test]
fn another_disk_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let disk = |uuid: u8| {
        let mut bytes = vec![0; LEN as usize];
        bytes[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xEF]);
        bytes[1024 + 0x68..][..16].fill(uuid);
        bytes
    };
    let base = Manner::new(LEN);
    // The second one takes no request that is as long as all that could be compared.
    for manner in [base.clone(), Manner { sizes: Some((512, 4096)), ..base }] {
        let mut server = Server::new(folder.path());
        server.load(disk(1));
        server.start(manner.clone());
        let device = open(&server, options()).unwrap();
        device.write_at(1 << 20, &[1; 4096]).unwrap();
        server.kill();
        server.start(manner.clone());
        device.flush().unwrap();
        device.write_at(2 << 20, &[1; 4096]).unwrap();
        server.kill();
        server.load(disk(2));
        let writes = server.asked.writes.load(Ordering::SeqCst);
        server.start(manner);
        let error = device.flush().unwrap_err().to_string();
        assert!(error.contains("another disk now: not the same file system"), "{error}");
        assert_eq!(server.asked.writes.load(Ordering::SeqCst), writes);
    }
}

/// Fault model: a server is gone until the lease is over, and another host has the disk by then.
#[test]
fn nothing_is_written_again_after_the_lease() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    // A file system, so that each server is asked whether it has the same.
    let mut disk = vec![0; LEN as usize];
    disk[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xEF]);
    disk[1024 + 0x68..][..16].fill(1);
    server.load(disk);
    server.start(Manner::new(LEN));
    let whole: SharedDevice = Arc::new(open(&server, options()).unwrap());
    let lease = Arc::new(Lease::until(Duration::MAX));
    let part = PartDevice::new(Arc::clone(&whole), 4096..LEN);
    let device = LeasedDevice::new(Arc::new(part), Arc::clone(&lease));
    device.write_at(1 << 20, &[1; 4096]).unwrap();
    server.kill();
    server.start(Manner::new(LEN));
    // While it lasts the change is made again.
    device.flush().unwrap();
    device.write_at(2 << 20, &[1; 4096]).unwrap();
    server.kill();
    lease.end();
    let writes = server.asked.writes.load(Ordering::SeqCst);
    server.start(Manner::new(LEN));
    let error = whole.flush().unwrap_err().to_string();
    assert!(error.contains("for longer than other hosts wait"), "{error}");
    assert_eq!(server.asked.writes.load(Ordering::SeqCst), writes);
}

/// Fault model: bytes of a server that mean nothing end in a panic, a hang or much memory.
#[test]
fn garbage_in_place_of_a_reply_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(11);
    for round in 0..60 {
        let mut garbage: Vec<u8> = (0..64).map(|_| random.random()).collect();
        match round % 4 {
            0 => garbage[..4].copy_from_slice(&0x6744_6698_u32.to_be_bytes()),
            1 => garbage[..4].copy_from_slice(&0x668e_33ef_u32.to_be_bytes()),
            // A chunk of the first request, of any kind and length.
            2 => {
                garbage[..4].copy_from_slice(&0x668e_33ef_u32.to_be_bytes());
                garbage[6..8].copy_from_slice(&random.random_range(0..7_u16).to_be_bytes());
                garbage[8..16].copy_from_slice(&1_u64.to_be_bytes());
            }
            _ => {}
        }
        let mut server = Server::new(folder.path());
        server.start(Manner { garbage: Some(garbage), multi: false, ..Manner::new(LEN) });
        let short = NbdOptions { timeout: Duration::from_millis(60), ..options() };
        // An answer that is right by chance has no error; then the next one has.
        if let Ok(device) = open(&server, short) {
            let ends = (0..3).any(|_| device.read_at(0, &mut [0; 4096]).is_err());
            assert!(ends, "round {round}");
        }
    }
}

/// Fault model: a server whose fsync(2) fails loses other pages as well and says so once; a flush
/// is not sent though another client, or this one, has left something volatile.
#[test]
fn flushes_are_spared_only_where_nothing_can_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let with = |fails: Option<(u16, u32)>| {
        let mut server = Server::new(folder.path());
        server.start(Manner { fails, ..Manner::new(LEN) });
        let device = open(&server, options()).unwrap();
        (server, device)
    };
    let (server, device) = with(None);
    let flushes = || server.asked.flushes.load(Ordering::SeqCst);
    assert_eq!(flushes(), 0);
    device.flush().unwrap();
    assert_eq!(flushes(), 1, "what others have left");
    device.write_fua(0, &[1; 4096]).unwrap();
    let two =
        [WriteRun { offset: 0, bufs: &[&[2; 512]] }, WriteRun { offset: 8192, bufs: &[&[2; 512]] }];
    device.write_many_fua(&two).unwrap();
    device.flush().unwrap();
    assert_eq!(flushes(), 1, "all was durable");
    device.write_at(0, &[3; 1024]).unwrap();
    device.write_fua(0, &[4; 512]).unwrap();
    device.flush().unwrap();
    assert_eq!(flushes(), 2, "the second half was not durable");
    drop((device, server));
    // EIO: what else is lost is not known. ENOSPC: nothing is.
    for (errno, is_latched) in [(5, true), (28, false)] {
        let (_server, device) = with(Some((1, errno)));
        assert!(device.write_fua(0, &[1; 4096]).is_err());
        assert_eq!(device.flush().is_err(), is_latched, "{errno}");
    }
}
