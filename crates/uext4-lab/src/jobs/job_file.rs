//! A job file of fio(1): read, and written again for a target.
//!
//! What: the lab decides where files lie and, for the library, which engine serves them; all else
//! stays as its author wrote it. fio itself has parsed the file before.
//!
//! Invariants: what is written names no file outside the file system under test, and nothing in it
//! has another meaning for fio than it had here: no include is left, and no environment variable.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::error::{Doing, Error, Result};

/// Deepest nesting of `include`, so that files that include each other end.
const INCLUDES_MAX: u32 = 8;
/// Options that name the place of files: the lab's to set.
const PLACES: [&str; 1] = ["directory"];
/// Options that choose who serves a job: the lab's to set for the library.
const ENGINES: [&str; 2] = ["ioengine", "thread"];
/// Options whose values are names of files that jobs write.
const FILES: [&str; 2] = ["filename", "filename_format"];
/// How the names of options begin that run programs, or read or write other files of the host.
const OUTSIDE: [&str; 10] = [
    "exec_prerun",
    "exec_postrun",
    "write_",
    "read_iolog",
    "merge_blktrace",
    "replay_redirect",
    "iomem",
    "mem",
    "cgroup",
    "verify_state",
];

/// A job file whose includes have been read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobFile {
    lines: Vec<String>,
    notes: Vec<String>,
}

impl JobFile {
    /// Reads a file and what it includes.
    ///
    /// # Errors
    /// A file cannot be read, has no job, or names files outside the file system under test.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let mut file = Self::default();
        file.take(path, 0)?;
        let is_job = |line: &String| {
            let line = line.trim();
            line.starts_with('[') && !line.eq_ignore_ascii_case("[global]")
        };
        if file.lines.iter().any(is_job) {
            return Ok(file);
        }
        Err(Error::new(format!("{}: it has no job", path.display())))
    }

    /// What is done in another way than its author wrote.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The file with its files in a directory.
    pub(crate) fn on_directory(&self, dir: &Path) -> String {
        let global = [format!("directory={}", dir.display())];
        self.with(&global, |option| PLACES.contains(&option))
    }

    /// The file with its files in an image, by uext4's engine for fio.
    pub(crate) fn on_image(&self, engine: &Path, image: &Path, mount_options: &str) -> String {
        let mut global = vec![
            "directory=/".to_owned(),
            "thread=1".to_owned(),
            format!("ioengine=external:{}", engine.display()),
            format!("image={}", image.display()),
        ];
        if !mount_options.is_empty() {
            global.push(format!("mount_opts={mount_options}"));
        }
        self.with(&global, |option| PLACES.contains(&option) || ENGINES.contains(&option))
    }

    fn with(&self, global: &[String], is_ours: impl Fn(&str) -> bool) -> String {
        // One row for the jobs of a group, which may be a thousand.
        let mut text = "[global]\ngroup_reporting=1\nverify_state_save=0\n".to_owned();
        let kept = self.lines.iter().filter(|line| !option(line).is_some_and(|(o, _)| is_ours(o)));
        for line in global.iter().chain(kept) {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    fn take(&mut self, path: &Path, depth: u32) -> Result<()> {
        let text = fs::read_to_string(path).doing(path.display())?;
        for (line, number) in text.lines().zip(1..) {
            let at =
                |text: String| Error::new(format!("{}: line {number}: {text}", path.display()));
            if let Some(included) = included(line) {
                if depth == INCLUDES_MAX {
                    return Err(at("includes nest too deeply".to_owned()));
                }
                let beside = path.parent().unwrap_or(Path::new("")).join(included);
                let found = if beside.exists() { &beside } else { Path::new(included) };
                self.take(found, depth + 1)?;
                continue;
            }
            if let Some((name, value)) = option(line) {
                if let Some(why) = objection(name, value) {
                    return Err(at(format!("{}: {why}", line.trim())));
                }
                if PLACES.contains(&name) {
                    self.notes.push(format!("{name}={value} becomes the file system under test"));
                }
            }
            self.lines.push(line.to_owned());
        }
        Ok(())
    }
}

/// The file that a line includes.
fn included(line: &str) -> Option<&str> {
    let (word, file) = line.trim().split_once(char::is_whitespace)?;
    (word == "include").then(|| file.trim())
}

/// Why an option cannot stand in a job file of the lab.
fn objection(name: &str, value: &str) -> Option<&'static str> {
    if name.contains("${") || value.contains("${") {
        return Some("write the value in place of the environment variable");
    }
    if OUTSIDE.iter().any(|start| name.starts_with(start)) {
        return Some("it runs a program, or reads or writes files of the host");
    }
    let is_outside = FILES.contains(&name) && value.split(':').any(leaves);
    is_outside.then_some("it leaves the file system under test: name files from its root")
}

