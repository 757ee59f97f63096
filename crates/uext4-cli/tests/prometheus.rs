//! `uext4 stats --prometheus`, read by a strict parser of the text format of Prometheus
//! (Exposition formats, version 0.0.4).
//!
//! Fault model: text that a collector refuses or reads as something else; figures that are not
//! those of `--json`. Not covered: a collector itself.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;

use common::{Mounted, Scratch, run, run_fails, run_ok};
use serde_json::Value;

/// A metric family.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    has_help: bool,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Reads the text, or says which line is wrong.
fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    if !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    for line in text.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
            if help.is_empty() || families.contains_key(name) {
                return Err(wrong("no help, or a second one"));
            }
            families.entry(name.to_owned()).or_default().has_help = true;
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
            let family = families.get_mut(name).ok_or_else(|| wrong("TYPE before HELP"))?;
            let is_first = family.kind.is_empty() && family.samples.is_empty();
            if name != current || !is_first || !["counter", "gauge", "histogram"].contains(&kind) {
                return Err(wrong("a second TYPE, behind samples, or unknown"));
            }
            family.kind = kind.to_owned();
        } else {
            let sample = parse_sample(line).ok_or_else(|| wrong("not a sample"))?;
            let family = families.get_mut(&current).ok_or_else(|| wrong("before any family"))?;
            let suffix = sample.name.strip_prefix(current.as_str());
            let fits = match family.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix.unwrap_or("")),
                "counter" => suffix == Some("") && current.ends_with("_total"),
                _ => suffix == Some(""),
            };
            if !fits {
                return Err(wrong("of another family"));
            }
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        family.check().map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(families)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `name{label="value",...} number`.
fn parse_sample(line: &str) -> Option<Sample> {
    let (name, rest) = line.split_once('{')?;
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    loop {
        let (label, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    _ => return None,
                }),
                (_, c) => value.push(c),
            }
        };
        if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
            return None;
        }
        match after[end + 1..].strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                let number = after[end + 1..].strip_prefix("} ")?;
                let value = number.parse().ok().filter(|value: &f64| value.is_finite())?;
                return is_name(name).then(|| Sample { name: name.to_owned(), labels, value });
            }
        }
    }
}

impl Family {
    fn check(&self) -> Result<(), String> {
        let mut keys: Vec<_> = self.samples.iter().map(|s| (&s.name, &s.labels)).collect();
        keys.sort();
        if keys.is_empty() || keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("no sample, or one twice".to_owned());
        }
        if !self.has_help || self.kind.is_empty() {
            return Err("no HELP or no TYPE".to_owned());
        }
        if self.kind != "histogram" {
            return Ok(());
        }
        let buckets: Vec<_> = self.samples.iter().filter(|s| s.name.ends_with("_bucket")).collect();
        let ends: Vec<f64> = buckets
            .iter()
            .map(|s| match s.labels["le"].as_str() {
                "+Inf" => f64::INFINITY,
                end => end.parse().unwrap_or(f64::NAN),
            })
            .collect();
        let values: Vec<f64> = buckets.iter().map(|s| s.value).collect();
        let rises = ends.windows(2).all(|pair| pair[0] < pair[1]);
        let one = |suffix: &str| {
            let mut found = self.samples.iter().filter(|s| s.name.ends_with(suffix));
            found.next().filter(|_| found.next().is_none()).map(|s| s.value)
        };
        let is_whole = one("_count") == values.last().copied() && one("_sum").is_some();
        match rises && ends.last() == Some(&f64::INFINITY) && is_whole && values.is_sorted() {
            true => Ok(()),
            false => Err(format!("no histogram: {ends:?} {values:?}")),
        }
    }

    /// The value of the only sample.
    fn value(&self) -> f64 {
        assert_eq!(self.samples.len(), 1, "{self:?}");
        self.samples[0].value
    }
}

