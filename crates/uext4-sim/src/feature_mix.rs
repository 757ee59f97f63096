//! Seeded combinations of the format's features, and what is done with an image of each.
//!
//! # How
//! mke2fs makes the image. The kernel fills it with a tree of 5,000 entries through a loop mount;
//! where it does not mount the image for writing, `mke2fs -d` does. uext4's mount must show the
//! identical tree. Then uext4 removes names of it, rewrites, cuts and lengthens files
//! ([`change()`](crate::tree::change::change)) and brings in a second tree. `e2fsck -fn` must find
//! nothing, and the kernel must show what the folder on the host holds after the same changes;
//! where it does not mount the image at all, `debugfs rdump` must.
//!
//! # What the kernel is not asked
//! Linux 6.18 crashes when a file in an inode is lengthened by a truncation, so that it fills
//! images with inline_data without a sparse file; and when it replays fast commits of block maps,
//! so that the two are not combined.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::mount::{FuseMount, KernelMount, run};
use crate::oracle::{self, image_folder, program};
use crate::tree::build::{self, Size};
use crate::tree::change;
use crate::tree::compare::{self, Scope};

/// A file system as mke2fs is told to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// `-t`.
    kind: &'static str,
    /// Bytes per block.
    block_size: u32,
    /// Bytes per inode.
    inode_size: u32,
    /// `-O`.
    features: Vec<&'static str>,
    /// Further words.
    words: Vec<String>,
}

/// What became of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// mke2fs makes no such image.
    NotMade,
    /// All is as it must be; the names of what has filled the image, and of what has read it back.
    Passed(&'static str, &'static str),
}

/// Features of ext4 that are switched, each with its odds in percent.
const SWITCHES: &[(&str, u32)] = &[
    ("^has_journal", 20),
    ("^extent", 15),
    ("inline_data", 25),
    ("large_dir", 30),
    ("ea_inode", 30),
    ("meta_bg,^resize_inode", 25),
    ("bigalloc", 25),
    ("mmp", 4),
    ("quota", 15),
    ("project", 15),
    ("casefold", 10),
    ("encrypt", 15),
    ("verity", 10),
    ("stable_inodes", 10),
    ("fast_commit", 10),
    ("^64bit", 25),
    ("^metadata_csum", 30),
    ("^metadata_csum,uninit_bg", 10),
    ("^flex_bg", 20),
    ("metadata_csum_seed", 20),
    ("orphan_file", 20),
    ("sparse_super2,^resize_inode", 10),
    ("^resize_inode", 10),
    ("^sparse_super,^resize_inode", 5),
    ("^huge_file", 10),
    ("^dir_nlink", 10),
    ("^extra_isize", 10),
    ("^dir_index", 10),
    ("^filetype", 5),
    ("^large_file", 5),
];

