//! The stream of blocks below a reader.

use std::io::{self, BufRead, BufReader, Read};

use crate::compression::Format;
use crate::error::{Error, Result};

/// Bytes of a block, the unit of the format.
pub(crate) const BLOCK: usize = 512;

/// Larger reads go past the buffer.
const BUFFER_BYTES: usize = 128 << 10;

/// Most bytes that are read behind the end marker of a stream that is not compressed.
const PLAIN_REST_BYTES: u64 = 1 << 20;
/// Most bytes behind the end marker of a compressed stream: a few bytes can stand for any number.
const REST_MAX: u64 = 1 << 30;
const REST_TOO_LONG: &str = "more than 1 GiB behind the end marker";

/// A stream that knows where it is.
pub(crate) struct Input {
    stream: BufReader<Box<dyn Read + Send>>,
    format: Format,
    at: u64,
}

impl Input {
    pub(crate) fn new(stream: Box<dyn Read + Send>, format: Format) -> Self {
        Self { stream: BufReader::with_capacity(BUFFER_BYTES, stream), format, at: 0 }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Bytes taken so far.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The next block; `None` at the end of the stream.
    pub(crate) fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        match self.some(&mut block[..1])? {
            0 => Ok(None),
            _ => {
                self.exact(&mut block[1..])?;
                Ok(Some(block))
            }
        }
    }

    /// Fills the buffer.
    pub(crate) fn exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match self.some(&mut buffer[done..])? {
                0 => return Err(Error::Truncated { at: self.at }),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Reads what there is; 0 at the end.
    pub(crate) fn some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fault(error)),
                Ok(count) => {
                    self.at += count as u64;
                    return Ok(count);
                }
            }
        }
    }

    /// Passes over so many bytes.
    pub(crate) fn skip(&mut self, mut left: u64) -> Result<()> {
        while left > 0 {
            let count = match self.stream.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.fault(error)),
                Ok([]) => return Err(Error::Truncated { at: self.at }),
                Ok(buffered) => buffered.len().min(usize::try_from(left).unwrap_or(usize::MAX)),
            };
            self.stream.consume(count);
            self.at += count as u64;
            left -= count as u64;
        }
        Ok(())
    }

    /// Whether only zeros follow up to the end of a block or of the stream.
    pub(crate) fn zeros(&mut self) -> Result<bool> {
        let (mut block, mut done) = ([0; BLOCK], 0);
        while done < BLOCK {
            match self.some(&mut block[done..])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(block == [0; BLOCK])
    }

    /// Reads what is behind the end marker: of a compressed stream all, because its checksum comes
    /// last; of another one what fills a record, so that the program that writes it ends well.
    pub(crate) fn drain(&mut self) -> Result<()> {
        let is_plain = self.format == Format::Plain;
        let end = self.at + if is_plain { PLAIN_REST_BYTES } else { REST_MAX };
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.some(&mut buffer)? > 0 {
            match self.at >= end {
                true if is_plain => break,
                true => return Err(Error::Damaged { at: self.at, what: REST_TOO_LONG }),
                false => {}
            }
        }
        Ok(())
    }

    fn fault(&self, error: io::Error) -> Error {
        self.format.fault(error, self.at)
    }
}
