//! The allocator's figures as text, in the words of `/proc/fs/ext4/*/mb_stats` and `mb_groups`.

use std::fmt::Write;

use uext4_fuse::stats::Snapshot;

/// Criteria by their names in `mb_stats`.
const CRITERIA: [&str; 5] =
    ["cr_p2_aligned", "cr_goal_fast", "cr_best_avail", "cr_goal_slow", "cr_any_free"];

/// Powers of two that `mb_groups` shows for groups of 32,768 blocks; more where a group has them.
const ORDERS: usize = 14;

pub(crate) fn text(text: &mut String, snapshot: &Snapshot) {
    mb_stats(text, snapshot);
    mb_groups(text, snapshot);
}

fn mb_stats(text: &mut String, snapshot: &Snapshot) {
    let figure = |name: &str| snapshot.mb_stats.get(name).copied().unwrap_or(0);
    let considered = CRITERIA.map(|name| figure(&format!("{name}_groups_considered")));
    let (reqs, success) = (figure("reqs"), figure("success"));
    let scanned: u64 = considered.iter().sum();
    let _ = writeln!(text, "\nmballoc:\n  reqs: {reqs}\n  success: {success}");
    let _ = writeln!(text, "  groups_scanned: {scanned}");
    for (name, considered) in CRITERIA.into_iter().zip(considered) {
        let _ = writeln!(text, "  {name}_stats:");
        for (what, value) in [
            ("hits", figure(&format!("{name}_hits"))),
            ("groups_considered", considered),
            ("useless_loops", figure(&format!("{name}_useless_loops"))),
        ] {
            let _ = writeln!(text, "    {what}: {value}");
        }
    }
    for name in [
        "extents_scanned",
        "goal_hits",
        "len_goal_hits",
        "busy_skips",
        "contended",
        "prefetched",
        "preallocation_hits",
        "preallocations_discarded",
    ] {
        let _ = writeln!(text, "  {name}: {}", figure(name));
    }
    let (loaded, groups) = (figure("buddies_generated"), figure("groups"));
    let _ = writeln!(text, "  buddies_generated: {loaded}/{groups}");
}

fn mb_groups(text: &mut String, snapshot: &Snapshot) {
    if snapshot.mb_groups.is_empty() {
        return;
    }
    let most = snapshot.mb_groups.iter().map(|group| group.chunks.len()).max().unwrap_or(0);
    let orders = most.max(ORDERS);
    let _ = write!(text, "\n#group: free  frags first longest [");
    for order in 0..orders {
        let _ = write!(text, " {:<5}", format!("2^{order}"));
    }
    let _ = writeln!(text, " ]");
    for group in &snapshot.mb_groups {
        let (number, free, frags) = (group.group, group.free, group.frags);
        let _ = write!(text, "#{number:<5}: {free:<5} {frags:<5} {:<5} ", group.first);
        let _ = write!(text, "{:<7} [", group.longest);
        for order in 0..orders {
            let _ = write!(text, " {:<5}", group.chunks.get(order).copied().unwrap_or(0));
        }
        let _ = writeln!(text, " ]");
    }
    if snapshot.mb_groups_left_out > 0 {
        let _ = writeln!(text, "  and {} more", snapshot.mb_groups_left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_fuse::stats::{MbGroup, Named};

    #[test]
    fn words_and_columns_are_those_of_the_kernel() {
        let group =
            MbGroup { group: 3, free: 9, frags: 2, first: 7, longest: 8, chunks: vec![1, 0, 0, 1] };
        let numbers = [("reqs", 5), ("cr_goal_fast_hits", 2), ("groups", 8), ("goal_hits", 3)];
        let named = numbers.map(|(name, value)| (name.to_owned(), value));
        let snapshot = Snapshot {
            mb_stats: Named(named.into()),
            mb_groups: vec![group],
            ..Snapshot::default()
        };
        let mut shown = String::new();
        text(&mut shown, &snapshot);
        let mut lines = shown.lines();
        for line in ["mballoc:", "  reqs: 5", "  cr_goal_fast_stats:", "    hits: 2"] {
            assert!(lines.any(|shown| shown == line), "no {line} in {shown}");
        }
        assert!(lines.any(|line| line == "  buddies_generated: 0/8"), "{shown}");
        let last = shown.lines().last().unwrap_or_default();
        assert!(last.starts_with("#3    : 9     2     7     8       [ 1     0     0     1 "));
    }
}
