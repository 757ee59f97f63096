//! `uext4 ls`: directories of an image, as ls(1) lists them. Owners are numbers: the names of an
//! image's users are not the host's.

mod colours;
mod columns;
mod order;
mod sheet;
mod times;

use std::collections::HashSet;
use std::ffi::OsString;
use std::rc::Rc;

use serde::Serialize;
use uext4::{Attr, FileKind, InodeRef, Volume};

use self::colours::{Colours, When};
use self::order::Order;
use self::sheet::Sheet;
use self::times::TimeStyle;
use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result, Why};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, names, resolve};
use crate::json;
use crate::output::Output;
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 ls disk.img:/etc", "names in a directory"),
    ("uext4 ls -lah disk.img@p1", "with modes, owners and sizes, in a partition"),
    ("uext4 ls -lt 'disk.img:/var/log/**/*.log'", "what was written last"),
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
    #[command(flatten)]
    order: Order,
    /// One name a line, as where the output is no terminal
    #[arg(short = '1', overrides_with = "columns")]
    one: bool,
    /// Names in columns, as on a terminal
    #[arg(short = 'C', overrides_with = "one")]
    columns: bool,
    /// Columns of the screen, instead of those of the terminal
    #[arg(short, long, value_name = "COLUMNS")]
    width: Option<usize>,
    /// Mark directories with /, programs with *, links with @, fifos with | and sockets with =
    #[arg(short = 'F', long)]
    classify: bool,
    /// Mark directories with /
    #[arg(short = 'p')]
    slash: bool,
    /// Colours as LS_COLORS has them: always, never, or auto, on terminals
    #[arg(
        long,
        visible_alias = "colour",
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    color: When,
    /// With -l: times as full-iso, long-iso, iso, locale, or +FORMAT of date(1); in UTC
    #[arg(long, value_name = "STYLE", default_value = "long-iso", value_parser = TimeStyle::parse)]
    time_style: TimeStyle,
    /// As -l --time-style=full-iso
    #[arg(long)]
    full_time: bool,
    /// Numeric owners (always so); implies -l
    #[arg(short, long)]
    numeric_uid_gid: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Files or directories, as IMAGE:/path; IMAGE alone is its root
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    paths: Vec<OsString>,
}

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
    /// Kind and mode of what a link leads to, where its mark is shown.
    leads_to: Option<(FileKind, u16)>,
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
    #[serde(flatten)]
    path: json::Path,
    entries: Vec<RowJson>,
}

/// A directory that was listed, or operands that are none.
struct Listing {
    path: Vec<u8>,
    is_dir: bool,
    rows: Vec<Row>,
}

impl Args {
    fn is_long(&self) -> bool {
        self.long || self.numeric_uid_gid || self.full_time
    }

