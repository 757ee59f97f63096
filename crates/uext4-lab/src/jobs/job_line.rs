//! A line of a job file, as fio(1) reads it.
//!
//! Invariants: what fio would take for another line, or for another kind of line, than this says
//! is refused.

/// Bytes of the longest line: fio takes what is beyond its buffer for a line of its own.
const BYTES_MAX: usize = 4000;
const INCLUDE: &str = "include";

/// What a line is.
#[derive(Debug, PartialEq)]
pub(super) enum Line<'a> {
    /// Nothing, or a comment.
    Empty,
    /// `[NAME]`: a job, or options of all jobs behind it.
    Section(&'a str),
    /// `include FILE`.
    Include(&'a str),
    /// A name and its value, which may be empty.
    Option(&'a str, &'a str),
}

/// Reads a line; the error says what is wrong with it.
pub(super) fn read(line: &str) -> Result<Line<'_>, &'static str> {
    if line.len() > BYTES_MAX {
        return Err("it is longer than fio reads");
    }
    if line.contains(|c: char| c.is_control() && c != '\t') {
        return Err("it has control characters");
    }
    let line = line.trim();
    if let Some(section) = line.strip_prefix('[') {
        let name = section.strip_suffix(']').ok_or("write a section as [NAME]")?;
        return Ok(Line::Section(name));
    }
    let line = line.split([';', '#']).next().unwrap_or_default().trim();
    if line.is_empty() {
        return Ok(Line::Empty);
    }
    // fio looks at these letters only, and takes the file from behind whatever follows them.
    if let Some(rest) = line.strip_prefix(INCLUDE) {
        let file = rest.strip_prefix([' ', '\t']);
        let file = file.filter(|file| !file.is_empty() && !file.starts_with([' ', '\t']));
        return file.map(Line::Include).ok_or("write include FILE, with one space");
    }
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    Ok(Line::Option(name.trim(), value.trim()))
}

/// Whether a section has options of all jobs behind it, and is no job.
pub(super) fn is_global(section: &str) -> bool {
    section.starts_with("global")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_they_are_for_fio() {
        for (line, wanted) in [
            (" ; a comment", Line::Empty),
            ("\t", Line::Empty),
            (" [a b] ", Line::Section("a b")),
            ("include\tx y.fio # one", Line::Include("x y.fio")),
            (" rw = read ; all of it", Line::Option("rw", "read")),
            ("thread", Line::Option("thread", "")),
        ] {
            assert_eq!(read(line), Ok(wanted), "{line}");
        }
        assert!(is_global("global") && is_global("global two") && !is_global("GLOBAL"));
    }

    /// Fault model: a line that means one thing here and another for fio.
    #[test]
    fn what_fio_reads_in_another_way_is_refused() {
        let long = format!(";{}filename=../x", " ".repeat(BYTES_MAX));
        for line in
            ["include=/x", "include:/x", "include", "include  /x", "[x]y", "[x", "a\rb", &long]
        {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
