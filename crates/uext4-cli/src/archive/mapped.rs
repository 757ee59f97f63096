//! A source of a copy with other owners: what [`Copier`](crate::copy::tree::Copier) reads for
//! `import` and `export` of directories.

use std::ops::Range;

use super::ownership::Ownership;
use crate::copy::{Meta, Source, Try, Xattr};

/// Decides of a file, whose path messages have, whether it is left out.
pub(crate) type LeaveOut<'a> = dyn Fn(&Meta, &[u8]) -> Try<bool> + Sync + 'a;

/// A source whose files come in the order of their names.
pub(crate) struct Mapped<'a, S> {
    source: &'a S,
    ownership: &'a Ownership,
    leave_out: &'a LeaveOut<'a>,
}

impl<'a, S> Mapped<'a, S> {
    /// Reads `source`.
    pub(crate) fn new(
        source: &'a S,
        ownership: &'a Ownership,
        leave_out: &'a LeaveOut<'a>,
    ) -> Self {
        Self { source, ownership, leave_out }
    }
}

impl<S: Source> Source for Mapped<'_, S> {
    type Node = S::Node;

    fn meta(&self, node: &S::Node) -> Meta {
        let meta = self.source.meta(node);
        // Numbers alone count on both sides.
        let (uid, gid) = (self.ownership.user(b"", meta.uid), self.ownership.group(b"", meta.gid));
        Meta { uid, gid, ..meta }
    }

    fn names(&self, dir: &S::Node) -> Try<Vec<Vec<u8>>> {
        let mut names = self.source.names(dir)?;
        names.sort_unstable();
        Ok(names)
    }

    fn child(&self, dir: &S::Node, name: &[u8]) -> Try<S::Node> {
        self.source.child(dir, name)
    }

    fn link_target(&self, node: &S::Node) -> Try<Vec<u8>> {
        self.source.link_target(node)
    }

    fn xattrs(&self, node: &S::Node) -> Try<Vec<Xattr>> {
        let xattrs = self.source.xattrs(node)?.into_iter();
        Ok(xattrs
            .map(|Xattr { name, value }| {
                let value = self.ownership.value(&name, value);
                Xattr { name, value }
            })
            .collect())
    }

    fn is_tree(&self) -> bool {
        self.source.is_tree()
    }

    fn is_left_out(&self, node: &S::Node, path: &[u8]) -> Try<bool> {
        (self.leave_out)(&self.source.meta(node), path)
    }

    fn check_readable(&self, node: &S::Node) -> Try<()> {
        self.source.check_readable(node)
    }

    fn next_data(&self, node: &S::Node, from: u64) -> Try<Option<Range<u64>>> {
        self.source.next_data(node, from)
    }

    fn read(&self, node: &S::Node, offset: u64, buffer: &mut [u8]) -> Try<usize> {
        self.source.read(node, offset, buffer)
    }
}
