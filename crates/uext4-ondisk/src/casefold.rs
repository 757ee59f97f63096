//! Case folding of names (casefold): Unicode 12.1, as `s_encoding` 1 means it.
//!
//! What: a name is compared and hashed by its canonical decomposition, with case folded (full,
//! without the rules for Turkic languages) and without the code points that are ignored by default.
//! On disk: names as they were given; the superblock's `s_encoding` and `s_encoding_flags`
//! (super.rst); the flag `EXT4_CASEFOLD_FL` of a directory (inodes.rst).
//! Some kernels of about Linux 6.12 kept the ignored code points, and hashed names by
//! [`fold_whole`].
//! Invariants: the tables are of Unicode 12.1 for ever, because hashes on disk depend on them. Code
//! points that it does not know fold to themselves. A name that is not UTF-8 is equal to itself
//! alone. A name folds to at most three times its length.

mod tables;

use crate::superblock::RawSuperblock;
use std::borrow::Cow;
use tables::{CLASSES, IGNORED, SEVERAL, SHIFTED, SINGLE};

/// `s_encoding` of Unicode 12.1.0.
pub const UTF8_12_1: u16 = 1;
/// Bit of `s_encoding_flags`: names that are not UTF-8 are refused.
pub const STRICT: u16 = 0x1;
/// Bit of `s_encoding_flags`: no kernel has ever hashed names otherwise, so that no name has to be
/// looked for but by its hash.
pub const NO_COMPAT_FALLBACK: u16 = 0x2;

/// What the superblock says about names in directories that fold case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Names that are not UTF-8 are refused.
    pub strict: bool,
    /// Names are looked for by their hash alone.
    pub no_compat_fallback: bool,
}

impl Encoding {
    /// That of a superblock; `None` if it is not known.
    #[must_use]
    pub const fn of(sb: &RawSuperblock) -> Option<Self> {
        let flags = sb.s_encoding_flags.get();
        match sb.s_encoding.get() {
            UTF8_12_1 => Some(Self {
                strict: flags & STRICT != 0,
                no_compat_fallback: flags & NO_COMPAT_FALLBACK != 0,
            }),
            _ => None,
        }
    }

    /// Puts it in a superblock.
    pub fn put(self, sb: &mut RawSuperblock) {
        sb.s_encoding.set(UTF8_12_1);
        let strict = if self.strict { STRICT } else { 0 };
        let no_fallback = if self.no_compat_fallback { NO_COMPAT_FALLBACK } else { 0 };
        sb.s_encoding_flags.set(strict | no_fallback);
    }
}

/// A name that is looked for in a directory that folds case.
#[derive(Clone, Debug)]
pub struct FoldedName<'n> {
    name: &'n [u8],
    folded: Cow<'n, [u8]>,
}

impl<'n> FoldedName<'n> {
    /// Folds a name.
    #[must_use]
    pub fn new(name: &'n [u8]) -> Self {
        Self { name, folded: fold(name) }
    }

    /// Whether a stored name that is the same is the only one: names that are not the same to a
    /// kernel that keeps ignored code points may stand side by side.
    #[must_use]
    pub fn is_surely(&self, stored: &[u8]) -> bool {
        stored == self.name || !(has_ignored(self.name) || has_ignored(stored))
    }

    /// Whether a stored name is the same but for case.
    #[must_use]
    pub fn is(&self, stored: &[u8]) -> bool {
        if stored.is_ascii() && self.name.is_ascii() {
            return stored.eq_ignore_ascii_case(self.name);
        }
        stored == self.name || fold(stored) == self.folded
    }
}

/// What a name is compared and hashed by. A name that is not UTF-8 is left as it is; no other name
/// folds to it.
#[must_use]
pub fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    fold_as(name, Ignored::Dropped)
}

/// As [`fold`], with the code points that are ignored.
#[must_use]
pub fn fold_whole(name: &[u8]) -> Cow<'_, [u8]> {
    fold_as(name, Ignored::Kept)
}

