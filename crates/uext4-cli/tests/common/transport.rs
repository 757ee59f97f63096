//! The two ways that requests of a mount take.

use std::fs;
use std::sync::Mutex;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The parameter is one for all tests of a program.
static SWITCH: Mutex<()> = Mutex::new(());

/// Switches the kernel's side of io_uring on, for mounts that are made meanwhile.
pub(crate) struct Switch {
    before: String,
}

impl Switch {
    /// `None` where the kernel has none, or it is not ours to switch.
    pub(crate) fn on() -> Option<Self> {
        let before = fs::read_to_string(PARAMETER).ok()?;
        fs::write(PARAMETER, "Y").ok()?;
        Some(Self { before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        fs::write(PARAMETER, &self.before).expect("the parameter is as it was");
    }
}

/// Does `work` with the word of `-o` for each transport.
pub(crate) fn on_both(test: &str, work: impl Fn(&str)) {
    work("io_uring=off");
    let _alone = SWITCH.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let forbidden = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    if forbidden.is_ok_and(|text| text.trim() != "0") {
        eprintln!("skipped: {test} by io_uring: kernel.io_uring_disabled");
        return;
    }
    match Switch::on() {
        Some(_switch) => work("io_uring=on"),
        None => eprintln!("skipped: {test} by io_uring: needs root and Linux 6.14"),
    }
}
