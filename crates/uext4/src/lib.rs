//! ext4 in user space: the journaled, multi-threaded engine.