/// The option of a line and its value, which may be empty; `None` for comments and sections.
fn option(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with([';', '#', '[']) {
        return None;
    }
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    Some((name.trim(), value.trim()))
}

/// Whether a name of a file leads out of the directory that it is taken from.
fn leaves(name: &str) -> bool {
    name.starts_with('/') || name.split('/').any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "; a comment\n[global]\nbs=4k\n directory = /mnt/x\nioengine=libaio\n\
                       [one]\nrw=randwrite\nthread\nfilename=a:b\n";

    fn read(text: &str) -> Result<JobFile> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.fio");
        fs::write(&path, text).unwrap();
        JobFile::read(&path)
    }

    #[test]
    fn a_target_changes_place_and_engine_and_nothing_else() {
        let file = read(JOB).unwrap();
        assert_eq!(
            file.on_directory(Path::new("/tmp/m")),
            "[global]\ngroup_reporting=1\nverify_state_save=0\ndirectory=/tmp/m\n\
             ; a comment\n[global]\nbs=4k\nioengine=libaio\n[one]\n\
             rw=randwrite\nthread\nfilename=a:b\n"
        );
        assert_eq!(
            file.on_image(Path::new("/e.so"), Path::new("/i"), "noatime"),
            "[global]\ngroup_reporting=1\nverify_state_save=0\ndirectory=/\n\
             thread=1\nioengine=external:/e.so\nimage=/i\n\
             mount_opts=noatime\n; a comment\n[global]\nbs=4k\n[one]\nrw=randwrite\nfilename=a:b\n"
        );
        assert_eq!(file.notes(), ["directory=/mnt/x becomes the file system under test"]);
    }

    /// Fault model: a job that would write to a disk of the machine, or run a program on it.
    #[test]
    fn what_leaves_the_file_system_is_refused() {
        for line in [
            "filename=/dev/sda",
            "filename=a:/etc/x",
            "filename_format=../x.$jobnum",
            "filename=${HOME}/x",
            "size=${SIZE}",
            "exec_prerun=reboot",
            "write_lat_log=/tmp/x",
            "iomem=mmap:/tmp/x",
            "include\t/nowhere.fio",
        ] {
            let error = read(&format!("[x]\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2: ") || error.contains("/nowhere.fio: "), "{error}");
        }
        assert!(read("[x]\nfilename=a..b/c\nfilename_format=$jobname.$jobnum\n").is_ok());
    }

    /// Fault model: a file that includes itself.
    #[test]
    fn includes_are_read_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.fio"), dir.path().join("b.fio"));
        fs::write(&b, "rw=read\n").unwrap();
        fs::write(&a, "[x]\ninclude\tb.fio\n").unwrap();
        assert_eq!(JobFile::read(&a).unwrap().lines, ["[x]", "rw=read"]);
        fs::write(&b, format!("include {}\n", b.display())).unwrap();
        assert!(JobFile::read(&a).unwrap_err().to_string().contains("too deeply"));
    }
}
