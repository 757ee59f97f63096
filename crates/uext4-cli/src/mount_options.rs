//! The mount options of device, engine and FUSE side in one list, for `--help` and docs/mount.md.

use std::fmt::Write;

use uext4::config::{ABLATION, OPTIONS};
#[cfg(test)]
use uext4_options::markdown;
use uext4_options::{help as rows, knows};

/// What `uext4 mount --help` says of them.
pub(crate) fn help() -> String {
    let mut text = String::from("Mount options (defaults in brackets):\n");
    text.push_str(&rows(OPTIONS));
    text.push_str(&rows(uext4_device::MOUNT_OPTIONS));
    text.push_str(&rows(uext4_fuse::MOUNT_OPTIONS));
    // Writing to a string does not fail.
    let _ = write!(text, "\nFor comparison alone, because each makes something worse:\n");
    text.push_str(&rows(ABLATION));
    text
}

/// Whether a table has the name of a word of `-o`.
pub(crate) fn is_known(word: &str) -> bool {
    knows(OPTIONS, word)
        || knows(ABLATION, word)
        || knows(uext4_device::MOUNT_OPTIONS, word)
        || knows(uext4_fuse::MOUNT_OPTIONS, word)
}

/// The tables of docs/mount.md.
#[cfg(test)]
fn document() -> String {
    let tables = [
        markdown(OPTIONS),
        markdown(uext4_device::MOUNT_OPTIONS),
        markdown(uext4_fuse::MOUNT_OPTIONS),
    ];
    // One table: the heads of the second and the third go.
    let body = |table: &String| -> String {
        table.lines().skip(2).fold(String::new(), |text, line| text + line + "\n")
    };
    let first = &tables[0];
    format!(
        "\n{first}{}{}\nFor comparison alone, because each makes something worse:\n\n{}\n",
        body(&tables[1]),
        body(&tables[2]),
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
    fn the_document_has_the_tables_of_the_options() {
        generated::check("docs/mount.md", "options", &document());
    }
}
