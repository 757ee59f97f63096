//! The fuzz targets of `crates/uext4-sim/tests/hostile/fuzz.rs`, for libFuzzer.
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
#[allow(dead_code)]
#[path = "../../crates/uext4-sim/tests/hostile/population.rs"]
mod population;

use std::sync::Once;

/// Runs target `name` on `data`.
pub fn run(name: &str, data: &[u8]) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            report(info);
            std::process::abort();
        }));
    });
    fuzz::run(name, data);
}

/// An input that leaves structure `number` of base image `image` as it is.
#[must_use]
pub fn seed_of(name: &str, image: u8, number: u16) -> Vec<u8> {
    fuzz::seed_of(name, image, number)
}

/// Names of the targets.
pub fn targets() -> impl Iterator<Item = &'static str> {
    fuzz::TARGETS.iter().map(|(name, _)| *name)
}
