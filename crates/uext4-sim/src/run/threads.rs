//! The threads of a run.

use super::Plan;
use crate::category::Category;
use crate::generator::{Generator, Limits};
use crate::model::{Entry, History, Mark, Rules, ThreadHistory};
use crate::operation::Operation;
use crate::target::{Clock, Target, act};
use crate::volume_target::VolumeTarget;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::sync::Arc;
use uext4::config::DataMode;
use uext4::{AllocateMode, FileKind, NewInode, Owner, Volume};
use uext4_device::{FaultDevice, RecordingDevice};
use uext4_ondisk::Incompat;

/// The name of the file that takes the room away.
pub(crate) const FILL: &[u8] = b"fill";

/// Leaves about `left` blocks free for data.
pub(crate) fn fill(volume: &Volume, left: u64) -> Result<(), uext4::Error> {
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o600,
        owner: Owner { uid: 0, gid: 0 },
        rdev: Default::default(),
    };
    let file = volume.create(&volume.root()?, FILL, &new)?;
    volume.sync()?;
    let kept = left + volume.space().node_pool_blocks();
    let blocks = volume.stat_fs().blocks_free.saturating_sub(kept);
    let bytes = blocks * u64::from(volume.layout().block_size);
    let opened = volume.open_file(&file)?;
    if volume.layout().features.incompat.contains(Incompat::EXTENT) {
        return opened.allocate(AllocateMode::Allocate { keep_size: false }, 0, bytes);
    }
    // A block map is filled by writes, and takes blocks for itself.
    let per_block = u64::from(volume.layout().block_size / 4);
    let indirect = blocks / per_block + blocks / (per_block * per_block) + 3;
    let bytes = bytes.saturating_sub(indirect * u64::from(volume.layout().block_size));
    let zeroes = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(zeroes.len() as u64);
        at += opened.write_at(at, &zeroes[..len as usize])? as u64;
    }
    volume.sync()
}

/// What stands around the threads of a run.
pub(super) struct Surroundings<'a> {
    pub(super) skips_syncs: bool,
    /// Told of each sync that has returned.
    pub(super) synced: &'a (dyn Fn(Mark) + Sync),
    /// The device below, if it may fail.
    pub(super) faulty: Option<Arc<FaultDevice>>,
}

/// The threads of a run.
pub(super) struct Load<'a> {
    plan: &'a Plan,
    clock: Clock,
    threads: Vec<(Generator, ThreadHistory)>,
}

impl<'a> Load<'a> {
    pub(super) fn new(plan: &'a Plan) -> Load<'a> {
        let block_size = plan.shape.block_size;
        // A file can be shifted by whole clusters.
        let shift_bytes = plan.shape.format.cluster_size.unwrap_or(0).into();
        let mut limits = if plan.ablation.is_empty() {
            Limits {
                // What is left of a block beside the attributes that the inode has no room for.
                xattr_bytes: block_size as usize / 2,
                file_bytes: if block_size == 1024 { 120_000 } else { 300_000 },
                ..Limits::default()
            }
        } else {
            plan.category.limits(block_size)
        };
        limits.shift_bytes = limits.shift_bytes.max(shift_bytes);
        let threads = (1..=plan.threads)
            .map(|thread| {
                let entries = Vec::new();
                let generator = Generator::of(plan.category, plan.seed, thread, limits, true)
                    .with_block_maps(plan.shape.format.has_block_maps())
                    .with_encryption(plan.shape.format.is_encrypted())
                    .with_value_inodes(plan.shape.format.has_value_inodes())
                    .with_folding(plan.shape.format.folds());
                (generator, ThreadHistory { thread, identifies: true, entries })
            })
            .collect();
        Load { plan, clock: Clock::default(), threads }
    }

    /// What stands on the volume before the recording begins; nothing for runs of no ablation.
    pub(super) fn warm_up(&mut self, volume: &Volume) -> Result<(), String> {
        let operations =
            if self.plan.ablation.is_empty() { 0 } else { self.plan.category.warm_up() };
        let share = operations / self.plan.threads as usize;
        for (generator, history) in &mut self.threads {
            let mut target = VolumeTarget::new(volume.clone(), false);
            let more = |done: usize| done < share;
            act(generator, &mut target, &self.clock, history, &more, &|_| ())?;
            let held: Vec<_> = generator.held().collect();
            generator.refused();
            for id in held {
                let operation = Operation::Release { id };
                target
                    .perform(generator.names(), &operation)
                    .map_err(|why| format!("{operation:?}: {why:?}"))?;
                let (started, ended) = (self.clock.tick(), Some(self.clock.tick()));
                generator.done(&operation);
                history.entries.push(Entry { operation, started, ended });
            }
        }
        Ok(())
    }

    /// Everything so far is durable.
    pub(super) fn mark_warm(&mut self, recorder: &RecordingDevice) {
        let (_, history) = &mut self.threads[0];
        let (started, ended) = (self.clock.tick(), Some(self.clock.tick()));
        history.entries.push(Entry { operation: Operation::SyncVolume, started, ended });
        let mark = Mark { thread: history.thread, index: history.entries.len() - 1 };
        recorder.mark(mark.number());
    }

    pub(super) fn run(&mut self, volume: &Volume, around: &Surroundings<'_>) -> Result<(), String> {
        let (plan, clock) = (self.plan, &self.clock);
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .threads
                .iter_mut()
                .map(|(generator, history)| {
                    scope.spawn(move || {
                        let mut target = VolumeTarget::new(volume.clone(), around.skips_syncs);
                        if let Some(device) = &around.faulty {
                            target = target.may_fail(device.clone());
                        }
                        if plan.category == Category::NoSpace {
                            target = target.may_be_full();
                        }
                        let pace = Pace::new(plan, history.thread);
                        let more = |done: usize| {
                            pace.before(volume);
                            done < plan.operations
                        };
                        act(generator, &mut target, clock, history, &more, around.synced)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| Err("a thread panicked".into())))
                .collect()
        });
        results.into_iter().collect()
    }

    pub(super) fn history(self) -> History {
        let late = self.plan.options.journal_async_commit;
        let carries = self.plan.options.auto_da_alloc && !late;
        let threads = self.threads.into_iter().map(|(_, history)| history).collect();
        // The data of encrypted files never goes through the journal.
        let journaled = self.plan.options.data_mode == DataMode::Journal
            && !self.plan.shape.format.is_encrypted();
        let rules = Rules {
            renames_carry_data: carries,
            sizes_were_had: true,
            data_may_be_late: late,
            whole_writes: journaled.then(|| 4 * u64::from(self.plan.shape.block_size)),
        };
        History { threads, rules }
    }
}

/// Commits and writeback that nobody asked for, so that a short run has many states.
struct Pace {
    rng: RefCell<StdRng>,
    commit_percent: u32,
}

impl Pace {
    fn new(plan: &Plan, thread: u32) -> Pace {
        let rng = StdRng::seed_from_u64(plan.seed ^ u64::from(thread) << 32 ^ 0x9ace);
        Pace { rng: RefCell::new(rng), commit_percent: plan.commit_percent }
    }

    fn before(&self, volume: &Volume) {
        let mut rng = self.rng.borrow_mut();
        if self.commit_percent == 0 {
            return;
        }
        // An error shows at the next operation.
        if rng.random_ratio(1, 12) {
            let _ = volume.sync();
        } else if rng.random_ratio(self.commit_percent, 100) {
            let _ = volume.space().journal().commit_all();
        }
    }
}
