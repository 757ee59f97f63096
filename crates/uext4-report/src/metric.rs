//! What figures mean, and how they are written.

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) title: &'static str,
    /// What a reader must know to use it as an explanation.
    pub(crate) meaning: &'static str,
    /// `Some(true)` where less is better; `None` where it is neither.
    pub(crate) less: Option<bool>,
}

const fn row(title: &'static str, less: Option<bool>, meaning: &'static str) -> Metric {
    Metric { title, meaning, less }
}

const MORE: Option<bool> = Some(false);
const LESS: Option<bool> = Some(true);

/// The metrics by name.
const METRICS: &[(&str, Metric)] = &[
    ("iops", row("Operations per second", MORE, "")),
    ("ops_per_s", row("Operations per second", MORE, "")),
    ("bytes_per_s", row("Bytes per second", MORE, "")),
    ("wall_s", row("Time until all is on the image", LESS, "")),
    ("latency_p50_us", row("Latency, median", LESS, "")),
    ("latency_p99_us", row("Latency, 99th percentile", LESS, "")),
    ("latency_max_us", row("Latency, longest", LESS, "")),
    ("latency_mean_us", row("Latency, mean", LESS, "")),
    ("write_latency_p50_us", row("Latency of the write alone, median", LESS, "")),
    (
        "write_latency_p99_us",
        row(
            "Latency of the write alone, 99th percentile",
            LESS,
            "the write before the fsync: it waits where a transaction is locked or memory is short",
        ),
    ),
    ("write_latency_max_us", row("Latency of the write alone, longest", LESS, "")),
    (
        "handles_per_txn",
        row(
            "Handles in a transaction",
            MORE,
            "how many operations share one commit: a commit costs flushes whatever its size, \
             so few handles in each mean many commits",
        ),
    ),
    ("commit_mean_us", row("Length of a commit", LESS, "an fsync waits for one at least")),
    (
        "flushes_per_fsync",
        row("Device flushes for each fsync", LESS, "below 1 where callers share a flush"),
    ),
    (
        "context_switches_per_op",
        row(
            "Context switches per operation",
            LESS,
            "threads that sleep and are woken: many where one is handed on by locks and queues, \
             or where a crowd is woken for one place",
        ),
    ),
    ("system_context_switches_per_op", row("Context switches of the whole system", LESS, "")),
    ("wakeups_per_op", row("Wake-ups per operation", LESS, "")),
    (
        "deferred_per_op",
        row(
            "Completions handed to a worker, per request",
            LESS,
            "each costs a wake-up of another thread",
        ),
    ),
    (
        "log_space_wait_share",
        row(
            "Waiting for log space, share of fsync time",
            LESS,
            "a handle waits until a checkpoint frees room in the journal",
        ),
    ),
    (
        "joins_refused_log_space",
        row("Joins refused: no log space", LESS, "a handle found the journal full"),
    ),
    (
        "joins_refused_full",
        row("Joins refused: transaction full", LESS, "a handle waited for the next transaction"),
    ),
    (
        "joins_refused_reserved",
        row(
            "Joins refused: credits reserved",
            LESS,
            "credits that others hold in reserve kept a handle out",
        ),
    ),
    (
        "joins_refused_locked",
        row("Joins refused: transaction locked", LESS, "it was about to commit"),
    ),
    (
        "joiners_woken",
        row("Joiners woken", LESS, "threads that were woken to try again to join a transaction"),
    ),
    (
        "checkpoints_forced",
        row(
            "Checkpoints forced",
            LESS,
            "a caller had to write metadata to its place itself, because the journal was full",
        ),
    ),
    (
        "reserved_high_water",
        row("Most credits reserved at once", LESS, "what handles held back beside what they used"),
    ),
    ("cpu_s", row("Processor time of the system", LESS, "")),
    ("peak_rss_kib", row("Most memory", LESS, "")),
    ("operations", row("Operations made", None, "")),
    (
        "contended_per_kop",
        row(
            "Contended locks per 1,000 operations",
            LESS,
            "locks of the allocator that a thread had to wait for",
        ),
    ),
    ("extents_per_file", row("Extents of a file", LESS, "pieces that files of the load lie in")),
    ("runs_per_file", row("Runs of a file", LESS, "pieces, where neighbours count as one")),
    ("frag_score", row("e4defrag score", LESS, "")),
    ("free_extent_mean_kib", row("Mean free extent", MORE, "how whole the free space is")),
    ("aged_extents_per_file", row("Extents of a file of the ageing", LESS, "")),
    ("aged_frag_score", row("e4defrag score of the ageing", LESS, "")),
    ("aged_free_extent_mean_kib", row("Mean free extent before the load", MORE, "")),
    (
        "transactions",
        row("Transactions committed", LESS, "each costs a write to the log and flushes"),
    ),
    (
        "neighbour_distance_kib",
        row("Distance of neighbours", LESS, "from the end of a file to the next of its directory"),
    ),
    ("handles_of_overwrites", row("Handles of overwrites", LESS, "0 where none starts one")),
    ("slow_writes", row("Writes that took a lock", LESS, "")),
    ("cut_off", row("Ended before it was done", LESS, "")),
];

