//! Setting and removing attributes, and freeing the block of a deleted inode.

use super::VALUE_MAX;
use super::read::{ACL_ACCESS, ACL_DEFAULT, block_of, key_of};
use super::stored::{Key, Stored};
use crate::alloc::{Allocation, Space};
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{FieldsHeld, Inode};
use crate::journal::Handle;
use crate::quota::QuotaHold;
use std::sync::Arc;
use uext4_ondisk::acl::Acl;
use uext4_ondisk::xattr::{MAX_REFCOUNT, RawXattrHeader};
use uext4_ondisk::{BlockNo, CorruptKind, FileKind, Place, encryption};

/// What setting an attribute expects of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Any,
    /// That it is not there.
    Create,
    /// That it is there.
    Replace,
}

/// One attribute to set or to remove.
#[derive(Clone, Copy, Debug)]
pub struct AttributeEdit<'e> {
    /// Full name.
    pub name: &'e [u8],
    /// New value; `None` removes.
    pub value: Option<&'e [u8]>,
    /// What is expected of the name. Removing always expects that it is there.
    pub mode: Mode,
}

/// A change of attributes that can be applied: checked, and its space allocated.
///
/// Dropping it unused releases the space.
#[derive(Debug)]
pub struct AttributeChange<'a> {
    inode: &'a Inode,
    area: Option<Vec<u8>>,
    /// Longer extra fields, with `area` behind them.
    extra_isize: Option<u16>,
    block: BlockChange,
    /// Room for a first block below the limits of the owners.
    held: Option<QuotaHold>,
    _fields: FieldsHeld<'a>,
    /// The inode's table block, and the bitmap of a block that may be freed.
    _pins: Vec<Arc<Buffer>>,
}

#[derive(Debug)]
enum BlockChange {
    /// There is no change.
    Keep,
    /// The inode gets its first block.
    New(Vec<u8>, Allocation),
    /// The block's content changes. The allocation is for a copy, if other inodes share the block.
    Rewrite(Vec<u8>, Arc<Buffer>, Option<Allocation>),
    /// The block has no attributes left.
    Drop(Arc<Buffer>),
}

impl<'a> AttributeChange<'a> {
    /// Plans to set attribute `name` of `inode` to `value`, or to remove it (`None`).
    ///
    /// An access list that says no more than permission bits is removed rather than set. The caller
    /// sets the permission bits to [`Acl::mode`].
    ///
    /// # Errors
    /// `Exists`, `NoXattr` by `mode`; `NoSpace` when it fits neither the inode nor its block, or no
    /// block is free; `TooBig` above [`VALUE_MAX`]; `NameTooLong`, `InvalidArgument`,
    /// `Unsupported` for names and lists that ext4 does not store; `NotPermitted` for a default
    /// list of anything but a directory; `Corrupt`; a device failure.
    pub fn plan(inode: &'a Inode, name: &[u8], value: Option<&[u8]>, mode: Mode) -> Result<Self> {
        Self::plan_all(inode, &[AttributeEdit { name, value, mode }])
    }

