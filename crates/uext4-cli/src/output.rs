//! Standard output that never panics: a closed pipe ends the verb quietly.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use crate::failure::{Failure, Why, one_line};

/// Buffered standard output.
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Output {
    /// Takes standard output.
    pub(crate) fn new() -> Self {
        let out = io::stdout().lock();
        let terminal = out.is_terminal();
        Self { out: BufWriter::with_capacity(1 << 16, out), terminal }
    }

    /// Whether it is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(failed)
    }

    /// Writes text and ends the line.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a name of an image: as it is into a pipe or file; on a terminal control characters,
    /// which could take it over, become `?`, as ls(1) does.
    pub(crate) fn name(&mut self, name: &[u8]) -> Result<(), Failure> {
        if !self.terminal {
            return self.bytes(name);
        }
        let shown: String = String::from_utf8_lossy(name)
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        self.bytes(shown.as_bytes())
    }

    /// Writes a value as JSON and ends the line.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut self.out, value)
            .map_err(|error| failed(io::Error::from(error)))?;
        self.bytes(b"\n")
    }

    /// Writes a value as JSON on one line.
    pub(crate) fn json_line(&mut self, value: &impl serde::Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, value)
            .map_err(|error| failed(io::Error::from(error)))?;
        self.bytes(b"\n")
    }

    /// Begins or goes on with an array of JSON that is written as its items come.
    pub(crate) fn json_item(
        &mut self,
        is_first: bool,
        item: &impl serde::Serialize,
    ) -> Result<(), Failure> {
        self.bytes(if is_first { b"[\n  " } else { b",\n  " })?;
        serde_json::to_writer(&mut self.out, item).map_err(|error| failed(io::Error::from(error)))
    }

    /// Ends such an array.
    pub(crate) fn json_end(&mut self, is_empty: bool) -> Result<(), Failure> {
        self.bytes(if is_empty { b"[]\n" } else { b"\n]\n" })
    }

    /// Writes out what is buffered.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(failed)
    }
}

/// What `-v` says of each file.
#[derive(Clone, Copy)]
pub(crate) struct Told(bool);

impl Told {
    /// Says nothing unless `verbose`.
    pub(crate) fn new(verbose: bool) -> Self {
        Self(verbose)
    }

    /// Says a line. A closed pipe must not stop what is being done.
    pub(crate) fn say(self, line: &str) {
        if self.0 {
            let _ = writeln!(io::stdout(), "{}", one_line(line));
        }
    }
}

pub(crate) fn failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Why::from(error).at("output", "standard output"),
    }
}
