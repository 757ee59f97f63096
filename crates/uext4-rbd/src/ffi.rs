//! Functions of librados and librbd, as rados/librados.h and rbd/librbd.h of Ceph 16 have them.
//!
//! All return 0 or a count, or a negative errno. Handles are pointers that the library gives.

use std::ffi::{c_char, c_int, c_void};

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t`, `rbd_completion_t`.
pub(crate) type Handle = *mut c_void;

/// `RBD_LOCK_MODE_EXCLUSIVE` of `rbd_lock_mode_t`.
pub(crate) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK` (rbd/features.h).
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    pub(crate) source: c_int,
}

/// `struct notify_ack_t` (rados/rados_types.h).
#[repr(C)]
pub(crate) struct NotifyAck {
    pub(crate) notifier_id: u64,
    pub(crate) cookie: u64,
    pub(crate) payload: *mut c_char,
    pub(crate) payload_len: u64,
}

#[link(name = "rados")]
unsafe extern "C" {
    pub(crate) fn rados_create(cluster: *mut Handle, id: *const c_char) -> c_int;
    pub(crate) fn rados_conf_read_file(cluster: Handle, path: *const c_char) -> c_int;
    pub(crate) fn rados_conf_parse_env(cluster: Handle, variable: *const c_char) -> c_int;
    pub(crate) fn rados_conf_set(
        cluster: Handle,
        option: *const c_char,
        value: *const c_char,
    ) -> c_int;
    pub(crate) fn rados_conf_get(
        cluster: Handle,
        option: *const c_char,
        value: *mut c_char,
        len: usize,
    ) -> c_int;
    pub(crate) fn rados_connect(cluster: Handle) -> c_int;
    pub(crate) fn rados_shutdown(cluster: Handle);
    pub(crate) fn rados_get_instance_id(cluster: Handle) -> u64;
    pub(crate) fn rados_mon_command(
        cluster: Handle,
        commands: *const *const c_char,
        count: usize,
        input: *const c_char,
        input_len: usize,
        output: *mut *mut c_char,
        output_len: *mut usize,
        status: *mut *mut c_char,
        status_len: *mut usize,
    ) -> c_int;
    pub(crate) fn rados_wait_for_latest_osdmap(cluster: Handle) -> c_int;
    pub(crate) fn rados_ioctx_create(
        cluster: Handle,
        pool: *const c_char,
        io: *mut Handle,
    ) -> c_int;
    pub(crate) fn rados_ioctx_destroy(io: Handle);
    pub(crate) fn rados_ioctx_set_namespace(io: Handle, namespace: *const c_char);
    pub(crate) fn rados_list_lockers(
        io: Handle,
        object: *const c_char,
        lock: *const c_char,
        exclusive: *mut c_int,
        tag: *mut c_char,
        tag_len: *mut usize,
        clients: *mut c_char,
        clients_len: *mut usize,
        cookies: *mut c_char,
        cookies_len: *mut usize,
        addresses: *mut c_char,
        addresses_len: *mut usize,
    ) -> isize;
    pub(crate) fn rados_notify2(
        io: Handle,
        object: *const c_char,
        bytes: *const c_char,
        len: c_int,
        timeout_ms: u64,
        reply: *mut *mut c_char,
        reply_len: *mut usize,
    ) -> c_int;
    pub(crate) fn rados_decode_notify_response(
        reply: *mut c_char,
        reply_len: usize,
        acks: *mut *mut NotifyAck,
        acks_count: *mut usize,
        timeouts: *mut *mut c_void,
        timeouts_count: *mut usize,
    ) -> c_int;
    pub(crate) fn rados_free_notify_response(
        acks: *mut NotifyAck,
        acks_count: usize,
        timeouts: *mut c_void,
    );
    pub(crate) fn rados_buffer_free(buffer: *mut c_char);
}

#[link(name = "rbd")]
unsafe extern "C" {
    pub(crate) fn rbd_open(
        io: Handle,
        name: *const c_char,
        image: *mut Handle,
        snapshot: *const c_char,
    ) -> c_int;
    pub(crate) fn rbd_open_read_only(
        io: Handle,
        name: *const c_char,
        image: *mut Handle,
        snapshot: *const c_char,
    ) -> c_int;
    pub(crate) fn rbd_close(image: Handle) -> c_int;
    pub(crate) fn rbd_get_size(image: Handle, size: *mut u64) -> c_int;
    pub(crate) fn rbd_get_features(image: Handle, features: *mut u64) -> c_int;
    pub(crate) fn rbd_get_id(image: Handle, id: *mut c_char, len: usize) -> c_int;
    pub(crate) fn rbd_invalidate_cache(image: Handle) -> c_int;
    pub(crate) fn rbd_config_image_list(
        image: Handle,
        settings: *mut Setting,
        count: *mut c_int,
    ) -> c_int;
    pub(crate) fn rbd_config_image_list_cleanup(settings: *mut Setting, count: c_int);

    pub(crate) fn rbd_lock_acquire(image: Handle, mode: c_int) -> c_int;
    pub(crate) fn rbd_lock_get_owners(
        image: Handle,
        mode: *mut c_int,
        owners: *mut *mut c_char,
        count: *mut usize,
    ) -> c_int;
    pub(crate) fn rbd_lock_get_owners_cleanup(owners: *mut *mut c_char, count: usize);
    pub(crate) fn rbd_watchers_list(
        image: Handle,
        watchers: *mut Watcher,
        count: *mut usize,
    ) -> c_int;
    pub(crate) fn rbd_watchers_list_cleanup(watchers: *mut Watcher, count: usize);

    pub(crate) fn rbd_aio_create_completion(
        argument: *mut c_void,
        callback: Option<unsafe extern "C" fn(Handle, *mut c_void)>,
        completion: *mut Handle,
    ) -> c_int;
    pub(crate) fn rbd_aio_wait_for_complete(completion: Handle) -> c_int;
    pub(crate) fn rbd_aio_get_return_value(completion: Handle) -> isize;
    pub(crate) fn rbd_aio_release(completion: Handle);
    pub(crate) fn rbd_aio_readv(
        image: Handle,
        buffers: *const libc::iovec,
        count: c_int,
        offset: u64,
        completion: Handle,
    ) -> c_int;
    pub(crate) fn rbd_aio_writev(
        image: Handle,
        buffers: *const libc::iovec,
        count: c_int,
        offset: u64,
        completion: Handle,
    ) -> c_int;
    pub(crate) fn rbd_aio_discard(
        image: Handle,
        offset: u64,
        len: u64,
        completion: Handle,
    ) -> c_int;
    pub(crate) fn rbd_aio_write_zeroes(
        image: Handle,
        offset: u64,
        len: usize,
        completion: Handle,
        zero_flags: c_int,
        op_flags: c_int,
    ) -> c_int;
    pub(crate) fn rbd_aio_flush(image: Handle, completion: Handle) -> c_int;
}
