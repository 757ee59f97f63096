//! The rules that look at one file.

use super::Finding;
use super::layers;
use super::mask::names;
use super::source::Source;

/// What a rule finds in a file: line (from 1; 0 for the whole file) and message.
pub(crate) type Found = Vec<(usize, String)>;

/// A rule over one file.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&Source) -> Found,
    /// Bad examples (path, text) and the one line at which the rule must object.
    pub(crate) bad_examples: fn() -> Vec<(&'static str, String, usize)>,
}

/// All rules over one file.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "layers",
        check: layers::check,
        bad_examples: || {
            vec![
                ("crates/uext4/src/journal/a.rs", "\nuse crate::vfs::X;\n".into(), 2),
                ("crates/uext4/src/dir.rs", "use crate::xattr::X;\n".into(), 1),
                ("crates/uext4/src/unheard_of.rs", "\n".into(), 1),
            ]
        },
    },
    Rule {
        name: "unsafe",
        check: unsafe_stands_apart,
        bad_examples: || {
            vec![("crates/uext4/src/cache/a.rs", "fn f() {\n    unsafe {}\n}\n".into(), 2)]
        },
    },
    Rule {
        name: "forbid-unsafe",
        check: roots_forbid_unsafe,
        bad_examples: || {
            vec![
                ("crates/uext4/src/lib.rs", "//! Root.\nmod a;\n".into(), 1),
                // A comment forbids nothing.
                ("xtask/src/main.rs", "// #![forbid(unsafe_code)]\nmod a;\n".into(), 1),
            ]
        },
    },
    Rule {
        name: "file-size",
        check: files_stay_readable,
        bad_examples: || vec![("crates/uext4/src/cache/a.rs", "\n".repeat(LINES_MAX + 1), 0)],
    },
    Rule {
        name: "test-layout",
        check: tests_lie_below_their_module,
        bad_examples: || {
            vec![
                ("crates/uext4/src/dir/a_tests.rs", "\n".into(), 0),
                ("crates/uext4/src/dir/a.rs", "\n#[path = \"b.rs\"]\nmod c;\n".into(), 2),
            ]
        },
    },
    Rule {
        name: "columns",
        check: lines_fit,
        bad_examples: || vec![("crates/uext4/src/a.rs", format!("\n// {}\n", "x".repeat(98)), 2)],
    },
    Rule {
        name: "ascii",
        check: text_is_ascii,
        bad_examples: || vec![("README.md", "\n\n\u{2013}\n".into(), 3)],
    },
    Rule {
        name: "banned",
        check: banned_names,
        bad_examples: || {
            let engine = "crates/uext4/src/cache/a.rs";
            vec![
                (engine, "use std::sync::Mutex;\n".into(), 1),
                (engine, "use std::sync::{Arc, RwLock};\n".into(), 1),
                (engine, "static A: std::sync::Condvar = B;\n".into(), 1),
                (engine, "use parking_lot::Mutex;\n".into(), 1),
                (engine, "\nfn f() { todo!() }\n".into(), 2),
                ("crates/uext4-sim/src/a.rs", "fn f() { unimplemented!() }\n".into(), 1),
                ("crates/uext4-cli/tests/a.rs", "fn f() { dbg!(1); }\n".into(), 1),
                (engine, "fn f() { u32::from_le_bytes(b); }\n".into(), 1),
                ("crates/uext4-mkfs/src/a.rs", "fn f() { 1_u16.to_be_bytes(); }\n".into(), 1),
                ("crates/uext4-device/src/a.rs", "fn f() { println!(); }\n".into(), 1),
            ]
        },
    },
    Rule {
        name: "field-words",
        check: speaks_the_fields_words,
        bad_examples: || {
            let engine = "crates/uext4/src/file/a.rs";
            let word = |(word, _): &(&str, &str)| (engine, format!("\n// The {word}.\n"), 2);
            let name = (engine, "fn sweep_all() {}\n".into(), 1);
            GIVEN_UP.iter().map(word).chain([name]).collect()
        },
    },
    Rule {
        name: "own-words",
        check: speaks_of_itself_alone,
        bad_examples: || {
            PLACES
                .iter()
                .map(|word| ("CONTRIBUTING.md", format!("\nsee {word}x\n"), 2))
                .chain(WORDS.iter().map(|word| ("a.md", format!("\nthe {word}.\n"), 2)))
                .collect()
        },
    },
];

