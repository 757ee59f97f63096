//! Sizes and names of what a load that syncs writes to.

/// Bytes of a write, and of the unit in which places are drawn.
pub(crate) const BLOCK: usize = 16 << 10;
/// Journal of E0 where no other is asked for, and of E3, in MiB.
pub(crate) const JOURNAL_MIB: u32 = 128;
/// Bytes of a file of E0 at full scale, as the report of the collapse had them.
const OWN_FILE_BYTES: u64 = 28_800_000;
/// Most bytes of a file of S1 at full scale.
const APPENDED_FILE_BYTES: u64 = 1 << 30;
/// Bytes of the one file of E3.
const SHARED_FILE_BYTES: u64 = 1 << 20;
/// Name of the fio job of E0: fio derives names of files from it.
pub(crate) const OWN_JOB: &str = "16kb_rand_write_only_2048_jobs";
/// Name of the one file of E3.
const SHARED_NAME: &str = "one_file";

/// What the threads of a load write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StormKind {
    /// E0: each thread to a file of its own that was only allocated.
    Own,
    /// E3: all threads to one file that was written.
    Shared,
    /// S1: each thread to a new file of its own, from its begin to its end.
    Append,
}

/// A load at a scale, for a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StormShape {
    pub(crate) kind: StormKind,
    pub(crate) threads: u32,
    pub(crate) journal_mib: u32,
    /// Length of each file, in bytes.
    pub(crate) file_bytes: u64,
}

impl StormShape {
    pub(crate) fn new(kind: StormKind, threads: u32, journal_mib: u32, scale: f64) -> Self {
        let block = BLOCK as u64;
        // At least so many blocks that a thread has something to choose from.
        let scaled = |full: u64| match scale < 1.0 {
            true => ((full as f64 * scale) as u64 / block * block).max(8 * block),
            false => full,
        };
        let file_bytes = match kind {
            StormKind::Own => scaled(OWN_FILE_BYTES),
            StormKind::Shared => SHARED_FILE_BYTES,
            StormKind::Append => scaled(APPENDED_FILE_BYTES),
        };
        Self { kind, threads, journal_mib, file_bytes }
    }

    fn is_shared(&self) -> bool {
        self.kind == StormKind::Shared
    }

    /// Whole blocks of a file: the places that are written.
    pub(crate) fn blocks(&self) -> u32 {
        u32::try_from(self.file_bytes / BLOCK as u64).unwrap_or(u32::MAX)
    }

    pub(crate) fn files(&self) -> u32 {
        if self.is_shared() { 1 } else { self.threads }
    }

    /// The file that a thread writes to.
    pub(crate) fn file_of(&self, thread: u32) -> u32 {
        if self.is_shared() { 0 } else { thread }
    }

    /// Name of a file in the root directory.
    pub(crate) fn name(&self, file: u32) -> String {
        if self.is_shared() { SHARED_NAME.to_owned() } else { format!("{OWN_JOB}.{file}.0") }
    }

    /// The file of that name.
    pub(crate) fn file_named(&self, name: &str) -> Option<u32> {
        if self.is_shared() {
            return (name == SHARED_NAME).then_some(0);
        }
        name.strip_prefix(OWN_JOB)?.strip_prefix('.')?.strip_suffix(".0")?.parse().ok()
    }

    /// Bytes of all files.
    pub(crate) fn data_bytes(&self) -> u64 {
        u64::from(self.files()) * self.file_bytes.next_multiple_of(4096)
    }

    /// Length of an image that holds them: small file systems have inode tables of a sixteenth.
    pub(crate) fn image_bytes(&self) -> u64 {
        let data = self.data_bytes();
        (data + data / 8 + self.journal_bytes() + (128 << 20)).next_multiple_of(1 << 20)
    }

    /// The same of a file system that is made in another way: with small blocks a journal must be
    /// less than half of it.
    pub(crate) fn roomy_image_bytes(&self) -> u64 {
        self.image_bytes() + self.journal_bytes()
    }

    /// Space that one run takes at most, in bytes, if each thread makes at most so many writes and
    /// runs start from so many images. They are sparse and the files only allocated, so this is
    /// what is written.
    pub(crate) fn space_bytes(&self, operations: Option<u32>, bases: u32) -> u64 {
        let written = operations
            .map_or(u64::MAX, |count| u64::from(self.threads) * u64::from(count) * BLOCK as u64);
        // The log, inode tables and mapping of the run's image and of those that are copied.
        let metadata = self.journal_bytes() + self.data_bytes() / 128 + (32 << 20);
        written.min(self.data_bytes()) + u64::from(1 + bases) * metadata
    }

    fn journal_bytes(&self) -> u64 {
        u64::from(self.journal_mib) << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;

    #[test]
    fn full_size_is_that_of_the_report() {
        let load = Load::find("E0").unwrap();
        let shape = StormShape::new(StormKind::Own, load.threads[0], JOURNAL_MIB, 1.0);
        assert_eq!(
            (shape.files(), shape.blocks(), shape.data_bytes()),
            (2048, 1757, 58_988_691_456)
        );
        assert_eq!(shape.name(7), "16kb_rand_write_only_2048_jobs.7.0");
        assert_eq!(shape.file_named(&shape.name(7)), Some(7));
        let told = load.space_bytes as f64 / shape.space_bytes(None, 1) as f64;
        assert!((0.99..1.01).contains(&told), "{}", shape.space_bytes(None, 1));
        // 30 writes of each thread take 1 GB, not 59.
        assert!(shape.space_bytes(Some(30), 1) < 3_000_000_000);
    }

    #[test]
    fn a_scale_makes_files_smaller_but_not_fewer() {
        let shape = StormShape::new(StormKind::Own, 8, 4, 0.000_1);
        assert_eq!((shape.files(), shape.blocks()), (8, 8));
        let shape = StormShape::new(StormKind::Shared, 16, 4, 0.1);
        assert_eq!((shape.files(), shape.blocks(), shape.file_of(5)), (1, 64, 0));
    }
}
