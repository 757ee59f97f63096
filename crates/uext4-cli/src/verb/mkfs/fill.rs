//! `-d`: what fills a new file system, and the size that it asks for.

use std::path::Path;

use uext4_mkfs::populate::{Fill, HostTree, Room, digest, fitted};
use uext4_mkfs::{JournalDevice, MkfsError, Options};

use super::Args;
use crate::failure::{Failure, Result, Why};
use crate::spec::Image;
use crate::verbosity::remark;

/// Percent of a file system that are free, if it has neither a size nor a share.
const FREE_PERCENT: f64 = 10.0;

/// What was named by `-d`, read but for the content of its files.
pub(super) struct Source {
    host: HostTree,
    /// What `SOURCE_DATE_EPOCH` says.
    epoch: Option<u32>,
    threads: usize,
}

impl Source {
    /// Reads the tree.
    pub(super) fn read(path: &Path, epoch: Option<u32>) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let host = directory(path, threads)?;
        Ok(Self { host, epoch, threads })
    }

    pub(super) fn fill(&self) -> Fill<'_> {
        Fill {
            tree: &self.host.tree,
            contents: &self.host,
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
        options.make_reproducible(epoch, &digest(&source.host.tree, epoch));
    }
    let is_new = image.path.metadata().map_or(true, |meta| meta.is_file() && meta.len() == 0);
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
