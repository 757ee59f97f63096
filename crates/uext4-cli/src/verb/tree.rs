//! `uext4 tree`: directories of an image and all below them, drawn as tree(1) draws them.

use std::ffi::OsString;

use serde::Serialize;
use uext4::{FileKind, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::output::Output;
use crate::spec::{self, ImagePath};
use crate::text;
use crate::walk::{self, Go, Node, Visitor};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 tree disk.img", "all names of an image"),
    ("uext4 tree -d -L 2 disk.img@p2:/usr", "two levels of directories, in a partition"),
    ("uext4 tree -apsh disk.img:/etc", "hidden names too, with modes and sizes"),
];

/// Draw directories of an image and what is below them
///
/// Symbolic links are shown with what they point to, and not followed.
#[derive(clap::Args)]
#[command(disable_help_flag = true, after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Names that start with a dot, too
    #[arg(short, long)]
    all: bool,
    /// Directories only
    #[arg(short, long)]
    dirs_only: bool,
    /// Levels below the directory
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    level: Option<u32>,
    /// The whole path of each name
    #[arg(short, long)]
    full_path: bool,
    /// Type and permissions
    #[arg(short = 'p', long)]
    permissions: bool,
    /// Owners, by their numbers
    #[arg(short, long)]
    uid: bool,
    /// Groups, by their numbers
    #[arg(short, long)]
    gid: bool,
    /// Sizes in bytes
    #[arg(short, long)]
    size: bool,
    /// Sizes like 1.5M
    #[arg(short, long)]
    human_readable: bool,
    /// Times of the last modification (UTC)
    #[arg(short = 'D', long)]
    date: bool,
    /// Inode numbers
    #[arg(long)]
    inodes: bool,
    /// Directories before files
    #[arg(long)]
    dirsfirst: bool,
    /// No counts at the end
    #[arg(long)]
    noreport: bool,
    /// Lines of this kind; without it as the locale has them
    #[arg(long, value_name = "utf-8|ascii", value_parser = ["utf-8", "UTF-8", "ascii"])]
    charset: Option<String>,
    /// Print JSON: each name with its path and depth
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Images, or directories in them
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    paths: Vec<OsString>,
}

/// The strokes before a name.
struct Strokes {
    branch: &'static str,
    end: &'static str,
    through: &'static str,
    blank: &'static str,
}

const BOX: Strokes = Strokes {
    branch: "\u{251c}\u{2500}\u{2500} ",
    end: "\u{2514}\u{2500}\u{2500} ",
    // tree(1) draws the gap with spaces that do not break.
    through: "\u{2502}\u{a0}\u{a0} ",
    blank: "    ",
};
const ASCII: Strokes = Strokes { branch: "|-- ", end: "`-- ", through: "|   ", blank: "    " };

/// Whether the locale of the caller has characters beyond ASCII.
fn locale_is_utf8() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

#[derive(Serialize)]
struct NodeShape {
    #[serde(flatten)]
    path: json::Path,
    depth: usize,
    #[serde(flatten)]
    inode: json::Inode,
}

/// What `--json` says at the end of each tree.
#[derive(Serialize)]
struct ReportShape {
    directories: u64,
    files: u64,
}

#[derive(Serialize)]
struct TreeShape {
    entries: Vec<NodeShape>,
    report: ReportShape,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let mut sheet = Sheet { output: Output::new(), directories: 0, files: 0, shapes: Vec::new() };
    for path in glob::image_or_inside("tree", &args.paths, &mut outcome)? {
        match draw(args, &path, &mut sheet, &mut outcome) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => outcome.note(failure),
            Ok(()) => {}
        }
    }
    sheet.finish(args)?;
    outcome.finish()
}

fn draw(args: &Args, path: &ImagePath, sheet: &mut Sheet, outcome: &mut Outcome) -> Result<()> {
    let volume = image::volume("tree", &path.image, Access::Read)?;
    let found = resolve(&volume, &path.path, Last::Follow).at("tree", path)?;
    let is_utf8 = args.charset.as_ref().map_or_else(locale_is_utf8, |name| name != "ascii");
    let strokes = if is_utf8 { &BOX } else { &ASCII };
    let mut drawing = Drawing { args, volume: &volume, strokes, lasts: Vec::new(), sheet, outcome };
    walk::walk("tree", &volume, path, found.inode(), &mut drawing)
}

/// What is drawn on, and what is counted.
struct Sheet {
    output: Output,
    directories: u64,
    files: u64,
    shapes: Vec<NodeShape>,
}

