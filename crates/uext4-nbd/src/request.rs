//! Requests: what is asked of a server, and as which bytes it is sent.

use crate::unflushed::Change;
use crate::wire::{RawRequest, command, command_flag};

/// What a request does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Read,
    /// A change, which is kept until a flush; `durable`: complete when it is on the medium.
    Change {
        change: Change,
        durable: bool,
    },
    /// Covers the changes that were complete in an epoch and before.
    Flush {
        epoch: u64,
    },
    /// Asks where the holes are.
    Status,
}

/// A request; a flush has neither offset nor length.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) action: Action,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Request {
    /// The header, for a cookie.
    pub(crate) fn header(&self, cookie: u64) -> RawRequest {
        let (command, flags) = match &self.action {
            Action::Read => (command::READ, 0),
            Action::Change { change, durable, .. } => {
                let command = match change {
                    Change::Data(_) => command::WRITE,
                    Change::Zeroes => command::WRITE_ZEROES,
                    Change::Trim => command::TRIM,
                };
                (command, if *durable { command_flag::FUA } else { 0 })
            }
            Action::Flush { .. } => (command::FLUSH, 0),
            Action::Status => (command::BLOCK_STATUS, 0),
        };
        RawRequest::new(command, flags, cookie, self.offset, self.len)
    }

    /// The data that follows the header.
    pub(crate) fn data(&self) -> &[u8] {
        match &self.action {
            Action::Change { change: Change::Data(data), .. } => data,
            _ => &[],
        }
    }
}
