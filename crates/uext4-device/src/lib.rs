//! Block devices for uext4: file, memory, and wrappers that record, fault and meter.
