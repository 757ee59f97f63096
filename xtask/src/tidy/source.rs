//! The files that the house rules look at.

use std::fs;
use std::io;
use std::path::Path;

use super::mask::mask;

/// One text file of the repository.
pub(crate) struct Source {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Rust: the text with comments and literals blanked, same lines. Else empty.
    pub(crate) code: String,
    /// First line (from 1) of the unit tests that close the file; past the end without any.
    tests_from: usize,
}

/// Folders that hold no source.
const FOLDERS_LEFT_OUT: &[&str] = &["target", ".git", ".demo", "node_modules"];
/// Endings of the text files that the rules look at.
const ENDINGS: &[&str] = &[".rs", ".toml", ".md", ".sh", ".yml", ".py", ".c", ".h", ".ci/run"];

impl Source {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Source {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") { mask(&text) } else { String::new() };
        let tests_from = code
            .lines()
            .position(|line| line.trim() == "#[cfg(test)]")
            .map_or(usize::MAX, |index| index + 1);
        Source { path, text, code, tests_from }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the path is one of these files or lies in one of these folders (ending in `/`).
    pub(crate) fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| {
            self.path == *place || (place.ends_with('/') && self.path.starts_with(place))
        })
    }

    /// Whether a line (from 1) is test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        line >= self.tests_from
            || self.path.contains("/tests/")
            || self.path.contains("/benches/")
            || self.path.ends_with("/tests.rs")
            || self.path.ends_with("/harness.rs")
    }

    /// The line (from 1) of an offset in `code` or `text`.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        self.code.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count() + 1
    }
}

/// Reads every source file below a folder.
pub(crate) fn read_all(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let name = entry.file_name();
                if !FOLDERS_LEFT_OUT.iter().any(|left_out| name == *left_out) {
                    open.push(path);
                }
                continue;
            }
            let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) else { continue };
            if kind.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
                sources.push(Source::new(name, text));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}
