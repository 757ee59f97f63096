//! CPU profiles of this process, by a sampler in it, where perf(1) is missing or may not look.
//!
//! What: a timer of the processor time of the process (`ITIMER_PROF`) ends in a signal; its handler
//! finds the callers of what was interrupted by the unwind tables of the program, as perf does. All
//! of that is the crate `pprof`'s. Only a thread that runs is interrupted, never one that sleeps,
//! and a system call that it was about to sleep in is begun again (`SA_RESTART`).
//! Invariants: the timer has ended when a [`Sampler`] is dropped. The first signal allocates memory
//! in its handler: it comes while this thread computes and holds no lock ([`spin`]).

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pprof::{Frames, ProfilerGuard};

use crate::error::{Doing, Error, Result};
use crate::explain::stacks::{Counted, group, named};
use crate::explain::tasks::OBSERVER;

/// Signals in a second of processor time; the clock of the kernel may have fewer ticks.
const HERTZ: i32 = 199;
/// Time in which the first signal comes: several ticks of any kernel.
const WARM: Duration = Duration::from_millis(60);
/// How often that is waited for, on a machine with other work.
const PATIENCE: usize = 20;

/// A timer that runs, and what its signals have seen.
pub(super) struct Sampler {
    guard: Option<ProfilerGuard<'static>>,
}

impl Sampler {
    /// Begins.
    ///
    /// # Errors
    /// Another one runs in this process; there are no signals.
    pub(super) fn begin() -> Result<Self> {
        let guard = || ProfilerGuard::new(HERTZ).doing("the sampler of this process");
        // Its file is opened by name when it is read; that of an earlier run has none any more. The
        // end of a guard makes a new one.
        drop(guard()?);
        let sampler = Self { guard: Some(guard()?) };
        for _ in 0..PATIENCE {
            spin(Instant::now() + WARM);
            if sampler.has_seen()? {
                return Ok(sampler);
            }
        }
        Err(Error::new("the sampler of this process gets no signals"))
    }

    fn has_seen(&self) -> Result<bool> {
        let Some(guard) = &self.guard else { return Ok(false) };
        let seen = guard.report().build_unresolved().doing("the sampler of this process")?;
        Ok(!seen.data.is_empty())
    }

    /// How it looks.
    pub(super) fn by() -> String {
        format!("a sampler in this process, by its processor time, {HERTZ} Hz")
    }

    /// Ends it: the stacks, folded.
    pub(super) fn folded(self) -> Result<String> {
        let Some(guard) = &self.guard else { return Ok(String::new()) };
        let report = guard.report().build().doing("the sampler of this process")?;
        let mut counted = Counted::default();
        for (frames, count) in &report.data {
            if let Some(stack) = stack(frames) {
                counted.add(stack, count.unsigned_abs() as u64);
            }
        }
        Ok(counted.folded())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let before = temporaries();
        drop(self.guard.take());
        remove_new(&before);
    }
}

/// Computes, and nothing else, until then.
#[inline(never)]
fn spin(until: Instant) {
    while Instant::now() < until {
        (0..1000_u32).for_each(|n| _ = black_box(n));
    }
}

/// A stack of the load, from the thread down, without what was inlined: as perf's are.
fn stack(frames: &Frames) -> Option<String> {
    let thread = frames.thread_name_or_id();
    let functions = frames.frames.iter().rev().filter_map(|frame| {
        let symbol = frame.last()?;
        named(&with_module(&symbol.name(), symbol.filename.as_deref()))
    });
    let functions: Vec<String> = functions.collect();
    let is_spin = |name: &String| name.ends_with("::inside::spin");
    if thread == OBSERVER || functions.is_empty() || functions.iter().any(is_spin) {
        return None;
    }
    let functions = functions.iter().map(String::as_str);
    let words: Vec<&str> = std::iter::once(group(&thread)).chain(functions).collect();
    Some(words.join(";"))
}

/// The name of a function of this workspace with the module that its source stands in, as perf has
/// it: the line tables, from which the names are, have no modules.
fn with_module(name: &str, source: Option<&Path>) -> String {
    let own = name.split('<').next().unwrap_or_default();
    match source.and_then(module).filter(|_| !own.is_empty() && !own.contains("::")) {
        Some(module) => format!("{module}::{name}"),
        None => name.to_owned(),
    }
}

/// The module of a source below `crates/NAME/src`.
fn module(source: &Path) -> Option<String> {
    let source = source.with_extension("");
    let mut words = source.iter().map(|word| word.to_string_lossy().replace('-', "_"));
    words.find(|word| word == "crates")?;
    let package = words.next()?;
    words.next().filter(|word| word == "src")?;
    let modules = words.filter(|word| !["lib", "main", "mod"].contains(&&**word));
    Some(std::iter::once(package).chain(modules).collect::<Vec<_>>().join("::"))
}

/// The files that `pprof` has open in the folder of temporary ones, for what does not fit into its
/// memory. It keeps one for the next time, which would outlive the process.
fn temporaries() -> BTreeSet<PathBuf> {
    let folder = tempfile::env::temp_dir();
    let is_one = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.parent() == Some(folder.as_path()) && name.starts_with(".tmp")
    };
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    open.filter(|path| is_one(path)).collect()
}

/// Takes the names of those that were not there before.
fn remove_new(before: &BTreeSet<PathBuf>) {
    for path in temporaries().difference(before) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a flame graph of functions that are all called `sync`.
    #[test]
    fn functions_of_the_workspace_have_their_modules() {
        let name = |name, source| with_module(name, Some(Path::new(source)));
        assert_eq!(name("sync", "/a/crates/uext4/src/file/sync.rs"), "uext4::file::sync::sync");
        assert_eq!(
            name("open<T>", "crates/uext4-lab/src/bench/mod.rs"),
            "uext4_lab::bench::open<T>"
        );
        assert_eq!(name("std::rt::begin", "/rustc/library/std/src/rt.rs"), "std::rt::begin");
        assert_eq!(name("new", "/registry/src/pprof-0.15/src/lib.rs"), "new");
        assert_eq!(
            name("<uext4::Volume as Drop>::drop", "crates/uext4/src/lib.rs"),
            "<uext4::Volume as Drop>::drop"
        );
        assert_eq!(with_module("read", None), "read");
    }
}
