//! Numbered statements of the documents, and what cites them.
//!
//! # What
//! docs/durability.md has promises (`D7`), docs/journal.md invariants (`J3`) and numbered chapters.
//! A label stands for one statement, and each one that code or a document cites exists.

use std::collections::BTreeMap;

use super::Finding;
use super::source::Source;

/// The letter of a document's labels; each stands in bold at the start of its statement.
const LETTERS: &[(char, &str)] = &[('D', "docs/durability.md"), ('J', "docs/journal.md")];

/// Objections to labels that stand twice, and to citations of labels that do not exist.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for &(letter, path) in LETTERS {
        let Some(document) = sources.iter().find(|source| source.path == path) else { continue };
        let defined = defined(letter, document, &mut findings);
        for source in sources.iter().filter(|source| may_cite(source)) {
            for (line, number) in labels(letter, &source.text) {
                if !defined.contains_key(&number) {
                    let message = format!("{path} has no statement {letter}{number} [labels]");
                    findings.push(Finding::new(&source.path, line, message));
                }
            }
        }
    }
    findings.extend(chapters(sources));
    findings
}

/// Code and documents; not the records of runs, nor these rules.
fn may_cite(source: &Source) -> bool {
    (source.is_rust() || source.path.ends_with(".md"))
        && !source.is_in(&["runs/", "xtask/src/tidy/", "integrations/"])
}

/// The statements of a document by number, with their lines; objects to a second one.
fn defined(letter: char, source: &Source, findings: &mut Vec<Finding>) -> BTreeMap<u32, usize> {
    let mut defined = BTreeMap::new();
    for (index, line) in source.text.lines().enumerate() {
        let start = line.trim_start_matches(['-', ' ', '>', '|']);
        let Some(rest) = start.strip_prefix("**").and_then(|rest| rest.strip_prefix(letter)) else {
            continue;
        };
        let Some(number) = leading_number(rest) else { continue };
        if let Some(before) = defined.insert(number, index + 1) {
            let message = format!("{letter}{number} stands in line {before} already [labels]");
            findings.push(Finding::new(&source.path, index + 1, message));
        }
    }
    defined
}

/// Words of a text that are a letter and a number, with their lines.
fn labels(letter: char, text: &str) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let number = word.strip_prefix(letter).filter(|rest| !rest.starts_with('0'));
            found.extend(number.and_then(|rest| rest.parse().ok()).map(|n| (index + 1, n)));
        }
    }
    found
}

/// `docs/journal.md 6`: the chapter `## 6. ...` of that document.
fn chapters(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| may_cite(source)) {
        for (index, line) in source.text.lines().enumerate() {
            for (at, _) in line.match_indices(".md ") {
                let name = line[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '-').next();
                let path = format!("docs/{}.md", name.unwrap_or_default());
                let Some(number) = leading_number(&line[at + 4..]) else { continue };
                let Some(document) = sources.iter().find(|source| source.path == path) else {
                    continue;
                };
                let title = format!("## {number}. ");
                if !document.text.lines().any(|line| line.starts_with(&title)) {
                    let message = format!("{path} has no chapter {number} [labels]");
                    findings.push(Finding::new(&source.path, index + 1, message));
                }
            }
        }
    }
    findings
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_is_missing_or_stands_twice_is_found() {
        let sources = [
            Source::new("docs/durability.md", "- **D1. write**: see D2\n- **D1.** again\n"),
            Source::new("docs/journal.md", "## 2. Handles\n**J3.** Short.\n"),
            Source::new("crates/a/src/b.rs", "// D1 and J3, docs/journal.md 2; TD9, D_4, 0xD7\n"),
            Source::new("crates/a/src/c.rs", "// J4\n// docs/journal.md 7 of 9\n"),
        ];
        let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "docs/durability.md:2: D1 stands in line 1 already [labels]",
                "docs/durability.md:1: docs/durability.md has no statement D2 [labels]",
                "crates/a/src/c.rs:1: docs/journal.md has no statement J4 [labels]",
                "crates/a/src/c.rs:2: docs/journal.md has no chapter 7 [labels]",
            ]
        );
    }
}
