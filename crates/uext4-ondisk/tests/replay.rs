//! Journal replay: hand-made logs of every format, and logs that debugfs writes and e2fsck
//! replays.
//!
//! Fault model: any block of the log damaged, torn, stale or repeated. Not covered: logs of other
//! writers with checksum v1.

use std::collections::BTreeMap;
use std::convert::Infallible;
use uext4_ondisk::checksum::crc32_be;
use uext4_ondisk::journal::block::{self, CommitBlock, DescriptorWriter, RevokeWriter};
use uext4_ondisk::journal::replay::{self, ReplayError, ReplayLimits, ReplayPlan};
use uext4_ondisk::journal::superblock::{JournalChecksum, JournalFormat, JournalLayout};
use uext4_ondisk::{BlockNo, Tid};

const BLOCK: usize = 1024;
const LOG_END: u32 = 40;

/// A log in memory, written in order, going round at the end.
struct Log {
    layout: JournalLayout,
    blocks: Vec<Vec<u8>>,
    next: u32,
    tid: Tid,
    secs: u64,
}

impl Log {
    fn new(checksum: JournalChecksum, is_64bit: bool, start: u32) -> Self {
        let format =
            JournalFormat { block_size: BLOCK as u32, checksum, is_64bit, seed: 3, uuid: [1; 16] };
        let tid = Tid(u32::MAX - 1);
        let layout = JournalLayout {
            format,
            async_commit: false,
            first: 1,
            end: LOG_END,
            start,
            sequence: tid,
            fast_commits: 0..0,
        };
        let blocks = vec![vec![0; BLOCK]; LOG_END as usize];
        Self { layout, blocks, next: start, tid, secs: 1000 }
    }

    fn put(&mut self, block: Vec<u8>) -> u32 {
        let at = self.next;
        self.blocks[at as usize] = block;
        self.next = self.layout.after(at, 1);
        at
    }

    /// Writes one transaction; returns the log block of its commit.
    fn transaction(&mut self, images: &[(u64, u8)], revokes: &[u64]) -> u32 {
        let format = self.layout.format;
        let mut crc = !0;
        if !revokes.is_empty() {
            let mut block = vec![0; BLOCK];
            let mut writer = RevokeWriter::new(&mut block, &format, self.tid);
            revokes.iter().for_each(|&b| assert!(writer.push(BlockNo(b))));
            writer.finish();
            self.put(block);
        }
        if !images.is_empty() {
            let mut descriptor = vec![0; BLOCK];
            let mut writer = DescriptorWriter::new(&mut descriptor, &format, self.tid);
            let mut log = Vec::new();
            for &(target, fill) in images {
                let mut image = vec![fill; BLOCK];
                if fill == 0xee {
                    block::unescape(&mut image);
                }
                let escaped = block::escape(&mut image);
                assert!(writer.push(BlockNo(target), escaped, &image));
                log.push(image);
            }
            writer.finish();
            crc = crc32_be(crc, &descriptor);
            self.put(descriptor);
            for image in log {
                crc = crc32_be(crc, &image);
                self.put(image);
            }
        }
        let mut commit = vec![0; BLOCK];
        CommitBlock::write(&mut commit, &format, self.tid, (self.secs, 0), Some(crc));
        self.tid = self.tid.next();
        self.secs += 5;
        self.put(commit)
    }

    fn plan(&self) -> Result<ReplayPlan, ReplayError<Infallible>> {
        replay::plan(&self.layout, ReplayLimits::new(1 << 40), |n, to: &mut [u8]| {
            to.copy_from_slice(&self.blocks[n as usize]);
            Ok(())
        })
    }

    /// Homes and the last byte of what they get.
    fn result(&self, plan: &ReplayPlan) -> BTreeMap<u64, u8> {
        let one = |(target, from): (&BlockNo, &replay::ReplayBlock)| {
            let mut image = self.blocks[from.log_block as usize].clone();
            if from.escaped {
                block::unescape(&mut image);
            }
            assert_eq!(block::must_escape(&image), image[BLOCK - 1] == 0xee);
            (target.get(), image[BLOCK - 1])
        };
        plan.writes.iter().map(one).collect()
    }
}

fn every_format() -> impl Iterator<Item = (JournalChecksum, bool)> {
    use JournalChecksum as C;
    [C::None, C::V1, C::V2, C::V3].into_iter().flat_map(|c| [(c, false), (c, true)])
}

