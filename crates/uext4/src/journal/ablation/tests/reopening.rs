//! `checkpoint=inline`: what is durable stays so.

use crate::cache::Cache;
use crate::config::{CheckpointMode, MountOptions};
use crate::journal::commit::Cause;
use crate::journal::{Journal, LeftLog, LogLocation, recover};
use std::process::Command;
use std::sync::Arc;
use uext4_device::{MemoryDevice, SharedDevice};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{Layout, RawSuperblock, Tid};

/// A journal of a megabyte; `None`, with a message, without mke2fs.
fn journal() -> Option<(Arc<Cache>, Arc<Journal>)> {
    let image = tempfile::NamedTempFile::new().unwrap();
    let words = ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1"];
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(words).arg(image.path()).arg("16M").env("PATH", path);
    match mke2fs.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            eprintln!("skipped: mke2fs: {error}");
            return None;
        }
    }
    let device: SharedDevice = Arc::new(MemoryDevice::load(image.path()).unwrap());
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let superblock = RawSuperblock::read(&bytes).unwrap();
    let layout = Arc::new(Layout::new(&superblock, Some(device.len())).unwrap());
    let location = LogLocation::find(&*device, &layout, &superblock).unwrap();
    let recovered = recover(&device, &layout, location, LeftLog::Wipe).unwrap();
    let cache = Arc::new(Cache::new(device, layout, 8 << 20));
    let config = MountOptions { checkpoint: CheckpointMode::Inline, ..MountOptions::default() };
    let journal = recovered.prepare(&cache, &config, 4096).unwrap();
    journal.begin().unwrap();
    Some((cache, journal))
}

/// Changes a block.
fn change(cache: &Cache, journal: &Journal) -> Tid {
    let (superblock, _) = cache.superblock().unwrap();
    journal.run(1, |handle| handle.write(&superblock).map(|_| handle.tid())).unwrap()
}

/// A sync that has found its transaction not durable commits it by itself, and the committer does
/// when the interval is over. Another thread may commit that transaction first, and leave the
/// opening of the next one to joiners. A second commit would open the durable transaction again,
/// and syncs of its new handles would wait for nothing.
#[test]
fn a_durable_transaction_is_not_opened_again() {
    let Some((cache, journal)) = journal() else { return };
    // Until the log is too full for the next transaction.
    let last = (0..10_000).find_map(|_| {
        let tid = change(&cache, &journal);
        journal.wait_durable(tid).unwrap();
        journal.queue.is_delegated().then_some(tid)
    });
    let last = last.expect("the log fills up");
    assert!(!journal.commit_in_place(last));
    journal.commit_for(Cause::Timer);
    let next = change(&cache, &journal);
    assert!(next.is_after(last), "{next:?} behind {last:?}");
    assert!(!journal.is_durable(next));
    journal.wait_durable(next).unwrap();
}
