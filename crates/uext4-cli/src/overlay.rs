//! Overlays: a file that takes what is written to an image, which stays as it is.
//!
//! Invariants: an image is opened because the user names it, never because the file of an overlay
//! does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use uext4_device::stored_overlay::{self, Layout, StoredOverlay};
use uext4_device::{FileDevice, FileOptions, OverlayError, SharedDevice};
use uext4_ondisk::features::{Support, support};

use crate::failure::{At, Failure, Result, Why};
use crate::image::{self, Access};
use crate::inspect::Inspected;
use crate::journal;
use crate::spec::{Image, Part};
use crate::verbosity::{done, remark};

impl From<OverlayError> for Why {
    fn from(error: OverlayError) -> Self {
        match error {
            OverlayError::Io(error) => error.into(),
            error => Self::new(error.to_string()),
        }
    }
}

/// The file of an overlay, as what is opened in place of its image. Its name has no parts.
pub(crate) fn file(path: &Path) -> Image {
    Image { path: path.to_path_buf(), part: Part::Whole, sector: None }
}

/// Whether there is a file without data: as good as none. One that was made when the machine
/// stopped has its length and nothing else.
pub(crate) fn is_empty(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
    Ok(file.metadata()?.is_file() && data == Err(rustix::io::Errno::NXIO))
}

/// Refuses the image itself as the file of its overlay, and block devices.
pub(crate) fn check(verb: &str, image: &Image, file: &Image) -> Result<()> {
    if journal::is_same(&image.path, &file.path) {
        let why = "an overlay needs a file of its own, not that of its image";
        return Err(Why::new(why).at(verb, file));
    }
    check_kind(verb, file)
}

/// Refuses a block device, which cannot become empty.
pub(crate) fn check_kind(verb: &str, file: &Image) -> Result<()> {
    match file.path.metadata() {
        Ok(found) if found.file_type().is_block_device() => {
            Err(Why::new("is a block device, and an overlay needs a file").at(verb, file))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes an overlay over `image` of a file that is not there or empty. Others stay as they are,
/// also those that another process makes meanwhile.
pub(crate) fn make_new(verb: &str, image: &Image, file: &Image) -> Result<()> {
    match is_empty(&file.path) {
        Ok(false) => return Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at(verb, file),
        Ok(true) | Err(_) => {}
    }
    let base = image::device(verb, image, Access::Read)?;
    // No file is made for what cannot be mounted.
    let inspected = Inspected::read(Arc::clone(&base)).at(verb, image)?;
    if let Support::Refused(names) = support(&inspected.superblock) {
        return Err(Why::new(format!("file system uses {}", names.join(" "))).at(verb, image));
    }
    let layout = Layout::new(base.len()).at(verb, image)?;
    let named = image.absolute().at(verb, image)?.to_string();
    let store = FileDevice::create_unless_filled(&file.path, layout.store_len());
    let store = store.map_err(|error| Failure::line(&format!("{verb}: {error}")))?;
    let Some(store) = store else { return Ok(()) };
    stored_overlay::create(&store, &*base, named.as_bytes())
        // Best effort: a hole is an empty one as well.
        .inspect_err(|_| drop(store.empty()))
        .at(verb, file)?;
    // Its name must outlive a crash as well.
    let folder = file.path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).at(verb, folder.display())?;
    done(verb, file, &format!("new overlay of {named}"));
    Ok(())
}

/// Opens the overlay in `file` over `image`, which is opened read-only.
pub(crate) fn open(
    verb: &str,
    image: &Image,
    file: &Image,
    options: &FileOptions,
) -> Result<SharedDevice> {
    let mut below = FileOptions::new(Access::Read.into());
    below.nbd_timeout = options.nbd_timeout;
    let base = image::device_with(verb, image, &below)?;
    let store = FileDevice::open_with(&file.path, options);
    let store = store.map_err(|error| Failure::line(&format!("{verb}: {error}")))?;
    if let Some(notice) = store.notice() {
        remark(&format!("{verb}: {file}: {notice}"));
    }
    Ok(Arc::new(StoredOverlay::open(Arc::new(store), base).at(verb, file)?))
}
