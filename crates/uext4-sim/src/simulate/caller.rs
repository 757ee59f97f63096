//! A caller: generated operations, one after the other, written down with what came of them.

use super::around::Around;
use super::memory;
use super::part::Part;
use super::tenant::{self, Tenancy};
use crate::category::Category;
use crate::generator::Generator;
use crate::model::{Entry, ThreadHistory};
use crate::operation::Operation;
use crate::target::{self, Refusal, Target};
use crate::volume_target::VolumeTarget;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uext4_schedule::thread;

/// A caller before it starts.
pub(super) struct LifeCaller {
    around: Arc<Around>,
    rng: StdRng,
    generator: Generator,
    /// A sync that comes before the generator's next operation.
    owed: Option<Operation>,
    history: ThreadHistory,
}

/// Whether a caller goes on.
enum After {
    Next,
    End,
}

impl LifeCaller {
    pub(super) fn new(around: &Arc<Around>, thread: u32) -> LifeCaller {
        let life = &around.life;
        let seed = around.plan.case.seed;
        let limits = life.limits(around.volume.layout().block_size);
        let mut generator = Generator::of(life.category, seed, thread, limits, true);
        if let Some(scene) = &life.scene {
            generator = generator.of_kinds(&scene.kinds);
        }
        LifeCaller {
            around: Arc::clone(around),
            rng: StdRng::seed_from_u64(seed ^ u64::from(thread) << 40 ^ 0xca11),
            generator,
            owed: None,
            history: ThreadHistory { thread, identifies: true, entries: Vec::new() },
        }
    }

    /// Does its operations; what it did, and what should not have been.
    pub(super) fn run(mut self) -> (ThreadHistory, Result<(), String>) {
        let mut target = VolumeTarget::new(self.around.volume.clone(), false)
            .may_fail(Arc::clone(&self.around) as Arc<_>);
        if self.around.life.category == Category::NoSpace {
            target = target.may_be_full();
        }
        let mut result = Ok(());
        for number in 0..self.around.life.operations {
            let step = match self.around.life.tenancy {
                Some(tenancy) => self.tenant_step(&tenancy, number),
                None => self.step(&mut target),
            };
            if self.rng.random_ratio(1, 16)
                && let Err(fault) = memory::check(&self.around.volume)
            {
                result = Err(fault);
                break;
            }
            match step {
                Ok(After::Next) => {}
                Ok(After::End) => break,
                Err(fault) => {
                    let (thread, index) = (self.history.thread, self.history.entries.len());
                    result = Err(format!("caller {thread} operation {index}: {fault}"));
                    break;
                }
            }
        }
        self.around.meeting.leave();
        drop(target);
        (self.history, result)
    }

    fn pause(&mut self) {
        if self.around.plan.parts.has(Part::Pauses) && self.rng.random_ratio(1, 3) {
            thread::sleep(Duration::from_micros(self.rng.random_range(1..20_000)));
        }
    }

    fn tenant_step(&mut self, tenancy: &Tenancy, number: usize) -> Result<After, String> {
        self.pause();
        let home = self.history.thread % tenancy.files;
        let done = tenant::iteration(&self.around, tenancy, home, &mut self.rng)
            .and_then(|()| tenant::meet(&self.around, number));
        self.around.progress.operation();
        match done {
            Ok(()) => Ok(After::Next),
            Err(error) if self.around.excuses(&error) => Ok(After::End),
            Err(error) => Err(format!("a tenant: {error}")),
        }
    }

    fn step(&mut self, target: &mut VolumeTarget) -> Result<After, String> {
        let parts = self.around.plan.parts;
        self.pause();
        if parts.has(Part::Collide) && self.rng.random_ratio(1, 3) {
            self.collide(target)?;
        }
        let operation = match self.owed.take() {
            Some(sync) => sync,
            None => self.generator.generate(),
        };
        let is_troubled = parts.has(Part::Trouble)
            && matches!(operation, Operation::Resize { .. })
            && self.rng.random_ratio(1, 2);
        if is_troubled {
            self.around.medium.trouble(self.rng.random_range(0..6));
        }
        if self.around.plan.case.verbose {
            println!("{}: {operation:?}", self.history.thread);
        }
        let started = self.around.clock.tick();
        let result = match &operation {
            Operation::Check { id } => target::check(&self.generator, target, *id),
            other => target.perform(self.generator.names(), other),
        };
        self.around.medium.calm();
        if self.around.plan.case.verbose {
            println!("{}: -> {result:?}", self.history.thread);
        }
        self.around.progress.operation();
        match result {
            Ok(()) => {
                let is_sync = operation.is_sync();
                self.write_down(operation, started, true);
                if is_sync {
                    self.around.synced();
                }
                self.around.may_end_here(is_sync);
            }
            // The file is closed whatever became of its data.
            Err(Refusal::Harmless) if matches!(operation, Operation::Release { .. }) => {
                self.write_down(operation, started, true);
            }
            Err(Refusal::Harmless) => self.generator.refused(),
            Err(Refusal::NoSpace) => return self.settle(target, operation, started),
            Err(Refusal::Gone) => {
                self.write_down(operation, started, false);
                return Ok(After::End);
            }
            Err(Refusal::Fault(_)) if self.goes_with_the_volume(&operation) => {
                return Ok(After::End);
            }
            Err(Refusal::Fault(why)) => return Err(format!("{operation:?}: {why}")),
        }
        Ok(After::Next)
    }

    /// It looks at a file without a name, which goes when the volume is closed.
    fn goes_with_the_volume(&self, operation: &Operation) -> bool {
        let Operation::Check { id } = operation else { return false };
        let is_closing = self.around.closing.load(Ordering::Relaxed);
        is_closing && self.generator.names().path_of(*id).is_none()
    }

    /// Finds out what an operation that failed half-way has done.
    fn settle(
        &mut self,
        target: &mut VolumeTarget,
        operation: Operation,
        started: u64,
    ) -> Result<After, String> {
        let settled = target::settle(&self.generator, target, &operation);
        self.generator.refused();
        match settled {
            Ok(None) => {}
            Ok(Some(happened)) => self.write_down(happened, started, true),
            Err(_) if self.around.is_over() || self.around.closing.load(Ordering::Relaxed) => {
                self.write_down(operation, started, false);
                return Ok(After::End);
            }
            Err(why) => return Err(format!("{operation:?} failed, and then: {why}")),
        }
        Ok(After::Next)
    }

    fn write_down(&mut self, operation: Operation, started: u64, has_ended: bool) {
        let ended = has_ended.then(|| self.around.clock.tick());
        if has_ended {
            self.generator.done(&operation);
            let syncs = self.around.plan.parts.has(Part::SyncOften) && self.rng.random_ratio(3, 4);
            let written = operation.content_of().filter(|_| syncs);
            self.owed = written.map(|id| Operation::Sync { id, data_only: self.rng.random() });
        }
        self.history.entries.push(Entry { operation, started, ended });
    }

    /// Tries to make a name that exists.
    fn collide(&mut self, target: &mut VolumeTarget) -> Result<(), String> {
        let names = self.generator.names();
        let count = names.entries().count();
        if count == 0 {
            return Ok(());
        }
        let which = self.rng.random_range(0..count);
        let Some((place, _)) = names.entries().nth(which) else { return Ok(()) };
        let kind = self.rng.random_range(0..3);
        match target.collide(names, place, kind) {
            Ok(()) | Err(Refusal::Gone | Refusal::Harmless | Refusal::NoSpace) => Ok(()),
            Err(Refusal::Fault(why)) => Err(format!("a name that exists: {place:?}: {why}")),
        }
    }
}
