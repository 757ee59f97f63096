//! What a mount tells of itself beside its files: attributes that are not in the image, and the
//! same by ioctl(2).
//!
//! What: an attribute is asked for without opening anything. The ioctl serves where the kernel
//! passes questions for attributes on no more, because the image has none
//! ([`uext4::Volume::has_no_attributes`]). An answer that is longer than the ioctl's structure
//! comes in parts: the first part names it, and the others are taken from what was answered then.
//!
//! Locking: one mutex, held to copy an answer in or out.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use uext4_device::{QUESTION_BYTES, question_mounted};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::failure::Answer;
use crate::node::ROOT_NODE;
use crate::stats::BYTES_MAX;
use crate::{PID_XATTR, READ_ONLY_XATTR, STATS_XATTR, mountinfo};

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// [`PID_XATTR`].
    Pid,
    /// [`READ_ONLY_XATTR`].
    ReadOnly,
    /// [`STATS_XATTR`].
    Stats,
}

impl Question {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Pid, PID_XATTR), (Self::ReadOnly, READ_ONLY_XATTR), (Self::Stats, STATS_XATTR)];

    fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| own.as_bytes() == name).map(|(question, _)| *question)
    }

    /// What a request for the attribute `name` of a node asks, if the attribute is ours.
    pub(crate) fn of_attribute(node: u64, name: &[u8]) -> Option<Self> {
        Self::of_name(name).filter(|question| *question == Self::Stats || node == ROOT_NODE)
    }
}

const PART_BYTES: usize = QUESTION_BYTES - 16;

/// The ioctl's structure.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Page {
    /// Place in [`Question::ALL`].
    question: u32,
    /// Which answer, for parts behind the first.
    token: u32,
    /// Byte of the answer that the part begins with.
    offset: u32,
    /// Bytes of the whole answer.
    len: u32,
    part: [u8; PART_BYTES],
}

/// An answer of which parts are still to be asked for.
struct Kept {
    token: u32,
    /// The user that has asked.
    uid: u32,
    bytes: Arc<[u8]>,
}

/// Long answers that were begun; the oldest goes when there are too many.
#[derive(Default)]
pub(crate) struct Answers(Mutex<(u32, VecDeque<Kept>)>);

impl Answers {
    const MOST: usize = 8;

    fn keep(&self, uid: u32, bytes: &Arc<[u8]>) -> u32 {
        let (last, kept) = &mut *self.0.lock();
        *last = last.wrapping_add(1);
        kept.truncate(Self::MOST - 1);
        kept.push_front(Kept { token: *last, uid, bytes: Arc::clone(bytes) });
        *last
    }

    fn get(&self, uid: u32, token: u32) -> Option<Arc<[u8]>> {
        let kept = &self.0.lock().1;
        let found = kept.iter().find(|kept| kept.token == token && kept.uid == uid);
        found.map(|kept| Arc::clone(&kept.bytes))
    }

    /// Answers the ioctl for a user. `answer` has the whole answer to a question.
    pub(crate) fn part(
        &self,
        uid: u32,
        data: &[u8],
        answer: impl FnOnce(Question) -> Answer<Vec<u8>>,
    ) -> Answer<Vec<u8>> {
        let (mut page, _) = Page::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
        let bytes: Arc<[u8]> = match page.offset {
            0 => {
                let question = Question::ALL.get(page.question as usize).ok_or(Errno::INVAL)?.0;
                let bytes: Arc<[u8]> = answer(question)?.into();
                if bytes.len() > PART_BYTES {
                    page.token = self.keep(uid, &bytes);
                }
                bytes
            }
            _ => self.get(uid, page.token).ok_or(Errno::STALE)?,
        };
        let rest = bytes.get(page.offset as usize..).ok_or(Errno::INVAL)?;
        let here = rest.len().min(PART_BYTES);
        page.part[..here].copy_from_slice(&rest[..here]);
        page.part[here..].fill(0);
        page.len = u32::try_from(bytes.len()).map_err(|_| Errno::OVERFLOW)?;
        Ok(page.as_bytes().to_vec())
    }
}

/// The attribute `name` of the mount that the directory `dir` is on ([`PID_XATTR`],
/// [`READ_ONLY_XATTR`], [`STATS_XATTR`]), also where the kernel passes no attributes on.
///
/// # Errors
/// `EOPNOTSUPP` or `ENODATA` where `dir` is on no such mount; `EACCES` for other users than root
/// and the one who mounted; `ENOTCONN` where the daemon is gone.
pub fn ask(dir: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0; BYTES_MAX];
    match rustix::fs::getxattr(dir, name, &mut value[..]) {
        Ok(len) => value.truncate(len),
        Err(Errno::OPNOTSUPP) => return ask_by_ioctl(dir, name),
        Err(error) => return Err(error.into()),
    }
    Ok(value)
}

fn ask_by_ioctl(dir: &Path, name: &str) -> io::Result<Vec<u8>> {
    let place = Question::ALL.iter().position(|(_, own)| *own == name).ok_or(Errno::INVAL)?;
    // Nothing else is opened: that may wait, or do something.
    let only = libc::O_DIRECTORY | libc::O_NONBLOCK;
    let dir = OpenOptions::new().read(true).custom_flags(only).open(dir)?;
    let mount = mountinfo::of_device(dir.metadata()?.dev())?;
    if !mount.is_some_and(|mount| mount.is_ours()) {
        return Err(Errno::OPNOTSUPP.into());
    }
    let mut value = Vec::new();
    let mut token = 0;
    loop {
        let (question, offset) = (place as u32, value.len() as u32);
        let mut page = Page { question, token, offset, len: 0, part: [0; PART_BYTES] };
        question_mounted(&dir, zerocopy::transmute_mut!(&mut page))?;
        token = page.token;
        let rest = (page.len as usize).saturating_sub(value.len());
        value.extend_from_slice(&page.part[..rest.min(PART_BYTES)]);
        if rest <= PART_BYTES {
            return Ok(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(token: u32, offset: usize) -> Page {
        Page { question: 2, token, offset: offset as u32, len: 0, part: [0; PART_BYTES] }
    }

    /// Fault model: parts of different answers, or an answer for another user.
    #[test]
    fn parts_are_of_the_answer_that_was_begun() {
        let answers = Answers::default();
        let long = |byte| move |_| Ok(vec![byte; 2 * PART_BYTES + 5]);
        let ask = |uid, page: Page, byte| {
            let part = answers.part(uid, page.as_bytes(), long(byte))?;
            Ok::<_, crate::failure::Failure>(Page::read_from_bytes(&part).unwrap())
        };
        let first = ask(0, page(0, 0), 1).ok().unwrap();
        let other = ask(7, page(0, 0), 2).ok().unwrap();
        assert_ne!(first.token, other.token);
        for (uid, begun, byte) in [(0, first, 1), (7, other, 2)] {
            assert_eq!(begun.len as usize, 2 * PART_BYTES + 5);
            let last = ask(uid, page(begun.token, 2 * PART_BYTES), 9).ok().unwrap();
            assert_eq!(last.part[..6], [byte, byte, byte, byte, byte, 0]);
        }
        assert!(ask(7, page(first.token, PART_BYTES), 9).is_err());
        assert!(ask(0, page(first.token, 3 * PART_BYTES), 9).is_err());
        (0..Answers::MOST).for_each(|_| drop(ask(0, page(0, 0), 3)));
        assert!(ask(0, page(first.token, PART_BYTES), 9).is_err(), "it was let go");
    }
}
