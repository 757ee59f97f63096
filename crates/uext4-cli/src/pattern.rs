//! Patterns of names, as fnmatch(3) matches them: `*`, `?`, `[...]` and a backslash.
//!
//! Names are bytes. A pattern becomes a regular expression, which matches in linear time whatever
//! names an image has. `?` is a character of UTF-8, or a byte that belongs to none.

use regex::bytes::{Regex, RegexBuilder};

use crate::failure::Why;

/// A pattern that names are compared with.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
}

/// One character of a pattern, or a byte that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Char(char),
    Byte(u8),
}

impl Pattern {
    /// Takes a pattern; `*` matches slashes, too.
    pub(crate) fn new(pattern: &[u8], ignores_case: bool) -> Result<Self, Why> {
        let regex = RegexBuilder::new(&translated(pattern))
            .case_insensitive(ignores_case)
            .dot_matches_new_line(true)
            .build();
        let is_no_pattern = |_| {
            let shown = crate::spec::show(pattern);
            Why::new(format!("'{shown}' is no pattern, or too long a one"))
        };
        Ok(Self { regex: regex.map_err(is_no_pattern)? })
    }

    /// Whether all of `name` is what the pattern says.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        self.regex.is_match(name)
    }
}

fn units(bytes: &[u8]) -> Vec<Unit> {
    let chunks = bytes.utf8_chunks();
    let of_chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let valid: Vec<Unit> = chunk.valid().chars().map(Unit::Char).collect();
        let invalid: Vec<Unit> = chunk.invalid().iter().copied().map(Unit::Byte).collect();
        valid.into_iter().chain(invalid)
    };
    chunks.flat_map(of_chunk).collect()
}

/// A unit that stands for itself, also within a class.
fn literal(unit: Unit) -> String {
    match unit {
        Unit::Byte(byte) => format!("(?-u:\\x{byte:02x})"),
        Unit::Char(c) if c.is_ascii_alphanumeric() || !c.is_ascii() => c.to_string(),
        Unit::Char(c) => format!("\\x{:02x}", u32::from(c)),
    }
}

/// The regular expression of a whole name.
fn translated(pattern: &[u8]) -> String {
    let units = units(pattern);
    let mut regex = String::from("^");
    let mut at = 0;
    while let Some(unit) = units.get(at) {
        at += 1;
        match unit {
            Unit::Char('*') => regex.push_str("(?s-u:.)*"),
            Unit::Char('?') => regex.push_str("(?:.|(?-u:[\\x80-\\xff]))"),
            Unit::Char('\\') => {
                // A backslash at the end stands for itself.
                regex.push_str(&literal(units.get(at).copied().unwrap_or(*unit)));
                at += 1;
            }
            Unit::Char('[') => match class(units.get(at..).unwrap_or_default()) {
                Some((class, len)) => {
                    regex.push_str(&class);
                    at += len;
                }
                None => regex.push_str("\\["),
            },
            unit => regex.push_str(&literal(*unit)),
        }
    }
    regex.push('$');
    regex
}

/// A class behind its bracket, and its length; `None` where it has no end.
fn class(units: &[Unit]) -> Option<(String, usize)> {
    let is_negated = matches!(units.first(), Some(Unit::Char('!' | '^')));
    let start = usize::from(is_negated);
    let mut class = String::from(if is_negated { "[^" } else { "[" });
    let mut at = start;
    loop {
        match *units.get(at)? {
            // A bracket that comes first is one of the class.
            Unit::Char(']') if at > start => break,
            Unit::Char('[') if units.get(at + 1) == Some(&Unit::Char(':')) => {
                let len = units.get(at..)?.iter().position(|unit| *unit == Unit::Char(']'))?;
                let named = units.get(at..=at + len)?;
                let letter = |unit: &Unit| match unit {
                    Unit::Char(c) if c.is_ascii_lowercase() || "[:]".contains(*c) => Some(*c),
                    _ => None,
                };
                class.push_str(&named.iter().map(letter).collect::<Option<String>>()?);
                at += len;
            }
            Unit::Char('-') if at > start && is_range(units, at) => class.push('-'),
            Unit::Char('\\') => {
                at += 1;
                class.push_str(&literal(*units.get(at)?));
            }
            Unit::Byte(_) => return None,
            unit => class.push_str(&literal(unit)),
        }
        at += 1;
    }
    class.push(']');
    Some((class, at + 1))
}

/// Whether a dash is between two characters of a class.
fn is_range(units: &[Unit], at: usize) -> bool {
    units.get(at + 1).is_some_and(|unit| *unit != Unit::Char(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &[u8]) -> bool {
        Pattern::new(pattern.as_bytes(), false).unwrap().matches(name)
    }

    #[test]
    fn as_fnmatch() {
        for (pattern, name, want) in [
            ("*.conf", &b"a.conf"[..], true),
            ("*.conf", b"a.confx", false),
            ("*", b"a/b\n\xff", true),
            ("?", "\u{e9}".as_bytes(), true),
            ("?", b"\xff", true),
            ("?", b"\n", true),
            ("??", b"a", false),
            ("[a-c]x", b"bx", true),
            ("[!a-c]x", b"bx", false),
            ("[^a-c]x", b"dx", true),
            ("[]-]", b"]", true),
            ("[]-]", b"-", true),
            ("[]-]", b"a", false),
            ("[[:digit:]]", b"7", true),
            ("[[:digit:]]", b"d", false),
            ("[[:nothing:]]", b"d", false),
            ("[\\]]", b"]", true),
            ("[&&~]", b"&", true),
            ("[a", b"[a", true),
            ("\\*", b"*", true),
            ("\\*", b"a", false),
            ("{a,b}", b"{a,b}", true),
            ("a.b+(c)$", b"a.b+(c)$", true),
            ("a.b", b"axb", false),
            ("a", b"a\n", false),
            ("\\", b"\\", true),
        ] {
            let is_valid = Pattern::new(pattern.as_bytes(), false);
            let found = is_valid.is_ok_and(|pattern| pattern.matches(name));
            assert_eq!(found, want, "{pattern} {name:?}");
        }
    }

    #[test]
    fn bytes_and_cases() {
        assert!(Pattern::new(b"\xff*", false).unwrap().matches(b"\xffa"));
        assert!(
            Pattern::new("\u{c9}.TXT".as_bytes(), true).unwrap().matches("\u{e9}.txt".as_bytes())
        );
        assert!(!matches("A", b"a"));
    }
}
