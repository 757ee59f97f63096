//! The content of files from archives, while the image is made.
//!
//! How: the archive is read twice where it can be, for its headers first and for contents when they
//! are written. What can be read but once, a compressed stream or a pipe, is held in a temporary
//! file without a name. Nothing is held in memory but where contents are. Zeros of files that can
//! have holes are found on the way.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use uext4_archive::{Content, Reader};
use uext4_mkfs::MkfsError;
use uext4_mkfs::populate::{ContentId, Contents, DataRanges, FileBody, Piece};

use crate::failure::Why;

/// Bytes that are taken from a stream at once.
const STEP_BYTES: usize = 256 << 10;
/// Zeros that the temporary file has a hole for.
const ZEROS: [u8; 4096] = [0; 4096];
/// Where temporary files go: on a disk, unlike /tmp on many hosts.
const TEMPORARY: &str = "/var/tmp";

/// Contents and where they are.
#[derive(Default)]
pub(super) struct Held {
    archives: Vec<Archive>,
    spool: Option<Spool>,
    contents: Vec<Place>,
    buffer: Vec<u8>,
}

/// An archive that can be read again.
struct Archive {
    file: File,
    /// As the user calls it.
    name: String,
    version: Version,
}

/// By what a change shows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    len: u64,
    changed: (i64, i64),
}

/// The temporary file.
struct Spool {
    file: BufWriter<File>,
    len: u64,
}

/// Which file a content is in.
#[derive(Clone, Copy)]
enum Store {
    Archive(usize),
    Spool,
}

/// A range of a file, and how many bytes of data stand before it.
type Data = (Range<u64>, u64);

/// Where a content is.
struct Place {
    store: Store,
    /// First byte of its first range.
    at: u64,
    /// Where it has data, if not everywhere.
    ranges: Option<Box<[Data]>>,
}

impl Version {
    fn of(file: &File) -> std::io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { len: meta.len(), changed: (meta.mtime(), meta.mtime_nsec()) })
    }
}

/// An archive that is being taken: which one, and where it begins, if it is read again.
pub(super) struct Taking(Option<(usize, u64)>);

impl Held {
    /// Begins with an archive. With `start` it is not compressed, begins at that byte of `file`,
    /// and can be read again.
    pub(super) fn begin(
        &mut self,
        name: &str,
        file: &File,
        start: Option<u64>,
    ) -> Result<Taking, Why> {
        let Some(start) = start else { return Ok(Taking(None)) };
        let (file, version) = (file.try_clone()?, Version::of(file)?);
        self.archives.push(Archive { file, name: name.to_owned(), version });
        Ok(Taking(Some((self.archives.len() - 1, start))))
    }

    /// Takes the content of the entry that the reader has just given.
    pub(super) fn take(
        &mut self,
        taking: &Taking,
        reader: &mut Reader,
        content: &Content,
    ) -> Result<FileBody, Why> {
        let mut data = DataRanges::of(content.len());
        let (store, at) = match taking.0 {
            Some((archive, start)) => (Store::Archive(archive), start + reader.at()),
            None => (Store::Spool, self.spool()?.len),
        };
        if matches!(store, Store::Spool) || data.is_some() {
            self.read(reader, store, &mut data)?;
        }
        let mut before = 0;
        let ranges = content.ranges().iter().map(|range| {
            let here = (range.clone(), before);
            before += range.end - range.start;
            here
        });
        let ranges = content.is_sparse().then(|| ranges.collect());
        self.contents.push(Place { store, at, ranges });
        let id = ContentId(self.contents.len() as u64 - 1);
        let data = data.and_then(DataRanges::finish);
        Ok(FileBody { size: content.len(), data, content: id })
    }

