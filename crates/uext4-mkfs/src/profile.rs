//! Defaults by type of file system and of use: mke2fs.conf(5).
//!
//! The table that is compiled in is the same on every host; a file is read only when it is named.
//! A file is text that anybody may have written: its size bounds the work, and a line that is not
//! understood is told with its number.

use crate::error::{MkfsError, Result};

const BUILTIN: &str = include_str!("mke2fs.conf");

const STANZAS: [&str; 4] = ["options", "defaults", "fs_types", "devices"];

/// Where a relation stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// `[defaults]`.
    Defaults,
    /// A subsection of `[fs_types]`, by its name.
    Type(String),
    /// A stanza that has no effect here.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Relation {
    place: Place,
    tag: String,
    value: String,
}

/// Relations of mke2fs.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    relations: Vec<Relation>,
    /// Names of the subsections of `[fs_types]`, those without a relation as well.
    types: Vec<String>,
}

impl Default for Profile {
    fn default() -> Self {
        // A test reads it: it is well formed.
        Self::parse(BUILTIN).unwrap_or(Self { relations: Vec::new(), types: Vec::new() })
    }
}

impl Profile {
    /// Reads a file of the form of mke2fs.conf(5).
    ///
    /// # Errors
    /// [`MkfsError::Option`] with the number of the line that is not understood.
    pub fn parse(text: &str) -> Result<Self> {
        let mut profile = Self { relations: Vec::new(), types: Vec::new() };
        let mut stanza = None;
        let mut subsection: Option<String> = None;
        for (line, number) in text.lines().zip(1..) {
            let wrong = |why: &str| Err(MkfsError::option(format!("line {number}: {why}")));
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let Some(known) = STANZAS.iter().find(|known| **known == name.trim()) else {
                    return wrong("no stanza of mke2fs.conf");
                };
                (stanza, subsection) = (Some(*known), None);
                continue;
            }
            if line == "}" && subsection.take().is_some() {
                continue;
            }
            let Some((tag, value)) = line.split_once('=') else {
                return wrong("want TAG = VALUE");
            };
            let (tag, value) = (tag.trim().to_owned(), value.trim());
            if value == "{" {
                if subsection.is_some() {
                    return wrong("a subsection in a subsection");
                }
                if stanza == Some("fs_types") {
                    profile.types.push(tag.clone());
                }
                subsection = Some(tag);
                continue;
            }
            let Some(value) = unquoted(value) else { return wrong("a quotation mark is missing") };
            let place = match (stanza, &subsection) {
                (None, _) => return wrong("no stanza yet"),
                (Some("defaults"), None) => Place::Defaults,
                (Some("fs_types"), Some(name)) => Place::Type(name.clone()),
                _ => Place::Other,
            };
            profile.relations.push(Relation { place, tag, value });
        }
        match subsection {
            Some(name) => Err(MkfsError::option(format!("the subsection {name} does not end"))),
            None => Ok(profile),
        }
    }

    /// Whether there is a type of this name.
    #[must_use]
    pub fn has_type(&self, name: &str) -> bool {
        self.types.iter().any(|known| known == name)
    }

    fn of_type(&self, name: &str, tag: &str) -> Option<&str> {
        let is_here = |place: &Place| matches!(place, Place::Type(found) if found == name);
        let mut found = self.relations.iter().filter(|it| is_here(&it.place) && it.tag == tag);
        found.next().map(|it| it.value.as_str())
    }

    /// A value of `[defaults]`.
    #[must_use]
    pub fn default_value(&self, tag: &str) -> Option<&str> {
        let is_here = |it: &&Relation| it.place == Place::Defaults && it.tag == tag;
        self.relations.iter().find(is_here).map(|it| it.value.as_str())
    }

    /// The value for a list of types, of which a later one overrides an earlier one.
    pub(crate) fn value(&self, types: &[String], tag: &str) -> Option<&str> {
        let of_type = types.iter().rev().find_map(|name| self.of_type(name, tag));
        of_type.or_else(|| self.default_value(tag))
    }

    /// The values of all types of a list that have one, in order.
    pub(crate) fn values<'a>(
        &'a self,
        types: &'a [String],
        tag: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        types.iter().filter_map(move |name| self.of_type(name, tag))
    }

    /// The value as a number.
    pub(crate) fn number<T: std::str::FromStr>(
        &self,
        types: &[String],
        tag: &str,
    ) -> Result<Option<T>> {
        let read = |value: &str| {
            let wrong = || MkfsError::option(format!("{tag} = {value}: not a number in range"));
            value.parse().map_err(|_| wrong())
        };
        self.value(types, tag).map(read).transpose()
    }

    /// The value as a truth value.
    pub(crate) fn switch(&self, types: &[String], tag: &str) -> Result<Option<bool>> {
        let read = |value: &str| match value.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" | "t" | "1" | "on" => Ok(true),
            "n" | "no" | "false" | "nil" | "0" | "off" => Ok(false),
            _ => Err(MkfsError::option(format!("{tag} = {value}: want yes or no"))),
        };
        self.value(types, tag).map(read).transpose()
    }
}