/// Where `unsafe` may stand: the device crate, and the foreign interfaces when they exist.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/uext4-device/",
    "crates/uext4-rbd/",
    "crates/uext4-capi/",
    "crates/uext4-python/",
    "integrations/",
];

fn unsafe_stands_apart(source: &Source) -> Found {
    if source.is_in(UNSAFE_ALLOWED) {
        return Vec::new();
    }
    names(&source.code, "unsafe")
        .map(|at| {
            let message = "`unsafe` stands only in uext4-device; offer a safe interface there";
            (source.line_of(at), message.to_owned())
        })
        .collect()
}

fn roots_forbid_unsafe(source: &Source) -> Found {
    let is_root = source.path.ends_with("/src/lib.rs")
        || source.path.ends_with("/src/main.rs")
        || source.path.contains("/src/bin/");
    if !source.is_rust() || !is_root || source.is_in(UNSAFE_ALLOWED) {
        return Vec::new();
    }
    // A root without items has nothing to forbid.
    let items = source.code.replace("fn main() {}", "");
    if items.trim().is_empty() || source.code.contains("#![forbid(unsafe_code)]") {
        return Vec::new();
    }
    vec![(1, "a crate's root says `#![forbid(unsafe_code)]`".to_owned())]
}

/// Lines at which a file has grown past reason. The aim is 150 to 400.
const LINES_MAX: usize = 800;

/// Files that may be longer, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

fn files_stay_readable(source: &Source) -> Found {
    let lines = source.text.lines().count();
    if !source.is_rust() || lines <= LINES_MAX || is_on_long_list(&source.path) {
        return Vec::new();
    }
    vec![(0, format!("{lines} lines: split it, or give a reason in LONG_FILES"))]
}

fn is_on_long_list(path: &str) -> bool {
    LONG_FILES.iter().any(|(long, _)| *long == path)
}

/// A file on the list of long files that is not long any more.
pub(crate) fn long_list_is_current(sources: &[Source]) -> Vec<Finding> {
    LONG_FILES
        .iter()
        .filter(|(path, _)| {
            !sources.iter().any(|s| s.path == *path && s.text.lines().count() > LINES_MAX)
        })
        .map(|(path, _)| Finding::new(path, 0, "is not long: take it off LONG_FILES [file-size]"))
        .collect()
}

/// Rust files that their parent does not name with `mod`: they are never compiled.
pub(crate) fn dead_files(sources: &[Source]) -> Vec<Finding> {
    let rust: Vec<&Source> = sources.iter().filter(|s| s.is_rust()).collect();
    rust.iter()
        .filter(|source| !is_reached(source, &rust))
        .map(|source| {
            Finding::new(&source.path, 0, "no `mod` of its parent names this file [dead-file]")
        })
        .collect()
}

fn is_reached(source: &Source, all: &[&Source]) -> bool {
    let Some((crate_folder, inside)) = source.path.split_once("/src/") else { return true };
    let module = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    if matches!(module, "lib" | "main") || module.starts_with("bin/") {
        return true;
    }
    let (parents, name) = match module.rsplit_once('/') {
        Some((parent, name)) => ([format!("{parent}.rs"), format!("{parent}/mod.rs")], name),
        None => (["lib.rs".to_owned(), "main.rs".to_owned()], module),
    };
    let parents = parents.map(|parent| format!("{crate_folder}/src/{parent}"));
    all.iter().filter(|other| parents.contains(&other.path)).any(|parent| {
        names(&parent.code, name).any(|at| {
            let (before, after) = (&parent.code[..at], &parent.code[at + name.len()..]);
            before.ends_with("mod ") && after.starts_with(';')
        })
    })
}

/// Unit tests of `foo.rs` stand at its end or in `foo/tests.rs`, and what several modules' tests
/// share in a `harness.rs`.
fn tests_lie_below_their_module(source: &Source) -> Found {
    if !source.is_rust() || !source.is_in(&["crates/"]) || !source.path.contains("/src/") {
        return Vec::new();
    }
    let mut found: Found = names(&source.code, "path")
        .filter(|at| source.code[..*at].ends_with("#["))
        .map(|at| (source.line_of(at), "a module lies where its name says".to_owned()))
        .collect();
    if source.path.ends_with("_tests.rs") {
        found.push((0, "unit tests of `foo.rs` lie in `foo/tests.rs`".to_owned()));
    }
    found
}

