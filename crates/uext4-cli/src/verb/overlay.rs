//! `uext4 overlay`: what an overlay holds, into its image or away.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use uext4_device::stored_overlay::{BLOCK_BYTES, Header, State, commit};
use uext4_device::{FileDevice, FileOptions, OverlayError};
use uext4_ondisk::uuid_text;

use crate::closing;
use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, one_line};
use crate::image::{self, Access};
use crate::json;
use crate::output::Output;
use crate::overlay;
use crate::place::Place;
use crate::progress::Progress;
use crate::spec::Image;
use crate::text::human;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 overlay info changes.ovl", "of which image it is, and how much it holds"),
    ("uext4 overlay commit changes.ovl disk.img", "write what it holds into the image"),
    ("uext4 overlay discard changes.ovl", "forget what it holds"),
];

/// Show an overlay of an image, write it into the image, or empty it
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show of which image an overlay is, and how much it holds
    Info {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// File of the overlay
        file: PathBuf,
    },
    /// Write what an overlay holds into its image, and empty it; one that was cut off is finished
    Commit {
        /// File of the overlay
        file: PathBuf,
        /// The image that it was made over, with @p1 or @OFFSET for a partition in it
        #[arg(value_name = "IMAGE[@PART]")]
        image: OsString,
    },
    /// Empty an overlay: its image shows what it did before
    Discard {
        /// File of the overlay
        file: PathBuf,
    },
}

const VERB: &str = "overlay";

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Info { json, file } => info(file, *json),
        Action::Commit { file, image } => merge(file, &Image::parse(image)),
        Action::Discard { file } => discard(file),
    }
}

/// The file of an overlay and its header; `None` for an empty file.
fn open(path: &Path, access: Access) -> Result<Option<(FileDevice, Header)>> {
    let file = overlay::file(path);
    closing::wait(VERB, &file, access == Access::Write);
    overlay::check_kind(VERB, &file)?;
    if overlay::is_empty(path).at(VERB, &file)? {
        return Ok(None);
    }
    let store = FileDevice::open(path, access.into(), 0);
    let store = store.map_err(|error| Failure::line(&format!("{VERB}: {error}")))?;
    let header = Header::read(&store).at(VERB, &file)?;
    Ok(Some((store, header)))
}

fn merge(path: &Path, image: &Image) -> Result<()> {
    let file = overlay::file(path);
    overlay::check(VERB, image, &file)?;
    let Some((store, _)) = open(path, Access::Write)? else {
        return told(&format!("{file}: holds nothing"));
    };
    closing::wait(VERB, image, true);
    let options = FileOptions::new(Access::Write.into());
    let base = image::any_device(VERB, image, Place::of(VERB, image)?, &options)?;
    let progress = Progress::image(VERB);
    let committed = commit(&store, &*base, &mut |bytes| progress.add_bytes(bytes)).at(VERB, &file);
    drop(progress);
    let committed = committed?;
    store.empty().at(VERB, &file)?;
    let resumed = if committed.resumed { ", which finishes a commit that was cut off" } else { "" };
    told(&format!("{file}: {} bytes written into {image}{resumed}", committed.bytes))
}

fn discard(path: &Path) -> Result<()> {
    let file = overlay::file(path);
    let Some((store, header)) = open(path, Access::Write)? else {
        return told(&format!("{file}: holds nothing"));
    };
    if header.state == State::Committing {
        // The image is whole with it alone.
        return Err(OverlayError::Committing).at(VERB, &file);
    }
    let bytes = header.held_bytes(&store).at(VERB, &file)?;
    store.empty().at(VERB, &file)?;
    told(&format!("{file}: {bytes} bytes discarded"))
}

fn told(line: &str) -> Result<()> {
    let mut output = Output::new();
    output.line(&one_line(line))?;
    output.finish()
}

/// What `info` tells.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    file: json::Path,
    state: &'static str,
    /// Bytes that its blocks have.
    held_bytes: u64,
    /// Bytes that it takes where it is stored.
    stored_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Base>,
}

/// The image that an overlay was made over.
#[derive(Serialize)]
struct Base {
    /// Its name at that time.
    #[serde(flatten)]
    name: json::Name,
    bytes: u64,
    uuid: String,
    /// Of its first 64 KiB.
    head_sha256: String,
}

impl Told {
    fn new(path: &Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let file = overlay::file(path);
        let name = json::Path::new(path.as_os_str().as_bytes());
        let opened = open(path, Access::Read)?;
        let stored_bytes = path.metadata().at(VERB, &file)?.blocks() * 512;
        let Some((store, header)) = opened else {
            let (state, block_size, base) = ("empty", None, None);
            return Ok(Self { file: name, state, held_bytes: 0, stored_bytes, block_size, base });
        };
        Ok(Self {
            file: name,
            state: match header.state {
                State::Open => "open",
                State::Committing => "half committed",
            },
            held_bytes: header.held_bytes(&store).at(VERB, &file)?,
            stored_bytes,
            block_size: Some(BLOCK_BYTES),
            base: Some(Base {
                name: json::Name::new(&header.name),
                bytes: header.layout.base_len(),
                uuid: uuid_text(&header.base_uuid),
                head_sha256: header.base_hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            }),
        })
    }
}

fn info(path: &Path, as_json: bool) -> Result<()> {
    let told = Told::new(path)?;
    let mut output = Output::new();
    if as_json {
        output.json(&told)?;
        return output.finish();
    }
    let line = |what: &str, says: String| one_line(&format!("{what:8} {says}"));
    output.line(&line("Overlay:", path.display().to_string()))?;
    output.line(&line("State:", told.state.to_owned()))?;
    if let Some(base) = &told.base {
        let (name, bytes, uuid) = (base.name.text(), base.bytes, &base.uuid);
        output.line(&line("Image:", format!("{name}, {bytes} bytes, file system {uuid}")))?;
    }
    let (held, stored) = (told.held_bytes, human(told.stored_bytes));
    output.line(&line("Holds:", format!("{held} bytes ({}), stored in {stored}", human(held))))?;
    output.finish()
}
