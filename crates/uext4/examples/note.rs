//! Writes a file into an image, makes it durable and reads it back: `note IMAGE`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Access, FileDevice};

fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: note IMAGE")?;
    // The image is locked for this process; a dirty journal is replayed here.
    let device = FileDevice::open(Path::new(&image), Access::ReadWrite, 0)?;
    let volume = Volume::open(Arc::new(device), MountOptions::default())?;

    let root = volume.root()?;
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        owner: Owner { uid: 1000, gid: 1000 },
        rdev: uext4::Device::default(),
    };
    let inode = volume.create(&root, b"note", &new)?;
    let file = volume.open_file(&inode)?;
    file.write_at(0, b"from user space\n")?;
    // Data, size and name are durable when this returns; any number of threads may call it.
    file.sync(false)?;

    let mut text = vec![0; 16];
    let len = file.read_at(0, &mut text)?;
    print!("{}", String::from_utf8_lossy(&text[..len]));

    // Checkpoints everything and leaves a clean image. Dropping the volume does the same, but
    // cannot say what failed.
    drop((file, inode, root));
    volume.close()?;
    Ok(())
}
