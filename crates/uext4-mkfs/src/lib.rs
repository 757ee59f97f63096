//! Make ext4 file systems.
