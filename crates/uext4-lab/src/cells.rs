//! The plan, cell by cell: what is going to run, how long that takes, and how much room.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::load::{Form, Load};
use crate::mkfs_option::MkfsOptions;
use crate::plan::Plan;
use crate::stage::{self, Store};
use crate::storm;
use crate::target::Target;

/// Memory that is left to everything else when images lie in it.
const MEMORY_LEFT: u64 = 512 << 20;
/// What any run takes beside its load, in seconds: images, mounts, checks.
const RUN_SECONDS: f64 = 0.25;

/// A candidate in a setting, in all rounds.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The load.
    pub load: &'static Load,
    /// Its form, where there are several.
    pub form: Option<Form>,
    /// Processes or threads.
    pub threads: u32,
    /// Bytes of one read or write; 0 where programs choose.
    pub bs: u32,
    /// What it runs on.
    pub target: Target,
    /// `default`, or what is different.
    pub variant: String,
    /// Expected time of all its rounds, in seconds.
    pub seconds: f64,
    /// Its rounds.
    pub rounds: u32,
    /// Space for images that it takes at most, in bytes.
    pub bytes: u64,
}

impl Plan {
    /// What is to be run, in order. Targets that this machine cannot run have none.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut targets = self.targets.clone();
        targets.retain(|target| target.obstacle(self).is_none());
        self.loads.iter().flat_map(|load| self.of(load).cells_of(load, &targets)).collect()
    }

    fn cells_of(&self, load: &'static Load, targets: &[Target]) -> Vec<Cell> {
        let takers: Vec<_> = targets.iter().copied().filter(|t| t.takes(load)).collect();
        let candidates = self.candidates_of(load, &takers);
        let journals: &[u32] =
            if load.has_journals { &self.journals } else { &[storm::JOURNAL_MIB] };
        let mut cells = Vec::new();
        for form in self.forms_of(load) {
            for threads in self.threads_of(load) {
                for (bs, journal) in self
                    .blocks_of(load)
                    .into_iter()
                    .flat_map(|bs| journals.iter().map(move |journal| (bs, *journal)))
                {
                    let count = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
                    let bytes = (load.room)(self, form, threads, count);
                    let runs = candidates.iter().filter(|c| {
                        c.target.takes_threads(threads)
                            && storm::runs_with(c.target, journal, journals)
                    });
                    cells.extend(runs.map(|candidate| Cell {
                        load,
                        form,
                        threads,
                        bs,
                        target: candidate.target,
                        variant: storm::variant_name(&candidate.variant, journal),
                        seconds: self.run_seconds(load) * f64::from(self.rounds),
                        rounds: self.rounds,
                        bytes,
                    }));
                }
            }
        }
        cells
    }

    /// Why there is no cell: a reason for each target.
    #[must_use]
    pub fn why_nothing(&self) -> String {
        let reason = |target: &Target| {
            let takers: Vec<_> = self.loads.iter().filter(|load| target.takes(load)).collect();
            let left_out = || takers.iter().find_map(|load| load.left_out(self, *target));
            let why = match takers.is_empty() {
                true => "no load has it".to_owned(),
                false => target.obstacle(self).or_else(left_out)?,
            };
            Some(format!("{}: {why}", target.name()))
        };
        self.targets.iter().filter_map(reason).collect::<Vec<_>>().join("; ")
    }

    /// Expected time of a run.
    fn run_seconds(&self, load: &Load) -> f64 {
        let timed = load.time.timed * self.duration.as_secs_f64();
        timed + load.time.full_s * self.scale + RUN_SECONDS
    }

    /// The folder that holds images.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| self.store.default_folder().into())
    }

    /// Refuses a folder that images cannot be made in; nothing is touched.
    ///
    /// # Errors
    /// No such folder; one that this user cannot write, or whose path programs would change.
    pub fn require_folder(&self) -> Result<()> {
        let folder = stage::plain(&self.folder())?;
        let wrong = |why: &str| Err(Error::new(format!("{}: {why}", folder.display())));
        if !folder.is_dir() {
            return wrong("not a directory");
        }
        match access(&folder, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => Ok(()),
            Err(Errno::ACCESS) => wrong("this user can make no files there"),
            Err(error) => wrong(&error.to_string()),
        }
    }

    /// Refuses what does not fit.
    ///
    /// # Errors
    /// No such folder; too little room, or memory.
    pub fn require_room(&self, cells: &[Cell]) -> Result<()> {
        let folder = self.folder();
        let free = stage::room(&folder)
            .map_err(|error| Error::new(format!("{}: {error}", folder.display())))?;
        let Some(largest) = cells.iter().max_by_key(|cell| cell.bytes) else { return Ok(()) };
        let mib = |bytes: u64| bytes >> 20;
        let refuse = |place: &str, has: u64, need: u64| {
            let id = largest.load.id;
            let (has, need) = (mib(has), mib(need));
            let advice = self.advice();
            let text = format!("{id} needs {need} MiB in {place}, which has {has}: use {advice}");
            Err(Error::new(text))
        };
        if free < largest.bytes {
            return refuse(&folder.display().to_string(), free, largest.bytes);
        }
        let memory = available_memory().filter(|_| self.store != Store::Disk);
        match memory {
            Some(free) if free < largest.bytes + MEMORY_LEFT => {
                refuse("memory", free, largest.bytes + MEMORY_LEFT)
            }
            _ => Ok(()),
        }
    }

    /// The plan for `plan.json`. The same words give the same plan.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let names = |names: Vec<&'static str>| Value::from(names);
        let cell = |cell: Cell| {
            json!({
                "experiment": cell.load.id, "form": cell.form.map(Form::name),
                "threads": cell.threads, "bs": cell.bs, "target": cell.target.name(),
                "variant": cell.variant, "rounds": cell.rounds,
                "seconds": (cell.seconds * 10.0).round() / 10.0,
                "bytes": cell.bytes,
            })
        };
        // What `--quick` has changed for each.
        let size = |load: &'static Load| {
            let plan = self.of(load);
            // A job file has its own time, and with a number of writes E0 ends by them.
            let is_counted = load.has_journals && plan.operations.is_some();
            let is_timed = load.time.timed > 0.0 && plan.job.is_none() && !is_counted;
            json!({
                "experiment": load.id, "scale": plan.scale,
                "seconds": is_timed.then_some(plan.duration.as_secs_f64()),
            })
        };
        json!({
            "loads": names(self.loads.iter().map(|load| load.id).collect()),
            "sizes": self.loads.iter().copied().map(size).collect::<Vec<_>>(),
            "targets": names(self.targets.iter().map(|target| target.name()).collect()),
            "variants": self.variants,
            "kernel_variants": self.kernel_variants,
            "mkfs": self.mkfs.iter().map(MkfsOptions::name).collect::<Vec<_>>(),
            "combine": self.combine,
            "rounds": self.rounds,
            "options": self.options_json(),
            "cells": self.cells().into_iter().map(cell).collect::<Vec<_>>(),
        })
    }

    /// The options that figures depend on.
    pub(crate) fn options_json(&self) -> Value {
        json!({
            "store": self.store.name(),
            "path": self.route.name(),
            "flush_us": self.store.flush().map(|flush| flush.as_micros() as u64),
            "folder": self.folder,
            "device": self.device(),
            "dir": self.dir,
            "scale": self.scale,
            "seconds": self.duration.as_secs_f64(),
            "threads": self.threads,
            "forms": self.forms.iter().map(|form| form.name()).collect::<Vec<_>>(),
            "bs": self.blocks,
            "operations": self.operations,
            "journals": self.journals,
            "aged": self.aged,
            "churn": self.ageing.churn,
            "seed": self.ageing.seed,
            "aa": self.aa,
            "quick": self.quick,
            "job": self.job.as_ref().map(|job| job.to_json()),
        })
    }
}