impl Mix {
    /// The combination of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xfea7);
        let kind = ["ext4", "ext4", "ext4", "ext3", "ext2"][rng.random_range(0..5)];
        let block_size = [1024, 4096][rng.random_range(0..2)];
        let inode_size = [128, 256, 256, 256, 512, 1024][rng.random_range(0..6)];
        // The older ones are ext2 and ext3 with a feature or two.
        let part = if kind == "ext4" { 1 } else { 3 };
        let mut features: Vec<&str> = Vec::new();
        for &(words, percent) in SWITCHES {
            if rng.random_range(0..100 * part) < percent {
                features.extend(words.split(','));
            }
        }
        let mut mix = Self { kind, block_size, inode_size, features, words: Vec::new() };
        mix.make_sense(&mut rng);
        mix
    }

    /// The image with one feature besides the default ones.
    #[must_use]
    pub fn single(words: &'static str, block_size: u32) -> Self {
        let features = words.split(',').collect();
        let mut mix =
            Self { kind: "ext4", block_size, inode_size: 256, features, words: Vec::new() };
        mix.make_sense(&mut StdRng::seed_from_u64(0));
        mix
    }

    /// The switches of which single images are made.
    pub fn singles() -> impl Iterator<Item = Self> {
        let each = |&(words, _): &(&'static str, u32)| {
            [1024, 4096].map(|block_size| Self::single(words, block_size))
        };
        SWITCHES.iter().flat_map(each)
    }

    fn has(&self, feature: &str) -> bool {
        self.features.contains(&feature)
    }

    fn has_no_extents(&self) -> bool {
        self.has("^extent") || self.kind != "ext4" && !self.has("extent")
    }

    /// Takes out what mke2fs refuses or the kernel crashes on.
    fn make_sense(&mut self, rng: &mut StdRng) {
        let no_extents = self.has_no_extents();
        let no_journal = self.has("^has_journal") || self.kind == "ext2";
        let no_checksums = self.has("^metadata_csum") || self.kind != "ext4";
        let has_bigalloc = self.has("bigalloc") && !no_extents;
        let small_inodes = self.inode_size == 128;
        self.features.retain(|&feature| match feature {
            "bigalloc" => !no_extents,
            "fast_commit" => !no_extents && !no_journal,
            "orphan_file" => !no_journal,
            "metadata_csum_seed" => !no_checksums,
            "project" | "inline_data" => !small_inodes,
            _ => true,
        });
        if has_bigalloc {
            // mke2fs keeps no descriptors back there.
            self.features.push("^resize_inode");
            let clusters = self.block_size * [2, 4, 16][rng.random_range(0..3)];
            self.words.extend(["-C".to_owned(), clusters.to_string()]);
        }
        if rng.random_ratio(1, 8) && !has_bigalloc {
            let blocks = if self.block_size == 1024 { 4096 } else { 16_384 };
            self.words.extend(["-g".to_owned(), blocks.to_string()]);
        }
    }

    /// The command line without the image.
    fn mke2fs(&self) -> Vec<String> {
        let (block_size, inode_size) = (self.block_size.to_string(), self.inode_size.to_string());
        let fixed = ["-q", "-F", "-t", self.kind, "-b", &block_size, "-I", &inode_size];
        let mut words: Vec<String> = fixed.map(str::to_owned).into();
        words.extend(["-N", "14000", "-E", "lazy_itable_init=0"].map(str::to_owned));
        if !self.features.is_empty() {
            words.extend(["-O".to_owned(), self.features.join(",")]);
        }
        words.extend(self.words.iter().cloned());
        words
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mke2fs {}", self.mke2fs().join(" "))
    }
}

/// Folders on the host and the trees that images are filled with.
#[derive(Debug)]
pub struct Bench {
    folder: tempfile::TempDir,
    binary: PathBuf,
}

/// Bytes of an image: room for two trees in clusters of 64 KiB.
const IMAGE_BYTES: u64 = 768 << 20;
const TREE: &str = "tree";
/// The filler of images that the kernel does not mount for writing.
const BY_MKE2FS: &str = "mke2fs -d";

