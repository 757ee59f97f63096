//! Records of pax extended headers: `LENGTH KEY=VALUE\n`, applied one after the other.
//!
//! Keys that are not known are left out. A value that cannot be used refuses the entry; a record or
//! a length that cannot be read loses the stream, because nothing behind it can be found.

use crate::entry::{Time, Xattr};
use crate::sparse::Words;

/// Most bytes of all extended headers of one entry.
pub(crate) const EXTENDED_MAX: u64 = 16 << 20;
/// Longest value of an attribute in the kernel.
const XATTR_VALUE_MAX: usize = 64 << 10;
/// Longest name of a user or group; the kernel's programs know shorter ones only.
const OWNER_NAME_MAX: usize = 255;
/// Most bytes that the names of one file's attributes take in the kernel.
const XATTR_NAMES_MAX: usize = 64 << 10;

const MALFORMED: &str = "extended header with a malformed record";
const BAD_SIZE: &str = "extended header with a size that is no number";

/// What extended headers say of an entry; what they do not, the header has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extended {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) uname: Option<Vec<u8>>,
    pub(crate) gname: Option<Vec<u8>>,
    pub(crate) mtime: Option<Time>,
    pub(crate) atime: Option<Time>,
    pub(crate) major: Option<u64>,
    pub(crate) minor: Option<u64>,
    pub(crate) acl_access: Option<Vec<u8>>,
    pub(crate) acl_default: Option<Vec<u8>>,
    pub(crate) sparse: Words,
    /// Whether a header was there at all.
    pub(crate) is_pax: bool,
    /// The first value that could not be used.
    pub(crate) fault: Option<String>,
    xattrs: Vec<Xattr>,
    /// The same attributes in another writing, for archives without the first.
    second_xattrs: Vec<Xattr>,
    xattr_names: usize,
}

impl Extended {
    /// Applies a header of one entry.
    pub(crate) fn apply(&mut self, records: &[u8]) -> Result<(), &'static str> {
        self.is_pax = true;
        for record in Records(records) {
            let (key, value) = record?;
            if !self.common(key, value) {
                self.own(key, value)?;
            }
        }
        Ok(())
    }

    /// Applies a header for all that follows: owners and times. What names one entry is left out.
    pub(crate) fn apply_global(&mut self, records: &[u8]) -> Result<(), &'static str> {
        for record in Records(records) {
            let (key, value) = record?;
            self.common(key, value);
        }
        Ok(())
    }

    /// Takes the attributes.
    pub(crate) fn take_xattrs(&mut self) -> Vec<Xattr> {
        let mut xattrs = std::mem::take(&mut self.xattrs);
        for xattr in std::mem::take(&mut self.second_xattrs) {
            if !xattrs.iter().any(|known| known.name == xattr.name) {
                xattrs.push(xattr);
            }
        }
        xattrs
    }

    /// Whether the key is one of those that may stand for many entries. An empty value takes back.
    fn common(&mut self, key: &[u8], value: &[u8]) -> bool {
        match key {
            b"uid" => self.uid = self.given(key, value, decimal),
            b"gid" => self.gid = self.given(key, value, decimal),
            b"uname" => self.uname = self.given(key, value, owner_name),
            b"gname" => self.gname = self.given(key, value, owner_name),
            b"mtime" => self.mtime = self.given(key, value, time),
            b"atime" => self.atime = self.given(key, value, time),
            _ => return false,
        }
        true
    }

    fn own(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"path" => self.path = self.given(key, value, bytes),
            b"linkpath" => self.link = self.given(key, value, bytes),
            b"size" if value.is_empty() => self.size = None,
            b"size" => self.size = Some(decimal(value).ok_or(BAD_SIZE)?),
            b"SCHILY.devmajor" => self.major = self.given(key, value, decimal),
            b"SCHILY.devminor" => self.minor = self.given(key, value, decimal),
            b"SCHILY.acl.access" => self.acl_access = self.given(key, value, bytes),
            b"SCHILY.acl.default" => self.acl_default = self.given(key, value, bytes),
            b"RHT.security.selinux" => self.xattr(b"security.selinux".to_vec(), value.to_vec()),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattr(attribute_name(name), value.to_vec());
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    match unescape(name).zip(base64(value)) {
                        Some((name, value)) => self.second_xattr(name, value),
                        None => self.note(key),
                    }
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.apply(key, value)?;
                }
            }
        }
        Ok(())
    }

    /// A value, or none if it is empty; one that cannot be read is noted.
    fn given<T>(
        &mut self,
        key: &[u8],
        value: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        if value.is_empty() {
            return None;
        }
        let read = read(value);
        if read.is_none() {
            self.note(key);
        }
        read
    }

    fn note(&mut self, key: &[u8]) {
        let key = String::from_utf8_lossy(key);
        self.fault.get_or_insert_with(|| format!("has a value of '{key}' that cannot be used"));
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        if self.is_xattr(&name, &value) {
            put(&mut self.xattrs, name, value);
        }
    }

    fn second_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        if self.is_xattr(&name, &value) {
            put(&mut self.second_xattrs, name, value);
        }
    }

    fn is_xattr(&mut self, name: &[u8], value: &[u8]) -> bool {
        self.xattr_names += name.len() + 1;
        let fault = if name.is_empty() || name.len() > 255 || name.contains(&0) {
            "has an attribute whose name cannot be used"
        } else if value.len() > XATTR_VALUE_MAX {
            "has an attribute of more than 64 KiB"
        } else if self.xattr_names > XATTR_NAMES_MAX {
            "has more extended attributes than a file can have"
        } else {
            return true;
        };
        self.fault.get_or_insert_with(|| fault.to_owned());
        false
    }
}

