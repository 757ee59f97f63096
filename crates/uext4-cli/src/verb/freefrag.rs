//! `uext4 freefrag`: how free space lies, as e2freefrag(8) prints it. Free is what the bitmaps of
//! blocks call free, after a replay of the journal.

use std::ffi::OsString;

use serde::Serialize;
use uext4::{GroupNo, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::output::Output;
use crate::spec::Image;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 freefrag disk.img", "free runs by their size"),
    ("uext4 freefrag -c 2048 disk.img", "how many whole chunks of 2 MiB are free"),
    ("uext4 freefrag --json /dev/sdb1", "figures of a device for programs"),
];

/// Show how the free space of an image is fragmented
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Count whole free chunks of this many KiB (a power of two, at least a block), too
    #[arg(short, value_name = "CHUNK_KB", value_parser = power_of_two)]
    chunk_kb: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
}

fn power_of_two(text: &str) -> std::result::Result<u64, String> {
    match text.parse::<u64>() {
        Ok(kb) if kb.is_power_of_two() && kb <= 1 << 40 => Ok(kb),
        _ => Err("want a power of two".to_owned()),
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    let volume = image::volume("freefrag", &image, Access::Read)?;
    let (blocks, block_size) = (volume.layout().blocks_count, volume.layout().block_size);
    let block_size = u64::from(block_size);
    let chunk_blocks = match args.chunk_kb.map(|kb| kb * 1024 / block_size) {
        Some(0) => {
            let why = format!("a chunk is smaller than a block of {block_size} bytes");
            return Err(Why::new(why).at("freefrag", &image));
        }
        chunk => chunk,
    };
    let mut survey = FreeSpace::new(blocks, block_size, chunk_blocks);
    scan(&volume, &mut survey).at("freefrag", &image)?;
    let mut output = Output::new();
    if args.json {
        output.json(&survey.shape(&image.to_string()))?;
    } else {
        for line in survey.lines(&image.to_string()) {
            output.line(&line)?;
        }
    }
    output.finish()
}

/// Feeds the survey with all free runs, those that go on over the end of a group as one.
fn scan(volume: &Volume, survey: &mut FreeSpace) -> std::result::Result<(), Why> {
    let mut open: Option<(u64, u64)> = None;
    for group in 0..volume.layout().group_count {
        for run in volume.free_runs(GroupNo(group))? {
            let (start, end) = (run.start.get(), run.end().get());
            match &mut open {
                Some((_, open_end)) if *open_end == start => *open_end = end,
                _ => {
                    if let Some((start, end)) = open.replace((start, end)) {
                        survey.add(start, end);
                    }
                }
            }
        }
    }
    if let Some((start, end)) = open {
        survey.add(start, end);
    }
    Ok(())
}

/// Size classes of the histogram; the last takes whatever is longer.
const CLASSES: usize = 32;

/// What is told of free space.
struct FreeSpace {
    blocks: u64,
    block_size: u64,
    chunk_blocks: Option<u64>,
    free: u64,
    free_chunks: u64,
    runs: u64,
    shortest: u64,
    longest: u64,
    /// By power of two of the length in blocks: runs and their blocks.
    classes: [(u64, u64); CLASSES],
}

#[derive(Serialize)]
struct FreeSpaceShape {
    device: String,
    block_size: u64,
    total_blocks: u64,
    free_blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<Chunks>,
    free_extents: u64,
    min_free_extent_kb: u64,
    max_free_extent_kb: u64,
    avg_free_extent_kb: u64,
    histogram: Vec<Class>,
}

#[derive(Serialize)]
struct Chunks {
    bytes: u64,
    blocks: u64,
    total: u64,
    free: u64,
}

#[derive(Serialize)]
struct Class {
    from_bytes: u64,
    below_bytes: u64,
    free_extents: u64,
    free_blocks: u64,
    percent: f64,
}

impl FreeSpace {
    fn new(blocks: u64, block_size: u64, chunk_blocks: Option<u64>) -> Self {
        Self {
            blocks,
            block_size,
            chunk_blocks,
            free: 0,
            free_chunks: 0,
            runs: 0,
            shortest: 0,
            longest: 0,
            classes: [(0, 0); CLASSES],
        }
    }

    /// Counts the free run `start..end`, which is not empty.
    fn add(&mut self, start: u64, end: u64) {
        let len = end - start;
        self.shortest = if self.runs == 0 { len } else { self.shortest.min(len) };
        self.longest = self.longest.max(len);
        self.free += len;
        self.runs += 1;
        let class = &mut self.classes[(len.ilog2() as usize).min(CLASSES - 1)];
        class.0 += 1;
        class.1 += len;
        if let Some(chunk) = self.chunk_blocks {
            // Chunks lie at multiples of their size from the start of the device.
            self.free_chunks += (end / chunk).saturating_sub(start.div_ceil(chunk));
        }
    }

    fn chunks(&self) -> Option<Chunks> {
        let blocks = self.chunk_blocks?;
        // As e2freefrag counts: a chunk more than fit, whole or not.
        let total = (self.blocks + blocks) / blocks;
        Some(Chunks { bytes: blocks * self.block_size, blocks, total, free: self.free_chunks })
    }

    fn kb(&self, blocks: u64) -> u64 {
        blocks * self.block_size / 1024
    }

    fn average(&self) -> u64 {
        self.free.checked_div(self.runs).unwrap_or(0)
    }

    fn histogram(&self) -> impl Iterator<Item = Class> + '_ {
        let used = self.classes.iter().enumerate().filter(|(_, (runs, _))| *runs > 0);
        used.map(|(power, &(free_extents, free_blocks))| Class {
            from_bytes: self.block_size << power,
            below_bytes: self.block_size << (power + 1),
            free_extents,
            free_blocks,
            percent: percent(free_blocks, self.free),
        })
    }

    fn lines(&self, device: &str) -> Vec<String> {
        let mut lines = vec![
            format!("Device: {device}"),
            format!("Blocksize: {} bytes", self.block_size),
            format!("Total blocks: {}", self.blocks),
            format!("Free blocks: {} ({:.1}%)", self.free, percent(self.free, self.blocks)),
            String::new(),
        ];
        if let Some(chunks) = self.chunks() {
            let free = percent(chunks.free, chunks.total);
            lines.extend([
                format!("Chunksize: {} bytes ({} blocks)", chunks.bytes, chunks.blocks),
                format!("Total chunks: {}", chunks.total),
                format!("Free chunks: {} ({free:.1}%)", chunks.free),
                String::new(),
            ]);
        }
        lines.extend([
            format!("Min. free extent: {} KB", self.kb(self.shortest)),
            format!("Max. free extent: {} KB", self.kb(self.longest)),
            format!("Avg. free extent: {} KB", self.kb(self.average())),
            format!("Num. free extent: {}", self.runs),
            String::new(),
            "HISTOGRAM OF FREE EXTENT SIZES:".to_owned(),
            "Extent Size Range :  Free extents   Free Blocks  Percent".to_owned(),
        ]);
        lines.extend(self.histogram().map(|class| {
            let (unit, letter) = unit_of(class.from_bytes);
            format!(
                "{:>5}{letter}...{:>5}{letter}-  :  {:>12}  {:>12}  {:>6.2}%",
                class.from_bytes / unit,
                class.below_bytes / unit,
                class.free_extents,
                class.free_blocks,
                class.percent
            )
        }));
        lines
    }

    fn shape(&self, device: &str) -> FreeSpaceShape {
        FreeSpaceShape {
            device: device.to_owned(),
            block_size: self.block_size,
            total_blocks: self.blocks,
            free_blocks: self.free,
            chunks: self.chunks(),
            free_extents: self.runs,
            min_free_extent_kb: self.kb(self.shortest),
            max_free_extent_kb: self.kb(self.longest),
            avg_free_extent_kb: self.kb(self.average()),
            histogram: self.histogram().collect(),
        }
    }
}

