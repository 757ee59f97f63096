//! `uext4 frag`: how fragmented files are, as `e4defrag -c` tells of a mounted file system.
//!
//! A file's extents now are its runs ([`runs`]), the best number is one for each part of the size
//! of a flex group. Its score grows with the surplus in percent of its blocks: eightfold up to 10,
//! from there slowly up to 100. Every name counts; files of size 0 and those in `lost+found` do
//! not.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;

use serde::Serialize;
use uext4::{FileKind, Ino, InodeRef, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, names, resolve};
use crate::output::Output;
use crate::runs::{self, Run};
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 frag disk.img", "the five files in most fragments, and a score"),
    ("uext4 frag -v disk.img:/var", "every file below a directory"),
    ("uext4 frag --json disk.img", "figures for programs"),
];

/// Show how fragmented the files of an image are, the worst first
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Every file, not only the five worst; of a single file every extent
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Image, or a file or directory in it
    #[arg(value_name = "IMAGE[:/PATH]")]
    place: OsString,
}

/// Files that are listed without -v.
const WORST: usize = 5;
/// A file or file system with a greater score needs to be defragmented.
const NEEDS_DEFRAG: f32 = 55.0;
const SCALE: &str = "[0-30 no problem: 31-55 a little bit fragmented: 56- needs defrag]";

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let path = spec::image_or_inside(&args.place);
    let volume = image::volume("frag", &path.image, Access::Read)?;
    let found = resolve(&volume, &path.path, Last::Follow).at("frag", &path)?;
    match found.inode().kind() {
        FileKind::Regular => one_file(args, &volume, &path, found.inode()),
        FileKind::Directory => {
            let mut outcome = Outcome::default();
            let survey = Survey::of(args, &volume, &path, found.inode(), &mut outcome)?;
            print_survey(args, &path, survey)?;
            outcome.finish()
        }
        _ => Err(Why::new("is a special file without blocks").at("frag", &path)),
    }
}

fn one_file(args: &Args, volume: &Volume, path: &ImagePath, inode: &InodeRef) -> Result<()> {
    let runs = runs::all(volume, inode).at("frag", path)?;
    if runs.is_empty() {
        return Err(Why::new("has no blocks").at("frag", path));
    }
    let mut figures = Figures::default();
    runs.iter().for_each(|run| figures.count(run));
    figures.close(flex_group_blocks(volume));
    let block_size = u64::from(volume.layout().block_size);
    let file = FileRow { name: path.path.clone(), figures };
    let mut output = Output::new();
    if args.json {
        let total = figures.shape(block_size);
        output.json(&SurveyShape { files: 1, total, worst: vec![file.shape(block_size)] })?;
        return output.finish();
    }
    if args.verbose {
        output.line("<File>")?;
        for (run, number) in runs.iter().zip(1..) {
            let (start, logical, len) = (run.physical, run.logical, run.len);
            output
                .line(&format!("[ext {number}]:\tstart {start}:\tlogical {logical}:\tlen {len}"))?;
        }
    } else {
        output.line(&title("<File>"))?;
        print_row(b"", &file, block_size, &mut output)?;
    }
    print_total(&figures, block_size, &format!("This file ({path})"), &mut output)?;
    output.finish()
}

/// Blocks that one extent holds at best.
fn flex_group_blocks(volume: &Volume) -> u64 {
    let layout = volume.layout();
    u64::from(layout.blocks_per_group) * u64::from(layout.groups_per_flex.max(1))
}

/// Extents and blocks of a file, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    now: u64,
    best: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct FiguresShape {
    extents: u64,
    best_extents: u64,
    blocks: u64,
    kb_per_extent: u64,
    score: f32,
    meaning: &'static str,
}

impl Figures {
    fn count(&mut self, run: &Run) {
        self.now += 1;
        self.blocks += run.len;
    }

    /// All runs of a file have been counted.
    fn close(&mut self, best_len: u64) {
        self.best = self.blocks.div_ceil(best_len);
    }

    fn add(&mut self, file: &Self) {
        self.now += file.now;
        self.best += file.best;
        self.blocks += file.blocks;
    }

    /// Extents more than the best number, in percent of the blocks. In single precision, as what it
    /// is compared with. A file whose runs are longer than a flex group has none.
    fn surplus(&self) -> f32 {
        if self.blocks == 0 {
            return 0.0;
        }
        self.now.saturating_sub(self.best) as f32 * 100.0 / self.blocks as f32
    }

