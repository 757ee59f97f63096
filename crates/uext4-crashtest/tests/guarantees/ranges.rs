//! Calls that have a range: syncs of a part of a file, and holes, zeros and shifts in it.

use crate::common::{BLOCK, Script, base, shown};
use crate::{OLD, after_ok, has, runs, states};

#[test]
fn a_write_with_o_dsync_makes_no_other_block_durable() {
    let zeros = vec![0; 3 * BLOCK];
    let mut script = Script::default();
    script.write(1, 0, &[b'd'; BLOCK]).write_synced(1, 2 * BLOCK as u64, &[b'c'; BLOCK]);
    script.print("ok");
    let explorer = script.explorer(&base(&[("old", &zeros)]), "ordered", "");
    let firsts: Vec<_> = after_ok(&shown(&explorer, 1000), "/old").into_iter().flatten().collect();
    assert!(firsts.iter().all(|content| content[2 * BLOCK..] == [b'c'; BLOCK]));
    for first in [0, b'd'] {
        assert!(firsts.iter().any(|content| content[..BLOCK] == [first; BLOCK]), "{first}");
    }

    // What another descriptor appended is a hole, and the end of the range is the size.
    let mut script = Script::default();
    script.create(2, "new").write(2, 0, &[b'a'; BLOCK]);
    script.write_synced(2, BLOCK as u64, &[b'b'; BLOCK]);
    script.write(2, 2 * BLOCK as u64, &[b'e'; BLOCK]).print("ok");
    let states = states(&script, "ordered", "");
    let hole = [vec![0; BLOCK], vec![b'b'; BLOCK]].concat();
    assert!(has(&states, "/new", "ok", Some(&hole)));
    let all = after_ok(&states, "/new").into_iter();
    assert!(all.flatten().all(|content| content.get(BLOCK..2 * BLOCK) == Some(&[b'b'; BLOCK])));
}

/// O_DSYNC of a block that had its place has nothing to commit: other blocks' places are not known
/// yet.
#[test]
fn a_write_with_o_dsync_waits_for_its_own_blocks_only() {
    for (mode, options, waits) in [("ordered", "", false), ("ordered", "nodelalloc", true)] {
        let mut script = Script::default();
        script.create(2, "new").write(1, 3 * BLOCK as u64, &[b'a'; BLOCK]);
        script.write_synced(1, 0, &[b'c'; BLOCK]).print("ok");
        let old = vec![b'o'; 3 * BLOCK];
        let found = shown(&script.explorer(&base(&[("old", &old)]), mode, options), 1000);
        assert_eq!(!has(&found, "/new", "ok", None), waits, "{mode} {options}");
        let all = after_ok(&found, "/old").into_iter().flatten();
        assert!(all.into_iter().all(|content| content[..BLOCK] == [b'c'; BLOCK]));
        // Its own new block, or all of the file, takes the rest along.
        for whole in [false, true] {
            let mut script = Script::default();
            script.create(2, "new").write(1, 3 * BLOCK as u64, &[b'a'; BLOCK]);
            match whole {
                true => script.sync_data(1),
                false => script.write_synced(1, 4 * BLOCK as u64, &[b'c'; BLOCK]),
            };
            script.print("ok");
            let found = shown(&script.explorer(&base(&[("old", &old)]), mode, options), 300);
            assert!(!has(&found, "/new", "ok", None), "{mode} {options}");
        }
    }
}

