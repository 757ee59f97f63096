//! Each guarantee of docs/crash-model.md in both directions: what a loss of power can leave, and
//! what it never can.
//!
//! Fault model: traces made by hand; all of their states, or the first thousand.

#[path = "../common/mod.rs"]
mod common;
mod ranges;

use common::{BLOCK, Script, Shown, base, contents, shown};
use uext4_crashtest::model::Tree;
use uext4_crashtest::trace::{Attributes, Call, FileId};

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

/// The kernel commits the names of a directory at fdatasync(2) of it: SQLite calls nothing else.
#[test]
fn names_are_durable_by_fdatasync_of_their_directory() {
    for data_only in [false, true] {
        let mut script = Script::default();
        script.rename(1, "old", "moved", None);
        script.call(Call::Sync { file: FileId::ROOT, data_only, range: None }).print("ok");
        let states = states(&script, "ordered", "");
        assert!(has(&states, "/moved", "ok", Some(OLD)));
        assert!(!has(&states, "/old", "ok", Some(OLD)), "data_only {data_only}");
    }
}

#[test]
fn a_sync_of_a_directory_commits_all_that_came_before() {
    for data_only in [false, true] {
        let mut script = Script::default();
        // No name of the root changes.
        script.call(Call::SetAttributes {
            file: FileId(1),
            change: Attributes { mode: Some(0o600), ..Attributes::default() },
        });
        script.call(Call::Sync { file: FileId::ROOT, data_only, range: None }).print("ok");
        let states = states(&script, "ordered", "");
        let modes = states.iter().filter(|state| state.printed == "ok");
        assert!(modes.map(|state| state.spec.committed).all(|steps| steps > 0));
    }
}

/// The unsynced replacement of a file: what `old` shows afterwards.
fn replaced(mode: &str, options: &str) -> Vec<Option<Vec<u8>>> {
    let mut script = Script::default();
    script.create(2, "temporary").write(2, 0, NEW).rename(2, "temporary", "old", Some(1));
    script.print("ok");
    after_ok(&states(&script, mode, options), "/old")
}

#[test]
fn a_file_renamed_over_another_is_empty_only_without_auto_da_alloc() {
    let (old, new, empty) = (Some(OLD.to_vec()), Some(NEW.to_vec()), Some(Vec::new()));
    for mode in ["ordered", "writeback"] {
        let found = replaced(mode, "noauto_da_alloc");
        assert!([&old, &new, &empty].iter().all(|it| found.contains(it)), "{mode}");
        // The default allocates first; the size goes with the rename.
        assert!(!replaced(mode, "").contains(&empty), "{mode}");
    }
    // Where the commit waits for the data, or has it, the file has it.
    for (mode, options) in [("ordered", "dioread_lock"), ("ordered", "nodelalloc"), ("journal", "")]
    {
        assert_eq!(replaced(mode, options), [Some(NEW.to_vec()), Some(OLD.to_vec())], "{options}");
    }
}

#[test]
fn a_rename_flushes_no_block_that_had_a_place() {
    let mut script = Script::default();
    script.create(2, "temporary").write(2, 0, &[b'a'; 10]).write(2, 0, &[b'b'; 10]);
    script.rename(2, "temporary", "old", Some(1)).create(3, "later").sync(3).print("ok");
    let found = after_ok(&states(&script, "ordered", "dioread_lock"), "/old");
    // The first write may have been written back, with a commit, before the second.
    assert!(found.contains(&Some(vec![b'a'; 10])) && found.contains(&Some(vec![b'b'; 10])));
    assert!(!found.contains(&Some(Vec::new())) && !found.contains(&Some(vec![0; 10])));
}

#[test]
fn any_close_takes_the_flush_of_a_truncated_file() {
    let mut script = Script::default();
    // The first is a reader's.
    script.truncate(1, OLD.len() as u64, 0).close(1).write(1, 0, NEW).close(1);
    script.create(3, "later").sync(3).print("ok");
    assert!(has(&states(&script, "ordered", "dioread_lock"), "/old", "ok", Some(b"")));
}

#[test]
fn a_long_write_is_tried_at_its_begin_middle_and_end() {
    let mut script = Script::default();
    script.create(2, "new").write(2, 0, &[b'x'; 64 * BLOCK]);
    let explorer = script.explorer(&base(&[("old", OLD)]), "journal", "");
    // What comes before the random states is few.
    let states: Vec<_> = explorer.states(1).take(12).map(|spec| spec.part).collect();
    for part in [1, 32, 63] {
        assert!(states.contains(&Some(part)), "{part}: {states:?}");
    }
}

