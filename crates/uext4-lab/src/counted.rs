//! Counts in sentences.

/// The count with the word for what is counted: `1 thread`, `2 threads`.
#[must_use]
pub fn counted(count: impl TryInto<u64>, one: &str) -> String {
    // Whatever is counted here fits.
    let count = count.try_into().unwrap_or(u64::MAX);
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(
            [0_u32, 1, 2].map(|n| counted(n, "thread")),
            ["0 threads", "1 thread", "2 threads"]
        );
    }
}
