//! Words of ext4's mount that an fstab(5) written for the kernel may hold, and that mean nothing
//! here, or that are refused with the reason (Documentation/admin-guide/ext4.rst, ext4(5)).
//!
//! Invariants: no word is accepted whose effect a user could miss later: what would protect data or
//! limit users is refused.

use super::MountOptions;
use uext4_options::{Row, flag, ignored, one_of, refused};

/// Options of ext4 and of mount(8) without an effect.
pub const EXT4_WORDS: &[Row<MountOptions>] = &[
    Row {
        options: &[
            flag(&["user_xattr", "block_validity", "noblock_validity"], |_| {}),
            flag(&["journal_checksum", "nojournal_checksum"], |_| {}),
            flag(&["lazytime", "nolazytime", "iversion", "noiversion", "i_version"], |_| {}),
            ignored(&["init_itable", "noinit_itable", "inode_readahead_blks", "journal_ioprio"]),
            flag(&["prefetch_block_bitmaps", "no_prefetch_block_bitmaps"], |_| {}),
            flag(&["no_mbcache", "nombcache", "mblk_io_submit", "nomblk_io_submit"], |_| {}),
            flag(&["oldalloc", "orlov", "bh", "nobh", "reservation", "noreservation"], |_| {}),
            flag(&["debug", "nocheck", "warn_on_error", "nowarn_on_error"], |_| {}),
            flag(&["silent", "loud", "mand", "nomand"], |_| {}),
            one_of(&["check"], &[("none", |_| {})]),
            one_of(&["data_err"], &[("ignore", |_| {})]),
        ],
        default: "",
        help: "options of ext4 and mount(8) that change nothing here",
        more: "Checksums of the journal are those that its superblock asks for",
    },
    Row {
        options: &[refused(
            &["usrjquota", "grpjquota", "jqfmt"],
            "quota is kept in hidden files alone (the feature quota)",
        )],
        default: "",
        help: "refused: quota in files that have a name",
        more: "",
    },
    Row {
        options: &[
            refused(
                &["sb"],
                "only the first superblock is read; e2fsck -b repairs it from another",
            ),
            refused(&["test_dummy_encryption", "inlinecrypt"], "keys are given with key=FILE"),
            refused(&["nouser_xattr"], "attributes of users cannot be switched off"),
            refused(&["nouid32"], "owners have 32 bits here"),
            refused(&["max_dir_size_kb"], "directories have no limit here"),
            refused(&["nosymfollow"], "symbolic links are followed here"),
            refused(
                &["context", "fscontext", "defcontext", "rootcontext"],
                "labels of SELinux are those of the image",
            ),
            refused(&["abort"], "it is a test of the kernel's own"),
        ],
        default: "",
        help: "refused, with the reason",
        more: "",
    },
];
