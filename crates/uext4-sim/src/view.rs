//! What a volume shows: every name, every attribute, every byte.

use crate::content::FileBytes;
use crate::operation::{FLAGS, Id, Kind, Place, ROOT};
use std::collections::BTreeMap;
use uext4::{Device, Error, ErrorKind, FileKind, InodeRef, OpenFile, Volume};
use uext4_ondisk::Ino;

/// A node as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Inode number.
    pub ino: Ino,
    /// Owner: the load's number of the node, 0 while it has none.
    pub uid: Id,
    /// Type; `None` for those that no load makes.
    pub kind: Option<Kind>,
    /// Permission bits.
    pub mode: u16,
    /// Group.
    pub gid: u32,
    /// Inode flags, of [`FLAGS`](crate::operation::FLAGS).
    pub flags: u32,
    /// Hard links, as the inode counts them.
    pub links: u32,
    /// Modification time.
    pub mtime: (i64, u32),
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a regular file.
    pub content: FileBytes,
}

/// Everything that can be reached from the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Every name, by the number (owner) of its directory.
    pub entries: BTreeMap<Place, Ino>,
    /// Every node but the root.
    pub nodes: BTreeMap<Ino, Seen>,
}

impl View {
    /// Reads a whole volume.
    ///
    /// # Errors
    /// The first failure, with the name at which it happened.
    pub fn read(volume: &Volume) -> Result<View, String> {
        let mut view = View::default();
        let root = volume.root().map_err(|error| format!("root: {error}"))?;
        view.read_directory(volume, &root, ROOT)?;
        Ok(view)
    }

    fn read_directory(&mut self, volume: &Volume, dir: &InodeRef, id: Id) -> Result<(), String> {
        let mut names = Vec::new();
        volume
            .read_dir(dir, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    names.push((entry.name.to_vec(), entry.ino));
                }
                true
            })
            .map_err(|error| format!("directory {}: {error}", dir.ino().get()))?;
        for (name, ino) in names {
            if id == ROOT && name == b"lost+found" {
                continue;
            }
            let place = Place { dir: id, name };
            self.read_entry(volume, dir, place.clone(), ino)
                .map_err(|error| format!("{place:?}: {error}"))?;
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        volume: &Volume,
        dir: &InodeRef,
        place: Place,
        ino: Ino,
    ) -> Result<(), String> {
        // By look-up and not by number: the hash index must lead to the name, too.
        let inode = volume.lookup(dir, &place.name).map_err(|error| error.to_string())?;
        if inode.ino() != ino {
            let looked_up = inode.ino().get();
            return Err(format!("listed as inode {}, looked up as {looked_up}", ino.get()));
        }
        if self.entries.insert(place, ino).is_some() {
            return Err("the name is listed twice".into());
        }
        if self.nodes.contains_key(&ino) {
            return Ok(());
        }
        let seen = read_node(volume, &inode).map_err(|error| error.to_string())?;
        let (uid, is_directory) = (seen.uid, seen.kind == Some(Kind::Directory));
        self.nodes.insert(ino, seen);
        if is_directory {
            self.read_directory(volume, &inode, uid)?;
        }
        Ok(())
    }

    /// Differences to another view: at most a few lines.
    #[must_use]
    pub fn differences(&self, other: &View) -> Vec<String> {
        let mut lines = Vec::new();
        for (place, ino) in &self.entries {
            if other.entries.get(place) != Some(ino) {
                lines.push(format!("{place:?}: {ino:?} and {:?}", other.entries.get(place)));
            }
        }
        for place in other.entries.keys().filter(|place| !self.entries.contains_key(place)) {
            lines.push(format!("{place:?}: only in the second"));
        }
        for (ino, seen) in &self.nodes {
            match other.nodes.get(ino) {
                Some(node) if node != seen => lines.push(format!(
                    "inode {}: {} and {}",
                    ino.get(),
                    seen.describe(),
                    node.describe()
                )),
                _ => {}
            }
        }
        lines.truncate(6);
        lines
    }
}

impl Seen {
    /// One line, the content by its size.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{:?} uid {:#x} gid {} mode {:o} flags {:#x} links {} size {} mtime {:?} xattrs {} \
             target {}",
            self.kind,
            self.uid,
            self.gid,
            self.mode,
            self.flags,
            self.links,
            self.content.size,
            self.mtime,
            self.xattrs.len(),
            self.target.len()
        )
    }
}

fn read_node(volume: &Volume, inode: &InodeRef) -> Result<Seen, Error> {
    let attr = volume.attr(inode);
    let kind = match attr.kind {
        FileKind::Regular => Some(Kind::File),
        FileKind::Directory => Some(Kind::Directory),
        FileKind::Fifo => Some(Kind::Fifo),
        FileKind::Symlink => Some(Kind::Symlink),
        FileKind::CharDevice if attr.rdev == Device::default() => Some(Kind::Whiteout),
        _ => None,
    };
    let mut xattrs = BTreeMap::new();
    for name in volume.xattr_list(inode)? {
        let value = volume.xattr_get(inode, &name)?;
        xattrs.insert(name, value);
    }
    let target = match kind {
        Some(Kind::Symlink) => volume.read_link(inode)?,
        _ => Vec::new(),
    };
    let content = match kind {
        Some(Kind::File) => read_content(&volume.open_file(inode)?, attr.size)?,
        _ => FileBytes::default(),
    };
    Ok(Seen {
        ino: attr.ino,
        uid: attr.uid,
        kind,
        mode: attr.mode,
        gid: attr.gid,
        flags: volume.flags(inode) & FLAGS,
        links: attr.links,
        mtime: (attr.mtime.secs, attr.mtime.nanos),
        target,
        xattrs,
        content,
    })
}

/// Reads the data ranges of a file, found with `SEEK_DATA` and `SEEK_HOLE`.
///
/// # Errors
/// Those of the volume.
pub fn read_content(file: &OpenFile, size: u64) -> Result<FileBytes, Error> {
    let mut data = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match file.seek_data(at) {
            Ok(start) => start,
            Err(error) if *error.kind() == ErrorKind::NoData => break,
            Err(error) => return Err(error),
        };
        let end = file.seek_hole(start)?;
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
        let read = file.read_at(start, &mut bytes)?;
        bytes.truncate(read);
        data.push((start, bytes));
        at = end.max(start + 1);
    }
    Ok(FileBytes { size, data })
}