impl Sheet {
    fn finish(mut self, args: &Args) -> Result<()> {
        let (directories, files) = (self.directories, self.files);
        if args.json {
            let report = ReportShape { directories, files };
            self.output.json(&TreeShape { entries: self.shapes, report })?;
        } else if !args.noreport {
            let counted =
                |count, one, many| format!("{count} {}", if count == 1 { one } else { many });
            let directories = counted(directories, "directory", "directories");
            self.output.line("")?;
            self.output.line(&match args.dirs_only {
                true => directories,
                false => format!("{directories}, {}", counted(files, "file", "files")),
            })?;
        }
        self.output.finish()
    }
}

/// One tree being drawn.
struct Drawing<'a> {
    args: &'a Args,
    volume: &'a Volume,
    strokes: &'static Strokes,
    /// For each level down to the name that was drawn last: whether it is the last of its
    /// directory.
    lasts: Vec<bool>,
    sheet: &'a mut Sheet,
    outcome: &'a mut Outcome,
}

impl Drawing<'_> {
    /// A directory, or a link to one.
    fn counts_as_dir(&self, node: &Node) -> bool {
        let leads_to_dir = || {
            let end = resolve(self.volume, &node.path(), Last::Follow);
            end.is_ok_and(|end| end.inode().kind() == FileKind::Directory)
        };
        node.is_dir() || node.attr.kind == FileKind::Symlink && leads_to_dir()
    }

    /// What the options want to know of a name, in brackets.
    fn facts(&self, node: &Node) -> String {
        let (args, attr) = (self.args, &node.attr);
        let mut facts = Vec::new();
        if args.inodes {
            facts.push(format!("{:>7}", attr.ino.get()));
        }
        if args.permissions {
            facts.push(text::mode(attr.kind, attr.mode));
        }
        if args.uid {
            facts.push(format!("{:<8}", attr.uid));
        }
        if args.gid {
            facts.push(format!("{:<8}", attr.gid));
        }
        if args.human_readable {
            facts.push(format!("{:>4}", text::human(attr.size)));
        } else if args.size {
            facts.push(format!("{:>11}", attr.size));
        }
        if args.date {
            facts.push(text::time_short(attr.mtime));
        }
        if facts.is_empty() { String::new() } else { format!("[{}]  ", facts.join(" ")) }
    }

    fn line(&mut self, node: &Node, target: Option<&[u8]>) -> Result<()> {
        let mut before = String::new();
        if let Some((is_last, above)) = self.lasts.split_last() {
            for is_last in above {
                before.push_str(if *is_last { self.strokes.blank } else { self.strokes.through });
            }
            before.push_str(if *is_last { self.strokes.end } else { self.strokes.branch });
        }
        before.push_str(&self.facts(node));
        let output = &mut self.sheet.output;
        output.bytes(before.as_bytes())?;
        match self.args.full_path {
            true => output.name(&node.path())?,
            false => output.name(node.name())?,
        }
        if let Some(target) = target {
            output.bytes(b" -> ")?;
            output.name(target)?;
        }
        output.line("")
    }
}

impl Visitor for Drawing<'_> {
    fn takes(&self, node: &Node) -> bool {
        (self.args.all || !node.name().starts_with(b"."))
            && (!self.args.dirs_only || self.counts_as_dir(node))
    }

    fn sort(&self, nodes: &mut [Node]) {
        let is_behind = |node: &Node| self.args.dirsfirst && !self.counts_as_dir(node);
        nodes.sort_by_cached_key(|node| (is_behind(node), node.name().to_vec()));
    }

    fn enter(&mut self, node: &Node, is_last: bool) -> Result<Go> {
        let target = match walk::target(self.volume, &node.attr) {
            Ok(target) => target,
            Err(why) => {
                self.fail(why.at("tree", spec::show(&node.path())));
                None
            }
        };
        self.lasts.truncate(node.depth.saturating_sub(1));
        if node.depth > 0 {
            self.lasts.push(is_last);
        }
        match self.counts_as_dir(node) {
            true => self.sheet.directories += 1,
            false => self.sheet.files += 1,
        }
        if self.args.json {
            self.sheet.shapes.push(NodeShape {
                path: json::Path::new(&node.path()),
                depth: node.depth,
                inode: json::Inode::new(&node.attr, target.as_deref()),
            });
        } else {
            self.line(node, target.as_deref())?;
        }
        let deepest = self.args.level.map_or(usize::MAX, |level| level as usize);
        Ok(if node.depth < deepest { Go::On } else { Go::Past })
    }

    fn fail(&mut self, failure: Failure) {
        self.outcome.note(failure);
    }
}
