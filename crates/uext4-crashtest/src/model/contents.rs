//! From choices to bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Result;
use crate::model::base::Base;
use crate::model::file_history::FileHistory;
use crate::model::generation::{Event, Source, What};
use crate::model::history::History;
use crate::model::options::{BlockOptions, FileOptions, Moment, Promises};
use crate::model::spec::{BlockChoice, Content, Rest, StateSpec};
use crate::trace::FileId;

/// What a block holds, by versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Picked {
    Version(usize),
    Stale,
    Torn { old: usize, new: usize, sectors: u64 },
    PartlyStale { new: usize, sectors: u64 },
}

/// What a state holds of a file.
#[derive(Clone, Debug)]
pub(crate) struct PickedFile {
    pub(crate) options: FileOptions,
    pub(crate) size: u64,
    pub(crate) blocks: BTreeMap<u64, Picked>,
}

/// The choices of a spec, to be looked up.
pub(crate) struct Choices<'a> {
    spec: &'a StateSpec,
    sizes: BTreeMap<FileId, u64>,
    blocks: BTreeMap<(FileId, u64), Content>,
}

/// What a block holds that shows bytes of somebody else.
const STALE: &[u8] = b"STALE BYTES OF ANOTHER FILE.\n";

impl<'a> Choices<'a> {
    pub(crate) fn of(spec: &'a StateSpec) -> Self {
        let blocks = spec.blocks.iter();
        Self {
            spec,
            sizes: spec.sizes.iter().map(|choice| (choice.file, choice.size)).collect(),
            blocks: blocks.map(|choice| ((choice.file, choice.block), choice.content)).collect(),
        }
    }
}

impl History {
    /// What a state holds of a file.
    pub(crate) fn pick(
        &self,
        id: FileId,
        choices: &Choices<'_>,
        moment: Moment,
        promises: &Promises,
    ) -> Option<PickedFile> {
        let options = self.options(id, moment, promises)?;
        let events = &self.files[&id].generations[options.generation].blocks;
        let mut blocks = BTreeMap::new();
        for (at, allowed) in &options.blocks {
            let choice = choices.blocks.get(&(id, *at));
            let rest = choices.spec.rest_of_blocks;
            let picked = pick(allowed, &events[at], choice, rest);
            blocks.insert(*at, self.whole_or_torn(picked, &events[at]));
        }
        let sizes = &options.sizes;
        let chosen = choices.sizes.get(&id).filter(|size| sizes.allow(**size, self.block));
        let rest = match choices.spec.rest_of_sizes {
            Rest::Newest => sizes.largest,
            Rest::Oldest | Rest::Stale => sizes.smallest,
        };
        let mut size = chosen.copied().unwrap_or(rest);
        if self.guarantees.commit_waits_for_data() && self.guarantees.allocates_late() {
            size = self.size_with_data(size, &options, &blocks);
        }
        Some(PickedFile { options, size, blocks })
    }

    /// Where commits wait for data, a size grows by a block that has its data.
    fn size_with_data(
        &self,
        size: u64,
        options: &FileOptions,
        blocks: &BTreeMap<u64, Picked>,
    ) -> u64 {
        let mut size = size;
        while size > options.sizes.smallest {
            let at = (size - 1) / self.block;
            let is_zeros = |allowed: &BlockOptions| {
                !allowed.has_data
                    || allowed.zeros.is_some_and(|v| blocks[&at] == Picked::Version(v))
            };
            if !options.blocks.get(&at).is_some_and(is_zeros) {
                break;
            }
            size = (at * self.block).max(options.sizes.smallest);
        }
        size
    }

    /// The bytes that a choice gives a block.
    pub(crate) fn picked_bytes(
        &self,
        base: &Base,
        file: &FileHistory,
        generation: usize,
        at: u64,
        picked: Picked,
    ) -> Result<Vec<u8>> {
        let version = |version| self.bytes(base, file, generation, at, version);
        match picked {
            Picked::Version(it) => version(it),
            Picked::Stale => Ok(self.stale()),
            Picked::Torn { old, new, sectors } => {
                Ok(self.torn(version(old)?, &version(new)?, sectors))
            }
            Picked::PartlyStale { new, sectors } => {
                Ok(self.torn(self.stale(), &version(new)?, sectors))
            }
        }
    }

    fn stale(&self) -> Vec<u8> {
        STALE.iter().copied().cycle().take(self.block as usize).collect()
    }

    /// A block with some sectors of a newer version.
    fn torn(&self, mut bytes: Vec<u8>, newer: &[u8], sectors: u64) -> Vec<u8> {
        let part = self.sector();
        for (index, (to, from)) in bytes.chunks_mut(part).zip(newer.chunks(part)).enumerate() {
            if sectors >> index & 1 == 1 {
                to.copy_from_slice(from);
            }
        }
        bytes
    }

