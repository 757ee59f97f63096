//! A state as a timeline.

use crate::model::contents::{Choices, Picked, PickedFile};
use crate::model::description::{Description, How, Loss, Progress, StepLine};
use crate::model::explorer::Explorer;
use crate::model::generation::{Event, What};
use crate::model::names::Places;
use crate::model::spec::StateSpec;
use crate::trace::{Attributes, Call, FileId, Name, NewFile, Step};

impl Explorer {
    /// What a state is: which calls had returned, and what is missing.
    #[must_use]
    pub fn describe(&self, spec: &StateSpec) -> Description {
        let (moment, promises) = self.moment(spec);
        let mut places = Places::of(self.entries(), self.before());
        let mut steps = Vec::new();
        let mut committed_places = places.clone();
        for (index, step) in self.steps()[..moment.crash].iter().enumerate() {
            let call = text(step, &places);
            places.apply(step);
            if index < moment.committed {
                committed_places.apply(step);
            }
            let returned = self.history().had_returned(index, moment.crash);
            let changes = self.history().prefixes.binary_search(&(index + 1)).is_ok();
            steps.push(StepLine {
                step: index,
                started_us: micros(step.started),
                returned_us: micros(step.returned),
                pid: step.pid,
                call,
                progress: if returned { Progress::Returned } else { Progress::InFlight },
                committed: changes.then_some(index < moment.committed),
                in_part: moment.part.is_some() && index + 1 == moment.committed,
            });
        }
        let choices = Choices::of(spec);
        let mut losses = Vec::new();
        for (id, file) in &self.history().files {
            if !file.has_name(moment.committed) {
                continue;
            }
            if let Some(picked) = self.history().pick(*id, &choices, moment, &promises) {
                let path = committed_places.path(*id);
                self.losses(*id, &picked, moment.crash, path.as_deref(), &mut losses);
            }
        }
        losses.sort_by_key(|loss| (loss.step, loss.offset));
        Description {
            guarantees: self.guarantees(),
            steps,
            not_begun: self.steps().len() - moment.crash,
            losses: joined(losses),
            acknowledged: self.printed(moment.crash),
        }
    }

    /// The writes of a file that are not on the medium.
    pub(crate) fn losses(
        &self,
        id: FileId,
        picked: &PickedFile,
        crash: usize,
        path: Option<&str>,
        losses: &mut Vec<Loss>,
    ) {
        let generation = &self.history().files[&id].generations[picked.options.generation];
        for (at, content) in &picked.blocks {
            let events = &generation.blocks[at];
            let allowed = &picked.options.blocks[at];
            let begun = events.partition_point(|event| event.step < crash);
            let first_of_file = events[..begun]
                .iter()
                .rposition(|event| event.what.is_removal())
                .map_or(0, |index| index + 1);
            for (version, event) in (1..).zip(&events[..begun]).skip(first_of_file) {
                let Some((start, len)) = written(event) else { continue };
                let offset = at * self.history().block + start as u64;
                let how = match *content {
                    _ if offset >= picked.size => How::BeyondEnd,
                    Picked::Stale => How::Stale,
                    Picked::Torn { old, new, .. } if old < version && version <= new => How::Torn,
                    Picked::PartlyStale { new, .. } if version <= new => How::Torn,
                    Picked::Torn { new, .. } | Picked::PartlyStale { new, .. } if version > new => {
                        How::Older
                    }
                    Picked::Version(it) if version > it => {
                        let is_cleared = it > 0 && events[it - 1].what.is_removal();
                        let is_zeros = is_cleared || !allowed.has_data || allowed.zeros == Some(it);
                        if is_zeros { How::Zeros } else { How::Older }
                    }
                    _ => continue,
                };
                let path = path.map(str::to_owned);
                losses.push(Loss { step: event.step, path, offset, len: len as u64, how });
            }
        }
    }
}

/// The bytes of its block that a write changed.
fn written(event: &Event) -> Option<(usize, usize)> {
    match &event.what {
        What::Written { start, range, .. } => Some((*start, range.len())),
        _ => None,
    }
}

/// Neighbours that are missing in the same way become one.
fn joined(losses: Vec<Loss>) -> Vec<Loss> {
    let mut joined: Vec<Loss> = Vec::new();
    for loss in losses {
        match joined.last_mut() {
            Some(last)
                if last.step == loss.step
                    && last.how == loss.how
                    && last.path == loss.path
                    && last.offset + last.len == loss.offset =>
            {
                last.len += loss.len;
            }
            _ => joined.push(loss),
        }
    }
    joined
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A call as a line.
fn text(step: &Step, places: &Places) -> String {
    let path = |file: &FileId| places.path(*file).unwrap_or_else(|| format!("(file {})", file.0));
    let named = |name: &Name| {
        let directory = places.path(name.parent).unwrap_or_default();
        let directory = if directory == "/" { "" } else { &directory };
        format!("{directory}/{}", String::from_utf8_lossy(&name.name))
    };
    match &step.call {
        Call::Create { name, kind, .. } => {
            let name = name.as_ref().map_or_else(|| "(no name)".to_owned(), named);
            let verb = match kind {
                NewFile::Regular => "create",
                NewFile::Directory => "mkdir",
                NewFile::Symlink(_) => "symlink",
                NewFile::Special { .. } => "mknod",
            };
            format!("{verb}({name})")
        }
        Call::Link { file, name } => format!("link({}, {})", path(file), named(name)),
        Call::Remove { name, .. } => format!("remove({})", named(name)),
        Call::Rename { from, to, exchange, .. } => {
            let exchange = if *exchange { ", exchange" } else { "" };
            format!("rename({}, {}{exchange})", named(from), named(to))
        }
        Call::Write { file, offset, data, direct } => {
            let direct = if *direct { ", O_DIRECT" } else { "" };
            format!("write({}, offset {offset}, {} bytes{direct})", path(file), data.len())
        }
        Call::Truncate { file, before, size } => {
            format!("truncate({}, {before} to {size} bytes)", path(file))
        }
        Call::Allocate { file, mode, offset, len } => {
            format!("fallocate({}, mode {mode:#x}, offset {offset}, {len} bytes)", path(file))
        }
        Call::SetAttributes { file, change } => {
            let Attributes { mode, uid, gid } = change;
            let mode = mode.map(|mode| format!(", mode {mode:o}"));
            let uid = uid.map(|uid| format!(", user {uid}"));
            let gid = gid.map(|gid| format!(", group {gid}"));
            let parts = [mode, uid, gid].into_iter().flatten().collect::<String>();
            format!("setattr({}{parts})", path(file))
        }
        Call::SetXattr { file, name, value } => {
            let verb = if value.is_some() { "setxattr" } else { "removexattr" };
            format!("{verb}({}, {})", path(file), String::from_utf8_lossy(name))
        }
        Call::Sync { file, data_only, range } => {
            let verb = if *data_only { "fdatasync" } else { "fsync" };
            let range =
                range.as_ref().map(|range| format!(", bytes {} to {}", range.start, range.end));
            format!("{verb}({}{})", path(file), range.unwrap_or_default())
        }
        Call::SyncAll => "sync()".to_owned(),
        Call::Close { file } => format!("close({})", path(file)),
        Call::Output(bytes) => format!("output({} bytes)", bytes.len()),
    }
}
