//! A tree of some thousand entries through uext4 and the kernel, both ways, and dirty images of
//! live kernel mounts.
//!
//! What is compared and what is not covered: `uext4_sim::tree` and `uext4_sim::freeze`. `cargo
//! xtask tree` does the same with 250,000 entries and 3 GiB, `cargo xtask freeze` more rounds.

use std::path::Path;
use uext4_sim::freeze::{self, Commits};
use uext4_sim::mount::why_no_fuse;
use uext4_sim::oracle::program;
use uext4_sim::tree::build::Size;
use uext4_sim::tree::{Maker, Trial};

const BINARY: &str = env!("CARGO_BIN_EXE_uext4");

fn why_no_trees() -> Option<String> {
    if let Some(why) = why_no_fuse() {
        return Some(why.into());
    }
    let missing = ["mke2fs", "e2fsck", "tar"].into_iter().find(|name| program(name).is_none())?;
    Some(format!("{missing} is not installed"))
}

#[test]
fn trees_pass_through_both_ways() {
    if let Some(why) = why_no_trees() {
        println!("skipped: {why}");
        return;
    }
    let trial = Trial::new(Path::new(BINARY), &Size::small(), 256 << 20).unwrap();
    let ways = [
        ("mke2fs, forward", trial.forward(Maker::Mke2fs)),
        ("uext4 mkfs, forward", trial.forward(Maker::Uext4)),
        ("mke2fs, backward", trial.backward(Maker::Mke2fs)),
    ];
    for (what, result) in ways {
        match result {
            Ok(said) => println!("{what}: {said}"),
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn a_live_kernel_mounts_image_is_recovered_as_the_kernel_does() {
    if let Some(why) = freeze::why_not() {
        println!("skipped: {why}");
        return;
    }
    let rounds = [
        (901, Commits::Whole, false),
        (902, Commits::Whole, false),
        (903, Commits::Fast, false),
        // With the journal on a device of its own.
        (904, Commits::Whole, true),
        (905, Commits::Fast, true),
    ];
    for (seed, commits, external) in rounds {
        let round = freeze::round(Path::new(BINARY), seed, commits, external, None).unwrap();
        println!("{}: {:?}", round.what, round.recovery);
        assert!(round.faults.is_empty(), "{}:\n{}", round.what, round.faults.join("\n"));
    }
}
