//! A tree out of archives, one over the other.
//!
//! A later member takes the place of an earlier one of that name; a directory over a directory
//! changes its attributes and keeps what is in it. Symbolic links on the way to a member are
//! followed within the tree, whose top is the root of the file system: none leads out of it.

use std::time::{SystemTime, UNIX_EPOCH};

use uext4_archive::TarPath;
use uext4_mkfs::populate::{Attributes, Body, Node, NodeId, Tree, TreeError};
use uext4_ondisk::Timestamp;

use super::members::{Member, Memory, What};
use super::whiteouts;
use crate::failure::Why;

/// Symbolic links on the way to a file, as the kernel follows.
pub(super) const LINKS_MAX: u32 = 40;
/// Of a directory that no archive has but by what is in it.
const PLAIN_MODE: u16 = 0o755;

/// A tree that archives are put on.
pub(super) struct Layers {
    pub(super) tree: Tree,
}

/// Time and memory of directories that are made.
type Making<'a> = (Timestamp, &'a mut Memory);

impl Layers {
    /// An empty directory.
    pub(super) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp { secs: now.as_secs().cast_signed(), nanos: now.subsec_nanos() };
        let attributes =
            Attributes { mode: PLAIN_MODE, atime: now, mtime: now, ..Attributes::default() };
        let mut tree = Tree::new(attributes);
        tree.has_root_attributes = false;
        Self { tree }
    }

    /// Puts the members of an archive on it.
    pub(super) fn add(&mut self, members: Vec<Member>, memory: &mut Memory) -> Result<(), Why> {
        for member in members {
            let shown = member.path.to_string();
            self.put(member, memory).map_err(|why| Why::new(format!("{shown}: {why}")))?;
        }
        Ok(())
    }

    /// Puts a layer of an OCI image on it. What it takes away is taken of the layers below,
    /// wherever in the archive it is named.
    pub(super) fn add_layer(
        &mut self,
        members: Vec<Member>,
        memory: &mut Memory,
    ) -> Result<(), Why> {
        let members = whiteouts::take_away(&mut self.tree, members, memory)?;
        self.add(members, memory)
    }

    fn put(&mut self, member: Member, memory: &mut Memory) -> Result<(), Why> {
        let Some((parent, name)) = member.path.split() else {
            if let What::File(node) = member.what {
                let root = self.tree.root();
                self.tree.node_mut(root).attributes = node.attributes;
                self.tree.has_root_attributes = true;
            }
            return Ok(());
        };
        let time = match &member.what {
            What::File(node) => node.attributes.mtime,
            What::Link(target) => self.linked(target)?.1,
        };
        let Some(parent) = self.walk(parent, Some((time, memory)))? else {
            return Err(Why::new("lies below what is no directory"));
        };
        let there = self.tree.child(parent, name);
        match member.what {
            What::File(node) => {
                let is_directory = |body: &Body| matches!(body, Body::Directory(_));
                let both = is_directory(&node.body);
                match there.filter(|id| both && is_directory(&self.tree.node(*id).body)) {
                    Some(id) => self.tree.node_mut(id).attributes = node.attributes,
                    None => {
                        self.tree.remove(parent, name);
                        self.tree.add(parent, name, *node).map_err(words)?;
                    }
                }
            }
            What::Link(target) => {
                let (id, _) = self.linked(&target)?;
                if there != Some(id) {
                    if matches!(self.tree.node(id).body, Body::Directory(_)) {
                        return Err(Why::new(format!("is a hard link to a directory, {target}")));
                    }
                    self.tree.remove(parent, name);
                    self.tree.link(parent, name, id).map_err(words)?;
                }
            }
        }
        Ok(())
    }

    /// The file that a hard link leads to, and its time.
    fn linked(&mut self, target: &TarPath) -> Result<(NodeId, Timestamp), Why> {
        let found = match target.split() {
            Some((parent, name)) => {
                self.walk(parent, None)?.and_then(|parent| self.tree.child(parent, name))
            }
            None => None,
        };
        let id = found.ok_or_else(|| {
            Why::new(format!("is a hard link to {target}, which is not there before it"))
        })?;
        Ok((id, self.tree.node(id).attributes.mtime))
    }

    /// The directory at the end of a path. Missing ones are made, or there is none.
    fn walk(&mut self, path: &[u8], mut making: Option<Making<'_>>) -> Result<Option<NodeId>, Why> {
        let parts = |path: &[u8]| -> Vec<Box<[u8]>> {
            path.split(|byte| *byte == b'/').rev().map(Box::from).collect()
        };
        let (root, mut waiting, mut links) = (self.tree.root(), parts(path), 0);
        // The directories below the top on the way.
        let mut way = Vec::new();
        while let Some(part) = waiting.pop() {
            if matches!(&*part, b"" | b".") {
                continue;
            }
            if *part == *b".." {
                way.pop();
                continue;
            }
            let here = way.last().copied().unwrap_or(root);
            match (self.tree.child(here, &part), &mut making) {
                (Some(id), _) => match &self.tree.node(id).body {
                    Body::Directory(_) => way.push(id),
                    Body::Symlink(target) if links < LINKS_MAX => {
                        links += 1;
                        if target.starts_with(b"/") {
                            way.clear();
                        }
                        waiting.extend(parts(target));
                    }
                    Body::Symlink(_) => {
                        return Err(Why::new("too many symbolic links on the way to it"));
                    }
                    _ => return Ok(None),
                },
                (None, Some((time, memory))) => {
                    memory.take(part.len() as u64)?;
                    way.push(self.tree.add(here, &part, plain_directory(*time)).map_err(words)?);
                }
                (None, None) => return Ok(None),
            }
        }
        Ok(Some(way.last().copied().unwrap_or(root)))
    }
}

fn plain_directory(time: Timestamp) -> Node {
    let (atime, mtime) = (time, time);
    let attributes = Attributes { mode: PLAIN_MODE, atime, mtime, ..Attributes::default() };
    Node { attributes, body: Body::directory() }
}

fn words(error: TreeError) -> Why {
    Why::new(error.to_string())
}
