//! `uext4 stat`: what an inode says, as stat(1) prints it.

mod format;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;
use uext4::{Attr, FileKind, Timestamp, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result, say};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::output::Output;
use crate::owners;
use crate::spec::ImagePath;
use crate::text;
use crate::verb::chattr;

use self::format::Format;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 stat disk.img:/etc/passwd", "everything that the inode of a file says"),
    ("uext4 stat -L disk.img:/bin/sh", "of the file that a link names"),
    ("uext4 stat -c '%a %n' 'disk.img:/usr/bin/*'", "modes and names, for a script"),
    ("uext4 stat --json disk.img:/etc/passwd", "the same for programs"),
];

/// Show inodes of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Follow a symbolic link at the end of a path
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print this for each file, with the directives of stat(1), such as %a %U %s %Y
    #[arg(short = 'c', long, value_name = "FORMAT", group = "as")]
    format: Option<OsString>,
    /// As --format, with backslash escapes and no line ends of its own
    #[arg(long, value_name = "FORMAT", group = "as")]
    printf: Option<OsString>,
    /// Print JSON
    #[arg(long, group = "as")]
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
    project: u32,
    /// What the image calls its owners, if a format asks for that.
    user: Vec<u8>,
    group: Vec<u8>,
    /// The label of SELinux, if a format asks for it.
    context: Option<Vec<u8>>,
}

#[derive(Serialize)]
struct FoundJson<'a> {
    #[serde(flatten)]
    path: json::Path,
    #[serde(flatten)]
    inode: json::Inode,
    flags: String,
    project: u32,
    xattrs: Vec<std::borrow::Cow<'a, str>>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let format = format(args)?;
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for path in glob::in_image("stat", &args.paths, &mut outcome)? {
        match look(args, format.as_ref(), path) {
            Ok(found) => all.push(found),
            Err(failure) => outcome.note(failure),
        }
    }
    let mut output = Output::new();
    if args.json {
        let shapes: Vec<_> = all
            .iter()
            .map(|found| FoundJson {
                path: json::Path::new(&found.path.path),
                inode: json::Inode::new(&found.attr, found.target.as_deref()),
                flags: chattr::all_letters(found.attr.flags),
                project: found.project,
                xattrs: found.xattrs.iter().map(|x| String::from_utf8_lossy(x)).collect(),
            })
            .collect();
        output.json(&shapes)?;
    } else if let Some(format) = &format {
        for found in &all {
            output.bytes(&format.fill(found))?;
            if args.printf.is_none() {
                output.line("")?;
            }
        }
    } else {
        for found in &all {
            print(found, &mut output)?;
        }
    }
    output.finish()?;
    outcome.finish()
}

/// The format that was given.
fn format(args: &Args) -> Result<Option<Format>> {
    let (text, escapes) = match (&args.format, &args.printf) {
        (Some(format), _) => (format, false),
        (None, Some(format)) => (format, true),
        (None, None) => return Ok(None),
    };
    let format = Format::parse(text.as_bytes(), escapes);
    format.map(Some).map_err(|why| {
        say(&format!("stat: {why}"));
        Failure::Status(2)
    })
}

fn look(args: &Args, format: Option<&Format>, path: ImagePath) -> Result<FoundFile> {
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
    let project = volume.project_id(inode);
    let asks_for = |letter: u8| format.is_some_and(|format| format.asks_for(&[letter]));
    let name = |letter, of: fn(&Volume, u32) -> String, id| match asks_for(letter) {
        true => of(&volume, id).into_bytes(),
        false => Vec::new(),
    };
    let user = name(b'U', owners::user_name, attr.uid);
    let group = name(b'G', owners::group_name, attr.gid);
    let context = match asks_for(b'C') {
        true => volume.xattr_get(inode, b"security.selinux").ok(),
        false => None,
    };
    let context = context.map(|label| label.strip_suffix(b"\0").unwrap_or(&label).to_vec());
    Ok(FoundFile { path, attr, target, xattrs, project, user, group, context })
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
    let flags = chattr::all_letters(attr.flags);
    if !flags.is_empty() || found.project != 0 {
        let flags = if flags.is_empty() { "-" } else { &flags };
        output.line(&format!(" Flags: {flags:<15} Project: {}", found.project))?;
    }
    for name in &found.xattrs {
        output.bytes(b" Xattr: ")?;
        output.name(name)?;
        output.line("")?;
    }
    Ok(())
}
