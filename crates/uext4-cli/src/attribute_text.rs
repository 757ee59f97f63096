//! Extended attributes as text, in the form of getfattr(1) and setfattr(1).
//!
//! What: a record is a line `# file: PATH`, lines `NAME=VALUE` and an empty line. In a path and a
//! name, line ends, backslashes and in a name `=` are a backslash and three octal digits. A value
//! is text in quotes, `0x` and hexadecimal digits, or `0s` and base64.
//! Invariants: what [`value`], [`quoted`] write is read back to the same bytes, by setfattr too.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::failure::Why;

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Encoding {
    /// In quotes.
    Text,
    /// Hexadecimal digits.
    Hex,
    /// As in mail.
    Base64,
}

/// A value as text; without an encoding, one that is hardly readable becomes base64.
pub(crate) fn value(bytes: &[u8], encoding: Option<Encoding>) -> Vec<u8> {
    let default = || if is_readable(bytes) { Encoding::Text } else { Encoding::Base64 };
    match encoding.unwrap_or_else(default) {
        Encoding::Text => {
            let mut text = vec![b'"'];
            for byte in bytes {
                match byte {
                    b'"' | b'\\' => text.extend([b'\\', *byte]),
                    0 | b'\n' | b'\r' => octal(*byte, &mut text),
                    _ => text.push(*byte),
                }
            }
            text.push(b'"');
            text
        }
        Encoding::Hex => {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            format!("0x{}", digits.collect::<String>()).into_bytes()
        }
        Encoding::Base64 => format!("0s{}", STANDARD.encode(bytes)).into_bytes(),
    }
}

/// Whether less than an eighth of the bytes are none that print; a NUL at the end is usual.
fn is_readable(bytes: &[u8]) -> bool {
    let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    let odd = text.iter().filter(|byte| !matches!(byte, b' '..=b'~')).count();
    odd == 0 || odd * 8 < text.len()
}

fn octal(byte: u8, text: &mut Vec<u8>) {
    text.extend(format!("\\{byte:03o}").into_bytes());
}

/// A path, or with `is_name` the name of an attribute, on one line.
pub(crate) fn quoted(bytes: &[u8], is_name: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\n' | b'\r' | b'\\' => octal(*byte, &mut text),
            b'=' if is_name => octal(*byte, &mut text),
            _ => text.push(*byte),
        }
    }
    text
}

/// Undoes [`quoted`].
fn unquoted(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let code = if *first == b'\\' { octal_code(after) } else { None };
        bytes.push(code.unwrap_or(*first));
        if code.is_some() {
            rest = &after[3..];
        }
    }
    bytes
}

/// The byte of the three octal digits at the start.
fn octal_code(text: &[u8]) -> Option<u8> {
    let digits = text.get(..3).filter(|digits| digits.iter().all(|b| matches!(b, b'0'..=b'7')))?;
    let code = digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0'));
    u8::try_from(code).ok()
}

/// The bytes that a value stands for; one that is in none of the forms stands for itself.
pub(crate) fn parse_value(text: &[u8]) -> Result<Vec<u8>, Why> {
    match text {
        [b'"', inner @ .., b'"'] => Ok(unescaped(inner)),
        [b'0', b'x' | b'X', digits @ ..] => hex(digits).ok_or_else(|| Why::new("no hexadecimal")),
        [b'0', b's' | b'S', coded @ ..] => {
            STANDARD.decode(coded.trim_ascii()).map_err(|_| Why::new("no base64"))
        }
        _ => Ok(unescaped(text)),
    }
}

/// Text as setfattr(1) takes it, with quotes around it or without: a backslash stands before one to
/// three octal digits, a quote or a backslash; before anything else it is itself.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let after = text.get(at + 1..).unwrap_or_default();
        let digits = after.iter().take(3).take_while(|byte| matches!(byte, b'0'..=b'7'));
        let (byte, width) = match (byte, after.first()) {
            (b'\\', Some(b'0'..=b'7')) => {
                let code = digits
                    .clone()
                    .fold(0_u8, |code, digit| code.wrapping_mul(8).wrapping_add(digit - b'0'));
                (code, 1 + digits.count())
            }
            (b'\\', Some(next @ (b'\\' | b'"'))) => (*next, 2),
            _ => (*byte, 1),
        };
        bytes.push(byte);
        at += width;
    }
    bytes
}

fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    };
    digits.chunks(2).map(byte).collect()
}

/// A line of a dump.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// What follows is of this path.
    File(Vec<u8>),
    /// An attribute.
    Attribute {
        /// Full name.
        name: Vec<u8>,
        /// Value.
        value: Vec<u8>,
    },
    /// A comment.
    Comment,
    /// Nothing: the end of what is told of a file.
    Empty,
}

impl Line {
    /// Takes a line apart, without its end.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, Why> {
        if let Some(path) = line.strip_prefix(b"# file: ") {
            return Ok(Self::File(unquoted(path)));
        }
        if line.is_empty() {
            return Ok(Self::Empty);
        }
        if line.starts_with(b"#") {
            return Ok(Self::Comment);
        }
        let equals = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
        let (name, value) = line.split_at(equals);
        let value = parse_value(value.strip_prefix(b"=").unwrap_or_default())?;
        Ok(Self::Attribute { name: unquoted(name), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(value(bytes, None)).unwrap()
    }

    /// As getfattr 2.5 writes them, but for the NUL at the end, which it leaves out.
    #[test]
    fn values_look_as_getfattr_writes_them() {
        assert_eq!(text(b""), r#""""#);
        assert_eq!(text(br#"with "q" and \ back"#), r#""with \"q\" and \\ back""#);
        assert_eq!(text(b"line\nfeed"), r#""line\012feed""#);
        assert_eq!(text(b"cr\rx tab\t bell\x07 del\x7f"), "0sY3INeCB0YWIJIGJlbGwHIGRlbH8=");
        assert_eq!(text(b"end\0"), r#""end\000""#);
        assert_eq!(text(b"\xff\xfe\0\x01binary"), "0s//4AAWJpbmFyeQ==");
        assert_eq!(value(b"plain", Some(Encoding::Hex)), b"0x706c61696e");
        assert_eq!(quoted(b"user.na\nme\\q=", true), br"user.na\012me\134q\075");
        assert_eq!(quoted(b"a=b", false), b"a=b");
    }

    #[test]
    fn every_value_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"end\0", b"0x41", b"\"", br"\101", b"\\", &all[32..127]] {
            for encoding in [Encoding::Text, Encoding::Hex, Encoding::Base64].map(Some) {
                assert_eq!(parse_value(&value(bytes, encoding)).unwrap(), bytes, "{encoding:?}");
            }
            assert_eq!(parse_value(&value(bytes, None)).unwrap(), bytes);
            assert_eq!(unquoted(&quoted(bytes, true)), bytes);
        }
    }

    #[test]
    fn lines_of_setfattr_are_understood() {
        let attribute = |name: &[u8], value: &[u8]| Line::Attribute {
            name: name.to_vec(),
            value: value.to_vec(),
        };
        let parse = |line: &[u8]| Line::parse(line).unwrap();
        assert_eq!(parse(b"# file: a\\012b"), Line::File(b"a\nb".to_vec()));
        assert_eq!(parse(b"# anything"), Line::Comment);
        assert_eq!(parse(b""), Line::Empty);
        assert_eq!(parse(b"user.a"), attribute(b"user.a", b""));
        assert_eq!(parse(b"user.a=plain\\"), attribute(b"user.a", b"plain\\"));
        assert_eq!(parse(b"user.a\\075=\"x\\q\""), attribute(b"user.a=", b"x\\q"));
        assert_eq!(parse(b"user.a=0X41 4a"), attribute(b"user.a", b"AJ"));
        for bad in [&b"user.a=0x4"[..], b"user.a=0xzz", b"user.a=0s!"] {
            assert!(Line::parse(bad).is_err());
        }
    }
}
