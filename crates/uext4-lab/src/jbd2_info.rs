//! What jbd2 tells of a journal: `/proc/fs/jbd2/DEVICE-INODE/info`.

use std::fs;
use std::path::{Path, PathBuf};

/// The mean that counts handles.
pub(crate) const HANDLES: &str = "handles per transaction";
/// The mean that is a moving average of the last commits.
pub(crate) const COMMIT: &str = "average transaction commit time";

/// The numbers of an `info`. Means are of all transactions since the mount.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Jbd2Info {
    /// Transactions that were committed.
    pub(crate) transactions: Option<u64>,
    /// Those of them that somebody waited for.
    pub(crate) requested: Option<u64>,
    /// The means, in their order.
    pub(crate) means: Vec<Mean>,
}

/// A line of the means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mean {
    pub(crate) value: u64,
    /// `ms`, `us` or nothing.
    pub(crate) unit: String,
    pub(crate) what: String,
}

impl Jbd2Info {
    /// That of the journal on a block device; `None` without one.
    pub(crate) fn of_device(name: &str) -> Option<Self> {
        let folder = folder(Path::new("/proc/fs/jbd2"), name)?;
        fs::read_to_string(folder.join("info")).ok().map(|text| Self::parse(&text))
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let words: Vec<&str> = lines.next().unwrap_or_default().split([' ', '(']).collect();
        let number = |at: usize| words.get(at)?.parse().ok();
        let mean = |line: &str| {
            let line = line.trim();
            let end = line.find(|c: char| !c.is_ascii_digit())?;
            let (unit, what) = line[end..].split_once(' ')?;
            let value = line[..end].parse().ok()?;
            Some(Mean { value, unit: unit.to_owned(), what: what.to_owned() })
        };
        Self {
            transactions: number(0),
            requested: number(3),
            means: lines.filter_map(mean).collect(),
        }
    }

    /// The value of the mean of that name.
    pub(crate) fn mean(&self, what: &str) -> Option<u64> {
        self.means.iter().find(|mean| mean.what == what).map(|mean| mean.value)
    }

    /// Handles of all transactions, of which jbd2 tells a rounded mean.
    pub(crate) fn handles(&self) -> Option<u64> {
        // Of a fresh mount there is only the first line.
        match self.transactions? {
            0 => Some(0),
            count => Some(count * self.mean(HANDLES)?),
        }
    }
}

/// Where jbd2 tells of the journal on a block device. Its name is that name, a dash and an inode.
pub(crate) fn folder(top: &Path, device: &str) -> Option<PathBuf> {
    let prefix = format!("{device}-");
    let entry = fs::read_dir(top).ok()?.filter_map(Result::ok).find(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name == device || name.starts_with(&prefix)
    })?;
    Some(entry.path())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a kernel told.
    pub(crate) const INFO: &str = "\
24 transactions (23 requested), each up to 8192 blocks
average: 
  1ms waiting for transaction
  0ms request delay
  84ms running transaction
  0ms transaction was being locked
  4ms flushing data (in ordered mode)
  9ms logging transaction
  13521us average transaction commit time
  73 handles per transaction
  6 blocks per transaction
  7 logged blocks per transaction
";

    #[test]
    fn what_jbd2_tells_is_understood() {
        let info = Jbd2Info::parse(INFO);
        assert_eq!((info.transactions, info.requested), (Some(24), Some(23)));
        assert_eq!((info.handles(), info.mean(COMMIT)), (Some(24 * 73), Some(13_521)));
        let running = Mean { value: 84, unit: "ms".into(), what: "running transaction".into() };
        assert_eq!((info.means.len(), &info.means[2]), (10, &running));
        assert_eq!(Jbd2Info::parse(""), Jbd2Info::default());
        let fresh = Jbd2Info::parse("0 transactions (0 requested), each up to 8192 blocks\n");
        assert_eq!(fresh.handles(), Some(0));
    }
}
