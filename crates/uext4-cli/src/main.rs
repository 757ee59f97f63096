//! The `uext4` command: make, look into, change and mount ext4 images without the kernel's driver.
//!
//! What: one verb a file under [`verb`]; this file only takes the command line apart. Paths inside
//! an image are written `IMAGE:/path`, a partition `IMAGE@p1` or `IMAGE@OFFSET`; see [`spec`].
//!
//! Invariants: verbs that read never write to the image. Every failure is one line on standard
//! error, `uext4: what failed: where: why`, and exit status 1; wrong usage is status 2.
//! `fsck` has the exit statuses of fsck(8).

#![forbid(unsafe_code)]

mod archive;
mod attribute_text;
mod closing;
mod compare;
mod confine;
mod copy;
mod dates;
mod ended;
mod examples;
mod exit_status;
mod failure;
mod figures;
#[cfg(test)]
mod generated;
mod given;
mod glob;
mod heap;
mod helper;
mod host;
mod image;
mod image_path;
mod inspect;
mod journal;
mod json;
mod keeper;
mod keys;
mod log;
mod manager;
mod manual_pages;
mod mballoc;
mod mode;
mod mount_options;
mod mount_table;
mod mounted;
mod network;
mod operands;
mod output;
mod overlay;
mod owners;
mod partition;
mod pattern;
mod place;
mod progress;
mod prometheus;
mod queue;
mod rbd;
mod runs;
mod signature;
mod spec;
mod text;
mod usage;
mod users;
mod verb;
mod verbosity;
mod walk;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::verb::{
    cat, chattr, chmod, chown, completions, cp, df, diff, du, encrypt, export, extents, find, frag,
    freefrag, fsck, import, info, lab, label, ln, ls, manual, mkdir, mkfs, mount, mv, quota,
    resize, rm, stat, stats, sync, touch, tree, trim, truncate, tune, umount, verity, xattr,
};

/// What the help of the whole command says of images.
const IMAGES: &str = "\
IMAGE is a file or block device; IMAGE@p1, or IMAGE#1, is its first partition, and IMAGE@OFFSET what
starts at a byte of it (or with a suffix s, K, M, G or T). A path inside is IMAGE:/path.";

