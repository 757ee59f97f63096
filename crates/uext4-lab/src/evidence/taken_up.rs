//! What a run before this one has left in its folder, and cutting that back to what is whole.
//!
//! What: a mark of `runs.jsonl` says how far `raw.jsonl` reached when a run had ended. After a
//! crash or a loss of power either file may end in the middle of a line, in zeros, or before what
//! the other one says. Marks are taken in their order up to the first that does not hold; what
//! stands behind it in both files is cut off, so that the runs of it are made again. A crash spoils
//! the last mark only: where more do not hold, what is cut off is kept beside the files and told.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Doing, Result};
use crate::record;

/// What the name of a file ends with that has what was cut off.
const CUT: &str = ".cut";

/// What a run before this one has left.
#[derive(Debug, Default)]
pub struct Resumed {
    /// Figures by metric of the runs that have ended, by key.
    runs: HashMap<String, HashMap<String, f64>>,
    numbers: HashMap<String, u32>,
    /// Marks that do not hold, beside one that a crash has spoilt.
    lost: usize,
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

    /// Runs that had ended and are made again, because a file of the folder was damaged.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// What became of them, in words.
    #[must_use]
    pub fn loss(&self) -> String {
        format!(
            "{} lines of runs.jsonl do not hold and are cut off: raw.jsonl{CUT} and \
             runs.jsonl{CUT} have what stood there",
            self.lost
        )
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

/// A folder that was taken up.
pub(super) struct TakenUp {
    pub(super) resumed: Resumed,
    /// When the last run had ended.
    pub(super) seconds: f64,
    /// `events.jsonl`.
    pub(super) events: String,
}

/// What has ended in a folder. All files end there.
pub(super) fn take_up(dir: &Path) -> Result<TakenUp> {
    let [raw_path, runs_path, events_path] =
        ["raw.jsonl", "runs.jsonl", "events.jsonl"].map(|name| dir.join(name));
    let [raw, runs, events] = [read(&raw_path)?, read(&runs_path)?, read(&events_path)?];
    let mut resumed = Resumed::default();
    let (mut raw_end, mut seconds) = (0, 0.0);
    let runs_end = whole_lines(&runs, |line| {
        let Ok(mark) = serde_json::from_slice::<Mark>(line) else { return false };
        if let Some(number) = mark.number {
            resumed.numbers.insert(mark.key, number);
            return true;
        }
        let to = usize::try_from(mark.raw_bytes.unwrap_or(0)).unwrap_or(usize::MAX);
        let Some(figures) = figures(&raw, raw_end, to) else { return false };
        resumed.runs.insert(mark.key, figures);
        (raw_end, seconds) = (to, mark.seconds.unwrap_or(seconds));
        true
    });
    let is_event = |line: &[u8]| serde_json::from_slice::<Value>(line).is_ok();
    let events_end = whole_lines(&events, is_event);
    let lost = |text: &[u8]| Some(lines(text).count()).filter(|count| *count > 1);
    resumed.lost = lost(&runs[runs_end..]).unwrap_or(0);
    if resumed.lost > 0 {
        keep(&raw_path, &raw[raw_end..])?;
        keep(&runs_path, &runs[runs_end..])?;
    }
    if lost(&events[events_end..]).is_some() {
        keep(&events_path, &events[events_end..])?;
    }
    // Marks first: a mark whose figures are cut off must not meet those of another run.
    cut(&runs_path, runs_end)?;
    cut(&raw_path, raw_end)?;
    cut(&events_path, events_end)?;
    let events = String::from_utf8_lossy(&events[..events_end]).into_owned();
    Ok(TakenUp { resumed, seconds, events })
}

/// What stands in a file; nothing where it is not there.
fn read(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.doing(format_args!("reading {}", path.display())),
    }
}

/// Keeps what is to be cut off a file, durably, behind what was kept before.
fn keep(path: &Path, text: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(CUT);
    let name = PathBuf::from(name);
    let keep = || {
        let mut file = OpenOptions::new().create(true).append(true).open(&name)?;
        file.write_all(text)?;
        file.sync_all()
    };
    keep().doing(format_args!("writing {}", name.display()))
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

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

/// Bytes of the lines before the first that is torn, or that `holds` says no of.
fn whole_lines(text: &[u8], mut holds: impl FnMut(&[u8]) -> bool) -> usize {
    let whole = lines(text).take_while(|line| line.ends_with(b"\n") && holds(line));
    whole.map(<[u8]>::len).sum()
}

/// Cuts a file, durably, where it is longer.
fn cut(path: &Path, bytes: usize) -> Result<()> {
    match fs::metadata(path) {
        Ok(meta) if meta.len() > bytes as u64 => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).doing(path.display());
        }
        _ => return Ok(()),
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
            let TakenUp { resumed, .. } = take_up(dir.path()).unwrap();
            assert_eq!((resumed.count(), resumed.number("n")), (count, Some(7)), "{raw}{runs}");
            let (raw, runs) =
                if count == 2 { (&both, format!("{a}{b}")) } else { (&one, a.clone()) };
            assert_eq!(&fs::read_to_string(path("raw.jsonl")).unwrap(), raw);
            assert_eq!(fs::read_to_string(path("runs.jsonl")).unwrap(), number.to_owned() + &runs);
            let events = fs::read_to_string(path("events.jsonl")).unwrap();
            assert_eq!(events, "{\"event\":\"note\"}\n");
        }
    }

    /// Fault model: a damaged line in the middle throws away the runs behind it without a word.
    #[test]
    fn more_than_a_crash_can_spoil_is_kept_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let bad = "not a figure\n".to_owned();
        let raw = [figure(1), bad, figure(3), figure(4)];
        let ends = [1, 2, 3, 4].map(|count| raw[..count].concat().len());
        let marks = ["a", "b", "c", "d"].iter().zip(ends).map(|(key, end)| mark(key, end));
        let marks: Vec<_> = marks.collect();
        fs::write(path("raw.jsonl"), raw.concat()).unwrap();
        fs::write(path("runs.jsonl"), marks.concat()).unwrap();
        let TakenUp { resumed, .. } = take_up(dir.path()).unwrap();
        assert_eq!((resumed.count(), resumed.lost()), (1, 3));
        assert!(resumed.loss().starts_with("3 lines of runs.jsonl"), "{}", resumed.loss());
        let read = |name: &str| fs::read_to_string(path(name)).unwrap();
        assert_eq!(read("raw.jsonl") + &read("raw.jsonl.cut"), raw.concat());
        assert_eq!(read("runs.jsonl") + &read("runs.jsonl.cut"), marks.concat());
        assert!(!path("events.jsonl").exists());
    }

    /// Fault model: a file that cannot be read is taken for an empty one, and cut to nothing.
    #[test]
    fn what_cannot_be_read_is_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("runs.jsonl"), mark("a", figure(1).len())).unwrap();
        fs::create_dir(path("raw.jsonl")).unwrap();
        assert!(take_up(dir.path()).is_err());
        assert_eq!(fs::read_to_string(path("runs.jsonl")).unwrap(), mark("a", figure(1).len()));
    }
}
