//! What differs between the plan of a folder and the one that is to go on with it, by the options
//! that ask for it.

use std::collections::BTreeSet;

use serde_json::Value;

/// What a plan says, by its place in `plan.json`, and what the caller says it by.
const SAID_BY: &[(&str, &str)] = &[
    ("/loads", "loads"),
    ("/targets", "targets"),
    ("/variants", "--variant, --set"),
    ("/kernel_variants", "--set kernel."),
    ("/mkfs", "--set mkfs."),
    ("/combine", "--combine"),
    ("/rounds", "--rounds"),
    ("/options/store", "--store"),
    ("/options/flush_us", "--store slow="),
    ("/options/path", "--path"),
    ("/options/folder", "--folder"),
    ("/options/device", "--device"),
    ("/options/dir", "--dir"),
    ("/options/scale", "--scale"),
    ("/options/seconds", "--seconds"),
    ("/options/threads", "--threads"),
    ("/options/forms", "--form"),
    ("/options/bs", "--bs"),
    ("/options/operations", "--ops"),
    ("/options/journals", "--journal"),
    ("/options/aged", "--aged"),
    ("/options/churn", "--churn"),
    ("/options/seed", "--seed"),
    ("/options/quick", "--quick"),
    ("/options/job/file", "job file"),
    ("/options/job/text", "text of the job file"),
    ("/options/job/image_bytes", "--image-size"),
    ("/options/job/engine", "--engine"),
    ("/options/job/engine_sha256", "hash of the engine"),
];
/// The second run of an own target, which an option takes away.
const AA: (&str, &str) = ("/options/aa", "--no-aa");
/// Most characters of a value that are told: a job file has many.
const TOLD_MAX: usize = 60;

/// What differs, each with its value then and now; nothing if one may go on with the other.
pub(super) fn differences(before: &Value, now: &Value) -> Vec<String> {
    if before == now {
        return Vec::new();
    }
    let told = |what: &str, before: &str, now: &str| match before == now {
        // They begin alike, and only that is told.
        true => format!("{what}: another one"),
        false => format!("{what}: {before}, now {now}"),
    };
    let mut all = Vec::new();
    for (place, what) in SAID_BY {
        let (then, today) = (before.pointer(place), now.pointer(place));
        if then != today {
            all.push(told(what, &show(then), &show(today)));
        }
    }
    let [then, today] = [before, now].map(|plan| plan.pointer(AA.0));
    if then != today {
        let is_given = |aa: Option<&Value>| match aa.and_then(Value::as_bool) {
            Some(true) => "not given",
            _ => "given",
        };
        all.push(told(AA.1, is_given(then), is_given(today)));
    }
    if all.is_empty() {
        let [then, today] = [before, now].map(targets_with_cells);
        let named = |targets: &str| if targets.is_empty() { "none" } else { targets }.to_owned();
        all.push(if then == today {
            "runs, their time or their room: see cells of plan.json".to_owned()
        } else {
            told("targets that can be run", &named(&then), &named(&today))
        });
    }
    all
}

fn targets_with_cells(plan: &Value) -> String {
    let cells = plan["cells"].as_array().into_iter().flatten();
    let targets: BTreeSet<&str> = cells.filter_map(|cell| cell["target"].as_str()).collect();
    targets.into_iter().collect::<Vec<_>>().join(",")
}

fn show(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null | Value::Bool(false)) => "not given".to_owned(),
        Some(Value::Bool(true)) => "given".to_owned(),
        Some(Value::Array(all)) if all.is_empty() => "not given".to_owned(),
        Some(Value::Array(all)) => {
            all.iter().map(|one| show(Some(one))).collect::<Vec<_>>().join(",")
        }
        Some(Value::String(word)) => word.clone(),
        Some(other) => other.to_string(),
    };
    match text.char_indices().nth(TOLD_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Form, Load};
    use crate::plan::Plan;
    use crate::target::Target;

    fn plan() -> Plan {
        let loads = vec![Load::find("E1a").unwrap()];
        Plan { loads, targets: vec![Target::Uext4], ..Plan::default() }
    }

    /// Fault model: somebody who has to go through two files to find the word that is another.
    #[test]
    fn each_option_is_told_with_its_values() {
        let before = plan();
        assert_eq!(differences(&before.to_json(), &before.to_json()), [""; 0]);
        let now = Plan {
            scale: 0.5,
            forms: vec![Form::Own, Form::Foreign],
            operations: Some(7),
            aa: true,
            ..before.clone()
        };
        let wanted = [
            "--scale: 1.0, now 0.5",
            "--form: not given, now own,foreign",
            "--ops: not given, now 7",
            "--no-aa: given, now not given",
        ];
        assert_eq!(differences(&before.to_json(), &now.to_json()), wanted);
        let job =
            |end: &str| serde_json::json!({"options": {"job": {"text": "x".repeat(100) + end}}});
        let all = differences(&job("a"), &job("b"));
        assert_eq!(all, ["text of the job file: another one"]);
    }

    /// Fault model: a part of the plan that is in no row: something differs, and no word is told.
    #[test]
    fn every_part_of_a_plan_has_a_row() {
        let plan = plan().to_json();
        let mut places: Vec<String> = Vec::new();
        for (name, part) in plan.as_object().unwrap() {
            match part.as_object() {
                Some(parts) => places.extend(parts.keys().map(|part| format!("/{name}/{part}"))),
                None => places.push(format!("/{name}")),
            }
        }
        // Cells and sizes follow from the others.
        places.retain(|place| !["/cells", "/sizes", "/options/job"].contains(&place.as_str()));
        let rows = || SAID_BY.iter().chain([&AA]).map(|(place, _)| *place);
        for place in &places {
            assert!(rows().any(|row| row == place), "{place}");
        }
        for row in rows().filter(|row| !row.starts_with("/options/job/")) {
            assert!(plan.pointer(row).is_some(), "{row}");
        }
    }

    /// Fault model: a program that was installed meanwhile makes more runs.
    #[test]
    fn targets_that_can_be_run_now_are_told() {
        let mut before = plan().to_json();
        let now = before.clone();
        before["cells"] = serde_json::json!([]);
        let all = differences(&before, &now);
        assert_eq!(all, ["targets that can be run: none, now uext4"]);
    }
}
