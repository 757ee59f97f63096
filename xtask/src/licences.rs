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
    let licences = Licences::read(&config)?;
    let output = workspace::cargo(METADATA).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata = serde_json::from_slice(&output.stdout);
    judge(&metadata.map_err(|error| format!("cargo metadata: {error}"))?, &licences)
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

/// What is read of `deny.toml`.
#[derive(serde::Deserialize)]
struct Config {
    licenses: Licences,
}

/// The licences that all packages may have, and what single packages may have besides.
#[derive(serde::Deserialize)]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(serde::Deserialize)]
struct Exception {
    allow: Vec<String>,
    #[serde(rename = "crate")]
    package: String,
}

impl Licences {
    fn read(config: &str) -> Result<Licences, String> {
        let config: Config =
            toml::from_str(config).map_err(|error| format!("deny.toml: {error}"))?;
        Ok(config.licenses)
    }

    /// What the package may have.
    fn of(&self, package: &str) -> Vec<&str> {
        let more = self.exceptions.iter().filter(|exception| exception.package == package);
        let more = more.flat_map(|exception| &exception.allow);
        self.allow.iter().chain(more).map(String::as_str).collect()
    }
}

fn judge(metadata: &Value, licences: &Licences) -> Result<String, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut refused = Vec::new();
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        *versions.entry(name).or_default() += 1;
        let licence = package["license"].as_str().unwrap_or("no licence");
        if !is_satisfied(licence, &licences.of(name)) {
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
fn is_satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut expression = Expression { words: &words, allowed };
    expression.any() == Some(true) && expression.words.is_empty()
}

/// What is left of an expression.
struct Expression<'a> {
    words: &'a [&'a str],
    allowed: &'a [&'a str],
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
        Some(self.allowed.contains(&licence.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
        [licenses]
        # Text.
        allow = [\"MIT\", \"Apache-2.0\", \"Apache-2.0 WITH LLVM-exception\"]
        exceptions = [
          { allow = [\"CDDL-1.0\"], crate = \"flames\" },
          # Text.
          { allow = [\"MPL-2.0\"], crate = \"headers\" },
        ]
        [bans]
        other = [\"x\"]";

    #[test]
    fn expressions_are_satisfied_by_what_is_allowed() {
        let licences = Licences::read(CONFIG).unwrap();
        let allowed = licences.of("a package");
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
        let licences = Licences::read(CONFIG).unwrap();
        let judge = |name: &str, licence: &str| {
            let package = serde_json::json!({ "name": name, "license": licence });
            judge(&serde_json::json!({ "packages": [package] }), &licences)
        };
        assert_eq!(judge("flames", "CDDL-1.0"), Ok("1 packages".to_owned()));
        assert_eq!(judge("headers", "MPL-2.0"), Ok("1 packages".to_owned()));
        assert_eq!(judge("other", "CDDL-1.0"), Err("other: CDDL-1.0".to_owned()));
        assert_eq!(judge("headers", "CDDL-1.0"), Err("headers: CDDL-1.0".to_owned()));
    }

    #[test]
    fn packages_are_judged_by_licence_and_source() {
        fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Value {
            serde_json::json!({ "name": name, "license": license, "source": source })
        }
        let licences = Licences::read(CONFIG).unwrap();
        let judge =
            |packages: &[Value]| judge(&serde_json::json!({ "packages": packages }), &licences);
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
