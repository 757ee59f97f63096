//! Licences and sources of all packages that are built, as their manifests state them, against the
//! list in `deny.toml`. cargo-deny compares the texts too, and asks for advisories and withdrawn
//! versions, for which it needs the network. Where it cannot be installed, the manifests are judged
//! all the same.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::conform::tool::CARGO_DENY;
use crate::{machine, workspace};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// All features, on the platform that is tested; packages for others need not be at hand.
const METADATA: &[&str] = &[
    "metadata",
    "--format-version=1",
    "--locked",
    "--all-features",
    "--filter-platform=x86_64-unknown-linux-gnu",
];

/// Checks all packages; a remark on them, or what may not be used.
fn check() -> Result<String, String> {
    let config = std::fs::read_to_string(workspace::root().join("deny.toml"));
    let config = config.map_err(|error| format!("deny.toml: {error}"))?;
    let (allowed, exceptions) = (allowed(&config)?, exceptions(&config));
    let output = workspace::cargo(METADATA).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata = serde_json::from_slice(&output.stdout);
    judge(&metadata.map_err(|error| format!("cargo metadata: {error}"))?, &allowed, &exceptions)
}

/// Both opinions; installs cargo-deny unless `install` is false.
pub(crate) fn all(install: bool) -> Result<String, String> {
    let remark = check()?;
    by_cargo_deny(install).map(|opinion| format!("{remark}; {opinion}"))
}

/// The opinion of cargo-deny, which is installed unless `install` is false; or why there is none.
/// What it refuses is an error, and it has told it.
fn by_cargo_deny(install: bool) -> Result<String, String> {
    let found = match install {
        true => CARGO_DENY.provide(),
        false => CARGO_DENY.find().ok_or_else(|| "cargo-deny is not installed".to_owned()),
    };
    let program = match found {
        Ok(program) => program,
        Err(why) => return Ok(why),
    };
    let deny = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).current_dir(workspace::root()).env("PATH", machine::search_path());
        command.stdin(Stdio::null()).output().map_err(|error| format!("cargo-deny: {error}"))
    };
    let judged = |what: &str, output: Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("cargo-deny: {what}\n{said}")),
        }
    };
    // Packages of other systems are in the lock file, and no build has fetched them. Where there is
    // no network cargo-deny says what it lacks.
    let _ = workspace::cargo(&["fetch", "--locked", "--quiet"]).stdin(Stdio::null()).status();
    let check = ["--offline", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
    judged("licences, bans or sources", deny(&check)?)?;
    if !deny(&["fetch", "db"])?.status.success() {
        return Ok("cargo-deny: ok; its database of advisories is out of reach".to_owned());
    }
    judged("advisories", deny(&["--offline", "check", "advisories"])?)?;
    Ok("cargo-deny: ok, advisories too".to_owned())
}

/// The licences that `deny.toml` allows.
fn allowed(config: &str) -> Result<Vec<String>, String> {
    let list = config.split_once("\nallow = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.ok_or("deny.toml: no list of allowed licences")?;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Packages that `deny.toml` allows other licences, with those.
fn exceptions(config: &str) -> Vec<(String, Vec<String>)> {
    let line = config.lines().find(|line| line.starts_with("exceptions = ["));
    let tables = line.unwrap_or_default().split('{').skip(1);
    let table = |table: &str| {
        let mut words: Vec<String> =
            table.split('"').skip(1).step_by(2).map(str::to_owned).collect();
        // `crate` comes last.
        Some((words.pop()?, words))
    };
    tables.filter_map(table).collect()
}

fn judge(
    metadata: &Value,
    allowed: &[String],
    exceptions: &[(String, Vec<String>)],
) -> Result<String, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut refused = Vec::new();
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        *versions.entry(name).or_default() += 1;
        let licence = package["license"].as_str().unwrap_or("no licence");
        let more = exceptions.iter().filter(|(package, _)| package == name);
        let more = more.flat_map(|(_, licences)| licences.clone());
        let allowed: Vec<String> = allowed.iter().cloned().chain(more).collect();
        if !is_satisfied(licence, &allowed) {
            refused.push(format!("{name}: {licence}"));
        }
        match package["source"].as_str() {
            // A package of the workspace.
            None | Some(REGISTRY) => {}
            Some(source) => refused.push(format!("{name}: from {source}")),
        }
    }
    if !refused.is_empty() {
        return Err(refused.join("\n"));
    }
    let several: Vec<&str> =
        versions.iter().filter(|(_, count)| **count > 1).map(|(name, _)| *name).collect();
    let remark = format!("{} packages", packages.len());
    Ok(match several.is_empty() {
        true => remark,
        false => format!("{remark}, in several versions: {}", several.join(" ")),
    })
}

