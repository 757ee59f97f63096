//! `cargo xtask bisect`: a slow commit found by `git bisect run`, on an example repository.
//!
//! # What
//! Fault model: a regression of speed among many commits that `uext4 lab pair` or `uext4 lab guard`
//! does not see, or sees where there is none: then the search ends at another commit. The example
//! is a clone of this repository with 32 commits on top, one of which makes the allocator slow; the
//! lines that search are those of docs/lab.md.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace;

/// Commits of the example.
const COMMITS: u32 = 32;
/// What the slow commit changes: threads take blocks from the groups, not from preallocations.
const SLOW: (&str, &str, &str) = (
    "crates/uext4/src/config/alloc.rs",
    "            preallocate: true,",
    "            preallocate: false,",
);
/// What all others change.
const HARMLESS: &str = "crates/uext4-cli/src/main.rs";
const DOCUMENT: &str = "docs/lab.md";

/// What is searched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// Ratios of times, both builds in turns.
    Pair,
    /// Counts of one thread's operations.
    Guard,
}

/// Makes the example, searches, and says whether the slow commit was found.
pub(crate) fn run(by: By, slow: u32) -> Result<(), String> {
    if !(1..=COMMITS).contains(&slow) {
        return Err(format!("--slow {slow}: the example has commits 1 to {COMMITS}"));
    }
    let example = Example::make(slow)?;
    let said = example.search(by)?;
    println!("{said}");
    let found = said.lines().find_map(|line| line.strip_suffix(" is the first bad commit"));
    let found = found.ok_or("git bisect has found no commit")?;
    match example.commits.iter().position(|commit| commit == found) {
        Some(at) if at + 1 == slow as usize => {
            println!("commit {slow} of {COMMITS} is slow, and was found");
            Ok(())
        }
        at => Err(format!("commit {slow} is slow, commit {:?} was found", at.map(|at| at + 1))),
    }
}

/// A clone with commits on top. It stays in `target/bisect` until the next one is made.
struct Example {
    folder: PathBuf,
    commits: Vec<String>,
}

impl Example {
    fn make(slow: u32) -> Result<Self, String> {
        let folder = workspace::target().join("bisect");
        let _ = fs::remove_dir_all(folder.join("repository"));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut example = Self { folder, commits: Vec::new() };
        let source = workspace::root().display().to_string();
        let target = example.repository().display().to_string();
        call(Command::new("git").args(["clone", "--quiet", "--shared", &source, &target]))?;
        // What was built for an earlier example is used again; the clone is made anew.
        let built = example.folder.join("target");
        fs::create_dir_all(&built)
            .and_then(|()| symlink(&built, example.repository().join("target")))
            .map_err(|error| format!("{}: {error}", built.display()))?;
        example.git(&["tag", "good"])?;
        example.git(&["checkout", "--quiet", "-B", "main"])?;
        for number in 1..=COMMITS {
            if number == slow {
                let (file, from, to) = SLOW;
                example.edit(file, |text| text.replacen(from, to, 1))?;
            } else {
                example.edit(HARMLESS, |text| format!("{text}// Change {number}.\n"))?;
            }
            let message = format!("example: change {number}");
            example.git(&["commit", "--quiet", "--all", "--message", &message])?;
            example.commits.push(example.git(&["rev-parse", "HEAD"])?.trim().to_owned());
        }
        Ok(example)
    }

    fn repository(&self) -> PathBuf {
        self.folder.join("repository")
    }

    fn edit(&self, file: &str, change: impl Fn(&str) -> String) -> Result<(), String> {
        let path = self.repository().join(file);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let before = fs::read_to_string(&path).map_err(failed)?;
        let after = change(&before);
        if after == before {
            return Err(format!("{file}: the line to change is gone"));
        }
        fs::write(&path, after).map_err(failed)
    }

    /// Runs the lines of the document, and returns what the search printed.
    fn search(&self, by: By) -> Result<String, String> {
        let document = workspace::root().join(DOCUMENT);
        let text = fs::read_to_string(&document)
            .map_err(|error| format!("{}: {error}", document.display()))?;
        let lines = lines_of(&text, by).ok_or_else(|| format!("{DOCUMENT} has no such lines"))?;
        // The document builds the good commit where its reader likes.
        let script = lines.replace("/tmp/good", &self.folder.join("good").display().to_string());
        fs::create_dir_all(self.folder.join("good")).map_err(|error| error.to_string())?;
        call(
            Command::new("sh")
                .args(["-ec", &script])
                .current_dir(self.repository())
                .env("CARGO_TARGET_DIR", self.repository().join("target"))
                // Without optimisation of the whole program a build takes half as long; both
                // sides are built alike.
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                .env("GIT_AUTHOR_NAME", "example"),
        )
    }

    fn git(&self, words: &[&str]) -> Result<String, String> {
        let who = ["-c", "user.name=example", "-c", "user.email=example@localhost"];
        call(Command::new("git").args(who).arg("-C").arg(self.repository()).args(words))
    }
}

/// The indented lines of the document after the line that names the search.
fn lines_of(document: &str, by: By) -> Option<String> {
    let title = match by {
        By::Pair => "Search by time:",
        By::Guard => "Search by counts:",
    };
    let after = document.lines().skip_while(|line| *line != title).skip(2);
    let lines: Vec<&str> = after.map_while(|line| line.strip_prefix("    ")).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Runs a command, told as it is called; what it printed.
fn call(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command
        .env("PATH", crate::machine::search_path())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(format!("{name}: {}\n{said}", output.status))
}
