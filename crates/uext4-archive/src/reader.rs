//! Reading a stream: headers become entries, contents come in pieces.

use std::io::Read;

use crate::acl::Acl;
use crate::compression::Format;
use crate::entry::{Content, Entry, Kind, Member, Refused, Time};
use crate::error::{Error, Result};
use crate::extended::{EXTENDED_MAX, Extended};
use crate::header::{Dialect, Header};
use crate::input::{BLOCK, Input};
use crate::path::{PathFault, TarPath};
use crate::sparse;

/// Longest name in a member of its own (GNU); longer than any that is accepted.
const LONG_NAME_MAX: u64 = 1 << 20;
/// Longest target of a symbolic link in ext4.
const TARGET_MAX: usize = 4095;

/// Reads an archive from its start to its end.
pub struct Reader {
    input: Input,
    global: Extended,
    content: Content,
    /// Of the content: the range that is read, and how far.
    range: usize,
    offset: u64,
    /// Stored bytes of the entry, padding included, that were not read yet.
    left: u64,
    ended: bool,
    seen: bool,
}

impl Reader {
    /// Begins to read. Compression is found by content.
    pub fn new(stream: Box<dyn Read + Send>) -> Result<Self> {
        let (format, stream) = Format::open(stream)?;
        Ok(Self {
            input: Input::new(stream, format),
            global: Extended::default(),
            content: Content::default(),
            range: 0,
            offset: 0,
            left: 0,
            ended: false,
            seen: false,
        })
    }

    /// The next member; what was not read of the one before is passed over. `None` at the end
    /// marker: a stream that ends without one is truncated. Checksums of a compressed stream have
    /// been compared by then.
    pub fn next_member(&mut self) -> Result<Option<Member>> {
        self.input.skip(std::mem::take(&mut self.left))?;
        self.content = Content::default();
        let mut extended = self.global.clone();
        let (mut long_name, mut long_link) = (None, None);
        let mut room = EXTENDED_MAX;
        while !self.ended {
            let Some(header) = self.header()? else {
                self.ended = true;
                self.input.drain()?;
                break;
            };
            match header.type_byte() {
                b'x' | b'X' => {
                    let records = self.records(&header, room)?;
                    room -= records.len() as u64;
                    extended.apply(&records).map_err(|what| self.damaged(what))?;
                }
                b'g' => {
                    let records = self.records(&header, EXTENDED_MAX)?;
                    self.global.apply_global(&records).map_err(|what| self.damaged(what))?;
                    extended = self.global.clone();
                }
                b'L' => long_name = Some(self.long_name(&header)?),
                b'K' => long_link = Some(self.long_name(&header)?),
                _ => {
                    extended.path = long_name.or(extended.path);
                    extended.link = long_link.or(extended.link);
                    if let Some(member) = self.member(&header, extended)? {
                        return Ok(Some(member));
                    }
                    (long_name, long_link, room) = (None, None, EXTENDED_MAX);
                    self.input.skip(std::mem::take(&mut self.left))?;
                    extended = self.global.clone();
                }
            }
        }
        Ok(None)
    }

