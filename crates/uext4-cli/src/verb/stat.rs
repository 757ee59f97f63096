//! `uext4 stat`: what an inode says, as stat(1) prints it.

use std::ffi::OsString;

use serde::Serialize;
use uext4::{Attr, FileKind, Timestamp};

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::output::Output;
use crate::spec::{self, ImagePath};
use crate::text;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 stat disk.img:/etc/passwd", "everything that the inode of a file says"),
    ("uext4 stat -L disk.img:/bin/sh", "of the file that a link names"),
    ("uext4 stat --json disk.img:/etc/passwd", "the same for programs"),
];

/// Show inodes of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Follow a symbolic link at the end of a path
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

struct FoundFile {
    path: ImagePath,
    attr: Attr,
    target: Option<Vec<u8>>,
    xattrs: Vec<Vec<u8>>,
}

#[derive(Serialize)]
struct FoundJson<'a> {
    path: String,
    #[serde(flatten)]
    inode: json::Inode,
    xattrs: Vec<std::borrow::Cow<'a, str>>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for name in &args.paths {
        match look(args, spec::in_image("stat", name)?) {
            Ok(found) => all.push(found),
            Err(failure) => outcome.note(failure),
        }
    }
    let mut output = Output::new();
    if args.json {
        let shapes: Vec<_> = all
            .iter()
            .map(|found| FoundJson {
                path: spec::show(&found.path.path),
                inode: json::Inode::new(&found.attr, found.target.as_deref()),
                xattrs: found.xattrs.iter().map(|x| String::from_utf8_lossy(x)).collect(),
            })
            .collect();
        output.json(&shapes)?;
    } else {
        for found in &all {
            print(found, &mut output)?;
        }
    }
    output.finish()?;
    outcome.finish()
}

fn look(args: &Args, path: ImagePath) -> Result<FoundFile> {
    let volume = image::volume("stat", &path.image, Access::Read)?;
    let last = if args.dereference { Last::Follow } else { Last::Keep };
    let resolved = resolve(&volume, &path.path, last).at("stat", &path)?;
    let inode = resolved.inode();
    let attr = volume.attr(inode);
    let target = match attr.kind {
        FileKind::Symlink => Some(volume.read_link(inode).at("stat", &path)?),
        _ => None,
    };
    let xattrs = volume.xattr_list(inode).at("stat", &path)?;
    Ok(FoundFile { path, attr, target, xattrs })
}

fn print(found: &FoundFile, output: &mut Output) -> Result<()> {
    let attr = &found.attr;
    output.bytes(b"  File: ")?;
    output.name(&found.path.path)?;
    if let Some(target) = &found.target {
        output.bytes(b" -> ")?;
        output.name(target)?;
    }
    output.line("")?;
    let kind = text::kind_words(attr.kind, attr.size);
    let (size, blocks, block_size) = (attr.size, attr.blocks_512, attr.block_size);
    output.line(&format!(
        "  Size: {size:<15} Blocks: {blocks:<10} IO Block: {block_size:<6} {kind}"
    ))?;
    let device = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            format!(" Device type: {},{}", attr.rdev.major, attr.rdev.minor)
        }
        _ => String::new(),
    };
    let (ino, links) = (attr.ino.get(), attr.links);
    output.line(&format!(
        " Inode: {ino:<11} Generation: {:<11} Links: {links}{device}",
        attr.generation
    ))?;
    let mode = text::mode(attr.kind, attr.mode);
    output.line(&format!(
        "Access: ({:04o}/{mode})  Uid: {:<10} Gid: {}",
        attr.mode, attr.uid, attr.gid
    ))?;
    let birth = attr.crtime.map_or("-".to_owned(), text::time_full);
    let show = |time: Timestamp| text::time_full(time);
    for (name, time) in [
        ("Access", show(attr.atime)),
        ("Modify", show(attr.mtime)),
        ("Change", show(attr.ctime)),
        (" Birth", birth),
    ] {
        output.line(&format!("{name}: {time}"))?;
    }
    for name in &found.xattrs {
        output.bytes(b" Xattr: ")?;
        output.name(name)?;
        output.line("")?;
    }
    Ok(())
}
