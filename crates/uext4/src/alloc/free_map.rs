//! The in-memory block bitmap of one group, with what a search asks of it.
//!
//! What: the bitmap, and above it a binary tree. A leaf of the tree sums up 256 bits. Each node has
//! the length of the free run at either end, and of the longest one inside. The root has the
//! longest free run of the group. A walk down finds the first run of a given length behind a bit
//! without looking at shorter ones. A change of a run recomputes its leaves and their ancestors,
//! seven for a group of 32,768 blocks. A buddy bitmap knows aligned powers of two only, and takes
//! twice the memory.
//! Invariants: `free`, `fragments` and the tree agree with the bitmap after each call. Bits from
//! `blocks` on are set.
//! Kernel counterpart: the buddy of `fs/ext4/mballoc.c`.

use uext4_ondisk::bitmap;

/// Bits that a leaf sums up.
const LEAF: u32 = 256;

/// Powers of two that a run can have: a group of 64 KiB blocks has 2^19 of them.
pub(super) const ORDERS: usize = 20;

#[derive(Debug)]
pub(super) struct FreeMap {
    allocated: Box<[u8]>,
    blocks: u32,
    free: u32,
    fragments: u32,
    /// Number of leaves; a power of two.
    leaves: u32,
    /// Node 1 is the root; the children of `n` are `2n` and `2n + 1`.
    nodes: Box<[Node]>,
}

/// Free runs of a node, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    first: u32,
    last: u32,
    longest: u32,
}

impl Node {
    const fn all(blocks: u32) -> Self {
        Self { first: blocks, last: blocks, longest: blocks }
    }

    /// Sums up two neighbours of `half` blocks each.
    fn join(left: Self, right: Self, half: u32) -> Self {
        let middle = left.last + right.first;
        Self {
            first: if left.first == half { half + right.first } else { left.first },
            last: if right.last == half { half + left.last } else { right.last },
            longest: left.longest.max(right.longest).max(middle),
        }
    }
}

impl FreeMap {
    /// Of a bitmap of which the group has the first `blocks` bits.
    pub(super) fn new(mut allocated: Box<[u8]>, blocks: u32) -> Self {
        let bits = u32::try_from(allocated.len() * 8).unwrap_or(u32::MAX);
        let blocks = blocks.min(bits);
        bitmap::set_range(&mut allocated, blocks, bits - blocks);
        let leaves = blocks.div_ceil(LEAF).next_power_of_two();
        let mut map = Self {
            free: bitmap::count_zeros(&allocated, blocks),
            fragments: u32::try_from(bitmap::free_runs(&allocated, 0, blocks).count()).unwrap_or(0),
            nodes: vec![Node::default(); leaves as usize * 2].into(),
            allocated,
            blocks,
            leaves,
        };
        map.refresh(0, leaves * LEAF);
        map
    }

    /// Bytes of memory of a map: the bitmap's block, and the tree.
    pub(super) fn bytes(block_size: usize, blocks: u32) -> usize {
        let leaves = blocks.div_ceil(LEAF).next_power_of_two() as usize;
        block_size + leaves * 2 * size_of::<Node>()
    }

    /// The in-memory bitmap: set bits are blocks that cannot be allocated.
    pub(super) fn allocated(&self) -> &[u8] {
        &self.allocated
    }

    /// Whether all blocks of a run are free.
    pub(super) fn is_free(&self, start: u32, len: u32) -> bool {
        bitmap::all_clear(&self.allocated, start, len)
    }

    /// Whether no block of a run is free.
    pub(super) fn is_allocated(&self, start: u32, len: u32) -> bool {
        bitmap::all_set(&self.allocated, start, len)
    }

    /// Whether every bit of `other` is set here.
    pub(super) fn contains(&self, other: &[u8]) -> bool {
        let pairs = other.iter().zip(&self.allocated);
        pairs.fold(0, |missing, (other, own)| missing | other & !own) == 0
    }

    /// Free blocks.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Free runs.
    pub(super) fn fragments(&self) -> u32 {
        self.fragments
    }

    /// Blocks of the longest free run.
    pub(super) fn longest(&self) -> u32 {
        self.nodes[1].longest
    }

    /// Number of blocks that are free from `bit` on, at most `most`.
    pub(super) fn free_at(&self, bit: u32, most: u32) -> u32 {
        let limit = bit.saturating_add(most).min(self.blocks);
        bitmap::find_next_set(&self.allocated, bit, limit).unwrap_or(limit).saturating_sub(bit)
    }

    /// Allocates free blocks.
    pub(super) fn allocate(&mut self, start: u32, len: u32) {
        let joins = self.free_neighbours(start, len);
        bitmap::set_range(&mut self.allocated, start, len);
        self.free -= len;
        self.fragments = self.fragments + joins - 1;
        self.refresh(start, start + len);
    }

