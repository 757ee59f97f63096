//! The queue by itself, on a word. Largest transaction: 100 credits, 50 of them to be reserved.

use super::*;

const JOIN: Want = Want::Join;
const RESERVE: Want = Want::Reserve;

struct Rig {
    queue: JoinQueue,
    running_state: PackedState,
    stats: Arc<AdmissionStats>,
}

fn rig(mode: JoinMode) -> Rig {
    let stats = Arc::new(AdmissionStats::default());
    let queue = JoinQueue::new(mode, 100, Arc::clone(&stats), Arc::new(Waits::default()));
    Rig { queue, running_state: PackedState::new(Tid(7)), stats }
}

impl Rig {
    fn enter(&self, want: Want, need: u32) -> (Entered, Ask) {
        self.queue.enter(&self.running_state, Request { want, need })
    }

    /// Enters and gets it at once.
    fn gets(&self, want: Want, need: u32) -> Grant {
        match self.enter(want, need).0 {
            Entered::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn waits(&self, want: Want, need: u32) -> (Arc<Waiter>, WaitFor, Ask) {
        match self.enter(want, need) {
            (Entered::InLine(waiter, cause), ask) => (waiter, cause, ask),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&self) -> Ask {
        let tid = self.running_state.close().tid;
        self.queue.open(&self.running_state, tid.next())
    }

    fn refused(&self) -> [u64; 4] {
        self.stats.refused.each().map(|(_, count)| count.load(std::sync::atomic::Ordering::Relaxed))
    }
}

fn granted(waiter: &Waiter) -> Option<Grant> {
    waiter.state.lock().granted
}

#[test]
fn a_small_need_waits_behind_a_large_one_and_one_asks_for_the_commit() {
    let rig = rig(JoinMode::Fifo);
    assert!(matches!(rig.gets(JOIN, 60), Grant::Joined(_)));
    let (large, cause, ask) = rig.waits(JOIN, 50);
    assert_eq!((cause, ask), (WaitFor::TransactionFull, Some(Tid(7))));
    let (small, cause, ask) = rig.waits(JOIN, 1);
    assert_eq!((cause, ask), (WaitFor::TransactionFull, None));
    rig.running_state.leave(20);
    assert_eq!(rig.queue.look_again(&rig.running_state), None);
    assert!(matches!(granted(&large), Some(Grant::Joined(_))));
    assert!(matches!(granted(&small), Some(Grant::Joined(_))));
    assert!(rig.queue.is_empty());
    assert_eq!(rig.refused(), [0, 2, 0, 0]);
}

#[test]
fn whoever_finds_no_place_in_a_new_transaction_asks_again() {
    let rig = rig(JoinMode::Fifo);
    rig.gets(JOIN, 100);
    let (first, ..) = rig.waits(JOIN, 70);
    let (second, ..) = rig.waits(JOIN, 70);
    assert_eq!(rig.commit(), Some(Tid(8)));
    assert!(granted(&first).is_some() && granted(&second).is_none());
    // Found empty, and opened again under its id.
    rig.running_state.close();
    assert_eq!(rig.queue.open(&rig.running_state, Tid(8)), None);
    assert!(granted(&second).is_some());
}

#[test]
fn reserved_credits_are_carried_from_transaction_to_transaction() {
    let rig = rig(JoinMode::Fifo);
    assert_eq!(rig.gets(RESERVE, 30), Grant::Reserved);
    assert_eq!(rig.running_state.load().credits, 30);
    rig.running_state.close();
    // While it is closed they are counted in the next.
    assert_eq!(rig.gets(RESERVE, 10), Grant::Reserved);
    rig.queue.unreserve(&rig.running_state, 5, false);
    rig.queue.open(&rig.running_state, Tid(8));
    assert_eq!(rig.running_state.load().credits, 35);
    rig.gets(JOIN, 65);
    // Full, and a reserved handle joins all the same.
    let Grant::Joined(moment) = rig.gets(Want::StartReserved, 30) else { panic!() };
    assert_eq!((moment.credits, moment.handles), (100, 2));
    rig.commit();
    assert_eq!(rig.running_state.load().credits, 5);
    rig.queue.unreserve(&rig.running_state, 5, false);
    assert_eq!(rig.running_state.load().credits, 0);
    assert_eq!(rig.stats.reserved_high_water.load(std::sync::atomic::Ordering::Relaxed), 40);
}

#[test]
fn kept_credits_stay_until_the_commit_only() {
    let rig = rig(JoinMode::Fifo);
    rig.gets(RESERVE, 30);
    rig.queue.unreserve(&rig.running_state, 30, true);
    assert_eq!(rig.running_state.load().credits, 30);
    rig.commit();
    assert_eq!(rig.running_state.load().credits, 0);
}

#[test]
fn reservations_wait_for_reservations_and_then_for_room() {
    let rig = rig(JoinMode::Fifo);
    rig.gets(RESERVE, 40);
    let (waiter, cause, ask) = rig.waits(RESERVE, 20);
    assert_eq!((cause, ask), (WaitFor::ReservedCredits, None));
    rig.gets(JOIN, 60);
    // The handle has its credits still, so there is no room: a commit is needed now.
    let (entered, ask) = rig.enter(Want::StartReserved, 40);
    assert!(matches!(entered, Entered::Granted(Grant::Joined(_))));
    assert_eq!((ask, granted(&waiter)), (Some(Tid(7)), None));
    rig.commit();
    assert_eq!(granted(&waiter), Some(Grant::Reserved));
    assert_eq!(rig.running_state.load().credits, 20);
}

#[test]
fn a_need_beyond_what_is_reserved_holds_nobody_up() {
    let rig = rig(JoinMode::Fifo);
    rig.gets(RESERVE, 50);
    let (large, cause, ask) = rig.waits(JOIN, 80);
    assert_eq!((cause, ask), (WaitFor::ReservedCredits, None));
    // Whoever has reserved may need a handle of its own first.
    assert!(matches!(rig.gets(JOIN, 10), Grant::Joined(_)));
    rig.running_state.leave(10);
    rig.queue.unreserve(&rig.running_state, 50, false);
    assert!(matches!(granted(&large), Some(Grant::Joined(_))));
    assert_eq!(rig.refused(), [0, 0, 0, 1]);
}

#[test]
fn one_in_line_is_sent_to_make_room_and_served_first() {
    let rig = rig(JoinMode::Fifo);
    rig.running_state.close();
    let (first, cause, _) = rig.waits(JOIN, 60);
    assert_eq!(cause, WaitFor::TransactionLocked);
    rig.queue.note_shortage();
    let (second, cause, _) = rig.waits(JOIN, 60);
    assert_eq!(cause, WaitFor::LogSpace);
    rig.queue.leave_to_joiners(Tid(8));
    assert_eq!((granted(&first), granted(&second)), (Some(Grant::MakeRoom), None));
    // It is on its way: others wait.
    rig.waits(JOIN, 1);
    let (own, ask) = rig.queue.open_with_room(&rig.running_state, first.request);
    assert!(matches!(own, Some(Grant::Joined(_))));
    assert_eq!((ask, granted(&second)), (Some(Tid(8)), None));
    // Room was made once.
    assert_eq!(rig.queue.open_with_room(&rig.running_state, second.request), (None, None));
    assert_eq!(rig.refused(), [1, 0, 3, 0]);
}

#[test]
fn the_first_who_comes_makes_room_if_nobody_waits() {
    for mode in [JoinMode::Fifo, JoinMode::Herd] {
        let rig = rig(mode);
        rig.running_state.close();
        rig.queue.leave_to_joiners(Tid(8));
        assert_eq!(rig.gets(JOIN, 1), Grant::MakeRoom);
        assert!(rig.queue.is_short());
    }
}

#[test]
fn an_abort_ends_every_wait_and_every_later_one() {
    let rig = rig(JoinMode::Fifo);
    rig.running_state.close();
    let (waiter, ..) = rig.waits(JOIN, 1);
    rig.queue.abort();
    assert_eq!(granted(&waiter), Some(Grant::Aborted));
    assert_eq!(rig.gets(JOIN, 1), Grant::Aborted);
}

#[test]
fn the_herd_wakes_as_a_whole() {
    let rig = rig(JoinMode::Herd);
    rig.gets(JOIN, 100);
    assert!(matches!(rig.enter(JOIN, 60), (Entered::Again, Some(Tid(7)))));
    std::thread::scope(|scope| {
        let joiners: Vec<_> = (0..4).map(|_| scope.spawn(|| rig.enter(JOIN, 60))).collect();
        while rig.queue.len.load(Ordering::Acquire) < 4 {
            std::thread::yield_now();
        }
        rig.commit();
        // One got in; one of those who did not tells to ask for a commit, and goes.
        while rig.queue.len.load(Ordering::Acquire) > 2 {
            std::thread::yield_now();
        }
        rig.queue.abort();
        let ends: Vec<_> = joiners.into_iter().map(|j| j.join().unwrap().0).collect();
        let count = |f: fn(&Entered) -> bool| ends.iter().filter(|end| f(end)).count();
        assert_eq!(count(|end| matches!(end, Entered::Granted(Grant::Joined(_)))), 1);
        assert_eq!(count(|end| matches!(end, Entered::Again)), 1);
        assert_eq!(count(|end| matches!(end, Entered::Granted(Grant::Aborted))), 2);
    });
    // Two more if those who did not get in slept again before the abort.
    assert!(rig.stats.wake_ups.load(std::sync::atomic::Ordering::Relaxed) >= 4);
}
