//! The keys of encrypted files that the command line gave.

use std::sync::OnceLock;

use uext4::MasterKey;

use crate::failure::{Failure, Result};

static KEYS: OnceLock<Vec<MasterKey>> = OnceLock::new();
static NAMES: OnceLock<Vec<String>> = OnceLock::new();

/// Reads the files that `--key` names, once.
pub(crate) fn give(names: &[String]) -> Result<()> {
    let keys: std::result::Result<Vec<MasterKey>, String> =
        names.iter().map(|name| MasterKey::from_file(name)).collect();
    let keys = keys.map_err(|why| Failure::line(&format!("--key: {why}")))?;
    // Nobody has given others before.
    let _ = KEYS.set(keys);
    let _ = NAMES.set(names.to_vec());
    Ok(())
}

/// The words of `--key`, for a process that goes on with this one's work.
pub(crate) fn names() -> &'static [String] {
    NAMES.get().map_or(&[], Vec::as_slice)
}

/// The keys, for a volume that is opened.
pub(crate) fn given() -> Vec<MasterKey> {
    KEYS.get().cloned().unwrap_or_default()
}
