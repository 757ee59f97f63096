//! Attributes of an inode in memory, and how they are read from and written to the inode table.
//!
//! On disk: `struct ext4_inode`. Fields that uext4 does not know are preserved, because a slot is
//! read, changed and written back. There are two exceptions: the first write of a new inode wipes
//! the slot, and the first change of an inode with short extra fields makes them as long as those
//! of a new inode.
//! Invariants: `size` is the size that callers see; `disk_size` is the size that the next write of
//! the slot puts into the inode table. Writeback raises `disk_size` to the end of the data that is
//! on the device by then. A size that is set (truncate, fallocate) goes into it at once, because
//! the holes below it read as zeroes. `block_map` mirrors the root of the extent tree, which has a
//! lock of its own; for fast symbolic links and device files it is the content. Timestamps are
//! lazy: they may be newer than the slot (`times_dirty`). Every other attribute is written in the
//! handle that changes it.

use uext4_ondisk::inode::{PROJECT_EXTRA_SIZE, xattr_offset};
use uext4_ondisk::xattr::{RawXattrIbodyHeader, XATTR_MAGIC};
use uext4_ondisk::{CorruptKind, FileKind, InodeFlags, Layout, RawInode, RoCompat, Timestamp};

/// A time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeField {
    /// Last change of the inode.
    Change,
    /// Last change of the content.
    Modification,
    /// Last access.
    Access,
    /// Creation.
    Creation,
}

impl TimeField {
    /// Whether `extra_isize` bytes of extra fields include those of this time. Without them it has
    /// whole seconds, up to 2038.
    fn has_extra(self, extra_isize: u16) -> bool {
        let end = match self {
            Self::Change => 8,
            Self::Modification => 12,
            Self::Access => 16,
            Self::Creation => 24,
        };
        extra_isize >= end
    }
}

/// Attributes of an inode.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; 1 for a directory with more links than the format counts.
    pub links: u32,
    /// Bytes of the file, as callers see it.
    pub size: u64,
    /// Bytes of the file, as the inode table has it.
    pub disk_size: u64,
    /// Blocks in use, in units of 512 bytes.
    pub sectors: u64,
    /// Project; 0 where the inode has no room for it.
    pub project: u32,
    /// Inode flags.
    pub flags: InodeFlags,
    /// Generation: distinguishes successive files that have the same inode number.
    pub generation: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation, where the inode has room for it.
    pub crtime: Option<Timestamp>,
    /// Block with extended attributes, or 0.
    pub file_acl: u64,
    /// Grows with every change of the inode.
    pub version: u64,
    /// Deletion time, or the next inode of the orphan list.
    pub dtime: u32,
    /// `i_block`: extent tree root, fast symlink target, or device number.
    pub block_map: [u8; 60],
    /// Bytes of the slot behind the extra fields: extended attributes in the inode.
    pub xattr_area: Vec<u8>,
    /// Attributes whose values are in inodes of their own (ea_inode). Each counts in the quota of
    /// the owners. Counted before the attributes or the owners change; 0 until then.
    pub(super) values: u32,
    /// `i_extra_isize`.
    extra_isize: u16,
    /// Times have changed in memory and are in no transaction yet.
    pub times_dirty: bool,
}

impl Attributes {
    /// Adds `blocks` to the count of blocks, or takes them off. Every block that a file gets or
    /// loses is counted here, in the handle that gives or takes it.
    pub fn add_blocks(&mut self, layout: &Layout, blocks: i64) {
        let sectors = blocks * i64::from(layout.block_size / 512);
        self.sectors = self.sectors.saturating_add_signed(sectors);
    }

    /// Sets the size, in memory and in the inode table.
    pub(crate) fn set_size(&mut self, size: u64) {
        self.size = size;
        self.disk_size = size;
    }

    /// Attributes of a new, empty inode.
    #[must_use]
    pub fn new(layout: &Layout, kind: FileKind, permissions: u16, generation: u32) -> Self {
        let room = layout.inode_size.saturating_sub(128);
        let extra_isize = layout.new_extra_isize;
        let now = now();
        let fit = |field: TimeField| now.clamped(field.has_extra(extra_isize));
        Self {
            mode: kind.mode() | permissions,
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            disk_size: 0,
            sectors: 0,
            project: 0,
            flags: InodeFlags::empty(),
            generation,
            atime: fit(TimeField::Access),
            mtime: fit(TimeField::Modification),
            ctime: fit(TimeField::Change),
            crtime: (extra_isize > 0).then(|| fit(TimeField::Creation)),
            file_acl: 0,
            version: 1,
            dtime: 0,
            block_map: [0; 60],
            xattr_area: vec![0; room.saturating_sub(extra_isize.into()) as usize],
            values: 0,
            extra_isize,
            times_dirty: false,
        }
    }