    /// The row at a path, with what a link leads to where a long listing marks that.
    fn marked(&self, volume: &Volume, path: &[u8], row: Row) -> Row {
        if row.target.is_none() || !self.is_long() || !self.classify {
            return row;
        }
        let end = resolve(volume, path, Last::Follow).ok();
        let leads_to = end.map(|end| (end.inode().kind(), volume.attr(end.inode()).mode));
        Row { leads_to, ..row }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let paths = glob::image_or_inside("ls", &args.paths, &mut outcome)?;
    let output = Output::new();
    let mut sheet = Sheet {
        args,
        colours: Colours::new(args.color, output.is_terminal()),
        width: columns::width(args, output.is_terminal()),
        titled: paths.len() > 1 || args.recursive,
        is_first: true,
        shapes: Vec::new(),
        output,
    };
    for of_image in paths.chunk_by(|a, b| a.image == b.image) {
        match list(args, of_image, &mut outcome, &mut sheet) {
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => outcome.note(failure),
            Ok(()) => {}
        }
    }
    if args.json {
        sheet.output.json(&sheet.shapes)?;
    }
    sheet.output.finish()?;
    outcome.finish()
}

/// Lists operands of one image: first those that are no directories, then these, both in order.
fn list(
    args: &Args,
    paths: &[ImagePath],
    outcome: &mut Outcome,
    sheet: &mut Sheet<'_>,
) -> Result<()> {
    let Some(first) = paths.first() else { return Ok(()) };
    let volume = image::volume("ls", &first.image, Access::Read)?;
    // As ls: -l, -d and -F show a link at the end of an operand, the plain form follows it.
    let keeps = args.is_long() || args.directory || args.classify;
    let last = if keeps { Last::Keep } else { Last::Follow };
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    for path in paths {
        let found = resolve(&volume, &path.path, last).at("ls", path);
        let row = found.and_then(|found| {
            let row = row(&volume, path.path.clone(), found.inode()).at("ls", path)?;
            Ok(args.marked(&volume, &path.path, row))
        });
        match row {
            Ok(row) if row.attr.kind == FileKind::Directory && !args.directory => dirs.push(row),
            Ok(row) => files.push(row),
            Err(failure) => outcome.note(failure),
        }
    }
    args.order.sort(&mut files);
    args.order.sort(&mut dirs);
    if args.json {
        for file in files {
            sheet.show(Listing { path: file.name.clone(), is_dir: false, rows: vec![file] })?;
        }
    } else if !files.is_empty() {
        sheet.show(Listing { path: Vec::new(), is_dir: false, rows: files })?;
    }
    for dir in dirs {
        let path = ImagePath { image: first.image.clone(), path: dir.name };
        let inode = volume.inode(dir.attr.ino).at("ls", &path)?;
        tree(args, &volume, (&path, inode), outcome, sheet)?;
    }
    Ok(())
}

/// Lists a directory, and with -R those below it. Memory: a name for each directory that waits.
fn tree(
    args: &Args,
    volume: &Volume,
    (path, inode): (&ImagePath, InodeRef),
    outcome: &mut Outcome,
    sheet: &mut Sheet<'_>,
) -> Result<()> {
    // Directories still to list, the next one at the end: path of the parent, own name, inode.
    let mut waiting = vec![(Rc::<[u8]>::default(), path.path.clone(), inode.ino())];
    // Each directory is listed once: damage may give it a second name, or make it its own ancestor.
    let mut entered = HashSet::from([inode.ino()]);
    while let Some((above, name, ino)) = waiting.pop() {
        let path_here: Rc<[u8]> = spec::join(&above, &name).into();
        let at = ImagePath { image: path.image.clone(), path: path_here.to_vec() };
        let listed = spec::check_path(&path_here)
            .and_then(|()| Ok(volume.inode(ino)?))
            .and_then(|dir| rows(args, volume, &dir, &at, outcome))
            .at("ls", &at);
        let rows = match listed {
            Ok(rows) => rows,
            Err(failure) => {
                outcome.note(failure);
                continue;
            }
        };
        if args.recursive {
            for row in rows.iter().rev().filter(|row| row.attr.kind == FileKind::Directory) {
                if row.name == b"." || row.name == b".." {
                    continue;
                }
                if entered.insert(row.attr.ino) {
                    waiting.push((Rc::clone(&path_here), row.name.clone(), row.attr.ino));
                } else {
                    let twice = Why::new("a second name of a directory; run fsck");
                    let twice_at = spec::show(&spec::join(&path_here, &row.name));
                    outcome.note(twice.at("ls", twice_at));
                }
            }
        }
        sheet.show(Listing { path: path_here.to_vec(), is_dir: true, rows })?;
    }
    Ok(())
}

/// The rows of a directory, in order. A name whose inode cannot be read is reported and left out.
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
            Ok(row) => rows.push(args.marked(volume, &spec::join(&path.path, &name), row)),
            Err(why) => {
                let path = spec::join(&path.path, &name);
                outcome.note(why.at("ls", spec::show(&path)));
            }
        }
    }
    args.order.sort(&mut rows);
    Ok(rows)
}

fn row(volume: &Volume, name: Vec<u8>, inode: &InodeRef) -> std::result::Result<Row, Why> {
    let attr = volume.attr(inode);
    let target = match attr.kind {
        FileKind::Symlink => Some(volume.read_link(inode)?),
        _ => None,
    };
    Ok(Row { name, attr, target, leads_to: None })
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
    ListingJson { path: json::Path::new(&listing.path), entries }
}
