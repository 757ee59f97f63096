//! Edges between the crates of the workspace, the reason of each foreign dependency, and the lock
//! file of the project apart.

use std::path::Path;

use serde_json::Value;

use super::Finding;
use super::source::Source;
use crate::workspace;

/// Which crates of the workspace a crate may depend on. Development dependencies may name more:
/// every crate but the ones in `NEVER`.
const EDGES: &[(&str, &[&str])] = &[
    ("uext4-archive", &[]),
    ("uext4-ondisk", &[]),
    ("uext4-schedule", &[]),
    ("uext4-options", &[]),
    // Each crate with mount options has a table of them.
    ("uext4-device", &["uext4-options"]),
    // TLS and URIs stay out of the crate of all other devices.
    ("uext4-nbd", &["uext4-device"]),
    ("uext4-rbd", &["uext4-device"]),
    // The scheduler with the feature `simulate` only.
    ("uext4", &["uext4-ondisk", "uext4-options", "uext4-device", "uext4-schedule"]),
    ("uext4-mkfs", &["uext4-ondisk", "uext4-device"]),
    // The engine's transactions, and the geometry of new groups.
    ("uext4-resize", &["uext4-ondisk", "uext4", "uext4-mkfs"]),
    // Never the engine: a bug there must not hide from its own checker.
    ("uext4-fsck", &["uext4-ondisk", "uext4-device"]),
    // Its ring, whose memory the kernel writes, and the word of a thread that is about to sleep.
    ("uext4-fuse-server", &["uext4-device"]),
    // The structure of FITRIM stands beside the ioctl itself.
    (
        "uext4-fuse",
        &["uext4", "uext4-ondisk", "uext4-options", "uext4-device", "uext4-fuse-server"],
    ),
    (
        "uext4-cli",
        &[
            "uext4-archive",
            "uext4-ondisk",
            "uext4-options",
            "uext4-device",
            "uext4-nbd",
            "uext4-rbd",
            "uext4",
            "uext4-mkfs",
            "uext4-resize",
            "uext4-fsck",
            "uext4-fuse",
            "uext4-lab",
            "uext4-report",
            "uext4-crashtest",
        ],
    ),
    // As the command, without its words.
    ("uext4-python", &["uext4", "uext4-device", "uext4-nbd", "uext4-mkfs", "uext4-fsck"]),
    // All that a program needs of an image; the statistics have the JSON of a mount.
    (
        "uext4-capi",
        &["uext4", "uext4-device", "uext4-nbd", "uext4-mkfs", "uext4-fsck", "uext4-fuse"],
    ),
    // The only crate that knows rivals.
    ("uext4-lab", &["uext4", "uext4-device", "uext4-mkfs", "uext4-fsck", "uext4-fuse-server"]),
    ("uext4-report", &[]),
    // Never the test kit: that knows how the engine orders its writes. The recorder is a handler of
    // a mount's requests.
    (
        "uext4-crashtest",
        &["uext4", "uext4-device", "uext4-fuse", "uext4-fuse-server", "uext4-mkfs"],
    ),
    (
        "uext4-sim",
        &["uext4-ondisk", "uext4-device", "uext4", "uext4-mkfs", "uext4-fsck", "uext4-schedule"],
    ),
    ("xtask", &[]),
];

/// Crates on which nothing depends, not even a test.
const NEVER: &[&str] = &["uext4-cli", "uext4-python", "xtask"];

const MAP: &str = "ARCHITECTURE.md";
const EDGES_FILE: &str = "xtask/src/tidy/crates.rs";

/// Objections to the manifests of the workspace.
pub(crate) fn check(sources: &[Source]) -> Result<Vec<Finding>, String> {
    let output = workspace::cargo(&["metadata", "--no-deps", "--format-version=1", "--offline"])
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("cargo metadata failed: {said}"));
    }
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    let manifest = std::fs::read_to_string(workspace::root().join("Cargo.toml"))
        .map_err(|error| format!("cannot read Cargo.toml: {error}"))?;
    let mut findings = edges(&metadata);
    findings.extend(stale_edges(&metadata));
    let map = sources.iter().find(|source| source.path == MAP);
    findings.extend(map_is_true(map.map_or("", |map| &map.text), &metadata));
    findings.extend(reasons(&manifest));
    findings.extend(lock_is_current(&workspace::root(), "fuzz")?);
    Ok(findings)
}

