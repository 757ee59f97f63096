//! The tree as an archive (POSIX ustar), and such an archive read back.
//!
//! Only what the tree has: directories, files below 8 GiB, symbolic links, paths of at most 99
//! bytes, owner 0. `tar -xf` reads it; [`Reader`] reads it for the library.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::tree::{Body, Tree};

const RECORD: usize = 512;
const COPY_BYTES: usize = 1 << 20;

/// Writes the tree's archive.
pub(crate) fn write(tree: &Tree, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(COPY_BYTES, File::create(path)?);
    let mut buf = vec![0; COPY_BYTES];
    for entry in &tree.entries {
        let (kind, len, target) = match &entry.body {
            Body::Directory => (b'5', 0, ""),
            Body::File(content) => (b'0', content.len, ""),
            Body::Link(target) => (b'2', 0, target.as_str()),
        };
        out.write_all(&header(&entry.path, entry.mode, len, entry.mtime, kind, target))?;
        if let Body::File(content) = &entry.body {
            let mut offset = 0;
            while offset < len {
                let count = (len - offset).min(COPY_BYTES as u64) as usize;
                content.fill(offset, &mut buf[..count]);
                out.write_all(&buf[..count])?;
                offset += count as u64;
            }
            out.write_all(&[0; RECORD][..padding(len)])?;
        }
    }
    out.write_all(&[0; 2 * RECORD])?;
    out.flush()
}

fn header(path: &str, mode: u16, len: u64, mtime: u64, kind: u8, target: &str) -> [u8; RECORD] {
    let mut header = [0; RECORD];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{len:011o}").as_bytes());
    put(136, format!("{mtime:011o}").as_bytes());
    // The sum is taken with blanks in its own place.
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

fn padding(len: u64) -> usize {
    (len.next_multiple_of(RECORD as u64) - len) as usize
}

/// One member of an archive.
pub(crate) struct Member {
    pub(crate) path: String,
    pub(crate) mode: u16,
    pub(crate) mtime: u64,
    pub(crate) kind: MemberKind,
}

/// What a member is; the bytes of a file follow through [`Reader::read`].
pub(crate) enum MemberKind {
    Directory,
    File,
    Link(String),
}

/// Reads an archive from its start to its end.
pub(crate) struct Reader {
    input: BufReader<File>,
    /// Bytes of the present member, and of its padding, that were not read yet.
    left: u64,
    padding: usize,
}

impl Reader {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Larger reads of a member's bytes go past the buffer.
        let input = BufReader::with_capacity(64 << 10, File::open(path)?);
        Ok(Self { input, left: 0, padding: 0 })
    }

    /// The next member; what is left of the one before is skipped.
    pub(crate) fn next(&mut self) -> io::Result<Option<Member>> {
        io::copy(&mut (&mut self.input).take(self.left + self.padding as u64), &mut io::sink())?;
        let mut header = [0; RECORD];
        self.input.read_exact(&mut header)?;
        if header[0] == 0 {
            return Ok(None);
        }
        let len = octal(&header[124..135])?;
        let kind = match header[156] {
            b'5' => MemberKind::Directory,
            b'0' => MemberKind::File,
            b'2' => MemberKind::Link(text(&header[157..257])?),
            _ => return Err(io::Error::other("archive: unknown type of member")),
        };
        self.left = len;
        self.padding = padding(len);
        Ok(Some(Member {
            path: text(&header[0..100])?,
            mode: u16::try_from(octal(&header[100..107])?).map_err(io::Error::other)?,
            mtime: octal(&header[136..147])?,
            kind,
        }))
    }

    /// Bytes of the present member; 0 at its end.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.input.read_exact(&mut buf[..want])?;
        self.left -= want as u64;
        Ok(want)
    }
}

fn octal(field: &[u8]) -> io::Result<u64> {
    u64::from_str_radix(text(field)?.trim(), 8).map_err(io::Error::other)
}

fn text(field: &[u8]) -> io::Result<String> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8(field[..end].to_vec()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.tar");
        let tree = Tree::new(0.001);
        write(&tree, &path).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        for entry in &tree.entries {
            let member = reader.next().unwrap().expect("as many members as entries");
            assert_eq!((&member.path, member.mtime), (&entry.path, entry.mtime));
            assert_eq!(member.mode, entry.mode);
            match (&entry.body, member.kind) {
                (Body::Directory, MemberKind::Directory) => {}
                (Body::Link(target), MemberKind::Link(found)) => assert_eq!(*target, found),
                (Body::File(content), MemberKind::File) => {
                    let (mut found, mut part) = (Vec::<u8>::new(), [0; 4096]);
                    while let count @ 1.. = reader.read(&mut part).unwrap() {
                        found.extend(&part[..count]);
                    }
                    let mut want = vec![0; found.len()];
                    content.fill(0, &mut want);
                    assert!(found.len() as u64 == content.len && want == found, "{}", entry.path);
                }
                _ => panic!("{}: another type of member", entry.path),
            }
        }
        assert!(reader.next().unwrap().is_none());
    }
}
