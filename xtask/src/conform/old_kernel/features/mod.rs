//! Images with features that the machine's own kernel may refuse, in turns with Linux 6.1.
//!
//! # What
//! mke2fs makes an image for each [`Case`]. In a first guest the kernel of Linux 6.1 fills them
//! (`guest.py`). uext4 must show what that kernel shows, and changes the trees ([`host`]). In a
//! second guest the kernel must show what uext4 shows, and changes them again, and uext4 is asked a
//! last time. `e2fsck -fn` must find nothing after each step. "Shows" is a listing (`shown.py`,
//! which runs on both sides): names, attributes, contents, what other spellings of a name find,
//! what is seen without a key; and the usage and limits of quota, and digests of sealed files.
//!
//! # Why
//! Of these formats e2fsck knows the structure alone: not what a name folds to, what a key
//! decrypts, or what a driver counts.

mod cases;
mod found;
mod host;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::boot::{self, SHARED, Task};
use super::package::{self, Kernel};
use super::{Options, guest};
use crate::conform::{Trouble, obstacle};
use crate::machine;
use cases::Case;
use host::Host;

/// Programs in Python, by their names.
const PROGRAMS: [(&str, &str); 3] = [
    ("guest.py", include_str!("guest.py")),
    ("shown.py", include_str!("shown.py")),
    ("tree.py", include_str!("tree.py")),
];
const PYTHON: &str = "/usr/bin/python3";
/// The bytes of the key of encrypted directories.
const KEY: std::ops::Range<u8> = 0..64;

/// Runs all of it.
pub(super) fn run(options: &Options) -> Result<(), Trouble> {
    if let Some(why) = obstacle() {
        return Err(Trouble::Missing(why));
    }
    for name in [PYTHON, "fsverity"] {
        if machine::program(name).is_none() {
            return Err(Trouble::Missing(format!("{name} is not installed")));
        }
    }
    let kernel = package::provide()?;
    super::build()?;
    let rig = Rig { kernel, folder: super::folder().join("features"), options };
    let mut cases = cases::all(options.mixes, options.seed);
    let name = |case: &Case| case.copy_of.as_ref().unwrap_or(&case.name).clone();
    cases.retain(|case| options.only.as_ref().is_none_or(|text| name(case).contains(text)));
    if cases.is_empty() {
        return Err(Trouble::fault("--only: no image has such a name"));
    }
    rig.prepare(&cases)?;
    rig.turns(&cases).map_err(Trouble::Fault)?;
    fs::remove_dir_all(&rig.folder).map_err(|error| package::fault(&rig.folder, &error))
}

/// What runs in the guest.
pub(super) fn inside(phase: &str) -> Result<(), String> {
    let program = Path::new(SHARED).join("guest.py");
    let ended = Command::new(PYTHON).arg(program).args([phase, SHARED]).status();
    let log = guest::log().map_err(Trouble::into_error);
    match ended {
        Ok(status) if status.success() => log.map(drop),
        Ok(status) => Err(format!("{phase}: {status}\n{}", log.err().unwrap_or_default())),
        Err(error) => Err(format!("{PYTHON}: {error}")),
    }
}

struct Rig<'a> {
    kernel: Kernel,
    folder: PathBuf,
    options: &'a Options,
}

impl Rig<'_> {
    /// The folder that host and guests share: programs, the plan, images.
    fn prepare(&self, cases: &[Case]) -> Result<(), Trouble> {
        let failed = |error: std::io::Error| package::fault(&self.folder, &error);
        let _ = fs::remove_dir_all(&self.folder);
        fs::create_dir_all(&self.folder).map_err(failed)?;
        for (name, text) in PROGRAMS {
            fs::write(self.folder.join(name), text).map_err(failed)?;
        }
        fs::write(self.folder.join("key"), KEY.collect::<Vec<u8>>()).map_err(failed)?;
        let plan: Vec<_> = cases.iter().map(Case::plan).collect();
        let plan = serde_json::Value::Array(plan).to_string();
        fs::write(self.folder.join("plan.json"), plan).map_err(failed)?;
        for case in cases {
            let image = self.image(case);
            File::create(&image).and_then(|file| file.set_len(case.bytes())).map_err(failed)?;
            if case.copy_of.is_none() {
                package::run(Command::new("mke2fs").args(case.mke2fs()).arg(&image))?;
            }
        }
        Ok(())
    }

    fn image(&self, case: &Case) -> PathBuf {
        self.folder.join(format!("{}.img", case.name))
    }

    /// The guests' turns and uext4's. What is wrong is collected: no case hides the next one.
    fn turns(&self, cases: &[Case]) -> Result<(), String> {
        let command = super::command();
        let hosts: Vec<Host<'_>> = cases
            .iter()
            .map(|case| Host {
                case,
                folder: &self.folder,
                image: self.image(case),
                command: &command,
            })
            .collect();
        let mut faults = Vec::new();
        println!("images by mke2fs:");
        for case in cases {
            let made = case.mke2fs()[2..].join(" ");
            let made = case.copy_of.as_ref().map_or(made, |name| format!("a copy of {name}"));
            println!("  {:<24} {made}", case.name);
        }
        println!("Linux {} fills:", self.kernel.release);
        faults.extend(self.guest("fill", cases).err());
        for case in cases {
            if let Some(name) = &case.copy_of {
                let from = self.folder.join(format!("{name}.img"));
                copy_sparse(&from, &self.image(case)).map_err(Trouble::into_error)?;
            }
        }
        println!("uext4 reads and changes:");
        faults.extend(each(&hosts, |host| host.turn()));
        println!("Linux {} reads and changes:", self.kernel.release);
        faults.extend(self.guest("turn", cases).err());
        println!("both compared:");
        faults.extend(each(&hosts, |host| host.last()));
        match faults.is_empty() {
            true => Ok(()),
            false => Err(format!("{}\nimages: {}", faults.join("\n"), self.folder.display())),
        }
    }

    fn guest(&self, phase: &str, cases: &[Case]) -> Result<(), String> {
        let task = Task {
            words: format!("--phase {phase}"),
            disks: cases.iter().map(|case| (case.name.clone(), self.image(case))).collect(),
            shared: Some(&self.folder),
            kvm: self.options.kvm,
            limit: Duration::from_secs(self.options.minutes * 60),
        };
        boot::run(&self.kernel, &task)
    }
}

/// Does something for each case and prints what came of it; the faults.
fn each(hosts: &[Host<'_>], does: impl Fn(&Host<'_>) -> Result<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    for host in hosts {
        let name = &host.case.name;
        match does(host) {
            Ok(said) => println!("  {name:<24} {said}"),
            Err(why) => {
                println!("  {name:<24} FAILED: {why}");
                faults.push(format!("{name}: {why}"));
            }
        }
    }
    faults
}

fn copy_sparse(from: &Path, to: &Path) -> Result<(), Trouble> {
    package::run(Command::new("cp").arg("--sparse=always").arg(from).arg(to))
}
