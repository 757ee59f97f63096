//! `uext4 extents`: where a file lies, as filefrag(8) prints it. Directories are files here, too.

use std::ffi::OsString;

use serde::Serialize;
use uext4::FileKind;

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::output::Output;
use crate::runs::{self, Run};
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 extents disk.img:/var/db", "the number of extents of each file of a directory"),
    ("uext4 extents -v disk.img:/swapfile", "where each extent of a file lies"),
    ("uext4 extents --json disk.img:/swapfile", "the same for programs"),
];

/// Show where files of an image lie
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Each extent, not only their number
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON (always each extent)
    #[arg(long)]
    json: bool,
    /// Files or directories, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let mut output = Output::new();
    let mut shapes = Vec::new();
    let mut titled = false;
    for path in glob::in_image("extents", &args.paths, &mut outcome)? {
        let listing = match look(&path) {
            Ok(listing) => listing,
            Err(failure) => {
                outcome.note(failure);
                continue;
            }
        };
        if args.json {
            shapes.push(listing.shape());
            continue;
        }
        if args.verbose {
            if !std::mem::replace(&mut titled, true) {
                output.line("Filesystem type is: ef53")?;
            }
            print_extents(&listing, &mut output)?;
        }
        output.name(&listing.name)?;
        output.line(&format!(": {}", count_words(listing.breaks(), "extent found")))?;
    }
    if args.json {
        output.json(&shapes)?;
    }
    output.finish()?;
    outcome.finish()
}

fn look(path: &ImagePath) -> Result<FileLayout> {
    let volume = image::volume("extents", &path.image, Access::Read)?;
    let found = resolve(&volume, &path.path, Last::Follow).at("extents", path)?;
    let inode = found.inode();
    if !matches!(inode.kind(), FileKind::Regular | FileKind::Directory) {
        return Err(Why::new("is a special file without blocks").at("extents", path));
    }
    let attr = volume.attr(inode);
    Ok(FileLayout {
        name: path.path.clone(),
        size: attr.size,
        block_size: u64::from(volume.layout().block_size),
        volume_blocks: volume.layout().blocks_count,
        is_block_map: !inode.has_extent_tree(),
        runs: runs::all(&volume, inode).at("extents", path)?,
    })
}

/// Where one file lies.
struct FileLayout {
    name: Vec<u8>,
    /// In bytes.
    size: u64,
    block_size: u64,
    /// Blocks of the file system, for the width of a column.
    volume_blocks: u64,
    /// The file has a block map of ext2 or ext3: runs were put together from it.
    is_block_map: bool,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct FileLayoutShape {
    path: String,
    size: u64,
    block_size: u64,
    extents_found: u64,
    extents: Vec<RunShape>,
}

#[derive(Serialize)]
struct RunShape {
    logical: u64,
    physical: u64,
    length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<u64>,
    flags: Vec<&'static str>,
}

impl FileLayout {
    /// Where a run would lie that did not break with the one before: as far behind it on the device
    /// as in the file. `None` if it lies there, or begins the file, or follows the run before on
    /// the device although not in the file: that needs no seek either.
    fn expected(&self, index: usize) -> Option<u64> {
        let run = self.runs[index];
        let (want, behind) = match index.checked_sub(1).map(|before| self.runs[before]) {
            Some(before) => {
                (before.physical + (run.logical - before.logical), before.physical + before.len)
            }
            // As filefrag: a file that begins with a hole is expected from block 0 on.
            None => (run.logical, 0),
        };
        let begins = index == 0 && run.logical == 0;
        let breaks = !begins && run.physical != want && run.physical != behind;
        breaks.then_some(want)
    }

    /// Extents as filefrag counts them: those that lie elsewhere than expected, and the first.
    fn breaks(&self) -> u64 {
        let broken = (1..self.runs.len()).filter(|&index| self.expected(index).is_some());
        u64::from(!self.runs.is_empty()) + broken.count() as u64
    }

    fn flags(&self, index: usize) -> Vec<&'static str> {
        let run = self.runs[index];
        let is_end = (run.logical + run.len) * self.block_size >= self.size;
        [
            (index + 1 == self.runs.len(), "last"),
            (run.unwritten, "unwritten"),
            (self.is_block_map, "merged"),
            (is_end, "eof"),
        ]
        .into_iter()
        .filter_map(|(is_set, name)| is_set.then_some(name))
        .collect()
    }

