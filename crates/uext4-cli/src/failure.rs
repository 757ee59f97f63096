//! Failures of a verb: one line on standard error and an exit status.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::process::ExitCode;

/// Result of a verb or a step of it.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a step failed, in words; where it happened is added by the caller.
#[derive(Debug)]
pub(crate) struct Why {
    text: String,
    /// Where it happened, when that is not where the caller was.
    place: Option<String>,
    sort: Sort,
}

/// What a reason means to a caller that goes on after some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// A name is not there.
    NotFound,
    /// A name would stand below a file.
    NotDirectory,
    /// Nothing more can be written.
    Final,
    Other,
}

impl Why {
    /// A reason in our own words.
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { text: why.into(), place: None, sort: Sort::Other }
    }

    /// Whether the reason is a name that is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.sort == Sort::NotFound
    }

    /// A part of a path is no directory.
    pub(crate) fn not_directory() -> Self {
        Self { sort: Sort::NotDirectory, ..Self::new("Not a directory") }
    }

    /// Whether there is no file of the name, for whatever reason.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.sort, Sort::NotFound | Sort::NotDirectory)
    }

    /// Whether whatever is written next will fail as well: the volume is full, or has failed.
    pub(crate) fn is_final(&self) -> bool {
        self.sort == Sort::Final
    }

    /// The same, but what is written next may succeed.
    pub(crate) fn of_this_file(self) -> Self {
        Self { sort: Sort::Other, ..self }
    }

    /// The same, with a place of its own for the message, unless it has one already.
    pub(crate) fn of(mut self, place: impl fmt::Display) -> Self {
        self.place.get_or_insert_with(|| place.to_string());
        self
    }

    /// The same, with what it is about before it.
    pub(crate) fn about(mut self, what: impl fmt::Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// The failure of `verb` at `place` for this reason.
    pub(crate) fn at(self, verb: &str, place: impl fmt::Display) -> Failure {
        let place = self.place.unwrap_or_else(|| place.to_string());
        Failure::line(&format!("{verb}: {place}: {}", self.text))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        let mut text = error.to_string();
        if let Some(end) = text.rfind(" (os error ") {
            text.truncate(end);
        }
        Self::new(text)
    }
}

impl From<rustix::io::Errno> for Why {
    fn from(error: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        let sort = match error {
            Errno::NOSPC | Errno::DQUOT => Sort::Final,
            _ => Sort::Other,
        };
        Self { sort, ..io::Error::from(error).into() }
    }
}

impl From<uext4_archive::Error> for Why {
    fn from(error: uext4_archive::Error) -> Self {
        match error {
            uext4_archive::Error::Io(error) => error.into(),
            error => Self::new(error.to_string()),
        }
    }
}

impl From<uext4::Error> for Why {
    fn from(error: uext4::Error) -> Self {
        use uext4::ErrorKind;
        let sort = match error.kind() {
            ErrorKind::NotFound => Sort::NotFound,
            ErrorKind::NoSpace
            | ErrorKind::ReadOnly
            | ErrorKind::Io
            | ErrorKind::Aborted
            | ErrorKind::Internal => Sort::Final,
            _ => Sort::Other,
        };
        Self { sort, ..Self::new(error.to_string()) }
    }
}

/// What ends a verb.
#[derive(Debug)]
pub(crate) enum Failure {
    /// One line that says what failed, where and why.
    Line(String),
    /// Lines were printed as things went wrong; only the status is left to tell.
    Reported,
    /// The reader of our output has gone, as `head` does: nothing to say.
    OutputClosed,
    /// Another process of this command has told why, and ended with this status.
    Status(u8),
    /// This signal: the parent of this process learns that it has ended it.
    Signal(u8),
}

impl Failure {
    /// A failure with a message of its own.
    pub(crate) fn line(text: &str) -> Self {
        Self::Line(one_line(text))
    }

    /// Prints what there is to say and gives the exit status.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Line(line) => {
                say(&line);
                ExitCode::from(1)
            }
            Self::Reported | Self::OutputClosed => ExitCode::from(1),
            Self::Status(status) => ExitCode::from(status),
            Self::Signal(signal) => {
                let _ = signal_hook::low_level::emulate_default_handler(signal.into());
                // It is one that ends no process.
                ExitCode::from(128 + signal)
            }
        }
    }
}

/// A verb whose status 1 is no failure: what it could not do has another one.
pub(crate) fn with_status(failed: u8) -> impl Fn(Failure) -> Failure {
    move |failure| match failure {
        Failure::Status(_) | Failure::Signal(_) => failure,
        Failure::Line(line) => {
            say(&line);
            Failure::Status(failed)
        }
        Failure::Reported | Failure::OutputClosed => Failure::Status(failed),
    }
}

/// Adds the verb and the place to a reason.
pub(crate) trait At<T> {
    /// The value, or the failure of `verb` at `place`.
    fn at(self, verb: &str, place: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Why>> At<T> for std::result::Result<T, E> {
    fn at(self, verb: &str, place: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().at(verb, place))
    }
}

/// Prints one line to standard error in the form of every message of this command.
pub(crate) fn say(line: &str) {
    use io::Write;
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "uext4: {}", shown(line));
}

/// Bytes of the longest message that is shown whole: two paths as long as Linux takes them fit.
const SHOWN_MAX: usize = 9 << 10;
/// Bytes of the start and of the end of a longer one that are shown.
const SHOWN_PART: usize = 1 << 10;

/// A message without its middle, if that is longer than anybody reads: a hostile archive or image
/// has paths of tens of thousands of bytes.
fn shown(line: &str) -> Cow<'_, str> {
    if line.len() <= SHOWN_MAX {
        return Cow::Borrowed(line);
    }
    let start = line.floor_char_boundary(SHOWN_PART);
    let end = line.ceil_char_boundary(line.len() - SHOWN_PART);
    let left_out = end - start;
    Cow::Owned(format!("{}[{left_out} bytes left out]{}", &line[..start], &line[end..]))
}

/// Control characters, which a hostile image may put into names, become `?`.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Collects the outcome of a verb that goes on after a failure.
#[derive(Default)]
pub(crate) struct Outcome {
    failed: bool,
}

impl Outcome {
    /// Prints a failure and notes it.
    pub(crate) fn note(&mut self, failure: Failure) {
        if let Failure::Line(line) = &failure {
            say(line);
        }
        self.failed = true;
    }

    /// The result of the whole verb.
    pub(crate) fn finish(self) -> Result<()> {
        if self.failed { Err(Failure::Reported) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let why = Why::from(io::Error::from_raw_os_error(2));
        match why.at("ls", "a\nb") {
            Failure::Line(line) => assert_eq!(line, "ls: a?b: No such file or directory"),
            other => panic!("{other:?}"),
        }
    }
    #[test]
    fn a_message_that_nobody_reads_loses_its_middle() {
        let path = "d/".repeat(4 << 10);
        assert_eq!(shown(&path), path);
        // A cut between the bytes of a character would panic.
        for before in ["", "x"] {
            let line = format!("find: {before}{}: not entered", "\u{e4}/".repeat(20_000));
            let shown = shown(&line);
            assert!(shown.len() < 3 << 10, "{} bytes", shown.len());
            assert!(shown.starts_with("find: ") && shown.ends_with(": not entered"), "{shown}");
            assert!(shown.contains(" bytes left out]"), "{shown}");
        }
    }
}
