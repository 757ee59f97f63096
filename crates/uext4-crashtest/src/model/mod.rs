//! What a loss of power could leave on the kernel's ext4: docs/crash-model.md.

pub mod description;
pub mod guarantees;
pub mod spec;

pub use description::{Description, How, Loss, Progress, StepLine};
pub use guarantees::{Guarantees, Mode};
pub use spec::{BlockChoice, Content, Rest, SizeChoice, StateSpec};
