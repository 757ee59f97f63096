//! Fences: clients that a cluster refuses (its blocklist).
//!
//! # What
//! A writer that was missed is fenced for [`FENCE`]: by itself a cluster would let it in again
//! after an hour, and a host may be suspended for longer. `rbd_blocklist_expire_seconds` cannot be
//! used: librados 16 sends that number as a text, which monitors refuse. A monitor keeps the end of
//! a fence that is there (`OSDMap::apply_incremental` inserts), so a shorter one, of an
//! administrator or of another program, is taken away before. Until the next one stands its client
//! may write; it has the lock as yet, and its successor has read nothing.

use std::io;
use std::ptr::{null, null_mut};
use std::slice;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cluster::{Pool, answer, text};
use crate::ffi;

const YEAR: Duration = Duration::from_secs(31_556_952);
/// How long a client stays fenced, in years, and how long it must at least.
const FENCE: u32 = 10;
const FENCE_MIN: u64 = 9;

impl Pool {
    /// Has the cluster refuse a client for [`FENCE`] years from now on.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`: a shorter fence is there, and this client may not take it away.
    pub(crate) fn fence(&self, address: &str) -> io::Result<()> {
        if !address.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:/[]%".contains(&byte)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let change = |operation: &str, more: &str| {
            let change = format!(r#""prefix": "osd blocklist", "blocklistop": "{operation}""#);
            self.tell_monitors(&format!(r#"{{{change}, "addr": "{address}"{more}}}"#))
        };
        match ends(&self.fences()?, address) {
            Some(year) if is_far(year) => {}
            fence => {
                if fence.is_some() {
                    change("rm", "")?;
                }
                let seconds = (YEAR * FENCE).as_secs();
                change("add", &format!(r#", "expire": {seconds}.0"#))?;
            }
        }
        // What this client asks for from now on is asked of stores that know of the fence.
        // SAFETY: the handle is connected.
        answer(unsafe { ffi::rados_wait_for_latest_osdmap(self.cluster()) }).map(drop)
    }

    /// Whether a client is fenced for long.
    pub(crate) fn is_fenced(&self, address: &str) -> io::Result<bool> {
        Ok(ends(&self.fences()?, address).is_some_and(is_far))
    }

    /// All fences: a line for each, its address and its end.
    fn fences(&self) -> io::Result<String> {
        self.tell_monitors(r#"{"prefix": "osd blocklist ls", "format": "plain"}"#)
    }

    /// Sends a command to a monitor; what it answers.
    fn tell_monitors(&self, command: &str) -> io::Result<String> {
        let command = text(command);
        let commands = [command.as_ptr()];
        let (mut output, mut len) = (null_mut(), 0);
        // SAFETY: the handle is connected; the strings and places live during the call.
        let done = unsafe {
            ffi::rados_mon_command(
                self.cluster(),
                commands.as_ptr(),
                commands.len(),
                null(),
                0,
                &raw mut output,
                &raw mut len,
                null_mut(),
                null_mut(),
            )
        };
        let mut said = String::new();
        if !output.is_null() {
            // SAFETY: librados has made a buffer of that many bytes, which nobody else has.
            let bytes = unsafe { slice::from_raw_parts(output.cast::<u8>(), len) };
            said = String::from_utf8_lossy(bytes).into_owned();
            // SAFETY: the buffer is of `rados_mon_command`, and is not used again.
            unsafe { ffi::rados_buffer_free(output) };
        }
        answer(done).map(|_| said)
    }
}

/// The year in which the fence of an address ends.
fn ends(fences: &str, address: &str) -> Option<u64> {
    let mut all = fences.lines().filter_map(|line| line.trim().split_once(' '));
    let (_, date) = all.find(|(fenced, _)| *fenced == address)?;
    // One whose end cannot be read is a short one.
    Some(date.get(..4).and_then(|year| year.parse().ok()).unwrap_or(0))
}

fn is_far(year: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    year >= 1970 + now.as_secs() / YEAR.as_secs() + FENCE_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: the fence of another client, or one that ends soon, is taken for a long one.
    #[test]
    fn the_end_of_a_fence_is_that_of_its_address() {
        let fences = "10.0.0.1:0/12 2026-11-28T17:08:14.143658+0000\n\
                      10.0.0.1:0/1 2136-11-25T16:08:07.573922+0000\n10.0.0.1:0/3 ?\n";
        assert_eq!(ends(fences, "10.0.0.1:0/1"), Some(2136));
        assert_eq!(ends(fences, "10.0.0.1:0/12"), Some(2026));
        assert_eq!(ends(fences, "10.0.0.1:0/3"), Some(0));
        assert_eq!(ends(fences, "10.0.0.1:0/2"), None);
        assert!(is_far(2136) && !is_far(2026));
    }
}