/// The metrics that targets are compared by: the first that a run has is the one of its verdict.
pub(crate) const HEADLINES: &[&str] = &["iops", "ops_per_s", "bytes_per_s", "wall_s"];
/// The loads that are compared by another one of them.
const HEADLINES_OF: &[(&str, &str)] = &[("E1b", "bytes_per_s")];

/// The metrics that targets are compared by in a load, its own first.
pub(crate) fn headlines(experiment: &str) -> impl Iterator<Item = &'static str> {
    let own = HEADLINES_OF.iter().find(|(name, _)| *name == experiment).map(|(_, metric)| *metric);
    own.into_iter().chain(HEADLINES.iter().copied())
}

/// From there on a number is written by its power.
const LONGEST: f64 = 1e15;

/// Digits of a count, all of which are shown.
const COUNT_DIGITS: u32 = 15;

/// Others that have a verdict, too.
pub(crate) const ALSO: &[&str] = &[
    "latency_p99_us",
    "extents_per_file",
    "free_extent_mean_kib",
    "neighbour_distance_kib",
    "flushes_per_fsync",
];

/// A metric without the part of its load that it is of: `seq.read.iops` of a job file.
pub(crate) fn plain(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The part of its load that a metric is of, where its name has one: `seq.read`.
pub(crate) fn part(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(part, _)| part)
}

/// The metric of that name, of any part of a load.
pub(crate) fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|(known, _)| *known == plain(name)).map(|(_, metric)| metric)
}

/// Its title; one that is not known has its name for a title.
pub(crate) fn title(name: &str) -> String {
    let title = find(name).map_or_else(|| plain(name).replace('_', " "), |m| m.title.to_owned());
    part(name).map_or(title.clone(), |part| format!("{part}: {title}"))
}

/// Whether less of it is better.
pub(crate) fn is_less_better(name: &str) -> bool {
    find(name).and_then(|metric| metric.less).unwrap_or(name.ends_with("_us"))
}

/// How many times as good `own` is as `peer`.
pub(crate) fn times_as_good(metric: &str, own: f64, peer: f64) -> f64 {
    if is_less_better(metric) { peer / own } else { own / peer }
}

/// A figure with its unit, in four digits.
pub(crate) fn show(value: f64, unit: &str) -> String {
    scaled(value, unit, 4)
}

/// The same of a figure that may be missing.
pub(crate) fn show_known(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| show(value, unit))
}

/// The same, as short as a plot needs it.
pub(crate) fn short(value: f64, unit: &str) -> String {
    scaled(value, unit, 3)
}