    /// Reads a slot of the inode table.
    pub(super) fn read(layout: &Layout, slot: &[u8]) -> Result<Self, CorruptKind> {
        let raw = RawInode::read(slot)?;
        let huge_file = layout.features.ro_compat.contains(RoCompat::HUGE_FILE);
        let size = raw.size();
        let blocks_max = match raw.kind() {
            // A directory has no holes.
            Some(FileKind::Directory) => layout.blocks_count,
            _ => u64::from(u32::MAX),
        };
        let max = blocks_max.saturating_mul(u64::from(layout.block_size));
        if size > max {
            return Err(CorruptKind::Range {
                what: "inode",
                field: "i_size",
                min: 0,
                max,
                found: size,
            });
        }
        Ok(Self {
            mode: raw.i_mode.get(),
            uid: raw.uid(),
            gid: raw.gid(),
            links: u32::from(raw.i_links_count.get()),
            size,
            disk_size: size,
            sectors: raw.sectors(huge_file, layout.block_size),
            project: raw.i_projid.get(),
            flags: raw.flags(),
            generation: raw.i_generation.get(),
            atime: raw.atime(),
            mtime: raw.mtime(),
            ctime: raw.ctime(),
            crtime: raw.crtime(),
            file_acl: match layout.is_hurd {
                true => raw.i_file_acl_lo.get().into(),
                false => raw.file_acl(),
            },
            version: raw.version(),
            dtime: raw.i_dtime.get(),
            block_map: raw.i_block,
            xattr_area: xattr_offset(slot).map_or(Vec::new(), |at| slot[at..].to_vec()),
            values: 0,
            extra_isize: raw.i_extra_isize.get(),
            times_dirty: false,
        })
    }

    /// Writes the attributes into a slot; `fresh` slots are wiped first.
    pub(super) fn write(
        &self,
        layout: &Layout,
        slot: &mut [u8],
        fresh: bool,
    ) -> Result<(), CorruptKind> {
        if fresh {
            slot.fill(0);
        }
        let mut raw = RawInode::read(slot)?;
        let former = raw.i_extra_isize.get();
        if fresh || self.extra_isize > former {
            raw.i_extra_isize.set(self.extra_isize);
            // Fields that are not known here begin as zero.
            let added = 128 + usize::from(former)..128 + usize::from(self.extra_isize);
            slot.get_mut(added).unwrap_or_default().fill(0);
        }
        let huge_file = layout.features.ro_compat.contains(RoCompat::HUGE_FILE);
        raw.i_mode.set(self.mode);
        raw.set_uid(self.uid);
        raw.set_gid(self.gid);
        raw.i_links_count.set(u16::try_from(self.links).unwrap_or(u16::MAX));
        raw.set_size(self.disk_size);
        raw.i_projid.set(self.project);
        raw.set_flags(self.flags);
        raw.set_sectors(self.sectors, huge_file, layout.block_size);
        raw.i_generation.set(self.generation);
        raw.set_atime(self.atime);
        raw.set_mtime(self.mtime);
        raw.set_ctime(self.ctime);
        if let Some(crtime) = self.crtime {
            raw.set_crtime(crtime);
        }
        if layout.is_hurd {
            raw.i_file_acl_lo.set(u32::try_from(self.file_acl).unwrap_or(0));
        } else {
            raw.set_file_acl(self.file_acl);
            raw.set_version(self.version);
        }
        raw.i_dtime.set(self.dtime);
        raw.i_block = self.block_map;
        raw.write(slot)?;
        if let Some(at) = xattr_offset(slot)
            && let Some(area) = slot.get_mut(at..)
            && area.len() == self.xattr_area.len()
        {
            area.copy_from_slice(&self.xattr_area);
        }
        Ok(())
    }

    /// Lengthens the extra fields of an inode that an older driver made with short ones, as the
    /// kernel does when such an inode changes: its times get nanoseconds. Extended attributes
    /// behind the fields have to move first: see [`Attributes::wanted_extra_isize`].
    pub(super) fn lengthen_fields(&mut self, layout: &Layout) {
        let (room, want) = (layout.inode_size.saturating_sub(128), layout.new_extra_isize);
        if self.extra_isize < want && !self.has_attributes_behind() {
            let area = vec![0; room.saturating_sub(want.into()) as usize];
            self.set_extra_isize(want, area);
        }
    }