#[test]
fn newest_image_wins_and_revokes_hold_back_older_ones() {
    for (checksum, is_64bit) in every_format() {
        // Starts near the end, so that the log goes round inside a transaction.
        let mut log = Log::new(checksum, is_64bit, LOG_END - 3);
        log.transaction(&[(10, 1), (11, 1), (12, 0xee), (13, 1), (14, 1)], &[]);
        log.transaction(&[(11, 2), (14, 2)], &[13]);
        log.transaction(&[(13, 3)], &[10, 14]);
        let plan = log.plan().unwrap();
        let want = BTreeMap::from([(11, 2), (12, 0xee), (13, 3)]);
        assert_eq!(log.result(&plan), want);
        assert_eq!((plan.transactions, plan.revoked, plan.skipped), (3, 3, 4));
        // The ids wrap: MAX-1, MAX, 0; the next one leaves one out.
        assert_eq!((plan.first_tid, plan.next_tid), (Tid(u32::MAX - 1), Tid(2)));
        assert_eq!((plan.next_log_block, plan.last_commit_secs), (log.next, 1010));
        assert!(plan.damaged.is_empty());
    }
}

#[test]
fn a_revoke_in_the_same_transaction_holds_back_its_own_image() {
    let mut log = Log::new(JournalChecksum::V3, true, 1);
    log.transaction(&[(10, 1)], &[10]);
    assert!(log.plan().unwrap().writes.is_empty());
}

#[test]
fn an_unfinished_transaction_never_happened() {
    for (checksum, is_64bit) in every_format() {
        let mut log = Log::new(checksum, is_64bit, 1);
        log.transaction(&[(10, 1)], &[]);
        let commit = log.transaction(&[(10, 2)], &[]);
        log.blocks[commit as usize].fill(0);
        let plan = log.plan().unwrap();
        assert_eq!(log.result(&plan), BTreeMap::from([(10, 1)]));
        assert_eq!(plan.transactions, 1);
    }
}

#[test]
fn a_torn_commit_ends_the_log_unless_a_later_one_is_sound() {
    for (checksum, is_64bit) in every_format().skip(2) {
        let mut log = Log::new(checksum, is_64bit, 1);
        log.transaction(&[(10, 1)], &[]);
        let commit = log.transaction(&[(10, 2)], &[]);
        log.blocks[commit as usize][0x13] ^= 1;
        let plan = log.plan().unwrap();
        assert_eq!(log.result(&plan), BTreeMap::from([(10, 1)]), "{checksum:?}");
        log.transaction(&[(10, 3)], &[]);
        if checksum == JournalChecksum::V1 {
            // Nothing tells the later one from an old one.
            assert_eq!(log.plan().unwrap().transactions, 1);
            continue;
        }
        let is_told = |log: &Log| {
            let plan = log.plan();
            matches!(plan, Err(ReplayError::Corrupt { log_block, .. }) if log_block == commit)
        };
        assert!(is_told(&log), "{checksum:?}: transactions are lost in silence");
        // Whatever else is damaged of it.
        log.blocks[commit as usize - 2][1000] ^= 1;
        assert!(is_told(&log), "{checksum:?}: transactions are lost in silence");
    }
}

/// A file system was made in the place of another (`lazy_journal_init`): the old log has the same
/// ids in the same places, newer times perhaps, and checksums of another seed.
#[test]
fn the_log_of_another_journal_is_not_damage() {
    for checksum in [JournalChecksum::V2, JournalChecksum::V3] {
        for (new, secs) in [(0, 1000), (1, 1000), (2, 1000), (2, 10), (2, 9999)] {
            for async_commit in [false, true] {
                let mut log = Log::new(checksum, true, 1);
                log.layout.format.seed = 4;
                log.secs = secs;
                for _ in 0..4 {
                    log.transaction(&[(10, 9), (11, 9)], &[12]);
                }
                let stale = log.blocks;
                log = Log { blocks: stale, ..Log::new(checksum, true, 1) };
                log.layout.async_commit = async_commit;
                for _ in 0..new {
                    log.transaction(&[(10, 1), (13, 1)], &[14]);
                }
                let plan = log.plan().unwrap_or_else(|why| panic!("{checksum:?}, {new}: {why}"));
                assert_eq!((plan.transactions, plan.next_log_block), (new, log.next));
                assert!(log.result(&plan).values().all(|&fill| fill == 1));
            }
        }
    }
}