/// Whether a name has code points that are ignored.
#[must_use]
pub fn has_ignored(name: &[u8]) -> bool {
    let text = if name.is_ascii() { None } else { std::str::from_utf8(name).ok() };
    text.is_some_and(|text| text.chars().any(|c| is_ignored(u32::from(c))))
}

/// What becomes of the code points that are ignored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ignored {
    Dropped,
    Kept,
}

fn is_ignored(code: u32) -> bool {
    row_of(IGNORED, code, |row| row.0).is_some_and(|&(_, last)| code <= last)
}

fn fold_as(name: &[u8], ignored: Ignored) -> Cow<'_, [u8]> {
    if name.is_ascii() {
        return match name.iter().any(u8::is_ascii_uppercase) {
            true => Cow::Owned(name.to_ascii_lowercase()),
            false => Cow::Borrowed(name),
        };
    }
    match std::str::from_utf8(name) {
        Ok(text) => Cow::Owned(fold_text(text, ignored).into_bytes()),
        Err(_) => Cow::Borrowed(name),
    }
}

/// A folded text, with marks in canonical order.
struct Folded {
    text: String,
    /// Marks behind the last code point of class 0, with their classes.
    marks: Vec<(u8, char)>,
}

fn fold_text(text: &str, ignored: Ignored) -> String {
    let mut out = Folded { text: String::with_capacity(text.len()), marks: Vec::new() };
    for c in text.chars() {
        let code = u32::from(c);
        if c.is_ascii() {
            out.push(c.to_ascii_lowercase());
        } else if is_ignored(code) {
            // Marks do not move over it.
            match ignored {
                Ignored::Dropped => out.end_marks(),
                Ignored::Kept => out.push(c),
            }
        } else if let Some(syllable) = code.checked_sub(HANGUL).filter(|&s| s < SYLLABLES) {
            jamo(syllable).for_each(|c| out.push(c));
        } else if let Some((_, to)) = exact(SEVERAL, code, |row| row.0) {
            to.chars().for_each(|c| out.push(c));
        } else {
            out.push(single(code).unwrap_or(c));
        }
    }
    out.end_marks();
    out.text
}

impl Folded {
    fn push(&mut self, c: char) {
        let class = class(u32::from(c));
        if class == 0 {
            self.end_marks();
            self.text.push(c);
        } else {
            self.marks.push((class, c));
        }
    }

    fn end_marks(&mut self) {
        self.marks.sort_by_key(|mark| mark.0);
        self.text.extend(self.marks.drain(..).map(|mark| mark.1));
    }
}

/// What a code point folds to, if that is one other.
fn single(code: u32) -> Option<char> {
    let shifted = row_of(SHIFTED, code, |row| row.0).and_then(|&(first, last, step, target)| {
        let distance = code.checked_sub(first).filter(|_| code <= last)?;
        (distance.checked_rem(step)? == 0).then(|| target.saturating_add(distance))
    });
    shifted.or_else(|| Some(exact(SINGLE, code, |row| row.0)?.1)).and_then(char::from_u32)
}

/// Canonical combining class.
fn class(code: u32) -> u8 {
    let row = row_of(CLASSES, code, |row| row.0).filter(|row| code <= row.1);
    row.map_or(0, |row| row.2)
}

/// The last row that begins at `code` or before.
fn row_of<T>(table: &[T], code: u32, first: impl Fn(&T) -> u32) -> Option<&T> {
    let after = table.partition_point(|row| first(row) <= code);
    table.get(after.checked_sub(1)?)
}

fn exact<T>(table: &[T], code: u32, key: impl Fn(&T) -> u32) -> Option<&T> {
    row_of(table, code, &key).filter(|row| key(row) == code)
}