    /// Digits of the columns of file blocks and of device blocks.
    fn widths(&self) -> (usize, usize) {
        let log = |blocks: u64| blocks.checked_ilog10().map_or(0, |log| log as usize);
        (log(self.size.div_ceil(self.block_size)).max(8), log(self.volume_blocks).max(10))
    }

    fn header(&self) -> String {
        let (file, device) = self.widths();
        format!(
            " ext:{:>file$}{:>device$} length: {:>expected$} flags:",
            "logical_offset:",
            "physical_offset:",
            "expected:",
            file = 2 * file + 4,
            device = 2 * device + 4,
            expected = device + 1,
        )
    }

    fn row(&self, index: usize) -> String {
        let (file, device) = self.widths();
        let run = self.runs[index];
        let expected = match self.expected(index) {
            Some(block) => format!("{block:>device$}:"),
            None => " ".repeat(device + 1),
        };
        let line = format!(
            "{index:>4}: {:>file$}..{:>file$}: {:>device$}..{:>device$}: {:>6}: {expected} {}",
            run.logical,
            run.logical + run.len - 1,
            run.physical,
            run.physical + run.len - 1,
            run.len,
            self.flags(index).join(","),
        );
        line.trim_end().to_owned()
    }

    fn shape(&self) -> FileLayoutShape {
        let row = |index: usize| RunShape {
            logical: self.runs[index].logical,
            physical: self.runs[index].physical,
            length: self.runs[index].len,
            expected: self.expected(index),
            flags: self.flags(index),
        };
        FileLayoutShape {
            path: spec::show(&self.name),
            size: self.size,
            block_size: self.block_size,
            extents_found: self.breaks(),
            extents: (0..self.runs.len()).map(row).collect(),
        }
    }
}

fn print_extents(listing: &FileLayout, output: &mut Output) -> Result<()> {
    output.bytes(b"File size of ")?;
    output.name(&listing.name)?;
    let blocks = count_words(listing.size.div_ceil(listing.block_size), "block");
    output.line(&format!(" is {} ({blocks} of {} bytes)", listing.size, listing.block_size))?;
    if !listing.runs.is_empty() {
        output.line(&listing.header())?;
    }
    (0..listing.runs.len()).try_for_each(|index| output.line(&listing.row(index)))
}

/// `1 block`, `2 blocks`, `0 extents found`.
fn count_words(count: u64, noun: &str) -> String {
    let (first, rest) = noun.split_once(' ').map_or((noun, ""), |(first, rest)| (first, rest));
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {first}{plural} {rest}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(size: u64, runs: &[(u64, u64, u64, bool)]) -> FileLayout {
        let run = |&(logical, physical, len, unwritten): &(u64, u64, u64, bool)| Run {
            logical,
            physical,
            len,
            unwritten,
        };
        FileLayout {
            name: b"/f".to_vec(),
            size,
            block_size: 4096,
            volume_blocks: 131_072,
            is_block_map: false,
            runs: runs.iter().map(run).collect(),
        }
    }

    #[test]
    fn the_table_is_that_of_filefrag() {
        let listing = listing(
            60 * 4096,
            &[
                (0, 33_280, 1, false),
                (1, 33_290, 2, false),
                (3, 33_292, 7, true),
                (40, 33_329, 2, false),
                (52, 33_331, 1, false),
                (53, 32_848, 20, true),
            ],
        );
        let rows: Vec<String> = (0..6).map(|index| listing.row(index)).collect();
        let text = format!("{}\n{}", listing.header(), rows.join("\n"));
        let want = "
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..       0:      33280..     33280:      1:
   1:        1..       2:      33290..     33291:      2:      33281:
   2:        3..       9:      33292..     33298:      7:             unwritten
   3:       40..      41:      33329..     33330:      2:
   4:       52..      52:      33331..     33331:      1:
   5:       53..      72:      32848..     32867:     20:      33332: last,unwritten,eof";
        assert_eq!(text, want[1..]);
        assert_eq!(listing.breaks(), 3);
    }

    #[test]
    fn a_hole_at_the_start_breaks_nothing() {
        let listing = listing(418_600, &[(10, 99_466, 3, false), (100, 99_556, 3, false)]);
        assert_eq!((listing.expected(0), listing.expected(1)), (Some(10), None));
        assert_eq!(listing.breaks(), 1);
        assert_eq!(listing.flags(1), ["last", "eof"]);
    }

    #[test]
    fn numbers_have_their_nouns() {
        assert_eq!(count_words(0, "extent found"), "0 extents found");
        assert_eq!(count_words(1, "extent found"), "1 extent found");
        assert_eq!(count_words(2, "block"), "2 blocks");
    }
}
