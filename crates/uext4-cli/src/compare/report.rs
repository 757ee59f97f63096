//! What differs, as lines or as JSON.

use serde::Serialize;
use uext4::{FileKind, Timestamp};
use uext4_ondisk::InodeFlags;

use super::entry::{Aspect, Entry, Presence, What};
use super::{Comparison, Side};
use crate::failure::{Result, one_line};
use crate::json;
use crate::output::Output;
use crate::spec;
use crate::text;
use crate::verb::chattr;

impl Entry {
    /// The letter of git-status(1).
    fn letter(&self) -> char {
        match self.what {
            What::Added => 'A',
            What::Removed => 'D',
            What::Renamed(_) => 'R',
            What::Changed if self.is_of_another_type() => 'T',
            What::Changed => 'M',
        }
    }

    /// The path that it had.
    fn from(&self, sides: &[Side; 2]) -> Option<Vec<u8>> {
        match &self.what {
            What::Renamed(from) => Some(sides[0].path(from)),
            _ => None,
        }
    }

    fn is_of_another_type(&self) -> bool {
        self.aspects.iter().any(|aspect| matches!(aspect, Aspect::Kind(..)))
    }

    /// The path in its image: in the second one, unless only the first has it.
    fn path(&self, sides: &[Side; 2]) -> Vec<u8> {
        sides[usize::from(self.what != What::Removed)].path(&self.below)
    }
}

/// Prints a line for each entry.
pub(crate) fn print(found: &Comparison, sides: &[Side; 2], output: &mut Output) -> Result<()> {
    for entry in &found.entries {
        output.bytes(&[entry.letter() as u8, b' '])?;
        if let Some(from) = entry.from(sides) {
            print_path(entry, &from, output)?;
            output.bytes(b" -> ")?;
        }
        print_path(entry, &entry.path(sides), output)?;
        let words: Vec<String> =
            entry.aspects.iter().map(|it| words(it, &entry.what, sides)).collect();
        let colon = if words.is_empty() { "" } else { ": " };
        output.line(&format!("{colon}{}", words.join(", ")))?;
    }
    Ok(())
}

fn print_path(entry: &Entry, path: &[u8], output: &mut Output) -> Result<()> {
    output.name(path)?;
    let is_dir = entry.kind == FileKind::Directory && path.last() != Some(&b'/');
    output.bytes(if is_dir { b"/" } else { b"" })
}

/// An aspect in a few words, on one line.
fn words(aspect: &Aspect, what: &What, sides: &[Side; 2]) -> String {
    let name = |side: usize, below: &Option<Vec<u8>>| match below {
        Some(below) => one_line(&spec::show(&sides[side].path(below))),
        None => "none".to_owned(),
    };
    match aspect {
        Aspect::Kind(was, is) => format!("type {} -> {}", json::kind(*was), json::kind(*is)),
        Aspect::Mode(was, is) => format!("mode {was:04o} -> {is:04o}"),
        Aspect::Owner(was, is) => format!("owner {}:{} -> {}:{}", was.0, was.1, is.0, is.1),
        Aspect::Project(was, is) => format!("project {was} -> {is}"),
        Aspect::Flags(was, is) => flags(*was, *is),
        Aspect::Encryption => "encryption".to_owned(),
        Aspect::Size(was, is) => format!("size {was} -> {is}"),
        Aspect::Mtime(..) => "mtime".to_owned(),
        Aspect::Xattr(name, presence) => {
            let sign = match presence {
                Presence::Added => "+",
                Presence::Removed => "-",
                Presence::Changed => "",
            };
            format!("xattr {sign}{}", one_line(&spec::show(name)))
        }
        Aspect::Target(was, is) => {
            let [was, is] = [was, is].map(|target| one_line(&spec::show(target)));
            format!("target {was} -> {is}")
        }
        Aspect::Device(was, is) => format!("device {}:{} -> {}:{}", was.0, was.1, is.0, is.1),
        Aspect::Content(Some(at)) => format!("content at byte {at}"),
        Aspect::Content(None) => "content".to_owned(),
        Aspect::Link(was, is) => match what {
            What::Added => format!("link to {}", name(1, is)),
            What::Removed => format!("link to {}", name(0, was)),
            _ => format!("link to {} -> {}", name(0, was), name(1, is)),
        },
    }
}

