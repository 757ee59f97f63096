//! What mke2fs cannot put into an image: by the engine, where the image has the feature.
//!
//! e2fsck judges the result, as it does what mke2fs makes.

use std::sync::Arc;

use uext4::{
    Error, FileKind, InodeRef, MountOptions, NewInode, Owner, VerityParameters, Volume, XattrMode,
};
use uext4_device::MemoryDevice;
use uext4_ondisk::quota::{QuotaEntry, QuotaKind};
use uext4_ondisk::verity::Algorithm;
use uext4_ondisk::{Incompat, RoCompat};

use crate::{encrypted, folded};

/// Names in a directory: enough for an index of blocks of 1 KiB.
const NAMES: usize = 60;

/// Adds encrypted and folding directories, a sealed file, values in inodes, owners and limits.
///
/// # Errors
/// Those of the volume.
pub(super) fn furnish(device: MemoryDevice) -> Result<MemoryDevice, Error> {
    let device = Arc::new(device);
    let options = encrypted::with_key(MountOptions::default());
    let volume = Volume::open(device.clone(), options)?;
    let features = volume.layout().features;
    if features.incompat.contains(Incompat::ENCRYPT) {
        let dir = make(&volume, &volume.root()?, "encrypted", FileKind::Directory, 0)?;
        encrypted::encrypt(&volume, &dir)?;
        fill(&volume, &dir)?;
        volume.symlink(&dir, b"link", b"the target", Owner::default())?;
    }
    if features.incompat.contains(Incompat::CASEFOLD) {
        let dir = make(&volume, &volume.root()?, "folded", FileKind::Directory, 0)?;
        folded::fold(&volume, &dir)?;
        fill(&volume, &dir)?;
    }
    if features.incompat.contains(Incompat::EA_INODE) {
        values(&volume)?;
    }
    if features.ro_compat.contains(RoCompat::VERITY) {
        seal(&volume)?;
    }
    if features.ro_compat.contains(RoCompat::QUOTA) {
        owners(&volume)?;
    }
    volume.close()?;
    Ok(device.snapshot())
}

fn make(
    volume: &Volume,
    dir: &InodeRef,
    name: &str,
    kind: FileKind,
    user: u32,
) -> Result<InodeRef, Error> {
    let owner = Owner { uid: user, gid: user * 2 };
    let new = NewInode { kind, mode: 0o755, owner, rdev: Default::default() };
    volume.create(dir, name.as_bytes(), &new)
}

fn write(volume: &Volume, file: &InodeRef, len: usize) -> Result<(), Error> {
    volume.open_file(file)?.write_at(0, &vec![6; len]).map(drop)
}

/// Names of many lengths, a directory below, and content.
fn fill(volume: &Volume, dir: &InodeRef) -> Result<(), Error> {
    for n in 0..NAMES {
        make(volume, dir, &format!("Stra\u{df}e {n} {}", "x".repeat(n)), FileKind::Regular, 0)?;
    }
    let below = make(volume, dir, "Below", FileKind::Directory, 0)?;
    write(volume, &make(volume, &below, "File", FileKind::Regular, 0)?, 5000)
}

/// Values in inodes, one of them shared.
fn values(volume: &Volume) -> Result<(), Error> {
    for (n, byte) in [1, 1, 2, 3].into_iter().enumerate() {
        let name = format!("with values {n}");
        let file = make(volume, &volume.root()?, &name, FileKind::Regular, n as u32)?;
        let value = vec![byte; 5000];
        volume.xattr_set(&file, b"user.value", &value, XattrMode::Any)?;
        volume.xattr_set(&file, b"user.small", b"small", XattrMode::Any)?;
    }
    Ok(())
}

fn seal(volume: &Volume) -> Result<(), Error> {
    let file = make(volume, &volume.root()?, "sealed", FileKind::Regular, 0)?;
    write(volume, &file, 200_000)?;
    let block_size = volume.layout().block_size;
    let parameters =
        VerityParameters { algorithm: Algorithm::Sha256, block_size, salt: vec![1, 2, 3] };
    volume.enable_verity(&file, parameters)
}

/// Owners with numbers that are far apart, so that their trees have several leaves.
fn owners(volume: &Volume) -> Result<(), Error> {
    for user in [1, 7, 1000, 65_534, 1 << 24] {
        let file = make(volume, &volume.root()?, &format!("of {user}"), FileKind::Regular, user)?;
        write(volume, &file, 3000)?;
        if volume.quota(QuotaKind::Project)?.is_some() {
            volume.set_project_id(&file, user)?;
        }
        let mut limits = QuotaEntry { id: user, ..QuotaEntry::default() };
        limits.space.hard = 1 << 20;
        volume.set_quota_limits(QuotaKind::User, &limits)?;
    }
    Ok(())
}
