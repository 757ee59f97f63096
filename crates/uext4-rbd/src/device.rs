//! The device on an image.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uext4_device::{
    Device, FlushLatch, ReadRun, WriteRun, about_to_sleep, check_read, check_write,
};

use crate::cluster::Pool;
use crate::error::Fault;
use crate::health::Health;
use crate::hold::Hold;
use crate::image::Image;
use crate::lock;
use crate::name::RbdName;
use crate::options::{RbdEvent, RbdOptions, Tell};
use crate::requests::{self, Change, Gate};

/// An image of Ceph, as a device.
pub(crate) struct RbdDevice {
    image: Arc<Image>,
    health: Arc<Health>,
    /// Of a writer.
    hold: Option<Arc<Hold>>,
    flushes: FlushLatch,
    /// Looks at the lock and the length; told to end by its sender.
    keeper: Option<(Sender<()>, JoinHandle<()>)>,
    name: String,
    len: u64,
    read_only: bool,
    /// Whether a write that is complete is on the media: no cache holds it.
    is_through: bool,
}

impl fmt::Debug for RbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, len, read_only, is_through, .. } = self;
        f.debug_struct("RbdDevice")
            .field("name", name)
            .field("len", len)
            .field("read_only", read_only)
            .field("is_through", is_through)
            .finish_non_exhaustive()
    }
}

impl RbdDevice {
    /// Opens an image, and says what it lacks.
    pub(crate) fn open(
        name: &RbdName,
        options: RbdOptions,
    ) -> Result<(Self, Option<String>), Fault> {
        let RbdOptions { read_only, timeout, closing, tell, on_thread } = options;
        let timeout = timeout.clamp(Duration::from_secs(1), Duration::from_hours(24 * 7));
        if name.snapshot().is_some() && !read_only {
            return Err(Fault::Refused(
                "a snapshot can only be read; open it read-only".to_owned(),
            ));
        }
        let image = Image::open(Pool::open(name, timeout)?, name, read_only)?;
        let has_lock = image.has_lock().map_err(Fault::of("its features"))?;
        if has_lock && !read_only {
            let tell = |event: &RbdEvent| tell.iter().for_each(|tell| tell(event));
            lock::take(&image, timeout, closing, tell)?;
        }
        // Nobody changes it from now on.
        let len = image.len().map_err(Fault::of("its length"))?;
        if len == 0 {
            return Err(Fault::Refused("has no bytes".to_owned()));
        }
        let is_through = is_through(&image).map_err(Fault::of("its settings"))?;
        let hold = match read_only {
            true => None,
            false => Some(Arc::new(Hold::new(&image, has_lock, len, timeout)?)),
        };
        let first = move || on_thread.iter().for_each(|first| first());
        let tell = tell.map(|tell| teller(tell, first.clone()));
        let tell = tell.transpose().map_err(Fault::of("a thread"))?;
        let mut device = Self {
            image: Arc::new(image),
            health: Arc::new(Health::new(tell)),
            hold: hold.clone(),
            flushes: FlushLatch::default(),
            keeper: None,
            name: name.image().to_owned(),
            len,
            read_only,
            is_through,
        };
        if let Some(hold) = hold {
            let (image, health) = (Arc::clone(&device.image), Arc::clone(&device.health));
            let (end, told) = channel();
            let keeper = thread::Builder::new().name("rbd-keeper".to_owned());
            let keeper = keeper.spawn(move || {
                first();
                hold.keep(&image, &health, &told);
            });
            device.keeper = Some((end, keeper.map_err(Fault::of("a thread"))?));
        }
        let lacks = !has_lock && !read_only;
        let notice = "the image has no exclusive-lock: a second host is kept out only by mmp";
        Ok((device, lacks.then(|| notice.to_owned())))
    }

    fn check_change(&self, offset: u64, len: u64) -> io::Result<()> {
        check_write(self.len, self.read_only, offset, len)
    }