    /// Releases allocated blocks.
    pub(super) fn release(&mut self, start: u32, len: u32) {
        let joins = self.free_neighbours(start, len);
        bitmap::clear_range(&mut self.allocated, start, len);
        self.free += len;
        self.fragments = self.fragments + 1 - joins;
        self.refresh(start, start + len);
    }

    /// How many of the blocks before and behind a run are free.
    fn free_neighbours(&self, start: u32, len: u32) -> u32 {
        let before = start > 0 && !bitmap::test(&self.allocated, start - 1);
        let behind = start + len < self.blocks && !bitmap::test(&self.allocated, start + len);
        u32::from(before) + u32::from(behind)
    }

    /// The first free run of at least `least` blocks (one or more) that begins at or behind `from`.
    /// A run that contains `from` counts from there.
    pub(super) fn next_run(&self, from: u32, least: u32) -> Option<u32> {
        if from >= self.blocks {
            return None;
        }
        let leaf = from / LEAF;
        let mut at = (leaf + 1) * LEAF;
        let mut open = match self.run_in_leaf(from, at, least) {
            Run::Found(start) => return Some(start),
            Run::Open(start) => start,
        };
        let (mut node, mut size) = (self.leaves + leaf, LEAF);
        loop {
            // The neighbour on the right, or that of an ancestor.
            if (node + 1).is_power_of_two() {
                return None;
            }
            while node % 2 == 1 {
                (node, size) = (node / 2, size * 2);
            }
            node += 1;
            let here = self.nodes[node as usize];
            if at - open + here.first >= least {
                return Some(open);
            }
            if here.longest >= least {
                return self.run_below(node, size, at, least);
            }
            if here.first < size {
                open = at + size - here.last;
            }
            at += size;
        }
    }

    /// The first run of at least `least` blocks in a node that has one. The run before the node
    /// does not extend far enough into it.
    fn run_below(&self, mut node: u32, mut size: u32, mut at: u32, least: u32) -> Option<u32> {
        while node < self.leaves {
            (node, size) = (node * 2, size / 2);
            let left = self.nodes[node as usize];
            if left.longest >= least {
                continue;
            }
            let open = if left.first < size { at + size - left.last } else { at };
            (node, at) = (node + 1, at + size);
            if at - open + self.nodes[node as usize].first >= least {
                return Some(open);
            }
        }
        match self.run_in_leaf(at, at + LEAF, least) {
            Run::Found(start) => Some(start),
            Run::Open(_) => None,
        }
    }

    fn run_in_leaf(&self, from: u32, end: u32, least: u32) -> Run {
        let mut at = from;
        while let Some(start) = bitmap::find_next_zero(&self.allocated, at, end) {
            at = bitmap::find_next_set(&self.allocated, start, end).unwrap_or(end);
            if at - start >= least {
                return Run::Found(start);
            }
            if at == end {
                return Run::Open(start);
            }
        }
        Run::Open(end)
    }

    /// Recomputes the nodes that depend on the bits from `start` to `end`.
    fn refresh(&mut self, start: u32, end: u32) {
        let (mut low, mut high) = (self.leaves + start / LEAF, self.leaves + (end - 1) / LEAF);
        let mut changed = false;
        for node in low..=high {
            let leaf = leaf(&self.allocated, node - self.leaves);
            changed |= self.nodes[node as usize] != leaf;
            self.nodes[node as usize] = leaf;
        }
        let mut size = LEAF;
        while changed && low > 1 {
            (low, high) = (low / 2, high / 2);
            changed = false;
            for node in low..=high {
                let at = node as usize * 2;
                let joined = Node::join(self.nodes[at], self.nodes[at + 1], size);
                changed |= self.nodes[node as usize] != joined;
                self.nodes[node as usize] = joined;
            }
            size *= 2;
        }
    }

    /// How many free chunks of each power of two, aligned to their size, the runs consist of. A
    /// buddy bitmap counts the same.
    pub(super) fn chunks(&self) -> [u32; ORDERS] {
        let mut chunks = [0; ORDERS];
        for (mut bit, len) in bitmap::free_runs(&self.allocated, 0, self.blocks) {
            let end = bit + len;
            while bit < end {
                let order = order_of(end - bit).min(bit.trailing_zeros());
                chunks[order as usize] += 1;
                bit += 1 << order;
            }
        }
        chunks
    }
}

enum Run {
    Found(u32),
    /// Not long enough so far: it begins here and extends to the end.
    Open(u32),
}

/// The binary logarithm of a length, rounded down. 0 for no blocks; the last order for more blocks
/// than a group has.
pub(super) const fn order_of(len: u32) -> u32 {
    const LAST: u32 = ORDERS as u32 - 1;
    match len.checked_ilog2() {
        Some(order) if order < LAST => order,
        Some(_) => LAST,
        None => 0,
    }
}

