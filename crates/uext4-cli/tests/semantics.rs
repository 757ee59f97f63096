//! What system calls mean: each script of `semantics/` says the same on the kernel's ext4 and on
//! mounts of uext4, by `/dev/fuse` and by io_uring. `docs/semantics.md` is written from them
//! (`UPDATE_DOCS=1`).
//!
//! Fault model: an answer, an error or an effect that differs from the kernel's.

mod common;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::kernel::Kernel;
use common::transport::on_both;
use common::{Mounted, Scratch, assert_clean, is_mounted, is_root, no_mount, run, system};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/semantics");
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics.md");
const HEAD: &str = "\
# What system calls mean on a mount

Each line is a script of `crates/uext4-cli/tests/semantics/`. The test `semantics` runs it on the
kernel's own ext4 and on uext4, by `/dev/fuse` and by io_uring, and fails where a word differs, but
for the differences that a script names. This table is written from the scripts
(`UPDATE_DOCS=1 cargo test -p uext4-cli --test semantics`).

| script | what | /dev/fuse | io_uring |
|---|---|---|---|
";

fn scripts() -> Vec<PathBuf> {
    let all = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|path| !path.ends_with("preamble.py")).collect();
    all.sort();
    all
}

fn stem(script: &Path) -> &str {
    script.file_stem().unwrap().to_str().unwrap()
}

/// What the comments of a script ask for, one in a line.
#[derive(Default)]
struct Wants {
    /// `# mount: WORDS`: options of the mount, on either side.
    mount: String,
    /// `# own: WORDS`: options for uext4 alone.
    own: String,
    /// `# mke2fs: WORDS`: arguments for the image.
    mke2fs: Vec<String>,
    /// `# debugfs: REQUEST`: a change of the image.
    debugfs: Option<String>,
    /// `# differs: KERNEL => UEXT4`: a line that the kernel says, and what is said here for it.
    differs: Vec<(String, String)>,
    /// `# crashes`: the image needs its journal replayed.
    crashes: bool,
}

impl Wants {
    fn of(script: &Path) -> Self {
        let none = "defaults".to_owned();
        let mut all = Self { mount: none.clone(), own: none, ..Self::default() };
        for line in fs::read_to_string(script).unwrap().lines() {
            let Some(line) = line.strip_prefix("# ") else { continue };
            match line.split_once(": ") {
                Some(("mount", words)) => words.clone_into(&mut all.mount),
                Some(("own", words)) => words.clone_into(&mut all.own),
                Some(("mke2fs", words)) => {
                    all.mke2fs = words.split(' ').map(str::to_owned).collect();
                }
                Some(("debugfs", request)) => all.debugfs = Some(request.to_owned()),
                Some(("differs", lines)) => {
                    let (kernel, ours) = lines.split_once(" => ").unwrap();
                    all.differs.push((kernel.to_owned(), ours.to_owned()));
                }
                _ if line == "crashes" => all.crashes = true,
                _ => {}
            }
        }
        all
    }

    /// A fresh image of 64 MiB, or the reason why not.
    fn image(&self, scratch: &Scratch) -> Result<PathBuf, String> {
        if let Some(why) = no_mount() {
            return Err(why.to_owned());
        }
        let extra: Vec<&str> = self.mke2fs.iter().map(String::as_str).collect();
        let image = scratch.image("image", 64, &extra).ok_or("no mke2fs")?;
        if let Some(request) = &self.debugfs {
            let done = system("debugfs").args(["-w", "-R", request]).arg(&image).output();
            let done = done.map_err(|error| format!("debugfs: {error}"))?;
            assert!(done.status.success(), "{done:?}");
        }
        Ok(image)
    }

    /// What is to be said here, where the kernel says `kernels`.
    fn expected(&self, kernels: &str) -> String {
        let mut text = String::new();
        let mut named = vec![false; self.differs.len()];
        for line in kernels.lines() {
            let place = self.differs.iter().position(|(kernel, _)| kernel == line);
            if let Some(place) = place {
                named[place] = true;
            }
            let _ = writeln!(text, "{}", place.map_or(line, |place| &self.differs[place].1));
        }
        assert!(named.iter().all(|named| *named), "no such line to differ from: {kernels}");
        text
    }
}

/// What a script says in `dir`, of which it knows no name.
fn say(script: &Path, dir: &Path) -> String {
    let preamble = fs::read_to_string(Path::new(FOLDER).join("preamble.py")).unwrap();
    let program = preamble + &fs::read_to_string(script).unwrap();
    let output = Command::new("timeout")
        .args(["-k", "5", "60", "/usr/bin/python3", "-c", &program])
        .arg(dir)
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}", stem(script), said(&output.stderr));
    said(&output.stdout)
}

fn run_all(test: &str, wanted: impl Fn(&str) -> bool) {
    if !is_root() {
        skip!("{test}: needs root");
    }
    if !Path::new("/usr/bin/python3").exists() {
        skip!("{test}: needs Debian's python3");
    }
    for script in scripts().iter().filter(|script| wanted(stem(script))) {
        let wants = Wants::of(script);
        let scratch = Scratch::new();
        let dir = scratch.path("mnt");
        let image = match wants.image(&scratch) {
            Ok(image) => image,
            Err(why) => skip!("{test}: {why}"),
        };
        let Some(kernel) = Kernel::mount_with(&image, &dir, &wants.mount) else {
            skip!("{test}: the kernel mounts no image here");
        };
        let expected = wants.expected(&say(script, &dir));
        drop(kernel);
        on_both(test, |option| {
            let scratch = Scratch::new();
            let (image, dir) = (wants.image(&scratch).unwrap(), scratch.path("mnt"));
            let options = format!("allow_other,suid,dev,{option},{},{}", wants.mount, wants.own);
            let mount = Mounted::new(&image, &dir, &options);
            let ours = say(script, &dir);
            if wants.crashes {
                // It says what is lost.
                run(["umount".as_ref(), dir.as_os_str()]);
                assert!(!is_mounted(&dir));
                mount.forget();
            } else {
                mount.end();
            }
            assert_eq!(ours, expected, "{} with {option} (right: the kernel)", stem(script));
            if wants.crashes {
                Mounted::new(&image, &dir, "").end();
            }
            assert_clean(&image);
        });
    }
}

#[test]
fn calls_mean_what_they_mean_on_the_kernels_ext4() {
    run_all("calls_mean", |name| name < "m");
}

#[test]
fn more_calls_mean_what_they_mean_on_the_kernels_ext4() {
    run_all("more_calls_mean", |name| name >= "m");
}

#[test]
fn the_document_names_every_script() {
    let mut text = HEAD.to_owned();
    for script in scripts() {
        let program = fs::read_to_string(&script).unwrap();
        let what = program.lines().next().unwrap().trim_matches('"').to_owned();
        let differs = Wants::of(&script).differs;
        let how = match differs.len() {
            0 => "same",
            _ => "same but for the differences that it names",
        };
        let _ = writeln!(text, "| {} | {what} | {how} | {how} |", stem(&script));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(DOCUMENT, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(DOCUMENT).unwrap(), text, "UPDATE_DOCS=1 writes it");
}
