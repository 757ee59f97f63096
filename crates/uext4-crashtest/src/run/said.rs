//! What a command says, as much of it as is kept: its begin and its end, so that one that prints
//! without end takes neither memory nor room in a temporary folder.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::{Error, Result};

/// Most bytes of the begin that are kept, and of the end.
const PART: usize = 32 << 10;

/// Most bytes that are read of what others say who have the pipe when the command has ended.
const LATE: usize = 1 << 20;

/// A pipe that is read.
pub(super) struct Said {
    reader: JoinHandle<Kept>,
    is_over: Arc<AtomicBool>,
}

#[derive(Default)]
struct Kept {
    begin: Vec<u8>,
    end: VecDeque<u8>,
    left_out: usize,
}

impl Said {
    /// The pipe, as standard output and standard error.
    pub(super) fn new() -> Result<(Self, [Stdio; 2])> {
        let failed = |error: io::Error| Error::new(format!("a pipe for the check: {error}"));
        let (reader, writer) = io::pipe().map_err(failed)?;
        let both = [writer.try_clone().map_err(failed)?.into(), writer.into()];
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let reader = thread::Builder::new().spawn(move || read(reader, &over)).map_err(failed)?;
        Ok((Self { reader, is_over }, both))
    }

    /// What was said, once all processes of the command have ended.
    pub(super) fn end(self) -> String {
        self.is_over.store(true, Ordering::Relaxed);
        self.reader.join().map(Kept::text).unwrap_or_default()
    }
}

fn read(mut pipe: PipeReader, is_over: &AtomicBool) -> Kept {
    let (mut kept, mut late, mut bytes) = (Kept::default(), 0, [0; 8 << 10]);
    while late < LATE {
        // A process that has left the command's group may have the pipe, too.
        let over = is_over.load(Ordering::Relaxed);
        if !is_ready(&pipe) {
            if over {
                break;
            }
            continue;
        }
        match pipe.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                kept.add(&bytes[..count]);
                late += if over { count } else { 0 };
            }
        }
    }
    kept
}

/// Something can be read, or nobody is left to write.
fn is_ready(pipe: &PipeReader) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut files = [PollFd::new(pipe, PollFlags::IN)];
    rustix::event::poll(&mut files, Some(&wait)).is_ok_and(|ready| ready > 0)
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        let (begin, rest) = bytes.split_at(bytes.len().min(PART - self.begin.len()));
        self.begin.extend_from_slice(begin);
        self.end.extend(rest);
        let too_many = self.end.len().saturating_sub(PART);
        self.end.drain(..too_many);
        self.left_out += too_many;
    }

    fn text(self) -> String {
        let (mut bytes, end) = (self.begin, Vec::from(self.end));
        if self.left_out > 0 {
            bytes.extend(format!("\n[{} bytes left out]\n", self.left_out).into_bytes());
        }
        bytes.extend(end);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_begin_and_the_end_are_kept() {
        let mut kept = Kept::default();
        kept.add(b"first ");
        (0..100).for_each(|_| kept.add(&[b'x'; 10_000]));
        kept.add(b" last");
        let text = kept.text();
        assert!(text.starts_with("first x") && text.ends_with("x last"));
        assert!(text.contains(&format!("[{} bytes left out]", 1_000_011 - 2 * PART)));
        assert!(text.len() < 2 * PART + 100);
    }

    #[test]
    fn all_that_is_said_is_there_and_nobody_is_waited_for() {
        use std::io::Write;
        let (reader, mut writer) = io::pipe().unwrap();
        let is_over = AtomicBool::new(true);
        writer.write_all(b"said").unwrap();
        // The other end is still open.
        assert_eq!(read(reader, &is_over).text(), "said");
    }
}
