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
mod goal;
mod metric;
mod page;
mod panel;
mod plot;
mod stats;
mod verdict;

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the page in its folder.
pub const FILE: &str = "report.html";

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder holds no evidence.
    #[error("{0}: no evidence: neither raw.jsonl nor compare.json nor crash.json is there")]
    NoEvidence(PathBuf),
    /// There is nothing that a picture could show.
    #[error("{0}: no picture: uext4 and a peer have no figure of the same round")]
    NoRatio(PathBuf),
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
    put(&path, &text).map_err(|error| Error::Io(path.clone(), error))?;
    Ok(path)
}

/// The report of the evidence in a folder, as HTML.
///
/// # Errors
/// There is no evidence, or it cannot be read.
pub fn render(folder: &Path) -> Result<String, Error> {
    Ok(page::render(&evidence::read(folder)?))
}

/// Writes the ratios of the evidence in a folder as a picture of its own (SVG), for a README.
///
/// # Errors
/// There is no evidence or no ratio, or it cannot be read, or the picture cannot be written.
pub fn write_picture(folder: &Path, picture: &Path) -> Result<(), Error> {
    let svg = page::render_picture(&evidence::read(folder)?);
    let svg = svg.ok_or_else(|| Error::NoRatio(folder.to_owned()))?;
    std::fs::write(picture, svg).map_err(|error| Error::Io(picture.to_owned(), error))
}

/// Writes a file of a folder that anybody may have made: a symbolic link there is not followed, and
/// what is no file is left alone.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    let mut file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is there and no regular file"));
    }
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}
