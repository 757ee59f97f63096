//! Fault model: a store that refuses writes for lack of room, for a while or for good. Where a
//! test gives up, it asserts what was told and what failed, never how long it took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(20);

fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

/// A room, and what it told.
fn room(timeout: Duration) -> (Arc<Room>, Arc<Mutex<Vec<RoomEvent>>>) {
    let (room, told) = (Arc::new(Room::new(timeout)), Arc::<Mutex<Vec<RoomEvent>>>::default());
    let seen = Arc::clone(&told);
    room.set_hook(move |event| seen.lock().push(event));
    (room, told)
}

#[test]
fn writes_are_held_until_there_is_room_and_each_end_is_told_once() {
    let (room, told) = room(LONG);
    let (full, done) = (AtomicBool::new(true), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::ENOSPC] {
            let (room, full, done) = (&room, &full, &done);
            scope.spawn(move || {
                let write = || match full.load(Ordering::SeqCst) {
                    true => Err(io::Error::from_raw_os_error(errno)),
                    false => Ok(()),
                };
                room.hold(write).unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        while room.read().waiting < 3 {
            std::thread::yield_now();
        }
        assert_eq!(done.load(Ordering::SeqCst), 0);
        assert_eq!(*told.lock(), [RoomEvent::Waits(LONG)]);
        // A write that needs no room, and one that fails for another reason, are not held.
        room.hold(|| Ok(())).unwrap();
        let broken = room.hold(|| Err(io::Error::from_raw_os_error(libc::EIO)));
        assert_eq!(broken.unwrap_err().raw_os_error(), Some(libc::EIO));
        full.store(false, Ordering::SeqCst);
    });
    assert_eq!(room.read(), RoomReading { waiting: 0, waits: 1, failures: 0 });
    let told = told.lock();
    assert!(matches!(told[..], [RoomEvent::Waits(_), RoomEvent::Ended(_)]), "{told:?}");
}

#[test]
fn after_the_time_out_writes_fail_and_the_next_at_once() {
    let (room, told) = room(SHORT);
    let tries = AtomicU32::new(0);
    let refuse = || {
        tries.fetch_add(1, Ordering::SeqCst);
        Err(refused())
    };
    assert_eq!(room.hold(refuse).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert!(tries.load(Ordering::SeqCst) >= 2, "a last try at the end of the time-out");
    assert_eq!(*told.lock(), [RoomEvent::Waits(SHORT), RoomEvent::GaveUp(SHORT)]);
    room.state.lock().failed = Some(Instant::now() + LONG);
    assert!(room.hold(refuse).is_err());
    assert_eq!(told.lock().len(), 2, "nothing new");
    assert_eq!(room.read(), RoomReading { waiting: 0, waits: 1, failures: 2 });
    // Once nothing was refused for a time-out, writes are held again.
    room.state.lock().failed = None;
    let mut tries = 0;
    room.hold(|| {
        tries += 1;
        if tries < 2 { Err(refused()) } else { Ok(()) }
    })
    .unwrap();
    assert_eq!(room.read(), RoomReading { waiting: 0, waits: 2, failures: 2 });
}

/// The time-out counts from the last write that was made: a store that gets room bit by bit is
/// waited for.
#[test]
fn progress_of_one_write_keeps_the_others_waiting() {
    let (room, _told) = room(LONG);
    {
        let mut state = room.state.lock();
        (state.held, state.waits) = (1, 1);
        state.since = Instant::now().checked_sub(LONG);
        state.progress = state.since;
    }
    assert!(!room.state.lock().gave_up);
    drop(Held { room: &room, succeeded: true });
    room.state.lock().held = 1;
    assert!(!room.gives_up(), "a write was made a moment ago");
    room.state.lock().progress = Instant::now().checked_sub(LONG);
    assert!(room.gives_up());
}

#[test]
fn without_a_time_out_nothing_is_held() {
    let (room, told) = room(Duration::ZERO);
    let mut tries = 0;
    let result = room.hold(|| {
        tries += 1;
        Err(refused())
    });
    assert!(result.is_err());
    assert_eq!((tries, told.lock().len(), room.read().failures), (1, 0, 1));
}

#[test]
fn lines_say_what_users_can_do_with() {
    let waits = RoomEvent::Waits(Duration::from_secs(60)).to_string();
    assert_eq!(
        waits,
        "no space left where the image is stored: writes wait for room, for up to 60 s"
    );
    let gave_up = RoomEvent::GaveUp(Duration::from_secs(60)).to_string();
    assert_eq!(gave_up, "no space left where the image is stored, for 60 s: writes fail");
    let ended = RoomEvent::Ended(Duration::from_millis(1260)).to_string();
    assert_eq!(ended, "the image has room again: all writes that waited are made, after 1.3 s");
}
