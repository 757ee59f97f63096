//! M7: an image from a directory, by what `uext4 mkfs -d` calls and by `mke2fs -d`.
//!
//! What: besides being clean and holding the tree, what uext4 builds has to be the same to the byte
//! in every round, and on one thread.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uext4_device::FileDevice;
use uext4_mkfs::populate::{Fill, HostTree, digest};
use uext4_mkfs::{Options, format_filled};

use crate::archive;
use crate::block_device::is_block_device;
use crate::check::{self, Expected};
use crate::command;
use crate::error::{Doing, Error, Result};
use crate::explain::Subject;
use crate::load::Form;
use crate::machine;
use crate::mounted;
use crate::plan::{Figure, Plan};
use crate::report::DEFAULT;
use crate::stage::{self, Stage};
use crate::target::Target;
use crate::tree::{self, Tree};
use crate::tree_explained::Looking;

/// mke2fs is ended after this long: with many files in one directory it takes more than ten
/// minutes.
const MKE2FS_MAX: Duration = Duration::from_mins(2);
/// Figure of a build that was ended so.
pub(crate) const CUT_OFF: &str = "cut_off";
const READ_BYTES: usize = 1 << 20;
/// Bytes of a large file system for one inode.
const BYTES_PER_INODE: u64 = 16 << 10;
/// More inodes than a new file system has for itself.
const OWN_INODES: u64 = 1000;

/// What the builds of a run share.
#[derive(Debug, Default)]
pub(crate) struct Builds {
    /// The tree that is one directory, once it is needed.
    flat: Option<Tree>,
    /// Fingerprints of what uext4 has built.
    built: HashMap<Option<Form>, u64>,
}

/// What images are built from.
pub(crate) struct Source<'a> {
    plan: &'a Plan,
    tree: &'a Tree,
    dir: PathBuf,
    /// Bytes of the images.
    bytes: u64,
    form: Option<Form>,
    built: &'a mut HashMap<Option<Form>, u64>,
}

impl Builds {
    /// The tree that is one directory, if it was needed.
    pub(crate) fn flat(&self) -> Option<&Tree> {
        self.flat.as_ref()
    }

    /// The tree of a form, as a directory of the host.
    pub(crate) fn from<'a>(
        &'a mut self,
        plan: &'a Plan,
        stage: &Stage,
        usual: &'a Tree,
        form: Option<Form>,
    ) -> Result<Source<'a>> {
        let (tree, name) = match form {
            None => (usual, "own"),
            Some(form) => (&*self.flat.get_or_insert_with(|| Tree::flat(plan.scale)), form.name()),
        };
        let dir = stage.source(&format!("tree-dir-{name}"));
        if !dir.exists() {
            let archive = stage.source(&format!("tree-{name}.tar"));
            archive::write(tree, &archive).doing("writing the archive")?;
            std::fs::create_dir(&dir).doing("making the tree")?;
            mounted::unpack(&dir, &archive)?;
            std::fs::remove_file(&archive).doing("removing the archive")?;
        }
        // Both make one inode for so many bytes, and mke2fs none for what it is filled with.
        let inodes = (tree.entries.len() as u64 + OWN_INODES) * BYTES_PER_INODE;
        let bytes = stage.image_bytes().max(inodes.next_multiple_of(1 << 20));
        Ok(Source { plan, tree, dir, bytes, form, built: &mut self.built })
    }
}

