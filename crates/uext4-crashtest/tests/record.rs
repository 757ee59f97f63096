//! What the recorder sees of a program's system calls.
//!
//! Fault model: a call that is missing, twice, on another file or in another order than it took
//! effect; output out of its place among the calls; a reused inode number taken for the old file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uext4_crashtest::model::{Explorer, Guarantees, Tree};
use uext4_crashtest::run::{Plan, Program, Watch, run_program};
use uext4_crashtest::trace::{Call, FileId, Name};
use uext4_fuse::FuseOptions;

struct Quiet;

impl Watch for Quiet {}

/// One test at a time, where something can be mounted at all.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let missing = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err();
    if missing {
        eprintln!("skipped: no /dev/fuse");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn plan(setup: &str, run: &str) -> Plan {
    Plan {
        setup: Some(setup.to_owned()),
        run: run.to_owned(),
        check: "true".to_owned(),
        image_size: 64 << 20,
        guarantees: Guarantees::default(),
        fuse: FuseOptions::default(),
        states: None,
        time: None,
        seed: 1,
        limit: Duration::from_secs(60),
        jobs: 1,
        stop: Arc::default(),
    }
}

/// The calls in short: files by their order of appearance in the trace.
fn calls(program: &Program) -> Vec<String> {
    let mut letters = HashMap::from([(FileId::ROOT, "/".to_owned())]);
    let mut letter = |file: &FileId| {
        let next = char::from(b'a' + letters.len() as u8 - 1).to_string();
        letters.entry(*file).or_insert(next).clone()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let steps = program.recorded.trace.steps.iter();
    let mut line = |call: &Call| {
        let mut named = |name: &Name| format!("{}{}", letter(&name.parent), text(&name.name));
        match call {
            Call::Create { file, name, .. } => {
                let name = name.as_ref().map(&mut named).unwrap_or_default();
                format!("create {} {name}", letter(file))
            }
            Call::Link { file, name } => {
                let name = named(name);
                format!("link {} {name}", letter(file))
            }
            Call::Remove { file, name } => {
                let name = named(name);
                format!("remove {} {name}", letter(file))
            }
            Call::Rename { file, from, to, replaced, exchange } => {
                let (from, to) = (named(from), named(to));
                let how = if *exchange { "exchange" } else { "rename" };
                let replaced = replaced.as_ref().map(&mut letter).unwrap_or_default();
                format!("{how} {} {from} {to} {replaced}", letter(file)).trim_end().to_owned()
            }
            Call::Write { file, offset, data, direct } => {
                let how = if *direct { " direct" } else { "" };
                format!("write {} {offset}+{}{how}", letter(file), data.len())
            }
            Call::Truncate { file, before, size } => {
                format!("truncate {} {before} {size}", letter(file))
            }
            Call::Allocate { file, mode, offset, len } => {
                format!("allocate {} {mode} {offset}+{len}", letter(file))
            }
            Call::SetAttributes { file, change } => {
                format!("attributes {} {:o}", letter(file), change.mode.unwrap_or(0))
            }
            Call::SetXattr { file, name, value } => {
                format!("xattr {} {} {}", letter(file), text(name), value.is_some())
            }
            Call::Sync { file, data_only, range } => {
                let range = range.as_ref().map(|range| format!(" {}..{}", range.start, range.end));
                let verb = if *data_only { "fdatasync" } else { "fsync" };
                format!("{verb} {}{}", letter(file), range.unwrap_or_default())
            }
            Call::SyncAll => "sync".to_owned(),
            Call::Close { file } => format!("close {}", letter(file)),
            Call::Output(data) => format!("print {}", text(data)),
        }
    };
    steps.map(|step| line(&step.call)).collect()
}

/// Runs a script of Python after a setup of the shell.
fn recorded(setup: &str, script: &str) -> (Program, Vec<String>) {
    let run = format!("exec python3 -c '{script}'");
    let program = run_program(&plan(setup, &run), &Quiet).unwrap();
    // A release comes when the kernel likes.
    let calls = calls(&program).into_iter().filter(|call| !call.starts_with("close")).collect();
    (program, calls)
}

#[test]
fn calls_are_recorded_in_their_order() {
    let Some(_turn) = turn() else { return };
    let script = r#"
import os
f = os.open("new", os.O_CREAT | os.O_WRONLY)
os.write(f, b"12345"); os.fsync(f); os.write(1, b"one\n")
os.pwrite(f, b"x", 8192); os.fdatasync(f); os.ftruncate(f, 100)
d = os.open(".", os.O_RDONLY); os.fsync(d)
os.rename("new", "old"); os.link("old", "also"); os.unlink("old"); os.write(1, b"two\n")
s = os.open("s", os.O_CREAT | os.O_WRONLY | os.O_DSYNC, 0o600); os.write(s, b"sync")
os.fdatasync(s)
os.posix_fallocate(f, 0, 4096); os.setxattr("s", "user.a", b"v"); os.removexattr("s", "user.a")
os.utime("s", (1, 1)); os.chmod("s", 0o640); os.mkdir("d"); os.symlink("s", "d/l"); os.rmdir("e")
t = os.open("d", os.O_TMPFILE | os.O_RDWR); os.write(t, b"t")
os.link("/proc/self/fd/%d" % t, "d/t", src_dir_fd=d, follow_symlinks=True)
"#;
    let (program, calls) = recorded("mkdir e; echo 123 > old; echo 4 > keep", script);
    let expected = [
        "create a /new",
        "write a 0+5",
        "fsync a",
        "print one",
        "write a 8192+1",
        "fdatasync a",
        "truncate a 8193 100",
        "fsync /",
        "rename a /new /old b",
        "link a /also",
        "remove a /old",
        "print two",
        "create c /s",
        "write c 0+4",
        "fdatasync c 0..4",
        "fdatasync c",
        "allocate a 0 0+4096",
        "xattr c user.a true",
        "xattr c user.a false",
        "attributes c 640",
        "create d /d",
        "create e dl",
        "remove f /e",
        "create g",
        "write g 0+1",
        "link g dt",
    ];
    let expected: Vec<_> = expected.iter().map(|call| (*call).to_owned()).collect();
    let calls: Vec<_> = calls.iter().map(|call| call.trim_end().to_owned()).collect();
    assert_eq!(calls, expected);
    assert_eq!(program.recorded.trace.before.len(), 2, "old and e were there");
    assert!(!program.recorded.has_mapped_writes);
    assert!(program.recorded.remarks.iter().any(|remark| remark.starts_with("times were set")));
    assert!(program.recorded.processes.values().any(|name| name.starts_with("python3")));
    let steps = &program.recorded.trace.steps;
    assert!(steps.iter().all(|step| step.started <= step.returned));
}

#[test]
fn mappings_direct_writes_and_reused_numbers_are_what_they_are() {
    let Some(_turn) = turn() else { return };
    let script = r#"
import os, mmap
f = os.open("m", os.O_RDWR); m = mmap.mmap(f, 8192)
m[0:3] = b"abc"; m.flush(); os.write(1, b"flushed\n")
g = os.open("direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
a = mmap.mmap(-1, 4096); os.writev(g, [a]); os.write(1, b"direct\n")
os.close(os.open("m", os.O_WRONLY | os.O_TRUNC))
n = os.stat("gone").st_ino; os.unlink("gone")
for i in range(3): os.close(os.open("n%d" % i, os.O_CREAT | os.O_WRONLY)); os.unlink("n%d" % i)
os.copy_file_range(os.open("copied", os.O_RDONLY), os.open("copy", os.O_CREAT | os.O_WRONLY), 5)
"#;
    let setup = "truncate -s 8192 m; echo > gone; echo 1234 > copied";
    let (program, calls) = recorded(setup, script);
    let at = |what: &str| calls.iter().position(|call| call.starts_with(what));
    let (mapped, printed) = (at("write a 0+4096"), at("print flushed"));
    assert!(mapped.is_some() && mapped < printed, "{calls:?}");
    let direct = at("write b 0+4096 direct");
    assert!(direct.is_some() && direct < at("print direct"), "{calls:?}");
    assert!(calls.contains(&"truncate a 8192 0".to_owned()), "{calls:?}");
    let created = |name: &str| {
        let mut steps = program.recorded.trace.steps.iter();
        steps.find_map(|step| match &step.call {
            Call::Create { file, name: Some(new), .. } if new.name == name.as_bytes() => {
                Some(*file)
            }
            _ => None,
        })
    };
    assert!(program.recorded.has_mapped_writes);
    let files = [created("n0"), created("n1"), created("n2")];
    assert!(files[0] != files[1] && files[1] != files[2] && files[2].is_some());
    assert!(calls.iter().any(|call| call.starts_with("write") && call.ends_with("0+5")));
}

#[test]
fn a_file_made_after_standard_output_was_closed_is_another_file() {
    let Some(_turn) = turn() else { return };
    let script = r#"
import os
os.write(1, b"ok"); os.close(1)
for i in range(8):
    f = os.open("n%d" % i, os.O_CREAT | os.O_WRONLY); os.write(f, b"data"); os.close(f)
"#;
    let (_, calls) = recorded("true", script);
    let writes = calls.iter().filter(|call| call.ends_with(" 0+4")).count();
    assert_eq!(writes, 8, "{calls:?}");
}

#[test]
fn a_readers_close_is_recorded_of_changed_files_only() {
    let Some(_turn) = turn() else { return };
    let script = "exec 3> a; cat < a; exec 3>&-; cat b > /dev/null; sleep 0.3";
    let program = run_program(&plan("echo > a; echo > b", script), &Quiet).unwrap();
    let closes = calls(&program).iter().filter(|call| call.starts_with("close")).count();
    assert_eq!(closes, 2);
}

#[test]
fn a_command_that_fails_is_one_line_and_leaves_nothing() {
    let Some(_turn) = turn() else { return };
    let daemon = "setsid sh -c \"exec sleep 987654 > held\" & sleep 0.1; exit 3";
    let error = run_program(&plan("true", daemon), &Quiet).err().unwrap().to_string();
    assert_eq!(error, "run: exit status 3");
    let error = run_program(&plan("kill -9 $$", "true"), &Quiet).err().unwrap().to_string();
    assert_eq!(error, "setup: ended by signal 9");
    let limit = Duration::from_millis(200);
    let endless = Plan { limit, ..plan("true", "sleep 987654 & sleep 987654") };
    let error = run_program(&endless, &Quiet).err().unwrap().to_string();
    assert_eq!(error, "run: took too long and was killed");
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("uext4-crashtest."), "{mounts}");
    assert_eq!(processes(|line, _| line.starts_with(b"sleep\0987654")), 0);
}

/// Processes by their command line and /proc/PID/stat.
fn processes(wanted: impl Fn(&[u8], &str) -> bool) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        wanted(&line, &stat)
    });
    processes.count()
}

