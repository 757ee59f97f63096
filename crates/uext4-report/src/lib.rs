//! The evidence of a run as one HTML file that needs no network.
//!
//! What: a folder of evidence (`env.json`, `raw.jsonl`, `events.jsonl`, profiles) becomes
//! `report.html`: an overview, a page for each experiment with plots and the table under each.
//!
//! Invariant: the report shows what the folder holds and computes no figure of its own but medians,
//! spreads and ratios of it; each plot has its numbers in a table, and all of them can be taken
//! from the page as the text that they were read from.

#![forbid(unsafe_code)]
