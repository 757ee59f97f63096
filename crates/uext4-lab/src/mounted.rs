//! The loads on a mounted directory: by the programs that a user would take, and by workers.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::command;
use crate::error::{Doing, Error, Result};
use crate::leftovers;
use crate::load::SmallFiles;
use crate::tree;
use crate::worker::{Verb, dir_name};

/// `tar -xpf`.
pub(crate) fn unpack(dir: &Path, archive: &Path) -> Result<()> {
    let args = ["-xpf".as_ref(), archive.as_os_str(), "-C".as_ref(), dir.as_os_str()];
    command::run("tar", &args).map(|_| ())
}

/// `find -type f | xargs cat`.
pub(crate) fn read_tree(dir: &Path) -> Result<()> {
    let script = "find \"$0\" -type f -print0 | xargs -0 cat > /dev/null";
    command::run("bash", &["-o", "pipefail", "-c", script, &top(dir)]).map(|_| ())
}

/// `rm -rf`.
pub(crate) fn remove_tree(dir: &Path) -> Result<()> {
    command::run("rm", &["-rf", &top(dir)]).map(|_| ())
}

fn top(dir: &Path) -> String {
    dir.join(tree::TOP).to_string_lossy().into_owned()
}

/// Makes the directories of the small files.
pub(crate) fn make_dirs(dir: &Path, files: SmallFiles) -> Result<()> {
    (0..files.dirs)
        .try_for_each(|number| fs::create_dir(dir.join(dir_name(number))))
        .doing("making directories")
}

/// Worker processes that wait for their first pass. Dropping them ends them.
pub(crate) struct Workers {
    running: Vec<(Child, ChildStdin, ChildStdout)>,
}

impl Workers {
    /// Starts `count` workers of the uext4 command `program`.
    pub(crate) fn start(
        program: &Path,
        verb: Verb,
        dir: &Path,
        files: SmallFiles,
        count: u32,
    ) -> Result<Self> {
        let mut workers = Self { running: Vec::new() };
        for part in 0..count {
            let mut child = leftovers::mark(&mut Command::new(program))
                .args(["lab", "worker", verb.name()])
                .arg(dir)
                .args([files.dirs, files.per_dir, part, count].map(|number| number.to_string()))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .doing("starting a worker")?;
            match (child.stdin.take(), child.stdout.take()) {
                (Some(input), Some(output)) => workers.running.push((child, input, output)),
                _ => return Err(Error::new("a worker has no pipes")),
            }
        }
        Ok(workers)
    }

    /// One pass of all workers.
    pub(crate) fn pass(&mut self) -> Result<()> {
        for (_, input, _) in &mut self.running {
            input.write_all(b"1").doing("starting a pass")?;
        }
        for (_, _, output) in &mut self.running {
            // A worker that fails says why on standard error, and ends without an answer.
            output.read_exact(&mut [0]).map_err(|_| Error::new("a worker failed"))?;
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (mut child, input, output) in self.running.drain(..) {
            drop((input, output));
            // It ends when its input does; what it did was judged by its answers.
            let _ = child.wait();
        }
    }
}