    /// Reads a content for where it has data, and into the temporary file if that is its place.
    fn read(
        &mut self,
        reader: &mut Reader,
        store: Store,
        data: &mut Option<DataRanges>,
    ) -> Result<(), Why> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(STEP_BYTES, 0);
        while let Some((at, count)) = reader.read(&mut buffer).map_err(words)? {
            if let Some(data) = data {
                data.add(at, &buffer[..count]);
            }
            if matches!(store, Store::Spool) {
                let written = self.spool()?.push(&buffer[..count]);
                written.map_err(|error| Why::from(error).of(Spool::folder().display()))?;
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    fn spool(&mut self) -> Result<&mut Spool, Why> {
        Ok(match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(Spool::new()?),
        })
    }

    /// Ends the taking of archives.
    pub(super) fn finish(&mut self) -> Result<(), Why> {
        self.buffer = Vec::new();
        if let Some(spool) = &mut self.spool {
            spool.end().map_err(|error| Why::from(error).of(Spool::folder().display()))?;
        }
        Ok(())
    }

    fn fill(&self, place: &Place, piece: &mut Piece<'_>) -> std::io::Result<()> {
        let file = match place.store {
            Store::Archive(index) => self.archives.get(index).map(|archive| &archive.file),
            Store::Spool => self.spool.as_ref().map(|spool| spool.file.get_ref()),
        };
        let file = file.ok_or(std::io::ErrorKind::NotFound)?;
        let Some(ranges) = &place.ranges else {
            return file.read_exact_at(piece.buf, place.at + piece.offset);
        };
        piece.buf.fill(0);
        let end = piece.offset + piece.buf.len() as u64;
        let first = ranges.partition_point(|(range, _)| range.end <= piece.offset);
        for (range, before) in ranges[first..].iter().take_while(|(range, _)| range.start < end) {
            let (from, to) = (range.start.max(piece.offset), range.end.min(end));
            // Both are within the piece.
            let part = (from - piece.offset) as usize..(to - piece.offset) as usize;
            let at = place.at + before + (from - range.start);
            file.read_exact_at(&mut piece.buf[part], at)?;
        }
        Ok(())
    }
}

impl Contents for Held {
    fn read(&self, content: ContentId, pieces: &mut [Piece<'_>]) -> uext4_mkfs::Result<()> {
        let place = usize::try_from(content.0).ok().and_then(|index| self.contents.get(index));
        let Some(place) = place else {
            return Err(failed("archive", "no such content"));
        };
        let archive = match place.store {
            Store::Archive(index) => self.archives.get(index),
            Store::Spool => None,
        };
        let name = archive.map_or("temporary file", |archive| &archive.name);
        for piece in pieces {
            let filled = self.fill(place, piece);
            filled.map_err(|error| failed(name, Why::from(error)))?;
        }
        match archive.map(|archive| Version::of(&archive.file).map(|now| now == archive.version)) {
            Some(Ok(false)) => Err(failed(name, "changed while it was read")),
            Some(Err(error)) => Err(failed(name, Why::from(error))),
            Some(Ok(true)) | None => Ok(()),
        }
    }
}

impl Spool {
    fn new() -> Result<Self, Why> {
        let file = tempfile::tempfile_in(Self::folder());
        let file = file.map_err(|error| Why::from(error).of(Self::folder().display()))?;
        Ok(Self { file: BufWriter::with_capacity(STEP_BYTES, file), len: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let is_zeros = |part: &[u8]| *part == ZEROS[..part.len()];
        if bytes.len() >= ZEROS.len() && bytes.chunks(ZEROS.len()).all(is_zeros) {
            self.file.seek(SeekFrom::Start(self.len + bytes.len() as u64))?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().set_len(self.len)
    }

    /// As `TMPDIR` says.
    fn folder() -> PathBuf {
        std::env::var_os("TMPDIR").map_or_else(|| TEMPORARY.into(), PathBuf::from)
    }
}

fn failed(path: &str, why: impl std::fmt::Display) -> MkfsError {
    MkfsError::Source { path: path.to_owned(), why: why.to_string() }
}

/// An error of a stream in words.
pub(super) fn words(error: uext4_archive::Error) -> Why {
    match error {
        uext4_archive::Error::Io(error) => error.into(),
        error => Why::new(error.to_string()),
    }
}
