//! Fuzz targets: functions of bytes, for a fuzzer that is guided by coverage and for a short
//! seeded run in this suite.
//!
//! The bytes pick one of the tiny images of [`crate::population`], say whether it is opened for
//! writing, and what becomes of its metadata, which is sealed again; the image is then opened,
//! walked, read and rewritten. All targets but `structured` give the bytes to one structure as they
//! are, from its first byte on: what a fuzzer learns about a format stays where it learnt it.
//!
//! An input has a thousandth of a second: images are made once and copied on write, and have no
//! more names than a structure needs.

use crate::exercise::{Bounds, Found, Report, look_at, rewrite, walk};
use crate::population::{Base, TINY, bases};
use std::sync::{Arc, OnceLock};
use uext4::{MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::Ino;
use uext4_sim::anatomy::{Anatomy, Seal, Structure, bytes};

/// Name of a target and which structures it changes.
type FuzzTarget = (&'static str, fn(Seal) -> bool);

/// The targets.
pub(crate) const TARGETS: [FuzzTarget; 8] = [
    ("superblock", |seal| matches!(seal, Seal::Superblock | Seal::Desc(_))),
    ("inode", |seal| matches!(seal, Seal::Inode(_))),
    ("extent", |seal| matches!(seal, Seal::Extent(_))),
    ("directory", |seal| matches!(seal, Seal::DirLeaf(_))),
    ("htree", |seal| matches!(seal, Seal::DirIndex(_))),
    ("xattr", |seal| matches!(seal, Seal::Xattr(_))),
    ("journal", |seal| {
        matches!(seal, Seal::JournalSuperblock | Seal::LogBlock | Seal::LogImage(_))
    }),
    ("structured", |_| true),
];

const BOUNDS: Bounds =
    Bounds { inodes: 28, entries_per_directory: 12, bytes_per_file: 1 << 13, changes: 3 };
/// For the inode that is damaged.
const OWNER: Bounds = Bounds { entries_per_directory: 300, ..BOUNDS };

/// Bytes of one change of `structured`: which structure, where, width, value.
const CHANGE_BYTES: usize = 9;

/// A valid image and what a target may change of it.
pub(crate) struct Image {
    base: &'static Base,
    anatomy: &'static Anatomy,
    wanted: Vec<Structure>,
}

/// The images of a target: those that have such structures.
pub(crate) fn images(name: &str) -> &'static [Image] {
    static BASES: OnceLock<Vec<(Base, Anatomy)>> = OnceLock::new();
    static IMAGES: [OnceLock<Vec<Image>>; TARGETS.len()] = [const { OnceLock::new() }; _];
    let index = TARGETS.iter().position(|(known, _)| *known == name).expect("a target");
    let (_, wants) = TARGETS[index];
    IMAGES[index].get_or_init(|| {
        let bases = BASES.get_or_init(|| {
            let taken_apart = |base: Base| {
                let anatomy = Anatomy::of(&base.device);
                (base, anatomy)
            };
            bases(&TINY).into_iter().map(taken_apart).collect()
        });
        let image = |(base, anatomy): &'static (Base, Anatomy)| {
            let wanted = anatomy.targets.iter().filter(|t| wants(t.seal)).cloned().collect();
            Image { base, anatomy, wanted }
        };
        bases.iter().map(image).filter(|image| !image.wanted.is_empty()).collect()
    })
}

/// The image that the first byte of an input names, and whether it is opened for reading only.
fn choice(name: &str, byte: u8) -> (&'static Image, bool) {
    let images = images(name);
    (&images[usize::from(byte / 2) % images.len()], byte % 2 == 1)
}

/// Runs a target.
///
/// # Panics
/// A fault: the engine panics in this thread, or says that it is at fault itself.
pub(crate) fn run(name: &str, data: &[u8]) {
    let [first, which @ ..] = data else { return };
    let (image, read_only) = choice(name, *first);
    let device = image.base.device.snapshot();
    let mut owner = None;
    if name == "structured" {
        for change in which.chunks_exact(CHANGE_BYTES).take(8) {
            owner = change_field(&device, image, change);
        }
    } else {
        let [low, high, content @ ..] = which else { return };
        let number = usize::from(u16::from_le_bytes([*low, *high]));
        let target = &image.wanted[number % image.wanted.len()];
        let len = content.len().min(target.len);
        device.write_at(target.at, &content[..len]).expect("memory");
        image.anatomy.seal(&device, target);
        owner = target.owner;
    }
    let internal = survive(device, read_only, owner);
    assert!(internal.is_empty(), "{internal:?}");
}

