//! Every verb on damaged images and archives: the short form of `cargo xtask hostile`.
//!
//! Fault model: as in `uext4_sim::hostile`. A panic injected into a verb, a message without the
//! program's name, and a file that `cp -r` makes beside its target were each seen.

use std::path::Path;

use uext4_sim::hostile::{Outcome, Tally, archives, exports, images, overlays};

const UEXT4: &str = env!("CARGO_BIN_EXE_uext4");

/// The calls of some cases, none of which found a fault.
fn tally(cases: impl Iterator<Item = std::io::Result<Outcome>>) -> Tally {
    let mut tally = Tally::default();
    for outcome in cases {
        let outcome = outcome.unwrap();
        assert!(outcome.tally.of("").0 > 0, "{}", outcome.what);
        assert!(outcome.faults.is_empty(), "{}: {:#?}", outcome.what, outcome.faults);
        tally.add(&outcome.tally);
    }
    tally
}

/// Calls that refuse at once try nothing of what is behind the first check.
fn expect_a_third(material: &str, tally: &Tally) {
    let (calls, done) = tally.of(material);
    assert!(3 * done >= calls, "{done} of {calls} calls ended with status 0:\n{tally}");
}

#[test]
fn every_verb_survives_damaged_images() {
    let trial = images::Trial::new(Path::new(UEXT4), "4096").unwrap();
    let tally = tally((500..506).map(|case| trial.case(case)));
    expect_a_third("image", &tally);
}

#[test]
fn overlays_that_were_changed_are_survived() {
    let trial = overlays::Trial::new(Path::new(UEXT4), "-O ^metadata_csum,uninit_bg").unwrap();
    let tally = tally((0..12).map(|case| trial.case(case)));
    expect_a_third("overlay", &tally);
}

#[test]
fn nothing_of_a_hostile_image_leaves_the_target() {
    let trial = exports::Trial::new(Path::new(UEXT4)).unwrap();
    let tally = tally((0..12).map(|case| trial.case(case)));
    expect_a_third("edited image", &tally);
}

#[test]
fn hostile_archives_make_sound_images() {
    let trial = archives::Trial::new(Path::new(UEXT4)).unwrap();
    let tally = tally((0..16).map(|case| trial.case(case)));
    expect_a_third("archive", &tally);
}
