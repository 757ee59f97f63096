//! `cargo xtask demo`: the main job from end to end.
//!
//! # What
//! Builds the command as a user would have it, makes an image, brings in a real tree, mounts it,
//! works on it with ordinary programs, kills the mounting process in the middle of that, recovers,
//! unmounts, has e2fsck judge the image, and measures two loads beside the peers. Without FUSE the
//! same steps run on the image through the command's own verbs, and the output says so.
//!
//! # Invariants
//! - Nothing stays behind: the mount, the mounting process and the folder go with `Stage`.
//! - Every step checks what it did; the first that finds something wrong ends the demo.

mod image;
mod lab;
mod mount;
mod stage;

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::{machine, tree, workspace};
use stage::Stage;

/// What a step did, in one line, or why it failed.
type StepResult = Result<String, String>;

/// One step of the demo.
struct Step {
    /// What it does, for the reader.
    name: &'static str,
    run: fn(&mut Stage) -> StepResult,
}

const fn step(name: &'static str, run: fn(&mut Stage) -> StepResult) -> Step {
    Step { name, run }
}

const FIRST: &[Step] = &[
    step("make an image", image::make),
    step("bring in the tree", image::bring_in),
    step("look at it without mounting", image::look),
];

const MOUNTED: &[Step] = &[
    step("mount it", mount::mount),
    step("compare with the original", mount::compare),
    step("work with ordinary programs", mount::work),
    step("write and fsync a file", mount::write_acknowledged),
    step("kill -9 under load", mount::kill_under_load),
    step("mount again: recover", mount::mount),
    step("the fsynced file is whole", mount::check_acknowledged),
    step("remove the tree", mount::remove),
    step("unmount", mount::unmount),
];

const IN_PROCESS: &[Step] = &[
    step("work with the verbs", image::work),
    step("kill -9 while copying in", image::kill_under_load),
    step("recover", image::recover),
];

const LAST: &[Step] =
    &[step("e2fsck", image::judge), step("a short run of the lab, with its report", lab::measure)];

/// Runs the demo.
pub(crate) fn run(wanted: Option<&Path>, no_mount: bool, keep: bool) -> Result<(), String> {
    let start = Instant::now();
    println!("==> build uext4 (release)");
    build()?;
    println!("    {:.1} s", start.elapsed().as_secs_f64());

    let (path, size) = match wanted {
        Some(path) => (
            path.to_path_buf(),
            tree::measure(path).ok_or_else(|| {
                format!("{}: cannot be read whole, or is larger than 300 MiB", path.display())
            })?,
        ),
        None => tree::find().ok_or("found no directory tree to bring in; name one with --tree")?,
    };
    println!("tree: {} ({} entries, {} MB)", path.display(), size.entries, size.bytes / 1_000_000);

    let why_no_mount = if no_mount { Some("--no-mount") } else { machine::why_no_fuse() };
    let middle = match why_no_mount {
        None => MOUNTED,
        Some(why) => {
            println!("no mount ({why}): the steps run in-process, through the verbs of uext4");
            IN_PROCESS
        }
    };

    let mut stage = Stage::set_up(path, keep)?;
    let steps: Vec<&Step> = [FIRST, middle, LAST].into_iter().flatten().collect();
    for (index, step) in steps.iter().enumerate() {
        println!("==> {}/{} {}", index + 1, steps.len(), step.name);
        let start = Instant::now();
        let said =
            (step.run)(&mut stage).map_err(|error| format!("demo: {}: {error}", step.name))?;
        println!("    {:.2} s  {said}", start.elapsed().as_secs_f64());
    }
    println!("\ndone in {:.1} s, the build included", start.elapsed().as_secs_f64());
    if keep {
        println!("the image is {}", stage.image().display());
    }
    Ok(())
}

/// Builds the command and makes sure that it has the verbs that the demo calls.
fn build() -> Result<(), String> {
    let built = workspace::cargo(&["build", "--release", "--locked", "--quiet", "-p", "uext4-cli"])
        .stdin(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("demo: uext4 does not build".into());
    }
    let help = std::process::Command::new(stage::command_path()).arg("--help").output();
    let text = help.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    for verb in ["mkfs", "mount", "umount", "info", "ls", "cat", "cp", "mkdir", "rm", "mv"] {
        if !text.split_whitespace().any(|word| word == verb) {
            return Err(format!("demo: this uext4 has no verb `{verb}` yet"));
        }
    }
    Ok(())
}