/// The lock file of a project that no build of the workspace reads: a run would change it.
fn lock_is_current(root: &Path, folder: &str) -> Result<Option<Finding>, String> {
    // It needs the sources of this platform only.
    let output = workspace::cargo(&["tree", "--locked", "--offline", "--quiet"])
        .arg("--manifest-path")
        .arg(root.join(folder).join("Cargo.toml"))
        .output()
        .map_err(|error| format!("cannot run cargo tree: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(None);
    }
    let lock = format!("{folder}/Cargo.lock");
    if said.contains("--locked was passed") {
        let manifest = format!("{folder}/Cargo.toml");
        let message = format!(
            "is behind the manifests: cargo update --workspace --manifest-path {manifest} \
             [lock-apart]"
        );
        return Ok(Some(Finding::new(&lock, 0, message)));
    }
    // Sources that were never fetched: nobody here has run what the lock file is for.
    println!("skipped: {lock}: {}", said.lines().last().unwrap_or("cargo tree failed").trim());
    Ok(None)
}

/// Edges that the table does not have.
fn edges(metadata: &Value) -> Vec<Finding> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let own: Vec<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let mut findings = Vec::new();
    for package in &packages {
        let name = text(&package["name"]);
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            let message = format!("crate `{name}` is not in EDGES");
            findings.push(Finding::new(EDGES_FILE, 0, message));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let to = text(&dependency["name"]);
            if !own.contains(&to) {
                continue;
            }
            let in_development = dependency["kind"].as_str() == Some("dev");
            let fine = if in_development {
                !NEVER.contains(&to.as_str())
            } else {
                allowed.contains(&to.as_str())
            };
            if !fine {
                let message = format!("may not depend on `{to}` [crate-edges]");
                findings.push(Finding::new(&format!("crate {name}"), 0, message));
            }
        }
    }
    findings
}

/// Edges of the table that no manifest has.
fn stale_edges(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let (_, allowed) = EDGES.iter().find(|(from, _)| *from == name).unwrap_or(&("", &[]));
        let used = own_dependencies(package);
        for to in allowed.iter().filter(|to| !used.iter().any(|used| used == *to)) {
            let message = format!("{name} -> {to}: nobody uses this edge [crate-edges]");
            findings.push(Finding::new(EDGES_FILE, 0, message));
        }
    }
    findings
}

/// The crates of the workspace that a package needs, its tests apart.
fn own_dependencies(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
    let normal = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
    let names = normal.filter_map(|dependency| dependency["name"].as_str());
    names.filter(|name| EDGES.iter().any(|(own, _)| own == name)).map(str::to_owned).collect()
}

/// Rows of the table of crates that do not have what the manifests have. A row names the crates
/// without `uext4-`; what is in brackets is a remark.
fn map_is_true(map: &str, metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let mut want = own_dependencies(package);
        let start = format!("| `{name}` |");
        let row = map.lines().zip(1..).find(|(line, _)| line.starts_with(&start));
        let Some((row, line)) = row else {
            let message = format!("the table of crates lacks `{name}` [map]");
            findings.push(Finding::new(MAP, 0, message));
            continue;
        };
        let cell = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let words = cell.split(',').map(|word| word.split('(').next().unwrap_or_default().trim());
        let mut found: Vec<String> = words
            .filter(|word| *word != "-")
            .map(|word| if word == "uext4" { word.to_owned() } else { format!("uext4-{word}") })
            .collect();
        want.sort();
        found.sort();
        if want != found {
            let message = format!("`{name}` depends on {} [map]", want.join(", "));
            findings.push(Finding::new(MAP, line, message));
        }
    }
    findings
}

