//! Replies of a server, simple and in chunks, on a thread for each connection.
//!
//! Source: doc/proto.md, "Simple reply message" and "Structured reply chunk message".
//!
//! # Invariants
//! Nothing that a server says makes this allocate more than it was asked for: lengths are compared
//! with the request before a byte is read.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::answer::Content;
use crate::error::{Fault, Result, garbage};
use crate::handshake::Agreed;
use crate::link::{Incoming, Link};
use crate::session::{Expected, Session};
use crate::wire::{self, Be32, Be64, Fields, chunk};

/// What is read ahead of the headers, in bytes; data goes past it.
const AHEAD: usize = 16 << 10;
/// Longest chunk without data, in bytes: words of an error, extents.
const CHUNK_MAX: u32 = 1 << 20;
/// Most pieces that a reply comes in.
const PIECES_MAX: usize = 4096;

/// Serves the replies of a connection until it ends.
pub(crate) fn read_replies(session: &Session, link: &Link, agreed: &Agreed) {
    let incoming = BufReader::with_capacity(AHEAD, Incoming::new(link));
    let mut replies = Replies {
        session,
        number: link.number,
        incoming,
        structured: agreed.structured,
        allocation: agreed.export.allocation,
        begun: FxHashMap::default(),
    };
    let fault = loop {
        if let Err(fault) = replies.next() {
            break fault;
        }
    };
    session.lost(link.number, &fault.why());
}

/// The replies of one connection.
struct Replies<'a, R> {
    session: &'a Session,
    number: u64,
    incoming: R,
    structured: bool,
    allocation: Option<u32>,
    /// Replies of which a chunk has come, and not the last one.
    begun: FxHashMap<u64, Begun>,
}

/// A reply as far as it has come.
struct Begun {
    expected: Expected,
    bytes: Vec<u8>,
    /// What of them has come: where each piece begins and ends.
    filled: BTreeMap<usize, usize>,
    extents: Vec<(u32, u32)>,
    error: Option<io::Error>,
}

impl Begun {
    fn new(expected: Expected) -> Self {
        let len = match expected {
            Expected::Bytes { len, .. } => len as usize,
            _ => 0,
        };
        Self {
            expected,
            bytes: vec![0; len],
            filled: BTreeMap::new(),
            extents: Vec::new(),
            error: None,
        }
    }

