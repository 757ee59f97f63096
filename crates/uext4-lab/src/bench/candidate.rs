//! What is compared: targets with their mount options.

use crate::mkfs_option::MkfsOptions;
use crate::report::DEFAULT;
use crate::target::Target;

/// A target in a variant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) target: Target,
    /// `default`, or what is different, as figures name it.
    pub(crate) variant: String,
    /// Mount options, separated by commas.
    pub(crate) options: String,
    /// What its file system is made with beside the usual.
    pub(crate) mkfs: Option<MkfsOptions>,
}

impl Candidate {
    /// A target in a variant, which is `default` or mount options.
    pub(crate) fn new(target: Target, variant: &str) -> Self {
        let options = if variant == DEFAULT { "" } else { variant };
        Self { target, variant: variant.to_owned(), options: options.to_owned(), mkfs: None }
    }

    /// The same on a file system that is made with these.
    pub(crate) fn on(&self, mkfs: &MkfsOptions) -> Self {
        let variant = match &*self.variant {
            DEFAULT => mkfs.name(),
            variant => format!("{variant},{}", mkfs.name()),
        };
        Self { variant, mkfs: Some(mkfs.clone()), ..self.clone() }
    }
}
