//! `uext4 du`: the space that directories of an image take, as du(1) tells it.

use std::collections::HashSet;
use std::ffi::OsString;

use serde::Serialize;
use uext4::{FileKind, Ino};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::output::Output;
use crate::spec::{Image, ImagePath};
use crate::text;
use crate::walk::{self, Go, Node, Visitor};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 du -sh disk.img", "the space of all files of an image"),
    ("uext4 du -h -d 1 disk.img:/var", "of each directory in /var"),
    ("uext4 du -ab disk.img:/etc", "the size of each file, in bytes"),
];

/// Show the space that files and directories of an image take
///
/// In KiB, rounded up. A file with several names counts once.
#[derive(clap::Args)]
#[command(disable_help_flag = true, after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Files, too, not only directories
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Only the total of each operand
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// A grand total at the end
    #[arg(short = 'c', long)]
    total: bool,
    /// Only so many levels below an operand; what is deeper counts in those above it
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Sizes like 1.5M
    #[arg(short, long)]
    human_readable: bool,
    /// The sizes of files in place of their blocks
    #[arg(long)]
    apparent_size: bool,
    /// The sizes of files, in bytes
    #[arg(short, long)]
    bytes: bool,
    /// In KiB (always so; taken for du's sake)
    #[arg(short)]
    kib: bool,
    /// In MiB
    #[arg(short, conflicts_with_all = ["human_readable", "bytes"])]
    mib: bool,
    /// A file counts with each of its names
    #[arg(short = 'l', long)]
    count_links: bool,
    /// Of a directory only what is directly in it
    #[arg(short = 'S', long)]
    separate_dirs: bool,
    /// End each line with NUL, not a newline
    #[arg(short = '0', long)]
    null: bool,
    /// Inodes in place of space
    #[arg(long)]
    inodes: bool,
    /// Print JSON, in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Images, or files and directories in them
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    paths: Vec<OsString>,
}

#[derive(Serialize)]
struct RowShape {
    #[serde(flatten)]
    path: json::Path,
    #[serde(flatten)]
    sum: Sum,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sum {
    /// Of the blocks.
    bytes: u64,
    apparent_bytes: u64,
    inodes: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        // A damaged inode may tell of any size.
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.apparent_bytes = self.apparent_bytes.saturating_add(other.apparent_bytes);
        self.inodes += other.inodes;
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let paths = glob::image_or_inside("du", &args.paths, &mut outcome)?;
    let mut count = Count {
        args,
        output: Output::new(),
        counted: HashSet::new(),
        image: Image::parse("".as_ref()),
        levels: Vec::new(),
        total: Sum::default(),
        rows: 0,
        outcome: &mut outcome,
    };
    for path in paths {
        match count.operand(&path) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => count.outcome.note(failure),
            Ok(()) => {}
        }
    }
    if args.total && !args.json {
        let total = count.total;
        count.line(total, b"total")?;
    }
    if args.json {
        count.output.json_end(count.rows == 0)?;
    }
    count.output.finish()?;
    outcome.finish()
}

struct Count<'a> {
    args: &'a Args,
    output: Output,
    /// Files with several names, and operands below others, that have been counted.
    counted: HashSet<(Image, Ino)>,
    image: Image,
    /// What is in each directory on the way, without the directories in it, and with them.
    levels: Vec<(Sum, Sum)>,
    total: Sum,
    rows: u64,
    outcome: &'a mut Outcome,
}

impl Count<'_> {
    fn operand(&mut self, path: &ImagePath) -> Result<()> {
        let volume = image::volume("du", &path.image, Access::Read)?;
        let found = resolve(&volume, &path.path, Last::Keep).at("du", path)?;
        self.image = path.image.clone();
        self.levels.clear();
        walk::walk("du", &volume, path, found.inode(), self)
    }

    fn line(&mut self, sum: Sum, name: &[u8]) -> Result<()> {
        let args = self.args;
        let bytes = match args.apparent_size || args.bytes {
            true => sum.apparent_bytes,
            false => sum.bytes,
        };
        let figure = match bytes {
            _ if args.inodes => sum.inodes.to_string(),
            bytes if args.human_readable => text::human(bytes),
            bytes if args.bytes => bytes.to_string(),
            bytes if args.mib => bytes.div_ceil(1 << 20).to_string(),
            bytes => bytes.div_ceil(1 << 10).to_string(),
        };
        self.output.bytes(figure.as_bytes())?;
        self.output.bytes(b"\t")?;
        self.output.name(name)?;
        self.output.bytes(if args.null { b"\0" } else { b"\n" })
    }

    /// Whether a name counts for the first time. Only names that could come again are kept.
    fn is_new(&mut self, node: &Node) -> bool {
        let may_come_again = node.attr.links > 1 && !node.is_dir() || self.args.paths.len() > 1;
        let is_kept = may_come_again && (!self.args.count_links || node.is_dir());
        !is_kept || self.counted.insert((self.image.clone(), node.attr.ino))
    }

    fn is_shown(&self, node: &Node) -> bool {
        let deepest =
            if self.args.summarize { 0 } else { self.args.max_depth.unwrap_or(usize::MAX) };
        node.depth <= deepest && (node.is_dir() || self.args.all || node.depth == 0)
    }
}

impl Visitor for Count<'_> {
    fn enter(&mut self, node: &Node, _is_last: bool) -> Result<Go> {
        let is_new = self.is_new(node);
        let attr = &node.attr;
        let has_size =
            matches!(attr.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        let own = Sum {
            bytes: attr.blocks_512.saturating_mul(512),
            apparent_bytes: if has_size { attr.size } else { 0 },
            inodes: 1,
        };
        let own = if is_new { own } else { Sum::default() };
        self.levels.truncate(node.depth);
        self.levels.push((own, own));
        // What has been counted has been shown with it.
        Ok(if is_new { Go::On } else { Go::Past })
    }

    fn leave(&mut self, node: &Node) -> Result<Go> {
        self.levels.truncate(node.depth + 1);
        let (alone, all) = self.levels.pop().unwrap_or_default();
        if let Some((above_alone, above_all)) = self.levels.last_mut() {
            if !node.is_dir() {
                above_alone.add(all);
            }
            above_all.add(all);
        } else {
            self.total.add(all);
        }
        // A name that had been counted is told of only where it is an operand that adds nothing.
        if all.inodes > 0 && self.is_shown(node) {
            let sum = if self.args.separate_dirs { alone } else { all };
            if self.args.json {
                let row = RowShape { path: json::Path::new(&node.path()), sum };
                self.output.json_item(self.rows == 0, &row)?;
            } else {
                self.line(sum, &node.path())?;
            }
            self.rows += 1;
        }
        Ok(Go::On)
    }

    fn fail(&mut self, failure: Failure) {
        self.outcome.note(failure);
    }
}
