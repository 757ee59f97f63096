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

/// A write that the model does not know of is found.
#[test]
fn an_injected_fault_is_caught() {
    for (seed, shape) in (1..).zip(&SHAPES) {
        assert!(run_with_injected_fault(shape, seed, 4_000).is_err(), "{}", shape.name);
    }
}
