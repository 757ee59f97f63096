//! Every verb on damaged images and archives: the short form of `cargo xtask hostile`.
//!
//! Fault model: as in `uext4_sim::hostile`. A panic injected into a verb, a message without the
//! program's name, and a file that `cp -r` makes beside its target were each seen.

use std::path::Path;

use uext4_sim::hostile::{Outcome, images};

const UEXT4: &str = env!("CARGO_BIN_EXE_uext4");

fn expect_no_fault(outcome: &Outcome) {
    assert!(outcome.calls > 0, "{}", outcome.what);
    assert!(outcome.faults.is_empty(), "{}: {:#?}", outcome.what, outcome.faults);
}

#[test]
fn every_verb_survives_damaged_images() {
    let trial = images::Trial::new(Path::new(UEXT4), "4096").unwrap();
    for case in 500..508 {
        expect_no_fault(&trial.case(case).unwrap());
    }
}
