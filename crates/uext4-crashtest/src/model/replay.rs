//! States as images: what is in effect is done again by the engine.
//!
//! What: a *checkpoint* is an image after some of the steps with all their data. A state is the
//! next older checkpoint, the metadata of the steps since, and the contents of all files that
//! differ from what the state picked.
//!
//! Invariant: a checkpoint has no file that gets its first name later, because closing the volume
//! would remove it.

use std::collections::BTreeMap;
use std::sync::Arc;

use uext4::{
    AllocateMode, Device, FileKind, Ino, InodeRef, MountOptions, NewInode, Owner, RenameMode,
    SetAttr, Volume, XattrMode,
};
use uext4_device::MemoryDevice;

use crate::error::{Error, Result};
use crate::model::base::{Base, inode};
use crate::model::contents::{Choices, Picked};
use crate::model::explorer::Explorer;
use crate::model::file_history::FileHistory;
use crate::model::history::{COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use crate::model::options::{Moment, Promises};
use crate::model::spec::StateSpec;
use crate::trace::{Attributes, Call, FileId, Name, NewFile, Step};

/// Steps between checkpoints.
const CHECKPOINT_STEPS: usize = 128;

/// Checkpoints that are kept.
const CHECKPOINTS: usize = 64;

/// An image after the steps before some position.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    device: MemoryDevice,
    numbers: BTreeMap<FileId, Ino>,
}

/// A volume on which steps are done again.
struct Player {
    volume: Volume,
    inodes: BTreeMap<FileId, InodeRef>,
}

impl Checkpoint {
    pub(crate) fn of(base: &Base, before: &[(FileId, u32)]) -> Self {
        let numbers = before.iter().map(|(file, number)| (*file, Ino(*number)));
        let root = std::iter::once((FileId::ROOT, Ino::ROOT));
        Self { device: base.device().snapshot(), numbers: numbers.chain(root).collect() }
    }

    /// The image, open to go on.
    fn open(&self) -> Result<(Player, Arc<MemoryDevice>)> {
        let device = Arc::new(self.device.snapshot());
        let shared = Arc::clone(&device);
        let volume = Volume::open(shared, MountOptions::default())?;
        let mut inodes = BTreeMap::new();
        for (file, number) in &self.numbers {
            inodes.insert(*file, inode(&volume, number.get())?);
        }
        Ok((Player { volume, inodes }, device))
    }
}

impl Explorer {
    /// A state as an image that was closed cleanly.
    ///
    /// # Errors
    /// A trace that does not fit its file system.
    pub fn image(&self, spec: &StateSpec) -> Result<MemoryDevice> {
        let (moment, promises) = self.moment(spec);
        let (position, checkpoint) = self.checkpoint_before(moment.committed)?;
        let (mut player, device) = checkpoint.open()?;
        for index in position..moment.committed {
            player.structure(&self.steps()[index]).map_err(|error| at_step(index, &error))?;
        }
        self.set_contents(&player, position, spec, moment, &promises)?;
        player.close()?;
        Ok(device.snapshot())
    }

    /// The nearest checkpoint, made if the one that should be there is not.
    fn checkpoint_before(&self, committed: usize) -> Result<(usize, Arc<Checkpoint>)> {
        let gets_a_name = |at| self.history().files.values().any(|file| file.gets_a_name_after(at));
        let mut wanted = committed / CHECKPOINT_STEPS * CHECKPOINT_STEPS;
        while wanted > 0 && gets_a_name(wanted) {
            wanted -= CHECKPOINT_STEPS;
        }
        let mut checkpoints = self.checkpoints();
        let (position, nearest) =
            checkpoints.range(..=wanted).next_back().expect("there is one at the begin");
        let (position, nearest) = (*position, Arc::clone(nearest));
        if position == wanted {
            return Ok((position, nearest));
        }
        let made = Arc::new(self.advance(&nearest, position..wanted)?);
        if checkpoints.len() >= CHECKPOINTS {
            let middle = checkpoints.keys().nth(1 + wanted % (CHECKPOINTS - 1)).copied();
            middle.map(|position| checkpoints.remove(&position));
        }
        checkpoints.insert(wanted, Arc::clone(&made));
        Ok((wanted, made))
    }

    fn advance(&self, from: &Checkpoint, steps: std::ops::Range<usize>) -> Result<Checkpoint> {
        let (mut player, device) = from.open()?;
        for index in steps {
            let step = &self.steps()[index];
            let done = player.structure(step).and_then(|()| player.data(step));
            done.map_err(|error| at_step(index, &error))?;
        }
        let linked = player.inodes.iter().filter(|(_, inode)| player.volume.attr(inode).links > 0);
        let numbers = linked.map(|(file, inode)| (*file, inode.ino())).collect();
        player.close()?;
        Ok(Checkpoint { device: device.snapshot(), numbers })
    }