    /// Plans several edits, one after the other. All are applied or none.
    ///
    /// # Errors
    /// The errors of [`AttributeChange::plan`].
    pub fn plan_all(inode: &'a Inode, edits: &[AttributeEdit<'_>]) -> Result<Self> {
        Self::plan_with_context(inode, edits, None)
    }

    /// As [`AttributeChange::plan_all`], and gives the inode its encryption context.
    ///
    /// # Errors
    /// The errors of [`AttributeChange::plan`]; `Exists` if it has a context.
    pub fn plan_with_context(
        inode: &'a Inode,
        edits: &[AttributeEdit<'_>],
        context: Option<&[u8]>,
    ) -> Result<Self> {
        let fields = inode.hold_fields();
        let area = inode.attributes().xattr_area.clone();
        let buffer = block_of(inode)?;
        let before = parse(inode, &area, buffer.as_ref())?;
        let mut after = before.clone();
        if let Some(context) = context {
            let key = Key { index: encryption::XATTR_INDEX, name: encryption::XATTR_NAME };
            after.set(key, context, Mode::Create)?;
        }
        for edit in edits {
            apply_edit(&mut after, inode, edit)?;
        }
        let (new_area, block, held) = plan_places(inode, &before, &after, buffer, area.len())?;
        let mut change = Self::with_pins(inode, new_area, block, fields)?;
        change.held = held;
        Ok(change)
    }

    /// Plans to lengthen the extra fields of an inode. The attributes behind them move: in the
    /// inode, or to its block. `None` if they are long enough, or cannot become longer.
    ///
    /// # Errors
    /// Those of [`AttributeChange::plan_all`].
    pub fn plan_fields(inode: &'a Inode) -> Result<Option<Self>> {
        let fields = inode.hold_fields();
        let layout = inode.space().layout();
        let (area, now, wanted) = {
            let attributes = inode.attributes();
            let Some(wanted) = attributes.wanted_extra_isize(layout) else { return Ok(None) };
            (attributes.xattr_area.clone(), attributes.extra_isize(), wanted)
        };
        let buffer = block_of(inode)?;
        let before = parse(inode, &area, buffer.as_ref())?;
        for extra_isize in wanted.into_iter().filter(|wanted| *wanted > now) {
            let len = area.len().saturating_sub(usize::from(extra_isize - now));
            let mut after = before.clone();
            if !after.shorten_area(len) {
                continue;
            }
            let (_, block, held) = plan_places(inode, &before, &after, buffer, len)?;
            let area = Some(after.write_area(len)?);
            let mut change = Self::with_pins(inode, area, block, fields)?;
            change.extra_isize = Some(extra_isize);
            change.held = held;
            return Ok(Some(change));
        }
        Ok(None)
    }

    /// Plans to free the attribute block of an inode that is deleted, or to drop the reference to
    /// it if other inodes share it. The attributes in the inode stay. `None`: it has no block.
    ///
    /// # Errors
    /// `Corrupt`; a device failure. The block is then left to e2fsck(8).
    pub fn plan_release(inode: &'a Inode) -> Result<Option<Self>> {
        let Some(buffer) = block_of(inode)? else { return Ok(None) };
        reference_count(&buffer)?;
        Self::with_pins(inode, None, BlockChange::Drop(buffer), inode.hold_fields()).map(Some)
    }

    fn with_pins(
        inode: &'a Inode,
        area: Option<Vec<u8>>,
        block: BlockChange,
        fields: FieldsHeld<'a>,
    ) -> Result<Self> {
        let mut pins = vec![inode.table_block()?];
        if let BlockChange::Drop(buffer) = &block {
            pins.extend(inode.space().pin_run(buffer.block(), 1)?);
        }
        Ok(Self { inode, area, extra_isize: None, block, held: None, _fields: fields, _pins: pins })
    }

    /// Credits of [`AttributeChange::apply`], the inode included.
    #[must_use]
    pub fn credits(&self) -> u32 {
        let blocks = self.inode.space().credits().blocks;
        // A new block; a block that is freed, with its revoke.
        let (new, freed) = (1 + blocks, 2 + blocks);
        1 + match &self.block {
            BlockChange::Keep => 0,
            BlockChange::New(..) => new,
            BlockChange::Rewrite(_, _, None) => 1,
            BlockChange::Rewrite(_, _, Some(_)) => 1 + new,
            BlockChange::Drop(_) => freed,
        }
    }

    /// Whether the attributes are already as wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.area.is_none() && matches!(self.block, BlockChange::Keep)
    }

    /// Applies the change. The caller updates times and the change counter of the inode.
    ///
    /// # Errors
    /// The journal is aborted.
    pub fn apply(self, handle: &mut Handle<'_>) -> Result<()> {
        let _lock = self.inode.xattr_lock().write();
        let (file_acl, added) = match self.block {
            BlockChange::Keep => (None, 0),
            BlockChange::New(image, allocation) => {
                (Some(new_block(self.inode.space(), handle, allocation, &image)?), 1)
            }
            BlockChange::Rewrite(image, buffer, allocation) => match allocation {
                Some(allocation) if leave_shared(handle, &buffer)? => {
                    (Some(new_block(self.inode.space(), handle, allocation, &image)?), 0)
                }
                // The other inodes have dropped their references since the plan, or there were
                // none.
                _ => {
                    handle.write(&buffer)?.copy_from_slice(&image);
                    (None, 0)
                }
            },
            BlockChange::Drop(buffer) => {
                detach(self.inode.space(), handle, &buffer)?;
                (Some(BlockNo(0)), -1)
            }
        };
        let area = self.area;
        self.inode.update(handle, |attributes| {
            match (area, self.extra_isize) {
                (Some(area), Some(extra_isize)) => attributes.set_extra_isize(extra_isize, area),
                (Some(area), None) => attributes.xattr_area = area,
                (None, _) => {}
            }
            if let Some(block) = file_acl {
                attributes.file_acl = block.get();
            }
            let layout = self.inode.space().layout();
            attributes.add_blocks(layout, added * i64::from(layout.cluster_blocks));
        })
    }
}

/// The attributes of an inode. No other thread changes them, because the caller holds the lock of
/// the content.
fn parse(inode: &Inode, area: &[u8], buffer: Option<&Arc<Buffer>>) -> Result<Stored> {
    let block_size = inode.space().layout().block_size as usize;
    let bytes = buffer.map(|buffer| buffer.read());
    let stored = Stored::parse(area, bytes.as_ref().map(|bytes| &bytes[..]), block_size);
    Ok(stored.map_err(|kind| kind.at(Place::Inode(inode.ino())))?)
}

