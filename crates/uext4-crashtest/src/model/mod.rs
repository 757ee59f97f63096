//! What a loss of power could leave on the kernel's ext4: docs/crash-model.md.

pub mod description;
pub mod guarantees;
pub mod spec;

mod allows;
mod base;
mod contents;
mod describe;
mod explorer;
mod file_history;
mod generation;
mod history;
mod kind;
mod names;
mod options;
mod random;
mod replay;
mod shrink;
mod states;
mod tree;

pub use description::{Description, How, Loss, Progress, StepLine};
pub use explorer::Explorer;
pub use guarantees::{Guarantees, Mode};
pub use shrink::Fails;
pub use spec::{BlockChoice, Content, Rest, SizeChoice, StateSpec};
pub use states::States;
pub use tree::{Node, Tree};