    /// Gives all files what the state picked. What the state lacks goes first: the room for what it
    /// has may be there only then.
    fn set_contents(
        &self,
        player: &Player,
        position: usize,
        spec: &StateSpec,
        moment: Moment,
        promises: &Promises,
    ) -> Result<()> {
        let choices = Choices::of(spec);
        let mut wanted_files = Vec::new();
        for (id, file) in &self.history().files {
            if file.last_change.is_none() || !file.has_name(moment.committed) {
                continue;
            }
            let Some(picked) = self.history().pick(*id, &choices, moment, promises) else {
                continue;
            };
            let inode = player.inode(*id)?;
            let there = There::at(file, position);
            let bytes = |generation, at, content| {
                self.history().picked_bytes(self.base(), file, generation, at, content)
            };
            if picked.size < player.volume.attr(inode).size {
                player.set_size(inode, picked.size)?;
            }
            let open = player.volume.open_file(inode)?;
            let mut writes = Vec::new();
            for at in there.blocks(file, picked.options.generation) {
                let wanted = match picked.blocks.get(&at) {
                    Some(content) => *content,
                    None => Picked::Version(0),
                };
                let old = there.version(file, at);
                let is_same = there.generation == Some(picked.options.generation)
                    && old.is_some_and(|old| wanted == Picked::Version(old));
                if is_same {
                    continue;
                }
                let offset = at * self.history().block;
                let len = picked.size.saturating_sub(offset).min(self.history().block) as usize;
                let mut wanted = bytes(picked.options.generation, at, wanted)?;
                wanted.truncate(len);
                let is_zeros = wanted.iter().all(|byte| *byte == 0);
                match (is_zeros, old) {
                    _ if len == 0 => {}
                    (true, None) => {}
                    (true, Some(_)) => {
                        open.allocate(AllocateMode::PunchHole, offset, len as u64)?
                    }
                    (false, _) => writes.push((offset, wanted)),
                }
            }
            wanted_files.push((inode, picked.size, writes));
        }
        for (inode, size, writes) in wanted_files {
            let open = player.volume.open_file(inode)?;
            for (offset, bytes) in writes {
                write_all(&open, offset, &bytes)?;
            }
            drop(open);
            if player.volume.attr(inode).size != size {
                player.set_size(inode, size)?;
            }
        }
        Ok(())
    }
}

/// What a checkpoint has of a file: all that was written before it.
struct There {
    position: usize,
    /// `None`: the file is new since.
    generation: Option<usize>,
}

impl There {
    fn at(file: &FileHistory, position: usize) -> Self {
        let generation = file.exists(position).then(|| file.generation_at(position));
        Self { position, generation }
    }

    /// The version of a block; `None` if it was never there.
    fn version(&self, file: &FileHistory, at: u64) -> Option<usize> {
        let events = file.generations[self.generation?].blocks.get(&at);
        let before = |events: &Vec<_>| {
            events.partition_point(|event: &crate::model::generation::Event| {
                event.step < self.position
            })
        };
        Some(events.map_or(0, before))
    }

    /// Blocks that may have to change.
    fn blocks(&self, file: &FileHistory, generation: usize) -> Vec<u64> {
        let touched = file.generations[generation].blocks.keys().copied();
        let now = &file.generations[generation];
        match self.generation {
            Some(there) if there == generation => touched.collect(),
            // Blocks were shifted since: all are compared.
            _ if generation > 0 => {
                let end = now.size.max(now.first_size).div_ceil(file.block());
                let last = touched.max().map_or(0, |last| last + 1);
                (0..end.max(last)).collect()
            }
            _ => touched.collect(),
        }
    }
}

fn write_all(file: &uext4::OpenFile, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(offset + done as u64, &bytes[done..])? {
            0 => return Err(Error::new("a write of nothing")),
            count => done += count,
        }
    }
    Ok(())
}

fn at_step(index: usize, error: &Error) -> Error {
    Error::new(format!("step {index} cannot be repeated: {error}"))
}

impl Player {
    fn inode(&self, file: FileId) -> Result<&InodeRef> {
        let unknown = || Error::new(format!("the trace names file {} that is not there", file.0));
        self.inodes.get(&file).ok_or_else(unknown)
    }

    fn close(self) -> Result<()> {
        drop(self.inodes);
        Ok(self.volume.close()?)
    }

