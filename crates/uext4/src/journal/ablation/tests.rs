//! The ablation options on the queue alone: see `join/tests.rs`.

use crate::config::{CreditMode, JoinMode};
use crate::journal::join::tests::{Fixture, JOIN, granted};
use crate::journal::join::{Grant, Outcome, RequestKind};
use crate::stats::WaitFor;
use crate::sync::atomic::Ordering;
use uext4_ondisk::Tid;

#[test]
fn a_herd_is_woken_as_a_whole() {
    let fixture = Fixture::new(JoinMode::Herd);
    fixture.gets(JOIN, 100);
    assert!(matches!(fixture.submit(JOIN, 60), (Outcome::Retry, Some(Tid(7)))));
    std::thread::scope(|scope| {
        let joiners: Vec<_> = (0..4).map(|_| scope.spawn(|| fixture.submit(JOIN, 60))).collect();
        while fixture.queue.len.load(Ordering::Acquire) < 4 {
            std::thread::yield_now();
        }
        fixture.commit();
        // One joins. One of the others returns to request a commit.
        while fixture.queue.len.load(Ordering::Acquire) > 2 {
            std::thread::yield_now();
        }
        fixture.queue.abort();
        let ends: Vec<_> = joiners.into_iter().map(|j| j.join().unwrap().0).collect();
        let count = |f: fn(&Outcome) -> bool| ends.iter().filter(|end| f(end)).count();
        assert_eq!(count(|end| matches!(end, Outcome::Granted(Grant::Joined(_)))), 1);
        assert_eq!(count(|end| matches!(end, Outcome::Retry)), 1);
        assert_eq!(count(|end| matches!(end, Outcome::Granted(Grant::Aborted))), 2);
    });
    // Two more if the last two slept again before the abort.
    assert!(fixture.stats.wake_ups.load(std::sync::atomic::Ordering::Relaxed) >= 4);
}

#[test]
fn worst_credits_stay_with_the_transaction_until_it_commits() {
    assert_eq!((CreditMode::Worst.need(20, 100), CreditMode::Worst.need(95, 100)), (32, 100));
    let fixture = Fixture::new(JoinMode::Fifo);
    fixture.gets(RequestKind::Reserve, 30);
    fixture.queue.unreserve(&fixture.running, 30, CreditMode::Worst.returned(30));
    assert_eq!(fixture.running.load().credits, 30);
    fixture.commit();
    assert_eq!(fixture.running.load().credits, 0);
}

#[test]
fn one_queued_joiner_is_sent_to_make_room_and_served_first() {
    let fixture = Fixture::new(JoinMode::Fifo);
    let (queue, running) = (&fixture.queue, &fixture.running);
    running.close();
    let (first, cause, _) = fixture.waits(JOIN, 60);
    assert_eq!(cause, WaitFor::TransactionLocked);
    queue.note_shortage();
    let (second, cause, _) = fixture.waits(JOIN, 60);
    assert_eq!(cause, WaitFor::LogSpace);
    queue.delegate(running, Tid(8));
    assert_eq!((granted(&first), granted(&second)), (Some(Grant::MakeRoom), None));
    // One joiner makes room, so others wait.
    fixture.waits(JOIN, 1);
    let (own, commit) = queue.open_delegated(running, first.request);
    assert!(matches!(own, Some(Grant::Joined(_))));
    assert_eq!((commit, granted(&second)), (Some(Tid(8)), None));
    // A second joiner that made room opens nothing.
    assert_eq!(queue.open_delegated(running, second.request), (None, None));
    assert_eq!(fixture.refused(), [1, 0, 3, 0]);
}

#[test]
fn the_next_joiner_makes_room_if_none_waits() {
    for mode in [JoinMode::Fifo, JoinMode::Herd] {
        let fixture = Fixture::new(mode);
        fixture.running.close();
        fixture.queue.delegate(&fixture.running, Tid(8));
        assert_eq!(fixture.gets(JOIN, 1), Grant::MakeRoom);
        assert!(fixture.queue.is_delegated());
    }
}

#[cfg(not(feature = "shuttle"))]
mod reopening;
