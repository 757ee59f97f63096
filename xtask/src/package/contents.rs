//! What a Debian package must contain, looked up in the package itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::deb::HELPERS;
use super::{VERSION, output, run};

/// Files besides the pages of verbs and the links, below `/usr`.
const FILES: &[&str] = &[
    "share/man/man1/uext4.1.gz",
    "share/man/man5/uext4.5.gz",
    "share/bash-completion/completions/uext4",
    "share/zsh/vendor-completions/_uext4",
    "share/fish/vendor_completions.d/uext4.fish",
    "share/doc/uext4/copyright",
    "share/doc/uext4/changelog.Debian.gz",
    "share/doc/uext4/third-party.txt.gz",
];

/// Unpacks a package and compares: the command runs, every verb has a page, helpers lead to the
/// command, each file has its sum.
pub(super) fn check(folder: &Path, deb: &Path) -> Result<(), String> {
    let root = folder.join("unpacked");
    let _ = fs::remove_dir_all(&root);
    run(Command::new("dpkg-deb").arg("--raw-extract").arg(deb).arg(&root))?;
    let usr = root.join("usr");
    let command = usr.join("bin/uext4");
    let version = output(Command::new(&command).arg("--version"))?;
    if version.trim() != format!("uext4 {VERSION}") {
        return Err(format!("the packed command says: {version}"));
    }
    let told = output(Command::new(&command).arg("--help"))?;
    let verbs = verbs(&told);
    if verbs.len() < 20 {
        return Err(format!("--help tells too few verbs: {verbs:?}"));
    }
    let pages = verbs.iter().map(|verb| format!("share/man/man1/uext4-{verb}.1.gz"));
    let files = FILES.iter().map(|name| (*name).to_owned()).chain(pages);
    let absent: Vec<String> = files.filter(|name| !usr.join(name).is_file()).collect();
    if !absent.is_empty() {
        return Err(format!("not in the package: {}", absent.join(" ")));
    }
    for (name, page) in HELPERS {
        let page = usr.join(format!("share/man/man1/{page}.1.gz"));
        for (link, target) in [
            (usr.join("sbin").join(name), &command),
            (usr.join(format!("share/man/man8/{name}.8.gz")), &page),
        ] {
            let real = |path: &Path| {
                fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))
            };
            if real(&link)? != real(target)? {
                return Err(format!("{} does not lead to {}", link.display(), target.display()));
            }
        }
    }
    let sums = Command::new("md5sum")
        .args(["--check", "--quiet", "--strict", "DEBIAN/md5sums"])
        .current_dir(&root)
        .status();
    match sums.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err("sums of files differ from those of the package".to_owned()),
    }
}

/// The verbs that a help lists: the first words of the lines below `Commands:`.
fn verbs(help: &str) -> BTreeSet<&str> {
    let list = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let list = list.take_while(|line| line.starts_with("  "));
    // Lines of a description that goes on are indented more.
    let verbs = list.filter(|line| !line.starts_with("   "));
    verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").collect()
}

#[cfg(test)]
mod tests {
    use super::verbs;

    #[test]
    fn verbs_are_the_first_words_of_the_list() {
        let help = "About\n\nUsage: x\n\nCommands:\n  mkfs   Make\n         more\n  ls     List\n  \
                    help   Print\n\nOptions:\n  -q  Quiet\n";
        assert_eq!(verbs(help).into_iter().collect::<Vec<_>>(), ["ls", "mkfs"]);
    }
}
