//! `-d`: what fills a new file system, and the size that it asks for.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use uext4_mkfs::populate::{Contents, Fill, HostTree, Room, Tree, digest, fitted};
use uext4_mkfs::{JournalDevice, MkfsError, Options};

use self::blob::Blob;
use self::choice::Choice;
use self::held::Held;
use self::layers::Layers;
use self::members::{Members, Memory};
use super::Args;
use crate::failure::{Failure, Result, Why};
use crate::spec::Image;
use crate::verbosity::remark;

mod blob;
mod choice;
mod held;
mod layers;
mod layout;
mod members;
mod whiteouts;

/// Percent of a file system that are free, if it has neither a size nor a share.
const FREE_PERCENT: f64 = 10.0;

/// What was named by `-d`, read but for the content of its files.
pub(super) struct Source {
    from: From,
    /// What `SOURCE_DATE_EPOCH` says.
    epoch: Option<u32>,
    threads: usize,
}

/// What it is.
enum From {
    Directory(HostTree),
    Archives(Tree, Held),
}

impl Source {
    /// Reads the tree.
    pub(super) fn read(args: &Args, path: &Path, epoch: Option<u32>) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let choice =
            Choice { reference: args.reference.as_deref(), platform: args.platform.as_deref() };
        let is_directory = path != Path::new("-") && path.is_dir();
        let is_layout = is_directory && layout::is_one(path);
        if !is_layout && (choice.reference.or(choice.platform)).is_some() {
            let why = "is no OCI image layout, of which --ref and --platform choose an image";
            return Err(Why::new(why).at("mkfs", path.display()));
        }
        let from = match () {
            () if is_layout => image(path, choice).map_err(|why| why.at("mkfs", path.display()))?,
            () if is_directory => From::Directory(directory(path, threads)?),
            () => archive(path).map_err(|why| why.at("mkfs", path.display()))?,
        };
        Ok(Self { from, epoch, threads })
    }

    fn tree(&self) -> &Tree {
        match &self.from {
            From::Directory(host) => &host.tree,
            From::Archives(tree, _) => tree,
        }
    }

    pub(super) fn fill(&self) -> Fill<'_> {
        let contents: &dyn Contents = match &self.from {
            From::Directory(host) => host,
            From::Archives(_, held) => held,
        };
        Fill {
            tree: self.tree(),
            contents,
            is_reproducible: self.epoch.is_some(),
            threads: self.threads,
            progress: &|_| {},
        }
    }
}

fn directory(path: &Path, threads: usize) -> Result<HostTree> {
    let host = HostTree::read(path, threads).map_err(failure)?;
    if !host.has_all_attributes {
        remark(
            "mkfs: there is no /proc: attributes of symbolic links and special files are left out",
        );
    }
    Ok(host)
}

/// A tar archive, or standard input.
fn archive(path: &Path) -> std::result::Result<From, Why> {
    let file = match path == Path::new("-") {
        true => File::from(std::io::stdin().as_fd().try_clone_to_owned()?),
        false => File::open(path)?,
    };
    let (mut held, mut memory, mut layers) = (Held::default(), Memory::default(), Layers::new());
    let stream = Box::new(file.try_clone()?);
    let name = path.display().to_string();
    let read = members::read(&name, &file, stream, &mut held, &mut memory)?;
    read.refuse_images()?;
    if read.is_absolute {
        remark("mkfs: names with a slash before them begin at the top of the file system");
    }
    layers.add(read.members, &mut memory)?;
    held.finish()?;
    Ok(From::Archives(layers.tree, held))
}

/// An image of an OCI layout.
fn image(path: &Path, choice: Choice<'_>) -> std::result::Result<From, Why> {
    let (mut held, mut memory, mut layers) = (Held::default(), Memory::default(), Layers::new());
    let all = layout::layers(path, choice)?;
    // Those that come again.
    let mut kept: HashMap<(&str, u64), Members> = HashMap::new();
    for (index, layer) in all.iter().enumerate() {
        let key = (&*layer.digest, layer.size);
        let read = match kept.get(&key) {
            Some(read) => read.copied(&mut memory)?,
            None => {
                let blob = Blob::open(path, layer)?;
                let read = blob.read(|stream| {
                    members::read(&blob.name, &blob.file, stream, &mut held, &mut memory)
                })?;
                if all[index + 1..].iter().any(|later| later.digest == layer.digest) {
                    kept.insert(key, read.copied(&mut memory)?);
                }
                read
            }
        };
        let added = layers.add_layer(read.members, &mut memory);
        added.map_err(|why| why.of(&layer.digest))?;
    }
    held.finish()?;
    Ok(From::Archives(layers.tree, held))
}

fn failure(error: MkfsError) -> Failure {
    Failure::line(&format!("mkfs: {error}"))
}

/// Decides what the options leave to what fills the file system: its size, and under
/// `SOURCE_DATE_EPOCH` its time, UUID and hash seed.
pub(super) fn settle(
    args: &Args,
    image: &Image,
    options: &mut Options,
    external: Option<&JournalDevice<'_>>,
    source: &Source,
) -> Result<()> {
    if let Some(epoch) = source.epoch {
        options.make_reproducible(epoch, &digest(source.tree(), epoch));
    }
    let is_new = image.is_to_be_made();
    let room = match args.free {
        _ if options.size.is_some() => return Ok(()),
        Some(percent) => Room::Free(percent),
        None if args.shrink => Room::Least,
        None if is_new => Room::Free(FREE_PERCENT),
        None => return Ok(()),
    };
    if !is_new {
        let why = "is there and has a size; remove it for one by its content (--free, --shrink)";
        return Err(Why::new(why).at("mkfs", image));
    }
    *options = fitted(options, external, &source.fill(), room).map_err(failure)?;
    Ok(())
}
