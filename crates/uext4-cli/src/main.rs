//! The `uext4` command.

fn main() {}
