//! The formats of stat(1): `%` directives and, with `--printf`, backslash escapes.

use uext4::{FileKind, Timestamp};

use super::FoundFile;
use crate::text;

/// A piece of a format.
#[derive(Debug)]
enum Piece {
    Text(Vec<u8>),
    Directive(Directive),
}

/// A directive: `%`, flags, width, precision, and its letters.
#[derive(Debug)]
struct Directive {
    left: bool,
    zeros: bool,
    alternate: bool,
    plus: bool,
    space: bool,
    width: usize,
    precision: Option<usize>,
    /// `H` or `L`: the major or the minor number.
    half: Option<u8>,
    letter: u8,
}

/// Longest width or precision: more is no column of any table.
const WIDTH_MAX: usize = 4096;

/// A format that has been taken apart.
#[derive(Debug)]
pub(super) struct Format(Vec<Piece>);

impl Format {
    /// Takes a format apart; `escapes` for that of `--printf`.
    pub(super) fn parse(text: &[u8], escapes: bool) -> Result<Self, String> {
        let (mut pieces, mut plain, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'%' if rest.first() == Some(&b'%') => {
                    plain.push(b'%');
                    rest = &rest[1..];
                }
                b'%' => {
                    let (directive, after) = Directive::parse(rest)?;
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.push(Piece::Directive(directive));
                    rest = after;
                }
                b'\\' if escapes => rest = escape(rest, &mut plain),
                _ => plain.push(*byte),
            }
        }
        pieces.push(Piece::Text(plain));
        Ok(Self(pieces))
    }

    /// Whether a directive is in it.
    pub(super) fn asks_for(&self, letters: &[u8]) -> bool {
        self.0.iter().any(|piece| match piece {
            Piece::Directive(directive) => letters.contains(&directive.letter),
            Piece::Text(_) => false,
        })
    }

    /// What it is for a file.
    pub(super) fn fill(&self, found: &FoundFile) -> Vec<u8> {
        let mut text = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.extend(plain),
                Piece::Directive(directive) => text.extend(directive.fill(found)),
            }
        }
        text
    }
}

/// Writes what an escape stands for; what comes after it.
fn escape<'t>(text: &'t [u8], out: &mut Vec<u8>) -> &'t [u8] {
    let Some((letter, rest)) = text.split_first() else {
        out.push(b'\\');
        return text;
    };
    let digits = |text: &[u8], base: u32, most: usize| {
        let is_digit = |byte: &&u8| char::from(**byte).is_digit(base);
        text.iter().take(most).take_while(is_digit).count()
    };
    let value = |digits: &[u8], base| {
        let digit = |byte: &u8| char::from(*byte).to_digit(base).unwrap_or(0);
        digits.iter().fold(0_u32, |value, byte| value * base + digit(byte)) as u8
    };
    let plain = match letter {
        b'a' => 7,
        b'b' => 8,
        b'e' => 27,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'0'..=b'7' => {
            let len = digits(text, 8, 3);
            out.push(value(&text[..len], 8));
            return &text[len..];
        }
        b'x' if digits(rest, 16, 2) > 0 => {
            let len = digits(rest, 16, 2);
            out.push(value(&rest[..len], 16));
            return &rest[len..];
        }
        b'\\' | b'"' => *letter,
        // As stat(1), which warns of it.
        other => *other,
    };
    out.push(plain);
    rest
}

/// What a directive stands for.
enum Value {
    Text(Vec<u8>),
    Unsigned(u64),
    Octal(u64),
    Hex(u64),
    /// Seconds with nanoseconds, of which the precision shows some.
    Time(Timestamp),
}

