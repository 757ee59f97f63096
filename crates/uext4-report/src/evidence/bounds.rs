//! How many different things the figures of a report may be about.
//!
//! A page grows with the product of some of these numbers, and a folder that anybody may have made
//! can hold a different experiment in every line.

use std::collections::BTreeSet;

use super::Figure;
use crate::metric::counted;

/// Characters of a name.
const NAME_MAX: usize = 200;

/// A field of figures, how many values it may have, and how it is called.
type Field = (fn(&Figure) -> String, usize, &'static str);

const FIELDS: [Field; 7] = [
    (|f| f.experiment.clone(), 64, "experiments"),
    (|f| f.target.clone(), 24, "targets"),
    (|f| f.variant.clone(), 256, "variants"),
    (|f| f.metric.clone(), 400, "metrics"),
    (|f| f.unit.clone(), 64, "units"),
    (|f| format!("{} {}", f.threads, f.bs), 64, "numbers of threads and sizes"),
    (|f| format!("{} {} {} {}", f.experiment, f.form, f.store, f.path), 128, "forms and stores"),
];

/// Takes figures out that are about too many things; returns what there is to say about it.
pub(super) fn keep_within(figures: &mut Vec<Figure>) -> Vec<String> {
    let mut seen: [BTreeSet<String>; FIELDS.len()] = Default::default();
    let mut lost = [0; FIELDS.len()];
    let mut too_long = 0;
    figures.retain(|figure| {
        let names = [&figure.experiment, &figure.target, &figure.variant, &figure.metric];
        let more = [&figure.store, &figure.path, &figure.form, &figure.unit];
        if names.iter().chain(&more).any(|name| name.len() > NAME_MAX) {
            too_long += 1;
            return false;
        }
        FIELDS.iter().zip(&mut seen).zip(&mut lost).all(|(((of, most, _), seen), lost)| {
            let value = of(figure);
            let is_kept = seen.contains(&value) || seen.len() < *most;
            if is_kept {
                seen.insert(value);
            } else {
                *lost += 1;
            }
            is_kept
        })
    });
    let mut remarks = Vec::new();
    for ((_, most, name), lost) in FIELDS.iter().zip(lost).filter(|(_, lost)| *lost > 0) {
        let lost = counted(lost, "figure");
        remarks.push(format!("raw.jsonl: more than {most} {name}; left out of others: {lost}"));
    }
    if too_long > 0 {
        let lost = counted(too_long, "figure");
        remarks
            .push(format!("raw.jsonl: left out for names of more than {NAME_MAX} bytes: {lost}"));
    }
    remarks
}
