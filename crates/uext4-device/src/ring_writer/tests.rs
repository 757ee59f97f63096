//! Tests of a writer's ring: what no caller of a device can arrange.

use std::io::Write;

use super::*;
use crate::device::WriteRun;

/// A file of `len` bytes, and a ring for it; `None`, said so, where the system has no io_uring.
fn ring(len: usize, align: Option<Alignment>) -> Option<(File, RingWriter)> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![0; len]).unwrap();
    match RingWriter::open(&file, align) {
        Ok(ring) => Some((file, ring)),
        Err(error) => {
            println!("skipped: no io_uring: {error}");
            None
        }
    }
}

fn content(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn in_flight<'r, 'p, 'b>(
    writer: &'r mut RingWriter,
    pieces: &'p Pieces<'b>,
) -> InFlight<'r, 'p, 'b> {
    let slots = vec![Slots::default(); pieces.len()];
    InFlight { writer, pieces, slots, next: 0, count: 0, left: Vec::new(), failed: None }
}

/// Far more requests than the ring has places, of sizes that leave holes in the arena.
#[test]
fn more_requests_than_places() {
    let len = 8 << 20;
    // With an alignment: buffers at odd addresses, so every one is copied.
    for align in [None, Some(Alignment { unit: 512, memory: 1 << 12 })] {
        let Some((file, mut ring)) = ring(len, align) else { return };
        let bytes: Vec<u8> = (0..=len).map(|at| (at / 3) as u8).collect();
        let want = &bytes[1..];
        let sizes = [512, 16384, 1024, 300 * 512, 4096, 512, PIECE_MAX * 2 + 512];
        let (mut bufs, mut at) = (Vec::new(), 0);
        for size in sizes.iter().cycle() {
            let end = (at + size).min(len);
            bufs.push((at as u64, [&want[at..end]]));
            at = end;
            if at == len {
                break;
            }
        }
        for round in 0..2 {
            let mut pieces = Pieces::default();
            for (offset, buf) in &bufs {
                pieces.add(*offset, &WriteRun { offset: 0, bufs: buf }, align);
            }
            assert!(pieces.len() > DEPTH / 2);
            assert_eq!(ring.write(&pieces).unwrap(), [0; 0], "round {round}");
        }
        assert!(content(&file) == want);
        assert!(!ring.broken());
        assert!(ring.arena.as_ref().is_none_or(|arena| arena.taken == 0));
    }
}

/// A panic between submission and completion: the call does not end before the kernel has.
#[test]
fn what_the_kernel_has_taken_is_waited_for() {
    let Some((file, mut ring)) = ring(1 << 20, None) else { return };
    let bytes = vec![9; 1 << 20];
    let chunks: Vec<[&[u8]; 1]> = bytes.chunks(1 << 14).map(|chunk| [chunk]).collect();
    let mut pieces = Pieces::default();
    for (index, bufs) in chunks.iter().enumerate() {
        pieces.add((index as u64) << 14, &WriteRun { offset: 0, bufs }, None);
    }
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut flight = in_flight(&mut ring, &pieces);
        flight.push_all();
        flight.writer.ring.enter(0).unwrap();
        assert_eq!(flight.count, 64);
        panic!("injected");
    }));
    assert!(unwound.is_err() && !ring.broken());
    assert!(content(&file) == bytes);
    assert!(ring.write(&pieces).unwrap().is_empty());
}

/// A panic before submission: the entries, whose buffers are gone, must never be submitted.
#[test]
fn what_the_kernel_never_got_breaks_the_ring() {
    let Some((file, mut ring)) = ring(1 << 16, None) else { return };
    let bytes = vec![9; 1 << 16];
    let bufs = [&bytes[..]];
    let mut pieces = Pieces::default();
    pieces.add(0, &WriteRun { offset: 0, bufs: &bufs }, None);
    let mut flight = in_flight(&mut ring, &pieces);
    flight.push_all();
    drop(flight);
    assert!(ring.broken());
    drop(ring);
    assert!(content(&file).iter().all(|byte| *byte == 0));
}

/// The medium's error is the call's, once; the ring serves the next call.
#[test]
fn an_error_ends_the_call_with_nothing_in_flight() {
    let file = File::open("/dev/null").unwrap();
    let Ok(mut ring) = RingWriter::open(&file, None) else { return };
    let bytes = [0; 64];
    let bufs = [&bytes[..]];
    let mut pieces = Pieces::default();
    for offset in 0..500 {
        pieces.add(offset * 64, &WriteRun { offset: 0, bufs: &bufs }, None);
    }
    for _ in 0..2 {
        let error = ring.write(&pieces).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF), "not open for writing");
    }
    assert!(!ring.broken());
}