    fn set_size(&self, inode: &InodeRef, size: u64) -> Result<()> {
        self.volume.set_attr(inode, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    /// Forgets a file that has lost its last name, so that its blocks are free: no program can
    /// give it another name, nor see it after a crash.
    fn let_go(&mut self, file: FileId) {
        if self.inodes.get(&file).is_some_and(|inode| self.volume.attr(inode).links == 0) {
            self.inodes.remove(&file);
        }
    }

    /// Changes names and attributes.
    fn structure(&mut self, step: &Step) -> Result<()> {
        match &step.call {
            // A descriptor of a file that has no name any more, and is not kept.
            Call::SetAttributes { file, .. } | Call::SetXattr { file, .. }
                if !self.inodes.contains_key(file) => {}
            Call::Create { file, name, kind, attributes } => {
                let inode = self.create(name.as_ref(), kind, attributes)?;
                self.inodes.insert(*file, inode);
            }
            Call::Link { file, name } => {
                let (inode, parent) = (self.inode(*file)?, self.inode(name.parent)?);
                self.volume.link(inode, parent, &name.name)?;
            }
            Call::Remove { file, name } => {
                let parent = self.inode(name.parent)?;
                let kind = self.volume.attr(self.inode(*file)?).kind;
                if kind == FileKind::Directory {
                    self.volume.rmdir(parent, &name.name)?;
                } else {
                    self.volume.unlink(parent, &name.name)?;
                }
                self.let_go(*file);
            }
            Call::Rename { from, to, exchange, replaced, .. } => {
                let mode = if *exchange { RenameMode::Exchange } else { RenameMode::Replace };
                let (old, new) = (self.inode(from.parent)?, self.inode(to.parent)?);
                self.volume.rename(old, &from.name, new, &to.name, mode)?;
                replaced.map(|file| self.let_go(file));
            }
            Call::SetAttributes { file, change } => {
                let change = SetAttr {
                    mode: change.mode.map(|mode| (mode & 0o7777) as u16),
                    uid: change.uid,
                    gid: change.gid,
                    ..SetAttr::default()
                };
                self.volume.set_attr(self.inode(*file)?, &change)?;
            }
            Call::SetXattr { file, name, value } => {
                let inode = self.inode(*file)?;
                match value {
                    Some(value) => self.volume.xattr_set(inode, name, value, XattrMode::Any)?,
                    None => self.volume.xattr_remove(inode, name)?,
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn create(
        &self,
        name: Option<&Name>,
        kind: &NewFile,
        attributes: &Attributes,
    ) -> Result<InodeRef> {
        let parent = self.inode(name.map_or(FileId::ROOT, |name| name.parent))?;
        let owner = Owner { uid: attributes.uid.unwrap_or(0), gid: attributes.gid.unwrap_or(0) };
        let name_bytes = name.map_or(&b""[..], |name| &name.name);
        let mut device = Device::default();
        let kind = match kind {
            NewFile::Symlink(target) => {
                return Ok(self.volume.symlink(parent, name_bytes, target, owner)?);
            }
            NewFile::Regular => FileKind::Regular,
            NewFile::Directory => FileKind::Directory,
            NewFile::Special { kind, device: number } => {
                let major = number >> 8 & 0xfff;
                device = Device { major, minor: number & 0xff | number >> 12 & 0xf_ff00 };
                FileKind::from_mode((*kind & 0o170_000) as u16)
                    .ok_or_else(|| Error::new(format!("{kind:o} is no type of a file")))?
            }
        };
        let mode = (attributes.mode.unwrap_or(0o644) & 0o7777) as u16;
        let new = NewInode { kind, mode, owner, rdev: device };
        Ok(match name {
            Some(_) => self.volume.create(parent, name_bytes, &new)?,
            None => self.volume.create_unlinked(parent, &new)?,
        })
    }

    /// Changes content. What has no name any more cannot be seen after a crash.
    fn data(&self, step: &Step) -> Result<()> {
        let (Call::Write { file, .. } | Call::Truncate { file, .. } | Call::Allocate { file, .. }) =
            &step.call
        else {
            return Ok(());
        };
        let Some(inode) = self.inodes.get(file) else { return Ok(()) };
        match &step.call {
            Call::Write { offset, data, .. } => {
                write_all(&self.volume.open_file(inode)?, *offset, data)?;
            }
            Call::Truncate { size, .. } => self.set_size(inode, *size)?,
            Call::Allocate { mode, offset, len, .. } => {
                let keep_size = mode & KEEP_SIZE != 0;
                let mode = match mode & !KEEP_SIZE {
                    PUNCH_HOLE => AllocateMode::PunchHole,
                    ZERO_RANGE => AllocateMode::ZeroRange { keep_size },
                    COLLAPSE_RANGE => AllocateMode::CollapseRange,
                    INSERT_RANGE => AllocateMode::InsertRange,
                    _ => AllocateMode::Allocate { keep_size },
                };
                self.volume.open_file(inode)?.allocate(mode, *offset, *len)?;
            }
            _ => {}
        }
        Ok(())
    }
}
