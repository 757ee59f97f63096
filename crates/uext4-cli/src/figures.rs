//! What a mount tells of itself, as text, and the difference of two moments.

use std::fmt::Write;

use crate::failure::one_line;
use crate::mballoc;
use uext4_fuse::stats::{Jbd2, Latencies, Named, Snapshot};

/// What happened between two moments; levels, log and blocked threads are those of `now`. If `now`
/// is of another mount, which has been open for a shorter time, it counts as a whole.
pub(crate) fn difference(now: &Snapshot, then: &Snapshot) -> Snapshot {
    if now.open_for_ns < then.open_for_ns {
        return now.clone();
    }
    let counters = counters_between(&now.counters, &then.counters);
    let requests = counters_between(&now.requests, &then.requests);
    let histograms = now.histograms.0.iter().map(|(name, latencies)| {
        let between = then.histograms.get(name).map(|before| latencies_between(latencies, before));
        (name.clone(), between.unwrap_or_else(|| latencies.clone()))
    });
    Snapshot {
        open_for_ns: now.open_for_ns - then.open_for_ns,
        jbd2: jbd2_between(&now.jbd2, &then.jbd2, &counters),
        histograms: Named(histograms.collect()),
        mb_stats: counters_between(&now.mb_stats, &then.mb_stats),
        counters,
        requests,
        ..now.clone()
    }
}

fn counters_between(now: &Named<u64>, then: &Named<u64>) -> Named<u64> {
    let between = now.0.iter().map(|(name, value)| {
        // How many there are, rather than how often something happened.
        let is_level = matches!(name.as_str(), "groups" | "buddies_generated");
        let before = if is_level { 0 } else { then.get(name).copied().unwrap_or(0) };
        (name.clone(), value.saturating_sub(before))
    });
    Named(between.collect())
}

fn latencies_between(now: &Latencies, then: &Latencies) -> Latencies {
    let timed = now.reading().since(&then.reading());
    Latencies::new(now.calls.saturating_sub(then.calls), &timed)
}

/// Averages over the transactions in between. Those of times are exact to a nanosecond for each
/// transaction of either moment; the others come from counters.
fn jbd2_between(now: &Jbd2, then: &Jbd2, counters: &Named<u64>) -> Jbd2 {
    let transactions = now.transactions.saturating_sub(then.transactions);
    let requested = now.requested.saturating_sub(then.requested);
    let over = |(now, counted_now): (u64, u64), (then, counted_then): (u64, u64)| {
        let sum = |average: u64, counted: u64| u128::from(average) * u128::from(counted);
        let sum = sum(now, counted_now).saturating_sub(sum(then, counted_then));
        let counted = u128::from(counted_now.saturating_sub(counted_then));
        sum.checked_div(counted).map_or(0, |each| u64::try_from(each).unwrap_or(u64::MAX))
    };
    let time = |field: fn(&Jbd2) -> u64| {
        over((field(now), now.transactions), (field(then), then.transactions))
    };
    let each = |name: &str| {
        counters.get(name).and_then(|count| count.checked_div(transactions)).unwrap_or(0)
    };
    Jbd2 {
        transactions,
        requested,
        blocks_max: now.blocks_max,
        waiting_ns: time(|jbd2| jbd2.waiting_ns),
        request_delay_ns: over(
            (now.request_delay_ns, now.requested),
            (then.request_delay_ns, then.requested),
        ),
        running_ns: time(|jbd2| jbd2.running_ns),
        locked_ns: time(|jbd2| jbd2.locked_ns),
        flushing_data_ns: time(|jbd2| jbd2.flushing_data_ns),
        logging_ns: time(|jbd2| jbd2.logging_ns),
        average_commit_ns: now.average_commit_ns,
        handles: each("handles"),
        blocks: each("credits"),
        logged_blocks: each("log_blocks"),
    }
}