/// A write that makes the file longer allocates its new blocks late, and of the others only those
/// from the old end on are to wait for.
#[test]
fn a_write_with_o_dsync_over_an_old_block_does_not_wait_for_the_new_one_beside_it() {
    let found = |old: usize, written: u64, synced: u64, options: &str| {
        let mut script = Script::default();
        script.create(2, "new").write(1, written, &[b'a'; 2 * BLOCK]);
        script.write_synced(1, synced, &[b'c'; 100]).print("ok");
        shown(&script.explorer(&base(&[("old", &vec![b'o'; old])]), "ordered", options), 1000)
    };
    let block = BLOCK as u64;
    // Blocks 2 and 3 are written, of which 3 is new.
    for (synced, options, waits) in
        [(2, "", false), (3, "", true), (2, "nodelalloc", true), (2, "dioread_lock", false)]
    {
        let found = found(3 * BLOCK, 2 * block, synced * block, options);
        assert_eq!(!has(&found, "/new", "ok", None), waits, "{synced} {options}");
        for file in after_ok(&found, "/old").into_iter().flatten() {
            assert_eq!(file[(synced * block) as usize..][..100], [b'c'; 100]);
        }
    }
    // The file ended in block 0.
    let found = found(BLOCK / 2, 0, 0, "");
    assert!(!has(&found, "/new", "ok", None));
    assert!(after_ok(&found, "/old").into_iter().flatten().all(|file| file.len() >= BLOCK));
}

/// A rename over a file has allocated the blocks; what syncs any range of the file waits for that.
#[test]
fn a_write_with_o_dsync_waits_for_what_a_rename_or_a_close_has_allocated() {
    let synced = |script: &mut Script, options: &str| {
        script.write_synced(2, 0, &[b'c'; BLOCK]).print("ok");
        let found = states(script, "ordered", options);
        // The name may be the old one all the same.
        let all: Vec<_> = ["/temporary", "/old"].map(|path| after_ok(&found, path)).concat();
        let files = all.into_iter().flatten().filter(|file| file[..] != *OLD);
        let files: Vec<Vec<u8>> = files.collect();
        assert!(files.iter().all(|file| file[..BLOCK] == [b'c'; BLOCK]), "{options}");
        (
            has(&found, "/old", "ok", Some(OLD)),
            runs(&files.into_iter().map(Some).collect::<Vec<_>>()),
        )
    };
    let renamed = |options| {
        let mut script = Script::default();
        script.create(2, "temporary").write(2, 0, &[b'a'; BLOCK]).sync(2);
        script.write(2, BLOCK as u64, &[b'b'; BLOCK]).rename(2, "temporary", "old", Some(1));
        synced(&mut script, options)
    };
    let closed = |options| {
        let mut script = Script::default();
        script.create(2, "temporary").write(2, 0, &[b'a'; BLOCK]).truncate(2, BLOCK as u64, 0);
        script.write(2, 0, &[b'a'; BLOCK]).write(2, BLOCK as u64, &[b'b'; BLOCK]).close(2);
        synced(&mut script, options).1
    };
    let (whole, short) = ("c4096 b4096".to_owned(), "c4096".to_owned());
    let (is_lost, files) = renamed("");
    assert!(is_lost && files.contains(&whole) && !files.contains(&short), "{files:?}");
    let (is_lost, files) = renamed("noauto_da_alloc");
    assert!(is_lost && files.contains(&whole) && files.contains(&short), "{files:?}");
    // Its commit waits for the data.
    let (is_lost, mut files) = renamed("dioread_lock");
    files.dedup();
    assert!(is_lost && files == [whole.clone()], "{files:?}");
    assert!(!closed("").contains(&short));
    assert!(closed("noauto_da_alloc").contains(&short));
}

/// ZERO_RANGE marks blocks as unwritten and leaves them where they are.
#[test]
fn what_is_written_after_zero_range_may_be_there_before_the_mark() {
    let old = vec![b'o'; 2 * BLOCK];
    let found = |mode| {
        let mut script = Script::default();
        script.allocate(1, 16, 0, 2 * BLOCK as u64).write(1, 0, &[b'n'; BLOCK]).print("ok");
        let found = shown(&script.explorer(&base(&[("old", &old)]), mode, ""), 1000);
        runs(&after_ok(&found, "/old"))
    };
    let ordered = found("ordered");
    for content in ["o8192", "08192", "n4096 o4096", "n4096 04096"] {
        assert!(ordered.iter().any(|it| it == content), "{content}: {ordered:?}");
    }
    let is_torn = |it: &&String| it.contains('n') && it.contains('o') && *it != "n4096 o4096";
    assert!(ordered.iter().any(|it| is_torn(&it)), "{ordered:?}");
    // The block is not cleared before the mark.
    assert!(ordered.iter().all(|it| it != "04096 o4096"), "{ordered:?}");
    assert!(
        ordered.iter().all(|it| !(it.starts_with('o') && it.ends_with("04096"))),
        "{ordered:?}"
    );
    let journal = found("journal");
    assert!(["08192", "n4096 04096", "o8192"].iter().all(|it| journal.contains(&(*it).to_owned())));
    // Only the journal brings it.
    assert!(journal.iter().all(|it| !(it.contains('n') && it.contains('o'))), "{journal:?}");
}

