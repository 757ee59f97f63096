//! `uext4 find`: names of an image that an expression is true of, as find(1) finds them.
//!
//! Names of a directory come in the order of their bytes, so that two searches of one image say the
//! same. The actions of find(1) that run programs or change files are refused by name.

use std::ffi::OsString;

use serde::Serialize;
use uext4::{FileKind, Volume};

use self::expression::{Action, Expression, Query};
use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result, Why};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::output::Output;
use crate::spec::{self, ImagePath};
use crate::text;
use crate::walk::{self, Go, Node, Visitor};

mod expression;
mod test;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 find disk.img:/etc -name '*.conf'", "names by a pattern"),
    ("uext4 find disk.img -type f -perm -4000 -ls", "programs with the set-user-id bit"),
    ("uext4 find disk.img:/var ! -empty -size +1M -print0", "what is large, for xargs -0"),
];

/// Find files in an image
///
/// Takes the expressions of find(1), except actions that run programs or write.
#[derive(clap::Args)]
#[command(after_help = examples::help_after(EXPRESSION, EXAMPLES))]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Images or directories in them, and what is wanted of the names below them
    #[arg(
        required = true,
        value_name = "IMAGE[:/PATH] ... EXPRESSION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

const EXPRESSION: &str = "\
Tests: -name -iname -path -ipath -lname PATTERN, -type f,d,l,b,c,p,s, -size [+-]N[bcwkMG],
  -perm MODE, -MODE or /MODE, -user -group NAME or ID, -uid -gid -links -inum [+-]N, -empty,
  -mtime -atime -ctime [+-]DAYS, -mmin -amin -cmin [+-]MINUTES, -newer FILE, -true, -false
Joined by: ! or -not, -a or nothing, -o, a comma, ( )
Actions: -print (without any other), -print0, -ls, -prune, -quit
For the whole search: -maxdepth N, -mindepth N, -depth, -xdev (always so), --json";

#[derive(Serialize)]
struct FoundShape {
    #[serde(flatten)]
    path: json::Path,
    #[serde(flatten)]
    inode: json::Inode,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let is_place = |word: &OsString| {
        let bytes = word.as_encoded_bytes();
        !bytes.starts_with(b"-") && bytes != b"(" && bytes != b"!"
    };
    let places = args.words.iter().take_while(|word| is_place(word)).count();
    let (places, words) = args.words.split_at(places);
    if places.is_empty() {
        return Err(Failure::line("find: no image is named before the expression"));
    }
    let mut outcome = Outcome::default();
    let mut told = Told { output: Output::new(), json: args.json, items: 0 };
    for path in glob::image_or_inside("find", places, &mut outcome)? {
        match search(&path, words, &mut told, &mut outcome) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => outcome.note(failure),
            Ok(Go::Stop) => break,
            Ok(_) => {}
        }
    }
    if told.json {
        told.output.json_end(told.items == 0)?;
    }
    told.output.finish()?;
    outcome.finish()
}

/// What has been told of the names that were found.
struct Told {
    output: Output,
    json: bool,
    /// Of the array of JSON.
    items: u64,
}

fn search(
    path: &ImagePath,
    words: &[OsString],
    told: &mut Told,
    outcome: &mut Outcome,
) -> Result<Go> {
    let volume = image::volume("find", &path.image, Access::Read)?;
    let query = Query::parse(words, &volume).at("find", "expression")?;
    told.json |= query.json;
    let start = resolve(&volume, &path.path, Last::Keep).at("find", path)?;
    let mut search = Search { volume: &volume, query: &query, told, outcome, ended: false };
    walk::walk("find", &volume, path, start.inode(), &mut search)?;
    Ok(if search.ended { Go::Stop } else { Go::On })
}

struct Search<'a> {
    volume: &'a Volume,
    query: &'a Query,
    told: &'a mut Told,
    outcome: &'a mut Outcome,
    ended: bool,
}

