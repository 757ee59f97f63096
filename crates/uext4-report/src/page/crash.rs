//! The crash test: what a program had done, what had returned, and what is missing.

use maud::{Markup, html};
use serde_json::Value;

use super::block::Table;
use super::overview::plain;

/// The page.
pub(super) fn page(crash: &Value) -> Markup {
    let mut table = Table::new("Crash test", &["what", "value"]);
    for (name, value) in crash.as_object().into_iter().flatten() {
        if !value.is_array() && !value.is_object() {
            table.rows.push(vec![name.replace('_', " ").into(), plain(value).into()]);
        }
    }
    html! {
        h1 { "Crash test" }
        (table.markup())
    }
}
