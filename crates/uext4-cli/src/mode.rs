//! Modes as `chmod` takes them: octal, or changes such as `u+rwX,go-w`.
//!
//! A directory keeps its set-user-ID and set-group-ID bits unless the mode speaks of them: by `s`,
//! or in octal by five digits or an operator. Where a change names no class, what the umask takes
//! away stays as it is.

/// Set-user-ID and set-group-ID.
const SET_ID: u16 = 0o6000;
/// All that a mode can have.
const ALL: u16 = 0o7777;

/// The bits that belong to each class.
const CLASSES: [(char, u16); 4] = [('u', 0o4700), ('g', 0o2070), ('o', 0o1007), ('a', ALL)];

/// A change of modes: its steps in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModeChange(Vec<Step>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    operator: Operator,
    /// The bits of the classes named; `None` without any: the umask limits those.
    who: Option<u16>,
    what: What,
    /// Set-id bits that are meant even of a directory.
    meant: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// These bits, which no umask limits.
    Octal(u16),
    /// These bits; with `X` also execution, of directories and of what somebody may run already.
    Letters { bits: u16, conditional_run: bool },
    /// What a class has now, by the shift of its bits.
    CopyOf(u16),
}

/// Reads a mode; the error says what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<ModeChange, String> {
    parse_mode(text)
        .ok_or_else(|| "not a mode; want octal digits, or u, g, o, a with +, -, =".into())
}

fn octal(digits: &str) -> Option<u16> {
    let bits = u16::from_str_radix(digits, 8).ok()?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    (is_plain && bits <= ALL).then_some(bits)
}

fn parse_mode(text: &str) -> Option<ModeChange> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let bits = octal(text)?;
        let meant = if text.len() > 4 { SET_ID } else { bits & SET_ID };
        let (operator, what) = (Operator::Set, What::Octal(bits));
        return Some(ModeChange(vec![Step { operator, who: None, what, meant }]));
    }
    let mut steps = Vec::new();
    for clause in text.split(',') {
        let actions = clause.find(['+', '-', '='])?;
        let (classes, mut actions) = clause.split_at(actions);
        let mut who = None;
        for class in classes.chars() {
            let bits = CLASSES.iter().find(|(letter, _)| *letter == class)?.1;
            who = Some(who.unwrap_or(0) | bits);
        }
        while let Some(first) = actions.chars().next() {
            let operator = match first {
                '+' => Operator::Add,
                '-' => Operator::Remove,
                _ => Operator::Set,
            };
            let end = actions[1..].find(['+', '-', '=']).map_or(actions.len(), |at| at + 1);
            let (what, meant) = parse_what(&actions[1..end], who)?;
            steps.push(Step { operator, who, what, meant });
            actions = &actions[end..];
        }
    }
    Some(ModeChange(steps))
}

/// What is changed, and which set-id bits are meant of directories.
fn parse_what(text: &str, who: Option<u16>) -> Option<(What, u16)> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        // An octal number after an operator is for all, so a class beside it has no meaning.
        return who.is_none().then_some((What::Octal(octal(text)?), SET_ID));
    }
    match text {
        "u" => return Some((What::CopyOf(6), 0)),
        "g" => return Some((What::CopyOf(3), 0)),
        "o" => return Some((What::CopyOf(0), 0)),
        _ => {}
    }
    let (mut bits, mut conditional_run) = (0, false);
    for letter in text.chars() {
        bits |= match letter {
            'r' => 0o444,
            'w' => 0o222,
            'x' => 0o111,
            's' => SET_ID,
            't' => 0o1000,
            'X' => {
                conditional_run = true;
                0
            }
            _ => return None,
        };
    }
    Some((What::Letters { bits, conditional_run }, bits & SET_ID & who.unwrap_or(ALL)))
}

impl ModeChange {
    /// The change to one mode, whatever was there.
    pub(crate) fn exactly(bits: u16) -> Self {
        let what = What::Octal(bits & ALL);
        Self(vec![Step { operator: Operator::Set, who: None, what, meant: SET_ID }])
    }

    /// The new mode of a file that has `mode`.
    pub(crate) fn apply(&self, mode: u16, is_directory: bool, umask: u16) -> u16 {
        self.0.iter().fold(mode, |mode, step| step.apply(mode, is_directory, umask))
    }
}

impl Step {
    fn apply(self, mode: u16, is_directory: bool, umask: u16) -> u16 {
        let limit = match (self.who, self.what) {
            (Some(who), _) => who,
            (None, What::Octal(_)) => ALL,
            (None, _) => ALL & !umask,
        };
        let kept = if is_directory { SET_ID & !self.meant } else { 0 };
        let value = match self.what {
            What::CopyOf(shift) => (mode >> shift & 7) * 0o111,
            What::Octal(bits) => bits,
            What::Letters { bits, conditional_run } => {
                let runs = conditional_run && (is_directory || mode & 0o111 != 0);
                bits | if runs { 0o111 } else { 0 }
            }
        } & limit
            & !kept;
        match self.operator {
            Operator::Add => mode | value,
            Operator::Remove => mode & !value,
            Operator::Set => mode & (kept | !self.who.unwrap_or(ALL)) | value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_chmod_would_set() {
        let rows = [
            ("644", 0o4755, false, 0o644),
            ("755", 0o6700, true, 0o6755),
            ("00755", 0o6700, true, 0o755),
            ("=755", 0o6700, true, 0o755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("go=u-w", 0o640, false, 0o644),
            ("a+rX", 0o600, false, 0o644),
            ("a+rX", 0o700, false, 0o755),
            ("a+rX", 0o700, true, 0o755),
            ("u=rwx,go=rx", 0o6000, true, 0o6755),
            ("u=rwxs,go=rx", 0o2000, true, 0o6755),
            ("u+t", 0o755, false, 0o755),
            ("o+t", 0o755, false, 0o1755),
            ("g-s", 0o2755, true, 0o755),
            ("u+s,g=o", 0o705, false, 0o4755),
            ("=", 0o777, false, 0),
        ];
        for (text, mode, is_directory, want) in rows {
            let found = parse(text).unwrap().apply(mode, is_directory, 0o022);
            assert_eq!(found, want, "{text} of {mode:o}: {found:o}, not {want:o}");
        }
        for text in ["", "8", "10000", "u", "u+y", "+x,", "u+7", "7x", "rwx", "u+ug", "\u{e4}+x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