fn scaled(value: f64, unit: &str, places: u32) -> String {
    let size = value.abs();
    let steps: &[(f64, &str)] = match unit {
        "us" => &[(1e6, "s"), (1e3, "ms"), (1.0, "\u{b5}s"), (1e-3, "ns")],
        "s" => &[(60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "\u{b5}s")],
        "KiB" => &[(1_048_576.0, "GiB"), (1024.0, "MiB"), (1.0, "KiB")],
        "B/s" => &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
        "1/s" if places < 4 => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
        "1/s" => &[(1.0, "/s")],
        "%" => return format!("{} %", digits(value * 100.0, places.min(3))),
        _ if places < 4 && size >= 1e4 => &[(1e6, "M"), (1e3, "k")],
        _ => return digits(value, places),
    };
    let step = steps.iter().find(|(step, _)| size >= *step).or(steps.last());
    let (step, name) = step.copied().unwrap_or((1.0, ""));
    let gap = if name.starts_with('/') || name.len() == 1 && name != "s" { "" } else { " " };
    if size == 0.0 { format!("0 {unit}") } else { digits(value / step, places) + gap + name }
}

/// So many significant digits, with commas between thousands.
fn digits(value: f64, places: u32) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() >= LONGEST {
        return format!("{value:.2e}");
    }
    let whole = value.abs().log10().floor() as i32 + 1;
    let behind = (places as i32 - whole).clamp(0, 6) as usize;
    let text = format!("{value:.behind$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    let (front, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, c) in front.chars().enumerate() {
        let left = front.len() - at;
        if at > 0 && left.is_multiple_of(3) && c.is_ascii_digit() && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped + rest
}

/// A count with the word for what is counted: `1 thread`, `2,048 threads`.
pub(crate) fn counted(count: impl TryInto<u64>, one: &str) -> String {
    // Larger than any count that there is.
    let count = count.try_into().unwrap_or(u64::MAX);
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {one}{ending}", digits(count as f64, COUNT_DIGITS))
}

/// How many times: `3.02x`.
pub(crate) fn times(ratio: f64) -> String {
    if ratio >= LONGEST {
        return format!("{ratio:.1e}x");
    }
    if ratio >= 100.0 { format!("{ratio:.0}x") } else { format!("{ratio:.2}x") }
}

/// Whether a ratio looks like 1 to a reader.
pub(crate) fn is_written_as_one(ratio: f64) -> bool {
    times(ratio) == times(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_a_scale_that_fits() {
        let shown = [
            (128_310.635, "us", "128.3 ms"),
            (0.5, "us", "500 ns"),
            (14_568.44, "1/s", "14,568/s"),
            (2_170.0, "KiB", "2.119 MiB"),
            (0.067, "1", "0.067"),
            (1_056_000.0, "1", "1,056,000"),
            (0.0, "us", "0 us"),
            (-1234.6, "1", "-1,235"),
            (5.685e9, "B/s", "5.685 GB/s"),
            (90.0, "s", "1.5 min"),
        ];
        for (value, unit, text) in shown {
            assert_eq!(show(value, unit), text);
        }
        assert_eq!(short(14_568.44, "1/s"), "14.6 k/s");
        assert_eq!(short(15_000.0, "1"), "15k");
    }

    #[test]
    fn one_is_no_plural() {
        let counts = [0_u32, 1, 2, 2048, 1_234_567].map(|count| counted(count, "thread"));
        let wanted = ["0", "1", "2", "2,048", "1,234,567"];
        let wanted = wanted.map(|n| format!("{n} thread{}", if n == "1" { "" } else { "s" }));
        assert_eq!(counts, wanted);
    }

    #[test]
    fn less_is_better_where_it_is_a_time_or_a_cost() {
        assert_eq!(times_as_good("wall_s", 2.0, 4.0), 2.0);
        assert_eq!(times_as_good("iops", 2.0, 4.0), 0.5);
        assert_eq!(times_as_good("something_us", 2.0, 4.0), 2.0);
        assert_eq!(times_as_good("a job.read.latency_p99_us", 2.0, 4.0), 2.0);
        assert_eq!(title("a.b.read.iops"), "a.b.read: Operations per second");
    }
}