#[test]
fn a_collector_reads_what_json_says() {
    const ROUNDS: usize = 20;
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    // A source that has to be escaped.
    let mount = Mounted::new(&image, &dir, r#"fsname=a "disk" \ of mine"#);
    let mut file = File::create(mount.path("file")).unwrap();
    for _ in 0..ROUNDS {
        file.write_all(&[1; 5000]).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    let place = dir.as_os_str();
    let json: Value =
        serde_json::from_slice(&run_ok([OsStr::new("stats"), OsStr::new("--json"), place]))
            .unwrap();
    let text = run_ok([OsStr::new("stats"), OsStr::new("--prometheus"), place]);
    let text = String::from_utf8(text).unwrap();
    let families = parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    for family in families.values() {
        for sample in &family.samples {
            assert!(sample.name.starts_with("uext4_"), "{sample:?}");
            assert_eq!(sample.labels["image"], r#"a "disk" \ of mine"#, "{sample:?}");
        }
    }
    let all = |group: &str| json[group].as_object().unwrap().clone();
    for (group, suffix, kind) in [("counters", "_total", "counter"), ("levels", "", "gauge")] {
        for (name, value) in all(group) {
            let family = &families[&format!("uext4_{name}{suffix}")];
            assert_eq!(family.kind, kind, "{name}");
            if name == "transactions" {
                assert_eq!(family.value(), value.as_f64().unwrap());
            }
        }
    }
    assert_eq!(families["uext4_log_size_blocks"].value(), json["log"]["blocks"].as_f64().unwrap());
    let fsync = &families["uext4_fsync_seconds"].samples;
    let of = |suffix: &str| fsync.iter().find(|s| s.name.ends_with(suffix)).unwrap().value;
    assert_eq!(of("_count"), ROUNDS as f64);
    let sum_ns = json["histograms"]["fsync"]["sum_ns"].as_f64().unwrap();
    assert!((of("_sum") - sum_ns / 1e9).abs() < 1e-9);
    for name in all("histograms").keys() {
        assert_eq!(families[&format!("uext4_{name}_seconds")].kind, "histogram");
    }
    // The same series, whatever happened.
    let series = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    std::fs::create_dir(mount.path("dir")).unwrap();
    std::fs::read(mount.path("file")).unwrap();
    let later = run_ok([OsStr::new("stats"), OsStr::new("--prometheus"), place]);
    assert_eq!(series(&String::from_utf8(later).unwrap()), series(&text));
    mount.end();
    run_fails([OsStr::new("stats"), OsStr::new("--prometheus"), place], "not on a uext4 mount");
    let image = image.as_os_str();
    run_fails([OsStr::new("stats"), OsStr::new("--prometheus"), image], "not mounted");
    let both = run([OsStr::new("stats"), OsStr::new("--prometheus"), OsStr::new("--json"), place]);
    assert_eq!(both.status.code(), Some(2));
}

/// The parser must find what a collector would refuse.
#[test]
fn the_parser_refuses_what_is_wrong() {
    let good = "# HELP a_total x\n# TYPE a_total counter\na_total{l=\"v\\\\\"} 1\n";
    assert_eq!(parse(good).unwrap()["a_total"].value(), 1.0);
    for (from, to) in [
        ("# HELP a_total x\n", ""),
        ("# TYPE a_total counter\n", ""),
        ("counter", "count"),
        ("a_total{", "b_total{"),
        ("\"} 1", "} 1"),
        ("} 1", "} one"),
        ("} 1\n", "} 1"),
        ("\\\\", "\\x"),
        ("a_total{l=\"v\\\\\"} 1\n", ""),
        ("} 1\n", "} 1\na_total{l=\"v\\\\\"} 2\n"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(bad != good && parse(&bad).is_err(), "{bad}");
    }
    let histogram = "# HELP h x
# TYPE h histogram
h_bucket{le=\"1\"} 1
h_bucket{le=\"+Inf\"} 2
h_sum{a=\"\"} 1
h_count{a=\"\"} 2
";
    assert!(parse(histogram).is_ok());
    for (from, to) in
        [("\"1\"} 1", "\"1\"} 3"), ("+Inf", "2"), ("h_count{a=\"\"} 2", "h_count{a=\"\"} 1")]
    {
        assert!(parse(&histogram.replacen(from, to, 1)).is_err(), "{from} {to}");
    }
}