/// Changes one field of one structure; whose that is.
fn change_field(device: &MemoryDevice, image: &Image, change: &[u8]) -> Option<Ino> {
    let word = |at: usize| usize::from(u16::from_le_bytes([change[at], change[at + 1]]));
    let target = &image.wanted[word(0) % image.wanted.len()];
    let width = [1, 2, 4, 4][usize::from(change[4]) % 4];
    let at = target.at + (word(2) % target.used / width * width) as u64;
    device.write_at(at, &change[5..5 + width]).expect("memory");
    image.anatomy.seal(device, target);
    target.owner
}

/// The bytes of a structure as a valid image has it: a seed for the fuzzer and for damage.
pub(crate) fn seed_of(name: &str, first: u8, number: u16) -> Vec<u8> {
    let (image, _) = choice(name, first);
    let mut seed = vec![first];
    seed.extend(number.to_le_bytes());
    if name == "structured" {
        seed.extend([0; 2 * CHANGE_BYTES]);
    } else {
        let target = &image.wanted[usize::from(number) % image.wanted.len()];
        seed.extend(bytes(&image.base.device, target.at, target.len));
    }
    seed
}

/// Opens and walks an image; or opens it for writing, walks and rewrites it, the damaged inode's
/// names first, and walks what the next mount finds.
fn survive(device: MemoryDevice, read_only: bool, owner: Option<Ino>) -> Vec<String> {
    let mut report = Report::default();
    let device = Arc::new(device);
    let passes: &[bool] = if read_only { &[true] } else { &[false, true] };
    for &read_only in passes {
        let shared: SharedDevice = device.clone();
        let options = MountOptions {
            read_only,
            cache_bytes: MountOptions::CACHE_BYTES_MIN,
            ..MountOptions::default()
        };
        let Some(volume) = report.note(Volume::open(shared, options)) else { continue };
        if let Some(ino) = owner {
            look_at(&volume, ino, OWNER, &mut report);
        }
        let mut found = walk(&volume, BOUNDS, &mut report);
        if !read_only {
            let is_owned =
                |name: &Found| [name.inode.ino(), name.dir.ino()].map(Some).contains(&owner);
            found.sort_by_key(|name| !is_owned(name));
            rewrite(&volume, &found, BOUNDS, &mut report);
        }
        drop(found);
        report.note(volume.close());
    }
    report.internal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::{self, Watchdog};
    use crate::common::have;
    use crate::random::Random;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    const CHILD: &str = "fuzz::tests::one_target";
    /// Inputs of each target in an ordinary run.
    const CASES: u64 = 500;
    const BOUND: Duration = Duration::from_secs(30);
    const MEMORY_MIB: u64 = 256;

    #[test]
    fn every_target_survives_damaged_structures() {
        if !have("mke2fs") {
            return;
        }
        let cases = std::env::var("UEXT4_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
        let cases = cases.unwrap_or(CASES);
        for (name, _) in TARGETS {
            let bound = Duration::from_secs(60 + cases);
            let outcome = child::run(CHILD, &format!("{cases} {name}"), bound);
            let report = outcome.output.lines().find(|line| line.starts_with("FUZZ"));
            println!("{name}: {}", report.unwrap_or("no report"));
            assert!(outcome.success && report.is_some(), "{name}: {}", outcome.output);
        }
    }

    /// The child's part.
    #[test]
    fn one_target() {
        let Some(argument) = child::task(CHILD) else { return };
        let (cases, name) = argument.split_once(' ').expect("cases and target");
        let cases: u64 = cases.parse().expect("cases");
        images(name);
        child::catch_panics();
        child::reset_peak();
        let dog = Watchdog::start(BOUND);
        for case in 0..cases {
            let mut random = Random::new(case);
            let mut input = seed_of(name, random.any() as u8, random.any() as u16);
            for _ in 0..1 + random.below(8) {
                let from = if name == "structured" { 0 } else { 3 };
                let near = if random.one_in(2) { 64 } else { input.len() };
                let at = from + random.below(near.min(input.len()).saturating_sub(from));
                let any = random.any() as u8;
                if let Some(byte) = input.get_mut(at) {
                    *byte = *random.pick(&[0, 1, 0x7f, 0xff, byte.wrapping_add(1), any]);
                }
            }
            let result = dog.watch(format!("{name} case {case}"), || {
                catch_unwind(AssertUnwindSafe(|| run(name, &input)))
            });
            let panics = child::take_panics();
            assert!(result.is_ok() && panics.is_empty(), "{name} case {case}: {panics:?}");
        }
        let peak = child::status_kib("VmHWM:");
        println!("\nFUZZ {cases} inputs, slowest {} ms, peak {peak} KiB", dog.slowest_ms());
        assert!(peak < MEMORY_MIB * 1024, "peak of {peak} KiB");
    }
}
