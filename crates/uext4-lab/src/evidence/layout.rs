//! How an image lies after a run, as the programs of e2fsprogs and our own tell it.

use std::ffi::OsStr;
use std::path::Path;

use crate::command;
use crate::error::Result;
use crate::evidence::run_name::RunName;
use crate::evidence::scene::Tools;
use crate::plan::Plan;

/// Keeps what e2freefrag and `uext4 frag` say of an image that nobody has open.
///
/// # Errors
/// No room for it.
pub(crate) fn keep_layout(plan: &Plan, name: RunName<'_>, image: &Path) -> Result<()> {
    let Some(tools) = Tools::of(plan, name) else { return Ok(()) };
    let path = image.as_os_str();
    // What is not there, or fails, leaves no file: the run's figures do not hang on it.
    if let Ok((Some(0), text)) = command::status("e2freefrag", &[path]) {
        tools.keep("freefrag.txt", text.as_bytes())?;
    }
    let own = plan.command.as_deref().map(Path::to_string_lossy);
    let frag: [&OsStr; 2] = ["frag".as_ref(), path];
    match own.map(|own| command::status(&own, &frag)) {
        Some(Ok((Some(0), text))) => tools.keep("frag.txt", text.as_bytes()),
        _ => Ok(()),
    }
}