/// A daemon with a session, a directory, files and an environment of its own.
#[test]
fn daemons_end_with_the_command_however_they_hide() {
    let Some(_turn) = turn() else { return };
    let daemon = "setsid env -i sh -c \"cd / && exec sleep 987655\" <&- >&- 2>&- &";
    let waits = "while ! pgrep -f \"^sleep 987655\" > /dev/null; do sleep 0.01; done";
    run_program(&plan(&format!("{daemon}\n{waits}"), "true"), &Quiet).unwrap();
    assert_eq!(processes(|line, _| line.starts_with(b"sleep\0987655")), 0);
}

#[test]
fn what_ended_after_its_command_is_reaped() {
    let Some(_turn) = turn() else { return };
    let orphans = "for i in 1 2 3 4; do setsid -f true; done; sleep 0.1";
    run_program(&plan(orphans, orphans), &Quiet).unwrap();
    let own = format!(" Z {} ", std::process::id());
    assert_eq!(processes(|_, stat| stat.contains(&own)), 0);
}

/// The kernel writes a mapping back before msync(2) returns, so no state lacks it then.
#[test]
fn what_msync_has_written_is_in_every_state() {
    let Some(_turn) = turn() else { return };
    let script = r#"
import os, mmap
f = os.open("m", os.O_RDWR); m = mmap.mmap(f, 8192)
m[0:3] = b"one"; m.flush(); os.write(1, b"1")
m[4096:4099] = b"two"; os.fsync(f); os.write(1, b"2")
m[0:3] = b"end"
"#;
    let (program, _) = recorded("truncate -s 8192 m", script);
    let explorer =
        Explorer::new(&program.base, &program.recorded.trace, Guarantees::default()).unwrap();
    let mut last = std::collections::BTreeSet::new();
    for spec in explorer.states(1).take(300) {
        let tree = Tree::read(&explorer.image(&spec).unwrap()).unwrap();
        let (printed, file) = (explorer.acknowledged(&spec), tree.file("/m").unwrap());
        let is_two = &file[4096..4099] == b"two";
        match &printed[..] {
            b"" => {}
            b"1" => assert!(&file[..3] == b"one"),
            _ => assert!(is_two && (&file[..3] == b"one" || &file[..3] == b"end")),
        }
        last.insert((printed, file[..3].to_vec()));
    }
    // What nothing has synced may be there, and not.
    for content in [b"one", b"end"] {
        assert!(last.contains(&(b"12".to_vec(), content.to_vec())), "{last:?}");
    }
}
