//! The threads of a run: those that make the load, those that serve it, those of the kernel.
//!
//! What: `/proc` names them. Where programs make the load, its threads are those of the children of
//! this process that are no daemon of a mount, and that no such daemon has started. Else they are
//! the threads of this process that are named so, and those that the thread that runs the load has
//! started without a name; or that one itself if there are none.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Threads of this process that look at the others.
pub(super) const OBSERVER: &str = "explain";
/// How the threads of a load in this process are named.
const LOAD: &str = "load-";

/// What a thread does in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Makes the load.
    Load,
    /// Serves it: the daemon of a mount, threads of the engine.
    Server,
    /// A thread of the kernel that works for the file system or its device.
    Kernel,
}

/// A thread.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) id: i32,
    pub(super) part: Part,
    /// Its name without a number.
    pub(super) name: String,
    folder: PathBuf,
}

impl Task {
    pub(super) fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }

    /// Whether it runs, or could; `None` where it has ended.
    pub(super) fn is_running(&self) -> Option<bool> {
        let stat = self.read("stat")?;
        // Its name may have any character, so what follows is found from the end.
        let (_, rest) = stat.rsplit_once(") ")?;
        match rest.chars().next()? {
            'R' => Some(true),
            // What nobody has waited for yet, and what is being removed.
            'Z' | 'X' => None,
            _ => Some(false),
        }
    }

    /// What the kernel shows of the functions that it is in.
    pub(super) fn stack(&self) -> Stack {
        match fs::read_to_string(self.folder.join("stack")) {
            Ok(text) if text.is_empty() => Stack::OnProcessor,
            Ok(text) => Stack::Functions(text),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Stack::Forbidden,
            Err(_) => Stack::Ended,
        }
    }

    /// Times that it went to sleep, and times that the processor was taken from it.
    pub(super) fn switches(&self) -> Option<[u64; 2]> {
        let status = self.read("status")?;
        let count = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        Some([count("voluntary_ctxt_switches:")?, count("nonvoluntary_ctxt_switches:")?])
    }
}

/// What `/proc` says of the functions of the kernel that a thread is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Its text.
    Functions(String),
    /// None are shown of a thread that has a processor: it was woken since it was seen asleep.
    OnProcessor,
    /// They are for root only.
    Forbidden,
    /// There is no such thread any more.
    Ended,
}

/// Whose threads are looked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// The thread that runs the load, or waits for those that do.
    pub(super) caller: i32,
    /// The threads that were there before the load.
    pub(super) before: BTreeSet<i32>,
    /// Whether programs may make the load.
    pub(super) has_programs: bool,
    /// The daemons of the mount, and of those below it.
    pub(super) daemons: Vec<i32>,
    /// Programs that look at the run.
    pub(super) observer: Option<i32>,
    /// The block device of the file system, as the kernel names it.
    pub(super) device: Option<String>,
}

/// The threads of a run, and its processes.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) tasks: Vec<Task>,
    pub(super) processes: BTreeSet<i32>,
}

impl Wanted {
    /// All threads as they are now.
    pub(super) fn find(&self) -> Found {
        let mut found = Found::default();
        let own = std::process::id().cast_signed();
        let processes = processes();
        let children = descendants(&[own], &processes);
        let servers = descendants(&self.daemons, &processes);
        for process in &processes {
            let id = process.id;
            if id == own {
                self.add_own(&mut found, id);
            } else if servers.contains(&id) || self.daemons.contains(&id) {
                add_all(&mut found, id, Part::Server);
            } else if self.has_programs && children.contains(&id) && Some(id) != self.observer {
                add_all(&mut found, id, Part::Load);
            } else if process.is_kernel && self.works_for_it(id, &process.name) {
                add_all(&mut found, id, Part::Kernel);
            }
        }
        if found.tasks.iter().all(|task| task.part != Part::Load) {
            // The load is this thread.
            found.tasks.iter_mut().filter(|task| task.id == self.caller).for_each(|task| {
                task.part = Part::Load;
            });
        } else {
            found.tasks.retain(|task| task.id != self.caller);
        }
        found
    }

    fn add_own(&self, found: &mut Found, process: i32) {
        add_all(found, process, Part::Server);
        found.tasks.retain(|task| task.name != OBSERVER);
        let caller = found.tasks.iter().find(|task| task.id == self.caller);
        let caller = caller.map(|task| task.name.clone());
        for task in &mut found.tasks {
            // A thread without a name has that of the one that started it.
            let is_unnamed = Some(&task.name) == caller.as_ref() && task.id != self.caller;
            let is_new = is_unnamed && !self.before.contains(&task.id);
            if task.part == Part::Server && (task.name.starts_with(LOAD) || is_new) {
                (task.part, task.name) = (Part::Load, "load".into());
            }
        }
    }

    /// Whether a thread of the kernel works for the file system now.
    fn works_for_it(&self, id: i32, name: &str) -> bool {
        let Some(device) = &self.device else { return false };
        if name.starts_with(&format!("jbd2/{device}-")) || name == device {
            return true;
        }
        if !name.starts_with("kworker/") {
            return false;
        }
        // The name that /proc gives has the queue whose work is done now.
        let comm = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        let queue = comm.trim_end().rsplit(['+', '-']).next().unwrap_or_default();
        ["loop", "ext4", "writeback", "flush", "dio"].iter().any(|known| queue.contains(known))
            || comm.contains(device.as_str())
            || comm.contains("ext4")
    }
}

struct Process {
    id: i32,
    parent: i32,
    name: String,
    is_kernel: bool,
}

