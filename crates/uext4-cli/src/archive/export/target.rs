//! The file of the host that an archive is written to.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::operands::Try;

/// Mode of a new file, less the umask.
const MODE: u32 = 0o666;

/// A file that becomes an archive. A regular one is written beside its name and gets it when it is
/// whole: an export that is interrupted or fails leaves the archive that was there.
pub(crate) enum Target {
    Beside(NamedTempFile, PathBuf),
    /// A fifo, a device, or a file in a directory that takes no other.
    InPlace(File),
}

impl Target {
    /// Opens the file of a name; `check` says whether what is there may be replaced.
    pub(crate) fn create(path: &Path, check: impl Fn(&Metadata) -> Try<()>) -> Try<Self> {
        // Not shortened before it is known what it is. What is not writable is not replaced.
        let there = match File::options().write(true).open(path) {
            Ok(file) => Some(file),
            // Of a link that leads to nothing the file is made where it leads.
            Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => None,
            Err(error) if error.kind() == ErrorKind::NotFound => Some(File::create(path)?),
            Err(error) => return Err(error.into()),
        };
        let Some(there) = there else {
            return match beside(path) {
                Ok(file) => Ok(Self::Beside(file, path.to_owned())),
                Err(error) if is_refusal(&error) => Ok(Self::InPlace(File::create_new(path)?)),
                Err(error) => Err(error.into()),
            };
        };
        let found = there.metadata()?;
        check(&found)?;
        if !found.is_file() {
            return Ok(Self::InPlace(there));
        }
        let path = fs::canonicalize(path)?;
        match beside(&path) {
            Ok(file) => {
                // As an archive that is written in place keeps them, where that is allowed.
                let (uid, gid) = (Some(found.uid()), Some(found.gid()));
                let _ = std::os::unix::fs::fchown(file.as_file(), uid, gid);
                file.as_file().set_permissions(found.permissions())?;
                Ok(Self::Beside(file, path))
            }
            Err(error) if is_refusal(&error) => {
                there.set_len(0)?;
                Ok(Self::InPlace(there))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What is written to.
    pub(crate) fn file(&self) -> &File {
        match self {
            Self::Beside(file, _) => file.as_file(),
            Self::InPlace(file) => file,
        }
    }

    /// Ends a file that is whole.
    pub(crate) fn finish(self) -> io::Result<()> {
        settle(self.file())?;
        match self {
            Self::Beside(file, path) => Ok(file.persist(path).map(drop)?),
            Self::InPlace(_) => Ok(()),
        }
    }
}

/// Waits until a regular file is on its device: what fails later, as of quota or over a network,
/// would be told to nobody.
pub(crate) fn settle(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) }
}

/// An empty file in the same directory, whose name says that it is no archive yet.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(".");
    let permissions = Permissions::from_mode(MODE);
    let mut builder = Builder::new();
    builder.prefix(&prefix).suffix(".part").permissions(permissions);
    builder.tempfile_in(parent.unwrap_or(Path::new(".")))
}

/// Whether a directory takes no file of another name.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::InvalidFilename
    )
}
