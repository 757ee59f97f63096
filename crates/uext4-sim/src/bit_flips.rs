//! Damaged metadata that must not be believed.
//!
//! # Fault model
//! One bit of one block in use is wrong, as from a medium that lies; its checksum is not made to
//! fit. The volume is then walked and read read-only.
//!
//! # What must hold
//! An error, or nothing changed: names, inodes, attributes, sizes. File data and long targets of
//! symbolic links have no checksums, so their bytes may differ.
//!
//! # Not covered
//! Damage whose checksum fits; the superblock; the journal.

use crate::broken_syncs::BrokenSyncs;
use crate::category::Category;
use crate::content::FileBytes;
use crate::crash::campaign;
use crate::crash::digest::Used;
use crate::run::record;
use crate::view::View;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};

/// A valid image with something of everything.
///
/// # Errors
/// The run that makes it failed.
pub fn image(seed: u64) -> Result<MemoryDevice, String> {
    let mut plan = campaign::plan(Category::Mix, seed);
    plan.closes = true;
    plan.threads = 2;
    let run = record(&plan, BrokenSyncs::None)?;
    Ok(run.recording.prefix(run.recording.events().len()))
}

/// Damages the image `count` times, each time a fresh copy; what was believed though it was wrong.
///
/// # Errors
/// The image itself is not valid.
pub fn silent(image: &MemoryDevice, seed: u64, count: u32) -> Result<Vec<String>, String> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x00da_3a6e);
    let whole = open(Arc::new(image.snapshot()))?;
    let used = Used::of(&whole, image)?;
    let before = shape(View::read(&whole)?);
    let mut believed = Vec::new();
    for _ in 0..count {
        let block = used.blocks()[rng.random_range(0..used.blocks().len())];
        let at = block * used.block_size() + rng.random_range(0..used.block_size());
        let bit = rng.random_range(0..8);
        let device = image.snapshot();
        let mut byte = [0];
        let flip = device.read_at(at, &mut byte).and_then(|()| {
            byte[0] ^= 1 << bit;
            device.write_at(at, &byte)
        });
        flip.map_err(|error| error.to_string())?;
        let found = open(Arc::new(device)).and_then(|volume| View::read(&volume));
        if let Ok(view) = found {
            let after = shape(view);
            if after != before {
                let lines = before.differences(&after).join("; ");
                believed.push(format!("bit {bit} of byte {at} (block {block}): {lines}"));
            }
        }
    }
    Ok(believed)
}

fn open(device: SharedDevice) -> Result<Volume, String> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    Volume::open(device, options).map_err(|error| error.to_string())
}

/// The view without the bytes of files and of targets in blocks of their own.
fn shape(mut view: View) -> View {
    for seen in view.nodes.values_mut() {
        seen.target.fill(0);
        seen.content = FileBytes { size: seen.content.size, data: Vec::new() };
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_damaged_metadata_is_believed() {
        for seed in [7, 8] {
            let image = image(seed).unwrap();
            assert_eq!(silent(&image, seed, 400).unwrap(), [""; 0]);
        }
    }
}
