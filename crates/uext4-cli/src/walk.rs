//! A tree of an image, depth first: what `tree`, `find`, `du`, `chmod -R` and `chown -R` have in
//! common.
//!
//! Symbolic links are never followed. Depth costs heap, not stack. A directory is entered once:
//! damage may give it a second name, or make it its own ancestor, and either could make a walk
//! without end.

use std::collections::HashSet;
use std::rc::Rc;

use uext4::{Attr, FileKind, Ino, InodeRef, Volume};

use crate::failure::{Failure, Result, Why};
use crate::image_path::names;
use crate::spec::{self, ImagePath};

/// A name of the tree and its inode.
pub(crate) struct Node {
    /// Path of its directory, which all its names share: a hostile directory has short names by the
    /// hundred thousand behind a long path.
    dir: Rc<[u8]>,
    /// The last part of the path; all of it for the start of the walk.
    name: Vec<u8>,
    /// Attributes of the inode.
    pub(crate) attr: Attr,
    /// Levels below the start of the walk.
    pub(crate) depth: usize,
}

impl Node {
    /// The last part of the path; all of it for the start of the walk.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Path in the image, as it was reached.
    pub(crate) fn path(&self) -> Vec<u8> {
        spec::join(&self.dir, &self.name)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }
}

/// How a walk goes on after a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    /// Into it, if it is a directory.
    On,
    /// Not into it.
    Past,
    /// No further at all.
    Stop,
}

/// What is done on the way.
pub(crate) trait Visitor {
    /// Whether a name takes part; its siblings do not know of one that does not.
    fn takes(&self, _node: &Node) -> bool {
        true
    }

    /// The order of the names of a directory: by their bytes, unless something else is wanted.
    fn sort(&self, nodes: &mut [Node]) {
        nodes.sort_by(|a, b| a.name().cmp(b.name()));
    }

    /// A name is reached, before what is below it. `is_last` of its directory.
    fn enter(&mut self, node: &Node, is_last: bool) -> Result<Go>;

    /// A name is left: all below it has been seen.
    fn leave(&mut self, _node: &Node) -> Result<Go> {
        Ok(Go::On)
    }

    /// A name or a directory could not be read; the walk goes on.
    fn fail(&mut self, failure: Failure);
}

/// A directory under way: the names that are left of it, the next one at the end.
struct Level {
    dir: Node,
    left: Vec<Node>,
}

/// Walks the tree below `inode`, which `start` names.
pub(crate) fn walk(
    verb: &str,
    volume: &Volume,
    start: &ImagePath,
    inode: &InodeRef,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    let attr = volume.attr(inode);
    let root = Node { dir: Rc::default(), name: start.path.clone(), attr, depth: 0 };
    let mut walk = Walk { verb, volume, start, entered: HashSet::new(), levels: Vec::new() };
    if walk.step(root, true, visitor)? == Go::Stop {
        return Ok(());
    }
    while let Some(level) = walk.levels.last_mut() {
        let Some(node) = level.left.pop() else {
            let done = walk.levels.pop().expect("just seen");
            if visitor.leave(&done.dir)? == Go::Stop {
                return Ok(());
            }
            continue;
        };
        let is_last = level.left.is_empty();
        if walk.step(node, is_last, visitor)? == Go::Stop {
            return Ok(());
        }
    }
    Ok(())
}

struct Walk<'a> {
    verb: &'a str,
    volume: &'a Volume,
    start: &'a ImagePath,
    /// Directories that the walk has been in.
    entered: HashSet<Ino>,
    levels: Vec<Level>,
}

impl Walk<'_> {
    /// Reaches a name; a directory becomes the last level.
    fn step(&mut self, node: Node, is_last: bool, visitor: &mut dyn Visitor) -> Result<Go> {
        match visitor.enter(&node, is_last)? {
            Go::Stop => return Ok(Go::Stop),
            Go::On if node.is_dir() => match self.children(&node, visitor) {
                Ok(left) => {
                    self.levels.push(Level { dir: node, left });
                    return Ok(Go::On);
                }
                Err(why) => visitor.fail(why.at(self.verb, self.shown(&node.path()))),
            },
            Go::On | Go::Past => {}
        }
        visitor.leave(&node)
    }

    /// The names of a directory that take part, the first one at the end.
    fn children(
        &mut self,
        dir: &Node,
        visitor: &mut dyn Visitor,
    ) -> std::result::Result<Vec<Node>, Why> {
        if !self.entered.insert(dir.attr.ino) {
            return Err(Why::new("a second name of a directory; run fsck"));
        }
        let path: Rc<[u8]> = dir.path().into();
        spec::check_path(&path)?;
        let inode = self.volume.inode(dir.attr.ino)?;
        let mut nodes = Vec::new();
        for entry in names(self.volume, &inode)? {
            match self.volume.inode(entry.ino) {
                Ok(found) => {
                    let attr = self.volume.attr(&found);
                    let dir_path = Rc::clone(&path);
                    let depth = dir.depth + 1;
                    let node = Node { dir: dir_path, name: entry.name, attr, depth };
                    if visitor.takes(&node) {
                        nodes.push(node);
                    }
                }
                Err(error) => {
                    let path = self.shown(&spec::join(&path, &entry.name));
                    visitor.fail(Why::from(error).at(self.verb, path));
                }
            }
        }
        visitor.sort(&mut nodes);
        nodes.reverse();
        Ok(nodes)
    }

    fn shown(&self, path: &[u8]) -> String {
        ImagePath { image: self.start.image.clone(), path: path.to_vec() }.to_string()
    }
}

/// The target of a symbolic link, for a name that was reached by a walk.
pub(crate) fn target(volume: &Volume, attr: &Attr) -> std::result::Result<Option<Vec<u8>>, Why> {
    match attr.kind {
        FileKind::Symlink => {
            let inode = volume.inode(attr.ino)?;
            Ok(Some(volume.read_link(&inode)?))
        }
        _ => Ok(None),
    }
}