#[test]
fn the_size_of_a_write_comes_with_its_first_block() {
    for (mode, options) in [("journal", ""), ("ordered", "nodelalloc")] {
        let mut script = Script::default();
        script.create(2, "new").write(2, 40000, &[b'x'; 2 * BLOCK]).print("ok");
        let states = states(&script, mode, options);
        let sizes = after_ok(&states, "/new").into_iter().flatten().map(|content| content.len());
        // Nothing, one block, two, all of it.
        let possible = [0, 40960, 45056, 40000 + 2 * BLOCK];
        assert!(sizes.clone().all(|size| possible.contains(&size)), "{mode} {options}");
    }
}

#[test]
fn the_end_of_a_new_block_is_clear_after_a_truncate() {
    let mut script = Script::default();
    script.create(2, "log").write(2, 0, &[b'x'; BLOCK]).truncate(2, BLOCK as u64, 100);
    script.truncate(2, 100, BLOCK as u64).create(3, "later").sync(3).print("ok");
    let found = after_ok(&states(&script, "ordered", ""), "/log");
    assert!(found.iter().flatten().all(|content| content.iter().skip(100).all(|byte| *byte == 0)));
    assert!(!found.is_empty());
}

#[test]
fn a_replaced_file_has_the_next_ones_data_in_writeback_mode_only() {
    for (mode, writes, is_reused) in
        [("writeback", true, true), ("writeback", false, false), ("ordered", true, false)]
    {
        let mut script = Script::default();
        script.create(2, "first").write(2, 0, NEW).sync(2).rename(2, "first", "old", Some(1));
        script.create(3, "second");
        if writes {
            script.write(3, 0, NEW);
        }
        let states = states(&script, mode, "");
        let is_stale = |state: &Shown| state.tree.file("/old") == Some(b"STALE BYTES");
        assert_eq!(states.iter().any(is_stale), is_reused, "{mode} {writes}");
    }
}

#[test]
fn a_file_renamed_to_a_new_name_may_be_empty_with_auto_da_alloc_too() {
    let mut script = Script::default();
    script.create(2, "temporary").write(2, 0, NEW).rename(2, "temporary", "new", None).print("ok");
    assert!(has(&states(&script, "ordered", ""), "/new", "ok", Some(b"")));
    assert!(!has(&states(&script, "journal", ""), "/new", "ok", Some(b"")));
}

#[test]
fn a_file_truncated_to_nothing_and_closed_has_its_size() {
    for (options, may_be_empty) in [("dioread_lock", false), ("dioread_lock,noauto_da_alloc", true)]
    {
        let mut script = Script::default();
        script.truncate(1, OLD.len() as u64, 0).write(1, 0, NEW).close(1);
        // Another file takes the journal past the close.
        script.create(3, "later").sync(3).print("ok");
        let states = states(&script, "ordered", options);
        assert_eq!(has(&states, "/old", "ok", Some(b"")), may_be_empty, "{options}");
        assert!(has(&states, "/old", "ok", Some(NEW)));
    }
}

/// Contents in short: each run of a byte as the byte and how many, such as `a1000 b24`.
fn runs(found: &[Option<Vec<u8>>]) -> Vec<String> {
    let run = |run: &[u8]| format!("{}{}", char::from(run[0].max(b'0')), run.len());
    let text =
        |content: &Vec<u8>| content.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>().join(" ");
    let mut all: Vec<String> =
        found.iter().map(|content| content.as_ref().map_or("none".to_owned(), text)).collect();
    all.sort();
    all
}

/// An append to a file, which no sync follows.
fn appended(mode: &str, options: &str) -> Vec<String> {
    let mut script = Script::default();
    script.create(2, "log").write(2, 0, &[b'a'; 1000]).sync(2);
    script.write(2, 1000, &[b'b'; 1000]).print("ok");
    runs(&after_ok(&states(&script, mode, options), "/log"))
}

#[test]
fn an_append_may_be_torn_or_zeros_and_never_takes_what_was_synced() {
    let found = appended("ordered", "");
    // A sector is 512 bytes.
    for content in ["a1000", "a1000 b1000", "a1000 01000", "a1000 b24 0976", "a1000 024 b976"] {
        assert!(found.iter().any(|it| it == content), "{content}: {found:?}");
    }
    assert!(found.iter().all(|content| content.starts_with("a1000")), "{found:?}");
    assert_eq!(appended("journal", ""), ["a1000", "a1000 b1000"]);
}

#[test]
fn a_new_block_of_data_is_whole_or_zeros_or_missing() {
    let mut script = Script::default();
    let data = [[b'x'; 4096], [b'y'; 4096]].concat();
    script.create(2, "new").write(2, 0, &data).print("ok");
    let found = |mode, options| runs(&after_ok(&states(&script, mode, options), "/new"));
    let mut expected =
        ["none", "", "04096", "x4096", "08192", "04096 y4096", "x4096 04096", "x4096 y4096"];
    expected.sort_unstable();
    assert_eq!(found("ordered", ""), expected);
    let with_data = ["", "04096 y4096", "none", "x4096", "x4096 y4096"];
    assert_eq!(found("ordered", "dioread_lock"), with_data);
    // Block by block, in order.
    for (mode, options) in [("ordered", "nodelalloc"), ("journal", "")] {
        assert_eq!(found(mode, options), ["", "none", "x4096", "x4096 y4096"], "{mode}");
    }
}

