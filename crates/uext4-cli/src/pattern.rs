//! Patterns of names, as fnmatch(3) matches them: `*`, `?`, `[...]` and a backslash.
//!
//! Names are bytes. A pattern becomes a regular expression, which matches in linear time whatever
//! names an image has. `?` is a character of UTF-8, or a byte that belongs to none: such a byte
//! counts as a character of the last private ones, in patterns and in names.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};

use crate::failure::Why;

/// A pattern that names are compared with.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
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
        self.regex.is_match(&text(name))
    }
}

/// A name as text, without loss.
fn text(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name) {
        return Cow::Borrowed(text);
    }
    let private = |byte: &u8| char::from_u32(0x10_ff00 + u32::from(*byte)).unwrap_or_default();
    let chunks = name.utf8_chunks();
    Cow::Owned(chunks.fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(private));
        text
    }))
}

/// A character that stands for itself, also within a class.
fn literal(c: char) -> String {
    match c {
        c if c.is_ascii_alphanumeric() || !c.is_ascii() => c.to_string(),
        c => format!("\\x{:02x}", u32::from(c)),
    }
}

/// The regular expression of a whole name.
fn translated(pattern: &[u8]) -> String {
    let units: Vec<char> = text(pattern).chars().collect();
    let mut regex = String::from("^");
    let mut at = 0;
    while let Some(unit) = units.get(at) {
        at += 1;
        match unit {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '\\' => {
                // A backslash at the end stands for itself.
                regex.push_str(&literal(units.get(at).copied().unwrap_or(*unit)));
                at += 1;
            }
            '[' => match class(units.get(at..).unwrap_or_default()) {
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
fn class(units: &[char]) -> Option<(String, usize)> {
    let is_negated = matches!(units.first(), Some('!' | '^'));
    let start = usize::from(is_negated);
    let mut class = String::from(if is_negated { "[^" } else { "[" });
    let mut at = start;
    loop {
        match *units.get(at)? {
            // A bracket that comes first is one of the class.
            ']' if at > start => break,
            '[' if units.get(at + 1) == Some(&':') => {
                let len = units.get(at..)?.iter().position(|unit| *unit == ']')?;
                let named = units.get(at..=at + len)?;
                let is_letter = |c: &char| c.is_ascii_lowercase() || "[:]".contains(*c);
                if !named.iter().all(is_letter) {
                    return None;
                }
                class.extend(named);
                at += len;
            }
            '-' if at > start && is_range(units, at) => class.push('-'),
            '\\' => {
                at += 1;
                class.push_str(&literal(*units.get(at)?));
            }
            unit => class.push_str(&literal(unit)),
        }
        at += 1;
    }
    class.push(']');
    Some((class, at + 1))
}

/// Whether a dash is between two characters of a class.
fn is_range(units: &[char], at: usize) -> bool {
    units.get(at + 1).is_some_and(|unit| *unit != ']')
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
            ("??", "\u{e9}".as_bytes(), false),
            ("??", b"\xc3\xff", true),
            ("[!a]", b"\xff", true),
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
