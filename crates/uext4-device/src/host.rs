//! The name of this host, by which others know it.

/// The system's node name (uname(2)), or "uext4" where it cannot be read.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "uext4".to_owned(),
        name => name.to_owned(),
    }
}
