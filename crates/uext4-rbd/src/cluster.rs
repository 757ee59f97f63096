//! A connection to a cluster, with one of its pools.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr::{null, null_mut};
use std::slice;
use std::time::Duration;

use crate::error::Fault;
use crate::ffi::{self, Handle};
use crate::name::RbdName;

/// A pool of a cluster, or a namespace of one. Its connection ends with it.
#[derive(Debug)]
pub(crate) struct Pool {
    cluster: Handle,
    io: Handle,
}

// SAFETY: librados says of both handles that any thread may use them ("thread-safe" in its
// introduction); they are given back once, by the owner of this.
unsafe impl Send for Pool {}
// SAFETY: the same.
unsafe impl Sync for Pool {}

/// What librados answers, as a result.
pub(crate) fn answer(code: impl Into<i64>) -> io::Result<i64> {
    let code = code.into();
    if code >= 0 {
        return Ok(code);
    }
    Err(io::Error::from_raw_os_error(i32::try_from(-code).unwrap_or(libc::EIO)))
}

/// A text for C. Names have no zero byte.
pub(crate) fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

impl Pool {
    /// Connects, by the settings of the name, of `CEPH_CONF` or /etc/ceph/ceph.conf, and of
    /// `CEPH_ARGS`. Each answer of the cluster takes `timeout` at most.
    pub(crate) fn open(name: &RbdName, timeout: Duration) -> Result<Self, Fault> {
        let mut pool = Self { cluster: null_mut(), io: null_mut() };
        let id = name.setting("id").map(text);
        let id = id.as_ref().map_or(null(), |id| id.as_ptr());
        // SAFETY: the place for the handle lives during the call, and so does the string.
        answer(unsafe { ffi::rados_create(&raw mut pool.cluster, id) })
            .map_err(Fault::of("librados"))?;
        pool.read_settings(name, timeout)?;
        // SAFETY: the handle is of `rados_create`.
        answer(unsafe { ffi::rados_connect(pool.cluster) })
            .map_err(Fault::of("no connection to a cluster"))?;
        // SAFETY: the handle is connected; the place and the string live during the call.
        let made = unsafe {
            ffi::rados_ioctx_create(pool.cluster, text(name.pool()).as_ptr(), &raw mut pool.io)
        };
        answer(made).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => Fault::Refused(format!("there is no pool {}", name.pool())),
            _ => Fault::Failed("the pool", error),
        })?;
        // SAFETY: the handle is of `rados_ioctx_create`, the string lives during the call.
        unsafe { ffi::rados_ioctx_set_namespace(pool.io, text(name.namespace()).as_ptr()) };
        Ok(pool)
    }

    fn read_settings(&self, name: &RbdName, timeout: Duration) -> Result<(), Fault> {
        let conf = name.setting("conf").map(text);
        let path = conf.as_ref().map_or(null(), |conf| conf.as_ptr());
        // SAFETY: the handle is of `rados_create`, the string lives during the call.
        let read = answer(unsafe { ffi::rados_conf_read_file(self.cluster, path) });
        let has_file = read.is_ok();
        if let (Err(error), Some(_)) = (read, &conf) {
            return Err(Fault::Failed("its conf", error));
        }
        // SAFETY: the handle is of `rados_create`; no name means CEPH_ARGS.
        answer(unsafe { ffi::rados_conf_parse_env(self.cluster, null()) })
            .map_err(Fault::of("CEPH_ARGS"))?;
        let seconds = timeout.as_secs().max(1).to_string();
        let ours = [
            ("client_mount_timeout", &*seconds),
            ("rados_mon_op_timeout", &*seconds),
            ("rados_osd_op_timeout", &*seconds),
            // A write is complete when the stores have it; see the head of lib.rs.
            ("rbd_cache", "false"),
            // What is wrong is told by the caller, in one line.
            ("log_to_stderr", "false"),
            ("err_to_stderr", "false"),
        ];
        for (key, value) in ours.into_iter().chain(name.ceph_settings()) {
            let (given, to) = (text(key), text(value));
            // SAFETY: the handle is of `rados_create`, the strings live during the call.
            let set = unsafe { ffi::rados_conf_set(self.cluster, given.as_ptr(), to.as_ptr()) };
            answer(set).map_err(|error| Fault::Refused(format!("{key}={value}: {error}")))?;
        }
        if !has_file && !self.has_monitor() {
            let why =
                "no cluster is known: there is no ceph.conf, and conf= and mon_host= name none";
            return Err(Fault::Refused(why.to_owned()));
        }
        Ok(())
    }

    /// Whether the settings name a monitor. Without, librados would write to standard error.
    fn has_monitor(&self) -> bool {
        let mut value: [c_char; 512] = [0; 512];
        // SAFETY: the handle is of `rados_create`; the buffer has that length.
        let found = unsafe {
            ffi::rados_conf_get(self.cluster, c"mon_host".as_ptr(), value.as_mut_ptr(), value.len())
        };
        // A value that is too long is one.
        answer(found).map_or(true, |_| value[0] != 0)
    }

    /// For functions of librbd.
    pub(crate) fn io(&self) -> Handle {
        self.io
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
                self.io,
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
        let (mut acks, mut count, mut silent, mut silent_count) = (null_mut(), 0, null_mut(), 0);
        if reply.is_null() {
            return Ok(BTreeSet::new());
        }
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

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.io.is_null() {
            // SAFETY: the handle is of `rados_ioctx_create`, and is not used again.
            unsafe { ffi::rados_ioctx_destroy(self.io) };
        }
        if !self.cluster.is_null() {
            // SAFETY: the handle is of `rados_create`, and is not used again.
            unsafe { ffi::rados_shutdown(self.cluster) };
        }
    }
}

/// A count for C.
pub(crate) fn count_of(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}
