//! The recipes of docs/cookbook.md, each in a folder of its own, as an ordinary user types them.
//!
//! Fault model: a command that fails, or prints something else than the document has; a recipe that
//! leaves an image with errors, or changes one that it only looks at. Not covered: what the text
//! tells of programs that the tests do not install (docker, qemu-img).

#[macro_use]
mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::document::{self, Typed, User};
use common::{Scratch, has, system};

/// Recipes that mount name it.
const FUSE: &str = "/dev/fuse";
/// What recipes only look at.
const LOOKED_AT: [&str; 2] = ["crashed.img", "broken.img"];
/// Has errors that nothing mends.
const DAMAGED: &str = "broken.img";

const TOOLS: [&str; 7] = ["sfdisk", "openssl", "jq", "e2fsck", "debugfs", "umoci", "zstd"];

struct Recipe {
    name: String,
    steps: Vec<(String, Vec<String>)>,
    mounts: bool,
}

/// The recipes, and the script that makes what they use.
fn cookbook() -> (Vec<Recipe>, String) {
    let text = document::read("docs/cookbook.md");
    let (numbered, others): (Vec<_>, Vec<_>) = document::parts(&text)
        .into_iter()
        .partition(|(name, _)| name.starts_with(|first: char| first.is_ascii_digit()));
    let recipes = numbered.into_iter().map(|(name, text)| recipe(name, text)).collect();
    let scripts: Vec<_> =
        others.iter().flat_map(|(_, text)| document::blocks(text, "sh")).collect();
    assert_eq!(scripts.len(), 1, "one script makes what the recipes use");
    (recipes, format!("set -e\n{}", scripts[0]))
}

fn recipe(name: &str, text: &str) -> Recipe {
    let blocks = document::blocks(text, "console");
    assert!(!blocks.is_empty(), "{name}: has no console");
    let mut steps = Vec::new();
    for block in blocks {
        let typed = document::typed(block);
        assert!(!typed.is_empty(), "{name}: a console without a command");
        steps.extend(typed.into_iter().map(|Typed { command, output }| {
            (command.to_owned(), output.into_iter().map(str::to_owned).collect())
        }));
    }
    Recipe { name: name.to_owned(), steps, mounts: text.contains(FUSE) }
}

/// Runs what a recipe has typed, in one shell; the output and the status of each command.
fn follow(recipe: &Recipe, user: User, scratch: &Scratch) -> Vec<(String, i32)> {
    const MARK: &str = "=== status ";
    // A command that fails must not leave a mount behind.
    let mut script = String::from("exec 2>&1 </dev/null; cd work\n");
    if recipe.mounts {
        script.push_str("trap 'uext4 umount mnt' EXIT\n");
    }
    for (command, _) in &recipe.steps {
        // The next command may ask for the status.
        let mark = format!("_s=$?; echo; echo '{MARK}'$_s; (exit $_s)");
        script.push_str(&format!("{command}\n{mark}\n"));
    }
    let output = user.run(scratch, &script);
    let said = String::from_utf8(output.stdout).unwrap();
    let mut rest = said.as_str();
    let mut found = Vec::new();
    while let Some((before, behind)) = rest.split_once(&format!("\n{MARK}")) {
        let (status, behind) = behind.split_once('\n').unwrap();
        found.push((before.to_owned(), status.parse().unwrap()));
        rest = behind;
    }
    assert_eq!(found.len(), recipe.steps.len(), "{}: {said}", recipe.name);
    found
}

fn check(recipe: &Recipe, found: &[(String, i32)]) {
    let asks_status =
        |at: usize| recipe.steps.get(at).is_some_and(|(command, _)| command.starts_with("echo $?"));
    for (at, ((command, written), (said, status))) in recipe.steps.iter().zip(found).enumerate() {
        let name = &recipe.name;
        assert!(*status == 0 || asks_status(at + 1), "{name}: {command}: status {status}: {said}");
        let written: Vec<&str> = written.iter().map(String::as_str).collect();
        let lines: Vec<&str> = said.lines().collect();
        assert!(document::is_as_written(&written, &lines), "{name}: {command}:\n{said}");
    }
}

