//! The mount options of device, engine and FUSE side in one list, for `--help` and docs/mount.md.

use std::fmt::Write;

use uext4::config::{ABLATION, EXT4_WORDS, OPTIONS};
#[cfg(test)]
use uext4_options::markdown;
use uext4_options::{Entry, entries, help as rows, knows, names};

use crate::usage::meant;

/// What `uext4 mount --help` says of them.
pub(crate) fn help() -> String {
    let mut text = String::from("Mount options (defaults in brackets):\n");
    text.push_str(&rows(OPTIONS));
    text.push_str(&rows(uext4_device::MOUNT_OPTIONS));
    text.push_str(&rows(uext4_fuse::MOUNT_OPTIONS));
    text.push_str(&rows(EXT4_WORDS));
    // Writing to a string does not fail.
    let _ = write!(text, "\nFor comparison alone, because each makes something worse:\n");
    text.push_str(&rows(ABLATION));
    text
}

/// The same for the manual: sections and what is in them.
pub(crate) fn manual() -> [(&'static str, Vec<Entry>); 2] {
    let mut all = entries(OPTIONS);
    all.extend(entries(uext4_device::MOUNT_OPTIONS));
    all.extend(entries(uext4_fuse::MOUNT_OPTIONS));
    all.extend(entries(EXT4_WORDS));
    [("OPTIONS", all), ("OPTIONS FOR COMPARISON ALONE", entries(ABLATION))]
}

/// Whether a table has the name of a word of `-o`.
pub(crate) fn is_known(word: &str) -> bool {
    knows(OPTIONS, word)
        || knows(EXT4_WORDS, word)
        || knows(ABLATION, word)
        || knows(uext4_device::MOUNT_OPTIONS, word)
        || knows(uext4_fuse::MOUNT_OPTIONS, word)
}

/// What is said of a word whose name no table has: with the name that was meant, perhaps.
pub(crate) fn unknown(word: &str) -> String {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, format!("={value}")),
        None => (word, String::new()),
    };
    let all = names(OPTIONS)
        .chain(names(EXT4_WORDS))
        .chain(names(uext4_device::MOUNT_OPTIONS))
        .chain(names(uext4_fuse::MOUNT_OPTIONS))
        .chain(names(ABLATION));
    match meant(name, all) {
        Some(other) => {
            format!("mount option '{word}': unknown; did you mean '{other}{value}'?")
        }
        None => format!("mount option '{word}': unknown"),
    }
}

/// The tables of docs/mount.md.
#[cfg(test)]
fn document() -> String {
    let tables = [
        markdown(OPTIONS),
        markdown(uext4_device::MOUNT_OPTIONS),
        markdown(uext4_fuse::MOUNT_OPTIONS),
        markdown(EXT4_WORDS),
    ];
    // One table: the heads of those behind the first go.
    let body = |table: &String| -> String {
        table.lines().skip(2).fold(String::new(), |text, line| text + line + "\n")
    };
    let first = &tables[0];
    format!(
        "\n{first}{}{}{}\nFor comparison alone, because each makes something worse:\n\n{}\n",
        body(&tables[1]),
        body(&tables[2]),
        body(&tables[3]),
        markdown(ABLATION),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated;

    #[test]
    fn words_of_every_table_are_known() {
        for word in ["commit=5", "threads=2", "io=auto", "mb_free=global", "x-anything", "ro"] {
            assert!(is_known(word), "{word}");
        }
        assert!(!is_known("frobnicate") && !is_known("commits=5") && !is_known(""));
    }

    #[test]
    fn no_word_means_two_things() {
        let mut all: Vec<&str> = names(OPTIONS).chain(names(EXT4_WORDS)).collect();
        all.sort_unstable();
        for name in names(uext4_device::MOUNT_OPTIONS).chain(names(uext4_fuse::MOUNT_OPTIONS)) {
            assert!(all.binary_search(&name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_word_that_was_meant_is_named() {
        for (word, meant) in [
            ("noatme", "noatime"),
            ("usr_xattr", "user_xattr"),
            ("comit=5", "commit=5"),
            ("writebackcache", "writeback_cache"),
            ("aclx", "acl"),
            ("no_space_timout=1", "no_space_timeout=1"),
        ] {
            let want = format!("mount option '{word}': unknown; did you mean '{meant}'?");
            assert_eq!(unknown(word), want);
        }
        for word in ["frobnicate", "zz", "=5"] {
            assert_eq!(unknown(word), format!("mount option '{word}': unknown"));
        }
    }

    #[test]
    fn the_document_has_the_tables_of_the_options() {
        generated::check("docs/mount.md", "options", &document());
    }
}