/// Zeros beside a write go to the blocks that the file has then: not to those that it had before a
/// truncation.
#[test]
fn zeros_beside_a_write_are_not_those_of_blocks_that_were_given_away() {
    let (old, whole) = (vec![b'o'; 10 * BLOCK], 10 * BLOCK as u64);
    let mut script = Script::default();
    script.truncate(1, whole, 0).write(1, 0, &[b'a'; 10 * BLOCK]);
    script.allocate(1, 16, 0, whole).write(1, 0, &[b'n'; BLOCK]).print("ok");
    let found = shown(&script.explorer(&base(&[("old", &old)]), "journal", ""), 1000);
    let found: Vec<Vec<u8>> = after_ok(&found, "/old").into_iter().flatten().collect();
    assert!(found.contains(&old));
    let is_mixed = |file: &Vec<u8>| file.contains(&b'o') && *file != old;
    assert!(
        !found.iter().any(is_mixed),
        "{:?}",
        runs(&found.into_iter().map(Some).collect::<Vec<_>>())
    );
}

/// Where blocks are not converted after their data was written, the kernel zeroes what is marked
/// as unwritten beside a write, up to 32 KiB, and goes by no journal.
#[test]
fn what_is_marked_as_unwritten_beside_a_write_may_be_zeros_before_the_mark() {
    let found = |written: usize, (mode, options): (&str, &str), direct: bool| {
        let mut script = Script::default();
        script.allocate(1, 16, 0, 10 * BLOCK as u64);
        match direct {
            true => script.direct(1, (written * BLOCK) as u64, &[b'n'; BLOCK]),
            false => script.write(1, (written * BLOCK) as u64, &[b'n'; BLOCK]),
        };
        script.print("ok");
        let old = vec![b'o'; 10 * BLOCK];
        let found = shown(&script.explorer(&base(&[("old", &old)]), mode, options), 1000);
        after_ok(&found, "/old").into_iter().flatten().collect::<Vec<_>>()
    };
    let is_all =
        |file: &[u8], at: usize, byte: u8| file[at * BLOCK..][..BLOCK].iter().all(|it| *it == byte);
    for options in [("ordered", "dioread_lock"), ("ordered", "nodelalloc"), ("journal", "")] {
        for (written, near, far) in [(0, 7, 8..10), (9, 2, 0..2)] {
            let all = found(written, options, false);
            // All blocks have the mark or none.
            let has_mark = |file: &[u8]| !(0..10).any(|at| is_all(file, at, b'o'));
            let is_far = |file: &[u8]| far.clone().any(|at| is_all(file, at, 0));
            assert!(all.iter().any(|file| is_all(file, near, 0) && !has_mark(file)), "{options:?}");
            assert!(all.iter().all(|file| has_mark(file) || !is_far(file)), "{options:?}");
        }
    }
    // Not by default, nor where the data goes there first.
    for (options, direct) in [(("ordered", ""), false), (("ordered", "dioread_lock"), true)] {
        for file in found(0, options, direct) {
            let zeros = (1..10).filter(|at| is_all(&file, *at, 0)).count();
            assert!(zeros == 0 || zeros == 9, "{options:?}");
        }
    }
}

