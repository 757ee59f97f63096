//! From the command line to the options of the library.

use uext4_mkfs::{Errors, FsType, Options};

use super::words::{self, Given};
use super::{Args, BlockSize, config};
use crate::failure::{Failure, Result};
use crate::spec::{Image, parse_size};

const NO_SIZE: &str =
    "not a size below 16E (KiB, or blocks with -b; or with a suffix s, K, M, G or T)";

/// The options; `-E offset=` changes the image.
pub(super) fn options(args: &Args, image: &mut Image) -> Result<Options> {
    let wrong = |why: String| Failure::line(&format!("mkfs: {why}"));
    let profile = config::given(args.config.as_deref())?;
    let of_file = profile.default_value("fs_type").map(str::to_owned);
    let fs_type = match args.fs_type.as_ref().or(of_file.as_ref()) {
        Some(name) => FsType::parse(name)
            .ok_or_else(|| wrong(format!("-t {name}: ext2, ext3 and ext4 are made")))?,
        None => FsType::Ext4,
    };
    if args.usage.iter().any(|usage| usage == "hurd") && !profile.has_type("hurd") {
        return Err(wrong("-T hurd: file systems for the GNU Hurd are not made".to_owned()));
    }
    if let Some(name) = args.creator.as_deref().filter(|name| !matches!(*name, "linux" | "0")) {
        return Err(wrong(format!("-o {name}: file systems for Linux are made")));
    }
    let errors = match args.errors.as_deref().map(|name| (name, Errors::parse(name))) {
        Some((name, None)) => {
            return Err(wrong(format!("-e {name}: want continue, remount-ro or panic")));
        }
        errors => errors.and_then(|(_, errors)| errors),
    };
    let mut options = Options {
        profile,
        block_size: args.block_size.and_then(BlockSize::exactly),
        block_size_min: args.block_size.and_then(BlockSize::at_least),
        cluster_size: args.cluster_size,
        inode_size: args.inode_size,
        inode_ratio: args.inode_ratio,
        // As of mke2fs, 0 is what follows from the bytes for each inode.
        inodes: args.inodes.filter(|inodes| *inodes > 0),
        reserved_percent: args.reserved,
        label: args.label.clone(),
        last_mounted: args.last_mounted.clone(),
        errors,
        uuid: args.uuid,
        fs_type: if args.with_journal { fs_type.with_journal() } else { fs_type },
        revision_0: args.revision == 0,
        features: args.features.join(","),
        blocks_per_group: args.blocks_per_group,
        flex_groups: args.flex_groups,
        usage: args.usage.clone(),
        only_plans: args.only_plan,
        ..Options::default()
    };
    let mut given = Given { options: &mut options, image };
    for (option, table, lists) in
        [("-J", words::JOURNAL, &args.journal), ("-E", words::EXTENDED, &args.extended)]
    {
        for word in lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            words::take(table, word, &mut given)
                .map_err(|why| wrong(format!("{option} {word}: {why}")))?;
        }
    }
    if let Some(text) = &args.size {
        let size = size(text, options.block_size);
        options.size = Some(size.ok_or_else(|| wrong(format!("{text}: {NO_SIZE}")))?);
    }
    Ok(options)
}

/// As mke2fs: a bare number counts blocks with `-b`, else KiB.
fn size(text: &str, block_size: Option<u32>) -> Option<u64> {
    match text.parse::<u64>() {
        Ok(count) => count.checked_mul(u64::from(block_size.unwrap_or(1024))),
        Err(_) => parse_size(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_mke2fs() {
        assert_eq!(size("100", None), Some(102_400));
        assert_eq!(size("100", Some(4096)), Some(409_600));
        assert_eq!(size("1M", Some(4096)), Some(1 << 20));
        assert_eq!(size("8s", None), Some(4096));
        assert_eq!(size("x", None), None);
    }
}