/// The threads of this process.
pub(super) fn own_threads() -> BTreeSet<i32> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The kernel's own parent of its threads.
const KTHREADD: i32 = 2;

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: fs::DirEntry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(") ")?;
        let parent = rest.split(' ').nth(1)?.parse().ok()?;
        let name = head.split_once('(')?.1.to_owned();
        Some(Process { id, parent, name, is_kernel: parent == KTHREADD })
    };
    entries.filter_map(Result::ok).filter_map(process).collect()
}

/// Threads of the kernel that may work for any file system.
pub(super) fn workers() -> Vec<i32> {
    let is_worker = |process: &Process| {
        process.is_kernel && ["kworker/", "jbd2/"].iter().any(|name| process.name.starts_with(name))
    };
    processes().iter().filter(|process| is_worker(process)).map(|process| process.id).collect()
}

/// The children of these processes, and theirs.
fn descendants(of: &[i32], processes: &[Process]) -> BTreeSet<i32> {
    let mut found: BTreeSet<i32> = of.iter().copied().collect();
    loop {
        let before = found.len();
        let more = processes.iter().filter(|process| found.contains(&process.parent));
        let more: Vec<i32> = more.map(|process| process.id).collect();
        found.extend(more);
        if found.len() == before {
            return found.into_iter().filter(|id| !of.contains(id)).collect();
        }
    }
}

fn add_all(found: &mut Found, process: i32, part: Part) {
    found.processes.insert(process);
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for entry in entries.filter_map(Result::ok) {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let folder = entry.path();
        // It may end meanwhile.
        let Ok(name) = fs::read_to_string(folder.join("comm")) else { continue };
        let name = name.trim_end().to_owned();
        found.tasks.push(Task { id, part, name, folder });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::thread;

    /// Fault model: what a daemon starts is taken for a program of the load.
    #[test]
    fn what_a_daemon_starts_serves_and_what_has_ended_is_not_looked_at() {
        // It says when its own child is there.
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut daemon = shell.spawn().unwrap();
        let mut said = String::new();
        let stdout = daemon.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut said).unwrap();
        let below: i32 = said.trim().parse().unwrap();
        let caller = rustix::thread::gettid().as_raw_nonzero().get();
        let id = daemon.id().cast_signed();
        let found = |daemons| {
            let wanted = Wanted { caller, has_programs: true, daemons, ..Wanted::default() };
            wanted.find().tasks
        };
        let part =
            |tasks: &[Task], id: i32| tasks.iter().find(|task| task.id == id).map(|task| task.part);
        let tasks = found(vec![id]);
        assert_eq!([id, below].map(|id| part(&tasks, id)), [Some(Part::Server); 2]);
        let as_load = found(Vec::new());
        assert_eq!([id, below].map(|id| part(&as_load, id)), [Some(Part::Load); 2]);
        let pid = |id: i32| rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(pid(below), rustix::process::Signal::KILL).unwrap();
        daemon.kill().unwrap();
        // Nobody has waited for it yet.
        let ended = tasks.iter().find(|task| task.id == id).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ended.is_running().is_some() {
            assert!(std::time::Instant::now() < deadline, "it does not end");
            thread::yield_now();
        }
        daemon.wait().unwrap();
        assert_eq!((ended.is_running(), ended.stack()), (None, Stack::Ended));
        let own = Task { folder: PathBuf::from("/proc/thread-self"), ..ended.clone() };
        let stack = own.stack();
        assert!(matches!(stack, Stack::Functions(_) | Stack::Forbidden), "{stack:?}");
    }

    #[test]
    fn threads_of_a_load_are_told_from_others() {
        let (send, wait) = mpsc::channel::<()>();
        let (told, ready) = mpsc::channel();
        let thread = thread::Builder::new().name("load-7".into()).spawn(move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = wait.recv();
        });
        let id: i32 = ready.recv().unwrap();
        let caller = rustix::thread::gettid().as_raw_nonzero().get();
        let found = Wanted { caller, ..Wanted::default() }.find();
        let part = |id: i32| found.tasks.iter().find(|task| task.id == id).map(|task| task.part);
        assert_eq!((part(id), part(caller)), (Some(Part::Load), None));
        assert!(found.processes.contains(&std::process::id().cast_signed()));
        // Where no program makes the load, a child is none: it may clean up after the run.
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let child_id = child.id().cast_signed();
        let with = |has_programs| {
            let wanted = Wanted { caller, has_programs, ..Wanted::default() };
            wanted.find().tasks.iter().find(|task| task.id == child_id).map(|task| task.part)
        };
        assert_eq!((with(false), with(true)), (None, Some(Part::Load)));
        child.kill().and_then(|()| child.wait()).unwrap();
        // A thread without a name has that of its parent; one that was there before is no load.
        let (told, ready) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let unnamed = thread::spawn(move || {
            let name = fs::read_to_string(format!("/proc/self/task/{caller}/comm")).unwrap();
            fs::write("/proc/thread-self/comm", name.trim_end()).unwrap();
            told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = wait.recv();
        });
        let unnamed_id: i32 = ready.recv().unwrap();
        let part_of = |before: BTreeSet<i32>| {
            let found = Wanted { caller, before, ..Wanted::default() }.find();
            found.tasks.iter().find(|task| task.id == unnamed_id).map(|task| task.part)
        };
        assert_eq!(part_of(BTreeSet::new()), Some(Part::Load));
        assert_eq!(part_of(own_threads()), Some(Part::Server));
        drop(go_on);
        unnamed.join().unwrap();
        let task = found.tasks.iter().find(|task| task.id == id).unwrap();
        assert!(task.switches().is_some() && task.name == "load");
        drop(send);
        thread.unwrap().join().unwrap();
    }
}
