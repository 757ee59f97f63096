//! Threads that read directories and small files ahead of a walk of the tree.
//!
//! What: only a volume whose device is far has them. They read as any caller does, under the lock
//! of what they read, and keep nothing: what they read is in the caches. A failure is told to
//! nobody; the walk meets it.

use crate::dir;
use crate::error::Result;
use crate::sync::thread::{Builder, JoinHandle};
use crate::vfs::{Vfs, WalkQueue};
use std::sync::Arc;
use uext4_ondisk::{FileKind, Ino};

/// Directories and files that are read at a time.
const THREADS: usize = 16;
/// Most bytes that are read of a directory before it is listed: the walk may never come to it.
const BYTES_MAX: usize = 256 << 10;

/// The running threads; dropping it ends them.
#[derive(Debug)]
pub(super) struct WalkAhead {
    queue: Arc<WalkQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl WalkAhead {
    /// Starts the threads, if the device is far. Fewer do where the system has no more.
    pub(super) fn start(vfs: &Arc<Vfs>) -> Option<Self> {
        let queue = Arc::clone(vfs.walk_queue()?);
        let start = |_| {
            let (vfs, queue) = (Arc::clone(vfs), Arc::clone(&queue));
            let thread = Builder::new().name("uext4-walk".to_owned());
            thread.spawn(move || run(&vfs, &queue)).ok()
        };
        let threads = (0..THREADS).map_while(start).collect();
        Some(Self { queue, threads })
    }
}

impl Drop for WalkAhead {
    fn drop(&mut self) {
        self.queue.end();
        for thread in self.threads.drain(..) {
            // One that panicked has nothing to report: nobody waits for what it reads.
            let _ = thread.join();
        }
    }
}

fn run(vfs: &Vfs, queue: &WalkQueue) {
    while let Some(ino) = queue.next() {
        let _ = read(vfs, ino);
        // It may have lost its last name meanwhile.
        if let Some(_call) = vfs.files.context.try_begin_call() {
            let _ = vfs.files.context.watch(vfs.files.deletion.delete_unlinked());
        }
    }
}

fn read(vfs: &Vfs, ino: Ino) -> Result<()> {
    let inode = vfs.inode(ino)?;
    match inode.kind() {
        FileKind::Directory => {
            let _shared = inode.lock().read();
            dir::read_ahead(&inode, BYTES_MAX)
        }
        FileKind::Regular => vfs.files.reader.read_small_ahead(&inode),
        _ => Ok(()),
    }
}
