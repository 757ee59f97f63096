//! What the header object of an image says: its watchers, and the client that has its lock.
//!
//! librbd has answers of its own to both. They do not tell a lock that was kept from one that was
//! lost and taken again, nor a client that is there from one that died.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::ptr::{null, null_mut};
use std::slice;
use std::time::Duration;

use crate::cluster::{Pool, answer, text};
use crate::ffi;

/// `RBD_LOCK_NAME` (librbd/ManagedLock).
const LOCK: &CStr = c"rbd_lock";
/// Longest text of a lock, in bytes: a client, a cookie, an address.
const TEXT_MAX: usize = 1 << 10;

/// The entry of a client that has the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Locker {
    /// `client.NUMBER`.
    pub(crate) client: String,
    /// It has the number of the watch with which the lock was taken, so that a client that was
    /// missed and takes the lock again has another one.
    cookie: String,
}

impl Pool {
    /// The number that the cluster has given to this client.
    pub(crate) fn number(&self) -> u64 {
        // SAFETY: the handle is connected.
        unsafe { ffi::rados_get_instance_id(self.cluster()) }
    }

    /// The client that has the lock, as the store says.
    pub(crate) fn locker(&self, object: &str) -> io::Result<Option<Locker>> {
        let object = text(object);
        let mut exclusive: c_int = 0;
        let mut texts: [[c_char; TEXT_MAX]; 4] = [[0; TEXT_MAX]; 4];
        let mut lens = [TEXT_MAX; 4];
        let [tag, clients, cookies, addresses] = &mut texts;
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
        // SAFETY: the handle is of `rados_ioctx_create`; strings and places live during the call,
        // and the buffers have those lengths.
        let listed = unsafe {
            ffi::rados_list_lockers(
                self.io(),
                object.as_ptr(),
                LOCK.as_ptr(),
                &raw mut exclusive,
                tag.as_mut_ptr(),
                tag_len,
                clients.as_mut_ptr(),
                clients_len,
                cookies.as_mut_ptr(),
                cookies_len,
                addresses.as_mut_ptr(),
                addresses_len,
            )
        };
        let count = answer(i64::try_from(listed).unwrap_or(i64::MAX))?;
        let found = Locker { client: first(clients), cookie: first(cookies) };
        Ok((count > 0).then_some(found))
    }

    /// Clients that watch an object and answer a question without content within a time, by their
    /// numbers. Watchers of the header of an image look at it again when they hear that.
    pub(crate) fn answering(&self, object: &str, time: Duration) -> io::Result<BTreeSet<u64>> {
        let (mut reply, mut reply_len) = (null_mut(), 0);
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let object = text(object);
        // SAFETY: the handle is of `rados_ioctx_create`; strings and places live during the call.
        let asked = answer(unsafe {
            ffi::rados_notify2(
                self.io(),
                object.as_ptr(),
                null(),
                0,
                time,
                &raw mut reply,
                &raw mut reply_len,
            )
        });
        // Those who did not answer are in the reply as well.
        if let Err(error) = asked
            && error.raw_os_error() != Some(libc::ETIMEDOUT)
        {
            return Err(error);
        }
        if reply.is_null() {
            return Ok(BTreeSet::new());
        }
        let (mut acks, mut count, mut silent, mut silent_count) = (null_mut(), 0, null_mut(), 0);
        // SAFETY: the buffer is of `rados_notify2`, with its length; the places live long enough.
        let decoded = answer(unsafe {
            ffi::rados_decode_notify_response(
                reply,
                reply_len,
                &raw mut acks,
                &raw mut count,
                &raw mut silent,
                &raw mut silent_count,
            )
        });
        let mut found = BTreeSet::new();
        if decoded.is_ok() {
            if !acks.is_null() {
                // SAFETY: librados has made an array of that many, which nobody else has.
                let acks = unsafe { slice::from_raw_parts(acks, count) };
                found.extend(acks.iter().map(|ack| ack.notifier_id));
            }
            // SAFETY: both arrays are of `rados_decode_notify_response`, and are not used again.
            unsafe { ffi::rados_free_notify_response(acks, count, silent) };
        }
        // SAFETY: the buffer is of `rados_notify2`, and is not used again.
        unsafe { ffi::rados_buffer_free(reply) };
        decoded.map(|_| found)
    }
}

/// The first of texts that end with a zero byte each.
fn first(texts: &[c_char; TEXT_MAX]) -> String {
    let bytes = texts.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}
