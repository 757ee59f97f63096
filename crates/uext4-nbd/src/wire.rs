//! Numbers and layouts of the NBD protocol.
//!
//! Source: "The NBD protocol" (doc/proto.md of NetworkBlockDevice/nbd). All numbers on the wire are
//! big-endian.

use zerocopy::byteorder::{BigEndian, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// First word of a server: "NBDMAGIC".
pub(crate) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of a server, and first of each option: "IHAVEOPT".
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flags, of server and client alike.
pub(crate) mod handshake_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    pub(crate) const NO_ZEROES: u16 = 2;
}

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR + 1;
    pub(crate) const ERR_POLICY: u32 = ERROR + 2;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR + 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR + 6;
}

/// Kinds of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can.
pub(crate) mod export_flag {
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;
}

/// First word of a request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply's chunk.
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Commands.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1;
}

/// Kinds of chunks of a structured reply.
pub(crate) mod chunk {
    pub(crate) const DONE: u16 = 1;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR_BIT: u16 = 1 << 15;
}

/// The context of block status that tells holes, and its flag for bytes that read as zeroes.
pub(crate) const ALLOCATION: &str = "base:allocation";
pub(crate) const STATE_ZERO: u32 = 2;

/// Errors of replies: those of Linux, but a server that shuts down is its own case.
pub(crate) const SHUTTING_DOWN: u32 = 108;

/// Numbers as the wire has them.
pub(crate) type Be16 = U16<BigEndian>;
pub(crate) type Be32 = U32<BigEndian>;
pub(crate) type Be64 = U64<BigEndian>;

/// A request's header.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct RawRequest {
    magic: Be32,
    flags: Be16,
    command: Be16,
    cookie: Be64,
    offset: Be64,
    length: Be32,
}

impl RawRequest {
    pub(crate) fn new(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Self {
        Self {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.into(),
            cookie: cookie.into(),
            offset: offset.into(),
            length: length.into(),
        }
    }
}

/// Takes numbers off the front of bytes; `None` where they end.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Be16::read_from_bytes(self.bytes(2)?).ok().map(Be16::get)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Be32::read_from_bytes(self.bytes(4)?).ok().map(Be32::get)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Be64::read_from_bytes(self.bytes(8)?).ok().map(Be64::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_protocol_says() {
        let raw = RawRequest::new(command::WRITE, command_flag::FUA, 0x0102, 0x1000, 0x20);
        let mut fields = Fields(raw.as_bytes());
        assert_eq!(fields.u32(), Some(REQUEST_MAGIC));
        assert_eq!((fields.u16(), fields.u16()), (Some(1), Some(1)));
        assert_eq!((fields.u64(), fields.u64()), (Some(0x0102), Some(0x1000)));
        assert_eq!(fields.u32(), Some(0x20));
        assert!(fields.0.is_empty() && fields.u16().is_none());
    }
}
