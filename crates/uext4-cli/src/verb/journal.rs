//! `uext4 journal`: what is in the log of an image, as debugfs' logdump shows it, and what a
//! recovery would do with it.
//!
//! Everything is read from the device as it stands; nothing is replayed.

mod fast_commits;
mod report;
mod roles;

use std::ffi::OsString;

use uext4::journal::LogLocation;
use uext4_device::{FileOptions, SharedDevice};
use uext4_ondisk::features::external_journal;
use uext4_ondisk::journal::listing::{ListedKind, ListedRecord, Listing};
use uext4_ondisk::journal::replay::{ReplayLimits, plan};
use uext4_ondisk::journal::{JournalLayout, RawJournalSuperblock};
use uext4_ondisk::{BlockNo, Compat, Incompat, Tid};

use self::fast_commits::FastCommits;
use self::report::{Block, Recovery, Report, Transaction};
use self::roles::Roles;
use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::inspect::Inspected;
use crate::journal::{self, JournalDevice};
use crate::operands::Try;
use crate::output::Output;
use crate::place::Place;
use crate::spec::Image;

/// Blocks and revokes that are listed; of those beyond there is the number.
const LISTED_MAX: usize = 1 << 20;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 journal disk.img", "the log, its transactions, and what a recovery would do"),
    ("uext4 journal --blocks disk.img", "with the blocks that each of them has"),
    ("uext4 journal --old disk.img@p2", "also what is checkpointed and not yet overwritten"),
];

/// Show the log of the journal of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// The blocks that each transaction has and revokes, and what they are in the file system
    #[arg(short, long)]
    blocks: bool,
    /// Also transactions that are checkpointed and not overwritten yet
    #[arg(short = 'O', long)]
    old: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Image file or block device, or a journal device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
}

/// Where a journal is, and whose.
struct Source {
    /// The device of the log.
    device: SharedDevice,
    location: LogLocation,
    block_size: u32,
    /// Where it is, in words.
    place: String,
    /// Of a journal device that is looked at by itself there is none.
    file_system: Option<Inspected>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    let source = Source::open(&image)?;
    let mut output = Output::new();
    source.report(args).at("journal", &image)?.print(args.json, &mut output)?;
    output.finish()
}

impl Source {
    fn open(image: &Image) -> Result<Self> {
        let options = FileOptions::new(Access::Read.into());
        let place = Place::of("journal", image)?;
        let device = image::any_device("journal", image, place, &options)?;
        if let Some(found) = JournalDevice::read(&device).at("journal", image)? {
            let location = LogLocation {
                runs: vec![(0, BlockNo(0), found.layout.blocks)],
                device: Some(device.clone()),
                superblock: found.layout.superblock,
            };
            let block_size = found.layout.block_size;
            let place = "a device of its own".to_owned();
            return Ok(Self { device, location, block_size, place, file_system: None });
        }
        let device = image::check_format("journal", image, device)?;
        let inspected = Inspected::read(device).at("journal", image)?;
        let (layout, superblock) = (&inspected.layout, &inspected.superblock);
        if let Some(uuid) = external_journal(superblock) {
            let Some(path) = journal::given() else {
                let why = format!("its journal {uuid} is on another device: --journal-device");
                return Err(Why::new(why).at("journal", image));
            };
            let device = journal::open("journal", image, &path, &options)?;
            let location = LogLocation::on(&device, superblock).at("journal", image)?;
            let place = path.display().to_string();
            let block_size = layout.block_size;
            return Ok(Self { device, location, block_size, place, file_system: Some(inspected) });
        }
        if !layout.features.compat.contains(Compat::HAS_JOURNAL) {
            return Err(Why::new("has no journal").at("journal", image));
        }
        let device = inspected.device().clone();
        let location = LogLocation::find(&*device, layout, superblock).at("journal", image)?;
        let place = format!("inode {}", superblock.s_journal_inum);
        let block_size = layout.block_size;
        Ok(Self { device, location, block_size, place, file_system: Some(inspected) })
    }

    /// Reads a block of the journal.
    fn read(&self, at: u32, bytes: &mut [u8]) -> std::io::Result<()> {
        let runs = &self.location.runs;
        let run = runs.partition_point(|(first, ..)| *first <= at).checked_sub(1);
        let found = run.and_then(|run| runs.get(run)).filter(|(first, _, len)| at - first < *len);
        let Some((first, start, _)) = found else {
            return Err(std::io::Error::other(format!("the journal has no block {at}")));
        };
        let block = start.plus(u64::from(at - first));
        self.device.read_at(block.get() * u64::from(self.block_size), bytes)
    }

