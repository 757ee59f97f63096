//! The handshake: from a fresh connection to an export that is served.
//!
//! Source: doc/proto.md, "Fixed newstyle negotiation". Order: TLS if the URI asks for it,
//! structured replies, the context that tells holes, and the export itself.

use std::io::{Read, Write};

use crate::error::{Fault, Result, garbage};
use crate::export::{Export, Sizes};
use crate::wire::{self, Be16, Be32, Be64, Fields, handshake_flag, info, option, option_reply};

/// Longest reply to an option, in bytes; what a server says in words is far shorter.
const REPLY_MAX: u32 = 64 << 10;
/// Most replies to one option: a server that never ends is none.
const REPLIES_MAX: usize = 1024;

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) export: Export,
    /// Whether replies come in chunks.
    pub(crate) structured: bool,
}

/// The server's greeting, and ours.
pub(crate) fn greet(stream: &mut (impl Read + Write)) -> Result<()> {
    let mut words = [0; 18];
    stream.read_exact(&mut words)?;
    let mut fields = Fields(&words);
    if fields.u64() != Some(wire::SERVER_MAGIC) {
        return garbage("its first bytes are not those of NBD");
    }
    let magic = fields.u64();
    let flags = fields.u16().unwrap_or(0);
    if magic != Some(wire::OPTION_MAGIC) || flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(Fault::Refused("speaks an old NBD without options".to_owned()));
    }
    let own = handshake_flag::FIXED_NEWSTYLE | (flags & handshake_flag::NO_ZEROES);
    Ok(stream.write_all(&Be32::new(own.into()).to_bytes())?)
}

/// Asks the server to speak TLS from now on.
pub(crate) fn start_tls(stream: &mut (impl Read + Write)) -> Result<()> {
    match ask(stream, option::STARTTLS, &[], |_, _| Ok(()))? {
        Answer::Done => Ok(()),
        Answer::Not { code, .. } if code == option_reply::ERR_UNSUP => {
            Err(Fault::no_tls("has no TLS"))
        }
        Answer::Not { code, words } if code == option_reply::ERR_POLICY => {
            Err(Fault::no_tls(format!("does not allow TLS here, which nbd:// does without{words}")))
        }
        Answer::Not { words, .. } => Err(Fault::no_tls(format!("refuses TLS{words}"))),
    }
}

/// Agrees on replies and on the export of that name.
pub(crate) fn choose(stream: &mut (impl Read + Write), name: &str) -> Result<Agreed> {
    let asked = ask(stream, option::STRUCTURED_REPLY, &[], |_, _| Ok(()))?;
    let structured = matches!(asked, Answer::Done);
    let allocation = if structured { ask_for_holes(stream, name)? } else { None };
    let (mut found, mut sizes) = (None, None);
    let mut request = counted(name);
    request.extend(Be16::new(1).to_bytes());
    request.extend(Be16::new(info::BLOCK_SIZE).to_bytes());
    let answer = ask(stream, option::GO, &request, |kind, fields| {
        if kind != option_reply::INFO {
            return garbage("answers with what was not asked for");
        }
        match fields.u16() {
            Some(info::EXPORT) => found = fields.u64().zip(fields.u16()),
            Some(info::BLOCK_SIZE) => {
                let (least, _) = (fields.u32(), fields.u32());
                sizes = least.zip(fields.u32()).map(|(least, most)| Sizes { least, most });
            }
            Some(_) => {}
            None => return garbage("tells nothing of its export"),
        }
        Ok(())
    })?;
    match (answer, found) {
        (Answer::Done, Some((len, flags))) => {
            let export = Export::new(len, flags, sizes, allocation)?;
            Ok(Agreed { export, structured })
        }
        (Answer::Done, None) => garbage("does not tell the size of its export"),
        (Answer::Not { code: option_reply::ERR_TLS_REQD, words }, _) => {
            Err(Fault::no_tls(format!("asks for TLS: nbds://{words}")))
        }
        (Answer::Not { code, words }, _) => Err(Fault::Refused(match code {
            option_reply::ERR_UNKNOWN => format!("has no export {name:?}{words}"),
            option_reply::ERR_POLICY => format!("refuses the export {name:?}{words}"),
            option_reply::ERR_UNSUP => "cannot be asked for an export (NBD_OPT_GO)".to_owned(),
            code => format!("refuses the export {name:?}: error {}{words}", code & 0xffff),
        })),
    }
}

/// The number of the context that tells holes, if the server has it.
fn ask_for_holes(stream: &mut (impl Read + Write), name: &str) -> Result<Option<u32>> {
    let mut request = counted(name);
    request.extend(Be32::new(1).to_bytes());
    request.extend(counted(wire::ALLOCATION));
    let mut number = None;
    let answer = ask(stream, option::SET_META_CONTEXT, &request, |kind, fields| {
        if kind != option_reply::META_CONTEXT {
            return garbage("answers with what was not asked for");
        }
        let found = fields.u32();
        if fields.0 == wire::ALLOCATION.as_bytes() {
            number = found;
        }
        Ok(())
    })?;
    Ok(number.filter(|_| matches!(answer, Answer::Done)))
}

/// How an option ended.
enum Answer {
    Done,
    /// The server will not; its words begin with ": " or are empty.
    Not {
        code: u32,
        words: String,
    },
}

/// Sends an option and takes the replies until the last one; `each` has those between.
fn ask(
    stream: &mut (impl Read + Write),
    option: u32,
    data: &[u8],
    mut each: impl FnMut(u32, &mut Fields<'_>) -> Result<()>,
) -> Result<Answer> {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut sent = Be64::new(wire::OPTION_MAGIC).to_bytes().to_vec();
    sent.extend(Be32::new(option).to_bytes());
    sent.extend(Be32::new(len).to_bytes());
    sent.extend(data);
    stream.write_all(&sent)?;
    for _ in 0..REPLIES_MAX {
        let (kind, text) = reply_to(stream, option)?;
        match kind {
            option_reply::ACK => return Ok(Answer::Done),
            code if code & option_reply::ERROR != 0 => {
                let words = String::from_utf8_lossy(&text);
                let words: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
                let words = if words.is_empty() { words } else { format!(": {words}") };
                return Ok(Answer::Not { code, words });
            }
            kind => each(kind, &mut Fields(&text))?,
        }
    }
    garbage("answers an option without an end")
}

fn reply_to(stream: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>)> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let mut fields = Fields(&header);
    let (magic, of, kind, len) = (fields.u64(), fields.u32(), fields.u32(), fields.u32());
    let (Some(kind), Some(len)) = (kind, len) else { return garbage("ends in a reply") };
    if magic != Some(wire::OPTION_REPLY_MAGIC) || of != Some(option) {
        return garbage("answers another option than was asked for");
    }
    if len > REPLY_MAX {
        return garbage(format!("answers an option with {len} bytes"));
    }
    let mut text = vec![0; len as usize];
    stream.read_exact(&mut text)?;
    Ok((kind, text))
}

/// Bytes behind their count, as the protocol has strings.
fn counted(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&Be32::new(len).to_bytes(), text.as_bytes()].concat()
}