    /// The same content, torn only if it differs from what is whole.
    fn whole_or_torn(&self, picked: Picked, events: &[Event]) -> Picked {
        let whole = self.block as usize;
        match picked {
            Picked::Torn { old, new, sectors } => {
                let changed = events[old..new].iter().map(|event| match &event.what {
                    What::Written { start, range, .. } => self.pieces(*start..start + range.len()),
                    What::Zeroed { range } => self.pieces(range.clone()),
                    What::Removed | What::Cleared { .. } => self.pieces(0..whole),
                });
                let changed = changed.fold(0, |all, pieces| all | pieces);
                match sectors & changed {
                    0 => Picked::Version(old),
                    sectors if sectors == changed => Picked::Version(new),
                    sectors => Picked::Torn { old, new, sectors },
                }
            }
            Picked::PartlyStale { new, sectors } => match sectors & self.pieces(0..whole) {
                0 => Picked::Stale,
                sectors if sectors == self.pieces(0..whole) => Picked::Version(new),
                sectors => Picked::PartlyStale { new, sectors },
            },
            whole => whole,
        }
    }

    /// A bit for each piece of a block that has some of these bytes.
    fn pieces(&self, bytes: Range<usize>) -> u64 {
        let pieces = bytes.start / self.sector()..bytes.end.div_ceil(self.sector());
        pieces.fold(0, |all, piece| all | 1 << piece)
    }

    /// The bytes of a block that are written together.
    pub(crate) fn sector(&self) -> usize {
        (self.block as usize / 64).max(512)
    }

    /// The bytes of a block after so many of its events.
    pub(crate) fn bytes(
        &self,
        base: &Base,
        file: &FileHistory,
        generation: usize,
        at: u64,
        version: usize,
    ) -> Result<Vec<u8>> {
        let now = &file.generations[generation];
        let events = now.blocks.get(&at).map_or(&[][..], |events| &events[..version]);
        let start = events.iter().rposition(|event| event.what.is_removal());
        let mut bytes = match (start, &now.source) {
            (Some(_), _) | (None, Source::Empty) => vec![0; self.block as usize],
            (None, Source::Image { number, .. }) => base.read_block(*number, at)?,
            (None, Source::Shifted { range, insert }) => {
                match Source::before_shift(range, *insert, at) {
                    Some(at) => self.newest(base, file, generation - 1, at)?,
                    None => vec![0; self.block as usize],
                }
            }
        };
        for event in &events[start.map_or(0, |start| start + 1)..] {
            match &event.what {
                What::Written { start, data, range, .. } => {
                    bytes[*start..*start + range.len()].copy_from_slice(&data[range.clone()]);
                }
                What::Zeroed { range } => bytes[range.clone()].fill(0),
                What::Removed | What::Cleared { .. } => {}
            }
        }
        Ok(bytes)
    }

    /// The bytes of a block at the end of a generation.
    fn newest(
        &self,
        base: &Base,
        file: &FileHistory,
        generation: usize,
        at: u64,
    ) -> Result<Vec<u8>> {
        let events = file.generations[generation].blocks.get(&at).map_or(0, Vec::len);
        self.bytes(base, file, generation, at, events)
    }
}

/// The version of a block after a step.
pub(crate) fn version_after(events: &[Event], step: Option<usize>) -> usize {
    step.map_or(0, |step| events.partition_point(|event| event.step <= step))
}

/// The choice that names a version.
pub(crate) fn choice(
    file: FileId,
    block: u64,
    events: &[Event],
    allowed: &BlockOptions,
    picked: Picked,
) -> BlockChoice {
    let after = |version: usize| version.checked_sub(1).map(|last| events[last].step);
    let content = match picked {
        Picked::Stale => Content::Stale,
        Picked::Version(version) if allowed.zeros == Some(version) => Content::Zeros,
        Picked::Version(version) => Content::After(after(version)),
        Picked::Torn { old, new, sectors } => {
            Content::Torn { old: after(old), new: after(new).unwrap_or(0), sectors }
        }
        Picked::PartlyStale { new, sectors } => Content::PartlyStale { new: after(new), sectors },
    };
    BlockChoice { file, block, content }
}

/// The allowed content that is nearest to a choice.
fn pick(allowed: &BlockOptions, events: &[Event], choice: Option<&Content>, rest: Rest) -> Picked {
    let nearest = |step| {
        let version = version_after(events, step);
        if version < allowed.oldest {
            return allowed.zeros.unwrap_or(allowed.oldest);
        }
        allowed.nearest(version)
    };
    let least = Picked::Version(allowed.zeros.unwrap_or(allowed.oldest));
    let rest = match rest {
        Rest::Newest => Picked::Version(allowed.newest),
        Rest::Stale if allowed.stale => Picked::Stale,
        Rest::Oldest | Rest::Stale => least,
    };
    match choice {
        None => rest,
        Some(Content::Stale) if allowed.stale => Picked::Stale,
        Some(Content::Stale | Content::Zeros) => least,
        Some(Content::After(step)) => Picked::Version(nearest(*step)),
        Some(Content::Torn { old, new, sectors }) => {
            let old = nearest(*old).max(allowed.oldest);
            let new = nearest(Some(*new));
            match old < new {
                true => Picked::Torn { old, new, sectors: *sectors },
                false => Picked::Version(new),
            }
        }
        Some(Content::PartlyStale { new, sectors }) => {
            let new = nearest(*new);
            match allowed.stale {
                true => Picked::PartlyStale { new: new.max(allowed.oldest), sectors: *sectors },
                false => Picked::Version(new),
            }
        }
    }
}
