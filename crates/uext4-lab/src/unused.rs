//! Options that none of the chosen loads goes by: a run that takes no notice of one would be told
//! as if it had.

use crate::error::{Error, Result};
use crate::load::{Form, Forms, Load};
use crate::plan::Plan;
use crate::stage::Route;
use crate::target::Target;

/// An option that was asked for, and whether a load goes by it.
struct Asked {
    option: String,
    is_used_by: Box<dyn Fn(&Load) -> bool>,
}

impl Plan {
    /// Refuses an option that none of the loads goes by. What is said as it usually is asks for
    /// nothing.
    ///
    /// # Errors
    /// Names the option and the loads.
    pub fn require_used(&self) -> Result<()> {
        let is_unused = |asked: &Asked| !self.loads.iter().any(|load| (asked.is_used_by)(load));
        let Some(Asked { option, .. }) = self.asked().into_iter().find(is_unused) else {
            return Ok(());
        };
        let loads = self.loads.iter().map(|load| load.id).collect::<Vec<_>>().join(", ");
        let verb = if self.loads.len() == 1 { "takes" } else { "take" };
        Err(Error::new(format!("{loads} {verb} no notice of {option}")))
    }

    /// The options that not every load goes by, as far as they were asked for.
    fn asked(&self) -> Vec<Asked> {
        let usual = Self::default();
        let mut all: Vec<Asked> = self.forms.iter().copied().map(Asked::form).collect();
        let mut add = |is_asked: bool, option: &str, is_used_by: fn(&Load) -> bool| {
            if is_asked {
                let (option, is_used_by) = (option.to_owned(), Box::new(is_used_by));
                all.push(Asked { option, is_used_by });
            }
        };
        add(self.aged, "--aged", |load| matches!(load.forms, Forms::OnDemand(Form::Aged)));
        add(!self.blocks.is_empty(), "--bs", |load| !load.sizes.is_empty());
        add(self.journals != usual.journals, "--journal", |load| load.has_journals);
        // The loads that make as many writes on each target; they are those with journals.
        add(self.operations.is_some(), "--ops", |load| load.has_journals);
        add(self.duration != usual.duration, "--seconds", |load| load.time.timed > 0.0);
        add(
            !self.variants.is_empty(),
            "variants of uext4 (--variant, --set)",
            Load::takes_variants,
        );
        let kernel = "variants of the kernel (--set kernel.)";
        add(!self.kernel_variants.is_empty(), kernel, |load| {
            load.takes_variants()
                && Target::Kernel.takes(load)
                && (load.obstacle)(Target::Kernel).is_none()
        });
        let mkfs = "options of mke2fs (--set mkfs.)";
        add(!self.mkfs.is_empty(), mkfs, Load::takes_mkfs_options);
        add(self.dir.is_some(), "--dir", |load| Target::Dir.takes(load));
        // Those that are on devices whatever is asked for say themselves where they cannot be.
        let by_loop = self.lent.is_none() && self.store.flush().is_none();
        add(by_loop && self.route == Route::Device, "--path", |load| load.on_device);
        all
    }
}

impl Asked {
    fn form(form: Form) -> Self {
        let is_used_by = move |load: &Load| match load.forms {
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
        Plan { loads, ..plan }.require_used().err().map(|error| error.to_string())
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
