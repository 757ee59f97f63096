//! `uext4 ls`: directories of an image, as ls(1) lists them. Owners are numbers: the names of an
//! image's users are not the host's.

use std::ffi::OsString;

use serde::Serialize;
use uext4::{Attr, FileKind, InodeRef, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, names, resolve};
use crate::json;
use crate::output::Output;
use crate::spec::{self, ImagePath};
use crate::text;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 ls disk.img:/etc", "names in a directory"),
    ("uext4 ls -lah disk.img@p1:/", "with modes, owners and sizes, in a partition"),
    ("uext4 ls -R --json disk.img:/", "everything in an image, for programs"),
];

/// List directories of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Mode, links, owners, size and time (UTC)
    #[arg(short)]
    long: bool,
    /// Names that start with a dot, too
    #[arg(short, long)]
    all: bool,
    /// Like -a, but not . and ..
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Directories themselves, not what is in them
    #[arg(short, long)]
    directory: bool,
    /// Inode numbers
    #[arg(short, long)]
    inode: bool,
    /// With -l: sizes like 1.5M
    #[arg(short, long)]
    human_readable: bool,
    /// Directories below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// One name a line (always so; taken for ls's sake)
    #[arg(short = '1')]
    one: bool,
    /// Numeric owners (always so); implies -l
    #[arg(short, long)]
    numeric_uid_gid: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Files or directories, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
}

#[derive(Serialize)]
struct RowJson {
    #[serde(flatten)]
    name: json::Name,
    #[serde(flatten)]
    inode: json::Inode,
}

#[derive(Serialize)]
struct ListingJson {
    path: String,
    entries: Vec<RowJson>,
}

/// A directory that was listed, or the operands that are none.
struct Listing {
    path: Vec<u8>,
    is_dir: bool,
    rows: Vec<Row>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let mut output = Output::new();
    let mut shapes = Vec::new();
    let titled = args.paths.len() > 1 || args.recursive;
    let mut first = true;
    for name in &args.paths {
        let path = spec::in_image("ls", name)?;
        let volume = image::volume("ls", &path.image, Access::Read)?;
        let mut show = |listing: Listing| -> Result<()> {
            if args.json {
                shapes.push(listing_json(listing));
                return Ok(());
            }
            if !std::mem::take(&mut first) && listing.is_dir {
                output.line("")?;
            }
            print(args, &listing, titled && listing.is_dir, &mut output)
        };
        match list(args, &volume, &path, &mut outcome, &mut show) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => outcome.note(failure),
            Ok(()) => {}
        }
    }
    if args.json {
        output.json(&shapes)?;
    }
    output.finish()?;
    outcome.finish()
}

fn list(
    args: &Args,
    volume: &Volume,
    path: &ImagePath,
    outcome: &mut Outcome,
    show: &mut dyn FnMut(Listing) -> Result<()>,
) -> Result<()> {
    // As ls: -l and -d show a link at the end of an operand, the plain form follows it.
    let long = args.long || args.numeric_uid_gid;
    let last = if long || args.directory { Last::Keep } else { Last::Follow };
    let found = resolve(volume, &path.path, last).at("ls", path)?;
    let inode = found.inode().clone();
    if inode.kind() != FileKind::Directory || args.directory {
        let row = row(volume, path.path.clone(), &inode).at("ls", path)?;
        return show(Listing { path: path.path.clone(), is_dir: false, rows: vec![row] });
    }
    // Directories still to list, the next one at the end; with their inode numbers on the way.
    let mut waiting = vec![(path.path.clone(), inode, Vec::<u32>::new())];
    while let Some((path_here, dir, above)) = waiting.pop() {
        let at = ImagePath { image: path.image.clone(), path: path_here.clone() };
        let rows = match rows(args, volume, &dir, &at, outcome).at("ls", &at) {
            Ok(rows) => rows,
            Err(failure) => {
                outcome.note(failure);
                continue;
            }
        };
        if args.recursive {
            let mut above = above;
            above.push(dir.ino().get());
            for row in rows.iter().rev().filter(|row| row.attr.kind == FileKind::Directory) {
                let is_dots = row.name == b"." || row.name == b"..";
                if is_dots || above.contains(&row.attr.ino.get()) {
                    continue;
                }
                if let Ok(child) = volume.inode(row.attr.ino) {
                    waiting.push((spec::join(&path_here, &row.name), child, above.clone()));
                }
            }
        }
        show(Listing { path: path_here, is_dir: true, rows })?;
    }
    Ok(())
}

