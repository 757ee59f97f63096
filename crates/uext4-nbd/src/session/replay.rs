//! What is sent by new connections before anything else: the question which disk it is, and the
//! changes that the server may have forgotten.

use std::io;
use std::time::Instant;

use super::Session;
use crate::answer::{Content, Ticket};
use crate::error::Fault;
use crate::identity::{self, Identity};
use crate::request::{Action, Request};
use crate::unflushed::Change;

impl Session {
    /// Learns which disk it is, before anything is written.
    ///
    /// # Errors
    /// The device is given up. A start that cannot be read is none that could be compared.
    pub(crate) fn learn_identity(&self) -> io::Result<()> {
        let first = self.ask(Action::Read, 0, self.first_bytes())?.wait();
        match (first, self.failure()) {
            (_, Some(failure)) => return Err(failure),
            (Ok(Content::Bytes(first)), None) => self.state.lock().identity = Identity::of(&first),
            _ => {}
        }
        Ok(())
    }

    /// How many bytes from the start tell which disk it is, in whole units; fewer where the server
    /// takes no such request.
    fn first_bytes(&self) -> u32 {
        let len = u32::try_from(self.export.len).unwrap_or(u32::MAX);
        identity::BYTES.next_multiple_of(self.export.unit).min(len).min(self.export.request_max)
    }

    /// Looks whether the server that is connected again has the same disk.
    ///
    /// # Errors
    /// It has another one, in words; or it does not answer.
    pub(crate) fn compare_identity(&self) -> Result<(), Fault> {
        if !self.state.lock().identity.is_known() {
            return Ok(());
        }
        // One after the other they go by all connections, which may end at several servers.
        let links = self.state.lock().links.len();
        let ask = |_| {
            let len = self.first_bytes();
            self.submit_again(Request { action: Action::Read, offset: 0, len })
        };
        let tickets = (0..links).map(ask).collect::<io::Result<Vec<_>>>()?;
        for ticket in tickets {
            if let Content::Bytes(first) = ticket.wait_for(self.options.patience())? {
                self.state.lock().identity.require(&first).map_err(Fault::Refused)?;
            }
        }
        Ok(())
    }

    /// Sends a request of the keeper while all others wait.
    fn submit_again(&self, request: Request) -> io::Result<Ticket> {
        let mut state = self.state.lock();
        state.require_lease().map_err(io::Error::other)?;
        if state.links.is_empty() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (cookie, link, ticket) = state.enter(request.clone(), true);
        drop(state);
        self.send(&link, cookie, &request);
        Ok(ticket)
    }

    /// Makes the changes again that a server may have forgotten; how many bytes of data.
    ///
    /// # Errors
    /// An error of the server, a connection that is lost, or one that is too slow: it has until
    /// `deadline`, and longer while it answers.
    pub(crate) fn replay(&self, deadline: Instant) -> io::Result<u64> {
        let patience = self.options.patience();
        let late = |at: Instant| at.saturating_duration_since(deadline) > patience;
        let again = self.state.lock().unflushed.again();
        let (mut tickets, mut bytes) = (Vec::new(), 0);
        for one in again {
            let is_hint = one.change == Change::Trim;
            bytes += if let Change::Data(_) = one.change { one.len } else { 0 };
            let len = u32::try_from(one.len).unwrap_or(u32::MAX);
            let action = Action::Change { change: one.change, durable: false };
            if late(Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let ticket = self.submit_again(Request { action, offset: one.offset, len })?;
            tickets.push((ticket, is_hint));
        }
        for (ticket, is_hint) in tickets {
            match ticket.wait_for(patience) {
                // The server is there, and need not forget.
                Err(error) if is_hint && error.raw_os_error().is_some() => {}
                answer => drop(answer?),
            }
            if late(Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(bytes)
    }
}
