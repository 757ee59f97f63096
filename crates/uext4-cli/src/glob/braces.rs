//! Braces: `a{b,c}d` is `abd` and `acd`, whether they exist or not. They may stand in each other;
//! braces without a comma, and those without a partner, are characters as others.

use crate::failure::Why;
use crate::operands::Try;

/// Most paths that one operand becomes.
const PATHS_MAX: usize = 10_000;

/// The paths of a pattern with braces, in the order in which they are written.
pub(super) fn expand(pattern: &[u8]) -> Try<Vec<Vec<u8>>> {
    let mut done = Vec::new();
    // Patterns still to look at, the next one at the end, and how much of each has no braces left.
    let mut waiting = vec![(pattern.to_vec(), 0)];
    while let Some((pattern, from)) = waiting.pop() {
        let Some(group) = Group::find(&pattern, from) else {
            done.push(pattern);
            continue;
        };
        if done.len() + waiting.len() + group.words.len() > PATHS_MAX {
            return Err(Why::new(format!("its braces are more than {PATHS_MAX} paths")));
        }
        for word in group.words.iter().rev() {
            let path = [&pattern[..group.start], word, &pattern[group.end..]].concat();
            waiting.push((path, group.start));
        }
    }
    Ok(done)
}

/// A pair of braces with what is between their commas.
struct Group<'p> {
    start: usize,
    /// Behind the closing brace.
    end: usize,
    words: Vec<&'p [u8]>,
}

impl<'p> Group<'p> {
    /// The first pair from a place on that has a comma of its own.
    fn find(pattern: &'p [u8], from: usize) -> Option<Self> {
        let mut at = from;
        while at < pattern.len() {
            match pattern[at] {
                b'\\' => at += 1,
                b'{' => match Self::at(pattern, at) {
                    Some(group) if group.words.len() > 1 => return Some(group),
                    // What is between them may be one.
                    _ => {}
                },
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// The pair that opens at a place, if it closes.
    fn at(pattern: &'p [u8], start: usize) -> Option<Self> {
        let (mut depth, mut words, mut word) = (0_u32, Vec::new(), start + 1);
        let mut at = start + 1;
        loop {
            match *pattern.get(at)? {
                b'\\' => at += 1,
                b'{' => depth += 1,
                b'}' if depth == 0 => {
                    words.push(&pattern[word..at]);
                    return Some(Self { start, end: at + 1, words });
                }
                b'}' => depth -= 1,
                b',' if depth == 0 => {
                    words.push(&pattern[word..at]);
                    word = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As bash expands them.
    #[test]
    fn as_bash() {
        for (pattern, want) in [
            ("a{b,c}d", &["abd", "acd"][..]),
            ("{a,b}{1,2}", &["a1", "a2", "b1", "b2"]),
            ("{a,b{1,2},c}", &["a", "b1", "b2", "c"]),
            ("{,x}", &["", "x"]),
            ("{a}", &["{a}"]),
            ("{{a,b}}", &["{a}", "{b}"]),
            ("{a,b", &["{a,b"]),
            ("a,b}", &["a,b}"]),
            ("x{y{a,b}", &["x{ya", "x{yb"]),
            ("\\{a,b}", &["\\{a,b}"]),
            ("{a\\,b,c}", &["a\\,b", "c"]),
            ("/e/{*.c,d}/**", &["/e/*.c/**", "/e/d/**"]),
        ] {
            let found = expand(pattern.as_bytes()).unwrap();
            let found: Vec<_> = found.iter().map(|it| std::str::from_utf8(it).unwrap()).collect();
            assert_eq!(found, want, "{pattern}");
        }
    }

    #[test]
    fn too_many_are_refused() {
        assert!(expand("{a,b}".repeat(40).as_bytes()).is_err());
        // Braces that no partner closes cost no more than their number squared.
        assert_eq!(expand("{".repeat(2000).as_bytes()).unwrap().len(), 1);
    }
}
