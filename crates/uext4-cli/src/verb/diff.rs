//! `uext4 diff`: what changed between two images. Exit statuses are those of diff(1).

use std::ffi::{OsStr, OsString};

use crate::compare::{self, Settings, Side};
use crate::examples::{self, Examples};
use crate::failure::{Failure, Result, say, with_status};
use crate::image::{self, Access};
use crate::output::Output;
use crate::spec::{Image, ImagePath, Location};

/// Exit status: something differs.
const DIFFERENT: u8 = 1;
/// Exit status: something could not be compared.
const TROUBLE: u8 = 2;

const MEANING: &str = "\
Each line is a letter and a path: A added, D removed, M changed, T of another type, R renamed. What
changed stands behind the path. Content is always compared by its bytes; files that both images map
to the same blocks are compared there, which is fast for copies of one image.

Exit status: 0 if nothing differs, 1 if something does, 2 for trouble.";

const EXAMPLES: Examples = &[
    ("uext4 diff old.img new.img", "what changed in an image since a copy was made"),
    ("uext4 diff --json a.img@p2:/etc b.img:/etc", "the same of two directories, for programs"),
    ("uext4 diff --content-only --renames a.img b.img", "names and content alone, with renames"),
];

/// Show what changed between two images
#[derive(clap::Args)]
#[command(after_help = examples::help_after(MEANING, EXAMPLES))]
pub(crate) struct Args {
    /// Leave out modification times
    #[arg(long)]
    no_times: bool,
    /// Leave out owners, groups and projects
    #[arg(long)]
    no_owner: bool,
    /// Only names, types, content, targets of links and numbers of devices
    #[arg(long)]
    content_only: bool,
    /// Tell a name that moved with its inode and content as a rename
    #[arg(long)]
    renames: bool,
    /// Take a file of the same inode, size, times and blocks as the same, without reading it
    #[arg(long)]
    trust_times: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The first image, or IMAGE:/path for a directory or file of it
    #[arg(value_name = "A")]
    a: OsString,
    /// The second image, or IMAGE:/path in it
    #[arg(value_name = "B")]
    b: OsString,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    run_to_end(args).map_err(with_status(TROUBLE))
}

fn run_to_end(args: &Args) -> Result<()> {
    let settings = Settings {
        no_times: args.no_times,
        no_owner: args.no_owner,
        content_only: args.content_only,
        trust_times: args.trust_times,
        renames: args.renames,
    };
    let sides = [open(&args.a)?, open(&args.b)?];
    let found = compare::compare(&sides, settings)?;
    let mut output = Output::new();
    if args.json {
        compare::print_json(&found, &sides, &mut output)?;
    } else {
        compare::print(&found, &sides, &mut output)?;
    }
    output.finish()?;
    let is_trouble = !found.troubles.is_empty();
    for trouble in found.troubles {
        if let Failure::Line(line) = trouble {
            say(&line);
        }
    }
    match (is_trouble, found.entries.is_empty()) {
        (true, _) => Err(Failure::Status(TROUBLE)),
        (false, false) => Err(Failure::Status(DIFFERENT)),
        (false, true) => Ok(()),
    }
}

fn open(name: &OsStr) -> Result<Side> {
    let at = match Location::parse(name) {
        Location::Image(path) => path,
        Location::Host(_) => ImagePath { image: Image::parse(name), path: b"/".to_vec() },
    };
    let volume = image::volume("diff", &at.image, Access::Read)?;
    Ok(Side { volume, at })
}