/// The new bytes behind the extra fields, `len` of them, if the attributes there change, and the
/// change of the block.
fn plan_places(
    inode: &Inode,
    before: &Stored,
    after: &Stored,
    buffer: Option<Arc<Buffer>>,
    len: usize,
) -> Result<(Option<Vec<u8>>, BlockChange, Option<QuotaHold>)> {
    let space = inode.space();
    let block_size = space.layout().block_size as usize;
    // The old attributes may not fit again, because values of a damaged list may share bytes.
    let damaged = |error: Error| match error.kind() {
        ErrorKind::Internal => {
            let kind = CorruptKind::Rule { what: "extended attributes", why: "overlap" };
            kind.at(Place::Inode(inode.ino())).into()
        }
        _ => error,
    };
    let new_area = match after.inode == before.inode {
        true => None,
        false => Some(after.write_area(len).map_err(damaged)?),
    };
    let allocation = || space.allocate(inode.goal(), 1);
    let gets_block = buffer.is_none() && after.block != before.block;
    let held = if gets_block { inode.hold_blocks(1)? } else { None };
    let block = match buffer {
        _ if after.block == before.block => BlockChange::Keep,
        None => BlockChange::New(after.write_block(block_size).map_err(damaged)?, allocation()?),
        Some(buffer) if after.block.is_empty() => BlockChange::Drop(buffer),
        Some(buffer) => {
            let shared = reference_count(&buffer)? > 1;
            let allocation = if shared { Some(allocation()?) } else { None };
            let image = after.write_block(block_size).map_err(damaged)?;
            BlockChange::Rewrite(image, buffer, allocation)
        }
    };
    Ok((new_area, block, held))
}

/// One edit on the lists.
fn apply_edit(stored: &mut Stored, inode: &Inode, edit: &AttributeEdit<'_>) -> Result<()> {
    let key = key_of(edit.name)?;
    if edit.value.is_some_and(|value| value.len() > VALUE_MAX) {
        return Err(Error::new(ErrorKind::TooBig, String::from_utf8_lossy(edit.name)));
    }
    if key.index == ACL_ACCESS || key.index == ACL_DEFAULT {
        return set_acl(stored, inode, key, edit.value);
    }
    match edit.value {
        Some(value) => stored.set(key, value, edit.mode),
        None => stored.remove(key),
    }
}

/// Linux does not check whether there was a list before, nor whether one is removed.
fn set_acl(stored: &mut Stored, inode: &Inode, key: Key<'_>, value: Option<&[u8]>) -> Result<()> {
    if inode.kind() == FileKind::Symlink {
        let context = "access control list of a symbolic link";
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let acl = match value {
        Some(value) => Acl::from_caller(value)?,
        None => None,
    };
    let is_default = key.index == ACL_DEFAULT;
    if acl.is_some() && is_default && inode.kind() != FileKind::Directory {
        let context = "default access control list of what is no directory";
        return Err(Error::new(ErrorKind::NotPermitted, context));
    }
    match acl.filter(|acl| is_default || !acl.is_mode_only()) {
        Some(acl) => stored.set(key, &acl.to_disk(), Mode::Any),
        None if stored.find(key).is_some() => stored.remove(key),
        None => Ok(()),
    }
}

/// Number of inodes that share an attribute block.
fn reference_count(buffer: &Buffer) -> Result<u32> {
    let count = RawXattrHeader::from_prefix(&buffer.read()).map_or(0, |h| h.h_refcount.get());
    if (1..=MAX_REFCOUNT).contains(&count) {
        return Ok(count);
    }
    let kind = CorruptKind::Range {
        what: "extended attributes",
        field: "h_refcount",
        min: 1,
        max: u64::from(MAX_REFCOUNT),
        found: u64::from(count),
    };
    Err(kind.at(Place::Block(buffer.block())).into())
}

/// Drops one reference to a shared block. False, without a change, if there is only one.
fn leave_shared(handle: &mut Handle<'_>, buffer: &Arc<Buffer>) -> Result<bool> {
    if reference_count(buffer)? <= 1 {
        return Ok(false);
    }
    let mut bytes = handle.write(buffer)?;
    let Some(header) = RawXattrHeader::mut_from_prefix(&mut bytes) else { return Ok(false) };
    // Another inode may have dropped its reference before the block was locked.
    let count = header.h_refcount.get();
    if count <= 1 {
        return Ok(false);
    }
    header.h_refcount.set(count - 1);
    Ok(true)
}

/// Drops the reference to a shared block, or frees the block.
fn detach(space: &Space, handle: &mut Handle<'_>, buffer: &Arc<Buffer>) -> Result<()> {
    if leave_shared(handle, buffer)? {
        return Ok(());
    }
    handle.forget(buffer.block())?;
    space.free(handle, buffer.block(), 1)
}

fn new_block(
    space: &Space,
    handle: &mut Handle<'_>,
    mut allocation: Allocation,
    image: &[u8],
) -> Result<BlockNo> {
    let block = space.mark_used(handle, &mut allocation, 1)?;
    let buffer = handle.create(block, BlockKind::Xattr)?;
    handle.write(&buffer)?.copy_from_slice(image);
    Ok(block)
}
