//! `uext4 lab fio`: job files of the user's own.
//!
//! Fault model: figures of a job that failed or never ran; a job that writes outside the file
//! system under test; a rejected job that leaves an image, a mount or more than one line. Not
//! covered: the figures themselves, which are fio's; the library as a target (`cargo xtask fio
//! --test`).

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Scratch, UEXT4};

const JOB: &str = "[global]\nrw=randwrite\nbs=4k\nsize=1m\ndirectory=/nowhere\n\
                   [one]\nnumjobs=2\nfsync=4\n[two]\nstonewall\nrw=read\n";

fn job(scratch: &Scratch, text: &str) -> PathBuf {
    let path = scratch.path("job.fio");
    std::fs::write(&path, text).expect("a file");
    path
}

fn lab(scratch: &Scratch, job: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(UEXT4);
    command.args(["lab", "fio", "--rounds", "1"]);
    if !words.contains(&"--image-size") {
        command.args(["--image-size", "64M"]);
    }
    command
        .arg("--folder")
        .arg(scratch.path("images"))
        .arg(job)
        .args(words)
        .output()
        .expect("uext4 runs")
}

/// Why jobs cannot run here, told.
fn obstacle(needs_mount: bool) -> Option<()> {
    let fio = (!common::has("fio")).then_some("fio is not installed");
    let why = fio.or_else(|| common::no_mount().filter(|_| needs_mount))?;
    println!("skipped: {why}");
    Some(())
}

#[test]
fn a_job_runs_on_a_mount_and_leaves_nothing() {
    if obstacle(true).is_some() {
        return;
    }
    let scratch = Scratch::new();
    let images = scratch.path("images");
    std::fs::create_dir(&images).expect("a folder");
    let output = lab(&scratch, &job(&scratch, JOB), &["--targets", "uext4-mount", "--json"]);
    let (text, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    for metric in ["one.write.iops", "one.sync_latency_p99_us", "two.read.bytes_per_s"] {
        let line = format!(r#""metric":"{metric}","value":"#);
        assert!(text.contains(r#""experiment":"fio:job""#) && text.contains(&line), "{text}");
    }
    assert!(errors.contains("directory=/nowhere becomes"), "{errors}");
    let left = std::fs::read_dir(&images).expect("the folder").count();
    assert_eq!(left, 0, "images are left");
}

#[test]
fn what_fio_rejects_or_would_write_elsewhere_is_one_line() {
    if obstacle(false).is_some() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("images")).expect("a folder");
    let elsewhere = scratch.path("elsewhere").display().to_string();
    let engine = scratch.path("a:b.so");
    std::fs::write(&engine, "").expect("a file");
    let engine = engine.display().to_string();
    let outside = format!("[x]\nrw=write\nsize=4k\nfilename={elsewhere}\n");
    for (text_of_job, words, line) in [
        ("[x]\nrw=sideways\n", &[][..], "rw=sideways"),
        ("[x]\nrw=write\nsurprise=1\n", &[], "surprise=1"),
        ("rw=write\n", &[], "it has no job"),
        ("[global]\nrw=write\n", &[], "it has no job"),
        (&outside, &[], "leaves the file system under test"),
        (JOB, &["--targets", "raw"], "fio needs a file system"),
        (JOB, &["--targets", "ext5"], "no such target"),
        (JOB, &["--image-size", "4"], "at least 16M"),
        (JOB, &["--variant", "journal_join=sideways"], "journal_join"),
        (JOB, &["--engine", "/nowhere.so"], "the engine for fio"),
        (JOB, &["--engine", &engine], "fio cannot take a path"),
    ] {
        let mut words = words.to_vec();
        if !words.contains(&"--targets") {
            words.extend(["--targets", "uext4-mount"]);
        }
        let output = lab(&scratch, &job(&scratch, text_of_job), &words);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text_of_job}: {errors}");
        assert!(errors.contains(line) && errors.lines().count() == 1, "{text_of_job}: {errors}");
        assert!(output.stdout.is_empty(), "{text_of_job}");
    }
    assert!(!Path::new(&elsewhere).exists());
    let output = lab(&scratch, Path::new("/nowhere.fio"), &[]);
    assert_eq!(output.status.code(), Some(2));
}

/// Fault model: evidence that is not whole, or that another job goes on with.
#[test]
fn a_job_keeps_its_evidence() {
    if obstacle(true).is_some() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("images")).expect("a folder");
    let out = scratch.path("out").display().to_string();
    let words = ["--targets", "uext4-mount", "--out", &out];
    let output = lab(&scratch, &job(&scratch, JOB), &words);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let read = |name: &str| std::fs::read_to_string(Path::new(&out).join(name)).expect(name);
    for name in ["env.json", "plan.json", "events.jsonl", "summary.md", "report.html"] {
        assert!(!read(name).is_empty(), "{name}");
    }
    // The target and the target again.
    assert_eq!(read("runs.jsonl").lines().count(), 2);
    assert!(read("raw.jsonl").contains("one.write.iops") && read("summary.md").contains("fio:job"));
    let fio = read("tools/fio_job-one-1-0-uext4-mount-default-r1/fio.json");
    assert!(fio.contains("\"jobs\""), "{fio}");
    // All is done; with another job it is another run.
    let again = [&words[..], &["--resume"]].concat();
    let output = lab(&scratch, &job(&scratch, JOB), &again);
    assert!(text(&output.stderr).contains("of which 2 are done"), "{}", text(&output.stderr));
    let output = lab(&scratch, &job(&scratch, &JOB.replace("bs=4k", "bs=8k")), &again);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("another plan"), "{}", text(&output.stderr));
}

/// Fault model: a job that never reaches the file system, told as a very fast one.
#[test]
fn a_job_that_wrote_nothing_gives_no_figure() {
    if obstacle(true).is_some() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("images")).expect("a folder");
    let run = |text_of_job: &str| {
        let words = ["--targets", "uext4-mount", "--json"];
        let output = lab(&scratch, &job(&scratch, text_of_job), &words);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, figures, errors) = run("[x]\nioengine=null\nrw=write\nbs=4k\nsize=1m\n");
    assert_eq!((status, &*figures), (Some(1), ""), "{errors}");
    assert!(errors.contains("as empty as before"), "{errors}");
    // Files that are gone in the end were there.
    let (status, _, errors) = run("[x]\nrw=write\nbs=4k\nsize=1m\nunlink=1\n");
    assert_eq!(status, Some(0), "{errors}");
}

/// Fault model: a job that fails on a full file system, told as a figure.
#[test]
fn a_job_that_fails_gives_no_figure() {
    if obstacle(true).is_some() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("images")).expect("a folder");
    let large = JOB.replace("size=1m", "size=1g");
    let output = lab(&scratch, &job(&scratch, &large), &["--targets", "uext4-mount", "--json"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("gives no figure") && output.stdout.is_empty(), "{errors}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
