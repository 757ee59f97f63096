//! The fuzz targets of `crates/uext4-sim/tests/hostile/fuzz.rs`, and what NBD servers answer, for
//! libFuzzer.
//!
//! `cargo xtask fuzz TARGET --seconds N` builds and runs one. A panic of any thread ends the
//! process, so that the fuzzer sees it.

#![forbid(unsafe_code)]

#[path = "../../crates/uext4/tests/common/mod.rs"]
mod common;
#[allow(dead_code)]
#[path = "../../crates/uext4-sim/tests/hostile/exercise.rs"]
mod exercise;
#[path = "../../crates/uext4-sim/tests/hostile/fuzz.rs"]
mod fuzz;
#[path = "../../crates/uext4-nbd/tests/played/mod.rs"]
mod played;
#[allow(dead_code)]
#[path = "../../crates/uext4-sim/tests/hostile/population.rs"]
mod population;

use std::path::Path;
use std::sync::{LazyLock, Once};

/// Structures of each image of which a seed is made.
const STRUCTURES: u16 = 6;

/// Runs target `name` on `data`. The first input of a process writes the seeds of the target into
/// the folder that `UEXT4_FUZZ_SEEDS` names.
///
/// # Panics
/// A fault was found, or the seeds cannot be written.
pub fn run(name: &str, data: &[u8]) {
    first(|folder| write_seeds(name, folder));
    fuzz::run(name, data);
}

/// The same of what an NBD server says: answers, each behind its length of two bytes.
///
/// # Panics
/// As [`run`].
pub fn run_nbd(mut data: &[u8]) {
    static FOLDER: LazyLock<tempfile::TempDir> =
        LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    first(|folder| {
        for structured in [false, true] {
            let seed = played::valid(structured).into_iter().flat_map(|answer| {
                let len = u16::try_from(answer.len()).expect("a short answer");
                [&len.to_be_bytes()[..], &answer].concat()
            });
            std::fs::write(folder.join(format!("seed-{structured}")), seed.collect::<Vec<u8>>())?;
        }
        Ok(())
    });
    let mut script = Vec::new();
    while let Some((len, rest)) = data.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (answer, rest) = rest.split_at(len);
        script.push(answer.to_vec());
        data = rest;
    }
    played::play(FOLDER.path(), &script);
}

/// What the first input of a process does besides.
fn first(write_seeds: impl FnOnce(&Path) -> std::io::Result<()>) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            report(info);
            std::process::abort();
        }));
        if let Some(folder) = std::env::var_os("UEXT4_FUZZ_SEEDS") {
            write_seeds(Path::new(&folder)).expect("seeds");
        }
    });
}

/// Structures of valid images, as they are, half of them in images that are opened for reading.
fn write_seeds(name: &str, folder: &Path) -> std::io::Result<()> {
    for image in 0..fuzz::images(name).len() as u8 {
        for number in 0..STRUCTURES {
            let first = 2 * image + u8::from(number % 2 == 1);
            let seed = fuzz::seed_of(name, first, number);
            std::fs::write(folder.join(format!("seed-{image}-{number}")), seed)?;
        }
    }
    Ok(())
}
