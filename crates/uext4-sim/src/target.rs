//! Where a load is done.
//!
//! # What
//! [`Target`] performs one operation: on a volume in this process ([`crate::VolumeTarget`]) or
//! through the system calls of a mounted one ([`crate::HostTarget`]). [`act`] is the loop of one
//! thread: choose, perform, write down.

use crate::content::{self, BLOCK_BYTES_MIN, Effect, FileBytes};
use crate::generator::Generator;
use crate::model::{Entry, Mark, Rules, ThreadHistory};
use crate::namespace::Namespace;
use crate::operation::{Id, Operation};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why an operation was not done.
#[derive(Debug)]
pub enum Refusal {
    /// It changed nothing and need not succeed: an attribute that does not fit.
    Harmless,
    /// There was no space, or the device failed for a moment: it has happened, or a part of it, or
    /// nothing.
    NoSpace,
    /// What it worked on has gone, as planned: it may have happened or not.
    Gone,
    /// It should have succeeded.
    Fault(String),
}

/// Performs operations of one thread.
pub trait Target {
    /// Performs `operation`. `names` is what the thread has made so far.
    ///
    /// # Errors
    /// See [`Refusal`].
    fn perform(&mut self, names: &Namespace, operation: &Operation) -> Result<(), Refusal>;

    /// Reads a whole file.
    ///
    /// # Errors
    /// See [`Refusal`].
    fn read(&mut self, names: &Namespace, id: Id) -> Result<FileBytes, Refusal>;
}

/// What the threads of a load share.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// The next moment.
    pub fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Performs operations until `more` says no or the target has gone; tells `synced` of each sync
/// that has returned.
///
/// # Errors
/// An operation that should have succeeded, or a file that held something else than was written.
pub fn act(
    generator: &mut Generator,
    target: &mut dyn Target,
    clock: &Clock,
    history: &mut ThreadHistory,
    more: &dyn Fn(usize) -> bool,
    synced: &dyn Fn(Mark),
) -> Result<(), String> {
    let mut attempts = 0;
    while more(attempts) {
        attempts += 1;
        let mut operation = generator.generate();
        let started = clock.tick();
        let result = match &operation {
            Operation::Check { id } => check(generator, target, *id),
            other => target.perform(generator.names(), other),
        };
        let ended = match result {
            Ok(()) => Some(clock.tick()),
            Err(Refusal::Harmless) => {
                generator.refused();
                continue;
            }
            Err(Refusal::NoSpace) => match settle(generator, target, &operation) {
                Ok(None) => {
                    generator.refused();
                    continue;
                }
                Ok(Some(happened)) => {
                    generator.refused();
                    operation = happened;
                    Some(clock.tick())
                }
                Err(why) => return Err(fault(history, &operation, &why)),
            },
            Err(Refusal::Gone) => None,
            Err(Refusal::Fault(why)) => return Err(fault(history, &operation, &why)),
        };
        let index = history.entries.len();
        let is_sync = operation.is_sync();
        history.entries.push(Entry { operation: operation.clone(), started, ended });
        if ended.is_none() {
            return Ok(());
        }
        generator.done(&operation);
        if is_sync {
            synced(Mark { thread: history.thread, index });
        }
    }
    Ok(())
}

pub(crate) fn check(generator: &Generator, target: &mut dyn Target, id: Id) -> Result<(), Refusal> {
    let found = target.read(generator.names(), id)?;
    let Some(content) = generator.content(id) else { return Ok(()) };
    content::check(id, content, &[], &found, Rules::EXACT).map_err(Refusal::Fault)
}

fn fault(history: &ThreadHistory, operation: &Operation, why: &str) -> String {
    let index = history.entries.len();
    format!("thread {} operation {index}: {operation:?}: {why}", history.thread)
}

/// What a change of content that met no space has done, as an operation; `None`: nothing.
pub(crate) fn settle(
    generator: &Generator,
    target: &mut dyn Target,
    operation: &Operation,
) -> Result<Option<Operation>, String> {
    let Some(id) = operation.content_of() else {
        return Err("no space for an operation that needs none".into());
    };
    let content = generator.content(id).cloned().unwrap_or_default();
    let found = match target.read(generator.names(), id) {
        Ok(found) => found,
        Err(refusal) => return Err(format!("reading after it failed: {refusal:?}")),
    };
    if content::check(id, &content, &[], &found, Rules::EXACT).is_ok() {
        return Ok(None);
    }
    let mut result = Ok(None);
    for happened in parts_of(operation, id, found.size) {
        let mut changed = content.clone();
        if let Some(effect) = Effect::of(&happened, content.size) {
            changed.apply(&effect);
        }
        match content::check(id, &changed, &[], &found, Rules::EXACT) {
            Ok(()) => return Ok(Some(happened)),
            Err(why) => result = Err(why),
        }
    }
    result
}

/// What an operation that met no space may have done; the whole last.
fn parts_of(operation: &Operation, id: Id, size: u64) -> Vec<Operation> {
    match *operation {
        // It allocates from its start on and leaves what it has when space ends.
        Operation::Allocate { .. } => vec![Operation::Resize { id, size }],
        // One that takes several handles ends at a block.
        Operation::Write { id, offset, len, generation, append, direct } => {
            let first = offset / BLOCK_BYTES_MIN + 1;
            let ends = (first..).map(|block| block * BLOCK_BYTES_MIN - offset);
            ends.take_while(|&part| part < len)
                .chain([len])
                .map(|len| Operation::Write { id, offset, len, generation, append, direct })
                .collect()
        }
        _ => vec![operation.clone()],
    }
}