#[test]
fn damage_in_complete_transactions_is_told() {
    for is_64bit in [false, true] {
        for checksum in [JournalChecksum::V2, JournalChecksum::V3] {
            let mut log = Log::new(checksum, is_64bit, 1);
            log.transaction(&[(10, 1), (11, 1)], &[]);
            log.blocks[2][5] ^= 1;
            let plan = log.plan().unwrap();
            assert_eq!(log.result(&plan), BTreeMap::from([(11, 1)]));
            assert_eq!(plan.damaged, [(BlockNo(10), 2)]);
            // A descriptor that fails under a newer commit block is damage, not an old log.
            log.blocks[1][1000] ^= 1;
            assert!(matches!(log.plan(), Err(ReplayError::Corrupt { log_block: 1, .. })));
        }
    }
    // Checksum v1 covers images: the transaction as a whole never happened.
    let mut log = Log::new(JournalChecksum::V1, true, 1);
    log.transaction(&[(10, 1), (11, 1)], &[]);
    log.blocks[2][5] ^= 1;
    assert_eq!(log.plan().unwrap().transactions, 0);
}

/// With async_commit the commit block may be there and anything before it missing.
#[test]
fn a_torn_transaction_of_an_asynchronous_commit_never_happened() {
    for checksum in [JournalChecksum::V2, JournalChecksum::V3] {
        let mut log = Log::new(checksum, true, 1);
        log.layout.async_commit = true;
        log.transaction(&[(10, 1)], &[]);
        let torn = log.next;
        let commit = log.transaction(&[(10, 2), (11, 2)], &[12]);
        assert_eq!(log.result(&log.plan().unwrap()), BTreeMap::from([(10, 2), (11, 2)]));
        // Revoke block, descriptor, images, commit block: each missing, each torn.
        for at in torn..=commit {
            let whole = log.blocks[at as usize].clone();
            for from in [0, BLOCK / 2] {
                log.blocks[at as usize][from..].fill(0x55);
                let plan = log.plan().unwrap();
                assert_eq!(log.result(&plan), BTreeMap::from([(10, 1)]), "block {at} from {from}");
                assert_eq!((plan.transactions, plan.revoked), (1, 0));
                assert!(plan.damaged.is_empty());
                log.blocks[at as usize].clone_from(&whole);
            }
        }
        // The next transaction was written when this one was durable: that is damage.
        log.transaction(&[(13, 3)], &[]);
        log.blocks[commit as usize - 1][7] ^= 1;
        let at = commit - 1;
        assert!(
            matches!(log.plan(), Err(ReplayError::Corrupt { log_block, .. }) if log_block == at)
        );
        log.blocks[commit as usize - 1][7] ^= 1;
        log.blocks[commit as usize][BLOCK - 1] ^= 1;
        assert!(
            matches!(log.plan(), Err(ReplayError::Corrupt { log_block, .. }) if log_block == commit)
        );
    }
}

#[test]
fn a_stale_descriptor_under_an_older_commit_ends_the_log() {
    let mut log = Log::new(JournalChecksum::V3, true, 1);
    log.transaction(&[(10, 1)], &[]);
    let stale = log.next;
    log.secs = 10;
    log.transaction(&[(10, 2)], &[]);
    log.blocks[stale as usize][1000] ^= 1;
    let plan = log.plan().unwrap();
    assert_eq!((plan.transactions, plan.next_log_block), (1, stale));
}

#[test]
fn hostile_logs_end() {
    // Nothing but descriptors of one transaction, all round the log.
    for (checksum, is_64bit) in every_format() {
        let mut log = Log::new(checksum, is_64bit, 5);
        let mut block = vec![0; BLOCK];
        DescriptorWriter::new(&mut block, &log.layout.format, log.tid).finish();
        for n in 1..LOG_END {
            log.blocks[n as usize] = block.clone();
        }
        assert_eq!(log.plan().unwrap().transactions, 0);
        // Images that go round the whole log.
        let mut log = Log::new(checksum, is_64bit, 5);
        let format = log.layout.format;
        let mut writer = DescriptorWriter::new(&mut block, &format, log.tid);
        (0..60).for_each(|n| assert!(writer.push_with_checksum(BlockNo(n), false, 0)));
        writer.finish();
        log.blocks[5] = block.clone();
        assert_eq!(log.plan().unwrap().transactions, 0);
        // Homes outside the file system.
        let mut log = Log::new(checksum, is_64bit, 5);
        log.transaction(&[(7, 1)], &[]);
        let plan = replay::plan(&log.layout, ReplayLimits::new(7), |n, to: &mut [u8]| {
            to.copy_from_slice(&log.blocks[n as usize]);
            Ok::<(), Infallible>(())
        });
        assert!(matches!(plan, Err(ReplayError::OutOfRange { .. })));
    }
}

