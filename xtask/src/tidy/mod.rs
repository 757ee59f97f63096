//! House rules that no compiler checks.
//!
//! # What
//! A rule takes one source file and returns what it finds; each rule carries bad examples that
//! it must object to, and a test proves that it does. The rules run as a test and as
//! `cargo xtask tidy`. A finding says where, which rule, and what to do instead.

mod crates;
mod documented;
mod labels;
mod layers;
mod mask;
mod rules;
mod source;

use std::fmt;

use crate::workspace;
use rules::RULES;
use source::Source;

/// One objection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    /// From 1; 0 for the file as a whole.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Prints what the rules find; an error if they find anything.
pub(crate) fn run() -> Result<(), String> {
    let findings = findings()?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} objections of the house rules")),
    }
}

/// All rules over the whole repository.
fn findings() -> Result<Vec<Finding>, String> {
    let root = workspace::root();
    let sources =
        source::read_all(&root).map_err(|error| format!("cannot read the sources: {error}"))?;
    let mut findings = Vec::new();
    for source in &sources {
        for rule in RULES {
            for (line, message) in (rule.check)(source) {
                let message = format!("{message} [{}]", rule.name);
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    findings.extend(silent_rules());
    findings.extend(rules::long_list_is_current(&sources));
    findings.extend(rules::dead_files(&sources));
    findings.extend(labels::check(&sources));
    findings.extend(documented::check(&sources));
    findings.extend(layers::stale(&sources));
    findings.extend(crates::check(&sources)?);
    Ok(findings)
}

/// A rule that cannot fail checks nothing: each one must object to its bad examples, at the line
/// that it names and nowhere else.
fn silent_rules() -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in RULES {
        for (path, text, line) in (rule.bad_examples)() {
            let found = (rule.check)(&Source::new(path, text));
            if found.len() != 1 || found[0].0 != line {
                let message = format!("rule {} misjudges its bad example: {found:?}", rule.name);
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_keeps_the_house_rules() {
        let findings = findings().unwrap();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn every_rule_objects_to_its_bad_examples() {
        assert_eq!(silent_rules(), []);
        assert!(RULES.iter().all(|rule| !(rule.bad_examples)().is_empty()));
    }

    #[test]
    fn harmless_files_pass_every_rule() {
        let harmless = [
            (
                "crates/uext4/src/journal/commit.rs",
                "//! Speaks of unsafe, todo!() and std::sync::Mutex in prose.\n\
                 use std::sync::{Arc, atomic::AtomicU64};\nuse crate::sync::Mutex;\n\
                 use crate::cache::{Buffer, Mutex2};\n\
                 fn f() -> &'static str { \"unsafe todo!()\" }\n",
            ),
            (
                "crates/uext4-ondisk/src/le.rs",
                "fn f(b: [u8; 4]) -> u32 { u32::from_le_bytes(b) }\n",
            ),
            ("crates/uext4-device/src/map.rs", "// SAFETY: an example.\nunsafe fn f() {}\n"),
            ("crates/uext4-cli/src/ls.rs", "fn f() { println!(\"a\"); }\n"),
            (
                "crates/uext4/src/dir/hash.rs",
                "use crate::extent::Map;\nuse super::leaf;\n#[cfg(test)]\nmod tests {\n    \
                 use super::super::leaf;\n    fn f() { u32::from_le_bytes([0; 4]); }\n}\n",
            ),
        ];
        for (path, text) in harmless {
            for rule in RULES {
                let found = (rule.check)(&Source::new(path, text));
                assert!(found.is_empty(), "{} at {path}: {found:?}", rule.name);
            }
        }
    }
}
