//! Tests that leave nothing when they are killed.
//!
//! Servers, clusters and mounts outlive a test that is killed. So it runs in name spaces of its own
//! for processes and for mounts (unshare(1)), which the kernel takes away, with all that is in
//! them, when their first process ends; and that one is killed when the test's thread ends
//! (`PR_SET_PDEATHSIG`). Files in folders for temporary ones stay.

use std::process::Stdio;

use crate::common::{is_root, system};

/// Set for the test that is inside.
const INSIDE: &str = "UEXT4_CONTAINED";

/// Runs the test of that name of this program again, in name spaces of its own, where it does
/// `what`.
pub(crate) fn contained(test: &str, what: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return what();
    }
    assert!(is_root(), "it needs root");
    let mut command = system("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc"]);
    // The shell is the first process, and reaps those that have lost their parent.
    command.args(["--fork", "--kill-child", "sh", "-c", "\"$@\"; exit $?", "sh"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--quiet"]);
    let status = command.env(INSIDE, "1").stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{test}: {status}");
}
