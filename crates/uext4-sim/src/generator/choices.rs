//! Which operations a category takes, and how often.

use super::{Choice, Generator};
use crate::category::Category;

const ALL: &[Choice] = &[
    (10, Generator::create),
    (4, Generator::symlink),
    (4, Generator::link),
    (7, Generator::unlink),
    (2, Generator::rmdir),
    (10, Generator::rename),
    (5, Generator::attribute),
    (6, Generator::xattr),
    (24, Generator::write),
    (6, Generator::resize),
    (8, Generator::range),
    (4, Generator::hold),
    (5, Generator::check),
    (12, Generator::sync),
];
const REPLACE_SYNCED: &[Choice] =
    &[(8, Generator::replace_synced), (1, Generator::unlink), (1, Generator::check)];
const REPLACE_UNSYNCED: &[Choice] = &[
    (8, Generator::replace_unsynced),
    (1, Generator::unlink),
    (1, Generator::write),
    (1, Generator::sync),
];
const APPEND: &[Choice] = &[
    (1, Generator::create_file),
    (12, Generator::append_synced),
    (2, Generator::append),
    (1, Generator::resize),
];
const TRUNCATE: &[Choice] = &[
    (2, Generator::create_file),
    (6, Generator::resize),
    (5, Generator::write),
    (3, Generator::sync),
    (1, Generator::check),
];
const UNWRITTEN: &[Choice] = &[
    (2, Generator::create_file),
    (6, Generator::overwrite_unwritten),
    (4, Generator::overwrite_hole),
    (1, Generator::resize),
    (2, Generator::sync),
];
const PUNCH: &[Choice] = &[
    (2, Generator::create_file),
    (6, Generator::punch_and_fill),
    (2, Generator::write),
    (2, Generator::sync),
    (1, Generator::check),
];
const SHIFT: &[Choice] = &[
    (2, Generator::create_file),
    (7, Generator::shift),
    (4, Generator::write),
    (2, Generator::allocate),
    (1, Generator::punch_and_fill),
    (1, Generator::resize),
    (2, Generator::sync),
    (1, Generator::check),
];
const UNLINK_OPEN: &[Choice] =
    &[(6, Generator::unlink_open), (5, Generator::release), (3, Generator::write)];
const TREE: &[Choice] = &[
    (10, Generator::make_directory),
    (2, Generator::create_file),
    (1, Generator::symlink),
    (6, Generator::rmdir),
    (3, Generator::unlink),
    (5, Generator::rename),
    (1, Generator::attribute),
    (2, Generator::sync),
];
const LINKS: &[Choice] = &[
    (3, Generator::create_file),
    (9, Generator::link),
    (7, Generator::unlink),
    (4, Generator::rename),
    (1, Generator::make_directory),
    (2, Generator::sync),
];
const XATTRS: &[Choice] = &[
    (2, Generator::create_file),
    (1, Generator::make_directory),
    (14, Generator::xattr),
    (2, Generator::unlink),
    (2, Generator::attribute),
    (2, Generator::sync),
];
const HTREE: &[Choice] = &[
    (12, Generator::create_own),
    (1, Generator::link),
    (3, Generator::unlink),
    (2, Generator::rename),
    (1, Generator::sync),
];
const RECYCLE: &[Choice] =
    &[(2, Generator::create_held), (8, Generator::recycle), (1, Generator::release)];
const DIRECT: &[Choice] = &[
    (2, Generator::create_held),
    (10, Generator::write_directly),
    (4, Generator::write_directly_synced),
    (2, Generator::write),
    (2, Generator::allocate),
    (1, Generator::resize),
    (2, Generator::punch_and_fill),
    (2, Generator::shift),
    (2, Generator::sync),
    (1, Generator::check),
    (1, Generator::release),
];
const DAX: &[Choice] = &[
    (2, Generator::create_held),
    (8, Generator::write),
    (4, Generator::write_directly),
    (4, Generator::write_directly_synced),
    (2, Generator::allocate),
    (3, Generator::resize),
    (3, Generator::punch_and_fill),
    (3, Generator::shift),
    (3, Generator::sync),
    (1, Generator::check),
    (1, Generator::release),
];
const OVERLAY: &[Choice] = &[
    (2, Generator::create),
    (8, Generator::make_unlinked),
    (8, Generator::rename_leaving_whiteout),
    (2, Generator::rename),
    (1, Generator::link),
    (5, Generator::unlink),
    (1, Generator::rmdir),
    (1, Generator::attribute),
    (2, Generator::set_flags),
    (2, Generator::release),
    (1, Generator::sync),
];
/// No punching and zeroing: a refused one may have done a part, which nobody could tell.
const NO_SPACE: &[Choice] = &[
    (8, Generator::create),
    (3, Generator::symlink),
    (2, Generator::link),
    (3, Generator::unlink),
    (4, Generator::rename),
    (4, Generator::xattr),
    (12, Generator::write),
    (3, Generator::resize),
    (3, Generator::allocate),
    (2, Generator::check),
    (3, Generator::sync),
];

/// The mix of a category.
pub(super) fn choices(category: Category) -> &'static [Choice] {
    match category {
        Category::ReplaceSynced => REPLACE_SYNCED,
        Category::ReplaceUnsynced => REPLACE_UNSYNCED,
        Category::Append | Category::Storm => APPEND,
        Category::Truncate => TRUNCATE,
        Category::Unwritten => UNWRITTEN,
        Category::Punch => PUNCH,
        Category::Shift => SHIFT,
        Category::Overlay => OVERLAY,
        Category::UnlinkOpen => UNLINK_OPEN,
        Category::Tree => TREE,
        Category::Links => LINKS,
        Category::Xattrs => XATTRS,
        Category::Htree => HTREE,
        Category::Recycle => RECYCLE,
        Category::Direct => DIRECT,
        Category::Dax => DAX,
        Category::NoSpace => NO_SPACE,
        Category::Mix => ALL,
    }
}
