//! The header block: taken apart, and made.

use crate::entry::Time;
use crate::input::BLOCK;

/// A field: where it starts and how long it is.
type Field = (usize, usize);

const NAME: Field = (0, 100);
const MODE: Field = (100, 8);
const UID: Field = (108, 8);
const GID: Field = (116, 8);
const SIZE: Field = (124, 12);
const MTIME: Field = (136, 12);
const SUM: Field = (148, 8);
const TYPE: usize = 156;
const LINK: Field = (157, 100);
const MAGIC: Field = (257, 8);
const UNAME: Field = (265, 32);
const GNAME: Field = (297, 32);
const MAJOR: Field = (329, 8);
const MINOR: Field = (337, 8);
const PREFIX: Field = (345, 155);
/// Archives of star end the prefix earlier, where they have times.
const STAR_PREFIX: Field = (345, 131);
const STAR_MARK: Field = (508, 4);

/// Which fields a header has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Neither owner's name nor device numbers.
    V7,
    /// With a prefix of the name.
    Ustar,
    /// With other fields in the prefix's place.
    Gnu,
}

/// A header whose checksum is right.
pub(crate) struct Header {
    block: [u8; BLOCK],
    dialect: Dialect,
}

impl Header {
    /// A header; `None` if the checksum is wrong.
    pub(crate) fn read(block: [u8; BLOCK]) -> Option<Self> {
        let want = octal(field(&block, SUM))?;
        // With blanks in the place of the sum itself. Old programs added bytes with a sign.
        let (mut sum, mut signed) = (0, 0);
        for (index, byte) in block.iter().enumerate() {
            let byte = if (SUM.0..SUM.0 + SUM.1).contains(&index) { b' ' } else { *byte };
            sum += i64::from(byte);
            signed += i64::from(byte as i8);
        }
        let want = i64::try_from(want).ok()?;
        if want != sum && want != signed {
            return None;
        }
        let dialect = match field(&block, MAGIC) {
            b"ustar  \0" => Dialect::Gnu,
            magic if magic.starts_with(b"ustar") => Dialect::Ustar,
            _ => Dialect::V7,
        };
        Some(Self { block, dialect })
    }

    pub(crate) fn type_byte(&self) -> u8 {
        self.block[TYPE]
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Name with its prefix.
    pub(crate) fn name(&self) -> Vec<u8> {
        let name = text(field(&self.block, NAME));
        let is_star = field(&self.block, STAR_MARK) == b"tar\0";
        let place = if is_star { STAR_PREFIX } else { PREFIX };
        let prefix = text(field(&self.block, place));
        match self.dialect {
            Dialect::Ustar if !prefix.is_empty() => [prefix, b"/", name].concat(),
            _ => name.to_vec(),
        }
    }

    pub(crate) fn link(&self) -> Vec<u8> {
        text(field(&self.block, LINK)).to_vec()
    }

    pub(crate) fn uname(&self) -> Vec<u8> {
        self.newer(UNAME).to_vec()
    }

    pub(crate) fn gname(&self) -> Vec<u8> {
        self.newer(GNAME).to_vec()
    }

    fn newer(&self, place: Field) -> &[u8] {
        if self.dialect == Dialect::V7 { b"" } else { text(field(&self.block, place)) }
    }

    pub(crate) fn size(&self) -> Option<u64> {
        self.unsigned(SIZE)
    }

    pub(crate) fn mode(&self) -> Option<u64> {
        self.unsigned(MODE)
    }

    pub(crate) fn uid(&self) -> Option<u64> {
        self.unsigned(UID)
    }

    pub(crate) fn gid(&self) -> Option<u64> {
        self.unsigned(GID)
    }

    pub(crate) fn mtime(&self) -> Option<i64> {
        number(field(&self.block, MTIME))
    }

    /// Major and minor number.
    pub(crate) fn device(&self) -> Option<(u64, u64)> {
        Some((self.unsigned(MAJOR)?, self.unsigned(MINOR)?))
    }

    fn unsigned(&self, place: Field) -> Option<u64> {
        number(field(&self.block, place)).and_then(|value| u64::try_from(value).ok())
    }

    /// The bytes themselves, for the fields of GNU's sparse files.
    pub(crate) fn block(&self) -> &[u8; BLOCK] {
        &self.block
    }
}

fn field(block: &[u8; BLOCK], (start, len): Field) -> &[u8] {
    &block[start..start + len]
}

/// A text up to its zero byte.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// Octal digits between blanks and zero bytes; none are 0.
fn octal(field: &[u8]) -> Option<u64> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_blank(byte)).unwrap_or(field.len());
    let digits = &field[start..];
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    let mut value = 0_u64;
    for digit in &digits[..end] {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value = value.checked_mul(8)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A number: octal digits, or binary with the highest bit of the first byte set, which is negative
/// with the next one set too.
pub(crate) fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 == 0 {
        return i64::try_from(octal(field)?).ok();
    }
    let is_negative = first & 0x40 != 0;
    let mut value =
        if is_negative { -1_i64 << 7 | i64::from(*first) } else { i64::from(first & 0x7f) };
    for byte in rest {
        value = value.checked_mul(256)?.checked_add(i64::from(*byte))?;
    }
    Some(value)
}