/// Memory that programs can have without swapping, in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::jobs::FioJob;

    #[test]
    fn every_setting_of_every_candidate_is_a_cell() {
        let plan = Plan {
            loads: ["E0", "E4", "M2"].into_iter().map(|id| Load::find(id).unwrap()).collect(),
            targets: vec![Target::Uext4, Target::Raw],
            journals: vec![4, 128],
            aa: true,
            ..Plan::default()
        };
        let cells = plan.cells();
        let count = |id| cells.iter().filter(|cell| cell.load.id == id).count();
        // uext4, its A/A, raw; each with both journals. E4: both completions, 2 forms of 4 sizes.
        assert_eq!((count("E0"), count("E4"), count("M2")), (6, 4 * 8, 2));
        assert!(cells.iter().any(|cell| cell.variant == "aa,journal=4"));
        assert!(cells.iter().all(|cell| cell.seconds > 0.0 && cell.bytes > 0), "{cells:?}");
        assert_eq!(plan.to_json(), plan.clone().to_json());
    }

    /// Fault model: of a quick run nobody can tell how small its loads were.
    #[test]
    fn the_size_of_each_load_is_told() {
        let loads = ["E0", "M1"].map(|id| Load::find(id).unwrap());
        let sizes = |quick| {
            let loads = loads.to_vec();
            let plan = Plan { loads, quick, scale: 0.5, ..Plan::default() };
            plan.to_json()["sizes"].clone()
        };
        let size = |id, scale, seconds| {
            let seconds: Option<f64> = seconds;
            json!({"experiment": id, "scale": scale, "seconds": seconds})
        };
        assert_eq!(sizes(false), json!([size("E0", 0.5, Some(10.0)), size("M1", 0.5, None)]));
        let of = |at: usize, is_timed: bool| {
            let quick = loads[at].quick;
            size(loads[at].id, quick.scale, is_timed.then_some(quick.seconds))
        };
        assert_eq!(sizes(true), json!([of(0, true), of(1, false)]));
        let counted = Plan { loads: loads.to_vec(), operations: Some(7), ..Plan::default() };
        assert_eq!(counted.to_json()["sizes"][0], size("E0", 1.0, None));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.fio");
        std::fs::write(&path, "[mine]\nrw=write\nsize=1M\n").unwrap();
        // A machine may be without fio.
        let Ok(job) = FioJob::read(&path, None, 1 << 20) else { return };
        let job = Plan { loads: vec![job.load()], job: Some(Arc::new(job)), ..Plan::default() };
        assert_eq!(job.to_json()["sizes"], json!([size("fio:mine", 1.0, None)]));
    }

    #[test]
    fn a_directory_runs_once_whatever_journals_images_have() {
        let plan = Plan {
            loads: ["E0", "E3"].into_iter().map(|id| Load::find(id).unwrap()).collect(),
            targets: vec![Target::Uext4, Target::Dir],
            dir: Some("/".into()),
            journals: vec![4, 1024],
            ..Plan::default()
        };
        let of = |target, id| {
            let all = plan.cells().into_iter().filter(|c| c.target == target && c.load.id == id);
            all.map(|cell| cell.variant).collect::<Vec<_>>()
        };
        assert_eq!(of(Target::Uext4, "E0"), ["journal=4", "journal=1024"]);
        assert_eq!(of(Target::Dir, "E0"), ["journal=4"]);
        assert_eq!(of(Target::Dir, "E3"), ["default"]);
    }

    /// Fault model: a disk that is full of aged images after an hour.
    #[test]
    fn each_candidate_takes_room_for_what_it_has_aged() {
        let bytes = |variants: usize, aged| {
            let plan = Plan {
                loads: vec![Load::find("E1b").unwrap()],
                targets: vec![Target::Uext4],
                variants: (1..=variants).map(|n| format!("commit={n}")).collect(),
                aged,
                ..Plan::default()
            };
            plan.cells()[0].bytes
        };
        let (one, two, ten) = (bytes(0, true), bytes(1, true), bytes(9, true));
        assert!(two > one && ten - one == 9 * (two - one), "{one} {two} {ten}");
        assert_eq!(bytes(9, false), bytes(0, false));
    }

    /// Fault model: memory that is full of images of other kinds in the middle of a run.
    #[test]
    fn each_kind_of_file_system_takes_room() {
        let bytes = |id: &str, values: &[&str]| {
            let made = values.iter().map(|value| MkfsOptions::untried('b', value));
            let plan = Plan {
                loads: vec![Load::find(id).unwrap()],
                targets: vec![Target::Uext4],
                mkfs: made.collect(),
                ..Plan::default()
            };
            plan.cells()[0].bytes
        };
        for id in ["E0", "E1a", "E1b", "E3", "S1", "M2", "M6"] {
            let none = bytes(id, &[]);
            let (one, two) = (bytes(id, &["1024"]), bytes(id, &["1024", "2048"]));
            assert!(one > none && two - one == one - none, "{id}: {none} {one} {two}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let plan = Plan {
            loads: vec![Load::find("M1").unwrap()],
            targets: vec![Target::Uext4],
            store: Store::Disk,
            ..Plan::default()
        };
        let mut cells = plan.cells();
        cells[0].bytes = u64::MAX / 2;
        let error = plan.require_room(&cells).unwrap_err().to_string();
        assert!(error.starts_with("M1 needs ") && error.ends_with("use --scale"), "{error}");
    }
}