/// Foreign dependencies without a comment above them that says why.
fn reasons(manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut inside = false;
    let mut line_before = "";
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        }
        let foreign = line.contains('=') && !line.starts_with('#') && !line.starts_with("uext4");
        if inside && foreign && !line_before.starts_with('#') {
            let message = "a dependency needs its reason in the line above [dependency-reasons]";
            findings.push(Finding::new("Cargo.toml", index + 1, message));
        }
        line_before = line;
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_edge_outside_the_table_is_found() {
        let metadata = json!({ "packages": [
            { "name": "uext4-ondisk", "dependencies": [
                { "name": "zerocopy", "kind": null },
                { "name": "uext4-sim", "kind": "dev" },
                { "name": "uext4-cli", "kind": "dev" },
            ] },
            { "name": "uext4-sim", "dependencies": [] },
            { "name": "uext4-cli", "dependencies": [{ "name": "uext4-sim", "kind": null }] },
            { "name": "uext4-new", "dependencies": [] },
        ] });
        let found: Vec<String> = edges(&metadata).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crate uext4-ondisk: may not depend on `uext4-cli` [crate-edges]",
                "crate uext4-cli: may not depend on `uext4-sim` [crate-edges]",
                "xtask/src/tidy/crates.rs: crate `uext4-new` is not in EDGES",
            ]
        );
    }

    #[test]
    fn an_edge_that_nobody_uses_is_found() {
        let metadata = json!({ "packages": [
            { "name": "uext4-options", "dependencies": [] },
            { "name": "uext4-device", "dependencies": [
                { "name": "uext4-options", "kind": "dev" },
            ] },
        ] });
        let found: Vec<String> = stale_edges(&metadata).iter().map(ToString::to_string).collect();
        let message = "uext4-device -> uext4-options: nobody uses this edge [crate-edges]";
        assert_eq!(found, [format!("{EDGES_FILE}: {message}")]);
    }

    #[test]
    fn a_row_of_the_map_that_is_not_true_is_found() {
        let metadata = json!({ "packages": [
            { "name": "uext4", "dependencies": [
                { "name": "uext4-device", "kind": null }, { "name": "uext4-sim", "kind": "dev" },
            ] },
            { "name": "uext4-device", "dependencies": [] },
            { "name": "uext4-sim", "dependencies": [{ "name": "uext4", "kind": null }] },
        ] });
        let map = "| `uext4` | the engine | device (files) |\n| `uext4-device` | a | sim |\n";
        let found: Vec<String> =
            map_is_true(map, &metadata).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "ARCHITECTURE.md:2: `uext4-device` depends on  [map]",
                "ARCHITECTURE.md: the table of crates lacks `uext4-sim` [map]",
            ]
        );
    }

    /// A lock file that lacks a dependency of the manifest, and then the one that cargo writes.
    #[test]
    fn a_lock_file_behind_its_manifest_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let manifest = |name: &str, rest: &str| {
            std::fs::create_dir_all(root.join(name).join("src")).unwrap();
            std::fs::write(root.join(name).join("src/lib.rs"), "").unwrap();
            let text = format!(
                "[package]\nname = '{name}'\nversion = '1.0.0'\nedition = '2024'\n\
                 [workspace]\n{rest}"
            );
            std::fs::write(root.join(name).join("Cargo.toml"), text).unwrap();
        };
        manifest("b", "");
        manifest("a", "[dependencies]\nb = { path = '../b' }\n");
        let lock = root.join("a/Cargo.lock");
        std::fs::write(&lock, "version = 4\n[[package]]\nname = 'a'\nversion = '1.0.0'\n").unwrap();
        let found = lock_is_current(root, "a").unwrap().map(|finding| finding.to_string());
        std::fs::remove_file(&lock).unwrap();
        let made = workspace::cargo(&["generate-lockfile", "--offline", "--quiet"])
            .current_dir(root.join("a"))
            .status();
        let current = lock_is_current(root, "a").unwrap();
        assert!(made.unwrap().success());
        assert!(found.unwrap().starts_with("a/Cargo.lock: is behind the manifests"));
        assert_eq!(current, None);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest =
            "[workspace.dependencies]\nuext4 = 1\n# Why.\ngood = 1\nbad = 1\n[other]\na = 1";
        let lines: Vec<usize> = reasons(manifest).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [5]);
    }
}