/// Columns of a line of Rust.
const COLUMNS_MAX: usize = 100;

fn lines_fit(source: &Source) -> Found {
    if !source.is_rust() {
        return Vec::new();
    }
    numbered(&source.text)
        .filter(|(_, line)| line.chars().count() > COLUMNS_MAX)
        .map(|(number, _)| (number, format!("longer than {COLUMNS_MAX} columns")))
        .collect()
}

/// Words that once stood for things with names, and the names.
const GIVEN_UP: &[(&str, &str)] = &[
    ("sweep", "writeback pass"),
    ("convoy", "group writeback"),
    ("seat", "reader slot"),
    ("contrast", "ablation"),
    ("plant", "injected fault"),
    ("canary", "mutation check"),
    ("canaries", "mutation checks"),
    ("homebound", "awaiting checkpoint"),
    ("whoever", "a noun: the caller, a writer, the thread that ..."),
    ("likewise", "what it is, said again"),
];

/// Where the rule holds: the engine, and what measures, tests and drives it.
const FIELD_WORDS: &[&str] = &[
    "crates/uext4/",
    "crates/uext4-device/",
    "crates/uext4-lab/",
    "crates/uext4-sim/",
    "crates/uext4-schedule/",
    "crates/uext4-cli/",
    "crates/uext4-fsck/tests/",
];
/// Old names of options, which scripts may still use.
const HIDDEN_ALIASES: &[&str] = &["alias = \"contrast\"", "alias = \"plant\""];

/// Comments too; parts of names count.
fn speaks_the_fields_words(source: &Source) -> Found {
    if !source.is_rust() || !source.is_in(FIELD_WORDS) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in numbered(&source.text) {
        if HIDDEN_ALIASES.iter().any(|alias| line.contains(alias)) {
            continue;
        }
        let line = line.to_ascii_lowercase();
        let begins =
            |word: &str| line.split(|c: char| !c.is_alphabetic()).any(|w| w.starts_with(word));
        for (word, instead) in GIVEN_UP.iter().filter(|(word, _)| begins(word)) {
            found.push((number, format!("\"{word}\": {instead}")));
        }
    }
    found
}

fn text_is_ascii(source: &Source) -> Found {
    numbered(&source.text)
        .filter_map(|(number, line)| {
            let odd = line.chars().find(|c| !c.is_ascii())?;
            Some((number, format!("{:?} is not ASCII", odd.escape_unicode().to_string())))
        })
        .collect()
}

/// A name that may not be used in some places, and what to use instead.
struct Ban {
    name: &'static str,
    /// Folders or files; empty for everywhere.
    places: &'static [&'static str],
    /// Files in those places that may.
    except: &'static [&'static str],
    in_tests: bool,
    instead: &'static str,
}

const ENGINE: &[&str] = &["crates/uext4/src/"];
const FORMAT_USERS: &[&str] = &["crates/", "xtask/"];
const LIBRARIES: &[&str] = &[
    "crates/uext4/src/",
    "crates/uext4-ondisk/src/",
    "crates/uext4-device/src/",
    "crates/uext4-mkfs/src/",
];

const fn locks(name: &'static str) -> Ban {
    let instead = "use crate::sync, whose locks have a rank";
    Ban { name, places: ENGINE, except: &["crates/uext4/src/sync.rs"], in_tests: false, instead }
}

const fn bytes(name: &'static str) -> Ban {
    let instead = "use an endian-typed field of uext4-ondisk";
    // The arithmetic of ciphers is on numbers that are no fields.
    let except = &["crates/uext4-ondisk/", "crates/uext4/src/crypt/"];
    Ban { name, places: FORMAT_USERS, except, in_tests: false, instead }
}

const fn unfinished(name: &'static str) -> Ban {
    let instead = "finish it, or return an error that says so";
    Ban { name, places: &[], except: &[], in_tests: true, instead }
}

const fn prints(name: &'static str) -> Ban {
    let instead = "a library returns what it has to say";
    Ban { name, places: LIBRARIES, except: &[], in_tests: false, instead }
}

