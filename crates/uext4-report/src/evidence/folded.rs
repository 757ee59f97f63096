//! Folded stacks, as far as they are some.

/// Samples of a line, and frames of a stack, that are more than a sampler counts.
const COUNT_MAX: u64 = 1_000_000_000;
const FRAMES_MAX: usize = 500;
/// Lines of a file.
const LINES_MAX: usize = 200_000;

/// The lines that are a stack and its count, and how many others there were.
pub(super) fn clean(text: &str) -> (String, usize) {
    let (mut kept, mut count, mut lost) = (String::new(), 0, 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if count < LINES_MAX && is_stack(line.trim()) {
            kept.push_str(line.trim());
            kept.push('\n');
            count += 1;
        } else {
            lost += 1;
        }
    }
    (kept, lost)
}

fn is_stack(line: &str) -> bool {
    let Some((stack, count)) = line.rsplit_once(' ') else { return false };
    let is_count = count.parse::<u64>().is_ok_and(|count| count <= COUNT_MAX);
    is_count && !stack.trim().is_empty() && stack.split(';').count() <= FRAMES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_a_count_that_can_be_added_up_are_left_out() {
        let (kept, lost) = clean("a;b 3\nno count\n\na 18446744073709551615\n 7\nc 1\n");
        assert_eq!((kept.as_str(), lost), ("a;b 3\nc 1\n", 3));
        assert_eq!(clean(&format!("{} 1\n", "a;".repeat(1000))).1, 1);
    }
}
