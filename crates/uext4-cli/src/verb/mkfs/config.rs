//! `--config`: a file of the form of mke2fs.conf(5).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use uext4_mkfs::Profile;

use crate::failure::{At, Result, Why};

/// Bytes of a file that is read; real ones have a thousand or two.
const BYTES_MAX: u64 = 1 << 20;

const VARIABLE: &str = "MKE2FS_CONFIG";

/// The defaults of the file that the command line names, or else the environment; without a name
/// those that are compiled in, so that all hosts have the same.
pub(super) fn given(path: Option<&Path>) -> Result<Profile> {
    let of_environment = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    match path.or(of_environment.as_deref().map(Path::new)) {
        Some(path) => read(path),
        None => Ok(Profile::default()),
    }
}

fn read(path: &Path) -> Result<Profile> {
    let mut text = String::new();
    let file = File::open(path).at("mkfs", path.display())?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).at("mkfs", path.display())?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Why::new("too large for a file of defaults").at("mkfs", path.display()));
    }
    Profile::parse(&text).map_err(|error| Why::new(error.to_string()).at("mkfs", path.display()))
}