/// The whole as text.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    let mut text = jbd2_text(&snapshot.jbd2);
    text.push_str("\ncounters:\n");
    for (name, value) in snapshot.counters.0.iter().chain(&snapshot.levels.0) {
        row(&mut text, name, value);
    }
    requests(&mut text, snapshot);
    let log = &snapshot.log;
    text.push_str("\nlog, in blocks:\n");
    for (name, value) in [
        ("blocks", log.blocks),
        ("used", log.used),
        ("free", log.free),
        ("head", log.head),
        ("tail", log.tail),
        ("tail_tid", log.tail_tid),
        ("durable_tid", log.durable_tid),
        ("running_tid", log.running_tid),
        ("running_handles", log.handles),
        ("running_credits", log.credits),
        ("running_credits_max", log.credits_max),
    ] {
        row(&mut text, name, &u64::from(value));
    }
    for (name, latencies) in &snapshot.histograms.0 {
        if latencies.calls > 0 {
            histogram(&mut text, name, latencies);
        }
    }
    if !snapshot.read_only_reason.is_empty() {
        let _ = writeln!(text, "\nread-only: {}", one_line(&snapshot.read_only_reason));
    }
    mballoc::text(&mut text, snapshot);
    blocked(&mut text, snapshot);
    text
}

/// Requests of the kernel by kind, and how many a second.
fn requests(text: &mut String, snapshot: &Snapshot) {
    if snapshot.transport.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nrequests, by {}:", snapshot.transport);
    let seconds = snapshot.open_for_ns as f64 / 1e9;
    for (name, count) in snapshot.requests.0.iter().filter(|(_, count)| *count > 0) {
        let rate = if seconds > 0.0 { *count as f64 / seconds } else { 0.0 };
        let _ = writeln!(text, "  {name:<28} {count:<12} {rate:.1}/s");
    }
}

fn row(text: &mut String, name: &str, value: &u64) {
    let _ = writeln!(text, "  {name:<28} {value}");
}

/// The words of `/proc/fs/jbd2/*/info` (Linux 6.18), with its space at the end of one line.
fn jbd2_text(jbd2: &Jbd2) -> String {
    let mut text = format!(
        "{} transactions ({} requested), each up to {} blocks\n",
        jbd2.transactions, jbd2.requested, jbd2.blocks_max
    );
    if jbd2.transactions == 0 {
        return text;
    }
    text.push_str("average: \n");
    for (ns, what) in [
        (jbd2.waiting_ns, "waiting for transaction"),
        (jbd2.request_delay_ns, "request delay"),
        (jbd2.running_ns, "running transaction"),
        (jbd2.locked_ns, "transaction was being locked"),
        (jbd2.flushing_data_ns, "flushing data (in ordered mode)"),
        (jbd2.logging_ns, "logging transaction"),
    ] {
        let _ = writeln!(text, "  {}ms {what}", ns / 1_000_000);
    }
    let _ = writeln!(text, "  {}us average transaction commit time", jbd2.average_commit_ns / 1000);
    for (count, what) in
        [(jbd2.handles, "handles"), (jbd2.blocks, "blocks"), (jbd2.logged_blocks, "logged blocks")]
    {
        let _ = writeln!(text, "  {count} {what} per transaction");
    }
    text
}

fn histogram(text: &mut String, name: &str, latencies: &Latencies) {
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
    let timed = match latencies.timed == latencies.calls {
        true => String::new(),
        false => format!(" ({} timed)", latencies.timed),
    };
    let _ = writeln!(
        text,
        "\n{name}: {} times{timed}, mean {} us, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
        latencies.calls,
        us(latencies.mean_ns),
        us(latencies.p50_ns),
        us(latencies.p90_ns),
        us(latencies.p99_ns),
        us(latencies.p999_ns),
        us(latencies.max_ns),
    );
    if latencies.timed > 0 {
        text.push_str(&latencies.reading().to_text());
    }
}