/// The zeros are no part of the journal, and it has no revoke record of them: seen beside the
/// kernel.
#[test]
fn a_replay_may_undo_zeros_beside_a_write_where_data_is_in_the_journal() {
    for (mode, options, is_undone) in [("journal", "", true), ("ordered", "nodelalloc", false)] {
        let mut script = Script::default();
        script.write(1, 0, &[b'j'; 2 * BLOCK]).sync(1).allocate(1, 16, 0, 3 * BLOCK as u64);
        script.write(1, 0, &[b'n'; BLOCK]).sync(1).print("ok");
        let explorer = script.explorer(&base(&[("old", &[b'o'; 3 * BLOCK])]), mode, options);
        let found = runs(&after_ok(&shown(&explorer, 1000), "/old"));
        assert!(found.contains(&"n4096 08192".to_owned()), "{found:?}");
        assert_eq!(found.contains(&"n4096 j4096 04096".to_owned()), is_undone, "{found:?}");
        // What the journal never had does not come back.
        assert!(found.iter().all(|it| !it.contains('o')), "{found:?}");
    }
}

/// The kernel zeroes it in three handles, and the journal may end after each.
#[test]
fn a_zeroed_range_whose_ends_lie_within_blocks_may_be_there_in_part() {
    let found = |mode, len: usize, end: usize| {
        let mut script = Script::default();
        script.allocate(1, 16, 100, end as u64 - 100).print("ok");
        let old = vec![b'o'; len];
        let found = shown(&script.explorer(&base(&[("old", &old)]), mode, ""), 1000);
        runs(&after_ok(&found, "/old"))
    };
    let zeroed = ["o100 08092 o4096", "o12288", "o4096 04096 o4096"];
    assert_eq!(found("journal", 3 * BLOCK, 2 * BLOCK), zeroed);
    // The page cache is written back whatever the journal has.
    let ordered = found("ordered", 3 * BLOCK, 2 * BLOCK);
    assert!(zeroed.iter().all(|it| ordered.iter().any(|found| found == it)), "{ordered:?}");
    // First comes the size.
    let longer = ["o100 09900", "o4096 04096 o808 01000", "o9000", "o9000 01000"];
    assert_eq!(found("journal", 9000, 10000), longer);
    // A range of whole blocks has one handle.
    let mut script = Script::default();
    script.allocate(1, 16, 0, 2 * BLOCK as u64).print("ok");
    let explorer = script.explorer(&base(&[("old", &[b'o'; 5000])]), "journal", "");
    assert_eq!(runs(&after_ok(&shown(&explorer, 1000), "/old")), ["08192", "o5000"]);
}

#[test]
fn truncates_and_holes_keep_the_order_of_the_journal() {
    let old = [b'o'; 3 * 4096];
    let (device, before) = base(&[("file", &old)]);
    let mut script = Script::default();
    // KEEP_SIZE and PUNCH_HOLE.
    script.allocate(1, 3, 4096, 4096).truncate(1, 3 * 4096, 4096).create(2, "later").print("ok");
    let found = shown(&script.explorer(&(device, before), "ordered", ""), 1000);
    for state in &found {
        let file = state.tree.file("/file").unwrap();
        assert!(file.len() == 4096 || file.len() == old.len());
        assert!(file.len() == 4096 || state.tree.file("/later").is_none());
    }
    let mut hole = old.to_vec();
    hole[4096..2 * 4096].fill(0);
    for content in [&old[..], &hole, &old[..4096]] {
        assert!(found.iter().any(|state| state.tree.file("/file") == Some(content)));
    }
}

#[test]
fn blocks_that_are_shifted_were_written_before() {
    let (device, before) = base(&[("file", &[b'o'; 3 * 4096])]);
    let mut script = Script::default();
    // COLLAPSE_RANGE.
    script.write(1, 2 * 4096, &[b'n'; 4096]).allocate(1, 8, 4096, 4096).print("ok");
    let found = shown(&script.explorer(&(device, before), "ordered", ""), 1000);
    let collapsed = [[b'o'; 4096], [b'n'; 4096]].concat();
    let mut files = found.iter().map(|state| state.tree.file("/file").unwrap());
    assert!(files.clone().any(|file| file == collapsed));
    assert!(files.all(|file| file.len() == 3 * 4096 || file == collapsed));
}
