//! The evidence itself, to look at and to take away.

use maud::{Markup, html};
use serde_json::Value;

use super::overview::plain;
use crate::evidence::Evidence;
use crate::metric::counted;
use crate::packed::packed;

/// The page.
pub(super) fn page(evidence: &Evidence) -> Markup {
    let notes = evidence.events.iter();
    html! {
        h1 { "Evidence" }
        p.lead { "What this report was made from. The links hold the data: nothing is loaded." }
        p.note {
            "Lines and stacks are as they were read, objects are printed anew. Latencies and waits "
            "of single runs stay in the folder (latency, profile); their numbers are in the "
            "tables. The data is packed: the page unpacks what you click, and without scripts a "
            "link gives a file for gunzip (.gz)."
        }
        ul.contents {
            @if !evidence.raw.is_empty() {
                li {
                    (link("raw.jsonl", &evidence.raw))
                    " (" (counted(evidence.figures.len(), "figure")) ")"
                }
            }
            @if !evidence.events_text.is_empty() {
                li { (link("events.jsonl", &evidence.events_text)) }
            }
            @if !evidence.env.is_empty() {
                li {
                    @let text = serde_json::to_string_pretty(&evidence.env).unwrap_or_default();
                    (link("env.json", &text))
                }
            }
            @for (name, value) in objects(evidence) {
                li {
                    @let text = serde_json::to_string_pretty(value).unwrap_or_default();
                    (link(name, &text))
                }
            }
            @for (name, text) in folded(evidence) {
                li { (link(&name, text)) }
            }
        }
        @if notes.clone().next().is_some() {
            h2 { "Events" }
            @for event in notes {
                p.note {
                    strong { (event.event) } " "
                    @for word in event.place() { (word) " " }
                    (event.text)
                }
            }
        }
        @if let Some(plan) = &evidence.plan {
            details { summary { "Plan" } pre { (plain(plan)) } }
        }
        @if !evidence.tools.is_empty() {
            h2 { "Outputs of tools" }
            @for (key, name, text) in &evidence.tools {
                details { summary { (key) " / " (name) } pre { (text) } }
            }
        }
    }
}

fn objects(evidence: &Evidence) -> impl Iterator<Item = (&'static str, &Value)> {
    let all = [
        ("plan.json", &evidence.plan),
        ("explain.json", &evidence.explain),
        ("compare.json", &evidence.compare),
        ("guard.json", &evidence.guard),
        ("crash.json", &evidence.crash),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
}

fn folded(evidence: &Evidence) -> impl Iterator<Item = (String, &String)> {
    evidence.stacks.iter().map(|(key, text)| (format!("{key}.folded"), text))
}

/// A link that holds a text, packed. The script of the page makes it one to the text itself.
fn link(name: &str, text: &str) -> Markup {
    let data = format!("data:application/gzip;base64,{}", packed(text));
    html! { a download=(format!("{name}.gz")) href=(data) { (name) } }
}