#[test]
fn writeback_shows_stale_blocks_unless_new_blocks_are_unwritten() {
    let is_stale =
        |content: &Option<Vec<u8>>| content.as_ref().is_some_and(|it| it.starts_with(b"STALE"));
    for (mode, options, expected) in [
        ("writeback", "dioread_lock", true),
        ("writeback", "nodelalloc", true),
        ("writeback", "", false),
        ("ordered", "dioread_lock", false),
        ("ordered", "nodelalloc", false),
    ] {
        let mut script = Script::default();
        script.create(2, "new").write(2, 0, NEW).print("ok");
        let found = after_ok(&states(&script, mode, options), "/new");
        assert_eq!(found.iter().any(is_stale), expected, "{mode} {options}");
        // Nothing of that is left once it is synced.
        script.sync(2).print("ay");
        let all = contents(&states(&script, mode, options), "/new").into_iter();
        let synced: Vec<_> = all.filter(|(printed, _)| printed == "okay").collect();
        assert_eq!(synced, [("okay".to_owned(), Some(NEW.to_vec()))], "{mode} {options}");
        // A write over them is torn as any other.
        let long =
            [&NEW.repeat(100)[..512], &b"STALE BYTES OF ANOTHER FILE.\n".repeat(100)].concat();
        let mut script = Script::default();
        script.create(2, "new").write(2, 0, &NEW.repeat(100)).print("ok");
        let torn = after_ok(&states(&script, mode, options), "/new").into_iter().flatten();
        let is_torn = |content: Vec<u8>| {
            content.len() > 512
                && content[..512] == long[..512]
                && content[512..].windows(5).any(|it| it == b"STALE")
        };
        assert_eq!(torn.into_iter().any(is_torn), expected, "{mode} {options}");
    }
}

/// Two files that are overwritten in turn: does the second show without the first?
fn out_of_order(mode: &str) -> bool {
    let (device, before) = base(&[("first", OLD), ("second", OLD)]);
    let mut script = Script::default();
    script.write(1, 0, b"NEW").write(2, 0, b"NEW").print("ok");
    let found = shown(&script.explorer(&(device, before), mode, ""), 1000);
    let is_new = |state: &Shown, path| state.tree.file(path).is_some_and(|it| it[..3] == *b"NEW");
    found.iter().any(|state| is_new(state, "/second") && !is_new(state, "/first"))
}

#[test]
fn overwrites_keep_their_order_in_the_journal_only() {
    assert!(out_of_order("ordered"));
    assert!(!out_of_order("journal"));
}

#[test]
fn an_overwrite_is_durable_before_the_metadata_that_came_earlier() {
    let mut script = Script::default();
    script.create(2, "new").write(1, 0, b"NEW").print("ok");
    let found = states(&script, "ordered", "");
    let both = |state: &&Shown| {
        state.tree.file("/old").unwrap().starts_with(b"NEW") && state.tree.file("/new").is_none()
    };
    assert!(found.iter().any(|state| both(&state)));
}

#[test]
fn direct_writes_wait_for_a_flush_and_their_size_for_the_journal() {
    let block = [b'd'; 4096];
    let mut script = Script::default();
    script.create(2, "new").direct(2, 0, &block).sync_data(2).direct(2, 0, &[b'e'; 4096]);
    script.print("ok");
    let found = after_ok(&states(&script, "ordered", ""), "/new");
    assert!(found.contains(&Some(block.to_vec())) && found.contains(&Some(vec![b'e'; 4096])));
    // Any sync flushes the device.
    script.create(3, "other").sync(3).print("ay");
    let all = contents(&states(&script, "ordered", ""), "/new").into_iter();
    let last: Vec<_> = all.filter(|(printed, _)| printed == "okay").collect();
    assert_eq!(last, [("okay".to_owned(), Some(vec![b'e'; 4096]))]);
}

