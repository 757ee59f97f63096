//! A file of lines that is appended to.
//!
//! Invariants: it ends behind a whole line, whatever fails: what was written in part is cut off,
//! and nothing is written behind a failure, because nobody knows what has reached the file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Doing, Error, Result};

/// What lines are written to.
pub(super) trait Store: Write {
    /// Cuts it to so many bytes.
    fn cut(&self, bytes: u64) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;
}

impl Store for File {
    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A file of lines.
#[derive(Debug)]
pub(super) struct LineFile<S = File> {
    store: S,
    bytes: u64,
    has_failed: bool,
}

impl LineFile {
    /// Opens it, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let store = OpenOptions::new().create(true).append(true).open(path)?;
            let bytes = store.metadata()?.len();
            Ok::<_, io::Error>(Self { store, bytes, has_failed: false })
        };
        open().doing(format_args!("opening {}", path.display()))
    }
}

impl<S: Store> LineFile<S> {
    /// Its length.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes whole lines. `what` they are stands in the error.
    pub(super) fn append(&mut self, lines: &str, what: &str) -> Result<()> {
        self.change(what, |store| store.write_all(lines.as_bytes()))?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Writes whole lines, and waits until they are durable.
    pub(super) fn append_durably(&mut self, lines: &str, what: &str) -> Result<()> {
        self.change(what, |store| store.write_all(lines.as_bytes()).and_then(|()| store.sync()))?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    fn change(&mut self, what: &str, by: impl FnOnce(&mut S) -> io::Result<()>) -> Result<()> {
        if self.has_failed {
            return Err(Error::new(format!("{what}: an earlier write has failed")));
        }
        by(&mut self.store)
            .inspect_err(|_| {
                self.has_failed = true;
                // Where that fails, too, the run that goes on cuts it off.
                let _ = self.store.cut(self.bytes);
            })
            .doing(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A store with room for so many bytes.
    struct Small {
        text: RefCell<Vec<u8>>,
        room: usize,
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = self.text.get_mut();
            let count = bytes.len().min(self.room - text.len());
            text.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Store for Small {
        fn cut(&self, bytes: u64) -> io::Result<()> {
            self.text.borrow_mut().truncate(bytes as usize);
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Fault model: a store that is full in the middle of a line, and has room again later.
    #[test]
    fn nothing_is_written_behind_a_torn_line() {
        let store = Small { text: RefCell::default(), room: 8 };
        let mut file = LineFile { store, bytes: 0, has_failed: false };
        file.append("one\n", "lines").unwrap();
        assert!(file.append_durably("two three\n", "lines").is_err());
        assert_eq!((&*file.store.text.borrow(), file.bytes()), (&b"one\n".to_vec(), 4));
        file.store.room = 100;
        let error = file.append("four\n", "lines").unwrap_err().to_string();
        assert_eq!(error, "lines: an earlier write has failed");
        assert_eq!(*file.store.text.borrow(), b"one\n");
    }
}
