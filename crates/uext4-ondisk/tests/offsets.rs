//! Golden test: name, offset and size of every field of every raw type, compared with
//! `tests/offsets.txt`. A change there is a change of the format: it must be meant.

use std::fmt::Write as _;
use uext4_ondisk::journal::block::{
    RawBlockTag, RawBlockTag3, RawBlockTail, RawCommitHeader, RawJournalHeader, RawRevokeHeader,
};
use uext4_ondisk::journal::superblock::RawJournalSuperblock;
use uext4_ondisk::{
    acl, dir_entry, extent, group_desc, htree, inode, mmp, orphan, quota, superblock, xattr,
};

macro_rules! table {
    ($($path:path),* $(,)?) => {{
        let mut text = String::new();
        $({
            type Raw = $path;
            let name = stringify!($path).rsplit("::").next().unwrap_or_default().trim();
            writeln!(text, "{name} {}", size_of::<Raw>()).unwrap();
            for (field, offset, size) in Raw::FIELDS {
                writeln!(text, "{name}.{field} {offset} {size}").unwrap();
            }
        })*
        text
    }};
}

#[test]
fn offsets_are_those_of_the_committed_table() {
    let found = table!(
        superblock::RawSuperblock,
        group_desc::RawGroupDesc,
        inode::RawInode,
        extent::RawExtentHeader,
        extent::RawExtentIndex,
        extent::RawExtent,
        extent::RawExtentTail,
        dir_entry::RawDirEntry,
        dir_entry::RawDirEntryTail,
        htree::RawDxRootInfo,
        htree::RawDxEntry,
        htree::RawDxCountLimit,
        htree::RawDxTail,
        xattr::RawXattrHeader,
        xattr::RawXattrIbodyHeader,
        xattr::RawXattrEntry,
        acl::RawAclHeader,
        acl::RawAclEntryShort,
        acl::RawAclEntry,
        orphan::RawOrphanBlockTail,
        mmp::RawMmp,
        quota::RawQuotaHeader,
        quota::RawQuotaDataHeader,
        quota::RawQuotaEntry,
        RawJournalSuperblock,
        RawJournalHeader,
        RawBlockTag,
        RawBlockTag3,
        RawBlockTail,
        RawRevokeHeader,
        RawCommitHeader,
    );
    let golden = include_str!("offsets.txt");
    for (number, (want, found)) in golden.lines().zip(found.lines()).enumerate() {
        assert_eq!(want, found, "line {}", number + 1);
    }
    assert_eq!(golden.lines().count(), found.lines().count(), "found:\n{found}");
}