    /// From 0, whole, to 100, every block alone.
    fn score(&self) -> f32 {
        let surplus = self.surplus();
        if surplus > 10.0 { 80.0 + 20.0 * surplus / 100.0 } else { 8.0 * surplus }
    }

    fn meaning(&self) -> &'static str {
        match self.score() {
            score if score > NEEDS_DEFRAG => "needs defrag",
            score if score > 30.0 => "a little bit fragmented",
            _ => "no problem",
        }
    }

    fn kb_per_extent(&self, block_size: u64) -> u64 {
        // A block has at least 1 KiB.
        (self.blocks * (block_size / 1024)).checked_div(self.now).unwrap_or(0)
    }

    fn shape(&self, block_size: u64) -> FiguresShape {
        FiguresShape {
            extents: self.now,
            best_extents: self.best,
            blocks: self.blocks,
            kb_per_extent: self.kb_per_extent(block_size),
            score: self.score(),
            meaning: self.meaning(),
        }
    }
}

/// One file of a list.
struct FileRow {
    name: Vec<u8>,
    figures: Figures,
}

#[derive(Serialize)]
struct FileRowShape {
    path: String,
    #[serde(flatten)]
    figures: FiguresShape,
}

#[derive(Serialize)]
struct SurveyShape {
    files: u64,
    total: FiguresShape,
    worst: Vec<FileRowShape>,
}

impl FileRow {
    fn shape(&self, block_size: u64) -> FileRowShape {
        FileRowShape { path: spec::show(&self.name), figures: self.figures.shape(block_size) }
    }
}

/// The files below a directory.
struct Survey {
    block_size: u64,
    files: u64,
    total: Figures,
    rows: Vec<FileRow>,
    /// Rows that are wanted, the worst ones.
    most: usize,
}

impl Survey {
    fn of(
        args: &Args,
        volume: &Volume,
        path: &ImagePath,
        dir: &InodeRef,
        outcome: &mut Outcome,
    ) -> Result<Self> {
        let mut survey = Self {
            block_size: u64::from(volume.layout().block_size),
            files: 0,
            total: Figures::default(),
            rows: Vec::new(),
            most: if args.verbose { usize::MAX } else { WORST },
        };
        let best_len = flex_group_blocks(volume);
        // Files with several names, so that each is read once.
        let mut known: HashMap<Ino, Figures> = HashMap::new();
        // A hostile directory may lead back up.
        let mut entered = HashSet::from([dir.ino()]);
        let mut waiting = vec![(path.path.clone(), dir.clone())];
        while let Some((here, dir)) = waiting.pop() {
            let listed = names(volume, &dir)
                .at("frag", ImagePath { image: path.image.clone(), path: here.clone() });
            let listed = match listed {
                Ok(listed) => listed,
                Err(failure) => {
                    outcome.note(failure);
                    continue;
                }
            };
            for entry in listed {
                let name = spec::join(&here, &entry.name);
                let at = || ImagePath { image: path.image.clone(), path: name.clone() };
                let inode = match volume.inode(entry.ino).at("frag", at()) {
                    Ok(inode) => inode,
                    Err(failure) => {
                        outcome.note(failure);
                        continue;
                    }
                };
                match inode.kind() {
                    FileKind::Directory
                        if dir.ino() == Ino::ROOT && entry.name == b"lost+found" => {}
                    FileKind::Directory if entered.insert(entry.ino) => {
                        waiting.push((name, inode));
                    }
                    FileKind::Regular => {
                        match figures(volume, &inode, best_len, &mut known).at("frag", at()) {
                            Ok(figures) => survey.add(FileRow { name, figures }),
                            Err(failure) => outcome.note(failure),
                        }
                    }
                    _ => {}
                }
            }
        }
        survey.sort();
        Ok(survey)
    }

