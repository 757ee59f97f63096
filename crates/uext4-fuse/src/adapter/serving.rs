//! Who does the work of a request: the worker that took it, or another thread.

use std::sync::Arc;

use fuser::Request;
use uext4::{InodeRef, Volume};

use crate::crew::Crew;
use crate::options::FuseOptions;
use crate::overflow::Overflow;
use crate::server::Server;

/// The server of one mount, as fuser knows it: takes requests apart and has the [`Server`] answer
/// them, on this worker or, when this is the last one that is free, on another thread.
pub(crate) struct Adapter {
    pub(super) server: Arc<Server>,
    pub(super) crew: Crew,
    pub(super) overflow: Overflow,
}

impl Adapter {
    /// A server for `volume`, whose root directory is `root`.
    pub(crate) fn new(volume: Volume, root: InodeRef, options: &FuseOptions) -> Self {
        Self {
            server: Arc::new(Server::new(volume, root, options)),
            crew: Crew::new(options.worker_threads()),
            overflow: Overflow::default(),
        }
    }

    /// The server, which wants to know when the session has a way to notify the kernel.
    pub(crate) fn server(&self) -> Arc<Server> {
        Arc::clone(&self.server)
    }

    /// Does the work of a request, which may wait for anything.
    pub(super) fn serve(&self, work: impl FnOnce(&Server) + Send + 'static) {
        let shift = self.crew.shift();
        if shift.is_last() {
            self.hand_over(work);
        } else {
            work(&self.server);
        }
    }

    /// As [`Adapter::serve`] for a request that may need blocks: those reserved for root are not
    /// for everybody.
    pub(super) fn serve_for(&self, request: &Request, work: impl FnOnce(&Server) + Send + 'static) {
        let rights = self.server.may_use_reserve(request.uid(), request.gid());
        self.serve(move |server| with_rights(rights, || work(server)));
    }

    /// Forgets a node, perhaps as one of the thousands that one read of the queue gave.
    pub(super) fn forget_part(&self, node: u64, lookups: u64) {
        let shift = self.crew.part();
        if !self.server.ops.nodes.forget(node, lookups) {
            return;
        }
        if shift.is_last() {
            self.hand_over(|server| server.ops.delete_unlinked());
        } else {
            self.server.ops.delete_unlinked();
        }
    }

    /// Has another thread do the work: the worker goes back to the queue.
    pub(super) fn hand_over(&self, work: impl FnOnce(&Server) + Send + 'static) {
        let server = Arc::clone(&self.server);
        self.overflow.give(Box::new(move || work(&server)));
    }
}

/// Does the work of a caller who may use the blocks reserved for root, or may not.
pub(super) fn with_rights<T>(may_use_reserve: bool, work: impl FnOnce() -> T) -> T {
    if may_use_reserve { work() } else { uext4::as_user(work) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4::{FileKind, MountOptions, NewInode, Owner};
    use uext4_device::MemoryDevice;

    /// A batch of forgets comes as calls one by one, on one worker, with many others at the queue:
    /// one that rested after each would sleep with the rest of the batch in its hands. Fault model:
    /// that rest.
    #[test]
    fn nobody_rests_between_the_forgets_of_a_batch() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        uext4_mkfs::format(&*device, &uext4_mkfs::Options::default()).expect("an image");
        let volume = Volume::open(device, MountOptions::default()).expect("a volume");
        let root = volume.root().expect("its root");
        let options = FuseOptions { threads: Some(16), ..FuseOptions::default() };
        let adapter = Adapter::new(volume.clone(), root.clone(), &options);
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            owner: Owner { uid: 0, gid: 0 },
            rdev: uext4::Device::default(),
        };
        let nodes: Vec<u64> = (0..100)
            .map(|n| {
                let name = format!("{n}");
                let inode = volume.create(&root, name.as_bytes(), &new).expect("a file");
                let node = adapter.server.ops.nodes.remember(&inode);
                if n % 2 == 0 {
                    adapter
                        .server
                        .ops
                        .unlink(crate::node::ROOT_NODE, name.as_bytes())
                        .expect(&name);
                }
                node
            })
            .collect();
        let used = || volume.stat_fs().inodes_free;
        let before = used();
        for node in nodes {
            adapter.forget_part(node, 1);
        }
        assert_eq!(adapter.crew.rests(), 0);
        assert_eq!(adapter.server.ops.nodes.len(), 0);
        assert_eq!(used(), before + 50, "what had no name is deleted by its last forget");
    }
}
