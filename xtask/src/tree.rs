//! A real directory tree to work with, found on this machine.

use std::fs;
use std::path::{Path, PathBuf};

/// Entries and bytes of a tree.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    /// Files, directories, links and the rest, the root not counted.
    pub(crate) entries: u64,
    /// Bytes in regular files.
    pub(crate) bytes: u64,
}

/// A tree worth showing, and one that the demo's image and time have room for.
const ENTRIES: std::ops::RangeInclusive<u64> = 500..=60_000;
const BYTES_MAX: u64 = 300 << 20;

/// Finds a real tree: sources that cargo has unpacked, else what every Linux system has.
pub(crate) fn find() -> Option<(PathBuf, Size)> {
    candidates().into_iter().find_map(|path| {
        let size = measure(&path)?;
        ENTRIES.contains(&size.entries).then_some((path, size))
    })
}

/// Counts a tree; `None` if it cannot be read or is too large.
pub(crate) fn measure(root: &Path) -> Option<Size> {
    let mut size = Size::default();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).ok()? {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok()?;
            size.entries += 1;
            if metadata.is_dir() {
                open.push(entry.path());
            } else if metadata.is_file() {
                // A file that cannot be read cannot be brought in.
                fs::File::open(entry.path()).ok()?;
                size.bytes += metadata.len();
            }
            if size.entries > *ENTRIES.end() || size.bytes > BYTES_MAX {
                return None;
            }
        }
    }
    Some(size)
}

fn candidates() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let mut found: Vec<PathBuf> = fs::read_dir(cargo.join("registry/src"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    found.extend(
        ["/usr/share", "/usr/lib/python3", "/usr/share/doc", "/usr/include"].map(Into::into),
    );
    found
}
