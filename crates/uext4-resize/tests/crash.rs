//! A loss of power while a file system grows: few states of each growth.
//!
//! Fault model and judges: `uext4_sim::growth`. `cargo xtask crash --growth` has many states, and
//! `mmp`, where each opening waits.

mod common;

use common::grow_to;
use uext4_sim::crash::Depth;
use uext4_sim::growth::{CASES, Effort, judge};
use uext4_sim::mount::why_no_loop;
use uext4_sim::oracle::e2fsck;

/// Growths of which each state is put to the kernel.
const FOR_KERNEL: &[&str] = &["more descriptor blocks", "more than are reserved"];

#[test]
fn a_loss_of_power_leaves_the_old_size_or_a_new_one() {
    if e2fsck().is_none() {
        println!("skipped: e2fsck is not installed");
        return;
    }
    let no_loop = why_no_loop();
    if let Some(why) = &no_loop {
        println!("skipped: the kernel as a judge: {why}");
    }
    for case in CASES.iter().filter(|case| !case.has_mmp()) {
        let growth =
            case.record(&case.image(grow_to).expect("an image"), grow_to).expect("it grows");
        let depth = Depth { exhaustive_max: 2, random: 1 };
        let asks = no_loop.is_none() && FOR_KERNEL.contains(&case.name);
        let kernel_every = if asks { 1 } else { 0 };
        let effort = Effort { depth, e2fsck_every: 20, kernel_every, until: None };
        let judged = judge(&growth, 7, &effort).expect("judged");
        println!("{}: {judged:?}", case.name);
        assert!(judged.faults.is_empty(), "{}: {:#?}", case.name, judged.faults);
        // A recording that shows no size but one tests nothing.
        assert_eq!(judged.sizes, growth.sizes, "{}", case.name);
        // The kernel would mount all if nothing held it back.
        assert!(!asks || judged.mounted > 0 && judged.refused > 0, "{judged:?}");
    }
}

/// The test must find a device that answers flushes without doing them: else it would not find a
/// flush that the growth lacks either.
#[test]
fn flushes_that_do_nothing_are_found() {
    if e2fsck().is_none() {
        println!("skipped: e2fsck is not installed");
        return;
    }
    let case = &CASES[1];
    let image = case.image(grow_to).expect("an image");
    let growth = case.record_without_flushes(&image, grow_to).expect("it grows");
    let depth = Depth { exhaustive_max: 5, random: 4 };
    let effort = Effort { depth, e2fsck_every: 0, kernel_every: 0, until: None };
    let judged = judge(&growth, 7, &effort).expect("judged");
    assert!(!judged.faults.is_empty(), "nothing was found: {judged:?}");
}
