//! The expression of `find`: tests and actions, joined by `!`, `-a`, `-o`, commas and parentheses.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use uext4::Volume;

use super::test::{self, Test};
use crate::failure::Why;

/// Parentheses within each other.
const DEEPEST: usize = 100;

/// An expression; it is true or false of a name.
#[derive(Debug)]
pub(super) enum Expression {
    Test(Test),
    Action(Action),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
    /// Each is evaluated, the last one counts.
    List(Vec<Self>),
}

/// What is done with a name; true but for `-prune` where names come after what is below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Print,
    Print0,
    Ls,
    Prune,
    Quit,
}

/// What the words of a command line ask for.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) expression: Expression,
    pub(super) min_depth: usize,
    pub(super) max_depth: usize,
    /// Names come after what is below them.
    pub(super) depth_first: bool,
    pub(super) json: bool,
}

impl Query {
    /// Takes the words behind the places. Names of users are looked up in the image.
    pub(super) fn parse(words: &[OsString], volume: &Volume) -> Result<Self, Why> {
        let mut parser = Parser {
            words: words.iter().map(OsString::as_os_str).collect(),
            at: 0,
            volume,
            acts: false,
            options: Options { max_depth: usize::MAX, ..Options::default() },
        };
        let mut expression = Expression::All(Vec::new());
        if !parser.words.is_empty() {
            expression = parser.list(0)?;
        }
        if let Some(word) = parser.peek() {
            return Err(Why::new(format!("unexpected '{}'", word.to_string_lossy())));
        }
        if !parser.acts {
            expression = Expression::All(vec![expression, Expression::Action(Action::Print)]);
        }
        let Options { min_depth, max_depth, depth_first, json } = parser.options;
        Ok(Self { expression, min_depth, max_depth, depth_first, json })
    }
}

/// Words that concern the whole walk, wherever they stand.
#[derive(Default)]
struct Options {
    min_depth: usize,
    max_depth: usize,
    depth_first: bool,
    json: bool,
}

struct Parser<'a> {
    words: Vec<&'a OsStr>,
    at: usize,
    volume: &'a Volume,
    /// Whether there is an action that tells of a name.
    acts: bool,
    options: Options,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a OsStr> {
        self.words.get(self.at).copied()
    }

    /// Takes the next word if it is one of these.
    fn take(&mut self, words: &[&str]) -> bool {
        let found = self.peek().is_some_and(|next| words.iter().any(|word| next == *word));
        self.at += usize::from(found);
        found
    }

    /// What a test is told.
    fn value(&mut self, test: &str) -> Result<&'a OsStr, Why> {
        let value = self.peek().ok_or_else(|| Why::new(format!("{test} needs a value")))?;
        self.at += 1;
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Expression, Why> {
        let mut parts = vec![self.any(depth)?];
        while self.take(&[","]) {
            parts.push(self.any(depth)?);
        }
        Ok(one_or(parts, Expression::List))
    }

    fn any(&mut self, depth: usize) -> Result<Expression, Why> {
        let mut parts = vec![self.all(depth)?];
        while self.take(&["-o", "-or"]) {
            parts.push(self.all(depth)?);
        }
        Ok(one_or(parts, Expression::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Expression, Why> {
        let mut parts = vec![self.not(depth)?];
        loop {
            let is_joined = self.take(&["-a", "-and"]);
            let ends = self
                .peek()
                .is_none_or(|word| [")", ",", "-o", "-or"].iter().any(|end| word == *end));
            if ends && !is_joined {
                return Ok(one_or(parts, Expression::All));
            }
            parts.push(self.not(depth)?);
        }
    }

    fn not(&mut self, depth: usize) -> Result<Expression, Why> {
        let mut negated = false;
        while self.take(&["!", "-not"]) {
            negated = !negated;
        }
        let part = self.primary(depth)?;
        Ok(if negated { Expression::Not(Box::new(part)) } else { part })
    }

    fn primary(&mut self, depth: usize) -> Result<Expression, Why> {
        let Some(word) = self.peek() else {
            return Err(Why::new("the expression ends where a test is wanted"));
        };
        if self.take(&["("]) {
            if depth == DEEPEST {
                return Err(Why::new("too many parentheses"));
            }
            let inner = self.list(depth + 1)?;
            return match self.take(&[")"]) {
                true => Ok(inner),
                false => Err(Why::new("a ')' is missing")),
            };
        }
        self.at += 1;
        let name = word.to_string_lossy();
        if let Some(action) = action(&name) {
            self.acts |= !matches!(action, Action::Prune | Action::Quit);
            return Ok(Expression::Action(action));
        }
        if self.option(&name)? {
            return Ok(Expression::All(Vec::new()));
        }
        if let Some(why) = refusal(&name) {
            return Err(Why::new(format!("{name}: {why}")));
        }
        let Some(parse) = test::parser(&name) else {
            return Err(Why::new(format!("unknown word '{name}'")));
        };
        let value = match parse.takes_value() {
            true => self.value(&name)?.as_bytes(),
            false => b"",
        };
        let test = parse.parse(value, self.volume);
        Ok(Expression::Test(test.map_err(|why| Why::new(format!("{name}: {why}")))?))
    }

    /// Takes a word that concerns the whole walk.
    fn option(&mut self, name: &str) -> Result<bool, Why> {
        match name {
            "-depth" | "-d" => self.options.depth_first = true,
            "--json" => self.options.json = true,
            // An image is one file system.
            "-xdev" | "-mount" | "-noleaf" => {}
            "-maxdepth" => self.options.max_depth = self.depth(name)?,
            "-mindepth" => self.options.min_depth = self.depth(name)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn depth(&mut self, name: &str) -> Result<usize, Why> {
        let value = self.value(name)?.to_string_lossy();
        value.parse().map_err(|_| Why::new(format!("{name} wants a number, not '{value}'")))
    }
}

fn one_or(mut parts: Vec<Expression>, join: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.len() {
        1 => parts.pop().expect("just counted"),
        _ => join(parts),
    }
}

fn action(name: &str) -> Option<Action> {
    Some(match name {
        "-print" => Action::Print,
        "-print0" => Action::Print0,
        "-ls" => Action::Ls,
        "-prune" => Action::Prune,
        "-quit" => Action::Quit,
        _ => return None,
    })
}

/// Why a word of find(1) is not taken.
fn refusal(name: &str) -> Option<&'static str> {
    match name {
        "-exec" | "-execdir" | "-ok" | "-okdir" => {
            Some("runs programs, which cannot reach into an image; use -print0 and xargs -0")
        }
        "-delete" => Some("changes the image; use -print0 and uext4 rm"),
        "-fprint" | "-fprint0" | "-fls" | "-fprintf" => {
            Some("writes to files; redirect standard output")
        }
        "-L" | "-follow" | "-H" => Some("symbolic links are not followed"),
        _ => None,
    }
}
