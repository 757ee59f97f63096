//! An image that librbd has open, and what it says of it.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::ptr::{null, null_mut};

use crate::cluster::{Pool, answer, count_of, text};
use crate::error::Fault;
use crate::ffi::{self, Handle, Setting, Watcher};
use crate::name::RbdName;

/// Longest list that is asked for: watchers of an image, settings of librbd.
const LIST_MAX: usize = 1 << 12;

/// An open image. It is closed, and its lock given back, when this is dropped.
#[derive(Debug)]
pub(crate) struct Image {
    image: Handle,
    // After the image.
    pool: Pool,
}

// SAFETY: librbd's images may be used by any thread at any time; it is given back once, by the
// owner of this.
unsafe impl Send for Image {}
// SAFETY: the same.
unsafe impl Sync for Image {}

/// A client that has the image open and hears of changes.
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) number: u64,
}

impl Image {
    pub(crate) fn open(pool: Pool, name: &RbdName, read_only: bool) -> Result<Self, Fault> {
        let mut image = null_mut();
        let named = text(name.image());
        let snapshot = name.snapshot().map(text);
        let at = snapshot.as_ref().map_or(null(), |snapshot| snapshot.as_ptr());
        let open = if read_only { ffi::rbd_open_read_only } else { ffi::rbd_open };
        // SAFETY: the pool is open; the strings and the place for the handle live during the call.
        let opened = unsafe { open(pool.io(), named.as_ptr(), &raw mut image, at) };
        answer(opened).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => Fault::Refused(match name.snapshot() {
                Some(snapshot) => format!(
                    "there is no snapshot {snapshot} of an image {} in pool {}",
                    name.image(),
                    name.pool()
                ),
                None => format!("there is no image {} in pool {}", name.image(), name.pool()),
            }),
            _ => Fault::Failed("cannot open it", error),
        })?;
        Ok(Self { image, pool })
    }

    /// For the requests.
    pub(crate) fn handle(&self) -> Handle {
        self.image
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> io::Result<u64> {
        let mut len = 0;
        // SAFETY: the image is open, the place lives during the call.
        answer(unsafe { ffi::rbd_get_size(self.image, &raw mut len) }).map(|_| len)
    }

    /// Whether it has the feature `exclusive-lock`.
    pub(crate) fn has_lock(&self) -> io::Result<bool> {
        let mut features = 0;
        // SAFETY: the image is open, the place lives during the call.
        answer(unsafe { ffi::rbd_get_features(self.image, &raw mut features) })?;
        Ok(features & ffi::FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Takes the lock. Where a client that was missed has it, that one is fenced before.
    pub(crate) fn take_lock(&self) -> io::Result<()> {
        // SAFETY: the image is open.
        answer(unsafe { ffi::rbd_lock_acquire(self.image, ffi::LOCK_EXCLUSIVE) }).map(drop)
    }

    /// The address of the client that has the lock.
    pub(crate) fn lock_owner(&self) -> io::Result<Option<String>> {
        let mut mode: c_int = 0;
        // An exclusive lock has one.
        let mut owners = [null_mut::<c_char>(); 4];
        let mut count = owners.len();
        // SAFETY: the image is open; there is room for as many strings as the count says.
        let asked = answer(unsafe {
            ffi::rbd_lock_get_owners(self.image, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        });
        match asked {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        let count = count.min(owners.len());
        let owner = owners[..count].first().map(|owner| string(*owner));
        // SAFETY: the strings are of `rbd_lock_get_owners`, and are not used again.
        unsafe { ffi::rbd_lock_get_owners_cleanup(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Clients that have it open to write. One that died stays among them until it is missed.
    pub(crate) fn clients(&self) -> io::Result<Vec<Client>> {
        let mut room = 16;
        loop {
            let mut found = vec![Watcher { address: null_mut(), id: 0, cookie: 0 }; room];
            let mut count = room;
            // SAFETY: the image is open; there is room for as many as the count says.
            let asked =
                unsafe { ffi::rbd_watchers_list(self.image, found.as_mut_ptr(), &raw mut count) };
            match answer(asked) {
                Err(error) if error.raw_os_error() == Some(libc::ERANGE) && room < LIST_MAX => {
                    room *= 4;
                    continue;
                }
                other => other?,
            };
            let count = count.min(room);
            let clients = found[..count].iter().map(|watcher| Client {
                address: string(watcher.address),
                number: watcher.id.cast_unsigned(),
            });
            let clients = clients.collect();
            // SAFETY: the strings are of `rbd_watchers_list`, and are not used again.
            unsafe { ffi::rbd_watchers_list_cleanup(found.as_mut_ptr(), count) };
            return Ok(clients);
        }
    }

    /// The object that clients with the image watch; `None`: a format of image without one.
    pub(crate) fn header(&self) -> Option<String> {
        let mut id: [c_char; 128] = [0; 128];
        // SAFETY: the image is open; the buffer has that length, and ends with a zero byte.
        let asked = unsafe { ffi::rbd_get_id(self.image, id.as_mut_ptr(), id.len() - 1) };
        answer(asked).ok()?;
        Some(format!("rbd_header.{}", string(id.as_mut_ptr())))
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What a setting of librbd is for this image.
    pub(crate) fn setting(&self, key: &str) -> io::Result<Option<String>> {
        let empty = Setting { name: null_mut(), value: null_mut(), source: 0 };
        let mut found = vec![empty; LIST_MAX];
        let mut count = count_of(found.len());
        // SAFETY: the image is open; there is room for as many as the count says.
        answer(unsafe {
            ffi::rbd_config_image_list(self.image, found.as_mut_ptr(), &raw mut count)
        })?;
        let filled = usize::try_from(count).unwrap_or(0).min(found.len());
        let of = found[..filled].iter().find(|setting| string(setting.name) == key);
        let value = of.map(|setting| string(setting.value));
        // SAFETY: the strings are of `rbd_config_image_list`, and are not used again.
        unsafe { ffi::rbd_config_image_list_cleanup(found.as_mut_ptr(), count) };
        Ok(value)
    }

    /// Forgets what a cache holds, if one is on.
    pub(crate) fn drop_cache(&self) -> io::Result<()> {
        // SAFETY: the image is open.
        answer(unsafe { ffi::rbd_invalidate_cache(self.image) }).map(drop)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the image is open, and is not used again. What fails, fails: nothing waits here.
        unsafe { ffi::rbd_close(self.image) };
    }
}

/// A string of the library.
fn string(of: *const c_char) -> String {
    if of.is_null() {
        return String::new();
    }
    // SAFETY: the library ends its strings with a zero byte, and keeps them until they are given
    // back, which is after this call.
    unsafe { CStr::from_ptr(of) }.to_string_lossy().into_owned()
}
