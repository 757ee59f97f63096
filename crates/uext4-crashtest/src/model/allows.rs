//! Whether the model allows what some image shows: the proof beside the kernel asks this.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use uext4::FileKind;

use crate::error::Result;
use crate::model::explorer::Explorer;
use crate::model::names::{Named, Names};
use crate::model::options::{BlockOptions, Moment, Promises};
use crate::model::spec::StateSpec;
use crate::model::tree::{Node, Tree};
use crate::trace::{Attributes, Call, FileId, NewFile};

impl Explorer {
    /// Whether a loss of power after some of these numbers of steps could leave this tree. If not,
    /// the reason for each prefix of the journal that was tried.
    ///
    /// # Errors
    /// A base image that cannot be read.
    pub fn allows(
        &self,
        tree: &Tree,
        crashes: RangeInclusive<usize>,
    ) -> Result<std::result::Result<(), String>> {
        let mut reasons = BTreeMap::new();
        for crash in crashes {
            let everything = self.everything(crash);
            let least = Promises::at(self.history(), crash).committed;
            let mut names = Names::of(self.entries(), self.before());
            self.steps()[..least].iter().for_each(|step| names.apply(step));
            for committed in least..=crash {
                let paths = names.paths();
                for part in (0..self.parts(committed)).map(Some).chain([None]) {
                    let spec = StateSpec { committed, part, ..everything.clone() };
                    match self.differs(tree, &paths, &spec)? {
                        None => return Ok(Ok(())),
                        Some(reason) => {
                            reasons.entry(committed).or_insert(reason);
                        }
                    }
                }
                if committed < crash {
                    names.apply(&self.steps()[committed]);
                }
            }
        }
        let lines = reasons.iter().map(|(at, reason)| format!("journal up to {at}: {reason}"));
        Ok(Err(lines.collect::<Vec<_>>().join("\n")))
    }

    /// Why a tree is none that a moment allows.
    fn differs(
        &self,
        tree: &Tree,
        paths: &BTreeMap<Vec<u8>, Named>,
        spec: &StateSpec,
    ) -> Result<Option<String>> {
        let (moment, promises) = self.moment(spec);
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        if let Some(path) = tree.nodes.keys().find(|path| !paths.contains_key(*path)) {
            return Ok(Some(format!("{} is there", text(path))));
        }
        for (path, named) in paths {
            let Some(node) = tree.nodes.get(path) else {
                return Ok(Some(format!("{} is not there", text(path))));
            };
            let Named::Traced(file) = named else { continue };
            if let Some(why) = self.attributes_differ(node, *file, moment) {
                return Ok(Some(format!("{}: {why}", text(path))));
            }
            if let Some(why) = self.content_differs(node, *file, moment, &promises)? {
                return Ok(Some(format!("{}: {why}", text(path))));
            }
        }
        Ok(None)
    }

    fn attributes_differ(&self, node: &Node, id: FileId, moment: Moment) -> Option<String> {
        let mut now = Attributes::default();
        let mut target = None;
        let mut xattrs = BTreeMap::new();
        for step in &self.steps()[..moment.committed] {
            match &step.call {
                Call::Create { file, attributes, kind, .. } if *file == id => {
                    now = *attributes;
                    if let NewFile::Symlink(to) = kind {
                        (target, now.mode) = (Some(to), None);
                    }
                }
                Call::SetAttributes { file, change } if *file == id => {
                    now.mode = change.mode.or(now.mode);
                    now.uid = change.uid.or(now.uid);
                    now.gid = change.gid.or(now.gid);
                }
                Call::SetXattr { file, name, value } if *file == id => {
                    xattrs.insert(name, value);
                }
                _ => {}
            }
        }
        let is_other = |known: Option<u32>, seen: u32| known.is_some_and(|known| known != seen);
        if is_other(now.mode.map(|mode| mode & 0o7777), u32::from(node.mode)) {
            return Some(format!("mode {:o}", node.mode));
        }
        if is_other(now.uid, node.uid) || is_other(now.gid, node.gid) {
            return Some(format!("owner {}:{}", node.uid, node.gid));
        }
        if target.is_some_and(|target| *target != node.content) {
            return Some("another target".to_owned());
        }
        let other = xattrs.iter().find(|(name, value)| node.xattrs.get(**name) != value.as_ref());
        other.map(|(name, _)| format!("attribute {}", String::from_utf8_lossy(name)))
    }

    fn content_differs(
        &self,
        node: &Node,
        id: FileId,
        moment: Moment,
        promises: &Promises,
    ) -> Result<Option<String>> {
        let Some(file) = self.history().files.get(&id) else { return Ok(None) };
        if node.kind != FileKind::Regular {
            return Ok(Some("no regular file".to_owned()));
        }
        let Some(options) = self.history().options(id, moment, promises) else { return Ok(None) };
        let size = node.content.len() as u64;
        if !options.sizes.allow(size, self.history().block) {
            let (smallest, largest) = (options.sizes.smallest, options.sizes.largest);
            return Ok(Some(format!("{size} bytes, not {smallest} to {largest}")));
        }
        for (at, seen) in (0_u64..).zip(node.content.chunks(self.history().block as usize)) {
            let nothing = BlockOptions::untouched();
            let allowed = options.blocks.get(&at).unwrap_or(&nothing);
            let version =
                |version| self.history().bytes(self.base(), file, options.generation, at, version);
            if allowed.stale {
                continue;
            }
            if let Some(zeros) = allowed.zeros
                && version(zeros)?[..seen.len()] == *seen
            {
                continue;
            }
            let versions = allowed.versions().map(version);
            let versions: Vec<Vec<u8>> = versions.collect::<Result<_>>()?;
            // Each sector may be of another version: every write of the block can be torn.
            let sector = self.history().sector();
            for (index, seen) in seen.chunks(sector).enumerate() {
                let from = index * sector;
                let is_same = |bytes: &Vec<u8>| bytes[from..from + seen.len()] == *seen;
                if !versions.iter().any(is_same) {
                    let (oldest, newest) = (allowed.oldest, allowed.newest);
                    let why = format!(
                        "block {at}, byte {from}: {:?} is none of the versions {oldest} to \
                         {newest}, zeros {:?}",
                        String::from_utf8_lossy(&seen[..seen.len().min(8)]),
                        allowed.zeros
                    );
                    return Ok(Some(why));
                }
            }
        }
        Ok(None)
    }
}
