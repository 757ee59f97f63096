//! Rust source with comments and literals blanked.
//!
//! # What
//! Rules that look for names must not find them in prose or strings. The masked text has the same
//! lines and columns as the source; what is blanked is a space.

/// Blanks comments and the contents of string and character literals.
pub(crate) fn mask(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(bytes, at);
        if end > at {
            out.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        } else {
            // Only ASCII is copied, so the result is text whatever the source holds.
            out.push(if bytes[at].is_ascii() { bytes[at] } else { b' ' });
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// End of the comment or literal that starts at `at`; `at` itself if none does.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let after_name = at > 0 && is_name(bytes[at - 1]);
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return at + block_comment_len(rest);
    }
    if rest[0] == b'"' {
        return at + string_len(rest);
    }
    if rest[0] == b'\'' {
        return at + char_len(rest);
    }
    if !after_name {
        for prefix in [&b"br"[..], b"cr", b"r"] {
            if let Some(len) = rest.strip_prefix(prefix).and_then(raw_string_len) {
                return at + prefix.len() + len;
            }
        }
    }
    at
}

fn block_comment_len(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a raw string from its first `#` or quote on; `None` if it is a raw name.
fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|b| **b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let mut at = hashes + 1;
    while at < rest.len() {
        let closing = &rest[at..];
        if closing[0] == b'"'
            && closing.len() > hashes
            && closing[1..=hashes].iter().all(|b| *b == b'#')
        {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(rest.len())
}

/// Length of a character literal; 0 if the quote starts a lifetime.
fn char_len(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let close = rest.iter().skip(3).position(|b| *b == b'\'');
        return close.map_or(rest.len(), |close| close + 4);
    }
    // One character of up to four bytes, then the closing quote.
    let Some(first) = rest.get(1) else { return 0 };
    let width = match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
}

/// Whether a byte can stand in a name.
pub(crate) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Offsets at which `name` stands as a whole name.
pub(crate) fn names<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(name).map(|(at, _)| at).filter(move |at| {
        let free_before = *at == 0 || !is_name(bytes[at - 1]);
        let free_after = bytes.get(at + name.len()).is_none_or(|b| !is_name(*b));
        free_before && free_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        let source = concat!(
            "a /* b /* c */ d */ e // f\n",
            "\"g \\\" h\" i r#\"j \" k\"# l b'm' '\\'' 'n' &'life o\n",
            "br\"p\" r#type '\\u{1f600}' q\n",
        );
        let masked = mask(source);
        assert_eq!(masked.len(), source.len());
        assert_eq!(masked.lines().count(), 3);
        let words: Vec<&str> = masked.split_whitespace().collect();
        assert_eq!(words, ["a", "e", "i", "l", "b", "&'life", "o", "r#type", "q"]);
    }

    #[test]
    fn whole_names_only() {
        assert_eq!(names("unsafe unsafe_code xunsafe", "unsafe").collect::<Vec<_>>(), [0]);
    }
}