    /// Makes requests, each if the image is still this client's when it is sent.
    fn ask<T>(&self, requests: impl FnOnce(&Gate<'_>) -> io::Result<T>) -> io::Result<T> {
        about_to_sleep();
        let gate = || {
            self.health.check()?;
            self.hold.as_ref().map_or(Ok(()), |hold| hold.check(&self.image, &self.health))
        };
        self.health.of(|| requests(&gate))
    }

    /// The same for one that changes the image: a part of it may have been cut off.
    fn ask_to_change(&self, requests: impl FnOnce(&Gate<'_>) -> io::Result<()>) -> io::Result<()> {
        self.ask(|gate| {
            requests(gate)?;
            let hold = self.hold.as_ref();
            hold.map_or(Ok(()), |hold| hold.check_len(&self.image, &self.health))
        })
    }

    fn change(&self, offset: u64, len: u64, change: Change) -> io::Result<bool> {
        self.check_change(offset, len)?;
        self.ask_to_change(|gate| requests::change(&self.image, gate, offset, len, change))
            .map(|()| true)
    }
}

/// Starts the thread that tells why a device was given up. It ends with the device's health, and is
/// not waited for: what hears it may wait for the device.
fn teller(tell: Tell, first: impl Fn() + Send + 'static) -> io::Result<SyncSender<String>> {
    let (end, ended) = sync_channel(1);
    thread::Builder::new().name("rbd-events".to_owned()).spawn(move || {
        first();
        ended.iter().for_each(|why| tell(&RbdEvent::GivenUp { why }));
    })?;
    Ok(end)
}

/// Whether no cache is on, that of librbd or one of a plug-in, for this image.
fn is_through(image: &Image) -> io::Result<bool> {
    let cache = image.setting("rbd_cache")?;
    let plugins = image.setting("rbd_plugins")?.unwrap_or_default();
    Ok(cache.as_deref() == Some("false") && plugins.is_empty())
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        if let Some((end, keeper)) = self.keeper.take() {
            drop(end);
            // It has nothing to tell, and does not panic.
            drop(keeper.join());
        }
        if self.health.check().is_err() {
            // Requests may still wait at a store that stands still. Closing would give the lock
            // back, and the store would make them after those of the next writer. So the lock stays
            // until this process has ended, and the next writer has this client fenced.
            Box::leak(Box::new(Arc::clone(&self.image)));
        }
    }
}

impl Device for RbdDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_vectored_at(offset, &mut [buf])
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if !self.is_through {
            self.ask(|_| self.image.drop_cache())?;
        }
        self.read_at(offset, buf)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[buf])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.write_many(&[WriteRun { offset, bufs }])
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        for run in writes {
            let len = run.bufs.iter().map(|buf| buf.len() as u64).sum();
            self.check_change(run.offset, len)?;
        }
        self.ask_to_change(|gate| requests::write(&self.image, gate, writes))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_many_fua(&[WriteRun { offset, bufs: &[buf] }])
    }

    /// Without a cache a flush would do nothing but wait for the writes of others.
    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.flushes.check()?;
        self.write_many(writes)?;
        if self.is_through { Ok(()) } else { self.flush() }
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        check_read(self.len, offset, bufs.iter().map(|buf| buf.len()).sum())?;
        self.ask(|gate| requests::read(&self.image, gate, offset, bufs))
    }

    fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
        for run in &*reads {
            check_read(self.len, run.offset, run.buf.len())?;
        }
        self.ask(|gate| requests::read_many(&self.image, gate, reads))
    }

    fn is_far(&self) -> bool {
        true
    }

    /// Shared with flushes that wait. A failure is not forgotten.
    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        about_to_sleep();
        self.flushes.flush(|| self.ask(|gate| requests::flush(&self.image, gate)))
    }

    fn writes_through(&self) -> bool {
        self.is_through
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.change(offset, len, Change::Zeroes)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.change(offset, len, Change::Discard)
    }
}
