//! How much a verb says besides its results and its failures: `-q` nothing, `-v` what it does.
//!
//! What: both options are of every verb. A verb that needs one of the letters for something else
//! has an argument `quiet` or `verbose` of its own, which takes the place of the option of all;
//! that is why `ls -v` or `mkfs -q` can mean what they mean elsewhere.

use std::fmt::Display;
use std::sync::OnceLock;

use crate::failure::say;

/// From little to much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Failures only: no remark, no progress.
    Quiet,
    /// Remarks on what may not be as meant, and progress on a terminal.
    #[default]
    Normal,
    /// What is done, too.
    Verbose,
}

static GIVEN: OnceLock<Verbosity> = OnceLock::new();

/// Takes what the command line says, once.
pub(crate) fn give(quiet: bool, verbose: bool) {
    let given = match (quiet, verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    };
    // Nobody has given another before.
    let _ = GIVEN.set(given);
}

/// What the command line says.
pub(crate) fn given() -> Verbosity {
    GIVEN.get().copied().unwrap_or_default()
}

/// The words of it, for a process that goes on with this one's work.
pub(crate) fn words() -> Option<&'static str> {
    match given() {
        Verbosity::Quiet => Some("--quiet"),
        Verbosity::Normal => None,
        Verbosity::Verbose => Some("--verbose"),
    }
}

/// Prints what somebody may want to know although nothing has failed; not with `-q`.
pub(crate) fn remark(line: &str) {
    if given() >= Verbosity::Normal {
        say(line);
    }
}

/// With `-v`, prints what `verb` did at `place`.
pub(crate) fn done(verb: &str, place: impl Display, what: &str) {
    if given() == Verbosity::Verbose {
        say(&format!("{verb}: {place}: {what}"));
    }
}
