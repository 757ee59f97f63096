//! `uext4 label`: the name of a file system, as e2label(8) shows and sets it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;

use crate::examples::{self, Examples};
use crate::failure::{At, Result};
use crate::image::{self, Access};
use crate::json;
use crate::output::Output;
use crate::spec::Image;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 label disk.img", "the label of an image"),
    ("uext4 label disk.img@p2 root", "set it, in the second partition"),
    ("uext4 label disk.img ''", "take it away"),
];

/// Show or set the label of an image
///
/// Set, it is also written to the backups of the superblock. With a journal the change goes through
/// it, so that a crash shows the old label or the new one.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "label")]
    json: bool,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
    /// New label, of at most 16 bytes
    label: Option<OsString>,
}

#[derive(Serialize)]
struct Shape {
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_hex: Option<String>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    if let Some(label) = &args.label {
        let volume = image::volume("label", &image, Access::Write)?;
        let set = volume.set_label(label.as_bytes()).at("label", &image);
        let closed = image::close("label", &image, volume);
        return set.and(closed);
    }
    let label = image::volume("label", &image, Access::Read)?.label();
    let mut output = Output::new();
    if args.json {
        let (label, label_hex) = json::lossless(&label);
        output.json(&Shape { label, label_hex })?;
    } else {
        output.name(&label)?;
        output.line("")?;
    }
    output.finish()
}
