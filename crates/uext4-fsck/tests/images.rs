//! The verdicts on a folder of images, beside those of e2fsck -fn.
//!
//! Fault model: one fault an image, of every sort that e2fsck's own tests have. `UEXT4_IMAGES`
//! names a folder with `*.img.gz` and `MANIFEST.tsv` (name, bytes, exit status of e2fsck 1.47.0);
//! without it the test says so and passes. Not covered: whether both found the same.

use std::path::PathBuf;
use std::process::Command;

use uext4_device::{Device, MemoryDevice};
use uext4_fsck::{CheckError, Options, check};

/// Images on which the verdicts differ, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "f_first_meta_bg_too_big",
        "not clean",
        "e2fsck finds the superblock corrupt, goes on with a backup, asks, and forgets the answer",
    ),
    ("f_quota", "clean", "what the quota files say is not compared with what is used"),
];

fn verdict(image: &MemoryDevice, threads: usize) -> &'static str {
    let options = Options { threads, ..Options::default() };
    match check(image, &options, &mut ()) {
        Ok(report) if report.is_clean() => "clean",
        Ok(_) | Err(CheckError::NoFileSystem) => "not clean",
        Err(CheckError::Refused { .. } | CheckError::JournalElsewhere) => "refused",
        Err(CheckError::Device(error)) => panic!("memory fails: {error}"),
    }
}

#[test]
fn verdicts_are_those_of_e2fsck() {
    let Some(folder) = std::env::var_os("UEXT4_IMAGES").map(PathBuf::from) else {
        println!("skipped: UEXT4_IMAGES names no folder of images");
        return;
    };
    let manifest = std::fs::read_to_string(folder.join("MANIFEST.tsv")).expect("manifest");
    let mut differences = Vec::new();
    let (mut count, mut met) = (0, 0);
    for line in manifest.lines().skip(1) {
        let mut fields = line.split('\t');
        let (Some(name), Some(_), Some(status)) = (fields.next(), fields.next(), fields.next())
        else {
            panic!("manifest line {line:?}");
        };
        let path = folder.join(format!("{name}.img.gz"));
        let output = Command::new("gzip").arg("-dc").arg(path).output().expect("gzip");
        assert!(output.status.success(), "gzip: {output:?}");
        let image = MemoryDevice::new(output.stdout.len() as u64);
        image.write_at(0, &output.stdout).expect("memory");
        let found = verdict(&image, 1);
        assert_eq!(found, verdict(&image, 3), "{name}: threads change the verdict");
        let theirs = if status == "0" { "clean" } else { "not clean" };
        count += 1;
        if found != theirs {
            let reason = EXCEPTIONS.iter().find(|(n, ours, _)| *n == name && *ours == found);
            println!("{name}: {found}, e2fsck says {theirs}: {:?}", reason.map(|r| r.2));
            met += usize::from(reason.is_some());
            if reason.is_none() {
                differences.push(name.to_owned());
            }
        }
    }
    println!("{count} images, {met} exceptions");
    assert!(differences.is_empty(), "{differences:?}");
}
