//! Layers inside the engine.
//!
//! # What
//! The modules of `crates/uext4/src` have an order; a file may name only modules of its own layer
//! or lower ones. Paths are found as `crate::module`, `crate::{a, b::c}` and chains of `super`
//! that leave the module.

use super::Finding;
use super::mask::is_name;
use super::rules::Found;
use super::source::Source;

const ENGINE: &str = "crates/uext4/src/";

/// The engine's modules, low to high. Modules of one layer may use each other, except where they
/// stand in `APART`.
const LAYERS: &[&[&str]] = &[
    &["sync", "config", "crypt", "error", "injected_faults", "invariants", "stats"],
    &["cache"],
    &["journal"],
    &["alloc", "quota"],
    &["inode"],
    &["extent"],
    &["dir", "xattr"],
    &["file"],
    &["vfs"],
    &["volume"],
];

/// Layers whose modules may not use each other.
const APART: &[&str] = &["dir", "xattr"];

/// Objections to one file.
pub(crate) fn check(source: &Source) -> Found {
    let Some(inside) = source.path.strip_prefix(ENGINE) else { return Vec::new() };
    if !source.is_rust() || inside == "lib.rs" {
        return Vec::new();
    }
    let parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    let own = parts[0];
    // How many `super` lead from this file to the crate's root.
    let depth = if parts.last() == Some(&"mod") { parts.len() - 1 } else { parts.len() };
    let Some(own_layer) = layer_of(own) else {
        let message =
            format!("module `{own}` has no layer: add it to LAYERS in xtask/src/tidy/layers.rs");
        return vec![(1, message)];
    };
    let mut found = Vec::new();
    for (offset, used) in
        crate_paths(&source.code).into_iter().chain(super_paths(&source.code, depth))
    {
        let line = source.line_of(offset);
        match layer_of(&used) {
            None => found.push((
                line,
                format!("`crate::{used}` is no layer of the engine; name the module that has it"),
            )),
            Some(layer) if layer > own_layer => {
                found.push((line, format!("`{own}` may not use `{used}`, which stands above it")));
            }
            Some(layer) if layer == own_layer && used != own && APART.contains(&own) => {
                found.push((line, format!("`{own}` and `{used}` may not use each other")));
            }
            Some(_) => {}
        }
    }
    found
}

/// Modules of the table that are not there, and layers that do not use the one below: their order
/// says nothing.
pub(crate) fn stale(sources: &[Source]) -> Vec<Finding> {
    const FILE: &str = "xtask/src/tidy/layers.rs";
    let of = |module: &str| {
        let (file, folder) = (format!("{ENGINE}{module}.rs"), format!("{ENGINE}{module}/"));
        sources.iter().filter(move |source| source.is_in(&[&file, &folder]))
    };
    let uses = |module: &str, lower: &[&str]| {
        of(module)
            .any(|source| crate_paths(&source.code).iter().any(|(_, m)| lower.contains(&&**m)))
    };
    let mut findings = Vec::new();
    for module in LAYERS.iter().copied().flatten().filter(|module| of(module).next().is_none()) {
        findings.push(Finding::new(FILE, 0, format!("no module `{module}` [layers]")));
    }
    for pair in LAYERS.windows(2) {
        if !pair[1].iter().any(|module| uses(module, pair[0])) {
            let message = format!("{:?} use nothing of {:?} below [layers]", pair[1], pair[0]);
            findings.push(Finding::new(FILE, 0, message));
        }
    }
    findings
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The first name of each path that starts with `crate::`, with the offset of the path.
fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in super::mask::names(code, "crate") {
        // `$crate` in a macro names the crate from outside; `pub(crate)` is no path.
        let Some(rest) = code[at + 5..].strip_prefix("::") else { continue };
        if code[..at].ends_with('$') {
            continue;
        }
        found.extend(first_names(rest).into_iter().map(|name| (at, name)));
    }
    found
}

