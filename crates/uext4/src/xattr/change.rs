//! Setting and removing attributes, and freeing the block of a deleted inode.

use super::VALUE_MAX;
use super::block_change::{BlockChange, reference_count};
use super::read::{ACL_ACCESS, ACL_DEFAULT, USER, block_of, key_of};
use super::stored::{Key, Stored};
use super::value_counts::{Misfits, ValueChange};
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{FieldsHeld, Inode};
use crate::journal::Handle;
use crate::quota::QuotaHold;
use std::sync::Arc;
use uext4_ondisk::acl::Acl;
use uext4_ondisk::{CorruptKind, FileKind, Place, encryption};

/// Most values in inodes of their own that one handle releases.
const VALUES_PER_HANDLE: usize = 16;

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
    _held: Option<QuotaHold>,
    /// What becomes of the values in inodes of their own, if there may be any.
    values: Option<ValueChange<'a>>,
    _fields: FieldsHeld<'a>,
    /// The inode's table block, and the bitmap of a block that may be freed.
    _pins: Vec<Arc<Buffer>>,
}

/// What is to be released of an inode that is deleted.
#[derive(Debug)]
pub enum Release<'a> {
    /// Its attributes hold nothing.
    Nothing,
    /// Some values. More are left.
    Some(AttributeChange<'a>),
    /// All that is left.
    Rest(AttributeChange<'a>),
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
        let (fields, values) = (inode.hold_fields(), ValueChange::begin(inode));
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
        Self::plan_lists(inode, &before, after, buffer, area.len(), (fields, values))
    }

    /// Plans to lengthen the extra fields of an inode. The attributes behind them move: in the
    /// inode, or to its block. `None` if they are long enough, or cannot become longer.
    ///
    /// # Errors
    /// Those of [`AttributeChange::plan_all`].
    pub fn plan_fields(inode: &'a Inode) -> Result<Option<Self>> {
        let layout = inode.space().layout();
        if inode.attributes().wanted_extra_isize(layout).is_none() {
            return Ok(None);
        }
        let held = (inode.hold_fields(), ValueChange::begin(inode));
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
            let area = Some(after.write_area(len)?);
            let change = Self::plan_lists(inode, &before, after, buffer, len, held)?;
            return Ok(Some(Self { area, extra_isize: Some(extra_isize), ..change }));
        }
        Ok(None)
    }

    /// Plans the change from the lists `before` to those `after`, with `len` bytes for attributes
    /// in the inode. `held` was taken before the lists were read.
    fn plan_lists(
        inode: &'a Inode,
        before: &Stored,
        mut after: Stored,
        buffer: Option<Arc<Buffer>>,
        len: usize,
        held: (FieldsHeld<'a>, Option<ValueChange<'a>>),
    ) -> Result<Self> {
        let (fields, mut values) = held;
        if let Some(values) = &mut values {
            values.check_leaving(inode, before, &after)?;
            values.store(inode, &mut after.inode)?;
            values.store(inode, &mut after.block)?;
        }
        let (area, block, held) = plan_places(inode, before, &after, buffer, len)?;
        if let Some(values) = &mut values {
            values.plan(inode, before, &after, &block)?;
        }
        let change = Self::with_pins(inode, area, block, (fields, values))?;
        Ok(Self { _held: held, ..change })
    }

    /// Plans to release what the attributes of an inode that is deleted hold: its block, or the
    /// reference to it if other inodes share it, and references to values. If more of its values
    /// are in inodes of their own than one handle releases, this removes some attributes.
    /// Otherwise the attributes in the inode stay. An entry that names an inode which cannot hold
    /// its value is released without a change of that inode.
    ///
    /// # Errors
    /// `Corrupt`; a device failure. All of it is then left to e2fsck(8).
    pub fn plan_release(inode: &'a Inode) -> Result<Release<'a>> {
        if inode.value_inodes().is_none() && inode.attributes().file_acl == 0 {
            return Ok(Release::Nothing);
        }
        let (fields, values) = (inode.hold_fields(), ValueChange::begin(inode));
        let buffer = block_of(inode)?;
        let is_shared = match &buffer {
            Some(buffer) => reference_count(buffer)? > 1,
            None => false,
        };
        let Some(values) = values else {
            let Some(buffer) = buffer else { return Ok(Release::Nothing) };
            let held = (fields, None);
            return Self::with_pins(inode, None, BlockChange::Drop(buffer), held)
                .map(Release::Rest);
        };
        let mut values = values.treat(Misfits::Skip);
        let area = inode.attributes().xattr_area.clone();
        let before = parse(inode, &area, buffer.as_ref())?;
        let mut after = before.clone();
        if after.remove_values(VALUES_PER_HANDLE, !is_shared) {
            let held = (fields, Some(values));
            let some = Self::plan_lists(inode, &before, after, buffer, area.len(), held);
            return some.map(Release::Some);
        }
        let block = buffer.map_or(BlockChange::Keep, BlockChange::Drop);
        values.plan(inode, &before, &before.emptied(), &block)?;
        Self::with_pins(inode, None, block, (fields, Some(values))).map(Release::Rest)
    }

    /// Entries that are released although they name inodes which cannot hold their values.
    pub fn take_skipped(&mut self) -> Vec<Error> {
        self.values.as_mut().map_or_else(Vec::new, ValueChange::take_skipped)
    }

    fn with_pins(
        inode: &'a Inode,
        area: Option<Vec<u8>>,
        block: BlockChange,
        (fields, values): (FieldsHeld<'a>, Option<ValueChange<'a>>),
    ) -> Result<Self> {
        let mut pins = vec![inode.table_block()?];
        if let Some(buffer) = block.dropped() {
            pins.extend(inode.space().pin_run(buffer.block(), 1)?);
        }
        let (extra_isize, _held, _fields, _pins) = (None, None, fields, pins);
        Ok(Self { inode, area, extra_isize, block, _held, values, _fields, _pins })
    }

    /// Credits of [`AttributeChange::apply`], the inode included.
    #[must_use]
    pub fn credits(&self) -> u32 {
        let values = self.values.as_ref().map_or(0, |values| values.credits(self.inode));
        1 + self.block.credits(self.inode.space()) + values
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
        let mut values = self.values;
        // The references are kept until readers of the attributes cannot find the values any more.
        if let Some(values) = &mut values {
            values.apply(handle, self.inode)?;
        }
        let _lock = self.inode.xattr_lock().write();
        let (file_acl, added) = self.block.apply(handle, self.inode.space())?;
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
            if let Some(values) = &values {
                values.note_in(attributes, layout);
            }
        })
    }
}

/// The attributes of an inode. No other thread changes them, because the caller holds the lock of
/// the content.
fn parse(inode: &Inode, area: &[u8], buffer: Option<&Arc<Buffer>>) -> Result<Stored> {
    let block_size = inode.space().layout().block_size as usize;
    let bytes = buffer.map(|buffer| buffer.read());
    let stored = Stored::parse(area, bytes.as_ref().map(|bytes| &bytes[..]), block_size);
    let mut stored = stored.map_err(|kind| kind.at(Place::Inode(inode.ino())))?;
    if inode.value_inodes().is_some() {
        stored.allow_value_inodes();
    }
    Ok(stored)
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
        Some(_) if key.index == USER && !has_user_attributes(inode.kind()) => {
            let context = "user attribute of neither a file nor a directory";
            Err(Error::new(ErrorKind::NotPermitted, context))
        }
        Some(value) => stored.set(key, value, edit.mode),
        // One that is there must go: no mount shows it, and none can remove it.
        None => stored.remove(key),
    }
}

/// As xattr(7): the permissions of links and special files say nothing of access to their inodes.
fn has_user_attributes(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
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