    fn add(&mut self, row: FileRow) {
        if row.figures.now == 0 {
            return;
        }
        self.files += 1;
        self.total.add(&row.figures);
        self.rows.push(row);
        // Of a large file system only the worst are kept.
        if self.rows.len() / 64 > self.most {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.rows.sort_by(|a, b| {
            let worst_first = b.figures.surplus().total_cmp(&a.figures.surplus());
            worst_first.then_with(|| a.name.cmp(&b.name))
        });
        self.rows.truncate(self.most);
    }
}

fn figures(
    volume: &Volume,
    inode: &InodeRef,
    best_len: u64,
    known: &mut HashMap<Ino, Figures>,
) -> std::result::Result<Figures, Why> {
    let attr = volume.attr(inode);
    let mut figures = Figures::default();
    if attr.size == 0 {
        return Ok(figures);
    }
    if let Some(found) = known.get(&attr.ino) {
        return Ok(*found);
    }
    runs::each(volume, inode, |run| figures.count(&run))?;
    figures.close(best_len);
    if attr.links > 1 {
        known.insert(attr.ino, figures);
    }
    Ok(figures)
}

fn print_survey(args: &Args, path: &ImagePath, survey: Survey) -> Result<()> {
    let block_size = survey.block_size;
    let mut output = Output::new();
    if args.json {
        let worst = survey.rows.iter().map(|row| row.shape(block_size)).collect();
        let total = survey.total.shape(block_size);
        output.json(&SurveyShape { files: survey.files, total, worst })?;
        return output.finish();
    }
    if survey.files > 0 {
        output.line(&title("<Fragmented files>"))?;
    }
    for (row, number) in survey.rows.iter().zip(1..) {
        print_row(format!("{number}. ").as_bytes(), row, block_size, &mut output)?;
    }
    let what = match path.path.as_slice() {
        b"/" => format!("This device ({})", path.image),
        _ => format!("This directory ({path})"),
    };
    print_total(&survey.total, block_size, &what, &mut output)?;
    output.finish()
}

fn title(what: &str) -> String {
    format!("{what:<40}{:>10}/{:<10}{:>9}", "now", "best", "size/ext")
}

/// Columns of a name before the figures.
const NAME_WIDTH: usize = 40;

fn print_row(lead: &[u8], row: &FileRow, block_size: u64, output: &mut Output) -> Result<()> {
    let Figures { now, best, .. } = row.figures;
    output.bytes(lead)?;
    output.name(&row.name)?;
    let used = lead.len() + row.name.len();
    let indent = if used > NAME_WIDTH {
        output.line("")?;
        NAME_WIDTH
    } else {
        NAME_WIDTH - used
    };
    let size = row.figures.kb_per_extent(block_size);
    output.line(&format!("{:indent$}{now:>10}/{best:<10}{size:>6} KB", ""))
}

fn print_total(total: &Figures, block_size: u64, what: &str, output: &mut Output) -> Result<()> {
    let verdict = if total.score() > NEEDS_DEFRAG { "needs" } else { "does not need" };
    output.line("")?;
    output.line(&format!(" Total/best extents\t\t\t\t{}/{}", total.now, total.best))?;
    let size = total.kb_per_extent(block_size);
    output.line(&format!(" Average size per extent\t\t\t{size} KB"))?;
    output.line(&format!(" Fragmentation score\t\t\t\t{:.0}", total.score()))?;
    output.line(&format!(" {SCALE}"))?;
    output.line(&format!(" {what} {verdict} defragmentation."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores that `e4defrag -c` gave to files of so many extents and blocks.
    #[test]
    fn scores_are_those_of_e4defrag() {
        for (now, blocks, score, needs) in [
            (1, 1, "0", false),
            (2, 2, "90", true),
            (2, 3, "87", true),
            (2, 9, "82", true),
            (2, 10, "80", true),
            (2, 11, "73", true),
            (2, 15, "53", false),
            (3, 100, "16", false),
            (12, 30, "87", true),
            (12, 100, "82", true),
            (39, 1000, "30", false),
            (56, 800, "55", false),
            (70, 1000, "55", true),
            (40, 40, "100", true),
        ] {
            let figures = Figures { now, best: 1, blocks };
            assert_eq!(format!("{:.0}", figures.score()), score, "{now} extents, {blocks} blocks");
            assert_eq!(figures.meaning() == "needs defrag", needs, "{now}, {blocks}");
        }
    }

    #[test]
    fn best_is_one_extent_a_flex_group() {
        let of = |blocks| {
            let mut figures = Figures { now: 4, best: 0, blocks };
            figures.close(524_288);
            figures.best
        };
        assert_eq!([1, 524_288, 524_289, 1_310_720].map(of), [1, 1, 2, 3]);
        // Longer runs than that are no merit that hides another file's fragments.
        assert_eq!(Figures { now: 2, best: 10, blocks: 5_242_880 }.score(), 0.0);
    }
}