/// ext4 in user space: work on images without root and without the kernel's driver
#[derive(Parser)]
#[command(name = "uext4", version, arg_required_else_help = true, after_help = IMAGES)]
struct Command {
    /// A key of encrypted files: FILE, or DESCRIPTOR:FILE for policies of version 1
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    key: Vec<String>,
    /// The device that has the journal of the image, if that is another one
    #[arg(long, global = true, value_name = "PATH", display_order = 900)]
    journal_device: Option<PathBuf>,
    /// Print failures only: no remarks, no progress
    #[arg(short, long, global = true, display_order = 901)]
    quiet: bool,
    /// Say what is done, unless it is to be quiet
    #[arg(short, long, global = true, display_order = 901)]
    verbose: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Mkfs(Box<mkfs::Args>),
    Mount(mount::Args),
    Umount(umount::Args),
    Overlay(verb::overlay::Args),
    Sync(sync::Args),
    Trim(trim::Args),
    Tune(tune::Args),
    Label(label::Args),
    Resize(resize::Args),
    Fsck(fsck::Args),
    Info(info::Args),
    Journal(verb::journal::Args),
    Ls(ls::Args),
    Tree(tree::Args),
    Find(find::Args),
    Du(du::Args),
    Df(df::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Verity(verity::Args),
    Stats(stats::Args),
    Extents(extents::Args),
    Frag(frag::Args),
    Quota(quota::Args),
    Diff(diff::Args),
    Freefrag(freefrag::Args),
    Cp(cp::Args),
    Import(import::Args),
    Export(export::Args),
    Mkdir(mkdir::Args),
    Ln(ln::Args),
    Touch(touch::Args),
    Truncate(truncate::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Chgrp(chown::GroupArgs),
    Chattr(chattr::Args),
    Xattr(xattr::Args),
    Encrypt(encrypt::Args),
    Rm(rm::Args),
    Mv(mv::Args),
    Lab(lab::Args),
    Crashtest(verb::crashtest::Args),
    Manual(manual::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let Some(status) = helper::run(&words).or_else(|| keeper::run(&words)) {
        return status;
    }
    if mount::is_helper_call(words.get(1..).unwrap_or_default()) {
        words.insert(1, "mount".into());
    }
    let command =
        Command::try_parse_from(&words).unwrap_or_else(|error| usage::exit(&error, &words));
    verbosity::give(command.quiet, command.verbose && !has_own_verbose(&words));
    if let Err(failure) = keys::give(&command.key) {
        return failure.report();
    }
    journal::give(command.journal_device);
    let result = match command.verb {
        Verb::Mkfs(args) => mkfs::run(&args),
        Verb::Mount(args) => mount::run(args),
        Verb::Umount(args) => umount::run(&args),
        Verb::Overlay(args) => verb::overlay::run(&args),
        Verb::Sync(args) => sync::run(&args),
        Verb::Trim(args) => trim::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Label(args) => label::run(&args),
        Verb::Resize(args) => resize::run(&args),
        Verb::Fsck(args) => fsck::run(&args),
        Verb::Info(args) => info::run(&args),
        Verb::Journal(args) => verb::journal::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Tree(args) => tree::run(&args),
        Verb::Find(args) => find::run(&args),
        Verb::Du(args) => du::run(&args),
        Verb::Df(args) => df::run(&args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Verity(args) => verity::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::Extents(args) => extents::run(&args),
        Verb::Frag(args) => frag::run(&args),
        Verb::Quota(args) => quota::run(&args),
        Verb::Diff(args) => diff::run(&args),
        Verb::Freefrag(args) => freefrag::run(&args),
        Verb::Cp(args) => cp::run(&args),
        Verb::Import(args) => import::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Mkdir(args) => mkdir::run(&args),
        Verb::Ln(args) => ln::run(&args),
        Verb::Touch(args) => touch::run(&args),
        Verb::Truncate(args) => truncate::run(&args),
        Verb::Chmod(args) => chmod::run(&args),
        Verb::Chown(args) => chown::run(&args),
        Verb::Chgrp(args) => chown::run_group(&args),
        Verb::Chattr(args) => chattr::run(&args),
        Verb::Xattr(args) => xattr::run(&args),
        Verb::Encrypt(args) => encrypt::run(&args),
        Verb::Rm(args) => rm::run(&args),
        Verb::Mv(args) => mv::run(&args),
        Verb::Lab(args) => lab::run(args),
        Verb::Crashtest(args) => verb::crashtest::run(&args),
        Verb::Manual(args) => manual::run(&args, Command::command()),
        Verb::Completions(args) => completions::run(&args, Command::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Whether `-v` is the verb's own, as of `cp -v`, and says nothing of what others do with it.
fn has_own_verbose(words: &[OsString]) -> bool {
    let command = Command::command();
    let is_own = |verb: &clap::Command| verb.get_arguments().any(|it| it.get_id() == "verbose");
    let name = Command::command().try_get_matches_from(words).ok();
    let name = name.as_ref().and_then(|matches| matches.subcommand_name());
    name.and_then(|name| command.find_subcommand(name)).is_some_and(is_own)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uext4_sim::hostile;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn the_readme_has_every_verb() {
        let mut table = String::from("\n| verb | does |\n|---|---|\n");
        for verb in Command::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let about = verb.get_about().expect("each verb says what it does");
            table.push_str(&format!("| `{}` | {about} |\n", verb.get_name()));
        }
        generated::check("README.md", "verbs", &(table + "\n"));
    }

    #[test]
    fn the_lab_document_has_every_load() {
        let mut table =
            String::from("\n| load | what it does | figure | threads |\n|---|---|---|---|\n");
        for load in uext4_lab::LOADS {
            let threads: Vec<String> = load.threads.iter().map(u32::to_string).collect();
            let (id, what, metric) = (load.id, load.what, load.metric);
            table.push_str(&format!("| {id} | {what} | `{metric}` | {} |\n", threads.join(", ")));
        }
        generated::check("docs/lab.md", "loads", &(table + "\n"));
    }

    /// The verbs, and their actions where the kit counts these by themselves.
    fn verbs() -> BTreeSet<String> {
        let command = Command::command();
        let mut verbs = BTreeSet::new();
        for verb in command.get_subcommands() {
            let name = verb.get_name();
            if hostile::has_actions(name) {
                let actions = verb.get_subcommands().filter(|action| action.get_name() != "help");
                verbs.extend(actions.map(|action| format!("{name} {}", action.get_name())));
            } else {
                verbs.insert(name.to_owned());
            }
        }
        verbs
    }

    #[test]
    fn every_verb_is_called_on_hostile_material_or_told_why_not() {
        let mut known: BTreeSet<String> =
            hostile::UNTRIED.iter().map(|(verb, _)| (*verb).to_owned()).collect();
        for words in hostile::calls() {
            let words = std::iter::once("uext4").chain(words.split_whitespace());
            let words: Vec<&str> = words.collect();
            // A call that is wrong usage would try nothing.
            let parsed = Command::command().try_get_matches_from(&words);
            let matches = parsed.unwrap_or_else(|error| panic!("{words:?}: {error}"));
            let (verb, inner) = matches.subcommand().expect("a verb");
            known.insert(match inner.subcommand_name() {
                Some(action) => format!("{verb} {action}"),
                None => verb.to_owned(),
            });
        }
        assert_eq!(verbs(), known);
    }
}
