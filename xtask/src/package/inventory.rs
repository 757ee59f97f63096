//! What is in the binary: the crates that the command is linked of, their licences and checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bundled::{self, Bundled};
use crate::workspace;

/// The crate of the command.
const COMMAND: &str = "uext4-cli";
const METADATA: &[&str] =
    &["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"];

/// A crate that is linked into the command.
struct Linked {
    name: String,
    version: String,
    licence: String,
    /// Of the registry's archive; a crate of the workspace has none.
    checksum: Option<String>,
    folder: PathBuf,
    id: String,
    needs: Vec<String>,
}

/// The crates of the command, by name and version.
pub(super) struct Inventory {
    crates: Vec<Linked>,
    /// What is linked in and is no crate.
    bundled: Vec<Bundled>,
}

impl Inventory {
    /// The crates of the command. Asks cargo.
    pub(super) fn read() -> Result<Self, String> {
        Self::read_of(COMMAND)
    }

    /// The crates of another crate of the workspace.
    pub(super) fn read_of(root: &str) -> Result<Self, String> {
        let metadata = super::output(&mut workspace::cargo(METADATA))?;
        let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
        let lock = fs::read_to_string(workspace::root().join("Cargo.lock"));
        let lock = lock.map_err(|error| format!("Cargo.lock: {error}"))?;
        Self::of(root, &metadata, &checksums(&lock))
    }

    fn of(
        root: &str,
        metadata: &Value,
        checksums: &BTreeMap<(String, String), String>,
    ) -> Result<Self, String> {
        let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
        let nodes = metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata: no graph")?;
        let needs: BTreeMap<&str, Vec<String>> =
            nodes.iter().filter_map(|node| Some((node["id"].as_str()?, linked(node)))).collect();
        let command = packages.iter().find(|package| package["name"] == root);
        let command = command.and_then(|package| package["id"].as_str());
        let mut waiting = vec![command.ok_or("cargo metadata: no such crate")?.to_owned()];
        let mut reached = BTreeSet::new();
        let macros: BTreeSet<&str> = packages.iter().filter_map(proc_macro).collect();
        while let Some(id) = waiting.pop() {
            // The compiler runs them, with all that they need.
            if macros.contains(id.as_str()) {
                continue;
            }
            if reached.insert(id.clone()) {
                waiting.extend(needs.get(id.as_str()).into_iter().flatten().cloned());
            }
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut crates = Vec::new();
        for package in packages.iter().filter(|it| reached.contains(&text(&it["id"]))) {
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            let id = text(&package["id"]);
            crates.push(Linked {
                checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
                licence: text(&package["license"]).replace('/', " OR "),
                folder: manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
                needs: needs.get(id.as_str()).cloned().unwrap_or_default(),
                name,
                version,
                id,
            });
        }
        crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        let of_crates = crates.iter();
        let of_crates = of_crates.filter_map(|it| {
            let it: &Linked = it;
            bundled::of_crate(&it.name, &it.version, &it.folder)
        });
        let bundled = of_crates.chain(bundled::of_compiler()).collect();
        Ok(Self { crates, bundled })
    }

    /// The crates of others.
    fn foreign(&self) -> impl Iterator<Item = &Linked> {
        self.crates.iter().filter(|it| it.checksum.is_some())
    }

    /// Licence expressions of crates of others, and which have them.
    pub(super) fn by_licence(&self) -> BTreeMap<&str, Vec<String>> {
        let mut all: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for it in self.foreign() {
            all.entry(&it.licence).or_default().push(format!("{} {}", it.name, it.version));
        }
        for it in &self.bundled {
            all.entry(it.licence).or_default().push(format!("{} {}", it.name, it.version));
        }
        all
    }

    /// The texts of the licences, each once, below the crates that they came with.
    pub(super) fn texts(&self) -> String {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for it in self.foreign() {
            for text in licence_files(&it.folder) {
                let name = format!("{} {}", it.name, it.version);
                texts.entry(text.trim_end().to_owned()).or_default().insert(name);
            }
        }
        for it in self.bundled.iter().filter(|it| !it.text.is_empty()) {
            let name = format!("{} {}", it.name, it.version);
            texts.entry(it.text.trim_end().to_owned()).or_default().insert(name);
        }
        let mut all = String::from("Licences of what uext4 is linked of, besides its own.\n\n");
        for (licence, crates) in self.by_licence() {
            all.push_str(&format!("{licence}: {}\n", crates.join(", ")));
        }
        for (text, crates) in texts {
            let crates: Vec<String> = crates.into_iter().collect();
            let line = "-".repeat(72);
            all.push_str(&format!("\n{line}\n{}\n{line}\n{text}\n", crates.join(", ")));
        }
        all
    }

    /// The bill of materials, CycloneDX 1.5 as JSON.
    pub(super) fn sbom(&self, seconds: u64) -> Result<String, String> {
        let reference = |id: &str| self.crates.iter().find(|it| it.id == id).map(purl);
        let component = |it: &Linked| {
            let mut component = json!({
                "type": if it.name == COMMAND { "application" } else { "library" },
                "bom-ref": purl(it),
                "name": it.name,
                "version": it.version,
                "licenses": [{ "expression": it.licence }],
            });
            if let Some(checksum) = &it.checksum {
                component["purl"] = purl(it).into();
                component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
            }
            component
        };
        let command = self.crates.iter().find(|it| it.name == COMMAND).ok_or("no command")?;
        let others = self.crates.iter().filter(|it| it.name != COMMAND);
        let mut components: Vec<Value> = others.map(component).collect();
        components.extend(self.bundled.iter().map(|it| {
            json!({
                "type": "library",
                "name": it.name,
                "version": it.version,
                "licenses": [{ "expression": it.licence }],
            })
        }));
        let dependencies: Vec<Value> = self
            .crates
            .iter()
            .map(|it| {
                let needs: Vec<String> = it.needs.iter().filter_map(|id| reference(id)).collect();
                json!({ "ref": purl(it), "dependsOn": needs })
            })
            .collect();
        let timestamp = super::deb::date_iso(seconds)?;
        let sbom = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "timestamp": timestamp, "component": component(command) },
            "components": components,
            "dependencies": dependencies,
        });
        serde_json::to_string_pretty(&sbom).map(|text| text + "\n").map_err(|it| it.to_string())
    }

    /// A remark on the bill, which names the crates that come without a text; an error where a
    /// crate has no licence.
    pub(super) fn check_sbom(&self) -> Result<String, String> {
        let bare: Vec<&str> =
            self.crates.iter().filter(|it| it.licence.is_empty()).map(|it| &*it.name).collect();
        if !bare.is_empty() {
            return Err(format!("without a licence: {}", bare.join(" ")));
        }
        if self.foreign().count() < 20 {
            return Err("the command is linked of more crates than cargo has told".to_owned());
        }
        let foreign = self.foreign().count();
        let untold: Vec<&str> = self
            .foreign()
            .filter(|it| licence_files(&it.folder).is_empty())
            .map(|it| &*it.name)
            .collect();
        let remark = format!("{} crates, {foreign} of others", self.crates.len());
        Ok(match untold.is_empty() {
            true => remark,
            false => format!("{remark}; no text comes with {}", untold.join(" ")),
        })
    }
}

