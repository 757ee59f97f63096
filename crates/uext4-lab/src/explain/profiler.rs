//! What takes the CPU profile of a run: perf(1), else a sampler in this process.
//!
//! What: perf sees the kernel, all threads and all programs, as far as it is allowed to. Where it
//! is missing or forbidden, a load that this process makes is still seen from inside; one that
//! programs make is not. The sampler is in builds with the feature `sampler`.

use std::path::Path;

use crate::error::{Error, Result};
#[cfg(feature = "sampler")]
use crate::explain::inside::Sampler;
use crate::explain::stacks::{Keep, Recorder};

/// What takes a profile now.
pub(super) enum Profiler {
    Perf(Recorder),
    /// With the reason why it is not perf.
    #[cfg(feature = "sampler")]
    Inside(Sampler, String),
}

/// What was taken.
pub(super) struct Profile {
    /// Stacks, folded.
    pub(super) folded: String,
    /// What by.
    pub(super) by: String,
    /// Processor time that it took, beside that of the run.
    pub(super) cpu_s: f64,
}

impl Profiler {
    /// Begins, with files in this folder.
    ///
    /// # Errors
    /// None of them can look at the run.
    pub(super) fn begin(folder: &Path, has_programs: bool) -> Result<Self> {
        match Recorder::begin(folder) {
            Ok(recorder) => Ok(Self::Perf(recorder)),
            Err(why) if has_programs => Err(why),
            Err(why) => Self::inside(why),
        }
    }

    #[cfg(feature = "sampler")]
    fn inside(why: Error) -> Result<Self> {
        match Sampler::begin() {
            Ok(sampler) => Ok(Self::Inside(sampler, why.to_string())),
            Err(error) => Err(Error::new(format!("{why}; {error}"))),
        }
    }

    #[cfg(not(feature = "sampler"))]
    fn inside(why: Error) -> Result<Self> {
        Err(why)
    }

    /// The process that takes it, if that is not this one.
    pub(super) fn process(&self) -> Option<i32> {
        match self {
            Self::Perf(recorder) => Some(recorder.process()),
            #[cfg(feature = "sampler")]
            Self::Inside(..) => None,
        }
    }

    /// Ends it. The stacks that are to be kept are.
    ///
    /// # Errors
    /// What was seen cannot be had.
    pub(super) fn end(self, keep: &Keep) -> Result<Profile> {
        match self {
            Self::Perf(mut recorder) => {
                let cpu_s = recorder.end()?;
                Ok(Profile { folded: recorder.folded(keep)?, by: recorder.by(), cpu_s })
            }
            #[cfg(feature = "sampler")]
            Self::Inside(sampler, why) => {
                let by = format!("{} ({why})", Sampler::by());
                Ok(Profile { folded: sampler.folded()?, by, cpu_s: 0.0 })
            }
        }
    }
}
