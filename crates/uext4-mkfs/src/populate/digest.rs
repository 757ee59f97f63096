//! A digest of what a tree is, for the identity of a reproducible file system.

use super::attributes::stored;
use super::tree::{Body, NodeId, Tree};
use sha2::{Digest, Sha256};
use uext4_ondisk::Timestamp;

/// A digest of the names, attributes and sizes of a tree: of all that is known of it without its
/// content. Times after `epoch` count as that, as in the image.
#[must_use]
pub fn digest(tree: &Tree, epoch: u32) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut first_names = vec![None; tree.node_count()];
    let mut count = 0_u64;
    let mut waiting = vec![tree.root()];
    node(&mut hash, tree, tree.root(), epoch);
    while let Some(directory) = waiting.pop() {
        let at = waiting.len();
        for (name, id) in tree.children(directory) {
            part(&mut hash, name);
            if let Some(first) = first_names[id.index()] {
                // Another name of a file that has been seen.
                number(&mut hash, first);
                continue;
            }
            count += 1;
            first_names[id.index()] = Some(count);
            node(&mut hash, tree, id, epoch);
            if matches!(tree.node(id).body, Body::Directory(_)) {
                waiting.push(id);
            }
        }
        waiting[at..].reverse();
        part(&mut hash, b"/");
    }
    hash.finalize().into()
}

/// Parts have their lengths before them, so that none can pass for two.
fn part(hash: &mut Sha256, bytes: &[u8]) {
    number(hash, bytes.len() as u64);
    hash.update(bytes);
}

fn number(hash: &mut Sha256, number: impl std::fmt::Display) {
    hash.update(format!("{number}:"));
}

fn node(hash: &mut Sha256, tree: &Tree, id: NodeId, epoch: u32) {
    let node = tree.node(id);
    let attributes = &node.attributes;
    hash.update([node.body.kind().dirent()]);
    // The top is the folder of a build, of which only this counts.
    if id != tree.root() || tree.has_root_attributes {
        let latest = Timestamp { secs: i64::from(epoch), nanos: 0 };
        let mtime = attributes.mtime.min(latest);
        for value in [u32::from(attributes.mode), attributes.uid, attributes.gid, mtime.nanos] {
            number(hash, value);
        }
        number(hash, mtime.secs);
    }
    // Those of other name spaces are of the host. What cannot be stored ends the build later.
    let xattrs = stored(&attributes.xattrs).unwrap_or_default();
    number(hash, xattrs.len() as u64);
    for xattr in &xattrs {
        number(hash, xattr.index);
        part(hash, &xattr.name);
        part(hash, &xattr.value);
    }
    match &node.body {
        Body::File(file) => number(hash, file.size),
        Body::Symlink(target) => part(hash, target),
        Body::CharDevice(major, minor) | Body::BlockDevice(major, minor) => {
            number(hash, (u64::from(*major) << 32) | u64::from(*minor));
        }
        Body::Directory(_) | Body::Fifo | Body::Socket => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Attributes, Xattr};
    use super::*;

    /// Fault model: attributes of the host's file system that no image has change its identity.
    #[test]
    fn only_attributes_that_are_stored_count() {
        let with = |names: &[&str]| {
            let xattr =
                |name: &&str| Xattr { name: name.as_bytes().to_vec(), value: b"value".to_vec() };
            let xattrs = names.iter().map(xattr).collect();
            digest(&Tree::new(Attributes { xattrs, ..Attributes::default() }), 0)
        };
        assert_eq!(with(&["btrfs.compression", "system.nfs4_acl"]), with(&[]));
        assert_ne!(with(&["user.x"]), with(&[]));
        assert_ne!(with(&["user.x"]), with(&["trusted.x"]));
    }
}
