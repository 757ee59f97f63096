//! Sizes of what the loads that allocate do.

use crate::load::Form;

/// Bytes of an append of E1a, and of the file that is truncated.
const RECYCLED_APPEND: u64 = 8 << 10;
const RECYCLED_FILE: u64 = 1 << 20;
/// The image of E1a at full scale, in bytes.
const RECYCLED_IMAGE: u64 = 16 << 30;
/// Bytes of an append of E1b, its file, and its image at full scale, as the report had them.
const FILLED_APPEND: u64 = 4 << 10;
const FILLED_FILE: u64 = 1 << 30;
const FILLED_IMAGE: u64 = 200 << 30;
/// Smallest image: several block groups.
const IMAGE_MIN: u64 = 1 << 30;
/// In the second form of E1a a thread syncs its file after so many operations.
pub(crate) const SYNC_EVERY: u64 = 1000;

/// What the threads of a load do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendKind {
    /// E1a: files are truncated and grown again for a time.
    Recycle,
    /// E1b: files are filled once.
    Fill,
}

/// A load at a scale, for a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppendShape {
    pub(crate) threads: u32,
    pub(crate) kind: AppendKind,
    /// What is special about the run.
    pub(crate) form: Option<Form>,
    /// Bytes of an append.
    pub(crate) append_bytes: u64,
    /// Bytes that a file grows to.
    pub(crate) file_bytes: u64,
    pub(crate) image_bytes: u64,
}

impl AppendShape {
    pub(crate) fn new(kind: AppendKind, form: Option<Form>, threads: u32, scale: f64) -> Self {
        let scaled = |bytes: u64, least: u64| ((bytes as f64 * scale) as u64).max(least);
        if kind == AppendKind::Recycle {
            return Self {
                threads,
                kind,
                form,
                append_bytes: RECYCLED_APPEND,
                file_bytes: RECYCLED_FILE,
                image_bytes: scaled(RECYCLED_IMAGE, IMAGE_MIN).next_multiple_of(1 << 20),
            };
        }
        let file = scaled(FILLED_FILE, 64 * FILLED_APPEND);
        let image = scaled(FILLED_IMAGE, IMAGE_MIN).max(2 * u64::from(threads) * file);
        Self {
            threads,
            kind,
            form,
            append_bytes: FILLED_APPEND,
            file_bytes: file.next_multiple_of(FILLED_APPEND),
            image_bytes: image.next_multiple_of(1 << 20),
        }
    }

    /// The same on a file system with so many bytes free: files that take at most three fifths.
    pub(crate) fn within(self, free_bytes: u64) -> Self {
        let each = free_bytes / 5 * 3 / u64::from(self.threads) / self.append_bytes;
        let fits = each.max(1) * self.append_bytes;
        Self { file_bytes: self.file_bytes.min(fits), ..self }
    }

    /// Files of the load: a thread of E1a's second form has two, one of them with its neighbour.
    pub(crate) fn files(&self) -> u32 {
        if self.form == Some(Form::Foreign) { 2 * self.threads } else { self.threads }
    }

    /// Whether a file can have so many bytes in the end: E1b's is full, E1a's has what was appended
    /// since it was cut off.
    pub(crate) fn can_leave(&self, bytes: u64) -> bool {
        match self.kind {
            AppendKind::Fill => bytes == self.file_bytes,
            AppendKind::Recycle => {
                bytes <= self.file_bytes && bytes.is_multiple_of(self.append_bytes)
            }
        }
    }

    /// Name of a file in the root directory, as fio names those of E1b.
    pub(crate) fn name(file: u32) -> String {
        format!("job1.{file}.0")
    }

    /// Space that the images of a run take at most, in bytes. Nothing is written into the files:
    /// what counts is the journal, bitmaps and extents of one append each, in the image of the run
    /// and in those that runs start from.
    pub(crate) fn space_bytes(&self, bases: u32) -> u64 {
        let journal = (self.image_bytes / 64).clamp(4 << 20, 1 << 30);
        let extents = u64::from(self.files()) * self.file_bytes / self.append_bytes * 16;
        let aged = if self.form == Some(Form::Aged) { self.image_bytes / 1024 } else { 0 };
        let base = journal + self.image_bytes / 8192 + aged + (16 << 20);
        base * u64::from(1 + bases) + extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;

    #[test]
    fn full_size_is_that_of_the_reports() {
        let load = Load::find("E1b").unwrap();
        let shape = AppendShape::new(AppendKind::Fill, None, load.threads[0], 1.0);
        assert_eq!((shape.files(), shape.file_bytes, shape.append_bytes), (64, 1 << 30, 4096));
        assert_eq!((shape.image_bytes, AppendShape::name(7)), (200 << 30, "job1.7.0".into()));
        assert!(shape.space_bytes(1) <= load.space_bytes);
        let load = Load::find("E1a").unwrap();
        let shape = AppendShape::new(AppendKind::Recycle, Some(Form::Foreign), 64, 1.0);
        assert_eq!((shape.files(), shape.file_bytes, shape.append_bytes), (128, 1 << 20, 8192));
        assert!(shape.space_bytes(1) <= load.space_bytes);
    }

    #[test]
    fn a_scale_makes_files_and_images_smaller() {
        let shape = AppendShape::new(AppendKind::Fill, None, 8, 0.001);
        assert_eq!((shape.files(), shape.file_bytes, shape.image_bytes), (8, 1_077_248, 1 << 30));
        let tight = shape.within(1 << 20);
        assert_eq!(tight.file_bytes, 77_824);
        // E1a recycles files of one size.
        assert_eq!(AppendShape::new(AppendKind::Recycle, None, 8, 0.001).file_bytes, 1 << 20);
    }
}
