//! Words behind `-E` and `-J`, as mke2fs takes them, in tables: name, value, help and effect. The
//! tables are also the lists of docs/mkfs.md.

use uext4_mkfs::{Length, Options};

use crate::spec::{Image, Part, parse_size};

use super::{NO_OFFSET, parse_uuid};

/// What words change.
pub(super) struct Given<'a> {
    pub(super) options: &'a mut Options,
    pub(super) image: &'a mut Image,
}

type Outcome<T = ()> = std::result::Result<T, &'static str>;

/// A word of a list.
pub(super) struct Word {
    name: &'static str,
    /// Its value, as help shows it.
    value: &'static str,
    help: &'static str,
    take: fn(&mut Given<'_>, Option<&str>) -> Outcome,
}

const fn word(
    name: &'static str,
    value: &'static str,
    help: &'static str,
    take: fn(&mut Given<'_>, Option<&str>) -> Outcome,
) -> Word {
    Word { name, value, help, take }
}

/// Words of `-J`.
pub(super) const JOURNAL: &[Word] = &[
    word("size", "=MEGABYTES", "Size of the journal", |to, value| {
        let megabytes = value.map(|value| value.trim_end_matches('M'));
        to.options.journal_mib = Some(number(megabytes, "not a number of MiB")?);
        Ok(())
    }),
    word("location", "=BLOCK", "Where it begins; bytes with a suffix", |to, value| {
        to.options.journal_location = Some(length(value)?);
        Ok(())
    }),
    word("fast_commit_size", "=KILOBYTES", "Part of it for fast commits", |to, value| {
        to.options.fast_commit_kib = Some(number(value, "not a number of KiB")?);
        Ok(())
    }),
    // Taken apart: `journal_path`.
    word("device", "=PATH", "A device made with `-O journal_dev` that has it", |_, value| {
        value.filter(|path| !path.is_empty()).map(|_| ()).ok_or("want a path")
    }),
];

/// Words of `-E`.
pub(super) const EXTENDED: &[Word] = &[
    word("stride", "=BLOCKS", "Blocks of a RAID on one disk before the next", |to, value| {
        to.options.stride = Some(number(value, "want blocks")?);
        Ok(())
    }),
    word("stripe_width", "=BLOCKS", "Blocks of a stripe of a RAID, without parity", |to, value| {
        to.options.stripe_width = Some(number(value, "want blocks")?);
        Ok(())
    }),
    word("resize", "=SIZE", "Size up to which it can grow while mounted", |to, value| {
        to.options.resize = Some(length(value)?);
        Ok(())
    }),
    word(
        "packed_meta_blocks",
        "[=0|1]",
        "Bitmaps, tables and journal at the start",
        |to, value| {
            to.options.packed_meta_blocks = Some(switch(value)?);
            Ok(())
        },
    ),
    word(
        "num_backup_sb",
        "=0|1|2",
        "Backups of the superblock, with sparse_super2",
        |to, value| {
            let count = number(value, "want 0, 1 or 2").ok().filter(|count| *count <= 2);
            to.options.backups = Some(count.ok_or("want 0, 1 or 2")?);
            Ok(())
        },
    ),
    word(
        "desc_size",
        "=BYTES",
        "Bytes of a group descriptor: 64, without 64bit 32",
        |to, value| {
            to.options.desc_size = Some(number(value, "want bytes")?);
            Ok(())
        },
    ),
    word(
        "root_owner",
        "[=UID:GID]",
        "Owner of the top directory; bare: the caller",
        |to, value| {
            to.options.root_owner = Some(root_owner(value).ok_or("want UID:GID")?);
            Ok(())
        },
    ),
    word("root_perms", "=MODE", "Mode of the top directory, octal; else 755", |to, value| {
        let mode = value.and_then(|value| u16::from_str_radix(value, 8).ok());
        to.options.root_mode =
            Some(mode.filter(|mode| *mode <= 0o7777).ok_or("want an octal mode")?);
        Ok(())
    }),
    word("hash_seed", "=UUID", "Start of the directories' hashes", |to, value| {
        let seed = value.and_then(|value| parse_uuid(value).ok());
        to.options.hash_seed = Some(seed.ok_or("want a UUID")?);
        Ok(())
    }),
    word("test_fs", "", "Flag it as one that developers test with", |to, value| {
        bare(value)?;
        to.options.is_test = true;
        Ok(())
    }),
    word("discard", "", "Ask the device to drop its content first, the default", |to, value| {
        bare(value)?;
        to.options.discard = Some(true);
        Ok(())
    }),
    word("nodiscard", "", "Leave what the device holds in free space", |to, value| {
        bare(value)?;
        to.options.discard = Some(false);
        Ok(())
    }),
    word(
        "assume_storage_prezeroed",
        "[=0|1]",
        "The device is zero: do not zero it",
        |to, value| {
            to.options.assume_zeroed = Some(switch(value)?);
            Ok(())
        },
    ),
    word(
        "lazy_itable_init",
        "[=0|1]",
        "Let the kernel zero the inode tables; else 0",
        |to, value| {
            to.options.lazy_itable_init = Some(switch(value)?);
            Ok(())
        },
    ),
    word("lazy_journal_init", "[=0|1]", "Leave the journal as it is; else 0", |to, value| {
        to.options.lazy_journal_init = Some(switch(value)?);
        Ok(())
    }),
    word("offset", "=BYTES", "Where in the image it begins, as IMAGE@OFFSET", |to, value| {
        let offset = value.and_then(parse_size).ok_or(NO_OFFSET)?;
        to.image.part = if offset == 0 { Part::Whole } else { Part::At(offset) };
        Ok(())
    }),
    word("quotatype", "=KIND[:KIND...]", "usrquota, grpquota, prjquota", |to, value| {
        let types = value.and_then(quota_types);
        to.options.quota_types = Some(types.ok_or("want usrquota:grpquota:prjquota")?);
        Ok(())
    }),
    word("mmp_update_interval", "=SECONDS", "Seconds between claims, with mmp", |to, value| {
        to.options.mmp_update_interval = Some(number(value, "want seconds, at most 300")?);
        Ok(())
    }),
    word("encoding", "=utf8", "Encoding of names; adds casefold", |to, value| match value {
        Some("utf8" | "utf8-12.1") => {
            to.options.encoding.get_or_insert_default();
            Ok(())
        }
        _ => Err("want utf8, which is utf8-12.1"),
    }),
    word("encoding_flags", "=strict|nostrict", "Whether names must be UTF-8", |to, value| {
        let options = &mut *to.options;
        if options.encoding.is_none() && !options.features.split(',').any(|it| it == "casefold") {
            return Err("give encoding= before it");
        }
        options.encoding.get_or_insert_default().strict = match value {
            Some("strict") => true,
            Some("nostrict") => false,
            _ => return Err("want strict or nostrict"),
        };
        Ok(())
    }),
    word(
        "orphan_file_size",
        "=SIZE",
        "Size of the orphan file, in blocks or bytes",
        |to, value| {
            to.options.orphan_file_size = Some(length(value)?);
            Ok(())
        },
    ),
];

/// The words of a list, for `--help` and the manual page.
pub(super) fn help(table: &[Word]) -> String {
    let lines = table.iter().map(|Word { name, value, help, .. }| format!("{name}{value}: {help}"));
    let lines: Vec<String> = lines.collect();
    format!("Words separated by commas:\n{}", lines.join("\n"))
}

/// Takes one word of a list.
pub(super) fn take(table: &[Word], text: &str, to: &mut Given<'_>) -> Outcome {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    // mke2fs has both spellings of some.
    let name = name.replace('-', "_");
    let known = table.iter().find(|word| word.name == name).ok_or("not supported")?;
    (known.take)(to, value)
}

fn bare(value: Option<&str>) -> Outcome {
    if value.is_some() { Err("takes no value") } else { Ok(()) }
}

/// As mke2fs: the bare word means 1.
fn switch(value: Option<&str>) -> Outcome<bool> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err("0 or 1"),
    }
}

