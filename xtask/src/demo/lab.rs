//! The last step: a few loads beside the kernel, and their report.

use std::fs;

use crate::demo::StepResult;
use crate::demo::stage::Stage;
use crate::workspace;

/// Loads that together take about half a minute.
const LOADS: &str = "E3,M4";

/// Runs the loads; the evidence stays in `target/demo-lab` until the next demo.
pub(super) fn measure(stage: &mut Stage) -> StepResult {
    let folder = workspace::target().join("demo-lab");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let out = folder.display().to_string();
    stage.uext4(&["lab", "run", LOADS, "--quick", "--out", &out])?;
    let report = folder.join("report.html");
    if !report.is_file() {
        return Err(format!("{} is missing", report.display()));
    }
    Ok(format!("{LOADS} beside the peers of this machine: {}", report.display()))
}
