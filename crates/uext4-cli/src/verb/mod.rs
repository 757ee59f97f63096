//! The verbs, one a file.

pub(crate) mod cat;
pub(crate) mod chattr;
pub(crate) mod cp;
pub(crate) mod encrypt;
pub(crate) mod extents;
pub(crate) mod frag;
pub(crate) mod freefrag;
pub(crate) mod fsck;
pub(crate) mod info;
pub(crate) mod lab;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod mkdir;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod mv;
pub(crate) mod quota;
pub(crate) mod rm;
pub(crate) mod stat;
pub(crate) mod stats;
pub(crate) mod sync;
pub(crate) mod trim;
pub(crate) mod tune;
pub(crate) mod umount;
pub(crate) mod verity;
