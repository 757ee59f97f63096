//! Who does the work of a request: the worker that took it, or another thread.

use std::sync::Arc;

use fuser::Request;
use uext4::{InodeRef, Volume};

use crate::crew::Crew;
use crate::options::FuseOptions;
use crate::overflow::Overflow;
use crate::seek::Seeker;
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

    /// The seek thread's handle, to be started when the session has a way to notify the kernel.
    pub(crate) fn seeker(&self) -> Arc<Seeker> {
        Arc::clone(&self.server.seeker)
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
