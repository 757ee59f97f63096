//! A job file of fio(1): read, and written again for a target.
//!
//! What: the lab decides where files lie and, for the library, which engine serves them; all else
//! stays as its author wrote it. fio itself has parsed the file before.
//!
//! Invariants: what is written names no file outside the file system under test, and nothing in it
//! has another meaning for fio than it had here: no include is left, and no environment variable.
//! Which figures there are is told by the file, not by a run of it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::error::{Doing, Error, Result};
use crate::jobs::job_line::{self, Line};
use crate::jobs::job_rules::{objection, objection_to_section};

/// Deepest nesting of `include`, so that files that include each other end.
const INCLUDES_MAX: u32 = 8;
/// Options that name the place of files: the lab's to set.
const PLACES: [&str; 1] = ["directory"];
/// Options that choose who serves a job: the lab's to set for the library.
const ENGINES: [&str; 2] = ["ioengine", "thread"];
/// Options that choose what is reported: the lab's to set.
const REPORTS: [&str; 1] = ["group_reporting"];
/// Options that choose the direction of a job.
const DIRECTIONS: [&str; 2] = ["rw", "readwrite"];

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
        // fio looks for what is included beside the file itself.
        let whole = fs::canonicalize(path).doing(path.display())?;
        file.take(&whole, 0)?;
        let is_job =
            |line: Line<'_>| matches!(line, Line::Section(name) if !job_line::is_global(name));
        if file.read_lines().any(is_job) {
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
        let is_kept = |line: &Line<'_>| match line {
            Line::Option(name, _) => !is_ours(name) && !REPORTS.contains(name),
            _ => true,
        };
        let lines = self.lines.iter().zip(self.read_lines());
        let kept = lines.filter(|(_, line)| is_kept(line)).map(|(text, _)| text);
        for line in global.iter().chain(kept) {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// The lines as fio reads them.
    fn read_lines(&self) -> impl Iterator<Item = Line<'_>> {
        // They have been read before.
        self.lines.iter().map(|line| job_line::read(line).unwrap_or(Line::Empty))
    }

    /// Whether its jobs read, write and trim in more than one way between them, so that figures are
    /// told apart by the direction, whatever had I/O in a run.
    pub(crate) fn is_mixed(&self) -> bool {
        let (mut all, mut global, mut job) = (BTreeSet::new(), Ways::default(), None);
        for line in self.read_lines() {
            match line {
                Line::Section(name) => {
                    all.extend(job.take().iter().flat_map(Ways::names));
                    job = (!job_line::is_global(name)).then(|| global.clone());
                }
                Line::Option(name, value) => job.as_mut().unwrap_or(&mut global).take(name, value),
                Line::Empty | Line::Include(_) => {}
            }
        }
        all.extend(job.iter().flat_map(Ways::names));
        all.len() > 1
    }

    fn take(&mut self, path: &Path, depth: u32) -> Result<()> {
        let text = fs::read_to_string(path).doing(path.display())?;
        for (line, number) in text.lines().zip(1..) {
            let at = |text: &str| Error::new(format!("{}: line {number}: {text}", path.display()));
            let refuse = |why: &str| at(&format!("{}: {why}", line.trim()));
            match job_line::read(line).map_err(refuse)? {
                Line::Include(included) => {
                    if depth == INCLUDES_MAX {
                        return Err(at("includes nest too deeply"));
                    }
                    // In this order by fio, too.
                    let beside = path.parent().unwrap_or(Path::new("")).join(included);
                    let here = Path::new(included);
                    self.take(if here.exists() { here } else { &beside }, depth + 1)?;
                    continue;
                }
                Line::Section(name) => {
                    objection_to_section(name).map_or(Ok(()), |why| Err(refuse(why)))?;
                }
                Line::Option(name, value) => {
                    objection(name, value).map_or(Ok(()), |why| Err(refuse(why)))?;
                    if PLACES.contains(&name) {
                        self.notes
                            .push(format!("{name}={value} becomes the file system under test"));
                    }
                }
                Line::Empty => {}
            }
            self.lines.push(line.to_owned());
        }
        Ok(())
    }
}

/// How a job goes over its files.
#[derive(Clone, Default)]
struct Ways {
    rw: Option<String>,
    /// Whether what was written is read back.
    verifies: bool,
}

impl Ways {
    fn take(&mut self, name: &str, value: &str) {
        if DIRECTIONS.contains(&name) {
            self.rw = Some(value.to_owned());
        }
        self.verifies |= name == "verify";
    }

    fn names(&self) -> Vec<&'static str> {
        let rw = self.rw.as_deref().unwrap_or("read");
        // The rest is how often a place is chosen anew.
        let rw = rw.split(':').next().unwrap_or(rw);
        let both = rw.ends_with("rw");
        let ways = [
            ("read", rw.contains("read") || both || self.verifies),
            ("write", rw.contains("write") || both),
            ("trim", rw.contains("trim")),
        ];
        ways.into_iter().filter_map(|(name, is_so)| is_so.then_some(name)).collect()
    }
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
            "opendir=/etc",
            "ioscheduler=none",
            "buffer_pattern=1'/etc/passwd'",
            "ioengine=exec",
            "ioengine=external:/x.so",
            "ioengine=sg",
            "include\t/nowhere.fio",
            "include=/nowhere.fio",
            "[../../../../dev/sda]",
            "[..]",
            "[]",
        ] {
            let error = read(&format!("[x]\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2: ") || error.contains("/nowhere.fio: "), "{error}");
        }
        let fine = "[x.y]\nfilename=a..b/c\nfilename_format=$jobname.$jobnum\nwrite_hint=none\n\
                    mem_align=4k\nmem=malloc\nioengine=libaio ; as ever\n";
        read(fine).unwrap();
    }

    /// Fault model: names of figures that hang on what had I/O in a run.
    #[test]
    fn directions_are_those_of_the_jobs() {
        let is_mixed = |text: &str| read(text).unwrap().is_mixed();
        assert!(!is_mixed("[x]\nrw=randwrite\n[y]\nrw=write:4k\n"));
        assert!(!is_mixed("[x]\nbs=4k\n[y]\nreadwrite=randread\n"));
        assert!(!is_mixed("[global]\nrw=write\n[x]\n[y]\nbs=4k\n"));
        assert!(is_mixed("[x]\nrw=write\n[y]\nbs=4k\n"));
        assert!(is_mixed("[global]\nrw=write\n[x]\n[y]\nrw=read\n"));
        for mixed in ["rw=rw", "rw=randrw", "rw=trimwrite", "rw=write\nverify=crc32c"] {
            assert!(is_mixed(&format!("[x]\n{mixed}\n")), "{mixed}");
        }
    }

    /// Fault model: jobs of one group are reported one by one, under names of their own.
    #[test]
    fn what_is_reported_is_the_labs_to_say() {
        let file = read("[x]\ngroup_reporting=0\nrw=read\n").unwrap();
        let text = file.on_directory(Path::new("/d"));
        assert_eq!(text.matches("group_reporting").count(), 1, "{text}");
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
