//! Which verbs are called, and why the others are not. A test of the command compares both with
//! the definition of its command line.

use crate::hostile::{archives, exports, images, overlays};

/// Verbs that are not called, and why.
pub const UNTRIED: &[(&str, &str)] = &[
    ("mount", "the engine behind it is tried by the library; mounts live on after the command"),
    ("umount", "takes no image"),
    ("sync", "takes no image"),
    ("lab", "makes its own images"),
    ("crashtest", "makes its own images"),
    ("manual", "takes no image"),
    ("completions", "takes no image"),
];

/// Whether a verb has actions of its own.
#[must_use]
pub fn has_actions(verb: &str) -> bool {
    matches!(verb, "overlay" | "xattr")
}

/// The words of every call.
pub fn calls() -> impl Iterator<Item = &'static str> {
    let images = images::CALLS.iter().map(|(_, words)| *words);
    let overlays = overlays::CALLS.iter().map(|(_, words)| *words);
    let archives = archives::CALLS.iter().map(|call| call.words);
    images.chain(overlays).chain(exports::CALLS.iter().copied()).chain(archives)
}

/// The verb of a call, with its action.
pub(super) fn verb_of(words: &str) -> String {
    let mut words = words.split_whitespace();
    let verb = words.next().unwrap_or_default();
    match words.next() {
        Some(action) if has_actions(verb) => format!("{verb} {action}"),
        _ => verb.to_owned(),
    }
}