/// The first name of each chain of at least `depth` `super`, if it names a module of the engine.
fn super_paths(code: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in super::mask::names(code, "super") {
        if code[..at].ends_with("::") {
            continue;
        }
        let mut rest = &code[at..];
        let mut count = 0;
        while let Some(tail) = rest.strip_prefix("super::") {
            rest = tail;
            count += 1;
        }
        if count >= depth {
            let names = first_names(rest).into_iter().filter(|name| layer_of(name).is_some());
            found.extend(names.map(|name| (at, name)));
        }
    }
    found
}

/// The name at the start of a path's rest, or the first name of each entry of a group.
fn first_names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else {
        let name: String = rest.chars().take_while(|c| is_name(*c as u8) && c.is_ascii()).collect();
        return if name.is_empty() { Vec::new() } else { vec![name] };
    };
    let mut names = Vec::new();
    let mut nesting = 0;
    let mut name = String::new();
    // A name counts up to its first `::`, `,` or blank; `take` is off for the rest of the entry.
    let mut take = true;
    for c in group.chars() {
        match c {
            '{' => nesting += 1,
            '}' if nesting == 0 => break,
            '}' => nesting -= 1,
            ',' if nesting == 0 => {
                names.push(std::mem::take(&mut name));
                take = true;
            }
            _ if nesting > 0 => {}
            c if c.is_ascii() && is_name(c as u8) && take => name.push(c),
            _ if !name.is_empty() => take = false,
            _ => {}
        }
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::new(path, text)).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn groups_are_read_at_their_first_level() {
        assert_eq!(
            first_names("{\n    cache::{Buffer, vfs}, error::Error as volume,\n    sync,\n};"),
            ["cache", "error", "sync"]
        );
        assert_eq!(first_names("alloc::Space;"), ["alloc"]);
        assert_eq!(first_names("*;"), [""; 0]);
    }

    #[test]
    fn a_layer_that_uses_nothing_of_the_one_below_is_found() {
        let mut sources: Vec<Source> = LAYERS
            .windows(2)
            .flat_map(|pair| pair[1].iter().map(|module| (*module, pair[0][0])))
            .map(|(module, below)| {
                let text = format!("use crate::{below}::X;\n");
                Source::new(format!("{ENGINE}{module}.rs"), text)
            })
            .collect();
        sources.extend(LAYERS[0].iter().map(|m| Source::new(format!("{ENGINE}{m}/mod.rs"), "")));
        assert_eq!(stale(&sources), []);
        sources.retain(|source| !source.path.ends_with("/stats/mod.rs"));
        let file = sources.iter_mut().find(|source| source.path.ends_with("/vfs.rs")).unwrap();
        *file = Source::new(file.path.clone(), "use crate::inode::X;\n");
        let found: Vec<String> = stale(&sources).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("no module `stats` [layers]"), "{found:?}");
        assert!(found[1].ends_with("[\"vfs\"] use nothing of [\"file\"] below [layers]"));
    }

    #[test]
    fn every_way_to_name_a_higher_layer_is_found() {
        let cache = "crates/uext4/src/cache/mod.rs";
        assert_eq!(lines(cache, "use crate::journal::Handle;\n"), [1]);
        assert_eq!(
            lines(cache, "use crate::{\n    error::Error,\n    journal::Handle,\n};\n"),
            [1]
        );
        assert_eq!(lines(cache, "fn f() {\n    crate::vfs::g();\n}\n"), [2]);
        assert_eq!(lines(cache, "use super::journal::Handle;\n"), [1]);
        assert_eq!(lines("crates/uext4/src/cache/a.rs", "use super::super::journal;\n"), [1]);
        assert_eq!(lines("crates/uext4/src/cache/a.rs", "use super::journal;\n"), [0; 0]);
        assert_eq!(lines("crates/uext4/src/xattr.rs", "use crate::dir::Entry;\n"), [1]);
        assert_eq!(lines("crates/uext4/src/volume.rs", "use crate::dir::Entry;\n"), [0; 0]);
        assert_eq!(lines("crates/uext4/src/config.rs", "use crate::error::Error;\n"), [0; 0]);
        assert_eq!(lines("crates/uext4/src/file.rs", "use crate::Volume;\n"), [1]);
        assert_eq!(lines("crates/uext4-mkfs/src/file.rs", "use crate::volume::V;\n"), [0; 0]);
    }
}
