//! Writes the first inputs of every target: structures of valid images, as they are.
//!
//! `seeds FOLDER` makes `FOLDER/TARGET/`.

#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;

/// Valid images, and structures of each.
const IMAGES: u8 = 10;
const STRUCTURES: u16 = 6;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()));
    for name in uext4_fuzz::targets() {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        for image in 0..IMAGES {
            for number in 0..STRUCTURES {
                let seed = uext4_fuzz::seed_of(name, image, number);
                fs::write(folder.join(format!("seed-{image}-{number}")), seed)?;
            }
        }
    }
    Ok(())
}
