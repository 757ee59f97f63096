//! Words of mount options.

use super::*;
use crate::config::DaxMode;
use crate::config::{Atime, FreeMode, OnError};

fn check(words: &[&str]) -> Result<MountOptions, OptionError> {
    let mut options = MountOptions::default();
    words.iter().try_for_each(|word| options.parse(word))?;
    Ok(options)
}

#[test]
fn words_of_ext4_are_taken() {
    let options =
        check(&["ro", "acl", "noatime", "commit=30", "cache=64M", "errors=panic"]).unwrap();
    assert!(options.read_only);
    assert_eq!(options.atime, Atime::None);
    assert_eq!(options.commit_interval_ms, 30_000);
    assert_eq!(options.cache_bytes, 64 << 20);
    assert_eq!(options.errors, Some(OnError::Panic));
}

#[test]
fn words_of_ext4_without_meaning_change_nothing_or_are_refused() {
    for word in ["user_xattr", "lazytime", "init_itable=5", "init_itable", "journal_checksum"] {
        assert_eq!(check(&[word]).unwrap(), MountOptions::default(), "{word}");
    }
    for word in ["jqfmt=vfsv1", "grpjquota=aquota.group", "abort", "sb=32768", "data_err=abort"] {
        let error = check(&[word]).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains("unknown"), "{error}");
    }
    assert!(
        check(&["minixdf"]).unwrap().minix_df && !check(&["minixdf", "bsddf"]).unwrap().minix_df
    );
    let owners = check(&["resuid=5", "resgid=4294967294"]).unwrap();
    assert_eq!((owners.reserve_uid, owners.reserve_gid), (Some(5), Some(u32::MAX - 1)));
    for word in ["resuid=root", "resgid=4294967295", "resuid=", "resuid"] {
        assert!(check(&[word]).unwrap_err().to_string().contains(word), "{word}");
    }
    assert!(check(&["sysvgroups", "grpid"]).unwrap().parent_group);
    assert!(!check(&["bsdgroups", "nogrpid"]).unwrap().parent_group);
}

#[test]
fn words_of_the_allocator_are_taken() {
    let words = ["mb_optimize_scan=0", "stripe=16", "mb_free=global", "mb_reserve=off"];
    let alloc = check(&words).unwrap().alloc;
    let ablation = &alloc.ablation;
    assert!(!ablation.optimize_scan && !ablation.preallocate && ablation.trylock);
    assert_eq!((alloc.stripe, ablation.free), (16, FreeMode::Global));
}

#[test]
fn async_commit_needs_another_data_mode() {
    assert!(check(&["journal_async_commit"]).unwrap().check().is_err());
    assert!(check(&["journal_async_commit", "data=writeback"]).unwrap().check().is_ok());
}

#[test]
fn journaled_data_is_not_delayed() {
    assert!(check(&["data=journal"]).unwrap().check().is_ok());
    assert!(check(&["data=journal", "delalloc"]).unwrap().check().is_err());
    assert!(check(&["delalloc", "nodelalloc", "data=journal"]).unwrap().check().is_ok());
}

#[test]
fn journaled_data_is_not_mapped() {
    assert!(check(&["data=journal", "dax=inode"]).unwrap().check().is_ok());
    assert!(check(&["data=journal", "dax"]).unwrap().check().is_err());
    assert_eq!(check(&["dax"]).unwrap().dax, DaxMode::Always);
}

#[test]
fn bad_words_are_named() {
    for (word, why) in [
        ("frobnicate", "unknown"),
        ("commit", "needs a value"),
        ("commit=x", "not a number of seconds"),
        ("cache=1", "8M to 16T"),
        ("cache=999999T", "8M to 16T"),
        ("cache=99999999999999999999T", "8M to 16T"),
        ("cache=M", "not a size (like 64M)"),
        ("commit=901", "0 to 900 seconds"),
        ("max_batch_time=99999999999", "0 to 60000000 microseconds"),
        ("extent_max_zeroout_kb=-1", "not a number of KiB"),
        ("stripe=4294967296", "0 to 2147483647"),
        ("data=x", "one of ordered, writeback, journal"),
        ("writeback", "one of mapped, ordered, unwritten"),
        ("barrier=2", "0 or 1"),
        ("dax=x", "one of always, inode, never"),
        ("dax_overwrite", "one of direct, journal"),
        ("mb_trylock", "0 or 1"),
        ("ro=1", "takes no value"),
        ("mb_order2_req=17", "0 to 16"),
        ("mb_stream_req=x", "not a number"),
        ("mb_free=none", "one of sharded, global"),
    ] {
        let error = check(&[word]).unwrap_err();
        assert_eq!(error.to_string(), format!("mount option '{word}': {why}"));
    }
}

#[test]
fn no_word_is_in_two_rows() {
    assert!(uext4_options::duplicates(OPTIONS).is_empty());
    assert!(uext4_options::duplicates(ABLATION).is_empty());
    assert!(uext4_options::duplicates(EXT4_WORDS).is_empty());
    let names = |rows: &[uext4_options::Row<MountOptions>]| -> Vec<&str> {
        let choices = rows.iter().flat_map(|row| row.options);
        choices.flat_map(|choice| choice.names.iter().copied()).collect()
    };
    let mut all = [names(OPTIONS), names(ABLATION), names(EXT4_WORDS)];
    for names in &mut all {
        names.sort_unstable();
        names.dedup();
    }
    let mut joined = all.concat();
    joined.sort_unstable();
    assert!(joined.windows(2).all(|pair| pair[0] != pair[1]), "{joined:?}");
}

/// Each default that is a word of the table, given by name, changes nothing.
#[test]
fn defaults_are_those_that_the_table_shows() {
    for row in OPTIONS.iter().chain(ABLATION) {
        let values: Vec<&str> = row.default.split(", ").collect();
        let choices = row.options.iter().filter(|choice| takes_a_value(choice));
        for (choice, value) in choices.zip(&values) {
            let word = format!("{}={value}", choice.names[0]);
            let Ok(mut options) = check(&[&word]) else {
                assert!(["errors", "key", "resuid", "resgid"].contains(&choice.names[0]), "{word}");
                continue;
            };
            options.dax_given = false;
            // The table says in words what no option names.
            (options.mmp_node, options.journal_path) = (None, None);
            assert_eq!(options, MountOptions::default(), "{word}");
        }
        for word in values.iter().filter(|word| row.forms().contains(&word.to_string())) {
            let mut options = check(&[word]).unwrap();
            options.delalloc_given = false;
            assert_eq!(options, MountOptions::default(), "{word}");
        }
    }
}

fn takes_a_value(choice: &uext4_options::Choice<MountOptions>) -> bool {
    use uext4_options::Value;
    matches!(choice.value, Value::OneOf(_) | Value::Text(..))
}