impl Bench {
    /// With `binary` as the `uext4` command.
    ///
    /// # Errors
    /// No folder.
    pub fn new(binary: &Path) -> Result<Self, String> {
        let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
        rustix::process::umask(rustix::fs::Mode::empty());
        Ok(Self { folder, binary: binary.to_owned() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Does all that is done with one image. The image of a fault stays in `keep`.
    ///
    /// # Errors
    /// What is wrong, or the machinery failed.
    pub fn try_mix(&self, mix: &Mix, keep: Option<&Path>) -> Result<Outcome, String> {
        let image = self.path("image");
        let result = self.try_image(mix, &image);
        if let (Err(_), Some(keep)) = (&result, keep) {
            fs::copy(&image, keep).map_err(|error| format!("{}: {error}", keep.display()))?;
        }
        for name in ["image", TREE, "dump"] {
            let path = self.path(name);
            let gone =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match gone {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        result
    }

    fn try_image(&self, mix: &Mix, image: &Path) -> Result<Outcome, String> {
        let tree = self.path(TREE);
        let at = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| format!("{what}: {error}")
        };
        File::create(image).and_then(|file| file.set_len(IMAGE_BYTES)).map_err(at("image"))?;
        let mke2fs = program("mke2fs").ok_or("mke2fs is not installed")?;
        let made = Command::new(&mke2fs).args(mix.mke2fs()).arg(image).output();
        if !made.map_err(at("mke2fs"))?.status.success() {
            return Ok(Outcome::NotMade);
        }
        let sparse = if mix.has("inline_data") { 0 } else { 1 << 32 };
        let mut size = Size::of_image(sparse, mix.block_size as usize * 2 / 3);
        if mix.has("quota") && mix.has("inline_data") {
            // e2fsck does not count inodes that have a longer target in them.
            size.target_bytes = 59;
        }
        build::build(&tree, &size).map_err(at("making the tree"))?;
        let filler = self.fill(mix, &mke2fs, image)?;
        oracle::expect_clean(image).map_err(|why| format!("filled by {filler}: {why}"))?;

        let scope = Scope { no_times: mix.inode_size == 128, ..Scope::default() };
        // mke2fs keeps the low 32 bits of seconds.
        let filled = Scope { no_times: scope.no_times || filler == BY_MKE2FS, ..scope };
        let point = self.path("mnt");
        let mount = FuseMount::start(&self.binary, image, &point)?;
        same(&tree, &point.join(TREE), filled, "uext4's mount")?;
        change::change(&point.join(TREE)).map_err(at("changing the tree"))?;
        change::change(&tree).map_err(at("changing the host's tree"))?;
        copy(&tree, &point.join("second"))?;
        mount.unmount(&self.binary)?;
        oracle::expect_clean(image).map_err(|why| format!("written by uext4: {why}"))?;
        let reader = self.read_back(image, &[(TREE, filled), ("second", scope)])?;
        Ok(Outcome::Passed(filler, reader))
    }

    /// Fills the image with the tree; returns the filler's name.
    fn fill(&self, mix: &Mix, mke2fs: &Path, image: &Path) -> Result<&'static str, String> {
        let tree = self.path(TREE);
        let point = self.path("kernel");
        if let Ok(mount) = KernelMount::start(image, &point, false) {
            copy(&tree, &point.join(TREE))?;
            mount.unmount()?;
            return Ok("the kernel");
        }
        // All but the top directory's own attributes come from a folder that has the tree alone.
        let source = self.path("source");
        fs::create_dir_all(&source)
            .and_then(|()| fs::rename(&tree, source.join(TREE)))
            .map_err(|error| error.to_string())?;
        let made = run(Command::new(mke2fs).args(mix.mke2fs()).arg("-d").arg(&source).arg(image));
        fs::rename(source.join(TREE), &tree).map_err(|error| error.to_string())?;
        made?;
        if mix.has("quota") || mix.has("project") {
            // mke2fs does not count what it fills in, and one run of e2fsck may leave a part of it.
            for _ in 0..2 {
                oracle::judge(image, "-fy").map_err(|error| error.to_string())?;
            }
        }
        Ok(BY_MKE2FS)
    }

    /// Compares the changed trees on the image with the host's; returns the reader's name.
    fn read_back(&self, image: &Path, trees: &[(&str, Scope)]) -> Result<&'static str, String> {
        let tree = self.path(TREE);
        let point = self.path("mnt");
        let mount = FuseMount::start(&self.binary, image, &point)?;
        for &(name, scope) in trees {
            same(&tree, &point.join(name), scope, "uext4's second mount")?;
        }
        mount.unmount(&self.binary)?;
        let point = self.path("kernel");
        if let Ok(mount) = KernelMount::start(image, &point, true) {
            for &(name, scope) in trees {
                same(&tree, &point.join(name), scope, "the kernel's mount")?;
            }
            mount.unmount()?;
            return Ok("the kernel");
        }
        let dump = self.path("dump");
        fs::create_dir_all(&dump).map_err(|error| format!("{}: {error}", dump.display()))?;
        let debugfs = program("debugfs").ok_or("debugfs is not installed")?;
        let request = format!("rdump /{TREE} {}", dump.display());
        run(Command::new(debugfs).args(["-R", &request]).arg(image))?;
        let scope = Scope { content_only: true, no_times: true, ..Scope::default() };
        same(&tree, &dump.join(TREE), scope, "debugfs")?;
        Ok("debugfs")
    }
}

/// `cp -a`, holes kept only where they are.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    run(Command::new("cp").args(["-a", "--reflink=never", "--sparse=auto"]).arg(from).arg(to))
        .map(drop)
}

fn same(tree: &Path, shown: &Path, scope: Scope, shown_by: &str) -> Result<(), String> {
    let differences = compare::trees(tree, shown, scope)?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("{shown_by} differs from the tree:\n  {}", differences.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_crashes_on_is_not_made() {
        for seed in 0..2_000 {
            let mix = Mix::of_seed(seed);
            assert!(!(mix.has("fast_commit") && mix.has_no_extents()), "{mix}");
            assert!(!(mix.has("bigalloc") && mix.has_no_extents()), "{mix}");
        }
    }
}
