//! Options of mke2fs that are refused by name, each with what to do instead.

use crate::failure::{Failure, Result};

/// Options that are known and refused.
#[derive(clap::Args)]
pub(crate) struct Refused {
    #[arg(short = 'c', hide = true, action = clap::ArgAction::Count)]
    looks_for_bad_blocks: u8,
    #[arg(short = 'l', hide = true, value_name = "FILE")]
    bad_blocks: Option<String>,
    #[arg(short = 'S', hide = true)]
    only_superblocks: bool,
    #[arg(short = 'z', hide = true, value_name = "FILE")]
    undo: Option<String>,
}

impl Refused {
    /// Refuses the first that is given.
    pub(super) fn check(&self) -> Result<()> {
        let why = match () {
            () if self.looks_for_bad_blocks > 0 => {
                "-c: bad blocks are not looked for; badblocks(8) does"
            }
            () if self.bad_blocks.is_some() => {
                "-l: lists of bad blocks are not taken: replace a disk that has some"
            }
            () if self.only_superblocks => {
                "-S: superblocks are not written over what is there; e2fsck -b takes a backup"
            }
            () if self.undo.is_some() => {
                "-z: undo files are not written: copy what is there first, or use -n"
            }
            () => return Ok(()),
        };
        Err(Failure::line(&format!("mkfs: {why}")))
    }
}
