//! Loads on directories that fold case.
//!
//! Every name has two spellings. Where directories fold case a target looks names up by the other
//! one, and the generator makes names in either and changes their spelling by rename. Elsewhere
//! nothing here has an effect.

use uext4::{Error, InodeRef, Volume};
use uext4_ondisk::InodeFlags;

/// Whether the directories of a load fold case on this volume.
#[must_use]
pub fn folds(volume: &Volume) -> bool {
    volume.layout().encoding.is_some()
}

/// Lets an empty directory fold case, where the file system has the feature.
///
/// # Errors
/// Those of the volume.
pub fn fold(volume: &Volume, dir: &InodeRef) -> Result<(), Error> {
    if !folds(volume) {
        return Ok(());
    }
    volume.set_flags(dir, volume.flags(dir) | InodeFlags::CASEFOLD.bits())
}

/// The other spelling of a name, of another length if it has a sharp s. That of a name that is not
/// UTF-8 is the name itself, because it is equal to no other.
#[must_use]
pub fn other_spelling(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_vec() };
    let sharp = |c: char| if c == '\u{df}' { "SS".to_owned() } else { swap(c).to_string() };
    match text.contains("SS") {
        true => text.replace("SS", "\u{df}").chars().map(swap).collect::<String>(),
        false => text.chars().map(sharp).collect(),
    }
    .into_bytes()
}

fn swap(c: char) -> char {
    if c.is_ascii_uppercase() { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_spelling_of_the_other_one_is_the_name() {
        for name in ["n1", "N12 with BLANKS ", "n8 stra\u{df}e", "x"] {
            let other = other_spelling(name.as_bytes());
            assert_ne!(other, name.as_bytes());
            assert_eq!(other_spelling(&other), name.as_bytes());
        }
    }
}