impl Source<'_> {
    /// Builds an image and checks it.
    pub(crate) fn build(
        self,
        target: Target,
        image: &Path,
        looking: &Looking,
        note: &mut dyn FnMut(&str),
    ) -> Result<Vec<Figure>> {
        remove(image)?;
        let cpu = machine::processor_seconds();
        let began = Instant::now();
        let build = || -> Result<bool> {
            let has_ended = if target == Target::Mke2fs {
                self.mke2fs(image)?
            } else {
                // As many as the command takes.
                let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
                self.own(image, threads)?;
                true
            };
            if has_ended {
                stage::sync_file(image)?;
            }
            Ok(has_ended)
        };
        let has_programs = target == Target::Mke2fs;
        let has_ended = looking.at(Subject { has_programs, ..Subject::default() }, build)?;
        let seconds = began.elapsed().as_secs_f64() - looking.took_s();
        let cpu = cpu.zip(machine::processor_seconds()).map(|(before, after)| after - before);
        let figure = |metric, value| Figure { variant: DEFAULT.into(), metric, value };
        let mut figures = vec![figure("wall_s", seconds)];
        figures.extend(cpu.map(|cpu| figure("cpu_s", cpu)));
        if has_ended {
            check::image(image, Expected::Tree, self.tree)?;
        } else {
            remove(image)?;
            figures.push(figure(CUT_OFF, 1.0));
            note(&format!("{} was ended; it takes more than {seconds:.0} s", target.name()));
        }
        if target == Target::Uext4 {
            self.compare(image)?;
        }
        Ok(figures)
    }

    /// Compares what uext4 built with what it had built before, or with what one thread builds.
    fn compare(self, image: &Path) -> Result<()> {
        let made = fingerprint(image)?;
        let other = match self.built.get(&self.form) {
            Some(before) => *before,
            None => {
                remove(image)?;
                self.own(image, 1)?;
                fingerprint(image)?
            }
        };
        self.built.insert(self.form, other);
        if made == other { Ok(()) } else { Err(Error::new("two builds of the same tree differ")) }
    }

    /// Builds as `SOURCE_DATE_EPOCH=... uext4 mkfs -b 4096 -d DIR IMAGE SIZE` does.
    fn own(&self, image: &Path, threads: usize) -> Result<()> {
        let host = HostTree::read(&self.dir, threads).doing("reading the tree")?;
        // Small images, too, have the block size of large ones.
        let mut options = Options { block_size: Some(4096), ..Options::default() };
        options.make_reproducible(tree::EPOCH, &digest(&host.tree, tree::EPOCH));
        let device = FileDevice::create(image, self.bytes).doing("making an image")?;
        let fill = Fill {
            tree: &host.tree,
            contents: &host,
            is_reproducible: true,
            threads,
            progress: &|_| {},
        };
        format_filled(&device, &options, None, Some(&fill)).doing("mkfs -d").map(|_| ())
    }

    /// Builds by `mke2fs -d`; whether that came to its end in time.
    fn mke2fs(&self, image: &Path) -> Result<bool> {
        let blocks = (self.bytes / 4096).to_string();
        let (dir, image) = (self.dir.to_string_lossy(), image.to_string_lossy());
        let args = ["-q", "-F", "-t", "ext4", "-b", "4096", "-d", &dir, &image, &blocks];
        command::run_within("mke2fs", &args, MKE2FS_MAX, &|| self.plan.go_on())
    }
}

/// Removes an image that is a file: what stands in /dev is nobody's to remove.
fn remove(image: &Path) -> Result<()> {
    if is_block_device(image) {
        return Err(Error::new(format!("{} is a block device", image.display())));
    }
    match image.exists() {
        true => std::fs::remove_file(image).doing("removing an image"),
        false => Ok(()),
    }
}

/// A number that two images share if they are the same to the byte, and hardly otherwise.
fn fingerprint(image: &Path) -> Result<u64> {
    let mut file = File::open(image).doing("opening an image")?;
    let (mut hasher, mut buf) = (DefaultHasher::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buf).doing("reading an image")? {
            0 => return Ok(hasher.finish()),
            count => hasher.write(&buf[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

    use super::*;

    /// Fault model: the name of a disk is taken for an image of an earlier round.
    #[test]
    fn a_block_device_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("disk");
        let made = mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR, makedev(7, 0));
        if made.is_err() {
            eprintln!("skipped: a device node needs root");
            return;
        }
        assert!(remove(&node).unwrap_err().to_string().contains("is a block device"));
        assert!(node.exists());
        let file = dir.path().join("image");
        std::fs::write(&file, "").unwrap();
        remove(&file).unwrap();
        assert!(!file.exists());
    }
}
