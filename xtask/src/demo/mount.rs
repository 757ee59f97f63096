//! Steps on the mounted image, with ordinary programs.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::StepResult;
use super::image;
use super::stage::Stage;

/// What a user does in a mounted file system: a remark and a command line, run in its root.
const WORK: &[(&str, &[&str])] = &[
    ("mkdir", &["mkdir", "-p", "new/deep/er"]),
    ("copy", &["cp", "-a", "tree", "new/copy"]),
    ("compare the copy", &["diff", "-r", "-q", "--no-dereference", "tree", "new/copy"]),
    ("tar it", &["tar", "-cf", "new/tree.tar", "tree"]),
    ("untar it", &["tar", "-xf", "new/tree.tar", "-C", "new/deep/er"]),
    ("hard link", &["ln", "new/tree.tar", "new/same.tar"]),
    ("symbolic link", &["ln", "-s", "new/tree.tar", "link"]),
    ("rename", &["mv", "new/same.tar", "new/renamed.tar"]),
    ("chmod", &["chmod", "-R", "go-w", "new/deep"]),
    ("set a time", &["touch", "-d", "2040-01-02 03:04:05.678901234", "new/renamed.tar"]),
    ("sparse file", &["truncate", "-s", "10G", "new/sparse"]),
    ("search", &["grep", "-r", "-l", "-m1", "e", "new/deep/er/tree", "--include=*.rs"]),
    ("find", &["find", ".", "-type", "f", "-newermt", "2000-01-01"]),
    ("count", &["du", "-s", "new"]),
    ("remove", &["rm", "-r", "new/copy"]),
    ("free space", &["df", "."]),
];

pub(super) fn mount(stage: &mut Stage) -> StepResult {
    stage.mount()?;
    Ok(format!("on {}", stage.mount_point().display()))
}

pub(super) fn compare(stage: &mut Stage) -> StepResult {
    image::compare(&stage.tree, &stage.mount_point().join("tree"))?;
    Ok("diff -r finds no difference".into())
}

pub(super) fn work(stage: &mut Stage) -> StepResult {
    for (remark, line) in WORK {
        // grep says 1 when a tree has no such file; everything else must succeed.
        match stage.program(line) {
            Err(error) if line[0] != "grep" || !error.contains("exit status: 1") => {
                return Err(format!("{remark}: {error}"));
            }
            _ => {}
        }
    }
    let time = stage.program(&["stat", "-c", "%y", "new/renamed.tar"])?;
    if !time.contains(":05.678901234") {
        return Err(format!("a time was set to the nanosecond and came back as {}", time.trim()));
    }
    let names: Vec<&str> = WORK.iter().map(|(remark, _)| *remark).collect();
    Ok(names.join(", "))
}

pub(super) fn write_acknowledged(stage: &mut Stage) -> StepResult {
    let line = [
        "dd",
        "if=/dev/urandom",
        "of=acknowledged",
        "bs=1M",
        "count=32",
        "conv=fsync",
        "status=none",
    ];
    stage.program(&line)?;
    stage.program(&["sync", "."])?;
    stage.acknowledged = stage.program(&["sha256sum", "acknowledged"])?;
    Ok("32 MiB, dd conv=fsync, and an fsync of its folder".into())
}

/// Copies the tree in twice at once and kills the mounting process meanwhile.
pub(super) fn kill_under_load(stage: &mut Stage) -> StepResult {
    let mut load = Vec::new();
    for to in ["load.1", "load.2"] {
        let child = Command::new("cp")
            .args(["-a", "tree", to])
            .current_dir(stage.mount_point())
            .stdin(Stdio::null())
            // It ends with an error when its file system dies.
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run cp: {error}"))?;
        load.push(child);
    }
    std::thread::sleep(Duration::from_millis(700));
    let killed = stage.kill();
    for child in &mut load {
        super::stage::stop(child);
    }
    killed?;
    Ok("two cp -a were running; the mounting process got SIGKILL after 0.7 s".into())
}

pub(super) fn check_acknowledged(stage: &mut Stage) -> StepResult {
    let now = stage.program(&["sha256sum", "acknowledged"])?;
    if now != stage.acknowledged {
        return Err("its bytes are not those that were fsynced".into());
    }
    image::compare(&stage.tree, &stage.mount_point().join("tree"))?;
    Ok("same SHA-256; the tree is unchanged as well".into())
}

pub(super) fn remove(stage: &mut Stage) -> StepResult {
    stage.program(&["rm", "-rf", "new", "load.1", "load.2", "link"])?;
    Ok("rm -rf of everything but the tree and the fsynced file".into())
}

pub(super) fn unmount(stage: &mut Stage) -> StepResult {
    stage.unmount()?;
    Ok("the image is closed".into())
}
