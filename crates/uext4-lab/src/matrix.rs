//! What a load is run on: targets in variants.

use crate::bench::Candidate;
use crate::fio;
use crate::load::{Beside, Load};
use crate::plan::Plan;
use crate::report::{AA, DEFAULT};
use crate::target::Target;

impl Plan {
    /// What a load is run on, in the order of the runs of a round.
    pub(crate) fn candidates_of(&self, load: &Load, targets: &[Target]) -> Vec<Candidate> {
        let runnable = targets.iter().filter(|target| load.left_out(self, **target).is_none());
        let mut all: Vec<_> = runnable.flat_map(|&target| self.of_target(load, target)).collect();
        let own = all.iter().find(|c| c.target.is_own() && c.variant == DEFAULT);
        if let Some(own) = own.filter(|_| self.aa) {
            let again = Candidate { variant: AA.to_owned(), ..own.clone() };
            all.push(again);
        }
        all
    }

    fn of_target(&self, load: &Load, target: Target) -> Vec<Candidate> {
        let beside = || load.beside.iter().filter(|(of, _)| *of == target).map(|(_, what)| what);
        let mut variants = Vec::new();
        if !beside().any(|what| matches!(what, Beside::Driver(_))) {
            variants.push(Candidate::new(target, DEFAULT));
        }
        for what in beside() {
            match *what {
                Beside::Options(options) => variants.push(Candidate::new(target, options)),
                Beside::Driver(name) if name == Beside::LIBAIO && !fio::is_installed() => {}
                // What drives it is no mount option.
                Beside::Driver(name) => {
                    variants
                        .push(Candidate { options: String::new(), ..Candidate::new(target, name) });
                }
            }
        }
        let asked = match target {
            Target::Kernel => &self.kernel_variants[..],
            _ if target.is_own() => &self.variants,
            _ => &[],
        };
        if load.takes_variants() {
            let asked = asked.iter().map(|options| Candidate::new(target, options));
            variants.extend(asked.filter(|c| variants.iter().all(|v| v != c)).collect::<Vec<_>>());
        }
        if target.has_image() && load.takes_mkfs_options() {
            let usual =
                if self.combine { variants.clone() } else { vec![Candidate::new(target, DEFAULT)] };
            let made = self.mkfs.iter().flat_map(|mkfs| usual.iter().map(|c| c.on(mkfs)));
            variants.extend(made.collect::<Vec<_>>());
        }
        variants
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs_option::MkfsOptions;

    fn names(load: &str, plan: &Plan) -> Vec<(&'static str, String)> {
        let load = Load::find(load).unwrap();
        let all = plan.candidates_of(load, &[Target::Uext4, Target::Kernel, Target::Raw]);
        all.into_iter().map(|c| (c.target.name(), c.variant)).collect()
    }

    #[test]
    fn the_kernel_runs_what_its_load_says_and_uext4_each_variant() {
        let plan = Plan { variants: vec!["mb_reserve=off".into()], ..Plan::default() };
        let own = [("uext4", DEFAULT.to_owned()), ("uext4", "mb_reserve=off".into())];
        let with = |more: &[(&'static str, &str)]| {
            let more = more.iter().map(|(target, variant)| (*target, (*variant).to_owned()));
            own.clone().into_iter().chain(more).collect::<Vec<_>>()
        };
        let raw = ("raw", DEFAULT);
        let lock = ("kernel", "dioread_lock");
        assert_eq!(names("E0", &plan), with(&[("kernel", DEFAULT), lock, raw]));
        assert_eq!(names("E3", &plan), with(&[("kernel", DEFAULT), raw]));
        let scan = ("kernel", "mb_optimize_scan=0");
        assert_eq!(names("E1b", &plan), with(&[("kernel", DEFAULT), scan, raw]));
        let plan = Plan::default();
        let own = [("uext4", DEFAULT.into()), ("uext4", "dax_overwrite=journal".into())];
        assert_eq!(names("E2", &plan), [&own[..], &[("raw", DEFAULT.into())]].concat());
    }

    #[test]
    fn options_of_the_kernel_are_its_own_and_those_of_mkfs_everybodys() {
        let mkfs = vec![MkfsOptions::new("b", "1024").unwrap()];
        let kernel_variants = vec!["data=writeback".to_owned()];
        let plan = Plan { kernel_variants, mkfs, ..Plan::default() };
        let wanted = |words: [(&'static str, &str); 5]| words.map(|(t, v)| (t, v.to_owned()));
        let b = "mkfs.b=1024";
        let all = [
            ("uext4", DEFAULT),
            ("uext4", b),
            ("kernel", DEFAULT),
            ("kernel", "x"),
            ("raw", DEFAULT),
        ];
        let mut all = wanted(all).to_vec();
        all[3].1 = "data=writeback".to_owned();
        all.insert(4, ("kernel", b.to_owned()));
        assert_eq!(names("E3", &plan), all);
        assert!(names("E4", &plan).iter().all(|(_, variant)| variant != b));
    }

    /// Fault model: a variant that is compared with none on the same file system.
    #[test]
    fn every_variant_meets_every_file_system() {
        let mkfs = ["1024", "2048"].map(|value| MkfsOptions::untried('b', value)).to_vec();
        let (variants, combine) = (vec!["nodelalloc".to_owned()], true);
        let plan = Plan { variants, mkfs, combine, ..Plan::default() };
        let all = names("E3", &plan);
        let of = |target| {
            let all = all.iter().filter(move |(name, _)| *name == target);
            all.map(|(_, variant)| &**variant).collect::<Vec<_>>()
        };
        let own = [
            DEFAULT,
            "nodelalloc",
            "mkfs.b=1024",
            "nodelalloc,mkfs.b=1024",
            "mkfs.b=2048",
            "nodelalloc,mkfs.b=2048",
        ];
        assert_eq!(of("uext4"), own);
        assert_eq!(of("kernel"), [DEFAULT, "mkfs.b=1024", "mkfs.b=2048"]);
        assert_eq!(of("raw"), [DEFAULT]);
        let load = Load::find("E3").unwrap();
        let last = plan.candidates_of(load, &[Target::Uext4]).pop().unwrap();
        assert_eq!((&*last.options, last.mkfs), ("nodelalloc", plan.mkfs.last().cloned()));
    }

    /// Fault model: a peer for one thread is told as slow with two.
    #[test]
    fn a_peer_for_one_thread_runs_with_one() {
        let load = Load::find("M4").unwrap();
        let (two, both) = (Plan { threads: vec![2], ..Plan::default() }, Plan::default());
        let why = load.left_out(&two, Target::RustFsExt4);
        assert_eq!(why.as_deref(), Some("it takes one thread"));
        assert_eq!(load.left_out(&both, Target::RustFsExt4), None);
        assert!(Target::RustFsExt4.takes_threads(1) && !Target::RustFsExt4.takes_threads(2));
        assert!(Target::Uext4.takes_threads(2));
    }

    #[test]
    fn the_first_own_target_runs_twice() {
        let plan = Plan { aa: true, variants: vec!["nodelalloc".into()], ..Plan::default() };
        let load = Load::find("E3").unwrap();
        let all = plan.candidates_of(load, &[Target::Uext4Mount, Target::Uext4]);
        let last = all.last().unwrap();
        let wanted = (Target::Uext4Mount, AA, "");
        assert_eq!((last.target, &*last.variant, &*last.options), wanted);
        assert_eq!(all.iter().filter(|c| c.variant == AA).count(), 1);
        assert!(plan.candidates_of(load, &[Target::Raw]).iter().all(|c| c.variant != AA));
    }
}
