//! The exit statuses of this command, for the manual pages and docs/exit-status.md. Scripts may
//! rely on them: a status never gets another meaning.

/// Statuses, and what each says.
type Statuses = &'static [(&'static str, &'static str)];

/// The statuses of every verb that has none of its own below.
const EVERY_VERB: Statuses = &[
    ("0", "It is done."),
    (
        "1",
        "Something failed; each failure is a line on standard error. What could be done is done.",
    ),
    (
        "2",
        "The command line cannot be read: a verb, an option, a number or an operand is wrong or \
         missing, and nothing is done. What only the verb itself can judge is 1.",
    ),
    ("128+N", "As a shell tells it: signal N has ended the command."),
];

/// The verbs, and the mount helpers, whose statuses say more.
const OTHERS: &[(&str, Statuses)] = &[
    (
        "fsck",
        &[
            ("0", "The file system is clean."),
            ("4", "It has errors, which are left as they are."),
            ("8", "It could not be checked."),
            ("12", "It has errors, and could not be checked to the end."),
            ("16", "The command line is wrong."),
        ],
    ),
    (
        "diff",
        &[
            ("0", "Nothing differs."),
            ("1", "Something differs."),
            ("2", "Something could not be compared, or the command line is wrong."),
            ("128+N", "As a shell tells it: signal N has ended the command."),
        ],
    ),
    (
        "umount",
        &[
            (
                "0",
                "It is unmounted; without -l and -f the image is closed, or its daemon was dead.",
            ),
            ("1", "It is mounted still, or not everything could be written."),
            ("2", "The command line is wrong."),
            ("128+N", "Signal N has ended the wait; unmounting goes on in the background."),
        ],
    ),
    (
        "lab",
        &[
            ("0", "It is done; nothing is worse."),
            ("1", "A figure is worse than before (compare, guard), or a load gave none (run)."),
            ("2", "The command line is wrong, or there is nothing to compare."),
            ("125", "There is nothing to compare, with `--bisect`: the commit is skipped."),
            (
                "255",
                "The command line is wrong, or there is no baseline or no run A, with `--bisect`: \
                 the search ends.",
            ),
            (
                "128+N",
                "Signal N has ended it; the figures that it had are told, and `--out` has its \
                 evidence.",
            ),
        ],
    ),
    (
        "crashtest",
        &[
            ("0", "No state failed."),
            (
                "1",
                "The check fails on a state that a loss of power can leave; also where something \
                 went wrong after that, which a line on standard error says.",
            ),
            (
                "2",
                "The command line is wrong, a command failed, or states could not be made, mounted \
                 or checked: there is no result.",
            ),
            ("128+N", "Signal N has ended it; no state had failed so far."),
        ],
    ),
    (
        "mount.uext4",
        &[
            ("0", "It is mounted, or unmounted."),
            ("1", "The command line is wrong."),
            ("32", "It failed, as mount(8) says."),
        ],
    ),
];

/// The statuses of a verb.
pub(crate) fn of(verb: &str) -> Statuses {
    OTHERS.iter().find(|(name, _)| *name == verb).map_or(EVERY_VERB, |(_, statuses)| statuses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated;

    #[test]
    fn the_document_has_every_status() {
        let mut table = String::from("\n| verb | status | says |\n|---|---|---|\n");
        for (verb, statuses) in [("every other", EVERY_VERB)].iter().chain(OTHERS) {
            for (status, says) in *statuses {
                table.push_str(&format!("| {verb} | {status} | {says} |\n"));
            }
        }
        generated::check("docs/exit-status.md", "statuses", &(table + "\n"));
    }
}
