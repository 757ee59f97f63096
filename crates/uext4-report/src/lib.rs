//! The evidence of a run as one HTML file that needs no network.
//!
//! What: a folder of evidence (`env.json`, `raw.jsonl`, `events.jsonl`, profiles) becomes
//! `report.html`: an overview, a page for each experiment with plots and the table under each.
//!
//! Invariant: the report shows what the folder holds and computes no figure of its own but medians,
//! spreads and ratios of it; each plot has its numbers in a table. Figures, events and stacks can
//! be taken from the page as they were read, objects of JSON as they are printed anew, packed;
//! latencies and waits of single runs stay in the folder.
//!
//! Invariant: whatever a file of the folder says, the result is a page: what cannot be read is a
//! remark on it. Text of the folder reaches the page escaped.

#![forbid(unsafe_code)]

mod evidence;
mod flame;
mod folder;
mod goal;
mod metric;
mod packed;
mod page;
mod panel;
mod plot;
mod stats;
mod verdict;

use std::os::fd::OwnedFd;
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
    let (opened, evidence) = read(folder)?;
    let path = folder.join(FILE);
    let written = folder::put(&opened, FILE.as_ref(), &page::render(&evidence));
    written.map_err(|error| Error::Io(path.clone(), error))?;
    Ok(path)
}

/// The report of the evidence in a folder, as HTML.
///
/// # Errors
/// There is no evidence, or it cannot be read.
pub fn render(folder: &Path) -> Result<String, Error> {
    Ok(page::render(&read(folder)?.1))
}

/// Writes the ratios of the evidence in a folder as a picture of its own (SVG), for a README.
///
/// # Errors
/// There is no evidence or no ratio, or it cannot be read, or the picture cannot be written.
pub fn write_picture(folder: &Path, picture: &Path) -> Result<(), Error> {
    let svg = page::render_picture(&read(folder)?.1);
    let svg = svg.ok_or_else(|| Error::NoRatio(folder.to_owned()))?;
    let written = match (picture.parent(), picture.file_name()) {
        (Some(parent), Some(name)) => {
            folder::open(parent).and_then(|parent| folder::put(&parent, name, &svg))
        }
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    written.map_err(|error| Error::Io(picture.to_owned(), error))
}

/// A folder, opened, and what it holds.
fn read(folder: &Path) -> Result<(OwnedFd, evidence::Evidence), Error> {
    let of = |error| Error::Io(folder.to_owned(), error);
    let opened = folder::open(folder).map_err(of)?;
    let evidence = evidence::read(opened.try_clone().map_err(of)?);
    Ok((opened, evidence.ok_or_else(|| Error::NoEvidence(folder.to_owned()))?))
}
