//! The verbs of overlays, on overlays that were changed, over sound and damaged images.
//!
//! # What else is judged
//! An overlay that was not damaged, over an image that was not, is committed to a sound image.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use uext4::{MountOptions, NewInode, Volume};
use uext4_device::stored_overlay::{Layout, StoredOverlay, create};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::FileKind;
use uext4_ondisk::checksum::crc32c;
use zerocopy::little_endian::U32;

use crate::fsck_diff::Cases;
use crate::hostile::sound::unsound;
use crate::hostile::yard::Call;
use crate::hostile::{Effect, Outcome, Yard};
use crate::structure_damage::Mutator;

use Effect::{Changes, Reads};

/// Calls on `o.ovl`, an overlay of `i.img`; what they may do to the image.
pub const CALLS: &[(Effect, &str)] = &[
    (Reads, "overlay info o.ovl"),
    (Reads, "overlay info --json o.ovl"),
    (Reads, "overlay discard o.ovl"),
    (Changes, "overlay commit o.ovl i.img"),
];

/// The header of an overlay: its length, and where its checksum stands.
const HEADER: (usize, usize) = (512, 508);

/// Overlays by number, and where the command is called on them.
#[derive(Debug)]
pub struct Trial {
    cases: Cases,
    yard: Yard,
}

impl Trial {
    /// Makes the sound images whose mke2fs options contain `word`, for calls of `binary`.
    ///
    /// # Errors
    /// None of them does; e2fsprogs are missing or fail.
    pub fn new(binary: &Path, word: &str) -> io::Result<Self> {
        Ok(Self { cases: Cases::with(word)?, yard: Yard::new(binary)? })
    }

    /// Calls every verb on the overlay of a case; each gets it as it was.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn case(&self, case: u64) -> io::Result<Outcome> {
        let mut mutator = Mutator::new(case);
        let (device, what) = match mutator.below(3) {
            0 => self.cases.damaged(case),
            _ => self.sound(case, &mut mutator),
        };
        let work = self.yard.work();
        let (image, overlay) = (work.join("i.img"), work.join("o.ovl"));
        device.save(&image)?;
        made(&device)?.save(&overlay)?;
        let bytes = fs::read(&overlay)?;
        let mut changed = bytes.clone();
        let done = damage(&mut changed, &mut mutator, device.len());
        let is_sound = changed == bytes && unsound(&image).is_none();
        let mut outcome =
            Outcome { what: format!("{what}; overlay: {done}"), ..Outcome::default() };
        for (effect, words) in CALLS {
            fs::write(&overlay, &changed)?;
            let call = Call { material: "overlay", words, input: None, effect: *effect };
            self.yard.call(&call, &mut outcome)?;
        }
        if is_sound && let Some(fault) = unsound(&image) {
            outcome.faults.push(format!("uext4 overlay commit: {fault}"));
        }
        fs::remove_file(overlay)?;
        Ok(outcome)
    }

    fn sound(&self, case: u64, mutator: &mut Mutator) -> (MemoryDevice, String) {
        let bases: Vec<_> = self.cases.bases().collect();
        let (shape, device) = mutator.pick(&bases);
        (device.snapshot(), format!("case {case} ({shape})"))
    }
}

/// An overlay of an image in which a file was written, as far as the image allows.
fn made(image: &MemoryDevice) -> io::Result<MemoryDevice> {
    let layout = Layout::new(image.len()).map_err(io::Error::other)?;
    let store = Arc::new(MemoryDevice::new(layout.store_len()));
    create(&*store, image, b"i.img").map_err(io::Error::other)?;
    let base: SharedDevice = Arc::new(image.snapshot());
    let overlay = StoredOverlay::open(store.clone(), base).map_err(io::Error::other)?;
    if let Ok(volume) = Volume::open(Arc::new(overlay), MountOptions::default()) {
        // What a damaged image refuses is not in the overlay.
        let _ = write(&volume);
        let _ = volume.close();
    }
    Ok(store.snapshot())
}

fn write(volume: &Volume) -> uext4::Result<()> {
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        owner: uext4::Owner::default(),
        rdev: uext4::Device::default(),
    };
    let file = volume.create(&volume.root()?, b"of the overlay", &new)?;
    volume.open_file(&file)?.write_at(0, &[7; 20_000])?;
    Ok(())
}

/// Changes most overlays; says how.
fn damage(bytes: &mut Vec<u8>, mutator: &mut Mutator, base_len: u64) -> String {
    let len = bytes.len();
    match mutator.below(8) {
        0..3 => "as it was".to_owned(),
        3 => {
            bytes.truncate(mutator.below(len));
            "cut".to_owned()
        }
        4 | 5 => {
            // The bits of what is held, behind the header and the name.
            let used = usize::try_from(base_len / 8 / 4096).unwrap_or(0);
            for byte in bytes[4096..].iter_mut().take(used) {
                *byte |= u8::try_from(mutator.below(256)).unwrap_or(0);
            }
            "more held than was written".to_owned()
        }
        _ => {
            let field = mutator.below(90);
            for byte in bytes[field..].iter_mut().take(1 + mutator.below(8)) {
                *byte = u8::try_from(mutator.below(256)).unwrap_or(0);
            }
            if mutator.below(2) == 0 {
                // A commit that was cut off.
                bytes[32] = 1;
            }
            let sum = !crc32c(!0, &bytes[..HEADER.1]);
            bytes[HEADER.1..HEADER.0].copy_from_slice(&U32::new(sum).to_bytes());
            format!("header at {field}")
        }
    }
}
