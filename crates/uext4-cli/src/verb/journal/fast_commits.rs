//! The fast commits behind the log.

use std::ops::Range;

use serde::Serialize;
use uext4_ondisk::Tid;
use uext4_ondisk::journal::fast_commit::{NameChange, Record, Scan};

use crate::failure::{Result, Why};
use crate::json;
use crate::operands::Try;
use crate::output::Output;

/// What the area has.
#[derive(Serialize)]
pub(super) struct FastCommits {
    /// How many.
    commits: u32,
    /// The transaction that they come after.
    tid: u32,
    records: Vec<Shape>,
}

/// A record.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Shape {
    AddRange { ino: u32, first: u32, blocks: u32, block: u64 },
    DeleteRange { ino: u32, first: u32, blocks: u32 },
    Create(Entry),
    Link(Entry),
    Unlink(Entry),
    Inode { ino: u32 },
}

#[derive(Serialize)]
struct Entry {
    directory: u32,
    ino: u32,
    #[serde(flatten)]
    name: json::Name,
    #[serde(skip)]
    bytes: Vec<u8>,
}

impl FastCommits {
    /// Reads those that follow transaction `tid - 1`; `None` if there are none.
    pub(super) fn read(
        (tid, inode_size): (Tid, u32),
        area: Range<u32>,
        block_size: u32,
        read: impl Fn(u32, &mut [u8]) -> std::io::Result<()>,
    ) -> Try<Option<Self>> {
        let mut scan = Scan::new(tid, inode_size);
        let mut bytes = vec![0; block_size as usize];
        for block in area {
            read(block, &mut bytes)?;
            if !scan.block(&bytes).map_err(|unknown| Why::new(unknown.to_string()))? {
                break;
            }
        }
        let (records, commits) = scan.finish();
        let records = records.into_iter().map(Shape::new).collect();
        Ok((commits != 0).then_some(Self { commits, tid: tid.get(), records }))
    }

    pub(super) fn print(&self, output: &mut Output) -> Result<()> {
        let Self { commits, tid, records } = self;
        let count = records.len();
        output.line(&format!(
            "Fast commits before transaction {tid}: {commits}, with {count} records"
        ))?;
        for record in records {
            record.print(output)?;
        }
        Ok(())
    }
}

impl Shape {
    fn new(record: Record) -> Self {
        match record {
            Record::AddRange { ino, extent } => Self::AddRange {
                ino: ino.get(),
                first: extent.first.get(),
                blocks: extent.len,
                block: extent.start.get(),
            },
            Record::DelRange { ino, first, len } => {
                Self::DeleteRange { ino: ino.get(), first: first.get(), blocks: len }
            }
            Record::Name { change, parent, ino, name } => {
                let (directory, ino) = (parent.get(), ino.get());
                let entry = Entry { directory, ino, name: json::Name::new(&name), bytes: name };
                match change {
                    NameChange::Create => Self::Create(entry),
                    NameChange::Link => Self::Link(entry),
                    NameChange::Unlink => Self::Unlink(entry),
                }
            }
            Record::Inode { ino, .. } => Self::Inode { ino: ino.get() },
        }
    }

    fn print(&self, output: &mut Output) -> Result<()> {
        let (word, entry) = match self {
            Self::AddRange { ino, first, blocks, block } => {
                return output.line(&format!(
                    "  inode {ino}: {blocks} blocks from {first} on are at block {block}"
                ));
            }
            Self::DeleteRange { ino, first, blocks } => {
                return output
                    .line(&format!("  inode {ino}: {blocks} blocks from {first} on are gone"));
            }
            Self::Inode { ino } => return output.line(&format!("  inode {ino}")),
            Self::Create(entry) => ("create", entry),
            Self::Link(entry) => ("link", entry),
            Self::Unlink(entry) => ("unlink", entry),
        };
        let Entry { directory, ino, bytes, .. } = entry;
        output.bytes(format!("  {word} in directory {directory}: inode {ino}, ").as_bytes())?;
        output.name(bytes)?;
        output.line("")
    }
}