/// A value without its quotation marks; `None` if one is missing.
fn unquoted(value: &str) -> Option<String> {
    let Some(inner) = value.strip_prefix('"') else { return Some(value.to_owned()) };
    let inner = inner.strip_suffix('"')?;
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        text.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'b' => '\u{8}',
                other => other,
            },
            other => other,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_table_that_is_compiled_in_is_well_formed() {
        let profile = Profile::parse(BUILTIN).unwrap();
        assert_eq!(Profile::default(), profile);
        for name in ["ext3", "ext4", "floppy", "small", "big", "huge", "news", "largefile4"] {
            assert!(profile.has_type(name), "{name}");
        }
        assert!(!profile.has_type("hurd"));
        assert_eq!(profile.value(&types(&["ext4", "floppy"]), "inode_ratio"), Some("8192"));
        assert_eq!(profile.value(&types(&["floppy", "news"]), "inode_ratio"), Some("4096"));
        assert_eq!(profile.value(&types(&["ext4"]), "inode_ratio"), Some("16384"));
        assert_eq!(profile.value(&types(&["ext4"]), "hash_alg"), None);
    }

    #[test]
    fn values_are_read_as_what_they_are() {
        let text = "; a comment\n[defaults]\n a = \"x, \\\"y\\\" \\\\\"\n[fs_types]\nt = {\n \
                    b=On\n n = -7\n}\nempty = {\n}\n[options]\nproceed_delay = 5\n";
        let profile = Profile::parse(text).unwrap();
        let of = types(&["t"]);
        assert_eq!(profile.value(&of, "a"), Some("x, \"y\" \\"));
        assert_eq!(profile.switch(&of, "b").unwrap(), Some(true));
        assert_eq!(profile.number(&of, "n").unwrap(), Some(-7_i64));
        assert!(profile.number::<u32>(&of, "n").is_err() && profile.switch(&of, "n").is_err());
        assert!(profile.has_type("empty") && !profile.has_type("a"));
        assert_eq!(profile.value(&of, "proceed_delay"), None);
    }

    #[test]
    fn what_is_not_understood_is_told_with_its_line() {
        for (text, want) in [
            ("a = b\n", "line 1: no stanza yet"),
            ("[nonsense]\n", "line 1: no stanza"),
            ("[defaults]\nword\n", "line 2: want TAG = VALUE"),
            ("[defaults]\na = \"b\n", "line 2: a quotation mark"),
            ("[fs_types]\na = {\nb = {\n", "line 3: a subsection in"),
            ("[fs_types]\na = {\n", "the subsection a does not end"),
            ("[fs_types]\n}\n", "line 2: want TAG = VALUE"),
        ] {
            let error = Profile::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(want), "{text}: {error}");
        }
    }
}
