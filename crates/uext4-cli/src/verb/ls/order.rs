//! The order of a listing.

use std::cmp::Reverse;

use super::Row;

/// Options of the order.
#[derive(clap::Args)]
pub(super) struct Order {
    /// By the time of the last modification, the last one first
    #[arg(short = 't', group = "by")]
    time: bool,
    /// By size, the largest first
    #[arg(short = 'S', group = "by")]
    size: bool,
    /// As the directory has them
    #[arg(short = 'U', group = "by")]
    unsorted: bool,
    /// The other way round
    #[arg(short, long)]
    reverse: bool,
}

impl Order {
    /// Sorts rows; without another order by the bytes of their names.
    pub(super) fn sort(&self, rows: &mut [Row]) {
        if self.unsorted {
            return;
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        if self.time {
            rows.sort_by_key(|row| Reverse((row.attr.mtime.secs, row.attr.mtime.nanos)));
        } else if self.size {
            rows.sort_by_key(|row| Reverse(row.attr.size));
        }
        if self.reverse {
            rows.reverse();
        }
    }
}