impl Search<'_> {
    /// Evaluates the expression where the depth is wanted.
    fn visit(&mut self, node: &Node) -> Result<Go> {
        let mut go = Go::On;
        if node.depth >= self.query.min_depth && node.depth <= self.query.max_depth {
            let query = self.query;
            self.evaluate(&query.expression, node, &mut go)?;
        }
        self.ended |= go == Go::Stop;
        Ok(if node.depth >= self.query.max_depth && go == Go::On { Go::Past } else { go })
    }

    fn evaluate(&mut self, expression: &Expression, node: &Node, go: &mut Go) -> Result<bool> {
        if *go == Go::Stop {
            return Ok(false);
        }
        match expression {
            Expression::Test(test) => Ok(test.holds(node, self.volume).unwrap_or_else(|why| {
                self.outcome.note(why.at("find", spec::show(&node.path())));
                false
            })),
            Expression::Action(action) => self.act(*action, node, go),
            Expression::Not(inner) => Ok(!self.evaluate(inner, node, go)?),
            Expression::All(parts) => {
                for part in parts {
                    if !self.evaluate(part, node, go)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Expression::Any(parts) => {
                for part in parts {
                    if self.evaluate(part, node, go)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Expression::List(parts) => {
                let mut last = true;
                for part in parts {
                    last = self.evaluate(part, node, go)?;
                }
                Ok(last)
            }
        }
    }

    fn act(&mut self, action: Action, node: &Node, go: &mut Go) -> Result<bool> {
        match action {
            Action::Prune if self.query.depth_first => {}
            Action::Prune => *go = Go::Past,
            Action::Quit => *go = Go::Stop,
            Action::Print | Action::Print0 | Action::Ls if self.told.json => self.item(node)?,
            Action::Print => {
                self.told.output.name(&node.path())?;
                self.told.output.line("")?;
            }
            Action::Print0 => {
                self.told.output.bytes(&node.path())?;
                self.told.output.bytes(b"\0")?;
            }
            Action::Ls => self.row(node)?,
        }
        Ok(true)
    }

    fn target(&mut self, node: &Node) -> Option<Vec<u8>> {
        walk::target(self.volume, &node.attr).unwrap_or_else(|why: Why| {
            self.outcome.note(why.at("find", spec::show(&node.path())));
            None
        })
    }

    fn item(&mut self, node: &Node) -> Result<()> {
        let target = self.target(node);
        let inode = json::Inode::new(&node.attr, target.as_deref());
        let shape = FoundShape { path: json::Path::new(&node.path()), inode };
        self.told.output.json_item(self.told.items == 0, &shape)?;
        self.told.items += 1;
        Ok(())
    }

    /// The line of `-ls`.
    fn row(&mut self, node: &Node) -> Result<()> {
        let attr = &node.attr;
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{:>3}, {:>3}", attr.rdev.major, attr.rdev.minor)
            }
            _ => attr.size.to_string(),
        };
        let target = self.target(node);
        let row = format!(
            "{:>9} {:>6} {} {:>3} {:<8} {:<8} {size:>8} {} ",
            attr.ino.get(),
            attr.blocks_512.div_ceil(2),
            text::mode(attr.kind, attr.mode),
            attr.links,
            attr.uid,
            attr.gid,
            text::time_short(attr.mtime),
        );
        self.told.output.bytes(row.as_bytes())?;
        self.told.output.name(&node.path())?;
        if let Some(target) = target {
            self.told.output.bytes(b" -> ")?;
            self.told.output.name(&target)?;
        }
        self.told.output.line("")
    }
}

impl Visitor for Search<'_> {
    fn enter(&mut self, node: &Node, _is_last: bool) -> Result<Go> {
        if !self.query.depth_first {
            return self.visit(node);
        }
        Ok(if node.depth >= self.query.max_depth { Go::Past } else { Go::On })
    }

    fn leave(&mut self, node: &Node) -> Result<Go> {
        if self.query.depth_first { self.visit(node) } else { Ok(Go::On) }
    }

    fn fail(&mut self, failure: Failure) {
        self.outcome.note(failure);
    }
}
