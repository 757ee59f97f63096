//! Programs in C, C++ and Go that use the library as its users do.
//!
//! Fault model: a function that C cannot call or that gives something else than the header says; a
//! failure without errno or words; memory, descriptors or threads that stay after a close; threads
//! that disturb each other; an image that e2fsck does not call clean. Leaks and wrong accesses are
//! seen by the sanitizer of addresses, in the program and in what the library allocates; accesses
//! inside the library are not instrumented.

mod harness;

use std::fs;
use std::process::Command;

use harness::{Programs, ok};

#[test]
fn the_examples_work() {
    let programs = Programs::new();
    let image = programs.path("tree.img");
    for flags in [&[][..], &["-fsanitize=address"]] {
        let _ = fs::remove_file(&image);
        let tree = programs.build("examples/tree.c", flags);
        let said = ok(programs.command(&tree).arg(&image));
        let lines: Vec<&str> = said.lines().collect();
        for line in [
            "/etc/name: alpha",
            "/etc/motd: be kind",
            "user.colour: blue",
            "  motd 100644 7",
            "  name 120777 8",
            "  ssl 40700 1024",
        ] {
            assert!(lines.contains(&line), "no '{line}' in:\n{said}");
        }
        assert!(said.contains("tree.img: clean, 2 files"), "{said}");
        harness::e2fsck(&image);
        let memory = programs.build("examples/memory.c", flags);
        let copy = programs.path("memory.img");
        let said = ok(programs.command(&memory).arg(&copy));
        assert_eq!(said, "clean after some flushes; released: 1\n");
        harness::e2fsck(&copy);
    }
}

#[test]
fn every_call_does_what_the_header_says() {
    let programs = Programs::new();
    let image = programs.path("calls.img");
    let calls = programs.build("tests/c/calls.c", &["-fsanitize=address"]);
    ok(programs.command(&calls).arg(&image));
    harness::e2fsck(&image);
}

#[test]
fn what_is_wrong_is_told_and_touches_nothing() {
    let programs = Programs::new();
    let bad = programs.build("tests/c/bad.c", &["-fsanitize=address"]);
    let image = programs.image("bad.img");
    let zeroes = programs.path("zeroes.img");
    fs::write(&zeroes, vec![0; 1 << 20]).unwrap();
    let empty = programs.path("empty.img");
    fs::write(&empty, "").unwrap();
    let before = harness::debugfs_tree(&image);
    ok(programs.command(&bad).args([&image, &zeroes, &empty]));
    assert_eq!(harness::debugfs_tree(&image), before);
    harness::e2fsck(&image);
    assert!(
        fs::read(&zeroes).unwrap() == vec![0; 1 << 20],
        "an image that was refused has changed"
    );
}

#[test]
fn threads_share_a_volume() {
    let programs = Programs::new();
    let threads = programs.build("tests/c/threads.c", &["-pthread"]);
    let image = programs.image("threads.img");
    ok(programs.command(&threads).arg(&image));
    harness::e2fsck(&image);
}

/// 10,000 times; under the sanitizer, which looks for leaks at the end, 300 times.
#[test]
fn opening_and_closing_leaks_nothing() {
    let programs = Programs::new();
    let image = programs.image("cycles.img");
    for (flags, cycles) in [(&["-fsanitize=address"][..], "300"), (&[], "10000")] {
        let cycled = programs.build("tests/c/cycles.c", flags);
        print!("{}", ok(programs.command(&cycled).arg(&image).arg(cycles)));
    }
    harness::e2fsck(&image);
}

/// An injected leak, so that the sanitizer is known to see what the library has allocated.
#[test]
fn a_leak_of_the_library_is_found() {
    let programs = Programs::new();
    let source = programs.path("leak.c");
    let text = "#include <uext4.h>\n\
                int main(int argc, char **argv) {\n\
                uext4_volume *v; uext4_inode *i;\n\
                if (argc != 2 || uext4_open(argv[1], \"ro\", &v)) return 2;\n\
                if (uext4_lookup(v, NULL, \"/\", 0, &i)) return 2;\n\
                i = NULL; return uext4_close(v); }\n";
    fs::write(&source, text).unwrap();
    let leak = programs.build(source.to_str().unwrap(), &["-fsanitize=address"]);
    let output = programs.command(&leak).arg(programs.image("leak.img")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("detected memory leaks"), "{said}");
}

#[test]
fn cpp_takes_the_header() {
    let programs = Programs::new();
    let source = programs.path("a.cpp");
    let text = "#include <uext4.h>\nint main() { return uext4_version_number() == 0; }\n";
    fs::write(&source, text).unwrap();
    let made = programs.build(source.to_str().unwrap(), &["-x", "c++", "-std=c++11"]);
    ok(&mut programs.command(&made));
}

#[test]
fn go_uses_it() {
    let Some(go) = harness::go() else {
        println!("skipped: go is not installed: its example is not built");
        return;
    };
    let programs = Programs::new();
    let image = programs.path("go.img");
    let made = programs.path("go-example");
    let folder = harness::folder().join("examples/go");
    let mut build = Command::new(go);
    // Nothing of the repository that the example lies in, nor of the home of who runs this.
    build.args(["build", "-buildvcs=false", "-o"]).arg(&made).arg(".").current_dir(folder);
    programs.for_go(&mut build);
    ok(&mut build);
    let said = ok(programs.command(&made).arg(&image));
    assert!(said.contains("hello from Go") && said.ends_with("clean\n"), "{said}");
    harness::e2fsck(&image);
}
