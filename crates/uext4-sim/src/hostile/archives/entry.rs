//! Entries of archives, with headers whose checksums are right.

use zerocopy::big_endian::U64;

/// Bytes of a header, and the unit of everything in an archive.
pub(super) const BLOCK: usize = 512;

/// Where a header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// Largest length in octal digits.
const OCTAL_MAX: u64 = (1 << 33) - 1;

/// An entry to write.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) owner: u64,
    pub(super) mtime: u64,
    pub(super) device: (u32, u32),
    pub(super) content: Vec<u8>,
    /// What the header says, where that is not the length of the content.
    pub(super) len: Option<u64>,
    /// Records of an extended header before it.
    pub(super) records: Vec<Vec<u8>>,
    /// Bytes of the header itself: where, and what.
    pub(super) fields: Vec<(usize, Vec<u8>)>,
}

impl Entry {
    pub(super) fn new(kind: u8, name: impl AsRef<[u8]>) -> Self {
        Self {
            kind,
            name: name.as_ref().to_vec(),
            link: Vec::new(),
            mode: if kind == b'5' { 0o755 } else { 0o644 },
            owner: 0,
            mtime: 1_700_000_000,
            device: (1, 3),
            content: Vec::new(),
            len: None,
            records: Vec::new(),
            fields: Vec::new(),
        }
    }

    pub(super) fn link(name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Self {
        Self { link: to.as_ref().to_vec(), ..Self::new(b'2', name) }
    }

    pub(super) fn hard(name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Self {
        Self { link: to.as_ref().to_vec(), ..Self::new(b'1', name) }
    }

    pub(super) fn file(name: impl AsRef<[u8]>, len: usize) -> Self {
        Self { content: vec![b'c'; len], ..Self::new(b'0', name) }
    }

    pub(super) fn with(mut self, record: impl AsRef<[u8]>) -> Self {
        self.records.push(self::record(record.as_ref()));
        self
    }

    /// Its blocks; names that do not fit are in the long form of GNU's, or in records of pax.
    pub(super) fn write(&self, is_pax: bool, bytes: &mut Vec<u8>) {
        let mut records = self.records.concat();
        for (text, key, kind) in [(&self.name, "path", b'L'), (&self.link, "linkpath", b'K')] {
            if text.len() > 100 && is_pax {
                records.extend(record(&[key.as_bytes(), b"=", text].concat()));
            } else if text.len() > 100 {
                let content = [&text[..], &[0]].concat();
                Self { content, ..Self::new(kind, "././@LongLink") }.write(is_pax, bytes);
            }
        }
        if !records.is_empty() {
            Self { content: records, ..Self::new(b'x', "records") }.write(is_pax, bytes);
        }
        let mut header = self.header(is_pax);
        seal(&mut header);
        bytes.extend(header);
        bytes.extend(&self.content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }

    fn header(&self, is_pax: bool) -> Vec<u8> {
        let mut header = vec![0; BLOCK];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, &self.name[..self.name.len().min(100)]);
        put(100, format!("{:07o}", self.mode & 0o7_777_777).as_bytes());
        put(108, &number(self.owner, 8));
        put(116, &number(self.owner, 8));
        put(124, &number(self.len.unwrap_or(self.content.len() as u64), 12));
        put(136, &number(self.mtime, 12));
        put(156, &[self.kind]);
        put(157, &self.link[..self.link.len().min(100)]);
        put(257, if is_pax { b"ustar\x0000" } else { b"ustar  \0" });
        put(329, &number(self.device.0.into(), 8));
        put(337, &number(self.device.1.into(), 8));
        for (at, field) in &self.fields {
            put(*at, field);
        }
        header
    }
}

/// A number in octal digits, or in base 256 where these do not suffice.
pub(super) fn number(value: u64, width: usize) -> Vec<u8> {
    let max = if width == 12 { OCTAL_MAX } else { 0o7_777_777 };
    if value <= max {
        return format!("{value:0digits$o}\0", digits = width - 1).into_bytes();
    }
    let mut field = vec![0; width];
    let bytes = U64::new(value).to_bytes();
    field[width - width.min(8)..].copy_from_slice(&bytes[8 - width.min(8)..]);
    field[0] |= 0x80;
    field
}

/// A record of an extended header, with its own length before it.
pub(super) fn record(text: &[u8]) -> Vec<u8> {
    let mut len = text.len() + 3;
    loop {
        let record = [format!("{len} ").as_bytes(), text, b"\n"].concat();
        if record.len() == len {
            return record;
        }
        len = record.len();
    }
}

/// Gives a header the checksum that its bytes have.
pub(super) fn seal(header: &mut [u8]) {
    header[CHECKSUM].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
