//! The states that the model makes of a sequence, beside what the kernel left.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use uext4_crashtest::model::{Explorer, Tree};

/// Trees of made states, each with the steps before its crash.
pub(crate) struct Generated {
    trees: BTreeSet<(usize, u64)>,
    /// How many states were made.
    pub(crate) states: usize,
    /// Those that the model itself does not allow.
    pub(crate) refused: Vec<String>,
}

impl Generated {
    /// The first `count` states.
    pub(crate) fn of(name: &str, explorer: &Explorer, count: usize) -> Self {
        let mut made = Self { trees: BTreeSet::new(), states: 0, refused: Vec::new() };
        for spec in explorer.states(1).take(count) {
            made.states += 1;
            let tree = Tree::read(&explorer.image(&spec).unwrap()).unwrap();
            if let Err(why) = explorer.allows(&tree, spec.crash..=spec.crash).unwrap() {
                made.refused.push(format!("{name}, made: {spec:?}: {why}"));
            }
            made.trees.insert((spec.crash, hash(&tree)));
        }
        made
    }

    /// A made state of a crash after so many steps shows this tree.
    pub(crate) fn has(&self, tree: &Tree, crashes: RangeInclusive<usize>) -> bool {
        let hash = hash(tree);
        crashes.into_iter().any(|crash| self.trees.contains(&(crash, hash)))
    }
}

fn hash(tree: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (path, node) in &tree.nodes {
        (path, node.mode, node.uid, node.gid, &node.content, &node.xattrs).hash(&mut hasher);
    }
    hasher.finish()
}
