//! What is named twice runs once.
//!
//! What: runs are known by their keys, so two that differ in nothing would write one figure each
//! under one name, and a run that goes on would take the second for done.

use crate::plan::Plan;

impl Plan {
    /// Leaves out loads, targets, variants and numbers that were named before.
    pub fn name_once(&mut self) {
        once(&mut self.loads, |load| load.id);
        once(&mut self.targets, |target| *target);
        once(&mut self.threads, |count| *count);
        once(&mut self.forms, |form| *form);
        once(&mut self.blocks, |bytes| *bytes);
        once(&mut self.journals, |mib| *mib);
        once(&mut self.variants, Clone::clone);
        once(&mut self.kernel_variants, Clone::clone);
        once(&mut self.mkfs, Clone::clone);
    }
}

fn once<T, K: PartialEq>(all: &mut Vec<T>, key: impl Fn(&T) -> K) {
    let mut known = Vec::new();
    all.retain(|one| {
        let key = key(one);
        let is_new = !known.contains(&key);
        if is_new {
            known.push(key);
        }
        is_new
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;
    use crate::target::Target;

    /// Fault model: a word twice on the command line makes two runs of one name.
    #[test]
    fn no_two_runs_have_one_name() {
        let load = Load::find("E3").unwrap();
        let word = || "nodelalloc".to_owned();
        let mut plan = Plan {
            loads: vec![load, load],
            targets: vec![Target::Uext4, Target::Raw, Target::Uext4],
            threads: vec![2, 4, 2],
            journals: vec![4, 128, 4],
            variants: vec![word(), word()],
            kernel_variants: vec![word(), word()],
            ..Plan::default()
        };
        plan.name_once();
        assert_eq!((plan.loads.len(), &plan.targets[..]), (1, &[Target::Uext4, Target::Raw][..]));
        assert_eq!((&plan.threads[..], &plan.journals[..]), (&[2, 4][..], &[4, 128][..]));
        assert_eq!((plan.variants, plan.kernel_variants), (vec![word()], vec![word()]));
    }
}
