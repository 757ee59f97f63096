//! Documents whose examples are run as they stand, in a folder that has the command in `bin`.

#![allow(dead_code)] // every test file uses a part

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use super::{Scratch, copy_program, has, is_root};

const NOBODY: u32 = 65_534;

pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// The indented lines behind a line.
pub(crate) fn indented_after<'t>(text: &'t str, line: &str) -> Vec<&'t str> {
    let (_, after) = text.split_once(&format!("{line}\n")).expect("the document has the line");
    let lines = after.trim_start_matches('\n').lines();
    lines.take_while(|line| line.starts_with("    ")).map(str::trim).collect()
}

/// The parts of a document below headings of the second level, with these.
pub(crate) fn parts(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\n## ").skip(1);
    parts.map(|part| part.split_once('\n').expect("something below the heading")).collect()
}

/// The fenced blocks of a language.
pub(crate) fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let (open, close) = (format!("```{language}\n"), "```\n");
    let behind = text.split(open.as_str()).skip(1);
    behind.map(|rest| rest.split_once(close).expect("the block has an end").0).collect()
}

/// A command of a console, and the lines that it prints.
pub(crate) struct Typed<'t> {
    pub(crate) command: &'t str,
    pub(crate) output: Vec<&'t str>,
}

/// The commands of a console block.
pub(crate) fn typed(block: &str) -> Vec<Typed<'_>> {
    let mut found: Vec<Typed<'_>> = Vec::new();
    for line in block.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => found.push(Typed { command, output: Vec::new() }),
            None => found.last_mut().expect("a command comes first").output.push(line),
        }
    }
    found
}

/// Whether `said` is what a document says, in which `...` stands for anything: within a line for
/// what differs each time, alone for any number of lines.
pub(crate) fn is_as_written(written: &[&str], said: &[&str]) -> bool {
    match (written, said) {
        ([], []) => true,
        (["...", rest @ ..], _) => (0..=said.len()).any(|at| is_as_written(rest, &said[at..])),
        ([line, rest @ ..], [first, others @ ..]) => {
            is_line_as_written(line, first) && is_as_written(rest, others)
        }
        _ => false,
    }
}

fn is_line_as_written(written: &str, said: &str) -> bool {
    let mut pieces = written.split("...");
    let Some(mut rest) = pieces.next().and_then(|start| said.strip_prefix(start)) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some((_, behind)) = rest.split_once(piece) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// A folder that everybody may use, with the command in `bin`.
pub(crate) fn workplace() -> Scratch {
    let scratch = Scratch::new();
    let dir = scratch.dir.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(dir.join("bin")).unwrap();
    copy_program(Path::new(super::UEXT4), &dir.join("bin/uext4"));
    scratch
}

/// The user of a script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// The user of the tests.
    Caller,
    /// Somebody without rights, if root runs the tests.
    Ordinary,
    /// As `Ordinary`, who may open the FUSE device, as udev makes it; only this process sees it so.
    OrdinaryWithFuse,
}

impl User {
    /// Why this user cannot be had, if so.
    pub(crate) fn missing(self) -> Option<&'static str> {
        match self {
            Self::Caller => None,
            Self::Ordinary => (is_root() && !has("setpriv")).then_some("no setpriv"),
            Self::OrdinaryWithFuse => super::no_mount().or_else(|| {
                let all = ["setpriv", "unshare", "fusermount3"].into_iter().all(has);
                (!all).then_some("needs setpriv, unshare and fusermount3")
            }),
        }
    }

    /// Runs a script in a workplace, with its command in the path.
    pub(crate) fn run(self, scratch: &Scratch, script: &str) -> Output {
        const BECOME: [&str; 5] =
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        const SEE_FUSE: [&str; 5] = [
            "unshare",
            "-m",
            "sh",
            "-ec",
            "mknod fuse-device c 10 229; chmod 666 fuse-device
            mount --bind fuse-device /dev/fuse; rm fuse-device; exec \"$0\" \"$@\"",
        ];
        let dir = scratch.dir.path();
        let mut words = Vec::new();
        if self != Self::Caller && is_root() {
            chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
            if self == Self::OrdinaryWithFuse {
                words.extend(SEE_FUSE);
            }
            words.extend(BECOME);
        }
        let path = "export PATH=$PWD/bin:$PATH:/sbin:/usr/sbin LC_ALL=C HOME=$PWD";
        let script = format!("{path}\n{script}");
        words.extend(["sh", "-c", &script]);
        Command::new(words[0]).args(&words[1..]).current_dir(dir).output().unwrap()
    }
}
