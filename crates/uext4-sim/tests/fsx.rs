//! fsx in the process, 20,000 operations; see the module for the fault model.

use uext4_sim::fsx::{SHAPES, run, run_with_injected_fault};

#[test]
fn every_byte_is_the_last_one_written() {
    for (seed, shape) in (1..).zip(&SHAPES) {
        match run(shape, seed, 4_000) {
            Ok(tally) => println!("{}: {tally}", shape.name),
            Err(fault) => panic!("{}: {fault}", shape.name),
        }
    }
}

/// A write that the model does not know of is found. Another write may cover it before it is read,
/// so that a shape has three seeds.
#[test]
fn an_injected_fault_is_caught() {
    for (seed, shape) in (1..).zip(&SHAPES) {
        let is_caught =
            (0..3).any(|more| run_with_injected_fault(shape, seed + 100 * more, 4_000).is_err());
        assert!(is_caught, "{}", shape.name);
    }
}