    /// Whether there are extended attributes behind the extra fields.
    fn has_attributes_behind(&self) -> bool {
        // Without the magic number the bytes are what an older driver left there.
        let header = RawXattrIbodyHeader::from_prefix(&self.xattr_area);
        header.is_some_and(|header| header.h_magic.get() == XATTR_MAGIC)
    }

    /// How long the extra fields should become, and how long at least if the attributes behind them
    /// cannot make more room. `None` if they are long enough.
    pub(crate) fn wanted_extra_isize(&self, layout: &Layout) -> Option<[u16; 2]> {
        let is_short = self.extra_isize < layout.new_extra_isize;
        is_short.then_some([layout.new_extra_isize, layout.min_extra_isize])
    }

    /// Length of the extra fields.
    pub(crate) fn extra_isize(&self) -> u16 {
        self.extra_isize
    }

    /// Makes the extra fields longer, with `area` behind them.
    pub(crate) fn set_extra_isize(&mut self, extra_isize: u16, area: Vec<u8>) {
        self.extra_isize = extra_isize;
        self.xattr_area = area;
        // The creation time may be unknown, and has a field from now on.
        self.crtime.get_or_insert(Timestamp { secs: 0, nanos: 0 });
    }

    /// Whether the inode has room for a project, or gets it with its next change.
    pub(crate) fn has_room_for_project(&self, layout: &Layout) -> bool {
        let mut changed = self.clone();
        changed.lengthen_fields(layout);
        changed.extra_isize >= PROJECT_EXTRA_SIZE
    }

    /// Permission bits, set-id and sticky bits included.
    #[must_use]
    pub fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// A time rounded to what this field of the inode can hold, so that memory shows no time that a
    /// reload would not.
    #[must_use]
    pub fn fit(&self, field: TimeField, time: Timestamp) -> Timestamp {
        time.clamped(field.has_extra(self.extra_isize))
    }

    /// The current time, rounded to what this field of the inode can hold.
    #[must_use]
    pub fn now(&self, field: TimeField) -> Timestamp {
        self.fit(field, now())
    }

    /// The set-id bits that a change of the content or of the owner removes. The set-group-id bit
    /// is one of them only if the group may execute the file: otherwise it grants nothing.
    #[must_use]
    pub fn set_id_bits(&self) -> u16 {
        self.mode & if self.has_bare_set_gid() { 0o4000 } else { 0o6000 }
    }

    /// Whether the file has set-group-id, and its group may not run it.
    #[must_use]
    pub fn has_bare_set_gid(&self) -> bool {
        self.mode & 0o2010 == 0o2000
    }

    /// Notes a change of the inode: sets the change time to now and raises the version.
    pub fn touch(&mut self) {
        self.ctime = self.now(TimeField::Change);
        self.version = self.version.wrapping_add(1);
    }

    /// Notes a change of the content: sets modification and change time to now.
    pub fn touch_content(&mut self) {
        self.touch_content_at(now());
    }

    fn touch_content_at(&mut self, time: Timestamp) {
        self.mtime = self.fit(TimeField::Modification, time);
        self.touch();
        self.ctime = self.fit(TimeField::Change, time);
    }

    /// Notes a change of the content at `time`, unless the times are as new already.
    pub(super) fn note_written_at(&mut self, time: Timestamp) {
        let order = |time: Timestamp| (time.secs, time.nanos);
        let changed = self.fit(TimeField::Change, time);
        if order(changed) > order(self.ctime) {
            self.touch();
            self.ctime = changed;
        }
        let modified = self.fit(TimeField::Modification, time);
        if order(modified) > order(self.mtime) {
            self.mtime = modified;
        }
    }

    /// Notes a change of the content, unless the times show the current tick of the clock already.
    /// True if they changed.
    pub(crate) fn touch_content_if_new(&mut self) -> bool {
        let now = now();
        let is_new = self.mtime != self.fit(TimeField::Modification, now)
            || self.ctime != self.fit(TimeField::Change, now);
        if is_new {
            self.touch_content_at(now);
        }
        is_new
    }
}

/// The current time, as the kernel's file systems take it: the last tick of its clock, a few
/// milliseconds ago at most. Therefore a file that is written and synced many times within a tick
/// gets new times once, and most of its syncs need no transaction.
#[must_use]
pub fn now() -> Timestamp {
    let (secs, nanos) = crate::sync::time::last_tick();
    Timestamp { secs, nanos }
}