impl Directive {
    fn parse(text: &[u8]) -> Result<(Self, &[u8]), String> {
        let mut directive = Self {
            left: false,
            zeros: false,
            alternate: false,
            plus: false,
            space: false,
            width: 0,
            precision: None,
            half: None,
            letter: 0,
        };
        let mut rest = text;
        while let Some((flag, after)) = rest.split_first() {
            match flag {
                b'-' => directive.left = true,
                b'0' => directive.zeros = true,
                b'#' => directive.alternate = true,
                b'+' => directive.plus = true,
                b' ' => directive.space = true,
                // Groups of thousands, of which the C locale has none.
                b'\'' | b'I' => {}
                _ => break,
            }
            rest = after;
        }
        (directive.width, rest) = number(rest);
        if let Some(after) = rest.strip_prefix(b".") {
            let (precision, after) = number(after);
            directive.precision = Some(precision);
            rest = after;
        }
        let shown = || format!("%{}", String::from_utf8_lossy(text));
        if directive.width.max(directive.precision.unwrap_or(0)) > WIDTH_MAX {
            return Err(format!("'{}' is too wide", shown()));
        }
        if let [half @ (b'H' | b'L'), b'd' | b'r', ..] = rest {
            directive.half = Some(*half);
            rest = &rest[1..];
        }
        match rest.split_first() {
            Some((letter, after)) if b"aAbBCdDfFgGhimnNorRsStTuUwWxXyYzZ".contains(letter) => {
                directive.letter = *letter;
                Ok((directive, after))
            }
            _ => Err(format!("'{}' begins with no directive of stat(1)", shown())),
        }
    }

