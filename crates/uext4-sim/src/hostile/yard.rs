//! A folder that calls of the command work in, watched for what does not belong there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::hostile::verbs::verb_of;
use crate::hostile::{Effect, Outcome};
use crate::oracle::image_folder;

/// Time for one call.
const TIME: Duration = Duration::from_secs(60);
/// Address space of one call, in bytes: sparse maps and stacks count, so it is ample.
const ADDRESS_SPACE: u64 = 16 << 30;
/// Most lines of standard error that a call may print: a verb that goes on after a failure tells
/// one for each of what it met.
const LINES_MAX: usize = 2000;

/// Most bytes of a message: two paths as long as Linux takes them, and words.
const LINE_BYTES_MAX: usize = 10 << 10;

/// The content of the file that nothing may touch.
const SENTINEL: &[u8] = b"nothing writes here";

/// A call of the command.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What it is called on, for the table of all calls.
    pub material: &'static str,
    /// Its words, split at blanks; %20 is a blank in a word.
    pub words: &'a str,
    /// What it reads from a pipe.
    pub input: Option<&'a Path>,
    /// What it may do to `work/i.img`.
    pub effect: Effect,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With status 0.
    Well,
    /// Not so.
    Otherwise,
}

/// A folder with `work`, where calls run and whose `out` they may fill, and a sentinel beside it.
#[derive(Debug)]
pub struct Yard {
    folder: tempfile::TempDir,
    binary: PathBuf,
}

