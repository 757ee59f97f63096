//! Data that the page carries: packed (gzip), in base64, and unpacked by its script.
//!
//! What: downloads and flame graphs are most of a report, and a tenth of that when they are packed.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A text, packed. The same text gives the same, since the time of packing is not kept.
pub(crate) fn packed(text: &str) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let done = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    // Nothing that is written into memory fails.
    STANDARD.encode(done.unwrap_or_default())
}
