//! The queue by itself. The largest transaction has 100 credits, of which 50 can be reserved.

use super::*;
use crate::journal::admission_stats::ByCause;

pub(in crate::journal) const JOIN: RequestKind = RequestKind::Join;
const RESERVE: RequestKind = RequestKind::Reserve;

pub(in crate::journal) struct Fixture {
    pub(in crate::journal) queue: JoinQueue,
    pub(in crate::journal) running: PackedState,
    pub(in crate::journal) stats: Arc<AdmissionStats>,
}

impl Fixture {
    pub(in crate::journal) fn new(mode: JoinMode) -> Self {
        let stats = Arc::new(AdmissionStats::default());
        let queue = JoinQueue::new(mode, &Arc::default(), 100, Arc::clone(&stats));
        Self { queue, running: PackedState::new(Tid(7)), stats }
    }

    pub(in crate::journal) fn submit(
        &self,
        kind: RequestKind,
        credits: u32,
    ) -> (Outcome, CommitRequest) {
        self.queue.submit(&self.running, Request { kind, credits })
    }

    /// Submits a request that is granted at once.
    pub(in crate::journal) fn gets(&self, kind: RequestKind, credits: u32) -> Grant {
        match self.submit(kind, credits).0 {
            Outcome::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    /// Submits a request that is queued.
    pub(in crate::journal) fn waits(
        &self,
        kind: RequestKind,
        credits: u32,
    ) -> (Arc<Waiter>, WaitFor, CommitRequest) {
        match self.submit(kind, credits) {
            (Outcome::Queued(waiter, cause), commit) => (waiter, cause, commit),
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::journal) fn commit(&self) -> CommitRequest {
        let tid = self.running.close().tid;
        self.queue.open(&self.running, tid.next())
    }

    pub(in crate::journal) fn refused(&self) -> [u64; 4] {
        let ByCause { locked, full, log_space, reserved } = &self.stats.refused;
        [locked, full, log_space, reserved]
            .map(|count| count.load(std::sync::atomic::Ordering::Relaxed))
    }
}

fn fifo() -> Fixture {
    Fixture::new(JoinMode::Fifo)
}

pub(in crate::journal) fn granted(waiter: &Waiter) -> Option<Grant> {
    waiter.state.lock().granted
}

#[test]
fn a_small_request_waits_behind_a_large_one_and_one_of_them_requests_the_commit() {
    let fixture = fifo();
    assert!(matches!(fixture.gets(JOIN, 60), Grant::Joined(_)));
    let (large, cause, commit) = fixture.waits(JOIN, 50);
    assert_eq!((cause, commit), (WaitFor::TransactionFull, Some(Tid(7))));
    let (small, cause, commit) = fixture.waits(JOIN, 1);
    assert_eq!((cause, commit), (WaitFor::TransactionFull, None));
    fixture.running.leave(20);
    assert_eq!(fixture.queue.wake(&fixture.running), None);
    assert!(matches!(granted(&large), Some(Grant::Joined(_))));
    assert!(matches!(granted(&small), Some(Grant::Joined(_))));
    assert!(fixture.queue.is_empty());
    assert_eq!(fixture.refused(), [0, 2, 0, 0]);
}

#[test]
fn a_request_that_does_not_fit_into_a_new_transaction_requests_its_commit() {
    let fixture = fifo();
    fixture.gets(JOIN, 100);
    let (first, ..) = fixture.waits(JOIN, 70);
    let (second, ..) = fixture.waits(JOIN, 70);
    assert_eq!(fixture.commit(), Some(Tid(8)));
    assert!(granted(&first).is_some() && granted(&second).is_none());
    // Transaction 8 is found empty and opens again.
    fixture.running.close();
    assert_eq!(fixture.queue.open(&fixture.running, Tid(8)), None);
    assert!(granted(&second).is_some());
}

#[test]
fn reserved_credits_are_carried_from_transaction_to_transaction() {
    let fixture = fifo();
    assert_eq!(fixture.gets(RESERVE, 30), Grant::Reserved);
    assert_eq!(fixture.running.load().credits, 30);
    fixture.running.close();
    // The next transaction counts what is reserved while this one is closed.
    assert_eq!(fixture.gets(RESERVE, 10), Grant::Reserved);
    fixture.queue.unreserve(&fixture.running, 5, 5);
    fixture.queue.open(&fixture.running, Tid(8));
    assert_eq!(fixture.running.load().credits, 35);
    fixture.gets(JOIN, 65);
    // The transaction is full, and a reserved handle joins all the same.
    let Grant::Joined(joined) = fixture.gets(RequestKind::StartReserved, 30) else { panic!() };
    assert_eq!((joined.credits, joined.handles), (100, 2));
    fixture.commit();
    assert_eq!(fixture.running.load().credits, 5);
    fixture.queue.unreserve(&fixture.running, 5, 5);
    assert_eq!(fixture.running.load().credits, 0);
    assert_eq!(fixture.stats.reserved_high_water.load(std::sync::atomic::Ordering::Relaxed), 40);
}

#[test]
fn reservations_wait_for_reservations_and_then_for_room() {
    let fixture = fifo();
    fixture.gets(RESERVE, 40);
    let (waiter, cause, commit) = fixture.waits(RESERVE, 20);
    assert_eq!((cause, commit), (WaitFor::ReservedCredits, None));
    fixture.gets(JOIN, 60);
    // The started handle keeps its credits, so only a commit makes room now.
    let (outcome, commit) = fixture.submit(RequestKind::StartReserved, 40);
    assert!(matches!(outcome, Outcome::Granted(Grant::Joined(_))));
    assert_eq!((commit, granted(&waiter)), (Some(Tid(7)), None));
    fixture.commit();
    assert_eq!(granted(&waiter), Some(Grant::Reserved));
    assert_eq!(fixture.running.load().credits, 20);
}

#[test]
fn a_request_that_does_not_fit_beside_the_reservations_blocks_no_other() {
    let fixture = fifo();
    fixture.gets(RESERVE, 50);
    let (large, cause, commit) = fixture.waits(JOIN, 80);
    assert_eq!((cause, commit), (WaitFor::ReservedCredits, None));
    // The thread with the reservation may need a handle of its own first.
    assert!(matches!(fixture.gets(JOIN, 10), Grant::Joined(_)));
    fixture.running.leave(10);
    fixture.queue.unreserve(&fixture.running, 50, 50);
    assert!(matches!(granted(&large), Some(Grant::Joined(_))));
    assert_eq!(fixture.refused(), [0, 0, 0, 1]);
}

#[test]
fn an_abort_ends_every_wait_and_every_later_one() {
    let fixture = fifo();
    fixture.running.close();
    let (waiter, ..) = fixture.waits(JOIN, 1);
    fixture.queue.abort();
    assert_eq!(granted(&waiter), Some(Grant::Aborted));
    assert_eq!(fixture.gets(JOIN, 1), Grant::Aborted);
}