/// The rows of a directory, by name. A name whose inode cannot be read is reported and left out.
fn rows(
    args: &Args,
    volume: &Volume,
    dir: &InodeRef,
    path: &ImagePath,
    outcome: &mut Outcome,
) -> std::result::Result<Vec<Row>, Why> {
    let hidden = args.all || args.almost_all;
    let mut listed = names(volume, dir)?;
    listed.retain(|entry| hidden || entry.name.first() != Some(&b'.'));
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    let mut rows = Vec::with_capacity(listed.len() + 2);
    if args.all && !args.almost_all {
        rows.push(row(volume, b".".to_vec(), dir)?);
        let up = resolve(volume, &spec::join(&path.path, b".."), Last::Follow)?;
        rows.push(row(volume, b"..".to_vec(), up.inode())?);
    }
    for entry in listed {
        let name = entry.name;
        let found = volume.inode(entry.ino).map_err(Why::from);
        match found.and_then(|inode| row(volume, name.clone(), &inode)) {
            Ok(row) => rows.push(row),
            Err(why) => {
                let path = spec::join(&path.path, &name);
                outcome.note(why.at("ls", spec::show(&path)));
            }
        }
    }
    Ok(rows)
}

fn row(volume: &Volume, name: Vec<u8>, inode: &InodeRef) -> std::result::Result<Row, Why> {
    let attr = volume.attr(inode);
    let target = match attr.kind {
        FileKind::Symlink => Some(volume.read_link(inode)?),
        _ => None,
    };
    Ok(Row { name, attr, target })
}

/// Widths of the columns of a long listing.
#[derive(Default)]
struct Widths {
    ino: usize,
    links: usize,
    uid: usize,
    gid: usize,
    size: usize,
}

fn size_text(args: &Args, attr: &Attr) -> String {
    match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            format!("{}, {}", attr.rdev.major, attr.rdev.minor)
        }
        _ if args.human_readable => text::human(attr.size),
        _ => attr.size.to_string(),
    }
}

fn print(args: &Args, listing: &Listing, titled: bool, output: &mut Output) -> Result<()> {
    let long = args.long || args.numeric_uid_gid;
    if titled {
        output.name(&listing.path)?;
        output.line(":")?;
    }
    if long && listing.is_dir {
        let blocks: u64 = listing.rows.iter().map(|row| row.attr.blocks_512).sum();
        output.line(&format!("total {}", blocks.div_ceil(2)))?;
    }
    let mut widths = Widths::default();
    for row in &listing.rows {
        let attr = &row.attr;
        widths.ino = widths.ino.max(attr.ino.to_string().len());
        widths.links = widths.links.max(attr.links.to_string().len());
        widths.uid = widths.uid.max(attr.uid.to_string().len());
        widths.gid = widths.gid.max(attr.gid.to_string().len());
        widths.size = widths.size.max(size_text(args, attr).len());
    }
    for row in &listing.rows {
        let attr = &row.attr;
        if args.inode {
            output.bytes(format!("{:>1$} ", attr.ino.get(), widths.ino).as_bytes())?;
        }
        if long {
            let columns = format!(
                "{} {:>links$} {:>uid$} {:>gid$} {:>size$} {} ",
                text::mode(attr.kind, attr.mode),
                attr.links,
                attr.uid,
                attr.gid,
                size_text(args, attr),
                text::time_short(attr.mtime),
                links = widths.links,
                uid = widths.uid,
                gid = widths.gid,
                size = widths.size,
            );
            output.bytes(columns.as_bytes())?;
        }
        output.name(&row.name)?;
        if let (true, Some(target)) = (long, &row.target) {
            output.bytes(b" -> ")?;
            output.name(target)?;
        }
        output.line("")?;
    }
    Ok(())
}

fn listing_json(listing: Listing) -> ListingJson {
    let entries = listing
        .rows
        .iter()
        .map(|row| RowJson {
            name: json::Name::new(&row.name),
            inode: json::Inode::new(&row.attr, row.target.as_deref()),
        })
        .collect();
    ListingJson { path: spec::show(&listing.path), entries }
}
