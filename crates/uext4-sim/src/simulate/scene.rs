//! What a seed draws for one life: when writes fail, which moments are judged, and of a narrow run
//! the few kinds of operation and the few files.

use super::part::{Part, Parts};
use super::plan::LifePlan;
use crate::generator::{Kinds, Limits};
use rand::Rng;
use rand::rngs::StdRng;
use std::time::Duration;

/// When writes fail, from the start of a life on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    /// For a stretch of time.
    Time { begin: Duration, length: Duration },
    /// If they are among some requests of the device.
    Requests { first: u64, count: u64 },
    /// Flushes alone, if they are among some.
    Flushes { first: u64, count: u64 },
}

/// What callers of a narrow run do, and with how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) kinds: Kinds,
    pub(super) nodes: usize,
    /// Largest file, in blocks.
    pub(super) blocks: u64,
}

impl Scene {
    pub(super) fn draw(rng: &mut StdRng, parts: Parts) -> Scene {
        let nodes = [2, 2, 6, 12, 30][rng.random_range(0..5)];
        let blocks = [3, 8, 24, 100][rng.random_range(0..4)];
        let (kinds, cuts) = (Kinds::draw(rng), rng.random_range(2..=8));
        // Errors are made while files are truncated.
        let kinds = if parts.has(Part::Trouble) { kinds.with(cuts, "resize") } else { kinds };
        Scene { kinds, nodes, blocks }
    }
}

/// Moments of a life, right after an operation of a caller, at which the power might have failed:
/// it goes on, and each image is judged as that of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnMoments {
    /// Behind one of so many operations,
    pub(super) one_of: u32,
    /// of syncs or of all.
    pub(super) of_syncs: bool,
    pub(super) most: usize,
}

impl DrawnMoments {
    pub(super) fn draw(rng: &mut StdRng) -> DrawnMoments {
        let one_of = [1, 3, 10, 25][rng.random_range(0..4)];
        let most = [0, 2, 4, 8][rng.random_range(0..4)];
        DrawnMoments { one_of, of_syncs: rng.random_ratio(3, 4), most }
    }
}

impl LifePlan {
    /// Of each caller.
    pub(super) fn limits(&self, block_size: u32) -> Limits {
        let limits = self.category.limits(block_size);
        match &self.scene {
            None => limits,
            Some(scene) => {
                let file_bytes = scene.blocks * u64::from(block_size);
                Limits { file_bytes, nodes: scene.nodes, names: scene.nodes as u32 + 8, ..limits }
            }
        }
    }
}
