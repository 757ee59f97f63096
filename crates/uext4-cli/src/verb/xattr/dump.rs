//! Attributes of many files as text, and back.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use regex::bytes::Regex;
use serde::Serialize;
use uext4::xattr::{Mode, VALUE_MAX};
use uext4::{FileKind, InodeRef, Volume};

use super::Link;
use crate::attribute_text::{self, Encoding, Line};
use crate::failure::{At, Failure, Outcome, Result, Why};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::operands::{Images, Try};
use crate::output::Output;
use crate::spec::{self, ImagePath};
use crate::walk::{self, Go, Node, Visitor};

/// Longest line of a dump: names and values have at most four characters a byte.
const LINE_MAX: u64 = 4 * (VALUE_MAX as u64 + 512);

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct DumpArgs {
    #[command(flatten)]
    link: Link,
    /// Also of all that is below a directory
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Only attributes whose names this regular expression matches; - is every one
    #[arg(short = 'm', long = "match", value_name = "PATTERN", allow_hyphen_values = true)]
    pattern: Option<String>,
    /// Write all values in this way
    #[arg(short, long, value_enum)]
    encoding: Option<Encoding>,
    /// Print JSON
    #[arg(long, conflicts_with = "encoding")]
    json: bool,
    /// Images, of which the root is meant, or files in them
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    paths: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct RestoreArgs {
    #[command(flatten)]
    link: Link,
    /// Image, or the directory of one in which the paths of the dump begin
    #[arg(value_name = "IMAGE[:/PATH]")]
    place: OsString,
    /// The dump; without it, or with -, standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// An attribute for JSON.
#[derive(Serialize)]
pub(super) struct AttributeShape {
    #[serde(flatten)]
    name: json::Name,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

impl AttributeShape {
    pub(super) fn new(name: &[u8], value: &[u8]) -> Self {
        let (value, value_hex) = json::lossless(value);
        Self { name: json::Name::new(name), value, value_hex }
    }
}

#[derive(Serialize)]
struct FileShape {
    #[serde(flatten)]
    path: json::Path,
    attributes: Vec<AttributeShape>,
}

/// The line above the attributes of a file. Its path has no slash at the start, so that a dump of
/// an image can be restored below any directory.
pub(super) fn heading(path: &[u8], output: &mut Output) -> Result<()> {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let path = if start == path.len() { b"." } else { &path[start..] };
    output.bytes(b"# file: ")?;
    output.name(&attribute_text::quoted(path, false))?;
    output.line("")
}

/// Writes the attributes of files.
pub(super) fn dump(args: &DumpArgs) -> Result<()> {
    let pattern = args.pattern.as_deref().filter(|pattern| *pattern != "-");
    let pattern = pattern.map(Regex::new).transpose();
    let pattern = pattern.map_err(|_| {
        let pattern = args.pattern.as_deref().unwrap_or_default();
        Why::new("no regular expression").at("xattr", pattern)
    })?;
    let mut sheet =
        Sheet { args, pattern, output: Output::new(), is_empty: true, outcome: Outcome::default() };
    let paths = glob::image_or_inside("xattr", &args.paths, &mut sheet.outcome)?;
    for of_image in paths.chunk_by(|a, b| a.image == b.image) {
        if let Err(failure) = sheet.dump(of_image) {
            if matches!(failure, Failure::OutputClosed) {
                return Err(failure);
            }
            sheet.outcome.note(failure);
        }
    }
    if args.json {
        sheet.output.json_end(sheet.is_empty)?;
    }
    sheet.output.finish()?;
    sheet.outcome.finish()
}

struct Sheet<'a> {
    args: &'a DumpArgs,
    pattern: Option<Regex>,
    output: Output,
    is_empty: bool,
    outcome: Outcome,
}

impl Sheet<'_> {
    /// Writes the attributes of files of one image.
    fn dump(&mut self, paths: &[ImagePath]) -> Result<()> {
        let Some(first) = paths.first() else { return Ok(()) };
        let volume = image::volume("xattr", &first.image, Access::Read)?;
        for path in paths {
            match self.operand(&volume, path) {
                Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
                Err(failure) => self.outcome.note(failure),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn operand(&mut self, volume: &Volume, path: &ImagePath) -> Result<()> {
        let found = resolve(volume, &path.path, self.args.link.last()).at("xattr", path)?;
        if !self.args.recursive {
            return self.file(volume, found.inode(), path);
        }
        let mut files = Files { volume, top: path, sheet: self };
        walk::walk("xattr", volume, path, found.inode(), &mut files)
    }

    fn file(&mut self, volume: &Volume, inode: &InodeRef, path: &ImagePath) -> Result<()> {
        let attributes = self.attributes(volume, inode).at("xattr", path)?;
        if attributes.is_empty() {
            return Ok(());
        }
        if self.args.json {
            let shape = |(name, value): &(Vec<u8>, Vec<u8>)| AttributeShape::new(name, value);
            let attributes = attributes.iter().map(shape).collect();
            let shape = FileShape { path: json::Path::new(&path.path), attributes };
            let is_first = std::mem::replace(&mut self.is_empty, false);
            return self.output.json_item(is_first, &shape);
        }
        heading(&path.path, &mut self.output)?;
        for (name, value) in &attributes {
            self.output.name(&attribute_text::quoted(name, true))?;
            self.output.bytes(b"=")?;
            self.output.name(&attribute_text::value(value, self.args.encoding))?;
            self.output.line("")?;
        }
        self.output.line("")
    }

    fn attributes(&self, volume: &Volume, inode: &InodeRef) -> Try<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut names = volume.xattr_list(inode)?;
        names.sort();
        names.retain(|name| self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(name)));
        let value = |name: Vec<u8>| {
            let value = volume.xattr_get(inode, &name)?;
            Ok((name, value))
        };
        names.into_iter().map(value).collect()
    }
}

/// The files of a tree on their way to the sheet.
struct Files<'a, 'b> {
    volume: &'a Volume,
    top: &'a ImagePath,
    sheet: &'a mut Sheet<'b>,
}

impl Visitor for Files<'_, '_> {
    fn enter(&mut self, node: &Node, _is_last: bool) -> Result<Go> {
        let path = ImagePath { image: self.top.image.clone(), path: node.path() };
        // As getfattr: without -h a link has the attributes of what it leads to, if that is there.
        let follows = self.sheet.args.link.last() == Last::Follow;
        let inode = if node.attr.kind == FileKind::Symlink && follows {
            match resolve(self.volume, &path.path, Last::Follow) {
                Ok(found) => Ok(found.inode().clone()),
                Err(_) => return Ok(Go::On),
            }
        } else {
            self.volume.inode(node.attr.ino).at("xattr", &path)
        };
        match inode.and_then(|inode| self.sheet.file(self.volume, &inode, &path)) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => self.fail(failure),
            Ok(()) => {}
        }
        Ok(Go::On)
    }

    fn fail(&mut self, failure: Failure) {
        self.sheet.outcome.note(failure);
    }
}

/// The file that attributes of a dump belong to.
enum Target {
    /// No line has named one since the last empty line.
    Unknown,
    /// It could not be found, which was told.
    Missing,
    Found(InodeRef),
}

/// Sets the attributes of a dump.
pub(super) fn restore(args: &RestoreArgs) -> Result<()> {
    let top = spec::image_or_inside(&args.place);
    let file = args.file.as_deref().unwrap_or(Path::new("-"));
    let mut input: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(std::fs::File::open(file).at("xattr", file.display())?))
    };
    let mut images = Images::new("xattr");
    images.among(&top, |volume, outcome| {
        let mut target = Target::Unknown;
        let mut place = top.clone();
        for number in 1_u64.. {
            let at = |why: Why| why.of(format!("{}: line {number}", file.display()));
            let Some(line) = next_line(&mut input).map_err(at)? else { break };
            match Line::parse(&line).map_err(at)? {
                Line::File(path) => {
                    place = top.below(&path);
                    target = match resolve(volume, &place.path, args.link.last()) {
                        Ok(found) => Target::Found(found.inode().clone()),
                        Err(why) => {
                            outcome.note(why.at("xattr", &place));
                            Target::Missing
                        }
                    };
                }
                Line::Attribute { name, value } => {
                    let inode = match &target {
                        Target::Found(inode) => inode,
                        Target::Missing => continue,
                        Target::Unknown => {
                            return Err(at(Why::new("no \"# file:\" is before the attribute")));
                        }
                    };
                    if let Err(error) = volume.xattr_set(inode, &name, &value, Mode::Any) {
                        let name = String::from_utf8_lossy(&name).into_owned();
                        outcome.note(Why::from(error).at("xattr", format!("{place}: {name}")));
                    }
                }
                Line::Empty => target = Target::Unknown,
                Line::Comment => {}
            }
        }
        Ok(())
    });
    images.finish()
}

/// A line without its end; `None` at the end of the input.
fn next_line(input: &mut dyn BufRead) -> Try<Option<Vec<u8>>> {
    let mut line = Vec::new();
    io::Read::take(input, LINE_MAX).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 == LINE_MAX {
        return Err(Why::new("is longer than any attribute"));
    } else if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(line))
}
