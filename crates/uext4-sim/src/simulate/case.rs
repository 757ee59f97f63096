//! What a run is asked for, and printed as when it fails.

use super::part::Parts;
use std::fmt;
use uext4::injected_faults::Fault;

/// A seed, and what of its run is left out: what a failing run is shrunk by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// Everything is drawn from it.
    pub seed: u64,
    /// Operations of each caller in each life, at most.
    pub operations: Option<usize>,
    /// Callers, at most.
    pub threads: Option<u32>,
    /// Lives, at most.
    pub lives: Option<usize>,
    /// Preemptions, at most.
    pub preemptions: Option<u64>,
    /// Parts that are in whatever the seed draws.
    pub with: Parts,
    /// Parts that are left out.
    pub without: Parts,
    /// A mistake of the engine that is switched on.
    pub fault: Option<Fault>,
    /// e2fsck judges each recovered image, and not some.
    pub e2fsck: bool,
    /// What each caller does is printed.
    pub verbose: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        let mut number = |word: &str, value: Option<u64>| match value {
            Some(value) => write!(f, " --{word} {value}"),
            None => Ok(()),
        };
        number("operations", self.operations.map(|n| n as u64))?;
        number("threads", self.threads.map(u64::from))?;
        number("lives", self.lives.map(|n| n as u64))?;
        number("preemptions", self.preemptions)?;
        for (word, parts) in [("with", self.with), ("without", self.without)] {
            if parts != Parts::default() {
                write!(f, " --{word} {parts}")?;
            }
        }
        if let Some(fault) = self.fault {
            write!(f, " --inject {fault:?}")?;
        }
        if self.e2fsck { f.write_str(" --e2fsck") } else { Ok(()) }
    }
}
