//! The evidence itself, to look at and to take away.

use base64::Engine;
use maud::{Markup, html};
use serde_json::Value;

use super::overview::plain;
use crate::evidence::Evidence;

/// The page.
pub(super) fn page(evidence: &Evidence) -> Markup {
    let notes = evidence.events.iter();
    html! {
        h1 { "Evidence" }
        p.lead { "What this report was made from. The links hold the data: nothing is loaded." }
        p.note {
            "Lines and stacks are as they were read, objects are printed anew. Latencies and waits "
            "of single runs stay in the folder (latency, profile); their numbers are in the tables."
        }
        ul.contents {
            @if !evidence.raw.is_empty() {
                li {
                    a download="raw.jsonl" href=(link(&evidence.raw)) { "raw.jsonl" }
                    " (" (evidence.figures.len()) " figures)"
                }
            }
            @if !evidence.events_text.is_empty() {
                li {
                    a download="events.jsonl" href=(link(&evidence.events_text)) { "events.jsonl" }
                }
            }
            @if !evidence.env.is_empty() {
                li {
                    @let text = serde_json::to_string_pretty(&evidence.env).unwrap_or_default();
                    a download="env.json" href=(link(&text)) { "env.json" }
                }
            }
            @for (name, value) in objects(evidence) {
                li {
                    @let text = serde_json::to_string_pretty(value).unwrap_or_default();
                    a download=(name) href=(link(&text)) { (name) }
                }
            }
            @for (name, text) in folded(evidence) {
                li { a download=(name) href=(link(text)) { (name) } }
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

/// A link that holds a text.
fn link(text: &str) -> String {
    let data = base64::engine::general_purpose::STANDARD.encode(text);
    format!("data:application/octet-stream;base64,{data}")
}
