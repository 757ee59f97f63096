//! A temporary folder with a directory for each mount.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The folder. It goes when it is dropped, but never by what is in a mount.
pub(super) struct Place {
    folder: PathBuf,
}

impl Place {
    pub(super) fn new() -> Result<Self> {
        let failed = |error| Error::new(format!("a temporary folder: {error}"));
        // Mounts and processes are known by paths without symbolic links.
        let within = tempfile::env::temp_dir().canonicalize().map_err(failed)?;
        let folder = tempfile::Builder::new().prefix("uext4-crashtest.").tempdir_in(within);
        let folder = folder.map_err(failed)?.keep();
        let place = Self { folder };
        // Programs may run as another user: servers that refuse to be root's.
        fs::set_permissions(&place.folder, PermissionsExt::from_mode(0o755)).map_err(failed)?;
        Ok(place)
    }

    /// A new directory in it.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::create_dir(&path).map_err(|error| failed(&path, &error))?;
        Ok(path)
    }

    /// A file in it, with these bytes.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, bytes).map_err(|error| failed(&path, &error))?;
        Ok(path)
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("{}: {error}", path.display()))
}

impl Drop for Place {
    fn drop(&mut self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            // A directory that something is still mounted on stays.
            let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
        }
        let _ = fs::remove_dir(&self.folder);
    }
}