/// Adds an attribute; the last of a name wins.
fn put(xattrs: &mut Vec<Xattr>, name: Vec<u8>, value: Vec<u8>) {
    match xattrs.iter_mut().find(|xattr| xattr.name == name) {
        Some(xattr) => xattr.value = value,
        None => xattrs.push(Xattr { name, value }),
    }
}

/// Keys and values of a header.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_none() {
            self.0 = &[];
        }
        Some(record.ok_or(MALFORMED))
    }
}

impl<'a> Records<'a> {
    fn record(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let blank = self.0.iter().take(21).position(|byte| *byte == b' ')?;
        let len = usize::try_from(decimal(&self.0[..blank])?).ok()?;
        let (record, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        let (key, value) = split(record.get(blank + 1..)?.strip_suffix(b"\n")?)?;
        (!key.is_empty()).then_some((key, value))
    }
}

fn split(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..at], &record[at + 1..]))
}

/// A record to write.
pub(crate) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    // The length counts its own digits.
    let mut len = rest;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

fn bytes(value: &[u8]) -> Option<Vec<u8>> {
    Some(value.to_vec())
}

fn owner_name(value: &[u8]) -> Option<Vec<u8>> {
    (value.len() <= OWNER_NAME_MAX).then(|| value.to_vec())
}

/// Seconds with a sign and a fraction; digits beyond nanoseconds are dropped, downwards.
fn time(text: &[u8]) -> Option<Time> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let secs = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |index| fraction.get(index).map_or(0, |digit| u32::from(digit - b'0'));
    let nanos = (0..9).fold(0, |nanos, index| nanos * 10 + digit(index));
    let is_exact = fraction.iter().skip(9).all(|digit| *digit == b'0');
    Some(match is_negative {
        false => Time { secs, nanos },
        true if nanos == 0 && is_exact => Time { secs: -secs, nanos: 0 },
        true if is_exact => Time { secs: -secs - 1, nanos: 1_000_000_000 - nanos },
        true => Time { secs: -secs - 1, nanos: 999_999_999 - nanos },
    })
}

/// The text of a time, without a fraction of zeros.
pub(crate) fn time_text(time: Time) -> String {
    let (mut secs, mut nanos) = (i128::from(time.secs), time.nanos);
    let is_negative = secs < 0;
    if is_negative {
        secs = -secs;
        if nanos > 0 {
            (secs, nanos) = (secs - 1, 1_000_000_000 - nanos);
        }
    }
    let sign = if is_negative { "-" } else { "" };
    let fraction = if nanos > 0 { format!(".{nanos:09}") } else { String::new() };
    format!("{sign}{secs}{}", fraction.trim_end_matches('0'))
}

