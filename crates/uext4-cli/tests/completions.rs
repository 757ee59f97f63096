//! The completions, in the shells themselves.
//!
//! Fault model: a script that its shell cannot read, a verb or an option that is not completed.

#[macro_use]
mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Scratch, has, run_fails, run_ok};

/// What is typed, a completion that must be there, and one that must not.
const CASES: &[(&str, &str, &str)] = &[
    ("uext4 mk", "mkfs", "ls"),
    ("uext4 ls --rec", "--recursive", "--json"),
    ("uext4 lab com", "compare", "run"),
    ("uext4 stat --deref", "--dereference", "--json"),
];

fn script(scratch: &Scratch, shell: &str, name: &str) -> std::path::PathBuf {
    let path = scratch.path(name);
    fs::write(&path, run_ok(["completions", shell])).unwrap();
    path
}

/// Runs a shell on a program of its own; the words that it proposes.
fn proposals(
    shell: &str,
    options: &[&str],
    program: &str,
    script: &Path,
    typed: &str,
) -> Vec<String> {
    let output = Command::new("timeout")
        .args(["60", shell])
        .args(options)
        .args(["-c", program])
        .env("SCRIPT", script)
        .env("TYPED", typed)
        .env("HOME", script.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{shell}: {output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // fish has what a word means behind a tab.
    said.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

fn check(shell: &str, options: &[&str], program: &str, script: &Path) {
    for (typed, want, other) in CASES {
        let words = proposals(shell, options, program, script, typed);
        let has = |word: &str| words.iter().any(|proposed| proposed.trim() == word);
        assert!(has(want) && !has(other), "{shell}: {typed}: {words:?}");
    }
}

#[test]
fn bash_completes() {
    let scratch = Scratch::new();
    let script = script(&scratch, "bash", "uext4.bash");
    // As the shell's line editor calls the function.
    let program = r#"
        source "$SCRIPT"
        read -ra COMP_WORDS <<< "$TYPED"
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        COMP_LINE=$TYPED COMP_POINT=${#TYPED}
        function=$(complete -p uext4 | sed 's/.*-F \([^ ]*\).*/\1/')
        $function uext4 "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    check("bash", &["--norc"], program, &script);
}

#[test]
fn fish_completes() {
    if !has("fish") {
        skip!("no fish");
    }
    let scratch = Scratch::new();
    let script = script(&scratch, "fish", "uext4.fish");
    check("fish", &["--no-config"], "source $SCRIPT; complete -C \"$TYPED\"", &script);
}

#[test]
fn zsh_completes() {
    if !has("zsh") {
        skip!("no zsh");
    }
    let scratch = Scratch::new();
    let script = script(&scratch, "zsh", "_uext4");
    // The shell completes in its line editor alone, so that it runs in a terminal of its own.
    // The list of the line's completions is printed in place of being shown.
    let program = r#"
        zmodload zsh/zpty
        zpty shell zsh -f -i
        send() { zpty -w shell "$1" }
        send "PS1= fpath=($(dirname $SCRIPT) \$fpath); autoload -Uz compinit; compinit -u -D"
        send 'zstyle ":completion:*" verbose no; zstyle ":completion:*" list-prompt ""; LISTMAX=0'
        send 'show() { (( $#found )) && print -rl -- begin $found end }'
        send 'compadd() { builtin compadd -O found "$@"; show; builtin compadd "$@" }'
        send 'all() { zle complete-word; print -r -- fini""shed }; zle -N all; bindkey "^I" all'
        send 'echo rea""dy'
        zpty -r shell line '*ready*'
        zpty -w -n shell "$TYPED"$'\t'
        zpty -r shell line '*finished*'
        zpty -d shell
        print -r -- "$line" | tr -d '\r' | sed -n '/^.*begin$/,/^end$/p'"#;
    check("zsh", &["-f"], program, &script);
}

#[test]
fn another_shell_is_wrong_usage() {
    let output = common::run(["completions", "ksh"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("[possible values: bash, zsh, fish]"), "{said}");
    run_fails(["manual", "ksh"], "no such page");
}
