//! What a run found wrong, as text that begins with the judge that says so.

/// The judge of a fault: its first words, without the life and the caller that they name. What
/// fails in another way is another fault, and no run to shrink the first one to.
#[must_use]
pub(super) fn judge_of(fault: &str) -> &str {
    let rest = match fault.strip_prefix("life ") {
        Some(rest) => rest.split_once(": ").map_or(rest, |(_, rest)| rest),
        None => fault,
    };
    let is_word = |c: char| c.is_ascii_alphabetic() || c == ' ' || c == '-';
    let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    rest[..end].trim_end()
}

/// Whether one of `faults` is of the judge that found the first of `others`.
#[must_use]
pub(super) fn is_alike(faults: &[String], others: &[String]) -> bool {
    let judge = others.first().map(|fault| judge_of(fault));
    faults.iter().any(|fault| Some(judge_of(fault)) == judge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_of_the_judge_that_it_begins_with() {
        let faults = [
            ("life 2: caller 17 operation 3: Write { id: 0x5 }: no space", "caller"),
            ("life 0: model: file 0x100003: byte 7", "model"),
            ("deadlock:\n    caller 1: waits for Pages at a.rs:3", "deadlock"),
            ("no progress:\n    caller 1: can run", "no progress"),
            ("panic: caller 1: overflow", "panic"),
            ("the process ended: Ok(ExitStatus(9))", "the process ended"),
        ];
        for (fault, judge) in faults {
            assert_eq!(judge_of(fault), judge);
        }
        let text = |fault: &str| vec![fault.to_owned()];
        assert!(is_alike(&text("life 1: fsck: 3"), &text("life 0: fsck: 4")));
        assert!(!is_alike(&text("model: 3"), &text("fsck: 4")));
    }
}