/// The name of an attribute as GNU tar writes it in a key: without an equals sign, which would end
/// the key.
pub(crate) fn attribute_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for byte in name {
        match byte {
            b'%' => key.extend(b"%25"),
            b'=' => key.extend(b"%3D"),
            byte => key.push(*byte),
        }
    }
    key
}

/// The name that [`attribute_key`] wrote. Other escapes stand for themselves.
fn attribute_name(mut key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    while let Some((first, rest)) = key.split_first() {
        let (byte, rest) = match (first, rest) {
            (b'%', [b'2', b'5', rest @ ..]) => (b'%', rest),
            (b'%', [b'3', b'D', rest @ ..]) => (b'=', rest),
            _ => (*first, rest),
        };
        name.push(byte);
        key = rest;
    }
    name
}

/// `%41` is `A`.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let (hex, after) = rest.split_first_chunk::<2>()?;
        out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = after;
    }
    Some(out)
}

/// Base 64 with or without padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_ascii_end().iter().take_while(|byte| **byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_digits() {
        assert_eq!(record(b"a", b"b"), b"6 a=b\n");
        for len in 0..200 {
            let record = record(b"key", &vec![b'v'; len]);
            let found: Vec<_> = Records(&record).collect();
            assert_eq!(found, [Ok((&b"key"[..], &vec![b'v'; len][..]))]);
        }
    }

    #[test]
    fn malformed_records_are_told() {
        for bad in [
            "6 a=b",
            "7 a=b\n",
            "5 a=b\n",
            "x a=b\n",
            "6 =bc\n",
            "5 ab\n",
            "+6 a=b\n",
            "99999999999999999999 a=b\n",
            "4 a\n",
            " 6 a=b\n",
            "0 a=b\n",
            "6a=b\n\n\n",
        ] {
            assert_eq!(Extended::default().apply(bad.as_bytes()), Err(MALFORMED), "{bad:?}");
        }
        assert_eq!(Extended::default().apply(&record(b"size", b"-1")), Err(BAD_SIZE));
    }

    #[test]
    fn times_are_read_downwards_and_come_back() {
        for (text, secs, nanos) in [
            ("0", 0, 0),
            ("1.5", 1, 500_000_000),
            ("1.1234567899", 1, 123_456_789),
            ("-1", -1, 0),
            ("-1.25", -2, 750_000_000),
            ("-0.000000001", -1, 999_999_999),
            ("-0.0000000001", -1, 999_999_999),
        ] {
            assert_eq!(time(text.as_bytes()), Some(Time { secs, nanos }), "{text}");
        }
        for text in ["", "x", "1.x", "1.2.3", "--1", "9223372036854775808", "."] {
            assert_eq!(time(text.as_bytes()), None, "{text}");
        }
        for secs in [i64::MIN + 1, -2, -1, 0, 1, i64::MAX] {
            for nanos in [0, 1, 500_000_000, 999_999_999] {
                let moment = Time { secs, nanos };
                assert_eq!(time(time_text(moment).as_bytes()), Some(moment));
            }
        }
    }

    #[test]
    fn both_writings_of_an_attribute_are_read() {
        let mut extended = Extended::default();
        let records = [
            record(b"LIBARCHIVE.xattr.user.%61", b"AQID"),
            record(b"LIBARCHIVE.xattr.user.b", b"/w=="),
            record(b"SCHILY.xattr.user.b", b"a=\0\n"),
        ];
        extended.apply(&records.concat()).unwrap();
        let xattr =
            |name: &[u8], value: &[u8]| Xattr { name: name.to_vec(), value: value.to_vec() };
        assert_eq!(
            extended.take_xattrs(),
            [xattr(b"user.b", b"a=\0\n"), xattr(b"user.a", b"\x01\x02\x03")]
        );
        let mut many = Extended::default();
        let records: Vec<u8> = (0..1000)
            .flat_map(|n| record(format!("SCHILY.xattr.user.{n:0200}").as_bytes(), b""))
            .collect();
        many.apply(&records).unwrap();
        assert!(many.fault.unwrap().contains("more extended attributes"));
        assert!(many.xattrs.len() < 400);
    }
}