fn blocked(text: &mut String, snapshot: &Snapshot) {
    let count = snapshot.blocked.len() + snapshot.blocked_left_out;
    let _ = writeln!(text, "\nblocked threads: {count}");
    if count > 0 {
        let _ =
            writeln!(text, "  {:<16} {:>8}  {:<20} {:>10}", "name", "tid", "waits for", "seconds");
    }
    for thread in &snapshot.blocked {
        // A thread of a program that embeds the engine has the name that the program gives it.
        let name: String =
            thread.name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let seconds = thread.waited_ns as f64 / 1e9;
        let (tid, wait_for) = (thread.tid, &thread.wait_for);
        let _ = writeln!(text, "  {name:<16} {tid:>8}  {wait_for:<20} {seconds:>10.3}");
    }
    if snapshot.blocked_left_out > 0 {
        let _ = writeln!(text, "  and {} more", snapshot.blocked_left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_fuse::stats::{Blocked, Log};

    /// `/proc/fs/jbd2/loop1-8/info` of Linux 6.18 after six times `echo > file; sync file`.
    const KERNEL: &str = "6 transactions (6 requested), each up to 2730 blocks
average: 
  0ms waiting for transaction
  0ms request delay
  4ms running transaction
  0ms transaction was being locked
  0ms flushing data (in ordered mode)
  0ms logging transaction
  70us average transaction commit time
  3 handles per transaction
  6 blocks per transaction
  8 logged blocks per transaction
";

    fn jbd2() -> Jbd2 {
        Jbd2 {
            transactions: 6,
            requested: 6,
            blocks_max: 2730,
            running_ns: 4_900_000,
            average_commit_ns: 70_123,
            handles: 3,
            blocks: 6,
            logged_blocks: 8,
            ..Jbd2::default()
        }
    }

    fn latencies(steps: &[(u64, u64)], sum_ns: u64, calls: u64) -> Latencies {
        let timed = uext4::stats::Reading::from_steps(steps.iter().copied(), sum_ns);
        Latencies::new(calls, &timed)
    }

    fn snapshot() -> Snapshot {
        let counters = [("handles", 20), ("credits", 40), ("log_blocks", 50)];
        Snapshot {
            open_for_ns: 5_000_000_000,
            jbd2: jbd2(),
            counters: Named(counters.map(|(name, n)| (name.to_owned(), n)).into()),
            levels: Named(vec![("pages_dirty".to_owned(), 7)]),
            requests: Named(vec![("lookup".to_owned(), 30), ("write".to_owned(), 5)]),
            transport: "io_uring".to_owned(),
            log: Log { blocks: 8191, used: 50, free: 8141, head: 51, tail: 1, ..Log::default() },
            histograms: Named(vec![
                ("read".to_owned(), latencies(&[(2048, 1), (4096, 2)], 12_000, 50)),
                ("write".to_owned(), Latencies::default()),
                ("fsync".to_owned(), latencies(&[(1024, 6)], 9000, 6)),
            ]),
            blocked: vec![Blocked {
                name: "fuse-r1\n".to_owned(),
                tid: 4711,
                wait_for: "commit".to_owned(),
                waited_ns: 1_234_000_000,
            }],
            blocked_left_out: 2,
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_words_are_those_of_the_kernel() {
        assert_eq!(jbd2_text(&jbd2()), KERNEL);
        let none = Jbd2 { blocks_max: 2730, ..Jbd2::default() };
        let want = "0 transactions (0 requested), each up to 2730 blocks\n";
        assert_eq!(jbd2_text(&none), want);
    }

    #[test]
    fn text_is_as_written_down() {
        assert_eq!(text(&snapshot()), include_str!("figures.txt"));
    }

    #[test]
    fn json_is_as_written_down() {
        let mut json = serde_json::to_string_pretty(&snapshot()).unwrap();
        json.push('\n');
        assert_eq!(json, include_str!("figures.json"));
    }

    #[test]
    fn a_difference_is_what_came_between() {
        let then = snapshot();
        let mut now = snapshot();
        now.open_for_ns += 2_000_000_000;
        // Two more transactions that ran 10 ms each.
        now.jbd2.transactions = 8;
        now.jbd2.running_ns = (6 * 4_900_000 + 2 * 10_000_000) / 8;
        now.counters.0[0].1 = 30;
        now.histograms.0[2].1 = latencies(&[(1024, 6), (1 << 20, 2)], 9000 + 2_200_000, 8);
        let between = difference(&now, &then);
        assert_eq!(between.open_for_ns, 2_000_000_000);
        assert_eq!((between.jbd2.transactions, between.jbd2.requested), (2, 0));
        assert_eq!((between.jbd2.running_ns, between.jbd2.handles), (10_000_000, 5));
        assert_eq!(between.counters.get("handles"), Some(&10));
        let fsync = between.histograms.get("fsync").unwrap();
        assert_eq!((fsync.calls, fsync.timed, fsync.mean_ns), (2, 2, 1_100_000));
        assert_eq!(between.histograms.get("read").unwrap().calls, 0);
        assert_eq!(between.levels, now.levels);
        // The mount was made again in between: its figures count from its beginning.
        let fresh = Snapshot { open_for_ns: 1, ..snapshot() };
        assert_eq!(difference(&fresh, &then), fresh);
    }
}
