//! A connection to a cluster, with one of its pools.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr::{null, null_mut};
use std::time::Duration;

use crate::args::Args;
use crate::error::Fault;
use crate::ffi::{self, Handle};
use crate::name::RbdName;

/// The setting without which librbd would take the lock of a writer that was missed and not have it
/// fenced (blocklisted).
pub(crate) const FENCES: (&str, &str) = ("rbd_blocklist_on_break_lock", "true");
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
        let args = env::var_os("CEPH_ARGS").unwrap_or_default();
        let args = Args::of(&args.to_string_lossy())
            .map_err(|why| Fault::Refused(format!("CEPH_ARGS: {why}")))?;
        let id = name.setting("id").or(args.id.as_deref()).map(text);
        let id = id.as_ref().map_or(null(), |id| id.as_ptr());
        // SAFETY: the place for the handle lives during the call, and so does the string.
        answer(unsafe { ffi::rados_create(&raw mut pool.cluster, id) })
            .map_err(Fault::of("librados"))?;
        pool.read_settings(name, args.conf.as_deref(), timeout)?;
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

    fn read_settings(
        &self,
        name: &RbdName,
        conf: Option<&str>,
        timeout: Duration,
    ) -> Result<(), Fault> {
        let conf = name.setting("conf").or(conf).map(text);
        let path = conf.as_ref().map_or(null(), |conf| conf.as_ptr());
        // SAFETY: the handle is of `rados_create`, the string lives during the call.
        let read = answer(unsafe { ffi::rados_conf_read_file(self.cluster, path) });
        let has_file = read.is_ok();
        match read {
            Ok(_) => {}
            // Without a file the settings of the name may do.
            Err(error) if conf.is_none() && error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(Fault::Failed("its conf", error)),
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
        for (key, value) in ours.into_iter().chain(name.ceph_settings()).chain([FENCES]) {
            let (given, to) = (text(key), text(value));
            // SAFETY: the handle is of `rados_create`, the strings live during the call.
            let set = unsafe { ffi::rados_conf_set(self.cluster, given.as_ptr(), to.as_ptr()) };
            answer(set).map_err(|error| Fault::Refused(format!("{key}: {error}")))?;
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

    /// For functions of librados.
    pub(crate) fn cluster(&self) -> Handle {
        self.cluster
    }

    /// For functions of librbd.
    pub(crate) fn io(&self) -> Handle {
        self.io
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
