//! Options that no run of a plan goes by: a run that takes no notice of one would be told as if it
//! had.

use crate::cells::Cell;
use crate::error::{Error, Result};
use crate::load::{Form, Forms, Load};
use crate::plan::Plan;
use crate::stage::Route;
use crate::target::Target;

/// An option that was asked for, and whether a load on a target goes by it.
struct Asked {
    option: String,
    is_used_by: Box<IsUsedBy>,
}

type IsUsedBy = dyn Fn(&Load, Target) -> bool;

/// What is run.
type Run = (&'static Load, Target);

impl Plan {
    /// Refuses an option that none of the cells of this plan goes by. A value that an option has
    /// anyway asks for nothing; a form is asked for by each name.
    ///
    /// # Errors
    /// Names the option, and the loads or the targets.
    pub fn require_used(&self, cells: &[Cell]) -> Result<()> {
        self.require_used_by(&cells.iter().map(|cell| (cell.load, cell.target)).collect::<Vec<_>>())
    }

    fn require_used_by(&self, runs: &[Run]) -> Result<()> {
        let refuse = |of: &[&str], option: &str| {
            let verb = if of.len() == 1 { "takes" } else { "take" };
            Err(Error::new(format!("{} {verb} no notice of {option}", of.join(", "))))
        };
        for Asked { option, is_used_by } in self.asked() {
            let is_used = |load: &Load| load.targets.iter().any(|target| is_used_by(load, *target));
            if !self.loads.iter().any(|load| is_used(load)) {
                let loads: Vec<_> = self.loads.iter().map(|load| load.id).collect();
                return refuse(&loads, &option);
            }
            if !runs.iter().any(|(load, target)| is_used_by(load, *target)) {
                let is_run = |target: &Target| runs.iter().any(|(_, of)| of == target);
                let targets = self.targets.iter().filter(|target| is_run(target));
                return refuse(&targets.map(|target| target.name()).collect::<Vec<_>>(), &option);
            }
        }
        Ok(())
    }

    /// The options that not every run goes by, as far as they were asked for.
    fn asked(&self) -> Vec<Asked> {
        let usual = Self::default();
        let mut all: Vec<Asked> = self.forms.iter().copied().map(Asked::form).collect();
        let mut add = |is_asked: bool, option: &str, is_used_by: fn(&Load, Target) -> bool| {
            if is_asked {
                let (option, is_used_by) = (option.to_owned(), Box::new(is_used_by));
                all.push(Asked { option, is_used_by });
            }
        };
        add(self.aged, "--aged", |load, _| matches!(load.forms, Forms::OnDemand(Form::Aged)));
        add(!self.blocks.is_empty(), "--bs", |load, _| !load.sizes.is_empty());
        add(self.journals != usual.journals, "--journal", |load, _| load.has_journals);
        // The loads that make as many writes on each target; they are those with journals.
        add(self.operations.is_some(), "--ops", |load, _| load.has_journals);
        add(self.duration != usual.duration, "--seconds", |load, _| load.time.timed > 0.0);
        add(!self.variants.is_empty(), "variants of uext4 (--variant, --set)", |load, target| {
            load.takes_variants() && target.is_own()
        });
        let kernel = "variants of the kernel (--set kernel.)";
        add(!self.kernel_variants.is_empty(), kernel, |load, target| {
            let is_kernel = target == Target::Kernel;
            is_kernel && load.takes_variants() && (load.obstacle)(target).is_none()
        });
        let mkfs = "options of mke2fs (--set mkfs.)";
        add(!self.mkfs.is_empty(), mkfs, |load, target| {
            load.takes_mkfs_options() && target.has_image()
        });
        add(self.dir.is_some(), "--dir", |_, target| target == Target::Dir);
        // Those that are on devices whatever is asked for say themselves where they cannot be.
        let by_loop = self.lent.is_none() && self.store.flush().is_none();
        add(by_loop && self.route == Route::Device, "--path", |load, _| load.on_device);
        all
    }
}

impl Asked {
    fn form(form: Form) -> Self {
        let is_used_by = move |load: &Load, _| match load.forms {
            Forms::One => false,
            Forms::Each(all) => all.contains(&form),
            Forms::OnDemand(Form::Aged) => false,
            Forms::OnDemand(other) => form == other || form == Form::Own,
        };
        // That one has an option of its own.
        let hint = if form == Form::Aged { ", but of --aged" } else { "" };
        Self { option: format!("--form {}{hint}", form.name()), is_used_by: Box::new(is_used_by) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::loads::LOADS;
    use crate::mkfs_option::MkfsOptions;

    fn refused(ids: &str, plan: Plan) -> Option<String> {
        let loads = match ids {
            "all" => LOADS.iter().collect(),
            ids => ids.split(',').map(|id| Load::find(id).unwrap()).collect(),
        };
        let plan = Plan { loads, targets: Target::ALL.to_vec(), ..plan };
        let mut runs = Vec::new();
        for load in plan.loads.iter().copied() {
            runs.extend(load.targets.iter().map(|target| (load, *target)));
        }
        plan.require_used_by(&runs).err().map(|error| error.to_string())
    }

    /// Fault model: a figure of the usual run that is taken for one of what was asked for.
    #[test]
    fn an_option_is_refused_where_no_target_goes_by_it() {
        let refused = |targets: &[Target], plan: Plan| {
            let load = Load::find("E3").unwrap();
            let runs: Vec<_> = targets.iter().map(|target| (load, *target)).collect();
            let plan = Plan { loads: vec![load], targets: targets.to_vec(), ..plan };
            plan.require_used_by(&runs).err().map(|error| error.to_string())
        };
        let words = || vec!["data=journal".to_owned()];
        let kernel = || Plan { kernel_variants: words(), ..Plan::default() };
        let own = || Plan { variants: words(), ..Plan::default() };
        let mkfs = || Plan { mkfs: vec![MkfsOptions::untried('b', "1024")], ..Plan::default() };
        let cases: [(&dyn Fn() -> Plan, Target, Target); 3] = [
            (&kernel, Target::Uext4, Target::Kernel),
            (&own, Target::Kernel, Target::Uext4Mount),
            (&mkfs, Target::Raw, Target::Uext4),
        ];
        for (plan, without, with) in cases {
            let told = refused(&[without], plan()).unwrap_or_default();
            let start = format!("{} takes no notice of ", without.name());
            assert!(told.starts_with(&start), "{told}");
            assert_eq!(refused(&[without, with], plan()), None);
        }
    }

    /// Fault model: a figure of the usual run that is taken for one of what was asked for.
    #[test]
    fn an_option_is_refused_where_no_load_goes_by_it() {
        let form = |form| Plan { forms: vec![form], ..Plan::default() };
        let plan = Plan::default;
        let mkfs = || vec![MkfsOptions::untried('b', "1024")];
        let cases: [(&str, &str, &str, &dyn Fn() -> Plan); 15] = [
            ("--form own", "E3", "M4", &|| form(Form::Own)),
            ("--form foreign", "E4,M6", "E1a", &|| form(Form::Foreign)),
            ("--form shared", "E1a,M5", "M7", &|| form(Form::Shared)),
            ("--form read", "E1a", "E4", &|| form(Form::Read)),
            ("--form aged", "E1b", "", &|| form(Form::Aged)),
            ("--aged", "M1", "E1b", &|| Plan { aged: true, ..plan() }),
            ("--bs", "E3", "E4", &|| Plan { blocks: vec![4096], ..plan() }),
            ("--journal", "E3", "S1", &|| Plan { journals: vec![4], ..plan() }),
            ("--ops", "E1a", "E0", &|| Plan { operations: Some(7), ..plan() }),
            ("--seconds", "E1b,M4", "E2", &|| Plan { duration: Duration::from_secs(1), ..plan() }),
            ("--variant, --set", "M7", "M1", &|| Plan {
                variants: vec!["nodelalloc".to_owned()],
                ..plan()
            }),
            ("--set kernel.", "E2,M7", "E3", &|| Plan {
                kernel_variants: vec!["data=journal".to_owned()],
                ..plan()
            }),
            ("--set mkfs.", "E2,E4,M7", "M2", &|| Plan { mkfs: mkfs(), ..plan() }),
            ("--dir", "E4", "E0", &|| Plan { dir: Some("/".into()), ..plan() }),
            ("--path", "E2,M7", "M4", &|| Plan { route: Route::Device, ..plan() }),
        ];
        for (option, without, with, plan) in cases {
            let told = refused(without, plan()).unwrap_or_default();
            assert!(told.starts_with(&without.replace(',', ", ")), "{option}: {told}");
            assert!(told.contains(option), "{option}: {told}");
            if !with.is_empty() {
                assert_eq!(refused(with, plan()), None, "{option}");
                // One load is enough, and what others run as usual is no mistake.
                assert_eq!(refused(&format!("{without},{with}"), plan()), None, "{option}");
                assert_eq!(refused("all", plan()), None, "{option}");
            }
        }
        assert!(LOADS.iter().all(|load| refused(load.id, plan()).is_none()));
        assert_eq!(
            refused("M1", Plan { aged: true, ..plan() }).as_deref(),
            Some("M1 takes no notice of --aged")
        );
    }
}