/// First syllable of Hangul.
const HANGUL: u32 = 0xac00;
/// Number of syllables.
const SYLLABLES: u32 = 11_172;
/// Letters in the middle of a syllable.
const VOWELS: u32 = 21;
/// Letters at its end, or none.
const FINALS: u32 = 28;

/// The letters of a syllable.
fn jamo(syllable: u32) -> impl Iterator<Item = char> {
    let (rest, last) = (syllable / FINALS, syllable % FINALS);
    let last = (last > 0).then(|| last.saturating_add(0x11a7));
    let lead = (rest / VOWELS).saturating_add(0x1100);
    let vowel = (rest % VOWELS).saturating_add(0x1161);
    [Some(lead), Some(vowel), last].into_iter().flatten().filter_map(char::from_u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same(a: &str, b: &str) -> bool {
        FoldedName::new(a.as_bytes()).is(b.as_bytes())
    }

    #[test]
    fn names_are_the_same_but_for_case_form_and_what_is_ignored() {
        for (a, b) in [
            ("Makefile", "mAKEFILE"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{e9}", "E\u{301}"),
            ("\u{1fb7}", "\u{391}\u{342}\u{399}"),
            ("\u{ac01}", "\u{1100}\u{1161}\u{11a8}"),
            ("\u{ac00}", "\u{1100}\u{1161}"),
            ("\u{212a}", "k"),
            ("a\u{200b}b\u{fe0f}", "AB"),
            ("q\u{323}\u{307}", "Q\u{307}\u{323}"),
            ("\u{2fa1d}", "\u{2a600}"),
            ("\u{416}", "\u{436}"),
        ] {
            assert!(is_same(a, b) && is_same(b, a), "{a:?} and {b:?}");
        }
        for (a, b) in [
            ("i", "\u{131}"),
            ("a", "\u{e1}"),
            ("q\u{323}\u{200b}\u{307}", "q\u{307}\u{200b}\u{323}"),
            // Unicode 13 has these two as one letter.
            ("\u{a7c7}", "\u{a7c8}"),
        ] {
            assert!(!is_same(a, b) && !is_same(b, a), "{a:?} and {b:?}");
        }
    }

    #[test]
    fn ignored_code_points_are_dropped_or_kept() {
        let heart = "\u{2764}\u{fe0f}A".as_bytes();
        assert!(has_ignored(heart) && !has_ignored("\u{2764}".as_bytes()));
        assert_eq!(&*fold(heart), "\u{2764}a".as_bytes());
        assert_eq!(&*fold_whole(heart), "\u{2764}\u{fe0f}a".as_bytes());
        // Marks keep their order around what is kept.
        let marks = "q\u{307}\u{323}\u{34f}\u{307}\u{323}";
        let want = "q\u{323}\u{307}\u{34f}\u{323}\u{307}";
        assert_eq!(&*fold_whole(marks.as_bytes()), want.as_bytes());
        let name = FoldedName::new(heart);
        assert!(name.is("\u{2764}a".as_bytes()) && !name.is_surely("\u{2764}a".as_bytes()));
        assert!(name.is_surely(heart));
    }

    #[test]
    fn what_is_not_utf8_is_itself_alone() {
        for bytes in [&b"A\xff"[..], b"A\xed\xa0\x80", b"A\xc0\x80", b"A\xf4\x90\x80\x80", b"\xc3"]
        {
            assert_eq!(fold(bytes), bytes);
            assert!(FoldedName::new(bytes).is(bytes));
            assert!(!FoldedName::new(bytes).is(&bytes.to_ascii_lowercase()) || bytes[0] != b'A');
        }
    }

    /// Folding again changes nothing, and nothing grows beyond three times its length.
    #[test]
    fn folds_are_final_and_bounded() {
        for c in ('\0'..=char::MAX).filter(|&c| c != '/') {
            let text = c.to_string();
            let folded = fold(text.as_bytes());
            assert_eq!(fold(&folded), folded, "{c:?}");
            assert!(folded.len() <= 3 * text.len(), "{c:?}");
        }
    }
}