fn number<T: std::str::FromStr>(value: Option<&str>, wrong: &'static str) -> Outcome<T> {
    value.and_then(|value| value.parse().ok()).ok_or(wrong)
}

/// Blocks, or with a suffix bytes.
fn length(value: Option<&str>) -> Outcome<Length> {
    let read = |text: &str| match text.parse() {
        Ok(blocks) => Some(Length::Blocks(blocks)),
        Err(_) => parse_size(text).map(Length::Bytes),
    };
    value.and_then(read).ok_or("want blocks, or a number with a suffix s, K, M, G or T")
}

/// The kinds of quota in a list of words.
fn quota_types(value: &str) -> Option<[bool; 3]> {
    let mut types = [false; 3];
    for word in value.split(':') {
        let words = ["usrquota", "grpquota", "prjquota"];
        types[words.iter().position(|known| *known == word)?] = true;
    }
    Some(types)
}

fn root_owner(value: Option<&str>) -> Option<(u32, u32)> {
    match value {
        Some(value) => {
            let (uid, gid) = value.split_once(':')?;
            Some((uid.parse().ok()?, gid.parse().ok()?))
        }
        None => {
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            Some((uid.as_raw(), gid.as_raw()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The options, from the definition of the command line.
    fn options() -> String {
        let command = crate::Command::command();
        let verb = command.find_subcommand("mkfs").expect("the verb");
        let mut table = String::from("\n| option | what it does |\n|---|---|\n");
        for arg in verb.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
            let short = arg.get_short().map(|short| format!("-{short}"));
            let long = arg.get_long().map(|long| format!("--{long}"));
            let names: Vec<String> = short.into_iter().chain(long).collect();
            let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
            let value = value.map(|names| format!(" {}", names[0])).unwrap_or_default();
            let help = arg.get_help().expect("each option says what it does");
            table.push_str(&format!("| `{}{value}` | {help} |\n", names.join("`, `")));
        }
        table + "\n"
    }

    fn words(table: &[Word]) -> String {
        let mut text = String::from("\n| word | what it does |\n|---|---|\n");
        for Word { name, value, help, .. } in table {
            let value = value.replace('|', "\\|");
            text.push_str(&format!("| `{name}{value}` | {help} |\n"));
        }
        text + "\n"
    }

    /// One test, because it may write the document.
    #[test]
    fn the_document_has_every_option_and_every_word() {
        crate::generated::check("docs/mkfs.md", "options", &options());
        crate::generated::check("docs/mkfs.md", "extended options", &words(EXTENDED));
        crate::generated::check("docs/mkfs.md", "journal options", &words(JOURNAL));
    }
}