#[test]
fn random_damage_never_panics() {
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for round in 0..3000 {
        let (checksum, is_64bit) = every_format().nth(round % 8).unwrap();
        let mut log = Log::new(checksum, is_64bit, 1);
        log.transaction(&[(10, 1), (11, 1)], &[13, 14]);
        log.transaction(&[(11, 2), (14, 2)], &[]);
        for _ in 0..1 + random() % 4 {
            let block = 1 + random() % 12;
            log.blocks[block][random() % 64] = random() as u8;
        }
        if let Ok(plan) = log.plan() {
            assert!(plan.writes.len() <= LOG_END as usize);
        }
    }
}

mod debugfs {
    //! Logs that debugfs wrote: what this crate plans must be what e2fsck does.

    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use uext4_ondisk::journal::superblock::{
        CHECKSUM_CRC32C, JournalIncompat, RawJournalSuperblock,
    };
    use uext4_ondisk::{Layout, RawInode, RawSuperblock, extent::ExtentNode};

    fn run(name: &str, args: &[&str], input: &str) -> Option<i32> {
        use std::io::Write as _;
        let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(name);
        command.args(args).env("PATH", path).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(mut child) => {
                child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
                child.wait().unwrap().code()
            }
            Err(error) => {
                eprintln!("skipped: {name}: {error}");
                None
            }
        }
    }

    /// Device blocks of the journal, from its root node (mke2fs lays it out in few extents).
    fn journal_blocks(file: &File, layout: &Layout) -> Vec<u64> {
        let mut desc = [0; 64];
        file.read_exact_at(&mut desc, layout.byte_of(layout.desc_block_no(0))).unwrap();
        let desc = uext4_ondisk::RawGroupDesc::read(&desc, layout.desc_size).unwrap();
        let mut slot = vec![0; layout.inode_size as usize];
        let at = layout.byte_of(desc.inode_table()) + 7 * u64::from(layout.inode_size);
        file.read_exact_at(&mut slot, at).unwrap();
        let raw = RawInode::read(&slot).unwrap();
        let node = ExtentNode::parse(&raw.i_block, None, 0..layout.blocks_count).unwrap();
        assert_eq!(node.depth, 0);
        node.extents().flat_map(|e| (0..e.len).map(move |n| e.start.get() + u64::from(n))).collect()
    }

    /// An image, its geometry, and the device blocks of its journal.
    fn open_image(image: &Path) -> (File, Layout, Vec<u64>) {
        let file = OpenOptions::new().read(true).write(true).open(image).unwrap();
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, 1024).unwrap();
        let sb = RawSuperblock::read(&bytes).unwrap();
        let layout = Layout::new(&sb, None).unwrap();
        let blocks = journal_blocks(&file, &layout);
        (file, layout, blocks)
    }

    fn replayed_like_e2fsck(options: &[&str], open: &str) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        if run_one(dir.path(), &image, options, open).is_none() {
            eprintln!("skipped: e2fsprogs is not installed");
        }
    }

    fn run_one(dir: &Path, image: &Path, options: &[&str], open: &str) -> Option<()> {
        let arg = image.to_str().unwrap();
        let mut args = vec!["-q", "-F", "-t", "ext4"];
        args.extend(options);
        args.extend([arg, "16M"]);
        assert_eq!(run("mke2fs", &args, "")?, 0);
        // Images for unused blocks, one of which must be escaped; a revoke between two of them.
        let paths = [("a", 0x11_u8), ("b", 0x22), ("c", 0xee)].map(|(name, fill)| {
            let path = dir.join(name);
            let mut content = vec![fill; 4096 * 2];
            if fill == 0xee {
                block::unescape(&mut content);
            }
            fs::write(&path, content).unwrap();
            path.display().to_string()
        });
        let [a, b, c] = paths;
        let commands = format!(
            "jo {open}\njw -b 3900,3901 {a}\njw -b 3902,3903 {c}\njw -r 3900\njw -b 3901 {b}\n\
             jc\nquit\n"
        );
        assert_eq!(run("debugfs", &["-w", "-f", "-", arg], &commands)?, 0);

        let (file, layout, blocks) = open_image(image);
        let size = u64::from(layout.block_size);
        let read = |block: u64, to: &mut [u8]| file.read_exact_at(to, block * size);
        let mut first = vec![0; size as usize];
        read(blocks[0], &mut first).unwrap();
        let jsb = RawJournalSuperblock::read(&first).unwrap();
        let log = JournalLayout::new(&jsb, layout.block_size, blocks.len() as u32).unwrap();
        assert!(!log.is_empty());
        let plan =
            replay::plan(&log, ReplayLimits::new(layout.blocks_count), |n, to: &mut [u8]| {
                read(blocks[n as usize], to)
            })
            .unwrap();
        let targets: Vec<u64> = plan.writes.keys().map(|b| b.get()).collect();
        assert_eq!(targets, [3901, 3902, 3903]);
        assert!(plan.damaged.is_empty() && plan.skipped == 1);
        let mut want = BTreeMap::new();
        for (target, from) in &plan.writes {
            let mut content = vec![0; size as usize];
            read(blocks[from.log_block as usize], &mut content).unwrap();
            if from.escaped {
                block::unescape(&mut content);
            }
            want.insert(target.get(), content);
        }
        assert!(run("e2fsck", &["-fy", arg], "")? < 4);
        for (target, content) in want {
            let mut found = vec![0; size as usize];
            read(target, &mut found).unwrap();
            assert!(found == content, "block {target}");
        }
        Some(())
    }

    #[test]
    fn checksum_v3() {
        replayed_like_e2fsck(&["-b", "4096", "-O", "metadata_csum,64bit"], "-c -v 3");
    }

    #[test]
    fn checksum_v2_without_64bit() {
        replayed_like_e2fsck(&["-b", "4096", "-O", "metadata_csum,^64bit"], "-c -v 2");
    }

    #[test]
    fn no_checksum() {
        replayed_like_e2fsck(&["-b", "4096", "-O", "^metadata_csum"], "");
    }

    /// A log in use that mke2fs leaves where it lies; the new journal is about to write its first
    /// transaction, which its superblock says.
    #[test]
    fn a_journal_over_an_older_one_begins_with_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let options = ["-b", "4096", "-O", "metadata_csum,64bit"];
        if run_one(dir.path(), &image, &options, "-c -v 3").is_none() {
            eprintln!("skipped: e2fsprogs is not installed");
            return;
        }
        let arg = image.to_str().unwrap();
        let mke2fs = ["-q", "-F", "-t", "ext4", "-E", "nodiscard,lazy_journal_init=1"];
        let mke2fs: Vec<_> = mke2fs.into_iter().chain(options).chain([arg]).collect();
        assert_eq!(run("mke2fs", &mke2fs, ""), Some(0));
        let (file, layout, blocks) = open_image(&image);
        let size = u64::from(layout.block_size);
        let mut first = vec![0; size as usize];
        file.read_exact_at(&mut first, blocks[0] * size).unwrap();
        let mut jsb = RawJournalSuperblock::read(&first).unwrap();
        jsb.s_start.set(1);
        jsb.s_feature_incompat.set((JournalIncompat::CSUM_V3 | JournalIncompat::BIT64).bits());
        jsb.s_checksum_type = CHECKSUM_CRC32C;
        jsb.seal();
        let log = JournalLayout::new(&jsb, layout.block_size, blocks.len() as u32).unwrap();
        let mut old = vec![0; size as usize];
        file.read_exact_at(&mut old, blocks[1] * size).unwrap();
        let header = block::header(&old);
        assert_eq!(header, Some((block::BlockType::Descriptor, log.sequence)), "an old log");
        let plan =
            replay::plan(&log, ReplayLimits::new(layout.blocks_count), |n, to: &mut [u8]| {
                file.read_exact_at(to, blocks[n as usize] * size)
            })
            .unwrap();
        assert_eq!((plan.transactions, plan.writes.len()), (0, 0));
    }
}