    fn value(&self, found: &FoundFile) -> Value {
        let attr = &found.attr;
        let text = |text: String| Value::Text(text.into_bytes());
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (major, minor) = match is_device {
            true => (u64::from(attr.rdev.major), u64::from(attr.rdev.minor)),
            false => (0, 0),
        };
        let birth = attr.crtime.unwrap_or(Timestamp { secs: 0, nanos: 0 });
        // As glibc's makedev puts numbers together; those of ext4 fit in 32 bits.
        let joined = (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12;
        match (self.letter, self.half) {
            (b'a', _) => Value::Octal(attr.mode.into()),
            (b'A', _) => text(text::mode(attr.kind, attr.mode)),
            (b'b', _) => Value::Unsigned(attr.blocks_512),
            (b'B', _) => Value::Unsigned(512),
            (b'C', _) => Value::Text(found.context.clone().unwrap_or_else(|| b"?".to_vec())),
            // An image has no device number.
            (b'd', _) => Value::Unsigned(0),
            (b'D', _) => Value::Hex(0),
            (b'f', _) => Value::Hex(u64::from(text::kind_bits(attr.kind) | attr.mode)),
            (b'F', _) => text(text::kind_words(attr.kind, attr.size).to_owned()),
            (b'g', _) => Value::Unsigned(attr.gid.into()),
            (b'G', _) => Value::Text(found.group.clone()),
            (b'h', _) => Value::Unsigned(attr.links.into()),
            (b'i', _) => Value::Unsigned(attr.ino.get().into()),
            (b'm', _) => text("/".to_owned()),
            (b'n', _) => Value::Text(found.path.path.clone()),
            (b'N', _) => Value::Text(quoted_with_target(found)),
            (b'o', _) => Value::Unsigned(attr.block_size.into()),
            (b'r', Some(b'H')) => Value::Unsigned(major),
            (b'r', Some(_)) => Value::Unsigned(minor),
            (b'r', None) => Value::Unsigned(joined),
            (b'R', _) => Value::Hex(joined),
            (b's', _) => Value::Unsigned(attr.size),
            (b't', _) => Value::Hex(major),
            (b'T', _) => Value::Hex(minor),
            (b'u', _) => Value::Unsigned(attr.uid.into()),
            (b'U', _) => Value::Text(found.user.clone()),
            (b'w', _) => text(attr.crtime.map_or("-".to_owned(), text::time_full)),
            (b'W', _) => Value::Time(birth),
            (b'x', _) => text(text::time_full(attr.atime)),
            (b'X', _) => Value::Time(attr.atime),
            (b'y', _) => text(text::time_full(attr.mtime)),
            (b'Y', _) => Value::Time(attr.mtime),
            (b'z', _) => text(text::time_full(attr.ctime)),
            (b'Z', _) => Value::Time(attr.ctime),
            _ => text("?".to_owned()),
        }
    }

    fn fill(&self, found: &FoundFile) -> Vec<u8> {
        let signed = |digits: String, is_negative: bool| match (is_negative, self.plus, self.space)
        {
            (true, ..) => format!("-{digits}"),
            (_, true, _) => format!("+{digits}"),
            (_, _, true) => format!(" {digits}"),
            _ => digits,
        };
        let at_least = |digits: String| {
            let width = self.precision.unwrap_or(0);
            format!("{digits:0>width$}")
        };
        let (text, is_number) = match self.value(found) {
            Value::Text(mut text) => {
                text.truncate(self.precision.unwrap_or(usize::MAX));
                (text, false)
            }
            Value::Unsigned(number) => (at_least(number.to_string()).into_bytes(), true),
            Value::Octal(number) => {
                let mark = if self.alternate && number != 0 { "0" } else { "" };
                (format!("{mark}{}", at_least(format!("{number:o}"))).into_bytes(), true)
            }
            Value::Hex(number) => {
                let mark = if self.alternate && number != 0 { "0x" } else { "" };
                (format!("{mark}{}", at_least(format!("{number:x}"))).into_bytes(), true)
            }
            Value::Time(time) => {
                let (digits, is_negative) = seconds(time, self.precision.unwrap_or(0));
                (signed(digits, is_negative).into_bytes(), true)
            }
        };
        let fill = self.width.saturating_sub(text.len());
        match (self.left, self.zeros && is_number) {
            (true, _) => [text, vec![b' '; fill]].concat(),
            (false, true) => {
                let marks = text.iter().take_while(|byte| b"+- ".contains(byte)).count();
                let (mark, digits) = text.split_at(marks);
                [mark, &vec![b'0'; fill], digits].concat()
            }
            (false, false) => [vec![b' '; fill], text].concat(),
        }
    }
}

/// A time with so many digits of its fraction, without its sign. Rounded down, as by stat(1).
fn seconds(time: Timestamp, precision: usize) -> (String, bool) {
    let nanos = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let shown = precision.min(9);
    let unit = 10_i128.pow(9 - shown as u32);
    let units = nanos.div_euclid(unit);
    let (is_negative, units) = (units < 0, units.unsigned_abs());
    if precision == 0 {
        return (units.to_string(), is_negative);
    }
    let per_second = 10_u128.pow(shown as u32);
    let fraction = format!("{:0shown$}", units % per_second);
    (format!("{}.{fraction:0<precision$}", units / per_second), is_negative)
}

/// A decimal number, and what is behind it.
fn number(text: &[u8]) -> (usize, &[u8]) {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(len);
    let digit = |byte: &u8| usize::from(byte - b'0');
    let add = |value: usize, byte| value.saturating_mul(10).saturating_add(digit(byte));
    (digits.iter().fold(0, add), rest)
}

/// The name in quotes as a shell takes it, and what a link leads to.
fn quoted_with_target(found: &FoundFile) -> Vec<u8> {
    let mut text = quoted(&found.path.path);
    if let Some(target) = &found.target {
        text.extend(b" -> ");
        text.extend(quoted(target));
    }
    text
}

fn quoted(name: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| !byte.is_ascii_control();
    if name.contains(&b'\'') && !name.iter().any(|byte| b"\"\\$`".contains(byte)) {
        return [b"\"", name, b"\""].concat();
    }
    let mut text = vec![b'\''];
    for byte in name {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            byte if is_plain(byte) => text.push(*byte),
            b'\n' => text.extend(b"'$'\\n''"),
            b'\t' => text.extend(b"'$'\\t''"),
            other => text.extend(format!("'$'\\{other:03o}''").into_bytes()),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_down() {
        let of = |secs, nanos, precision| seconds(Timestamp { secs, nanos }, precision);
        assert_eq!(of(5, 123_456_789, 0), ("5".into(), false));
        assert_eq!(of(5, 123_456_789, 3), ("5.123".into(), false));
        assert_eq!(of(5, 123_456_789, 11), ("5.12345678900".into(), false));
        assert_eq!(of(-1, 500_000_000, 0), ("1".into(), true));
        assert_eq!(of(-1, 500_000_000, 1), ("0.5".into(), true));
    }

    #[test]
    fn what_is_no_directive_is_refused() {
        for bad in ["%", "%q", "%-", "%5", "%.q", "%99999n", "%H", "%Hs"] {
            assert!(Format::parse(bad.as_bytes(), false).is_err(), "{bad}");
        }
    }
}