/// A header to write. Values that do not fit their fields are 0: an extended header has them.
pub(crate) struct NewHeader {
    block: [u8; BLOCK],
}

impl NewHeader {
    pub(crate) fn new(type_byte: u8, name: &[u8]) -> Self {
        let mut header = Self { block: [0; BLOCK] };
        header.put(NAME, &name[..name.len().min(NAME.1)]);
        header.block[TYPE] = type_byte;
        header.put(MAGIC, b"ustar\x0000");
        header
    }

    fn put(&mut self, (start, _): Field, bytes: &[u8]) {
        self.block[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn put_number(&mut self, place: Field, value: u64) -> bool {
        let digits = place.1 - 1;
        let fits = value >> (3 * digits) == 0;
        let value = if fits { value } else { 0 };
        self.put(place, format!("{value:0digits$o}").as_bytes());
        fits
    }

    pub(crate) fn mode(&mut self, mode: u16) {
        self.put_number(MODE, u64::from(mode));
    }

    /// Whether it fits.
    pub(crate) fn uid(&mut self, uid: u32) -> bool {
        self.put_number(UID, u64::from(uid))
    }

    /// Whether it fits.
    pub(crate) fn gid(&mut self, gid: u32) -> bool {
        self.put_number(GID, u64::from(gid))
    }

    /// Whether it fits.
    pub(crate) fn size(&mut self, size: u64) -> bool {
        self.put_number(SIZE, size)
    }

    /// Whether it fits.
    pub(crate) fn mtime(&mut self, time: Time) -> bool {
        let secs = u64::try_from(time.secs).ok();
        self.put_number(MTIME, secs.unwrap_or(0)) && secs.is_some() && time.nanos == 0
    }

    /// Whether both fit.
    pub(crate) fn device(&mut self, major: u32, minor: u32) -> bool {
        let fits = self.put_number(MAJOR, u64::from(major));
        self.put_number(MINOR, u64::from(minor)) && fits
    }

    /// Whether it fits.
    pub(crate) fn link(&mut self, target: &[u8]) -> bool {
        self.put_text(LINK, target, LINK.1)
    }

    /// Whether it fits.
    pub(crate) fn uname(&mut self, name: &[u8]) -> bool {
        self.put_text(UNAME, name, UNAME.1 - 1)
    }

    /// Whether it fits.
    pub(crate) fn gname(&mut self, name: &[u8]) -> bool {
        self.put_text(GNAME, name, GNAME.1 - 1)
    }

    fn put_text(&mut self, place: Field, text: &[u8], max: usize) -> bool {
        self.put(place, &text[..text.len().min(max)]);
        text.len() <= max
    }

    /// Whether a name fits without an extended header.
    pub(crate) fn name_fits(name: &[u8]) -> bool {
        name.len() <= NAME.1
    }

    /// The block with its checksum.
    pub(crate) fn finish(mut self) -> [u8; BLOCK] {
        self.put(SUM, b"        ");
        let sum: u32 = self.block.iter().map(|byte| u32::from(*byte)).sum();
        self.put(SUM, format!("{sum:06o}\0 ").as_bytes());
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, want) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"77777777", Some(0o77_777_777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"00009\0\0\0", None),
            (b"-1\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\0\0\x01\x02", Some(258)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00", Some(-256)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(number(field), want, "{field:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let mut new = NewHeader::new(b'0', b"name");
        assert!(new.uid(0o7_777_777) && !new.gid(0o10_000_000));
        assert!(new.size((8 << 30) - 1) && !new.size(8 << 30));
        assert!(!new.mtime(Time { secs: -1, nanos: 0 }) && !new.mtime(Time { secs: 1, nanos: 1 }));
        let mut block = new.finish();
        let header = Header::read(block).unwrap();
        assert_eq!((header.name(), header.uid()), (b"name".to_vec(), Some(0o7_777_777)));
        block[0] ^= 1;
        assert!(Header::read(block).is_none());
    }
}