/// 24 files of a megabyte, one after another, on 16 MiB: more steps than between two checkpoints.
#[test]
fn a_file_without_a_name_changes_and_gives_its_room_back() {
    let mut script = Script::default();
    for file in 2..26 {
        script.create(file, "temporary").remove(file, "temporary");
        for block in 0..16 {
            script.write(file, block << 16, &[b'x'; 1 << 16]);
        }
        let change = Attributes { mode: Some(0o600), ..Attributes::default() };
        script.call(Call::SetAttributes { file: FileId(file), change });
        let (name, value) = (b"user.a".to_vec(), Some(b"v".to_vec()));
        script.call(Call::SetXattr { file: FileId(file), name, value }).close(file);
    }
    script.create(100, "last").write(100, 0, NEW).sync(100).print("ok");
    let explorer = script.explorer(&base(&[("old", OLD)]), "ordered", "");
    let all = explorer.everything(script.trace.steps.len());
    let tree = Tree::read(&explorer.image(&all).unwrap()).unwrap();
    assert_eq!(tree.file("/last"), Some(NEW));
}

/// Two files of 8 MB in turns on 16 MiB: between two checkpoints the one goes and the other comes.
#[test]
fn a_state_needs_no_more_room_than_the_run() {
    let mut script = Script::default();
    script.create(2, "second").create(3, "first");
    for block in 0..126 {
        script.write(3, block << 16, &[b'x'; 1 << 16]);
    }
    script.truncate(3, 126 << 16, 0).sync(3);
    for block in 0..120 {
        script.write(2, block << 16, &[b'y'; 1 << 16]);
    }
    let explorer = script.explorer(&base(&[("old", OLD)]), "ordered", "");
    let all = explorer.everything(script.trace.steps.len());
    let tree = Tree::read(&explorer.image(&all).unwrap()).unwrap();
    assert_eq!(tree.file("/second").map(<[u8]>::len), Some(120 << 16));
}

#[test]
fn what_is_removed_stays_until_the_journal_says_so_and_is_gone_then() {
    let mut script = Script::default();
    script.remove(1, "old").print("ok");
    let found = after_ok(&states(&script, "ordered", ""), "/old");
    assert_eq!(found, [None, Some(OLD.to_vec())]);
    script.sync(0).print("ay");
    let states = states(&script, "ordered", "");
    assert!(
        states.iter().filter(|it| it.printed == "okay").all(|it| it.tree.file("/old").is_none())
    );
}

/// By what a state holds, whatever asked for it.
#[test]
fn states_are_counted_by_what_they_lack() {
    let kinds = |script: &Script, mode| {
        let explorer = script.explorer(&base(&[("old", OLD)]), mode, "");
        let mut kinds = std::collections::BTreeMap::new();
        for spec in explorer.states(1) {
            *kinds.entry(explorer.kind(&spec)).or_insert(0) += 1;
        }
        kinds.into_iter().collect::<Vec<_>>()
    };
    // Before the calls; after each, with it and without.
    let mut script = Script::default();
    script.create(2, "new").print("ok");
    let expected = [("metadata missing", 1), ("nothing missing", 3)];
    assert_eq!(kinds(&script, "ordered"), expected);
    // A write within a sector is not torn.
    let mut script = Script::default();
    script.write(1, 0, b"NEW").print("ok");
    for mode in ["ordered", "journal"] {
        assert_eq!(kinds(&script, mode), [("data missing", 1), ("nothing missing", 3)], "{mode}");
    }
    // Whatever a sync has written is not missing.
    let mut script = Script::default();
    script.write(1, 0, b"NEW").sync_data(1).print("ok");
    assert_eq!(kinds(&script, "ordered"), [("nothing missing", 3)]);
}

/// A database that says "ok" when its log is durable, with a file that does not matter.
#[test]
fn a_failing_state_becomes_small_and_is_described() {
    let mut script = Script::default();
    script.create(2, "noise").write(2, 0, &[b'n'; 20 * 4096]).create(3, "log");
    script.write(3, 0, NEW).print("ok").write(2, 0, b"more").create(4, "later");
    let explorer = script.explorer(&base(&[]), "ordered", "");
    let mut fails = |spec: &uext4_crashtest::model::StateSpec| {
        let tree = uext4_crashtest::model::Tree::read(&explorer.image(spec)?)?;
        let printed = !explorer.acknowledged(spec).is_empty();
        Ok(printed && tree.file("/log").is_some_and(|log| log != NEW))
    };
    let first = explorer.states(7).find(|spec| fails(spec).unwrap()).unwrap();
    let small = explorer.shrink(&first, &mut fails).unwrap();
    assert!(fails(&small).unwrap());
    let description = explorer.describe(&small);
    assert_eq!(description.steps.len(), 5, "{description:#?}");
    assert_eq!(description.not_begun, 2);
    assert_eq!(description.losses.len(), 1, "{description:#?}");
    assert_eq!(description.losses[0].path.as_deref(), Some("/log"));
    assert_eq!(description.steps[3].call, "write(/log, offset 0, 19 bytes)");
    assert_eq!(description.acknowledged, 2);
    let again = serde_json::from_str(&serde_json::to_string(&small).unwrap()).unwrap();
    assert_eq!(small, again);
}
