//! The lives of one volume, one after the other.
//!
//! # What
//! A life: open, make the callers' directories, start callers and neighbours, end as planned. What
//! earlier lives left is part of the volume and must stay as it is, until it is removed.

use super::around::{Around, Moments, Progress};
use super::caller::LifeCaller;
use super::life_judge::Moment;
use super::life_judge::{self, Remains};
use super::medium::Medium;
use super::part::Part;
use super::plan::{End, LifePlan, SeedPlan};
use super::racer::{ANCHOR, PLAIN, SHARED_FILES, SHARED_FILES_NAME};
use super::tenant::Meeting;
use super::{neighbour, tenant};
use crate::category::Category;
use crate::model::{Entry, History, Mark, Rules, ThreadHistory};
use crate::operation::{Operation, SHARED, SHARED_NAME, own_directory, own_name};
use crate::run;
use crate::target::Clock;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use uext4::config::DataMode;
use uext4::{Error, ErrorKind, FileKind, NewInode, Owner, Volume};
use uext4_device::{AddressableDevice, MemoryDevice, SharedDevice};
use uext4_schedule::thread;

/// All lives of a plan.
pub(super) fn run(plan: &Arc<SeedPlan>, progress: &Progress) -> Result<(), Vec<String>> {
    let one = |fault: String| vec![fault];
    let mut image = plan.make().map_err(one)?;
    let mut remains = Remains::default();
    for number in 0..plan.lives.len() {
        let what = |faults: Vec<String>| -> Vec<String> {
            faults.into_iter().map(|fault| format!("life {number}: {fault}")).collect()
        };
        let ended = live(plan, number, &image, &mut remains, progress).map_err(what)?;
        let Some(ended) = ended else { break };
        let next = life_judge::judge(plan, number, ended, &mut remains, progress).map_err(what)?;
        progress.change(|report| report.lives += 1);
        match next {
            Some(next) => image = next,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// How a life has ended.
pub(super) struct Ended {
    pub(super) image: MemoryDevice,
    pub(super) history: History,
    pub(super) marks: Vec<Mark>,
    /// The device failed while it lived: the superblock may say so.
    pub(super) has_failed: bool,
    /// Moments at which it might have ended.
    pub(super) moments: Vec<Moment>,
}

fn live(
    plan: &Arc<SeedPlan>,
    number: usize,
    image: &MemoryDevice,
    remains: &mut Remains,
    progress: &Progress,
) -> Result<Option<Ended>, Vec<String>> {
    let life = plan.lives[number].clone();
    let discards = plan.parts.has(Part::Trim);
    let seed = plan.case.seed ^ (number as u64) << 32 ^ 0x6d65;
    let medium = Medium::new(image, seed, plan.speed, discards);
    // A quarter of the seeds.
    let medium = medium.far(plan.case.seed % 4 == 3);
    let medium = Arc::new(medium.verbose(plan.case.verbose));
    let volume = open(medium.clone(), &life).map_err(|error| vec![format!("open: {error}")])?;
    let threads: Vec<u32> = (0..plan.threads).map(|t| number as u32 * 8 + t + 1).collect();
    match set_up(plan, number, &volume, &threads, remains) {
        Ok(()) => {}
        // Earlier lives have filled it: this run has no more.
        Err(error) if *error.kind() == ErrorKind::NoSpace => return Ok(None),
        Err(error) => return Err(vec![format!("set up: {error}")]),
    }
    let around = Arc::new(Around {
        plan: Arc::clone(plan),
        life,
        number,
        threads: threads.clone(),
        volume,
        medium,
        clock: Clock::default(),
        progress: progress.clone(),
        closing: AtomicBool::new(false),
        enough: AtomicBool::new(false),
        marks: AtomicU32::new(0),
        syncs: AtomicU32::new(0),
        meeting: Meeting::of(threads.len()),
        moments: Mutex::new(Moments {
            rng: StdRng::seed_from_u64(seed ^ 0x6d6f),
            taken: Vec::new(),
        }),
    });
    if let Some((failing, for_space)) = around.life.failing {
        around.medium.fail_writes(failing, for_space);
    }
    if let End::Cut { request } = around.life.end {
        around.medium.cut_at(request);
    }
    let callers: Vec<_> = threads
        .iter()
        .map(|&number| {
            let caller = LifeCaller::new(&around, number);
            thread::spawn(&format!("caller {number}"), move || caller.run())
        })
        .collect();
    let neighbours = neighbour::start(&around);
    if let End::CloseBeside { after } | End::ReadOnlyBeside { after } = around.life.end {
        thread::sleep(after);
        around.closing.store(true, Ordering::Relaxed);
        // A second caller waits for the end, and says the same.
        let second = thread::spawn("second closer", {
            let around = Arc::clone(&around);
            move || close_once(&around).is_ok()
        });
        let closed = close(&around);
        let is_closed = second.join().expect("its end");
        if is_closed != matches!(closed, Ok(true)) {
            around.progress.fault(format!("close: two closers: {is_closed}, {closed:?}"));
        }
        return end(around, callers, neighbours, Some(closed)).map(Some);
    }
    end(around, callers, neighbours, None).map(Some)
}

type Callers = Vec<thread::JoinHandle<(ThreadHistory, Result<(), String>)>>;

/// Waits for the threads of a life, and takes what they leave.
fn end(
    around: Arc<Around>,
    callers: Callers,
    neighbours: Vec<thread::JoinHandle<()>>,
    closed: Option<Result<bool, String>>,
) -> Result<Ended, Vec<String>> {
    let mut faults = Vec::new();
    let mut histories = Vec::new();
    for caller in callers {
        let (history, result) = caller.join().expect("its end");
        faults.extend(result.err());
        histories.push(history);
    }
    around.enough.store(true, Ordering::Relaxed);
    neighbours.into_iter().for_each(|neighbour| neighbour.join().expect("its end"));
    let is_closed = match (closed, around.life.end) {
        (Some(closed), _) => closed,
        (None, End::Close) => {
            around.medium.mend();
            around.closing.store(true, Ordering::Relaxed);
            close(&around)
        }
        (None, _) => {
            // Half of them see how the volume ends without power.
            around.medium.cut_now();
            if around.plan.case.seed.is_multiple_of(2) {
                around.volume.clone().abandon();
            } else {
                let _ = around.volume.clone().close();
            }
            Ok(false)
        }
    };
    let is_closed = is_closed.unwrap_or_else(|fault| {
        faults.push(fault);
        false
    });
    faults.extend(around.progress.report().faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    if around.medium.is_off() && !is_closed {
        let stage = around.medium.stage().unwrap_or_else(|| "at rest".to_owned());
        let stage = if stage.is_empty() { "running" } else { &stage };
        around.progress.cover(|coverage| coverage.cut(stage));
        around.progress.change(|report| report.cuts += 1);
    }
    let mut history = History { threads: histories, rules: rules(&around) };
    let moments = std::mem::take(&mut around.moments.lock().taken);
    let has_failed = around.medium.has_failed();
    let was_told = has_failed && history.threads.iter().any(was_told);
    let marks = if is_closed && !was_told {
        vec![all_is_durable(&mut history, &around.clock)]
    } else {
        history.syncs_before(u64::MAX)
    };
    let has_failed = has_failed || around.medium.has_troubled();
    let image = around.medium.after_power_loss();
    Ok(Ended { image, history, marks, has_failed, moments })
}

/// The last operation of the thread failed.
fn was_told(history: &ThreadHistory) -> bool {
    history.entries.last().is_some_and(|entry| entry.ended.is_none())
}

/// Everything that was acknowledged is there after a close.
fn all_is_durable(history: &mut History, clock: &Clock) -> Mark {
    let thread = &mut history.threads[0];
    let (started, ended) = (clock.tick(), Some(clock.tick()));
    // What failed at the end may have happened or not, and comes last.
    let index = thread.entries.iter().take_while(|entry| entry.ended.is_some()).count();
    thread.entries.insert(index, Entry { operation: Operation::SyncVolume, started, ended });
    Mark { thread: thread.thread, index }
}

/// Closes the volume; whether it says that all is well. Nothing may be done on it afterwards.
fn close(around: &Around) -> Result<bool, String> {
    match close_once(around) {
        Ok(()) => {
            let root = around.volume.root();
            let late = root.and_then(|root| around.volume.create(&root, b"late", &directory(0)));
            match late {
                Ok(_) => Err("a closed volume took a name".into()),
                Err(_) => Ok(true),
            }
        }
        Err(_) if around.is_over() => Ok(false),
        Err(error) => Err(format!("close: {error}")),
    }
}

fn close_once(around: &Around) -> Result<(), Error> {
    match around.life.end {
        End::ReadOnlyBeside { .. } => around.volume.remount_read_only(),
        _ => around.volume.clone().close(),
    }
}

pub(super) fn open(medium: Arc<Medium>, life: &LifePlan) -> Result<Volume, Error> {
    use uext4::config::DaxMode;
    let device: SharedDevice = match life.options.dax {
        DaxMode::Always => Arc::new(AddressableDevice::new(medium)),
        DaxMode::Inode | DaxMode::Never => medium,
    };
    Volume::open(device, life.options.clone())
}

fn directory(owner: u32) -> NewInode {
    let owner = Owner { uid: owner, gid: 0 };
    NewInode { kind: FileKind::Directory, mode: 0o777, owner, rdev: Default::default() }
}

/// The directories of the callers; what earlier lives left goes, or a part of it.
fn set_up(
    plan: &SeedPlan,
    number: usize,
    volume: &Volume,
    threads: &[u32],
    remains: &mut Remains,
) -> Result<(), Error> {
    let life = &plan.lives[number];
    let root = volume.root()?;
    tenant::move_out(volume)?;
    if plan.parts.has(Part::Remove) {
        remains.remove(volume, plan.case.seed)?;
    }
    for &thread in threads {
        volume.create(&root, &own_name(thread), &directory(own_directory(thread)))?;
    }
    for (name, id) in [(SHARED_NAME, SHARED), (SHARED_FILES_NAME, SHARED_FILES)] {
        match volume.create(&root, name, &directory(id)) {
            Err(error) if *error.kind() != ErrorKind::Exists => return Err(error),
            _ => {}
        }
    }
    let files = volume.lookup(&root, SHARED_FILES_NAME)?;
    let plain = NewInode { kind: FileKind::Regular, ..directory(0) };
    for (name, new) in [(ANCHOR, directory(0)), (PLAIN, plain)] {
        match volume.create(&files, name, &new) {
            Err(error) if *error.kind() != ErrorKind::Exists => return Err(error),
            _ => {}
        }
    }
    if let Some(tenancy) = &life.tenancy {
        tenant::move_in(volume, tenancy, number, threads.len() as u64)?;
    } else if life.category == Category::NoSpace {
        match run::fill(volume, 60) {
            Err(error) if !matches!(error.kind(), ErrorKind::Exists | ErrorKind::NoSpace) => {
                return Err(error);
            }
            _ => {}
        }
    }
    volume.sync()
}

fn rules(around: &Around) -> Rules {
    let options = &around.life.options;
    let late = options.journal_async_commit;
    let block_size = u64::from(around.volume.layout().block_size);
    Rules {
        renames_carry_data: options.auto_da_alloc && !late,
        sizes_were_had: true,
        data_may_be_late: late,
        whole_writes: (options.data_mode == DataMode::Journal).then_some(4 * block_size),
    }
}
