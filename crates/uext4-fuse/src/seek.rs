//! `SEEK_DATA` and `SEEK_HOLE` on files that may have dirty pages in the kernel.
//!
//! The kernel passes these on without writing the file's dirty pages first (6.18, `fs/fuse/file.c`,
//! `fuse_lseek`), so the engine would call just-written data a hole, and a copy made by that answer
//! would lose it. Worked example: a program writes 4 KiB and keeps the file open, `cp` asks for the
//! first data, is told "none" and makes an empty copy.
//!
//! Dirty pages exist only while a file is open for writing or mapped, which keeps it open; the last
//! close writes them. A file without writers is answered at once. For one with writers the pages
//! are written first, by an invalidation notice, which makes the kernel send WRITE requests and
//! wait for them. That must not happen on a worker thread (all workers could end up waiting for
//! requests that none of them takes), so one thread of its own does it.

use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use fuser::{INodeNo, Notifier, ReplyLseek};

/// A question that needs write-back first; the answer is computed by `answer` afterwards.
pub(crate) struct Question {
    /// File whose pages are to be written.
    pub(crate) node: u64,
    /// Asks the engine and replies.
    pub(crate) answer: Box<dyn FnOnce() + Send>,
}

/// The thread that writes back before it answers.
#[derive(Default)]
pub(crate) struct Seeker {
    questions: OnceLock<Sender<Question>>,
}

impl Seeker {
    /// Starts the thread; it ends when the seeker is dropped.
    pub(crate) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel();
        thread::Builder::new()
            .name("fuse-seek".to_owned())
            .spawn(move || run(&notifier, &receiver))?;
        // Started once a mount; a second start would leave the first in place.
        let _ = self.questions.set(sender);
        Ok(())
    }

    /// Hands a question over; gives it back when there is no thread.
    pub(crate) fn ask(&self, question: Question) -> Result<(), Question> {
        match self.questions.get() {
            Some(questions) => questions.send(question).map_err(|error| error.0),
            None => Err(question),
        }
    }
}

fn run(notifier: &Notifier, questions: &Receiver<Question>) {
    for question in questions {
        // Offset 0 and length 0 are the whole file. An error means that a page was dirtied again
        // meanwhile: what was dirty when the question came has been written.
        let _ = notifier.inval_inode(INodeNo(question.node), 0, 0);
        (question.answer)();
    }
}

/// Sends the answer of a seek.
pub(crate) fn reply(answer: crate::failure::Answer<i64>, reply: ReplyLseek) {
    match answer {
        Ok(offset) => reply.offset(offset),
        Err(failure) => reply.error(failure.errno()),
    }
}