    /// The place in the buffer of bytes at an offset.
    fn place(&self, offset: u64, count: u64) -> Option<Range<usize>> {
        let Expected::Bytes { offset: start, len } = self.expected else { return None };
        let from = offset.checked_sub(start)?;
        let to = from.checked_add(count).filter(|to| *to <= u64::from(len))?;
        Some(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    /// Notes that a piece has come.
    fn fill(&mut self, place: &Range<usize>) -> Result<()> {
        let before = self.filled.range(..place.end).next_back();
        if before.is_some_and(|(_, end)| *end > place.start) || self.filled.len() == PIECES_MAX {
            return garbage("sends the same bytes twice");
        }
        self.filled.insert(place.start, place.end);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.filled.iter().map(|(start, end)| end - start).sum::<usize>() == self.bytes.len()
    }

    /// The answer, now that all has come.
    fn answer(self) -> Result<io::Result<Content>> {
        if let Some(error) = self.error {
            return Ok(Err(error));
        }
        Ok(Ok(match self.expected {
            Expected::Nothing => Content::Nothing,
            Expected::Bytes { .. } if self.is_full() => Content::Bytes(self.bytes),
            Expected::Bytes { .. } => return garbage("sends less than was asked for"),
            Expected::Extents => Content::Extents(self.extents),
        }))
    }
}

impl<R: Read> Replies<'_, R> {
    /// Serves one reply, or one chunk of one.
    fn next(&mut self) -> Result<()> {
        let mut magic = [0; 4];
        self.incoming.read_exact(&mut magic)?;
        match Be32::from_bytes(magic).get() {
            wire::SIMPLE_REPLY_MAGIC => self.simple(),
            wire::CHUNK_MAGIC if self.structured => self.chunk(),
            _ => garbage("sends something that is no reply"),
        }
    }

    fn expected(&self, cookie: u64) -> Result<Expected> {
        let expected = self.session.expected(self.number, cookie);
        expected.map_or_else(|| garbage("answers what it was not asked"), Ok)
    }

    fn simple(&mut self) -> Result<()> {
        let mut header = [0; 12];
        self.incoming.read_exact(&mut header)?;
        let mut fields = Fields(&header);
        let (Some(error), Some(cookie)) = (fields.u32(), fields.u64()) else {
            return garbage("ends in a reply");
        };
        if self.begun.contains_key(&cookie) {
            return garbage("answers once in chunks and once without");
        }
        let mut begun = Begun::new(self.expected(cookie)?);
        if error != 0 {
            begun.error = Some(error_of(error)?);
        } else if begun.expected != Expected::Nothing {
            if self.structured {
                return garbage("answers without chunks, though it has agreed on them");
            }
            self.incoming.read_exact(&mut begun.bytes)?;
            begun.fill(&(0..begun.bytes.len()))?;
        }
        self.session.answered(cookie, begun.answer()?);
        Ok(())
    }

    fn chunk(&mut self) -> Result<()> {
        let mut header = [0; 16];
        self.incoming.read_exact(&mut header)?;
        let mut fields = Fields(&header);
        let (flags, kind) = (fields.u16().unwrap_or(0), fields.u16().unwrap_or(0));
        let (cookie, len) = (fields.u64().unwrap_or(0), fields.u32().unwrap_or(0));
        let mut begun = match self.begun.remove(&cookie) {
            Some(begun) => begun,
            None => Begun::new(self.expected(cookie)?),
        };
        match kind {
            chunk::NONE if len == 0 && flags & chunk::DONE != 0 => {}
            chunk::OFFSET_DATA => self.data(&mut begun, len)?,
            chunk::OFFSET_HOLE if len == 12 => self.hole(&mut begun)?,
            chunk::BLOCK_STATUS => self.extents(&mut begun, len)?,
            kind if kind & chunk::ERROR_BIT != 0 => {
                // Words follow; callers go by the number.
                let code = Fields(&self.text(len)?).u32().unwrap_or(0);
                begun.error.get_or_insert(error_of(code)?);
            }
            _ => return garbage("sends a chunk of no known kind"),
        }
        if flags & chunk::DONE != 0 {
            self.session.answered(cookie, begun.answer()?);
        } else {
            self.begun.insert(cookie, begun);
        }
        Ok(())
    }

    /// A chunk that is held in memory for a moment.
    fn text(&mut self, len: u32) -> Result<Vec<u8>> {
        if len > CHUNK_MAX {
            return garbage(format!("sends a chunk of {len} bytes"));
        }
        let mut text = vec![0; len as usize];
        self.incoming.read_exact(&mut text)?;
        Ok(text)
    }

    fn data(&mut self, begun: &mut Begun, len: u32) -> Result<()> {
        let mut offset = [0; 8];
        self.incoming.read_exact(&mut offset)?;
        let count = u64::from(len).checked_sub(8).filter(|count| *count > 0);
        let place = count.and_then(|count| begun.place(Be64::from_bytes(offset).get(), count));
        let Some(place) = place else { return garbage("sends data that was not asked for") };
        begun.fill(&place)?;
        Ok(self.incoming.read_exact(&mut begun.bytes[place])?)
    }

    fn hole(&mut self, begun: &mut Begun) -> Result<()> {
        let text = self.text(12)?;
        let mut fields = Fields(&text);
        let (offset, count) = (fields.u64().unwrap_or(0), fields.u32().unwrap_or(0));
        let place = begun.place(offset, count.into()).filter(|place| !place.is_empty());
        let Some(place) = place else { return garbage("sends a hole that was not asked for") };
        begun.fill(&place)
    }

    fn extents(&mut self, begun: &mut Begun, len: u32) -> Result<()> {
        let text = self.text(len)?;
        let mut fields = Fields(&text);
        let is_asked = begun.expected == Expected::Extents && begun.extents.is_empty();
        if !is_asked || len % 8 != 4 || fields.u32() != self.allocation {
            return garbage("tells holes that were not asked for");
        }
        while let (Some(len), Some(flags)) = (fields.u32(), fields.u32()) {
            begun.extents.push((len, flags));
        }
        Ok(())
    }
}

/// The error of a reply. A server that shuts down is lost.
fn error_of(code: u32) -> Result<io::Error> {
    if code == wire::SHUTTING_DOWN {
        return Err(Fault::Io(io::Error::other("the server shuts down")));
    }
    // The numbers are those of Linux.
    let errno = i32::try_from(code).ok().filter(|code| (1..4096).contains(code));
    let Some(errno) = errno else { return garbage(format!("fails with error {code}")) };
    Ok(io::Error::from_raw_os_error(errno))
}