/// The nodes that one is linked of: neither those of tests nor those of builds.
fn linked(node: &Value) -> Vec<String> {
    let is_linked = |need: &&Value| {
        let kinds = need["dep_kinds"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    };
    let needs = node["deps"].as_array().into_iter().flatten().filter(is_linked);
    needs.filter_map(|need| need["pkg"].as_str().map(str::to_owned)).collect()
}

/// The id of a package that is a procedural macro.
fn proc_macro(package: &Value) -> Option<&str> {
    let mut targets = package["targets"].as_array()?.iter();
    let is_macro = |target: &Value| {
        let kinds = target["kind"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "proc-macro"))
    };
    targets.any(is_macro).then(|| package["id"].as_str()).flatten()
}

/// The package URL; also what refers to a crate of this workspace, which no registry has.
fn purl(it: &Linked) -> String {
    format!("pkg:cargo/{}@{}", it.name, it.version.replace('+', "%2B"))
}

/// The checksums of a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut all = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let start = format!("{key} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&start))?;
            line.strip_suffix('"').map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name"), value("version"), value("checksum"))
        {
            all.insert((name, version), sum);
        }
    }
    all
}

/// The licences in a crate's folder.
fn licence_files(folder: &Path) -> Vec<String> {
    let is_licence = |name: &str| {
        let name = name.to_ascii_uppercase();
        ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| is_licence(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_in_the_bill_and_what_tests_use_is_not() {
        let need = |to: &str, kind: Value| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let package = |name: &str| {
            let kind = if name.starts_with("macro") { "proc-macro" } else { "lib" };
            json!({ "id": name, "name": name, "version": "1.0.0+x", "license": "MIT/Zlib",
                    "manifest_path": "/none/Cargo.toml", "targets": [{ "kind": [kind] }] })
        };
        let metadata = json!({
            "packages": [package("uext4-cli"), package("used"), package("below"), package("test"),
                         package("unrelated"), package("macro"), package("macro-part")],
            "resolve": { "nodes": [
                { "id": "uext4-cli",
                  "deps": [need("used", Value::Null), need("test", "dev".into())] },
                { "id": "used", "deps": [need("below", Value::Null), need("macro", Value::Null)] },
                { "id": "macro", "deps": [need("macro-part", Value::Null)] },
            ] },
        });
        let lock = "version = 4\n\n[[package]]\nname = \"below\"\nversion = \"1.0.0+x\"\n\
                    checksum = \"abc\"\n";
        let inventory = Inventory::of(COMMAND, &metadata, &checksums(lock)).unwrap();
        let names: Vec<&str> = inventory.crates.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["below", "uext4-cli", "used"]);
        let bill: Value = serde_json::from_str(&inventory.sbom(0).unwrap()).unwrap();
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "abc");
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Zlib");
        assert_eq!(bill["components"][0]["purl"], "pkg:cargo/below@1.0.0%2Bx");
        // No registry has the command.
        assert!(bill["metadata"]["component"]["purl"].is_null());
        assert_eq!(bill["dependencies"][1]["dependsOn"][0], "pkg:cargo/used@1.0.0%2Bx");
        let names = bill["components"].as_array().unwrap().iter().map(|it| it["name"].as_str());
        assert!(names.flatten().eq(["below", "used", "rust-std", "musl"]));
    }
}