const BANS: &[Ban] = &[
    locks("parking_lot"),
    unfinished("todo!"),
    unfinished("unimplemented!"),
    Ban { name: "dbg!", places: &[], except: &[], in_tests: true, instead: "take it out again" },
    bytes("from_le_bytes"),
    bytes("from_be_bytes"),
    bytes("from_ne_bytes"),
    bytes("to_le_bytes"),
    bytes("to_be_bytes"),
    bytes("to_ne_bytes"),
    prints("print!"),
    prints("println!"),
    prints("eprint!"),
    prints("eprintln!"),
];

/// Locks of the standard library that the engine takes from `crate::sync`.
const STD_LOCKS: &[&str] = &["Mutex", "RwLock", "Condvar", "Once", "Barrier"];

fn banned_names(source: &Source) -> Found {
    let mut found = Vec::new();
    for ban in BANS {
        if !ban.places.is_empty() && !source.is_in(ban.places) || source.is_in(ban.except) {
            continue;
        }
        // `names` wants a name: the exclamation mark of a macro is looked at apart.
        let (name, macro_call) = match ban.name.strip_suffix('!') {
            Some(name) => (name, true),
            None => (ban.name, false),
        };
        for at in names(&source.code, name) {
            let line = source.line_of(at);
            if macro_call && !source.code[at + name.len()..].starts_with('!') {
                continue;
            }
            if ban.in_tests || !source.is_test(line) {
                found.push((line, format!("`{}`: {}", ban.name, ban.instead)));
            }
        }
    }
    found.extend(std_locks(source));
    found
}

/// `std::sync::Mutex` and `std::sync::{Arc, Mutex}` in the engine.
fn std_locks(source: &Source) -> Found {
    if !source.is_in(ENGINE) || source.is_in(&["crates/uext4/src/sync.rs"]) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, path) in source.code.match_indices("std::sync::") {
        let rest = &source.code[at + path.len()..];
        let end = if rest.starts_with('{') {
            rest.find(';')
        } else {
            rest.find(|c: char| !c.is_alphanumeric())
        };
        let used = &rest[..end.unwrap_or(rest.len())];
        let line = source.line_of(at);
        let locks = STD_LOCKS.iter().filter(|lock| names(used, lock).next().is_some());
        if !source.is_test(line) {
            found.extend(locks.map(|lock| {
                (line, format!("`std::sync::{lock}`: use crate::sync, whose locks have a rank"))
            }));
        }
    }
    found
}

/// Starts of paths that exist on one machine only. Split, so that this file passes its own rule.
const PLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/Us", "ers/")];
/// Words about how a change came to be; the project speaks of itself alone.
const WORDS: &[&str] = &[
    concat!("sub", "agent"),
    concat!("sub", "agents"),
    concat!("this ", "sitting"),
    concat!("this ", "session's"),
    concat!("co-authored", "-by"),
];

fn speaks_of_itself_alone(source: &Source) -> Found {
    let mut found = Vec::new();
    for (number, line) in numbered(&source.text) {
        let lower = line.to_lowercase();
        for place in PLACES {
            if line.contains(place) {
                found.push((number, format!("`{place}`: no path of one machine")));
            }
        }
        for word in WORDS {
            if names(&lower, word).next().is_some() {
                found.push((number, format!("`{word}`: the project speaks of itself alone")));
            }
        }
    }
    found
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nobody_names_is_dead() {
        let sources = [
            Source::new("crates/a/src/lib.rs", "mod b;\nmod d;\n// mod c;\n"),
            Source::new("crates/a/src/b.rs", "mod tests;\n"),
            Source::new("crates/a/src/b/tests.rs", ""),
            Source::new("crates/a/src/c.rs", ""),
            Source::new("crates/a/src/d/mod.rs", "mod e;\nmod tests {}\n"),
            Source::new("crates/a/src/d/e.rs", ""),
            // Another module's `mod tests;` does not name these, nor does a `mod` with a body.
            Source::new("crates/a/src/d/tests.rs", ""),
            Source::new("crates/a/src/d/e/tests.rs", ""),
            Source::new("crates/a/tests/f.rs", ""),
        ];
        let dead: Vec<String> = dead_files(&sources).into_iter().map(|f| f.path).collect();
        let d = ["crates/a/src/c.rs", "crates/a/src/d/tests.rs", "crates/a/src/d/e/tests.rs"];
        assert_eq!(dead, d);
    }
}