    fn report(&self, args: &Args) -> Try<Report> {
        let mut bytes = vec![0; self.block_size as usize];
        self.read(self.location.superblock, &mut bytes)?;
        let why = |error: &dyn std::fmt::Display| Why::new(error.to_string());
        let superblock = RawJournalSuperblock::read(&bytes).map_err(|error| why(&error))?;
        let layout = JournalLayout::new(&superblock, self.block_size, self.location.blocks());
        let layout = layout.map_err(|error| why(&error))?;
        let roles = self.file_system.as_ref().filter(|_| args.blocks).map(Roles::new);
        let mut collector = Collector { roles, with_blocks: args.blocks, room: LISTED_MAX };
        let read = |at: u32, bytes: &mut [u8]| self.read(at, bytes);
        let transactions = collector.collect(Listing::new(&layout, read), &|_| true)?;
        let listed = |tid: u32| transactions.iter().any(|listed| listed.tid == tid);
        let old = match args.old {
            true => Some(collector.collect(Listing::of_all(&layout, read), &|tid| !listed(tid))?),
            false => None,
        };
        let fs_blocks = self.file_system.as_ref().map_or(u64::MAX, |it| it.layout.blocks_count);
        let planned = plan(&layout, ReplayLimits::new(fs_blocks), read);
        let fast_commits = match &planned {
            Ok(plan) if !layout.is_empty() => {
                // The plan skips a number behind the last transaction.
                let tid = Tid(plan.next_tid.get().wrapping_sub(1));
                let inode_size = self.file_system.as_ref().map(|it| it.layout.inode_size);
                let inode_size = inode_size.unwrap_or(self.block_size);
                let area = layout.fast_commits.clone();
                FastCommits::read((tid, inode_size), area, self.block_size, read)?
            }
            _ => None,
        };
        let needs_recovery = self.file_system.as_ref().map(|it| {
            let features = it.layout.features.incompat;
            features.contains(Incompat::RECOVER)
        });
        let recovery = Recovery::new(needs_recovery, &layout, planned.as_ref());
        let journal = report::Journal::new(&self.place, self.block_size, &superblock, &layout);
        Ok(Report { journal, transactions, old, fast_commits, recovery })
    }
}

/// Makes transactions of records.
struct Collector {
    roles: Option<Roles>,
    with_blocks: bool,
    /// How much more may be listed.
    room: usize,
}

impl Collector {
    /// The transactions of a listing that are `wanted`, by their numbers.
    fn collect<R>(
        &mut self,
        mut listing: Listing<'_, R>,
        wanted: &dyn Fn(u32) -> bool,
    ) -> Try<Vec<Transaction>>
    where
        R: FnMut(u32, &mut [u8]) -> std::io::Result<()>,
    {
        let mut found: Vec<Transaction> = Vec::new();
        while let Some(record) = listing.next_record()? {
            let tid = record.tid.get();
            if !wanted(tid) {
                continue;
            }
            let is_open = |last: &&mut Transaction| last.tid == tid && last.commit.is_none();
            match found.last_mut().filter(is_open) {
                Some(last) => self.add(last, record),
                None => {
                    let mut transaction = Transaction::new(tid, record.log_block);
                    self.add(&mut transaction, record);
                    found.push(transaction);
                }
            }
        }
        Ok(found)
    }

    fn add(&mut self, transaction: &mut Transaction, record: ListedRecord) {
        transaction.last_block = record.log_block;
        if !record.is_sound {
            transaction.damage(record.log_block);
        }
        match record.kind {
            ListedKind::Descriptor(images) => {
                for image in images {
                    transaction.last_block = image.log_block;
                    transaction.images += 1;
                    if !image.is_sound {
                        transaction.damage(image.log_block);
                    }
                    if self.takes() {
                        let role = self.roles.as_ref().and_then(|all| all.of(image.tag.block));
                        transaction.blocks.push(Block::new(&image, role));
                    }
                }
            }
            ListedKind::Revoke(Ok(blocks)) => {
                transaction.revokes += blocks.len() as u64;
                let taken = blocks.iter().take_while(|_| self.takes());
                transaction.revoked.extend(taken.map(|block| block.get()));
            }
            ListedKind::Revoke(Err(_)) => transaction.damage(record.log_block),
            ListedKind::Commit(commit) => transaction.commit = Some(report::time(&commit)),
        }
    }

    /// Whether one more block is listed.
    fn takes(&mut self) -> bool {
        let takes = self.with_blocks && self.room > 0;
        self.room -= usize::from(takes);
        takes
    }
}
