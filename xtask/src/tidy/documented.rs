//! What a user can type or read has its line in a document.
//!
//! # What
//! Words of mount options, counters and levels of the statistics, and try-locks of the engine: the
//! names are read from the tables of the source, and looked for in the documents.

use super::Finding;
use super::source::Source;

const OPTION_TABLES: &[&str] = &[
    "crates/uext4/src/config/table.rs",
    "crates/uext4/src/config.rs",
    "crates/uext4-fuse/src/options.rs",
    "crates/uext4-device/src/options.rs",
];
const STATISTICS: &[&str] =
    &["crates/uext4/src/volume/stats.rs", "crates/uext4/src/file/direct/stats.rs"];
const ENGINE: &str = "crates/uext4/src/";

/// Objections to names that no document has.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let manual = ticked(sources, &["docs/mount.md"]);
    let is_option = |name: &str| {
        let with_value =
            |word: &String| word.strip_prefix(name).is_some_and(|w| w.starts_with('='));
        manual.iter().any(|word| word == name || with_value(word))
    };
    for source in sources.iter().filter(|source| source.is_in(OPTION_TABLES)) {
        for (line, name) in option_names(source).into_iter().filter(|(_, name)| !is_option(name)) {
            let message = format!("option `{name}` is not in docs/mount.md [documented]");
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    let figures = ticked(sources, &["docs/stats.md", "docs/direct-io.md"]);
    for source in sources.iter().filter(|source| source.is_in(STATISTICS)) {
        for (line, name) in figure_names(source) {
            if !figures.contains(&name) {
                let message = format!("`{name}` is not in docs/stats.md [documented]");
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    findings.extend(try_locks(sources));
    findings
}

/// What stands between backticks in some documents.
fn ticked(sources: &[Source], paths: &[&str]) -> Vec<String> {
    let documents = sources.iter().filter(|source| source.is_in(paths));
    let lines = documents.flat_map(|source| source.text.lines());
    lines.flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// The words in a table of options: the literals of `flag(&["ro"], ...)` and its like, and those
/// with which a word is compared.
fn option_names(source: &Source) -> Vec<(usize, String)> {
    const BEFORE: &[&str] = &["flag(", "one_of(", "text(", "ignored("];
    let mut found = Vec::new();
    for (at, _) in source.text.match_indices("&[\"") {
        let before = source.code[..at].trim_end();
        if BEFORE.iter().any(|start| before.ends_with(start)) && !is_test(source, at) {
            let list = source.text[at..].split(']').next().unwrap_or_default();
            found.extend(literals(list).map(|name| (source.line_of(at), name)));
        }
    }
    for (at, start) in source.text.match_indices("word == \"") {
        let name = source.text[at + start.len()..].split('"').next().unwrap_or_default();
        found.push((source.line_of(at), name.to_owned()));
    }
    found
}

/// The names in `("name", value)`.
fn figure_names(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, start) in source.text.match_indices("(\"") {
        let mut parts = source.text[at + start.len()..].split('"');
        let (name, after) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_name && after.starts_with(", ") && !is_test(source, at) {
            found.push((source.line_of(at), name.to_owned()));
        }
    }
    found
}

/// Files of the engine with a try-lock that the chapter of docs/locking.md does not name, and files
/// that it names and that have none.
fn try_locks(sources: &[Source]) -> Vec<Finding> {
    const PATH: &str = "docs/locking.md";
    let Some(document) = sources.iter().find(|source| source.path == PATH) else {
        return Vec::new();
    };
    let chapter = document.text.split("\n## ").find(|chapter| chapter.starts_with("Try-locks"));
    let chapter = chapter.unwrap_or_default();
    let words: Vec<&str> = chapter.split('`').skip(1).step_by(2).collect();
    let named: Vec<&str> = words.into_iter().filter(|word| word.ends_with(".rs")).collect();
    let mut findings = Vec::new();
    let mut having = Vec::new();
    for source in sources {
        let Some(name) = source.path.strip_prefix(ENGINE) else { continue };
        if name == "sync.rs" || name.starts_with("sync/") {
            continue;
        }
        let tries = [".try_lock()", ".try_read()", ".try_write()"];
        let first = tries.iter().filter_map(|call| source.code.find(call)).min();
        let Some(at) = first.filter(|&at| !is_test(source, at)) else { continue };
        having.push(name);
        if !named.contains(&name) {
            let message = format!("{PATH}, Try-locks, does not name `{name}` [documented]");
            findings.push(Finding::new(&source.path, source.line_of(at), message));
        }
    }
    for name in named.into_iter().filter(|name| !having.contains(name)) {
        findings.push(Finding::new(PATH, 0, format!("`{name}` has no try-lock [documented]")));
    }
    findings
}

fn is_test(source: &Source, at: usize) -> bool {
    source.is_test(source.line_of(at))
}

fn literals(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_document_has_is_found() {
        let table = "flag(&[\"ro\", \"rx\"], set),\none_of(\n    &[\"data\"],\n    &[(\"a\", f)]\
                     ),\ntext(&[\"cache\"], \"SIZE\", g),\nif word == \"acl\" {}\n";
        let stats = "vec![(\"pages\", 1), (\"inodes\", 2)]\n";
        let sources = [
            Source::new("docs/mount.md", "`ro`, `data=ordered`, `cached=1`\n"),
            Source::new("docs/stats.md", "`pages`\n"),
            Source::new(
                "docs/locking.md",
                "`dir.rs`\n\n## Try-locks\n\n- `Leaf` of `cache/a.rs`, `cache/b.rs`\n\n## More\n",
            ),
            Source::new("crates/uext4/src/config/table.rs", table),
            Source::new("crates/uext4/src/volume/stats.rs", stats),
            Source::new("crates/uext4/src/cache/a.rs", "fn f() {\n    a.try_lock();\n}\n"),
            Source::new("crates/uext4/src/dir.rs", "fn f() { a.try_write(); }\n"),
        ];
        let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/uext4/src/config/table.rs:1: option `rx` is not in docs/mount.md \
                 [documented]",
                "crates/uext4/src/config/table.rs:5: option `cache` is not in docs/mount.md \
                 [documented]",
                "crates/uext4/src/config/table.rs:6: option `acl` is not in docs/mount.md \
                 [documented]",
                "crates/uext4/src/volume/stats.rs:1: `inodes` is not in docs/stats.md \
                 [documented]",
                "crates/uext4/src/dir.rs:1: docs/locking.md, Try-locks, does not name `dir.rs` \
                 [documented]",
                "docs/locking.md: `cache/b.rs` has no try-lock [documented]",
            ]
        );
    }
}
