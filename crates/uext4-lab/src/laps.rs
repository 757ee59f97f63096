//! Parts of a run of M1 to M6 that were timed, and their figures.

use std::time::Instant;

use crate::error::Result;
use crate::load::{Load, WARM_PASSES, Work};
use crate::plan::Figure;
use crate::report::DEFAULT;

/// Part of a run that was timed.
pub(crate) struct Lap {
    variant: &'static str,
    operations: u64,
    pub(crate) seconds: f64,
}

impl Lap {
    /// All of a run; it ends when what it changed is on the image.
    pub(crate) fn whole(operations: u64) -> Self {
        Self { variant: DEFAULT, operations, seconds: 0.0 }
    }

    pub(crate) fn time(
        variant: &'static str,
        operations: u64,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self> {
        let began = Instant::now();
        work()?;
        Ok(Self { variant, operations, seconds: began.elapsed().as_secs_f64() })
    }

    fn figure(&self, load: &Load) -> Figure {
        let value = match load.metric {
            "ops_per_s" => self.operations as f64 / self.seconds,
            _ => self.seconds,
        };
        Figure { variant: self.variant.into(), metric: load.metric, value }
    }
}

/// The laps of a load on small files, of which `pass` does one.
pub(crate) fn small_laps(
    work: Work,
    operations: u64,
    pass: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Lap>> {
    if work != Work::Stat {
        pass()?;
        return Ok(vec![Lap::whole(operations)]);
    }
    let fresh = Lap::time("fresh", operations, pass)?;
    let warm = Lap::time("default", operations * u64::from(WARM_PASSES), &mut || {
        (0..WARM_PASSES).try_for_each(|_| pass())
    })?;
    Ok(vec![fresh, warm])
}

/// The figures of laps; `whole` are processor time, memory and distance of small files, where they
/// are known.
pub(crate) fn figures(load: &Load, laps: &[Lap], whole: [Option<f64>; 3]) -> Vec<Figure> {
    let names = ["cpu_s", "peak_rss_kib", "neighbour_distance_kib"];
    let whole = names.into_iter().zip(whole).filter_map(|(metric, value)| {
        Some(Figure { variant: DEFAULT.into(), metric, value: value? })
    });
    laps.iter().map(|lap| lap.figure(load)).chain(whole).collect()
}

/// The variant of a part of a load: where that is not the whole of it, its name comes last.
pub(crate) fn lap_of(variant: &str, lap: &str) -> String {
    match (variant, lap) {
        (_, DEFAULT) => variant.to_owned(),
        (DEFAULT, _) => lap.to_owned(),
        _ => format!("{variant},{lap}"),
    }
}
