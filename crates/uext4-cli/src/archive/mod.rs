//! Trees that go into an image and out of it whole: what `import` and `export` have in common.
//!
//! What: [`import`] unpacks a tar stream into an image with several threads, [`export`] writes a
//! directory of an image as one, [`ownership`] says
//! which owners files get, [`mapped`] is a source of a copy whose owners are changed on the way.
//!
//! Invariants: an archive is hostile input. No symbolic link is followed on the way to where an
//! entry goes unless the user says so, and then only within the image. An entry that is refused or
//! fails is told in one line, and those behind it are still done.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod mapped;
pub(crate) mod ownership;
