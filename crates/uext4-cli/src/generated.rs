//! Parts of documents that are generated: from `<!-- NAME: generated -->` to `<!-- end -->`.
//!
//! A test compares them with what they are generated from; with `UPDATE_DOCS=1` in its environment
//! it writes them instead.

use std::fs;
use std::path::Path;

/// Checks, or writes, the part `name` of a document of the repository.
///
/// # Panics
/// If the document has no such part, or another text in it.
pub(crate) fn check(document: &str, name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let before = fs::read_to_string(&path).expect(document);
    let (begin, end) = (format!("<!-- {name}: generated -->\n"), "<!-- end -->");
    let (head, rest) = before.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (old, tail) = rest.split_once(end).unwrap_or_else(|| panic!("no {end} behind {begin}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{head}{begin}{text}{end}{tail}")).expect(document);
    } else {
        let how = "UPDATE_DOCS=1 cargo test -p uext4-cli generated writes it";
        assert!(old == text, "{document}: part '{name}' is not what it is generated from; {how}");
    }
}
