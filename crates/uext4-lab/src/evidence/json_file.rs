//! A file of one value, as JSON.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::error::{Doing, Result};

/// What stands in it.
pub(super) fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).doing(format_args!("reading {}", path.display()))?;
    serde_json::from_str(&text).doing(path.display())
}

/// Writes it, durably. A crash leaves the old one or the new one, whole.
pub(super) fn write(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).doing("JSON")?;
    let new = path.with_extension("new");
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all((text + "\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().doing(format_args!("writing {}", path.display()))
}
