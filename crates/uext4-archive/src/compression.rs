//! Compression of the whole stream: found by content when reading, by suffix when writing.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flate2::bufread::GzDecoder;

use crate::error::{Error, Result};
use crate::header::Header;

/// Bytes at the start of a stream that are looked at.
const MAGIC_BYTES: usize = 512;
/// Most memory that an xz stream may ask for: eight times what `xz -9` needs.
const XZ_MEMORY: u64 = 512 << 20;
const BUFFER_BYTES: usize = 128 << 10;

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// It is not.
    Plain,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
}

/// The starts of formats that are read.
const READ: &[(&[u8], Format)] = &[
    (b"\x1f\x8b", Format::Gzip),
    (b"\x28\xb5\x2f\xfd", Format::Zstd),
    (b"\xfd7zXZ\0", Format::Xz),
];

/// The starts of formats that are not, and what helps.
const FOREIGN: &[(&[u8], &str)] = &[
    (b"BZh", "is compressed by bzip2, which is not read; use bzip2 -dc FILE | uext4 ... -"),
    (
        b"\x04\x22\x4d\x18",
        "is compressed by lz4, which is not read; use lz4 -dc FILE | uext4 ... -",
    ),
    (b"LZIP", "is compressed by lzip, which is not read; use lzip -dc FILE | uext4 ... -"),
    (
        b"\x1f\x9d",
        "is compressed by compress, which is not read; use uncompress -c FILE | uext4 ... -",
    ),
    (b"PK\x03\x04", "is a zip archive, not a tar archive"),
    (b"070701", "is a cpio archive, not a tar archive"),
    (b"070702", "is a cpio archive, not a tar archive"),
    (b"070707", "is a cpio archive, not a tar archive"),
    (b"!<arch>\n", "is an ar archive (a .deb?), not a tar archive"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive, not a tar archive"),
    (b"hsqs", "is a squashfs image, not a tar archive"),
];

/// The suffixes of names, the longest first.
const SUFFIXES: &[(&[u8], Format)] = &[
    (b".tar.zst", Format::Zstd),
    (b".tar.gz", Format::Gzip),
    (b".tar.xz", Format::Xz),
    (b".tzst", Format::Zstd),
    (b".tgz", Format::Gzip),
    (b".txz", Format::Xz),
    (b".tar", Format::Plain),
];

impl Format {
    /// The format that a file of this name has; `None` if it is not that of a tar archive.
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name().map_or(&b""[..], OsStr::as_bytes).to_ascii_lowercase();
        let (_, format) = SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix))?;
        Some(*format)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "tar",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }

    /// The format of a stream and the stream uncompressed.
    pub(crate) fn open(mut stream: Box<dyn Read + Send>) -> Result<(Self, Box<dyn Read + Send>)> {
        let mut start = Vec::with_capacity(MAGIC_BYTES);
        stream.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
        if start.is_empty() {
            return Err(Error::Foreign("is empty, not a tar archive"));
        }
        let block = start.as_slice().try_into().ok();
        if block.and_then(Header::read).is_some() {
            // The name of the first entry may begin as another format does.
            return Ok((Self::Plain, Box::new(io::Cursor::new(start).chain(stream))));
        }
        if let Some((_, help)) = FOREIGN.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(Error::Foreign(help));
        }
        let found = READ.iter().find(|(magic, _)| start.starts_with(magic));
        let format = found.map_or(Self::Plain, |(_, format)| *format);
        let whole = io::Cursor::new(start).chain(stream);
        Ok((format, format.decoder(whole).map_err(|error| format.fault(error, 0))?))
    }

    fn decoder(self, stream: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        let buffered = |stream| BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(match self {
            Self::Plain => Box::new(stream),
            Self::Gzip => Box::new(Gzip::new(buffered(stream))),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(buffered(stream))?),
            Self::Xz => {
                let concatenated = liblzma::stream::CONCATENATED;
                let state = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, concatenated)?;
                let stream = buffered(stream);
                Box::new(liblzma::bufread::XzDecoder::new_stream(stream, state))
            }
        })
    }

    /// What an error of a read means after `at` uncompressed bytes.
    pub(crate) fn fault(self, error: io::Error, at: u64) -> Error {
        if self == Self::Plain || error.raw_os_error().is_some() {
            return Error::Io(error);
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Truncated { at },
            _ => Error::Compression { format: self.name(), why: error.to_string() },
        }
    }
}

