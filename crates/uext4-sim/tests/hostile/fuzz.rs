//! Fuzz targets: functions of bytes, for a fuzzer that is guided by coverage and for a short
//! seeded run in this suite.
//!
//! The bytes pick one of the valid images of [`crate::population`] and say what becomes of its
//! metadata, which is sealed again; the image is then opened, walked, read and rewritten. All
//! targets but `structured` give the bytes to one structure as they are, from its first byte on:
//! what a fuzzer learns about a format stays where it learnt it.

use crate::exercise::{Bounds, Report, rewrite, walk};
use crate::population::{Base, bases};
use std::sync::{Arc, OnceLock};
use uext4::{MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_sim::anatomy::{Anatomy, Seal, Target, bytes};

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
    Bounds { inodes: 120, entries_per_directory: 300, bytes_per_file: 1 << 16, changes: 12 };

/// Bytes of one change of `structured`: which structure, where, width, value.
const CHANGE_BYTES: usize = 9;

fn images() -> &'static [(Base, Anatomy)] {
    static IMAGES: OnceLock<Vec<(Base, Anatomy)>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let with_anatomy = |base: Base| {
            let anatomy = Anatomy::of(&base.device);
            (base, anatomy)
        };
        bases().into_iter().map(with_anatomy).collect()
    })
}

/// Runs a target.
///
/// # Panics
/// A fault: the engine panics in this thread, or says that it is at fault itself.
pub(crate) fn run(name: &str, data: &[u8]) {
    let (_, wants) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let [image, which @ ..] = data else { return };
    let images = images();
    let (base, anatomy) = &images[usize::from(*image) % images.len()];
    let wanted: Vec<&Target> = anatomy.targets.iter().filter(|t| wants(t.seal)).collect();
    let device = base.device.snapshot();
    if name == "structured" {
        for change in which.chunks_exact(CHANGE_BYTES).take(8) {
            change_field(&device, anatomy, &wanted, change);
        }
    } else {
        let [low, high, content @ ..] = which else { return };
        // An image need not have one: not all have a tree of two levels, or a log.
        let number = usize::from(u16::from_le_bytes([*low, *high]));
        let Some(target) = wanted.get(number % wanted.len().max(1)) else { return };
        let len = content.len().min(target.len);
        device.write_at(target.at, &content[..len]).expect("memory");
        anatomy.seal(&device, target);
    }
    let internal = survive(device);
    assert!(internal.is_empty(), "{internal:?}");
}

/// One field of one structure.
fn change_field(device: &MemoryDevice, anatomy: &Anatomy, wanted: &[&Target], change: &[u8]) {
    let word = |at: usize| usize::from(u16::from_le_bytes([change[at], change[at + 1]]));
    let target = wanted[word(0) % wanted.len()];
    let width = [1, 2, 4, 4][usize::from(change[4]) % 4];
    let at = target.at + (word(2) % target.used / width * width) as u64;
    device.write_at(at, &change[5..5 + width]).expect("memory");
    anatomy.seal(device, target);
}

/// The bytes of a structure as a valid image has it: a seed for the fuzzer and for damage.
pub(crate) fn seed_of(name: &str, image: u8, number: u16) -> Vec<u8> {
    let (_, wants) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let images = images();
    let (base, anatomy) = &images[usize::from(image) % images.len()];
    let wanted: Vec<&Target> = anatomy.targets.iter().filter(|t| wants(t.seal)).collect();
    let mut seed = vec![image];
    seed.extend(number.to_le_bytes());
    if name == "structured" {
        seed.extend([0; 2 * CHANGE_BYTES]);
    } else if let Some(target) = wanted.get(usize::from(number) % wanted.len().max(1)) {
        seed.extend(bytes(&base.device, target.at, target.len));
    }
    seed
}

fn survive(device: MemoryDevice) -> Vec<String> {
    let mut report = Report::default();
    let options = |read_only| MountOptions {
        read_only,
        cache_bytes: MountOptions::CACHE_BYTES_MIN,
        ..MountOptions::default()
    };
    let device = Arc::new(device);
    for read_only in [true, false, true] {
        let shared: SharedDevice = device.clone();
        let Some(volume) = report.note(Volume::open(shared, options(read_only))) else { continue };
        let found = walk(&volume, BOUNDS, &mut report);
        if !read_only {
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
    const CASES: u64 = 60;
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
        images();
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
