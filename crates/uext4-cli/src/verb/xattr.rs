//! `uext4 xattr`: extended attributes, as getfattr(1) shows and setfattr(1) sets them.

mod dump;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use uext4::Volume;
use uext4::xattr::{Mode, VALUE_MAX};

use crate::attribute_text::{self, Encoding};
use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::json;
use crate::operands::each;
use crate::output::Output;
use crate::spec::{self, Image};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 xattr list disk.img:/usr/bin/ping", "names of the attributes of a file"),
    ("uext4 xattr get disk.img:/srv user.origin", "the bytes of a value"),
    ("uext4 xattr set disk.img:/srv user.origin nightly", "set one"),
    ("uext4 xattr dump -R disk.img:/ > attributes", "all attributes, as getfattr writes them"),
    ("uext4 xattr restore new.img attributes", "set what a dump has"),
];

/// Show or set extended attributes of files in an image
///
/// NAME is a full name: user.x, trusted.x, security.x, system.posix_acl_access or
/// system.posix_acl_default.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Names of the attributes of files
    List(ListArgs),
    /// The value of an attribute, as it is unless it is to be encoded
    Get(GetArgs),
    /// Set an attribute
    Set(SetArgs),
    /// Remove attributes
    Rm(RmArgs),
    /// Names and values, in the text form of getfattr --dump
    #[command(long_flag = "dump")]
    Dump(dump::DumpArgs),
    /// Set what a dump has, of this verb or of getfattr
    #[command(long_flag = "restore")]
    Restore(dump::RestoreArgs),
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct ListArgs {
    #[command(flatten)]
    link: Link,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct GetArgs {
    #[command(flatten)]
    link: Link,
    /// Write the value in this way
    #[arg(short, long, value_enum)]
    encoding: Option<Encoding>,
    /// Print JSON
    #[arg(long, conflicts_with = "encoding")]
    json: bool,
    /// File, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// Name of the attribute
    name: OsString,
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct SetArgs {
    #[command(flatten)]
    link: Link,
    /// It must not be there
    #[arg(long, conflicts_with = "replace")]
    create: bool,
    /// It must be there
    #[arg(long)]
    replace: bool,
    /// VALUE is the value itself, whatever it begins with
    #[arg(long)]
    raw: bool,
    /// The value is the content of a file of the host; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    from: Option<PathBuf>,
    /// File, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// Name of the attribute
    name: OsString,
    /// Its value: text, also in quotes with escapes, 0x and hexadecimal digits, or 0s and base64
    #[arg(allow_hyphen_values = true)]
    value: Option<OsString>,
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct RmArgs {
    #[command(flatten)]
    link: Link,
    /// File, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// Names of attributes
    #[arg(required = true, value_name = "NAME")]
    names: Vec<OsString>,
}

/// What every action says of symbolic links, whose `-h` is not that of help.
#[derive(clap::Args)]
struct Link {
    /// Of a symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
}

impl Link {
    fn last(&self) -> Last {
        if self.no_dereference { Last::Keep } else { Last::Follow }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::List(args) => list(args),
        Action::Get(args) => get(args),
        Action::Set(args) => set(args),
        Action::Rm(args) => rm(args),
        Action::Dump(args) => dump::dump(args),
        Action::Restore(args) => dump::restore(args),
    }
}

#[derive(Serialize)]
struct FileShape {
    #[serde(flatten)]
    path: json::Path,
    names: Vec<json::Name>,
}

fn list(args: &ListArgs) -> Result<()> {
    let mut outcome = Outcome::default();
    let mut output = Output::new();
    let mut shapes = Vec::new();
    let paths = glob::in_image("xattr", &args.paths, &mut outcome)?;
    let mut open: Option<(&Image, Volume)> = None;
    for path in &paths {
        let volume = match open {
            Some((image, ref volume)) if *image == path.image => volume,
            _ => {
                let volume = image::volume("xattr", &path.image, Access::Read)?;
                &open.insert((&path.image, volume)).1
            }
        };
        let found = resolve(volume, &path.path, args.link.last());
        let listed = found.and_then(|found| Ok(volume.xattr_list(found.inode())?));
        let mut names = match listed.at("xattr", path) {
            Ok(names) => names,
            Err(failure) => {
                outcome.note(failure);
                continue;
            }
        };
        names.sort();
        if args.json {
            let names = names.iter().map(|name| json::Name::new(name)).collect();
            shapes.push(FileShape { path: json::Path::new(&path.path), names });
            continue;
        }
        if paths.len() > 1 {
            dump::heading(&path.path, &mut output)?;
        }
        for name in &names {
            output.name(&attribute_text::quoted(name, true))?;
            output.line("")?;
        }
        if paths.len() > 1 {
            output.line("")?;
        }
    }
    if args.json {
        output.json(&shapes)?;
    }
    output.finish()?;
    outcome.finish()
}

fn get(args: &GetArgs) -> Result<()> {
    let path = spec::in_image("xattr", &args.path)?;
    let volume = image::volume("xattr", &path.image, Access::Read)?;
    let found = resolve(&volume, &path.path, args.link.last()).at("xattr", &path)?;
    let value = volume.xattr_get(found.inode(), args.name.as_bytes());
    let value = value.at("xattr", format!("{path}: {}", args.name.display()))?;
    let mut output = Output::new();
    if args.json {
        output.json(&dump::AttributeShape::new(args.name.as_bytes(), &value))?;
    } else if args.encoding.is_some() {
        output.name(&attribute_text::value(&value, args.encoding))?;
        output.line("")?;
    } else {
        output.name(&value)?;
    }
    output.finish()
}

fn set(args: &SetArgs) -> Result<()> {
    let value = match (&args.from, &args.value) {
        (Some(file), _) => content(file).at("xattr", file.display())?,
        (None, Some(value)) if args.raw => value.as_bytes().to_vec(),
        (None, value) => {
            let value = value.as_deref().unwrap_or(OsStr::new(""));
            attribute_text::parse_value(value.as_bytes()).at("xattr", value.display())?
        }
    };
    let mode = match (args.create, args.replace) {
        (true, _) => Mode::Create,
        (_, true) => Mode::Replace,
        _ => Mode::Any,
    };
    each("xattr", std::slice::from_ref(&args.path), |volume, path| {
        let found = resolve(volume, &path.path, args.link.last())?;
        Ok(volume.xattr_set(found.inode(), args.name.as_bytes(), &value, mode)?)
    })
}

/// What a file has, up to what is too much for any attribute.
fn content(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut value = Vec::new();
    let most = VALUE_MAX as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut value)?;
    } else {
        std::fs::File::open(file)?.take(most).read_to_end(&mut value)?;
    }
    Ok(value)
}

fn rm(args: &RmArgs) -> Result<()> {
    each("xattr", std::slice::from_ref(&args.path), |volume, path| {
        let found = resolve(volume, &path.path, args.link.last())?;
        for name in &args.names {
            let removed = volume.xattr_remove(found.inode(), name.as_bytes());
            let place = || format!("{path}: {}", name.display());
            removed.map_err(|error| crate::failure::Why::from(error).of(place()))?;
        }
        Ok(())
    })
}
