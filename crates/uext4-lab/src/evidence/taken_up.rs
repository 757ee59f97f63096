//! What a run before this one has left in its folder, and cutting that back to what is whole.
//!
//! What: a mark of `runs.jsonl` says how far `raw.jsonl` reached when a run had ended. After a
//! crash or a loss of power either file may end in the middle of a line, in zeros, or before what
//! the other one says. Marks are taken in their order up to the first that does not hold; what
//! stands behind it in both files is cut off, so that the runs of it are made again.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Doing, Result};
use crate::record;

/// What a run before this one has left.
#[derive(Debug, Default)]
pub struct Resumed {
    /// Figures by metric of the runs that have ended, by key.
    runs: HashMap<String, HashMap<String, f64>>,
    numbers: HashMap<String, u32>,
}

impl Resumed {
    /// Whether the run of that key has ended.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.runs.contains_key(key)
    }

    /// Its figures.
    pub(crate) fn figures(&self, key: &str) -> Option<&HashMap<String, f64>> {
        self.runs.get(key)
    }

    /// A number that all rounds go by.
    pub(crate) fn number(&self, key: &str) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// Runs that have ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.runs.len()
    }
}

/// A line of `runs.jsonl`.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Mark {
    pub(super) key: String,
    /// Length of `raw.jsonl` when the run had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) raw_bytes: Option<u64>,
    /// When it had, in seconds since the command began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    /// A number that all rounds go by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) number: Option<u32>,
}

/// What has ended in a folder, and how far `raw.jsonl` reaches then. Both files end there.
pub(super) fn take_up(dir: &Path) -> Result<(Resumed, u64)> {
    let [raw_path, runs_path, events_path] =
        ["raw.jsonl", "runs.jsonl", "events.jsonl"].map(|name| dir.join(name));
    let raw = fs::read(&raw_path).unwrap_or_default();
    let mut resumed = Resumed::default();
    let mut raw_end = 0;
    let runs_end = whole_lines(&fs::read(&runs_path).unwrap_or_default(), |line| {
        let Ok(mark) = serde_json::from_slice::<Mark>(line) else { return false };
        if let Some(number) = mark.number {
            resumed.numbers.insert(mark.key, number);
            return true;
        }
        let to = usize::try_from(mark.raw_bytes.unwrap_or(0)).unwrap_or(usize::MAX);
        let Some(figures) = figures(&raw, raw_end, to) else { return false };
        resumed.runs.insert(mark.key, figures);
        raw_end = to;
        true
    });
    let events = fs::read(&events_path).unwrap_or_default();
    let events_end = whole_lines(&events, |line| serde_json::from_slice::<Value>(line).is_ok());
    // Marks first: a mark whose figures are cut off must not meet those of another run.
    cut(&runs_path, runs_end)?;
    cut(&raw_path, raw_end)?;
    cut(&events_path, events_end)?;
    Ok((resumed, raw_end as u64))
}

/// The figures that lie there, if they are whole.
fn figures(raw: &[u8], from: usize, to: usize) -> Option<HashMap<String, f64>> {
    let text = std::str::from_utf8(raw.get(from..to)?).ok()?;
    if !(text.is_empty() || text.ends_with('\n')) {
        return None;
    }
    let records = record::parse(text).ok()?;
    Some(records.into_iter().map(|record| (record.metric, record.value)).collect())
}

/// Bytes of the lines before the first that is torn, or that `holds` says no of.
fn whole_lines(text: &[u8], mut holds: impl FnMut(&[u8]) -> bool) -> usize {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.take_while(|line| line.ends_with(b"\n") && holds(line)).map(<[u8]>::len).sum()
}

/// Cuts a file, durably, where it is longer.
fn cut(path: &Path, bytes: usize) -> Result<()> {
    if fs::metadata(path).map_or(0, |meta| meta.len()) <= bytes as u64 {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(path);
    let cut = file.and_then(|file| file.set_len(bytes as u64).and_then(|()| file.sync_all()));
    cut.doing(format_args!("cutting {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: u32) -> String {
        format!(
            r#"{{"experiment":"E3","target":"uext4","variant":"default","store":"ram","path":"x",
               "threads":1,"bs":1,"metric":"iops","value":{value},"round":1}}"#
        )
        .replace('\n', " ")
            + "\n"
    }

    fn mark(key: &str, raw_bytes: usize) -> String {
        format!("{{\"key\":\"{key}\",\"raw_bytes\":{raw_bytes}}}\n")
    }

    /// Fault model: a loss of power that takes the end of one file and not of the other, or leaves
    /// zeros there.
    #[test]
    fn both_files_end_behind_the_last_run_that_is_whole_in_both() {
        let (one, two) = (figure(1), figure(2));
        let both = format!("{one}{two}");
        let (a, b) = (mark("a", one.len()), mark("b", both.len()));
        let number = "{\"key\":\"n\",\"number\":7}\n";
        let zeros = "\0".repeat(two.len());
        let cases = [
            // As it was.
            (both.clone(), format!("{number}{a}{b}"), 2),
            // Figures without their mark.
            (both.clone(), format!("{number}{a}"), 1),
            // A torn mark, and marks beyond the figures, with others behind them.
            (both.clone(), format!("{number}{a}{}", &b[..b.len() - 3]), 1),
            (one.clone(), format!("{number}{a}{b}{}", mark("c", both.len() + 9)), 1),
            (both[..both.len() - 9].to_owned(), format!("{number}{a}{b}"), 1),
            // Zeros where the figures were, or the mark.
            (format!("{one}{zeros}"), format!("{number}{a}{b}"), 1),
            (both.clone(), format!("{number}{a}\0\0\0\0{b}"), 1),
            // A mark inside of the figures before it.
            (both.clone(), format!("{number}{a}{}", mark("b", 5)), 1),
        ];
        for (raw, runs, count) in cases {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            fs::write(path("raw.jsonl"), &raw).unwrap();
            fs::write(path("runs.jsonl"), &runs).unwrap();
            fs::write(path("events.jsonl"), "{\"event\":\"note\"}\n{\"ev").unwrap();
            let (resumed, end) = take_up(dir.path()).unwrap();
            assert_eq!((resumed.count(), resumed.number("n")), (count, Some(7)), "{raw}{runs}");
            let (raw, runs) =
                if count == 2 { (&both, format!("{a}{b}")) } else { (&one, a.clone()) };
            assert_eq!(end, raw.len() as u64);
            assert_eq!(&fs::read_to_string(path("raw.jsonl")).unwrap(), raw);
            assert_eq!(fs::read_to_string(path("runs.jsonl")).unwrap(), number.to_owned() + &runs);
            let events = fs::read_to_string(path("events.jsonl")).unwrap();
            assert_eq!(events, "{\"event\":\"note\"}\n");
        }
    }
}
