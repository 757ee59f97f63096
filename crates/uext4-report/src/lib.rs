//! The evidence of a run as one HTML file that needs no network.
//!
//! What: a folder of evidence (`env.json`, `raw.jsonl`, `events.jsonl`, profiles) becomes
//! `report.html`: an overview, a page for each experiment with plots and the table under each.
//!
//! Invariant: the report shows what the folder holds and computes no figure of its own but medians,
//! spreads and ratios of it; each plot has its numbers in a table, and all of them can be taken
//! from the page as the text that they were read from.
//!
//! Invariant: whatever a file of the folder says, the result is a page: what cannot be read is a
//! remark on it. Text of the folder reaches the page escaped.

#![forbid(unsafe_code)]

mod evidence;
mod flame;
mod metric;
mod page;
mod panel;
mod plot;
mod stats;
mod verdict;

use std::path::{Path, PathBuf};

/// Name of the page in its folder.
pub const FILE: &str = "report.html";

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder holds no evidence.
    #[error("{0}: no evidence: neither raw.jsonl nor crash.json is there")]
    NoEvidence(PathBuf),
    /// A file could not be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
}

/// Writes the report of the evidence in a folder into that folder, and returns its path.
///
/// # Errors
/// There is no evidence, or it cannot be read, or the report cannot be written.
pub fn write(folder: &Path) -> Result<PathBuf, Error> {
    let text = render(folder)?;
    let path = folder.join(FILE);
    std::fs::write(&path, text).map_err(|error| Error::Io(path.clone(), error))?;
    Ok(path)
}

/// The report of the evidence in a folder, as HTML.
///
/// # Errors
/// There is no evidence, or it cannot be read.
pub fn render(folder: &Path) -> Result<String, Error> {
    Ok(page::render(&evidence::read(folder)?))
}