/// Whether the allowed licences satisfy an SPDX expression; what is none is not satisfied. A slash
/// is the registry's old spelling of OR.
fn is_satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut expression = Expression { words: &words, allowed };
    expression.any() == Some(true) && expression.words.is_empty()
}

/// What is left of an expression.
struct Expression<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Expression<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn any(&mut self) -> Option<bool> {
        let mut holds = self.all()?;
        while self.take("OR") {
            holds |= self.all()?;
        }
        Some(holds)
    }

    fn all(&mut self) -> Option<bool> {
        let mut holds = self.one()?;
        while self.take("AND") {
            holds &= self.one()?;
        }
        Some(holds)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let holds = self.any();
            return if self.take(")") { holds } else { None };
        }
        let (id, rest) = self.words.split_first()?;
        self.words = rest;
        let mut licence = (*id).to_owned();
        if self.take("WITH") {
            let (exception, rest) = self.words.split_first()?;
            self.words = rest;
            licence = format!("{id} WITH {exception}");
        }
        Some(self.allowed.contains(&licence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<String> {
        let config = "[licenses]\n# Text.\nallow = [\n  \"MIT\",\n  \"Apache-2.0\",\n  \
                      \"Apache-2.0 WITH LLVM-exception\",\n]\nother = [\"x\"]\n";
        allowed(config).unwrap()
    }

    #[test]
    fn expressions_are_satisfied_by_what_is_allowed() {
        let allowed = list();
        for (expression, holds) in [
            ("MIT", true),
            ("GPL-2.0-only", false),
            ("GPL-2.0-only OR MIT", true),
            ("GPL-2.0-only AND MIT", false),
            ("Unlicense/MIT", true),
            ("(MIT OR GPL-2.0-only) AND Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", false),
            ("MIT OR Apache-2.0 AND GPL-2.0-only", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH other-exception", false),
            ("", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(is_satisfied(expression, &allowed), holds, "{expression}");
        }
    }

    #[test]
    fn an_exception_is_of_one_package() {
        let config = "exceptions = [{ allow = [\"CDDL-1.0\"], crate = \"flames\" }]\n";
        let exceptions = exceptions(config);
        assert_eq!(exceptions, [("flames".to_owned(), vec!["CDDL-1.0".to_owned()])]);
        let judge = |name: &str| {
            let package = serde_json::json!({ "name": name, "license": "CDDL-1.0" });
            judge(&serde_json::json!({ "packages": [package] }), &list(), &exceptions)
        };
        assert_eq!(judge("flames"), Ok("1 packages".to_owned()));
        assert_eq!(judge("other"), Err("other: CDDL-1.0".to_owned()));
    }

    #[test]
    fn packages_are_judged_by_licence_and_source() {
        fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Value {
            serde_json::json!({ "name": name, "license": license, "source": source })
        }
        let judge =
            |packages: &[Value]| judge(&serde_json::json!({ "packages": packages }), &list(), &[]);
        let own = package("own", Some("MIT OR Apache-2.0"), None);
        let good = package("good", Some("MIT"), Some(REGISTRY));
        let twice = [own.clone(), good.clone(), good.clone()];
        assert_eq!(judge(&twice), Ok("3 packages, in several versions: good".to_owned()));
        assert_eq!(judge(&[own]), Ok("1 packages".to_owned()));
        for (bad, want) in [
            (package("bad", Some("GPL-3.0"), Some(REGISTRY)), "bad: GPL-3.0"),
            (package("bad", None, Some(REGISTRY)), "bad: no licence"),
            (package("bad", Some("MIT"), Some("git+x")), "bad: from git+x"),
        ] {
            assert_eq!(judge(&[good.clone(), bad]), Err(want.to_owned()));
        }
    }
}