/// Where ext4 file systems begin in a file: at its start, or at its partitions.
fn file_systems(image: &Path) -> Vec<u64> {
    let starts = system("sfdisk").args(["-q", "-l", "-o", "start"]).arg(image).output().unwrap();
    let starts = String::from_utf8(starts.stdout).unwrap();
    let sectors = starts.lines().filter_map(|line| line.trim().parse::<u64>().ok());
    let file = fs::File::open(image).unwrap();
    let has_magic = |start: &u64| {
        let mut magic = [0; 2];
        file.read_exact_at(&mut magic, start + 1080).is_ok() && magic == [0x53, 0xef]
    };
    [0].into_iter().chain(sectors.map(|sector| sector * 512)).filter(has_magic).collect()
}

/// e2fsck finds nothing in images that have changed, which are in `before` as they were.
fn judge(name: &str, work: &Path, before: Option<&Path>) {
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    for entry in fs::read_dir(work).unwrap() {
        let path = entry.unwrap().path();
        let image = path.file_name().unwrap().to_str().unwrap();
        let was = before.map(|before| before.join(image)).and_then(|path| changed(&path));
        if !image.ends_with(".img") || image == DAMAGED || was == changed(&path) {
            continue;
        }
        for start in file_systems(&path) {
            let place = format!("{}?offset={start}", path.display());
            let check = system("e2fsck").args(["-fn", &place]).output().unwrap();
            let said = String::from_utf8_lossy(&check.stdout);
            assert!(check.status.success(), "{name}: e2fsck -fn {place}: {said}");
        }
    }
}

/// What the recipe only looks at is as it was, to the byte.
fn compare(recipe: &Recipe, work: &Path, before: &Path) {
    let is_named = |image: &str| recipe.steps.iter().any(|(command, _)| command.contains(image));
    for image in LOOKED_AT.into_iter().filter(|image| is_named(image)) {
        let [is, was] = [work, before].map(|folder| fs::read(folder.join(image)).unwrap());
        assert!(is == was, "{}: {image} has changed", recipe.name);
    }
}

/// Runs the recipes that mount, or the others; or says why not.
fn run(mounts: bool, user: User) -> Result<(), String> {
    if let Some(tool) = TOOLS.into_iter().find(|tool| !has(tool)) {
        return Err(format!("no {tool}"));
    }
    if let Some(why) = user.missing() {
        return Err(why.to_owned());
    }
    let (recipes, script) = cookbook();
    let scratch = document::workplace();
    let made = scratch.path("made");
    let output = user.run(&scratch, &format!("mkdir made; cd made\n{script}"));
    assert!(output.status.success(), "{output:?}");
    judge("what the recipes use", &made, None);
    let wanted: Vec<_> = recipes.iter().filter(|recipe| recipe.mounts == mounts).collect();
    assert!(!wanted.is_empty(), "no recipe of this kind");
    for recipe in wanted {
        let copied = user.run(&scratch, "rm -rf work; cp -a --sparse=always made work");
        assert!(copied.status.success(), "{copied:?}");
        let work = scratch.path("work");
        let found = follow(recipe, user, &scratch);
        check(recipe, &found);
        judge(&recipe.name, &work, Some(&made));
        compare(recipe, &work, &made);
    }
    Ok(())
}

#[test]
fn there_are_enough_recipes() {
    let (recipes, _) = cookbook();
    assert!(recipes.len() >= 12, "{}", recipes.len());
    for (number, recipe) in (1..).zip(&recipes) {
        assert!(recipe.name.starts_with(&format!("{number}. ")), "{}", recipe.name);
    }
}

#[test]
fn recipes_do_what_the_document_says() {
    if let Err(why) = run(false, User::Ordinary) {
        skip!("{why}");
    }
}

#[test]
fn recipes_that_mount_do_what_the_document_says() {
    if let Err(why) = run(true, User::OrdinaryWithFuse) {
        skip!("{why}");
    }
}

/// What stands for something that differs stands for nothing else.
#[test]
fn output_is_compared() {
    let same = |written: &str, said: &str| {
        let [written, said] = [written, said].map(|text| text.lines().collect::<Vec<_>>());
        document::is_as_written(&written, &said)
    };
    for (written, said) in [
        ("", ""),
        ("a\nb", "a\nb"),
        ("a ... d", "a b c d"),
        ("...:x:...", "root:x:0"),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("a\n...", "a"),
    ] {
        assert!(same(written, said), "{written:?} {said:?}");
    }
    for (written, said) in [
        ("", "a"),
        ("a", ""),
        ("a", "ab"),
        ("a\nb", "a"),
        ("a ... d", "a b c"),
        ("a...a", "a"),
        ("a\n...\nd", "a\nb\nc"),
    ] {
        assert!(!same(written, said), "{written:?} {said:?}");
    }
}
