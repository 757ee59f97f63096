//! Writing a stream: pax, with an extended header only where an entry needs one.

use std::io::Write;

use crate::entry::{Content, Entry, Kind};
use crate::error::{Error, Result};
use crate::extended::{attribute_key, record, time_text};
use crate::header::NewHeader;
use crate::input::BLOCK;

/// tar(1) fills its last record.
const RECORD_BYTES: u64 = 20 * BLOCK as u64;

/// Writes an archive.
pub struct Writer<W: Write> {
    out: W,
    written: u64,
    /// Of the present file: data that has not come yet, and the padding behind it.
    left: u64,
    padding: usize,
}

impl<W: Write> Writer<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { out, written: 0, left: 0, padding: 0 }
    }

    /// Writes the headers of an entry. The data of a file's ranges, one after the other, must
    /// follow through [`Writer::data`].
    pub fn entry(&mut self, entry: &Entry) -> Result<()> {
        self.end_of_file()?;
        let name = name_of(entry);
        let (type_byte, map, stored) = match &entry.kind {
            Kind::File(content) if content.is_sparse() => {
                let map = sparse_map(content);
                let stored = map.len() as u64 + content.stored();
                (b'0', Some(map), stored)
            }
            Kind::File(content) => (b'0', None, content.len()),
            Kind::HardLink(_) => (b'1', None, 0),
            Kind::Symlink(_) => (b'2', None, 0),
            Kind::CharDevice(..) => (b'3', None, 0),
            Kind::BlockDevice(..) => (b'4', None, 0),
            Kind::Directory => (b'5', None, 0),
            Kind::Fifo => (b'6', None, 0),
        };
        // What does not know sparse files shows this name, as GNU tar has it.
        let placeholder = map.as_ref().map(|_| placeholder(entry, "GNUSparseFile.0"));
        let mut header = NewHeader::new(type_byte, placeholder.as_deref().unwrap_or(&name));
        header.mode(entry.mode);
        let records = self.records(entry, &mut header, &name, stored);
        if !records.is_empty() {
            self.extended(entry, &records)?;
        }
        self.put(&header.finish())?;
        let map = map.unwrap_or_default();
        self.put(&map)?;
        self.left = stored - map.len() as u64;
        self.padding = usize::try_from(stored.next_multiple_of(BLOCK as u64) - stored).unwrap_or(0);
        Ok(())
    }

    /// Writes data of the present file.
    pub fn data(&mut self, data: &[u8]) -> Result<()> {
        self.left = self.left.checked_sub(data.len() as u64).ok_or(Error::Length)?;
        self.put(data)
    }

    /// Writes the end marker.
    pub fn finish(mut self) -> Result<W> {
        self.end_of_file()?;
        self.put(&[0; 2 * BLOCK])?;
        let fill = self.written.next_multiple_of(RECORD_BYTES) - self.written;
        self.put(&vec![0; usize::try_from(fill).unwrap_or(0)])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_of_file(&mut self) -> Result<()> {
        if self.left > 0 {
            return Err(Error::Length);
        }
        let padding = std::mem::take(&mut self.padding);
        self.put(&[0; BLOCK][..padding])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn extended(&mut self, entry: &Entry, records: &[u8]) -> Result<()> {
        let mut header = NewHeader::new(b'x', &placeholder(entry, "PaxHeaders"));
        header.mode(0o644);
        header.size(records.len() as u64);
        self.put(&header.finish())?;
        self.put(records)?;
        let end = records.len().next_multiple_of(BLOCK);
        self.put(&[0; BLOCK][..end - records.len()])
    }

    /// Fills the header, and gives the records for all that it cannot hold.
    fn records(&self, entry: &Entry, header: &mut NewHeader, name: &[u8], stored: u64) -> Vec<u8> {
        let mut records = Vec::new();
        let mut add = |key: &[u8], value: &[u8]| records.extend(record(key, value));
        match &entry.kind {
            Kind::File(content) if content.is_sparse() => {
                add(b"GNU.sparse.major", b"1");
                add(b"GNU.sparse.minor", b"0");
                add(b"GNU.sparse.name", name);
                add(b"GNU.sparse.realsize", content.len().to_string().as_bytes());
            }
            _ if !NewHeader::name_fits(name) => add(b"path", name),
            _ => {}
        }
        let target = match &entry.kind {
            Kind::HardLink(target) => target.as_bytes(),
            Kind::Symlink(target) => target,
            _ => b"",
        };
        if !header.link(target) {
            add(b"linkpath", target);
        }
        if !header.size(stored) {
            add(b"size", stored.to_string().as_bytes());
        }
        if !header.uid(entry.uid) {
            add(b"uid", entry.uid.to_string().as_bytes());
        }
        if !header.gid(entry.gid) {
            add(b"gid", entry.gid.to_string().as_bytes());
        }
        if !header.uname(&entry.uname) {
            add(b"uname", &entry.uname);
        }
        if !header.gname(&entry.gname) {
            add(b"gname", &entry.gname);
        }
        if !header.mtime(entry.mtime) {
            add(b"mtime", time_text(entry.mtime).as_bytes());
        }
        if let Some(atime) = entry.atime {
            add(b"atime", time_text(atime).as_bytes());
        }
        if let Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) = entry.kind
            && !header.device(major, minor)
        {
            add(b"SCHILY.devmajor", major.to_string().as_bytes());
            add(b"SCHILY.devminor", minor.to_string().as_bytes());
        }
        if let Some(acl) = &entry.acl_access {
            add(b"SCHILY.acl.access", &acl.to_text());
        }
        if let Some(acl) = &entry.acl_default {
            add(b"SCHILY.acl.default", &acl.to_text());
        }
        for xattr in &entry.xattrs {
            add(&attribute_key(&xattr.name), &xattr.value);
        }
        records
    }
}

/// The name in the archive: of a directory with a slash, as tar(1) has it.
fn name_of(entry: &Entry) -> Vec<u8> {
    match entry.kind {
        Kind::Directory if entry.path.is_root() => b"./".to_vec(),
        Kind::Directory => [entry.path.as_bytes(), b"/"].concat(),
        _ => entry.path.as_bytes().to_vec(),
    }
}

/// The name of a header that is not the entry's own.
fn placeholder(entry: &Entry, dir: &str) -> Vec<u8> {
    let (parent, name) = entry.path.split().unwrap_or((b"", b"."));
    match parent {
        b"" => [dir.as_bytes(), b"/", name].concat(),
        parent => [parent, b"/", dir.as_bytes(), b"/", name].concat(),
    }
}

/// The map of pax 1.0: decimal lines in whole blocks.
fn sparse_map(content: &Content) -> Vec<u8> {
    // GNU tar ends the map at the length of the file.
    let ends_in_hole = content.ranges().last().is_none_or(|last| last.end < content.len());
    let count = content.ranges().len() + usize::from(ends_in_hole);
    let mut map = format!("{count}\n").into_bytes();
    for range in content.ranges() {
        map.extend(format!("{}\n{}\n", range.start, range.end - range.start).into_bytes());
    }
    if ends_in_hole {
        map.extend(format!("{}\n0\n", content.len()).into_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}
