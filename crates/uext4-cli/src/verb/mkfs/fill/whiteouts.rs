//! What a layer of an OCI image takes away of the layers below it.
//!
//! A whiteout is of what its path leads to when the layer is in place. A directory that the layer
//! has in the place of a link hides what the link led to, and a link of the layer leads where the
//! layer says. The order in the archive does not matter: names are taken away before all that is in
//! a directory, and of names those nearer to the top first.

use std::collections::BTreeMap;

use uext4_archive::TarPath;
use uext4_mkfs::populate::{Body, NodeId, Tree};

use super::layers::LINKS_MAX;
use super::members::{Member, Memory, What};
use crate::failure::Why;

/// Before the name of what is taken away, and a name that takes away all in its directory.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Takes away what the whiteouts of a layer say. Returns the layer without them.
pub(super) fn take_away(
    tree: &mut Tree,
    members: Vec<Member>,
    memory: &Memory,
) -> Result<Vec<Member>, Why> {
    let is_whiteout =
        |member: &Member| member.path.split().is_some_and(|(_, name)| name.starts_with(WHITEOUT));
    let (mut whiteouts, members): (Vec<_>, Vec<_>) = members.into_iter().partition(is_whiteout);
    if whiteouts.is_empty() {
        return Ok(members);
    }
    let is_opaque = |path: &TarPath| path.split().is_some_and(|(_, name)| name == OPAQUE);
    whiteouts.sort_by_cached_key(|one| (is_opaque(&one.path), one.path.parts().count()));
    let own = Own::of(&members, memory.clone())?;
    for whiteout in whiteouts {
        let taken = one(tree, &own, &whiteout.path);
        taken.map_err(|why| Why::new(format!("{}: {why}", whiteout.path)))?;
    }
    Ok(members)
}

fn one(tree: &mut Tree, own: &Own<'_>, path: &TarPath) -> Result<(), Why> {
    let Some((parent, name)) = path.split() else { return Ok(()) };
    let Some(parent) = own.below(tree, parent)? else { return Ok(()) };
    if name == OPAQUE {
        let names: Vec<Vec<u8>> = tree.children(parent).map(|(name, _)| name.to_vec()).collect();
        names.iter().for_each(|name| _ = tree.remove(parent, name));
        return Ok(());
    }
    match &name[WHITEOUT.len()..] {
        b"" | b"." | b".." => Err(Why::new("takes away no name")),
        name => {
            tree.remove(parent, name);
            Ok(())
        }
    }
}

/// The names that a layer has itself.
struct Own<'a> {
    names: Vec<Name<'a>>,
}

/// What a layer has under a name.
#[derive(Default)]
struct Name<'a> {
    listed: Option<Listed<'a>>,
    /// By index.
    below: BTreeMap<&'a [u8], usize>,
}

/// What the layer lists, and does not only imply.
#[derive(Clone, Copy)]
enum Listed<'a> {
    Directory,
    Symlink(&'a [u8]),
    Other,
}

/// A directory on the way.
#[derive(Clone)]
struct Place {
    /// In the layers below.
    lower: Option<NodeId>,
    /// In the layer, under all the names that led to it.
    own: Vec<usize>,
}

/// What is still to be done of a way.
enum Step<'a> {
    Part(&'a [u8]),
    /// The way to the target of a link is at its end: these are the link's own names.
    Linked(Vec<usize>),
}

impl<'a> Own<'a> {
    /// `memory` is what the names may take for now.
    fn of(members: &'a [Member], mut memory: Memory) -> Result<Self, Why> {
        let mut names = vec![Name::default()];
        for member in members {
            let mut here = 0;
            for part in member.path.parts() {
                let next = names.len();
                here = *names[here].below.entry(part).or_insert(next);
                if here == next {
                    memory.take(0)?;
                    names.push(Name::default());
                }
            }
            names[here].listed = Some(match &member.what {
                What::Link(_) => Listed::Other,
                What::File(node) => match &node.body {
                    Body::Directory(_) => Listed::Directory,
                    Body::Symlink(target) => Listed::Symlink(target),
                    _ => Listed::Other,
                },
            });
        }
        Ok(Self { names })
    }

    /// The directory of the layers below that a path leads to; none if the layer hides it.
    fn below(&self, tree: &Tree, path: &[u8]) -> Result<Option<NodeId>, Why> {
        let mut waiting = Vec::new();
        push(&mut waiting, path);
        let (mut links, mut way) = (0, Vec::new());
        let top = Place { lower: Some(tree.root()), own: vec![0] };
        while let Some(step) = waiting.pop() {
            let part = match step {
                Step::Part(b"" | b".") => continue,
                Step::Part(b"..") => {
                    way.pop();
                    continue;
                }
                Step::Part(part) => part,
                Step::Linked(names) => {
                    if let Some(Place { own, .. }) = way.last_mut() {
                        own.extend(names);
                    }
                    continue;
                }
            };
            let Some((place, link)) = self.step(tree, way.last().unwrap_or(&top), part) else {
                return Ok(None);
            };
            let Some(target) = link else {
                way.push(place);
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(Why::new("too many symbolic links on the way to it"));
            }
            if target.starts_with(b"/") {
                way.clear();
            }
            waiting.push(Step::Linked(place.own));
            push(&mut waiting, target);
        }
        Ok(way.pop().unwrap_or(top).lower)
    }

    /// One part on: what is there, and the target if that is a link. None if there is nothing.
    fn step<'b>(&'b self, tree: &'b Tree, from: &Place, part: &[u8]) -> Option<Stepped<'b>> {
        let lower = from.lower.and_then(|id| tree.child(id, part));
        let own = from.own.iter().filter_map(|name| self.names[*name].below.get(part).copied());
        let own: Vec<usize> = own.collect();
        let listed = own.iter().find_map(|name| self.names[*name].listed);
        let (lower, link) = match (listed, lower.map(|id| &tree.node(id).body)) {
            (Some(Listed::Symlink(target)), _) => (None, Some(target)),
            (Some(Listed::Other), _) => return None,
            (_, Some(Body::Directory(_))) => (lower, None),
            (None, Some(Body::Symlink(target))) => (None, Some(&target[..])),
            (None, Some(_)) => return None,
            (None, None) if own.is_empty() => return None,
            (Some(Listed::Directory), _) | (None, None) => (None, None),
        };
        Some((Place { lower, own }, link))
    }
}

/// A directory, or the own names of a link and its target.
type Stepped<'a> = (Place, Option<&'a [u8]>);

fn push<'a>(waiting: &mut Vec<Step<'a>>, path: &'a [u8]) {
    waiting.extend(path.split(|byte| *byte == b'/').rev().map(Step::Part));
}
