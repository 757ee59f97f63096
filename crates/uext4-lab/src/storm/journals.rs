//! The candidates of a load that syncs, by the journals that they are run with.

use crate::bench::Candidate;
use crate::load::Load;
use crate::plan::Plan;
use crate::report::DEFAULT;
use crate::storm::storm_shape::{JOURNAL_MIB, StormKind};
use crate::target::Target;

/// Mount options of the report of the collapse.
const OWN_OPTIONS: &str = "noatime,nodiratime,data=ordered";

/// The candidates, with a journal of that size.
pub(super) fn candidates(
    plan: &Plan,
    (kind, load): (StormKind, &Load),
    targets: &[Target],
    journal_mib: u32,
) -> Vec<Candidate> {
    let all = plan.candidates_of(load, targets).into_iter();
    let runs = all.filter(|c| runs_with(c.target, journal_mib, journals_of(kind, plan)));
    runs.map(|candidate| with_journal(kind, candidate, journal_mib)).collect()
}

/// The sizes of the journal that a load is run with.
pub(super) fn journals_of(kind: StormKind, plan: &Plan) -> &[u32] {
    if kind == StormKind::Shared { &[JOURNAL_MIB] } else { &plan.journals }
}

/// Whether a target is run with one of several journals. A mounted directory has the one that it
/// has: it is run once, beside the first.
pub(crate) fn runs_with(target: Target, journal_mib: u32, journals: &[u32]) -> bool {
    target != Target::Dir || journals.first() == Some(&journal_mib)
}

/// Names the journal, and adds what the report of the collapse mounts with.
pub(super) fn with_journal(kind: StormKind, candidate: Candidate, journal_mib: u32) -> Candidate {
    let words = [if kind == StormKind::Shared { "" } else { OWN_OPTIONS }, &candidate.options];
    let used = words.into_iter().filter(|word| !word.is_empty());
    let options = used.collect::<Vec<&str>>().join(",");
    Candidate { variant: variant_name(&candidate.variant, journal_mib), options, ..candidate }
}

/// `default`, options, or either with the journal if that is not the usual one.
pub(crate) fn variant_name(variant: &str, journal_mib: u32) -> String {
    match (variant, journal_mib) {
        (_, JOURNAL_MIB) => variant.to_owned(),
        (DEFAULT, _) => format!("journal={journal_mib}"),
        _ => format!("{variant},journal={journal_mib}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_named_as_scripts_expect() {
        assert_eq!(variant_name("default", 128), "default");
        assert_eq!(variant_name("default", 4), "journal=4");
        assert_eq!(variant_name("dioread_lock", 128), "dioread_lock");
        assert_eq!(variant_name("dioread_lock", 4), "dioread_lock,journal=4");
    }

    #[test]
    fn e0_is_mounted_as_the_report_had_it() {
        let plan = Plan { variants: vec!["journal_join=herd".into()], ..Plan::default() };
        let name = |candidate: &Candidate| (candidate.target.name(), candidate.options.clone());
        let targets = [Target::Uext4, Target::Kernel, Target::Raw];
        let all = {
            let load = Load::find("E0").unwrap();
            candidates(&plan, (StormKind::Own, load), &targets, JOURNAL_MIB)
        };
        let usual = OWN_OPTIONS.to_owned();
        let expected = [
            ("uext4", usual.clone()),
            ("uext4", format!("{usual},journal_join=herd")),
            ("kernel", usual.clone()),
            ("kernel", format!("{usual},dioread_lock")),
            ("raw", usual),
        ];
        assert_eq!(all.iter().map(name).collect::<Vec<_>>(), expected);
        let all = {
            let load = Load::find("E3").unwrap();
            candidates(&plan, (StormKind::Shared, load), &[Target::Kernel], JOURNAL_MIB)
        };
        assert_eq!(all.iter().map(name).collect::<Vec<_>>(), [("kernel", String::new())]);
    }
}
