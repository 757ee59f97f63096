//! Runs that gave no figure: the first of a candidate is told with its reason, those of its other
//! rounds by their number.

use uext4_lab::{Error, RunName, TargetRun, counted};

use super::measuring::describe;

/// A candidate with runs that failed.
struct Failed {
    key: String,
    /// The candidate, for people.
    what: String,
    /// Why the first run failed, and why the last one did.
    reasons: [String; 2],
    /// Runs behind the first.
    more: u32,
}

/// All of them, in the order of their first failures.
#[derive(Default)]
pub(super) struct Failures(Vec<Failed>);

impl Failures {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a run that failed. Returns what is to be told of it now.
    pub(super) fn add(&mut self, name: &RunName<'_>, error: &Error) -> Option<String> {
        let of_all = RunName { run: TargetRun { round: 0, ..name.run }, ..*name };
        let (key, reason) = (of_all.key(), error.to_string());
        if let Some(known) = self.0.iter_mut().find(|known| known.key == key) {
            known.more += 1;
            known.reasons[1] = reason;
            return None;
        }
        let what = describe(name);
        let line = format!("lab: {what} gives no figure: {reason}");
        self.0.push(Failed { key, what, reasons: [reason.clone(), reason], more: 0 });
        Some(line)
    }

    /// What is to be told of the others at the end.
    pub(super) fn others(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|failed| failed.more > 0).map(|failed| {
            let Failed { what, reasons: [first, last], more, .. } = failed;
            let rounds = counted(*more, "more round");
            // Names of temporary files may be all that differs.
            let why = match first == last {
                true => String::new(),
                false => format!("; in the last: {last}"),
            };
            format!("lab: {what} gives no figure in {rounds}{why}")
        })
    }
}

#[cfg(test)]
mod tests {
    use uext4_lab::{Load, Target};

    use super::*;

    /// Fault model: a line for each of sixty rounds, or a reason that nobody is told.
    #[test]
    fn the_first_failure_is_told_and_the_others_are_counted() {
        let mut failures = Failures::default();
        let mut add = |target, threads, round, why: &str| {
            let load = Load::find("M6").unwrap();
            let run = TargetRun { load, target, form: None, threads, bs: 0, round };
            failures.add(&RunName { run, variant: "default" }, &Error::new(why))
        };
        let first = add(Target::Fuse2fs, 1, 1, "unlink: EIO");
        let wanted = "lab: M6 on fuse2fs default x1 gives no figure: unlink: EIO";
        assert_eq!(first.as_deref(), Some(wanted));
        // Another setting and another side have failures of their own.
        assert!(add(Target::Fuse2fs, 2, 1, "unlink: EIO").is_some());
        assert!(add(Target::Kernel, 1, 1, "mount: EINVAL").is_some());
        for round in 2..=5 {
            assert_eq!(add(Target::Fuse2fs, 1, round, "unlink: EIO"), None);
        }
        assert_eq!(add(Target::Fuse2fs, 2, 2, "mount: ENOMEM"), None);
        let wanted = [
            "lab: M6 on fuse2fs default x1 gives no figure in 4 more rounds",
            "lab: M6 on fuse2fs default x2 gives no figure in 1 more round; in the last: mount: \
             ENOMEM",
        ];
        assert_eq!(failures.others().collect::<Vec<_>>(), wanted);
        assert!(!failures.is_empty());
    }
}