/// gzip streams one after the other. Zeros may follow the last, as gzip(1) has it: what writes
/// whole blocks fills the last one.
struct Gzip<R: BufRead> {
    /// `None` at the end.
    decoder: Option<GzDecoder<R>>,
}

impl<R: BufRead> Gzip<R> {
    fn new(stream: R) -> Self {
        Self { decoder: Some(GzDecoder::new(stream)) }
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let count = decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if zeros_to_the_end(decoder.get_mut())? {
                self.decoder = None;
            } else if let Some(decoder) = self.decoder.take() {
                self.decoder = Some(GzDecoder::new(decoder.into_inner()));
            }
        }
        Ok(0)
    }
}

/// Passes over zeros. Whether nothing else follows.
fn zeros_to_the_end(stream: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match stream.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        if zeros < bytes.len() || bytes.is_empty() {
            let is_end = bytes.is_empty();
            stream.consume(zeros);
            return Ok(is_end);
        }
        stream.consume(zeros);
    }
}

/// A stream that is compressed as it is written.
pub enum Encoder<W: Write> {
    /// Not compressed.
    Plain(BufWriter<W>),
    /// gzip, without a time.
    Gzip(flate2::write::GzEncoder<BufWriter<W>>),
    /// Zstandard.
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<W>>),
    /// xz.
    Xz(liblzma::write::XzEncoder<BufWriter<W>>),
}

impl<W: Write> Encoder<W> {
    /// Compresses at the level that the format's own program has as its default.
    pub fn new(format: Format, stream: W) -> io::Result<Self> {
        let stream = BufWriter::with_capacity(BUFFER_BYTES, stream);
        Ok(match format {
            Format::Plain => Self::Plain(stream),
            Format::Gzip => {
                Self::Gzip(flate2::write::GzEncoder::new(stream, flate2::Compression::default()))
            }
            Format::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(stream, 3)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
            Format::Xz => Self::Xz(liblzma::write::XzEncoder::new(stream, 6)),
        })
    }

    /// Ends the stream; all of it has been written to what is given back.
    pub fn finish(self) -> io::Result<W> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
            Self::Xz(encoder) => encoder.finish()?,
        };
        stream.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buffer),
            Self::Gzip(encoder) => encoder.write(buffer),
            Self::Zstd(encoder) => encoder.write(buffer),
            Self::Xz(encoder) => encoder.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
            Self::Xz(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_format() {
        for (name, want) in [
            ("a.tar", Some(Format::Plain)),
            ("/x/a.TAR.GZ", Some(Format::Gzip)),
            ("a.tgz", Some(Format::Gzip)),
            ("a.tar.zst", Some(Format::Zstd)),
            ("a.txz", Some(Format::Xz)),
            ("tar", None),
            ("a.tar/b", None),
            ("a.zip", None),
        ] {
            assert_eq!(Format::of_name(Path::new(name)), want, "{name}");
        }
    }

    /// What is compressed comes back, also from two streams one after the other.
    #[test]
    fn content_says_the_format() {
        let data: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for format in [Format::Plain, Format::Gzip, Format::Zstd, Format::Xz] {
            let mut twice = Vec::new();
            for _ in 0..2 {
                let mut encoder = Encoder::new(format, Vec::new()).unwrap();
                encoder.write_all(&data).unwrap();
                twice.extend(encoder.finish().unwrap());
            }
            let (found, mut stream) = Format::open(Box::new(io::Cursor::new(twice))).unwrap();
            assert_eq!(found, format);
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            assert!(back.len() == 2 * data.len() && back.starts_with(&data), "{format:?}");
        }
    }

    /// An xz stream that asks for a dictionary of 4 GiB.
    #[test]
    fn memory_that_a_stream_asks_for_is_bounded() {
        let mut encoder = Encoder::new(Format::Xz, Vec::new()).unwrap();
        encoder.write_all(b"x").unwrap();
        let mut bytes = encoder.finish().unwrap();
        // Behind the stream's header of 12 bytes: a block of one filter, LZMA2, with its size.
        assert_eq!(bytes[12..16], [2, 0, 0x21, 1]);
        bytes[16] = 40;
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[12..20]);
        bytes[20..24].copy_from_slice(&crc.sum().to_le_bytes());
        let (format, mut stream) = Format::open(Box::new(io::Cursor::new(bytes))).unwrap();
        let error = format.fault(stream.read(&mut [0; 8]).unwrap_err(), 0);
        assert!(error.to_string().contains("memory"), "{error}");
    }
}
