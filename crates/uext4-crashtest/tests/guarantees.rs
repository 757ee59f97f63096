//! Each guarantee of docs/crash-model.md in both directions: what a loss of power can leave, and
//! what it never can.
//!
//! Fault model: traces made by hand; all of their states, or the first thousand.

mod common;

use common::{BLOCK, Script, Shown, base, contents, shown};

const OLD: &[u8] = b"old content";
const NEW: &[u8] = b"new content, longer";

/// All states of a script on an image with the file `old`, which has the number 1.
fn states(script: &Script, mode: &str, options: &str) -> Vec<Shown> {
    shown(&script.explorer(&base(&[("old", OLD)]), mode, options), 1000)
}

fn has(states: &[Shown], path: &str, printed: &str, content: Option<&[u8]>) -> bool {
    states.iter().any(|state| state.printed == printed && state.tree.file(path) == content)
}

/// The files that a path shows once `ok` was printed.
fn after_ok(states: &[Shown], path: &str) -> Vec<Option<Vec<u8>>> {
    let all = contents(states, path).into_iter();
    all.filter(|(printed, _)| printed == "ok").map(|(_, content)| content).collect()
}

#[test]
fn synced_data_is_never_lost_and_unsynced_data_may_be() {
    for mode in ["ordered", "journal", "writeback"] {
        let mut script = Script::default();
        script.create(2, "new").write(2, 0, NEW).sync(2).print("ok");
        assert_eq!(after_ok(&states(&script, mode, ""), "/new"), [Some(NEW.to_vec())], "{mode}");

        let mut script = Script::default();
        script.create(2, "new").write(2, 0, NEW).print("ok");
        let states = states(&script, mode, "");
        for content in [None, Some(&b""[..]), Some(NEW)] {
            assert!(has(&states, "/new", "ok", content), "{mode} {content:?}");
        }
    }
}

#[test]
fn a_new_name_needs_a_sync_of_its_file_or_directory_or_of_any_later_change() {
    let mut script = Script::default();
    script.create(2, "new").print("ok");
    let unsynced = states(&script, "ordered", "");
    assert!(has(&unsynced, "/new", "ok", None) && has(&unsynced, "/new", "ok", Some(b"")));
    for sync in [0, 2] {
        let mut script = Script::default();
        script.create(2, "new").sync(sync).print("ok");
        assert_eq!(after_ok(&states(&script, "ordered", ""), "/new"), [Some(Vec::new())]);
    }
    // The journal keeps its order: what is synced later takes it along.
    let mut script = Script::default();
    script.create(2, "new").create(3, "later").sync(3).print("ok");
    assert_eq!(after_ok(&states(&script, "ordered", ""), "/new"), [Some(Vec::new())]);
    // A file without a change has nothing to commit.
    let mut script = Script::default();
    script.create(2, "new").sync(1).print("ok");
    assert!(has(&states(&script, "ordered", ""), "/new", "ok", None));
}

#[test]
fn a_rename_is_durable_by_fsync_of_the_file_and_not_by_fdatasync() {
    for (data_only, is_durable) in [(false, true), (true, false)] {
        let mut script = Script::default();
        script.rename(1, "old", "moved", None);
        if data_only {
            script.sync_data(1);
        } else {
            script.sync(1);
        }
        script.print("ok");
        let states = states(&script, "ordered", "");
        assert!(has(&states, "/moved", "ok", Some(OLD)));
        assert_eq!(has(&states, "/old", "ok", Some(OLD)), !is_durable);
    }
}