/// Flags that were set and cleared, in the manner of chattr(1).
fn flags(was: u32, is: u32) -> String {
    let mut text = "flags".to_owned();
    for (sign, flags) in [('+', is & !was), ('-', was & !is)] {
        if flags != 0 {
            let letters = chattr::letters(InodeFlags::from_bits_retain(flags));
            text.push_str(&format!(" {sign}{letters}"));
        }
    }
    text
}

#[derive(Serialize)]
struct ReportJson {
    a: String,
    b: String,
    same: bool,
    entries: Vec<EntryJson>,
}

#[derive(Serialize)]
struct EntryJson {
    path: String,
    /// The bytes of a path that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_hex: Option<String>,
    change: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Difference>,
}

/// A difference: what it is in, and how it was and is, where there is such a thing.
#[derive(Serialize)]
struct Difference {
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte: Option<u64>,
}

/// Prints everything as JSON.
pub(crate) fn print_json(found: &Comparison, sides: &[Side; 2], output: &mut Output) -> Result<()> {
    let entry = |entry: &Entry| EntryJson {
        path: spec::show(&entry.path(sides)),
        path_hex: hex(&entry.path(sides)),
        from: entry.from(sides).map(|from| spec::show(&from)),
        from_hex: entry.from(sides).and_then(|from| hex(&from)),
        change: match entry.what {
            What::Added => "added",
            What::Removed => "removed",
            What::Changed => "changed",
            What::Renamed(_) => "renamed",
        },
        kind: json::kind(entry.kind),
        differences: entry.aspects.iter().map(|aspect| difference(aspect, sides)).collect(),
    };
    output.json(&ReportJson {
        a: sides[0].at.to_string(),
        b: sides[1].at.to_string(),
        same: found.entries.is_empty(),
        entries: found.entries.iter().map(entry).collect(),
    })
}

/// The bytes of a name that is no UTF-8.
fn hex(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    (!is_text).then(|| name.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn difference(aspect: &Aspect, sides: &[Side; 2]) -> Difference {
    let none = |what| Difference { what, name: None, was: None, is: None, first_byte: None };
    let pair = |what, was: serde_json::Value, is: serde_json::Value| Difference {
        was: Some(was),
        is: Some(is),
        ..none(what)
    };
    let time = |time: &Timestamp| text::time_json(*time).into();
    let numbers = |pair: &(u32, u32)| format!("{}:{}", pair.0, pair.1).into();
    let bytes = |bytes: &[u8]| spec::show(bytes).into();
    let link = |side: usize, below: &Option<Vec<u8>>| match below {
        Some(below) => bytes(&sides[side].path(below)),
        None => serde_json::Value::Null,
    };
    match aspect {
        Aspect::Kind(was, is) => pair("type", json::kind(*was).into(), json::kind(*is).into()),
        Aspect::Mode(was, is) => {
            pair("mode", format!("{was:04o}").into(), format!("{is:04o}").into())
        }
        Aspect::Owner(was, is) => pair("owner", numbers(was), numbers(is)),
        Aspect::Project(was, is) => pair("project", (*was).into(), (*is).into()),
        Aspect::Flags(was, is) => pair("flags", (*was).into(), (*is).into()),
        Aspect::Encryption => none("encryption"),
        Aspect::Size(was, is) => pair("size", (*was).into(), (*is).into()),
        Aspect::Mtime(was, is) => pair("mtime", time(was), time(is)),
        Aspect::Xattr(name, presence) => {
            let was = (*presence != Presence::Added).into();
            let is = (*presence != Presence::Removed).into();
            Difference { name: Some(spec::show(name)), ..pair("xattr", was, is) }
        }
        Aspect::Target(was, is) => pair("target", bytes(was), bytes(is)),
        Aspect::Device(was, is) => pair("device", numbers(was), numbers(is)),
        Aspect::Content(first_byte) => Difference { first_byte: *first_byte, ..none("content") },
        Aspect::Link(was, is) => pair("link", link(0, was), link(1, is)),
    }
}