fn leaf(allocated: &[u8], number: u32) -> Node {
    const WORDS: u32 = LEAF / 64;
    let (mut first, mut run, mut longest) = (None, 0, 0);
    for word in (number * WORDS..(number + 1) * WORDS).map(|at| bitmap::word_at(allocated, at)) {
        if word == 0 {
            run += 64;
            continue;
        }
        run += word.trailing_zeros();
        first = first.or(Some(run));
        longest = longest.max(run).max(longest_ones(!word));
        run = word.leading_zeros();
    }
    match first {
        None => Node::all(LEAF),
        Some(first) => Node { first, last: run, longest: longest.max(run) },
    }
}

/// The longest run of ones.
fn longest_ones(word: u64) -> u32 {
    match word {
        0 => return 0,
        u64::MAX => return 64,
        _ => {}
    }
    // Each step keeps the places where twice as many ones begin.
    let mut starts = [word; 6];
    let mut order = 0;
    while order < 5 {
        let longer = starts[order] & (starts[order] >> (1 << order));
        if longer == 0 {
            break;
        }
        order += 1;
        starts[order] = longer;
    }
    let (mut found, mut len) = (starts[order], 1_u32 << order);
    for shorter in (0..order).rev() {
        let longer = found & (starts[shorter] >> len);
        if longer != 0 {
            (found, len) = (longer, len + (1 << shorter));
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the map must say, from a vector of booleans (true: allocated).
    fn expect(map: &FreeMap, model: &[bool]) {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (bit, _) in model.iter().enumerate().filter(|(_, allocated)| !**allocated) {
            let bit = u32::try_from(bit).unwrap();
            match runs.last_mut() {
                Some((start, len)) if *start + *len == bit => *len += 1,
                _ => runs.push((bit, 1)),
            }
        }
        assert_eq!(map.free(), runs.iter().map(|run| run.1).sum::<u32>());
        assert_eq!(map.fragments() as usize, runs.len());
        assert_eq!(map.longest(), runs.iter().map(|run| run.1).max().unwrap_or(0));
        let chunks: u32 = (0_u32..).zip(map.chunks()).map(|(order, n)| n << order).sum();
        assert_eq!(chunks, map.free());
        for (bit, allocated) in (0..).zip(model) {
            assert_eq!(bitmap::test(map.allocated(), bit), *allocated);
        }
        let blocks = u32::try_from(model.len()).unwrap();
        let places = runs.iter().flat_map(|&(start, len)| [start, start + len / 2, start + len]);
        for from in places.chain([0, blocks / 2, blocks]) {
            let here = |&(start, len): &(u32, u32)| {
                let begin = start.max(from);
                (begin < start + len).then(|| (begin, start + len - begin))
            };
            for least in [1, 2, 7, 64, 255, 256, 300, map.longest().max(1)] {
                let want = runs.iter().filter_map(here).find(|run| run.1 >= least);
                assert_eq!(map.next_run(from, least), want.map(|run| run.0), "{from} {least}");
            }
            let want = runs.iter().filter_map(here).find(|run| run.0 == from).map_or(0, |r| r.1);
            assert_eq!(map.free_at(from, 100), want.min(100));
        }
    }

    fn sizes() -> impl Strategy<Value = u32> {
        prop_oneof![Just(8_192), Just(32_768), Just(65_528), 8..4_000_u32]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Runs of any length are allocated and released. After each step all sums agree with the
        /// bits. Not covered: threads.
        #[test]
        fn sums_agree_with_the_bits(
            blocks in sizes(),
            steps in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 1..40),
        ) {
            let bytes = blocks.div_ceil(8) as usize + 64;
            let mut map = FreeMap::new(vec![0; bytes].into(), blocks);
            let mut model = vec![false; blocks as usize];
            for (place, len, allocates) in steps {
                // The next run of the kind at a place, cut to a length of any magnitude.
                let start = (0..blocks)
                    .map(|step| (place % blocks + step) % blocks)
                    .find(|&bit| model[bit as usize] != allocates);
                let Some(start) = start else { continue };
                let end = (start..blocks).find(|&bit| model[bit as usize] == allocates);
                let most = end.unwrap_or(blocks) - start;
                let len = (len % (1 << (1 + len % 17)) + 1).min(most);
                if allocates { map.allocate(start, len) } else { map.release(start, len) }
                model[start as usize..(start + len) as usize].fill(allocates);
                expect(&map, &model);
            }
        }

        #[test]
        fn longest_run_of_ones(word in any::<u64>(), mask in any::<u64>()) {
            for word in [word, word | mask, word & mask, !(1 << (word % 64)), 1 << (word % 64)] {
                let slow = (0..64).map(|bit| (word >> bit).trailing_ones()).max();
                prop_assert_eq!(Some(longest_ones(word)), slow);
            }
        }
    }

    #[test]
    fn bits_behind_the_group_are_set() {
        let map = FreeMap::new(vec![0; 4096].into(), 1000);
        assert_eq!((map.free(), map.longest(), map.fragments()), (1000, 1000, 1));
        assert_eq!(map.next_run(0, 1001), None);
        assert_eq!(map.chunks()[..10], [0, 0, 0, 1, 0, 1, 1, 1, 1, 1]);
    }
}