impl Yard {
    /// Makes one for calls of `binary`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn new(binary: &Path) -> io::Result<Self> {
        let folder = image_folder()?;
        fs::create_dir(folder.path().join("work"))?;
        fs::write(folder.path().join("sentinel"), SENTINEL)?;
        Ok(Self { folder, binary: fs::canonicalize(binary)? })
    }

    /// Where calls run.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Calls the command and judges it.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn call(&self, call: &Call<'_>, outcome: &mut Outcome) -> io::Result<Ended> {
        let ended = self.call_and_keep(call, outcome)?;
        self.clear()?;
        Ok(ended)
    }

    /// As [`Yard::call`], and leaves what was made until [`Yard::clear`].
    ///
    /// # Errors
    /// The machinery failed.
    pub fn call_and_keep(&self, call: &Call<'_>, outcome: &mut Outcome) -> io::Result<Ended> {
        let Call { words, effect, .. } = *call;
        let image = self.work().join("i.img");
        let before = if effect == Effect::Reads { fs::read(&image)? } else { Vec::new() };
        let known = self.names()?;
        let places = self.places()?;
        let (ended, mut faults) = self.run(call, outcome)?;
        if effect == Effect::Reads && fs::read(&image)? != before {
            faults.push("changed the image".into());
        }
        let strays: Vec<String> =
            self.names()?.difference(&known).filter(|name| !is_target(name)).cloned().collect();
        if !strays.is_empty() {
            faults.push(format!("made {}", strays.join(", ")));
        }
        let content = fs::read(self.folder.path().join("sentinel")).ok();
        if content.as_deref() != Some(SENTINEL) || self.places()? != places {
            faults.push("touched a file beside the target".into());
            self.restore()?;
        }
        let told = faults.into_iter().map(|fault| format!("uext4 {words}: {fault}"));
        outcome.faults.extend(told);
        Ok(ended)
    }

    /// What a call must leave alone: mode, owner, links and time of change of the sentinel, mode
    /// and owner of the folders around the target.
    fn places(&self) -> io::Result<Vec<String>> {
        let mut places = Vec::new();
        for path in [self.folder.path().to_owned(), self.work()] {
            let meta = fs::metadata(path)?;
            places.push(format!("{:o} {} {}", meta.mode(), meta.uid(), meta.gid()));
        }
        let sentinel = fs::symlink_metadata(self.folder.path().join("sentinel"));
        places.push(match sentinel {
            Ok(meta) => format!(
                "{:o} {} {} {}.{}",
                meta.mode(),
                meta.uid(),
                meta.nlink(),
                meta.ctime(),
                meta.ctime_nsec()
            ),
            Err(error) => error.to_string(),
        });
        Ok(places)
    }

    /// Makes a new sentinel: the next call is judged by itself.
    fn restore(&self) -> io::Result<()> {
        let path = self.folder.path().join("sentinel");
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => remove_tree(&path)?,
            Ok(_) => fs::remove_file(&path)?,
            Err(_) => {}
        }
        fs::write(path, SENTINEL)
    }

    /// The file that no call may touch.
    #[must_use]
    pub fn sentinel(&self) -> PathBuf {
        self.folder.path().join("sentinel")
    }

    /// Runs a call to its end; tells what is wrong with how it ended and what it said.
    fn run(&self, call: &Call<'_>, outcome: &mut Outcome) -> io::Result<(Ended, Vec<String>)> {
        let Call { words, input, .. } = *call;
        let said_path = self.folder.path().join("said");
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={ADDRESS_SPACE}")).arg(&self.binary);
        let words = words.split_whitespace().map(|word| word.replace("%20", " "));
        command.args(words).current_dir(self.work());
        command.stdin(match input {
            Some(path) => Stdio::from(fs::File::open(path)?),
            None => Stdio::null(),
        });
        command.stdout(Stdio::null()).stderr(fs::File::create(&said_path)?);
        let mut child = command.spawn()?;
        let end = Instant::now() + TIME;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                child.kill()?;
                child.wait()?;
                outcome.tally.count(call.material, &verb_of(call.words), "no end");
                let fault = format!("did not end within {} s", TIME.as_secs());
                return Ok((Ended::Otherwise, vec![fault]));
            }
            std::thread::sleep(Duration::from_micros(500));
        };
        let said = String::from_utf8_lossy(&fs::read(&said_path)?).into_owned();
        fs::remove_file(&said_path)?;
        let number = status.code().map_or_else(|| status.to_string(), |code| code.to_string());
        outcome.tally.count(call.material, &verb_of(call.words), &number);
        let ended = if status.success() { Ended::Well } else { Ended::Otherwise };
        let is_fsck = call.words.starts_with("fsck");
        let mut faults = Vec::new();
        match status.code() {
            Some(0 | 1) => {}
            // Differences, and trouble.
            Some(2) if call.words.starts_with("diff") => {}
            // Any sum of its bits but that of wrong usage.
            Some(code) if is_fsck && code < 32 && code & 16 == 0 => {}
            Some(code) => faults.push(format!("status {code}: {}", shortened(&said))),
            None => faults.push(format!("{status}: {}", shortened(&said))),
        }
        if status.code() == Some(1) && said.is_empty() && !call.words.starts_with("diff") {
            faults.push("failed without a word".into());
        }
        if said.contains("panicked at") {
            faults.push(format!("panic: {}", shortened(&said)));
        }
        let unlike = |line: &&str| !is_fsck && !line.starts_with("uext4: ");
        if let Some(line) = said.lines().find(unlike) {
            faults.push(format!("a line that is no message: {line}"));
        }
        if let Some(line) = said.lines().find(|line| line.len() > LINE_BYTES_MAX) {
            faults.push(format!("a message of {} bytes", line.len()));
        }
        if said.lines().count() > LINES_MAX {
            faults.push(format!("{} lines of messages", said.lines().count()));
        }
        Ok((ended, faults))
    }

    /// Everything in the yard but what is below `work/out`.
    fn names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for (folder, prefix) in [(self.folder.path().to_owned(), ""), (self.work(), "work/")] {
            for entry in fs::read_dir(folder)? {
                names.insert(format!("{prefix}{}", entry?.file_name().to_string_lossy()));
            }
        }
        Ok(names)
    }

    /// Removes what a call was to make.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.work())? {
            let entry = entry?;
            if is_target(&format!("work/{}", entry.file_name().to_string_lossy())) {
                let path = entry.path();
                match entry.file_type()?.is_dir() {
                    true => remove_tree(&path)?,
                    false => fs::remove_file(path)?,
                }
            }
        }
        Ok(())
    }
}

/// What calls are told to write: names in `work` that start with `out`.
fn is_target(name: &str) -> bool {
    name.starts_with("work/out")
}

/// Removes a directory whose own directories may have any mode and flags.
fn remove_tree(path: &Path) -> io::Result<()> {
    let removed = fs::remove_dir_all(path);
    if removed.is_ok() {
        return Ok(());
    }
    let _ = Command::new("chattr").args(["-R", "-ia"]).arg(path).stderr(Stdio::null()).status();
    fs::remove_dir_all(path)
}

/// The start of what was said.
fn shortened(said: &str) -> String {
    let text: String = said.chars().take(400).collect();
    text.trim_end().replace('\n', " | ")
}
