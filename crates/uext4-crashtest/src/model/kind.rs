//! What sort of a loss a state is.

use crate::model::contents::Choices;
use crate::model::description::How;
use crate::model::explorer::Explorer;
use crate::model::spec::StateSpec;
use crate::trace::{Call, Step};

impl Explorer {
    /// What a state lacks of what the program had done when the power failed, in words. Not what
    /// its spec asks for: a choice that changes nothing is none.
    #[must_use]
    pub fn kind(&self, spec: &StateSpec) -> &'static str {
        let (moment, promises) = self.moment(spec);
        let structure = &self.history().structure;
        let before = |position| structure.partition_point(|step| *step < position);
        // Of a write the blocks tell it.
        let is_allocation = |last: &Step| matches!(last.call, Call::Allocate { .. });
        let last = moment.committed.checked_sub(1).map(|last| &self.steps()[last]);
        let lacks_a_part = moment.part.is_some() && last.is_some_and(is_allocation);
        let lacks_metadata = lacks_a_part || before(moment.committed) < before(moment.crash);
        let choices = Choices::of(spec);
        let mut losses = Vec::new();
        for (id, file) in &self.history().files {
            if file.last_change.is_none() || !file.has_name(moment.committed) {
                continue;
            }
            if let Some(picked) = self.history().pick(*id, &choices, moment, &promises) {
                self.losses(*id, &picked, moment.crash, None, &mut losses);
            }
        }
        let has = |how| losses.iter().any(|loss| loss.how == how);
        match (lacks_metadata, !losses.is_empty()) {
            _ if has(How::Torn) => "torn writes",
            _ if has(How::Stale) => "stale blocks",
            (true, true) => "metadata and data missing",
            (true, false) => "metadata missing",
            (false, true) => "data missing",
            (false, false) => "nothing missing",
        }
    }
}
