//! The manual page, uext4(3).
//!
//! Fault model: a function of the header that the page does not name, one that it names and the
//! header lacks, another version, a page that groff or mandoc warns of, an example that does not
//! compile.

mod harness;

use std::fs;
use std::process::Command;

use harness::{Programs, folder, ok};

/// Names that begin as functions of the library do, each once.
fn functions(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut names: Vec<&str> = words.filter(|word| word.starts_with("uext4_")).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn the_page_names_every_function() {
    let header = fs::read_to_string(folder().join("include/uext4.h")).unwrap();
    let page = fs::read_to_string(folder().join("man/uext4.3")).unwrap();
    let code: String = header.lines().filter(|line| !line.trim().starts_with("//")).collect();
    let is_called = |name: &&&str| code.contains(&format!("{name}("));
    let (all, named) = (functions(&code), functions(&page));
    let absent: Vec<_> = all.iter().filter(is_called).filter(|it| !named.contains(it)).collect();
    assert!(absent.is_empty() && all.len() > 40, "uext4(3) lacks {absent:?}");
    let unknown: Vec<_> = named.iter().filter(|name| !all.contains(name)).collect();
    assert!(unknown.is_empty(), "uext4(3) names {unknown:?}, which the header lacks");
    assert!(page.contains(&format!("uext4 {}\"", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn formatters_have_no_warning() {
    let page = folder().join("man/uext4.3");
    let tools: [(&str, &[&str]); 2] =
        [("groff", &["-man", "-Tutf8", "-ww", "-z"]), ("mandoc", &["-Tlint", "-Wwarning"])];
    for (tool, options) in tools {
        let output = match Command::new(tool).args(options).arg(&page).output() {
            Ok(output) => output,
            Err(error) => {
                println!("skipped: {tool}: {error}: the page is not formatted");
                continue;
            }
        };
        let said = [output.stdout, output.stderr].concat();
        assert!(said.is_empty(), "{tool}: {}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn the_example_works() {
    let programs = Programs::new();
    let page = fs::read_to_string(folder().join("man/uext4.3")).unwrap();
    let (_, example) = page.split_once("EXAMPLES\"\n.nf\n").unwrap();
    let (example, _) = example.split_once(".fi").unwrap();
    let source = programs.path("note.c");
    fs::write(&source, example.replace("\\e", "\\")).unwrap();
    let image = programs.image("disk.img");
    let made = programs.build(source.to_str().unwrap(), &[]);
    let mut note = programs.command(&made);
    ok(note.current_dir(image.parent().unwrap()));
    harness::e2fsck(&image);
    let said = ok(Command::new("/sbin/debugfs").args(["-R", "cat /note"]).arg(&image));
    assert_eq!(said, "hello\n");
}
