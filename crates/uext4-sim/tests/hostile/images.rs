//! The images of the folder that `UEXT4_IMAGES` names: damaged in one way each, or clean.
//!
//! `MANIFEST.tsv` there has the unpacked size and what `e2fsck -fn` exits with; 0 means that the
//! image must be clean after it was rewritten, too.

use crate::child::{self, Watchdog};
use crate::common::{e2fsck, have};
use crate::exercise::{Bounds, Found, Report, rewrite, walk};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use uext4::{ErrorKind, MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::features::support;
use uext4_ondisk::{RawSuperblock, Support};

const CHILD: &str = "images::one_image";
/// Time for one image in a debug build on a busy machine.
const BOUND: Duration = Duration::from_secs(30);
/// Memory above the image itself, the cache budget included, in MiB.
const MEMORY_MIB: u64 = 64;
const CACHE_BYTES: u64 = 16 << 20;

const BOUNDS: Bounds =
    Bounds { inodes: 20_000, entries_per_directory: 20_000, bytes_per_file: 1 << 20, changes: 400 };

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("UEXT4_IMAGES").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: UEXT4_IMAGES names no folder of images");
    }
    folder
}

#[test]
fn every_image_is_survived() {
    let Some(folder) = folder() else { return };
    if !have("e2fsck") || !have("gzip") {
        return;
    }
    let manifest = std::fs::read_to_string(folder.join("MANIFEST.tsv")).expect("manifest");
    let mut failures = Vec::new();
    let mut count = 0;
    for line in manifest.lines().skip(1) {
        let mut fields = line.split('\t');
        let (Some(name), Some(_), Some(verdict)) = (fields.next(), fields.next(), fields.next())
        else {
            panic!("manifest line {line:?}");
        };
        let path = folder.join(format!("{name}.img.gz"));
        let argument = format!("{verdict} {}", path.display());
        let outcome = child::run(CHILD, &argument, 2 * BOUND);
        let report = outcome.output.lines().find(|line| line.starts_with("IMAGE"));
        println!("{name} ({verdict}): {}", report.unwrap_or("no report"));
        if !outcome.success || report.is_none() {
            failures.push(format!("{name}:\n{}", outcome.output));
        }
        count += 1;
    }
    assert!(count > 0, "no images");
    assert!(failures.is_empty(), "{} of {count} images:\n{}", failures.len(), failures.join("\n"));
}

/// The child's part.
#[test]
fn one_image() {
    let Some(argument) = child::task(CHILD) else { return };
    let (verdict, path) = argument.split_once(' ').expect("verdict and path");
    let image = unpack(Path::new(path));
    child::catch_panics();
    let before = child::reset_peak();
    let dog = Watchdog::start(BOUND);
    let mut reports = [Report::default(), Report::default(), Report::default()];
    let written = image.snapshot();
    let opened = dog.watch(path.to_owned(), || {
        let [reading, writing, again] = &mut reports;
        let opened = read_only(&image, reading);
        let written = Arc::new(written);
        read_write(&written, writing);
        read_only(&written, again);
        (opened, written)
    });
    let peak = child::status_kib("VmHWM:").saturating_sub(before);
    let (error, written) = opened;
    let stored = written.stored_bytes() / 1024;
    println!(
        "\nIMAGE {} ms, {} KiB (+{stored} of the image), ro {} inodes {} errors, rw {} errors{}",
        dog.slowest_ms(),
        peak.saturating_sub(stored),
        reports[0].inodes,
        reports[0].errors,
        reports[1].errors,
        reports[1].first_error.as_ref().map_or(String::new(), |e| format!(", first {e}")),
    );
    let panics = child::take_panics();
    assert!(panics.is_empty(), "panics: {panics:#?}");
    let internal: Vec<_> = reports.iter().flat_map(|r| &r.internal).collect();
    assert!(internal.is_empty(), "faults: {internal:#?}");
    assert!(peak < MEMORY_MIB * 1024 + stored, "peak of {peak} KiB");
    check_refusal(&image, error.as_ref());
    if verdict == "0" {
        let (code, text) = e2fsck(&written, "-fn");
        assert_eq!(code, 0, "e2fsck -fn after rewriting a clean image:\n{text}");
    }
}

fn unpack(path: &Path) -> MemoryDevice {
    let output = Command::new("gzip").arg("-dc").arg(path).output().expect("gzip");
    assert!(output.status.success(), "gzip: {output:?}");
    let device = MemoryDevice::new(output.stdout.len() as u64);
    device.write_at(0, &output.stdout).expect("memory");
    device
}

/// Features that are not understood are refused, each by its name.
fn check_refusal(image: &MemoryDevice, error: Option<&uext4::Error>) {
    let mut bytes = [0; 1024];
    if image.read_at(1024, &mut bytes).is_err() {
        return;
    }
    let Ok(raw) = RawSuperblock::read(&bytes) else { return };
    if raw.verify_checksum().is_err() {
        return;
    }
    let Support::Refused(names) = support(&raw) else { return };
    let error = error.expect("an image with unsupported features is not opened");
    assert_eq!(*error.kind(), ErrorKind::RefusedFeatures, "{error}");
    for name in names {
        assert!(error.to_string().contains(&name), "{error} does not name {name}");
    }
}

fn read_only(image: &MemoryDevice, report: &mut Report) -> Option<uext4::Error> {
    let device: SharedDevice = Arc::new(image.snapshot());
    let options =
        MountOptions { read_only: true, cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    match Volume::open(device, options) {
        Ok(volume) => {
            drop(walk(&volume, BOUNDS, report));
            report.note(volume.close());
            None
        }
        Err(error) => {
            report.note::<()>(Err(error.clone()));
            Some(error)
        }
    }
}

fn read_write(image: &Arc<MemoryDevice>, report: &mut Report) {
    let device: SharedDevice = image.clone();
    let options = MountOptions { cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    let Some(volume) = report.note(Volume::open(device, options)) else { return };
    let found: Vec<Found> = walk(&volume, BOUNDS, report);
    rewrite(&volume, &found, BOUNDS, report);
    drop(found);
    report.note(volume.delete_unlinked());
    report.note(volume.close());
}