    /// The next bytes of the entry that [`Reader::next_member`] gave: where in the file they are,
    /// and how many. `None` at the end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<(u64, usize)>> {
        let Some(range) = self.content.ranges().get(self.range) else { return Ok(None) };
        let at = self.offset.max(range.start);
        let end = range.end;
        let want = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let count = self.input.some(&mut buffer[..want])?;
        if count == 0 && want > 0 {
            return Err(Error::Truncated { at: self.input.at() });
        }
        self.left -= count as u64;
        self.offset = at + count as u64;
        if self.offset == end {
            self.range += 1;
        }
        Ok(Some((at, count)))
    }

    /// How the stream is compressed.
    pub fn format(&self) -> Format {
        self.input.format()
    }

    /// Bytes of the uncompressed stream that were taken. Behind [`Reader::next_member`] the data of
    /// the file's ranges stands there, one after the other.
    pub fn at(&self) -> u64 {
        self.input.at()
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { at: self.input.at(), what }
    }

    /// A header; `None` at the end marker.
    fn header(&mut self) -> Result<Option<Header>> {
        let at = self.input.at();
        let block = match self.input.block() {
            // A text of a few bytes is no archive that lacks its end.
            Err(Error::Truncated { .. }) if at == 0 && self.format() == Format::Plain => {
                return Err(Error::Foreign("is not a tar archive"));
            }
            block => block?,
        };
        let Some(block) = block else { return Err(Error::Truncated { at }) };
        if block == [0; BLOCK] {
            // Two blocks are the marker. GNU tar ends at a single one and warns; a header that was
            // overwritten by zeros would lose all behind it.
            return match self.input.zeros()? {
                true => Ok(None),
                false if !self.seen => Err(Error::Foreign("is not a tar archive")),
                false => Err(Error::Damaged { at, what: "zeros in the place of a header" }),
            };
        }
        match Header::read(block) {
            Some(header) => {
                self.seen = true;
                Ok(Some(header))
            }
            None if !self.seen => Err(Error::Foreign("is not a tar archive")),
            None => Err(Error::Damaged { at, what: "header with a wrong checksum" }),
        }
    }

    /// The content of a header's member, of at most `max` bytes.
    fn whole(&mut self, header: &Header, max: u64, what: &'static str) -> Result<Vec<u8>> {
        let size = header.size().filter(|size| *size <= max).ok_or_else(|| self.damaged(what))?;
        // Only what has come is allocated: a size in a header costs nobody memory.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let done = bytes.len();
            let more = (size - done as u64).min(64 << 10);
            bytes.resize(done + more as usize, 0);
            self.input.exact(&mut bytes[done..])?;
        }
        self.input.skip(padding(size))?;
        Ok(bytes)
    }

    fn records(&mut self, header: &Header, room: u64) -> Result<Vec<u8>> {
        self.whole(header, room, "extended headers of more than 16 MiB")
    }

    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>> {
        let mut name = self.whole(header, LONG_NAME_MAX, "name of more than 1 MiB")?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    /// The member of a header; `None` for what is no file.
    fn member(&mut self, header: &Header, mut extended: Extended) -> Result<Option<Member>> {
        let given = extended.sparse.name.take().or(extended.path.take());
        let name = given.unwrap_or_else(|| header.name());
        let size = extended.size.or(header.size());
        let stored = match header.type_byte() {
            // In old archives links have the length of their file, without content.
            b'1' if !extended.is_pax => 0,
            b'2'..=b'6' if !extended.is_pax => 0,
            _ => size.ok_or_else(|| self.damaged("size that is no number"))?,
        };
        let padded = stored.checked_add(padding(stored)).filter(|size| *size <= i64::MAX as u64);
        self.left = padded.ok_or_else(|| self.damaged("size beyond 8 EiB"))?;
        let kind = match self.kind(header, &mut extended, &name, stored)? {
            Ok(Some(kind)) => kind,
            Ok(None) => return Ok(None),
            Err(why) => return Ok(Some(Member::Refused(Refused { name, why }))),
        };
        let is_link = matches!(kind, Kind::HardLink(_));
        let is_absolute = name.starts_with(b"/")
            || is_link && extended.link.clone().unwrap_or_else(|| header.link()).starts_with(b"/");
        let entry = extended.fault.take().map_or_else(|| entry(header, extended, &name, kind), Err);
        let entry = entry.map(|entry| Entry { is_absolute, ..entry });
        Ok(Some(match entry {
            Ok(entry) => {
                if let Kind::File(content) = &entry.kind {
                    (self.content, self.range, self.offset) = (content.clone(), 0, 0);
                }
                Member::Entry(Box::new(entry))
            }
            Err(why) => Member::Refused(Refused { name, why }),
        }))
    }

    /// What an entry is; the maps of sparse files are taken from the stream.
    fn kind(
        &mut self,
        header: &Header,
        extended: &mut Extended,
        name: &[u8],
        stored: u64,
    ) -> Result<std::result::Result<Option<Kind>, String>> {
        let type_byte = header.type_byte();
        let link = || extended.link.clone().unwrap_or_else(|| header.link());
        let device = || {
            let (major, minor) = header.device().unzip();
            let number = |pax: Option<u64>, field: Option<u64>| {
                pax.or(field).and_then(|number| u32::try_from(number).ok())
            };
            let numbers = number(extended.major, major).zip(number(extended.minor, minor));
            numbers.ok_or_else(|| "has a device number that cannot be used".to_owned())
        };
        Ok(Ok(Some(match type_byte {
            b'0' | 0 if name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' if extended.sparse.is_given() => {
                let map = extended.sparse.map(&mut self.input, stored)?;
                self.left -= map.taken;
                let stored = stored - map.taken;
                return Ok(map.content(stored).map(|content| Some(Kind::File(content))));
            }
            b'0' | 0 | b'7' => Kind::File(Content::whole(stored)),
            b'S' if header.dialect() == Dialect::Gnu => {
                let map = sparse::old_map(header, &mut self.input)?;
                return Ok(map.content(stored).map(|content| Some(Kind::File(content))));
            }
            b'1' => match TarPath::parse(&link()) {
                Ok(target) if !target.is_root() => Kind::HardLink(target),
                Ok(_) => return Ok(Err("is a hard link to the target directory".to_owned())),
                Err(fault) => return Ok(Err(format!("is a hard link to a file that {fault}"))),
            },
            b'2' => match link() {
                target if target.is_empty() || target.contains(&0) => {
                    return Ok(Err("is a symbolic link with an unusable target".to_owned()));
                }
                target if target.len() > TARGET_MAX => {
                    let why = "is a symbolic link whose target is longer than 4095 bytes";
                    return Ok(Err(why.to_owned()));
                }
                target => Kind::Symlink(target),
            },
            b'3' => match device() {
                Ok((major, minor)) => Kind::CharDevice(major, minor),
                Err(why) => return Ok(Err(why)),
            },
            b'4' => match device() {
                Ok((major, minor)) => Kind::BlockDevice(major, minor),
                Err(why) => return Ok(Err(why)),
            },
            // `D` is a directory in an incremental archive; the list of its names is passed over.
            b'5' | b'D' => Kind::Directory,
            b'6' => Kind::Fifo,
            // Label of a volume, and ACLs as Solaris writes them.
            b'V' | b'A' => return Ok(Ok(None)),
            b'M' => return Ok(Err("is the rest of a file from another volume".to_owned())),
            other => {
                let letter = char::from(other).escape_default();
                return Ok(Err(format!("is of an unknown type, '{letter}'")));
            }
        })))
    }
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// The entry, or why there can be none.
fn entry(
    header: &Header,
    mut extended: Extended,
    name: &[u8],
    kind: Kind,
) -> std::result::Result<Entry, String> {
    let path = TarPath::parse(name).map_err(|fault: PathFault| fault.to_string())?;
    if path.is_root() && kind != Kind::Directory {
        return Err("is the target directory itself, but no directory".to_owned());
    }
    let owner = |pax: Option<u64>, field: Option<u64>, what: &str| {
        // The greatest number means "none" to the kernel.
        let id = pax.or(field).and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX);
        id.ok_or_else(|| format!("has {what} that ext4 cannot have"))
    };
    let acl = |text: Option<Vec<u8>>| match text {
        Some(text) => Acl::parse(&text).map(Some).ok_or_else(|| "has an unusable ACL".to_owned()),
        None => Ok(None),
    };
    let mode = header.mode().ok_or("has a mode that is no number")?;
    let mtime = extended.mtime.or(header.mtime().map(|secs| Time { secs, nanos: 0 }));
    let xattrs = extended.take_xattrs();
    Ok(Entry {
        path,
        is_absolute: false,
        kind,
        // The mask leaves 12 bits.
        mode: (mode & 0o7777) as u16,
        uid: owner(extended.uid, header.uid(), "an owner")?,
        gid: owner(extended.gid, header.gid(), "a group")?,
        uname: extended.uname.unwrap_or_else(|| header.uname()),
        gname: extended.gname.unwrap_or_else(|| header.gname()),
        mtime: mtime.ok_or("has a time that is no number")?,
        atime: extended.atime,
        xattrs,
        acl_access: acl(extended.acl_access)?,
        acl_default: acl(extended.acl_default)?,
    })
}

#[cfg(test)]
mod tests;