/// The unit in which the lower end of a class is at least 1.
fn unit_of(bytes: u64) -> (u64, char) {
    let units = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, 'B'))
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_e2freefrag() {
        let mut survey = FreeSpace::new(40_000, 4096, Some(16));
        for (start, end) in [(15, 33), (40, 41), (100, 101), (200, 3000), (9000, 39_999)] {
            survey.add(start, end);
        }
        let want = "\
Device: disk.img
Blocksize: 4096 bytes
Total blocks: 40000
Free blocks: 33819 (84.5%)

Chunksize: 65536 bytes (16 blocks)
Total chunks: 2501
Free chunks: 2111 (84.4%)

Min. free extent: 4 KB
Max. free extent: 123996 KB
Avg. free extent: 27052 KB
Num. free extent: 5

HISTOGRAM OF FREE EXTENT SIZES:
Extent Size Range :  Free extents   Free Blocks  Percent
    4K...    8K-  :             2             2    0.01%
   64K...  128K-  :             1            18    0.05%
    8M...   16M-  :             1          2800    8.28%
   64M...  128M-  :             1         30999   91.66%";
        assert_eq!(survey.lines("disk.img").join("\n"), want);
    }

    #[test]
    fn a_full_volume_has_no_division_by_zero() {
        let survey = FreeSpace::new(100, 1024, None);
        let lines = survey.lines("full");
        assert!(lines.contains(&"Free blocks: 0 (0.0%)".to_owned()));
        assert!(lines.contains(&"Avg. free extent: 0 KB".to_owned()));
        assert_eq!(survey.histogram().count(), 0);
    }
}
