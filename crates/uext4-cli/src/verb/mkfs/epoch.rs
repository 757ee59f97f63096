//! `SOURCE_DATE_EPOCH`: the time of reproducible builds.

use crate::failure::{Failure, Result};

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// The time that the environment asks for, in seconds since 1970.
pub(super) fn given() -> Result<Option<u32>> {
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
    match value.to_str().and_then(parse) {
        Some(epoch) => Ok(Some(epoch)),
        None => {
            let value = value.to_string_lossy();
            let why = format!("mkfs: {VARIABLE}={value}: want seconds since 1970, below 2^32");
            Err(Failure::line(&why))
        }
    }
}

/// Digits alone, as reproducible-builds.org has it.
fn parse(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_a_time() {
        let cases = [
            ("0", Some(0)),
            ("1700000000", Some(1_700_000_000)),
            ("+5", None),
            ("", None),
            ("-1", None),
            ("4294967296", None),
            ("yesterday", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text), want, "{text}");
        }
    }
}
