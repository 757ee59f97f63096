//! What a mount tells of itself in the text format of Prometheus, for the textfile collector of
//! node_exporter.
//!
//! What: counters as `uext4_NAME_total`, levels as `uext4_NAME`, latencies as histograms in seconds
//! `uext4_NAME_seconds`. Each series has the label `image`.
//!
//! Invariants: the names and the buckets depend on the version of uext4 alone, so that no series
//! comes and goes. The samples of a name stand together, behind its HELP and TYPE.

use std::fmt::{Display, Write};

use uext4_fuse::stats::{Latencies, Snapshot};

/// The buckets end at these powers of two, in nanoseconds: a microsecond to half a minute.
const BUCKETS: std::ops::RangeInclusive<u32> = 10..=35;

/// The whole as text; `image` is the source of the mount.
pub(crate) fn text(snapshot: &Snapshot, image: &str) -> String {
    let mut out = Exposition { text: String::new(), image: escaped(image) };
    let seconds = |ns: u64| ns as f64 / 1e9;
    let version = format!(",version=\"{}\"", env!("CARGO_PKG_VERSION"));
    out.head("info", "gauge", "The uext4 command that wrote this");
    out.sample("info", &version, 1);
    out.one(
        "uptime_seconds",
        "gauge",
        "Since the volume was opened",
        seconds(snapshot.open_for_ns),
    );
    for (name, value) in &snapshot.counters.0 {
        out.one(&format!("{}_total", plain(name)), "counter", &told(name), value);
    }
    out.head("fuse_requests_total", "counter", "Requests of the kernel, by kind");
    for (name, value) in &snapshot.requests.0 {
        out.sample("fuse_requests_total", &format!(",request=\"{}\"", plain(name)), value);
    }
    for (name, value) in &snapshot.levels.0 {
        out.one(&plain(name), "gauge", &told(name), value);
    }
    let log = &snapshot.log;
    for (name, value, help) in [
        ("log_size_blocks", log.blocks, "Blocks of the log"),
        ("log_used_blocks", log.used, "Blocks of the log that recovery would need"),
        ("log_running_handles", log.handles, "Open handles of the running transaction"),
        ("log_running_credits", log.credits, "Credits taken in the running transaction"),
        ("log_running_credits_max", log.credits_max, "Most credits of a transaction"),
    ] {
        out.one(name, "gauge", help, value);
    }
    for (name, value) in &snapshot.mb_stats.0 {
        let own = format!("mballoc_{}", plain(name));
        let help = format!("Block allocator: {}", told(name));
        match name.as_str() {
            "groups" | "buddies_generated" => out.one(&own, "gauge", &help, value),
            _ => out.one(&format!("{own}_total"), "counter", &help, value),
        }
    }
    let blocked = snapshot.blocked.len() + snapshot.blocked_left_out;
    out.one("blocked_threads", "gauge", "Threads that sleep in the engine", blocked);
    let longest = snapshot.blocked.iter().map(|thread| thread.waited_ns).max().unwrap_or(0);
    let help = "The longest sleep of these so far";
    out.one("blocked_longest_seconds", "gauge", help, seconds(longest));
    // Of some calls only one in 16 is timed.
    out.head("calls_total", "counter", "Calls, timed or not, by the name of their histogram");
    for (name, latencies) in &snapshot.histograms.0 {
        out.sample("calls_total", &format!(",call=\"{}\"", plain(name)), latencies.calls);
    }
    for (name, latencies) in &snapshot.histograms.0 {
        out.histogram(&plain(name), &told(name), latencies);
    }
    out.text
}

struct Exposition {
    text: String,
    image: String,
}

impl Exposition {
    // Writing to a string does not fail.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP uext4_{name} {help}\n# TYPE uext4_{name} {kind}");
    }

    /// A sample with the labels `more` beside that of the image.
    fn sample(&mut self, name: &str, more: &str, value: impl Display) {
        let image = &self.image;
        let _ = writeln!(self.text, "uext4_{name}{{image=\"{image}\"{more}}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, what: &str, latencies: &Latencies) {
        let name = format!("{name}_seconds");
        self.head(&name, "histogram", &format!("Latency: {what}"));
        let bucket = format!("{name}_bucket");
        for power in BUCKETS {
            let end = 1_u64 << power;
            // A step ends where a power of two ends, or before it.
            let within = latencies.steps.iter().filter(|(least, _)| *least < end);
            let count: u64 = within.map(|(_, count)| count).sum();
            self.sample(&bucket, &format!(",le=\"{}\"", end as f64 / 1e9), count);
        }
        self.sample(&bucket, ",le=\"+Inf\"", latencies.timed);
        self.sample(&format!("{name}_sum"), "", latencies.sum_ns as f64 / 1e9);
        self.sample(&format!("{name}_count"), "", latencies.timed);
    }
}

/// A name of a mount of whatever version, as a part of a name of a metric.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn told(name: &str) -> String {
    format!("{} (docs/stats.md)", plain(name).replace('_', " "))
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_fuse::stats::Named;

    #[test]
    fn buckets_have_what_they_end_behind() {
        let steps = [(1000, 1), (1024, 2), (1920, 3), (2048, 4), (1 << 40, 5)];
        let timed = uext4::stats::Reading::from_steps(steps, 9_000);
        let snapshot = Snapshot {
            histograms: Named(vec![("read".to_owned(), Latencies::new(240, &timed))]),
            ..Snapshot::default()
        };
        let text = text(&snapshot, "a\\b\"c\nd");
        let image = r#"image="a\\b\"c\nd""#;
        for line in [
            format!("uext4_read_seconds_bucket{{{image},le=\"0.000001024\"}} 1"),
            format!("uext4_read_seconds_bucket{{{image},le=\"0.000002048\"}} 6"),
            format!("uext4_read_seconds_bucket{{{image},le=\"0.000004096\"}} 10"),
            format!("uext4_read_seconds_bucket{{{image},le=\"34.359738368\"}} 10"),
            format!("uext4_read_seconds_bucket{{{image},le=\"+Inf\"}} 15"),
            format!("uext4_read_seconds_sum{{{image}}} 0.000009"),
            format!("uext4_read_seconds_count{{{image}}} 15"),
            format!("uext4_calls_total{{{image},call=\"read\"}} 240"),
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
    }
}
