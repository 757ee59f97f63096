//! The page: its frame, and one module for each kind of section.

mod block;
mod crash;
mod data;
mod experiment;
mod option;
mod overview;
mod picture;
mod profiles;
mod ran;
mod results;
mod shown;
mod why;

pub(crate) use picture::render as render_picture;

use std::fmt::Write;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::evidence::Evidence;
use crate::flame::Flames;
use crate::panel::{Panel, panels};
use crate::verdict::judge;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// The page is whole: nothing is loaded from anywhere, whatever got into it. Its script and those
/// of the graphs stand in it.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
                      script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// A section that the navigation leads to.
pub(crate) struct Section {
    id: String,
    /// In the navigation.
    name: String,
    /// A line below the name in the navigation.
    group: &'static str,
    body: Markup,
}

impl Section {
    fn new(
        id: impl Into<String>,
        name: impl Into<String>,
        group: &'static str,
        body: Markup,
    ) -> Self {
        Self { id: id.into(), name: name.into(), group, body }
    }
}

/// The whole page.
pub(crate) fn render(evidence: &Evidence) -> String {
    let (mut panels, lost) = panels(&evidence.figures);
    let is_cut = judge(&mut panels);
    let flames = Flames::of(evidence, &panels);
    let mut remarks = evidence.remarks.clone();
    if lost > 0 {
        let most = crate::panel::PANELS_MAX;
        let lost = crate::metric::counted(lost, "figure");
        remarks.push(format!("more than {most} kinds of runs; left out: {lost}"));
    }
    if is_cut {
        remarks.push("there are more pairs of rounds than verdicts are made of".to_owned());
    }
    let sections = sections(evidence, &panels, &flames, &remarks);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "uext4 lab: " (experiments(&panels)) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                (top(evidence))
                div.frame {
                    (navigation(&sections))
                    main #main tabindex="-1" {
                        @for section in &sections {
                            section.page id=(section.id) aria-label=(section.name) {
                                (section.body)
                            }
                        }
                    }
                }
                (flames.embedded())
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn sections(
    evidence: &Evidence,
    panels: &[Panel<'_>],
    flames: &Flames,
    remarks: &[String],
) -> Vec<Section> {
    let mut sections = Vec::new();
    let overview = overview::page(evidence, panels, remarks);
    sections.push(Section::new("overview", "Overview", "", overview));
    let mut names: Vec<&str> = Vec::new();
    for panel in panels {
        if !names.contains(&panel.experiment) {
            names.push(panel.experiment);
        }
    }
    for name in names {
        let own: Vec<&Panel<'_>> = panels.iter().filter(|p| p.experiment == name).collect();
        let id = anchor(name);
        let page = experiment::page(evidence, name, &own);
        sections.push(Section::new(&id, name, "Experiments", page));
        let why = why::page(evidence, name, &own, flames);
        let title = format!("{name}: why");
        sections.push(Section::new(format!("{id}-why"), title, "Experiments", why));
    }
    if !flames.is_empty() {
        let page = profiles::flames(flames);
        sections.push(Section::new("flames", "Flame graphs", "Profiles", page));
    }
    if !evidence.waits.is_empty() {
        let page = profiles::waits(evidence);
        sections.push(Section::new("waits", "Waits and locks", "Profiles", page));
    }
    if let Some(compare) = &evidence.compare {
        let page = results::compare(compare);
        sections.push(Section::new("compare", "Two builds", "Results", page));
    }
    if let Some(guard) = &evidence.guard {
        let page = results::guard(guard);
        sections.push(Section::new("guard", "Costs of operations", "Results", page));
    }
    if let Some(crash) = &evidence.crash {
        let page = crash::page(crash);
        sections.push(Section::new("crash", "Crash test", "Results", page));
    }
    sections.push(Section::new("data", "Evidence", "Data", data::page(evidence)));
    sections
}

fn experiments(panels: &[Panel<'_>]) -> String {
    let mut names: Vec<&str> = panels.iter().map(|panel| panel.experiment).collect();
    names.dedup();
    if names.is_empty() { "crash test".to_owned() } else { names.join(", ") }
}

fn top(evidence: &Evidence) -> Markup {
    let begun = evidence.env.get("begun").and_then(serde_json::Value::as_str);
    html! {
        header.top {
            a.brand href="#overview" { "uext4 " span { "lab" } }
            @if let Some(begun) = begun {
                span.when { (begun) }
            }
            button #theme type="button" aria-label="Switch between light and dark" {
                "Light / dark"
            }
        }
    }
}

fn navigation(sections: &[Section]) -> Markup {
    html! {
        nav aria-label="Pages" {
            @for (at, section) in sections.iter().enumerate() {
                @let is_first = at == 0 || sections[at - 1].group != section.group;
                @if is_first && !section.group.is_empty() {
                    span.group { (section.group) }
                }
                a href=(format!("#{}", section.id)) { (section.name) }
            }
        }
    }
}

/// An anchor of a name: each name has its own, and none is that of another page.
fn anchor(name: &str) -> String {
    let mut anchor = "x-".to_owned();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() {
            anchor.push(char::from(byte));
        } else {
            let _ = write!(anchor, "_{byte:02x}");
        }
    }
    anchor
}

#[cfg(test)]
mod tests {
    use super::anchor;

    #[test]
    fn each_name_has_an_anchor_of_its_own() {
        let names = ["E0", "e0", "fio:a", "fio-a", "fio_3aa", "x", "x-why", "\u{fc}", ""];
        let anchors: std::collections::BTreeSet<String> = names.map(anchor).into();
        assert_eq!(anchors.len(), names.len(), "{anchors:?}");
        assert!(!anchors.contains(&format!("{}-why", anchor("x"))), "{anchors:?}");
    }
}
