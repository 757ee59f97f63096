//! What `mkfs` tells of a file system that it made, or with `-n` would make, in mke2fs's words.

use uext4_mkfs::{Options, Report};
use uuid::Uuid;

use crate::failure::Result;
use crate::output::Output;

/// Prints it; `is_verbose` as mke2fs does with `-v`.
pub(super) fn print(
    report: &Report,
    options: &Options,
    is_verbose: bool,
    output: &mut Output,
) -> Result<()> {
    match is_verbose {
        true => print_shape(report, options, output)?,
        false => {
            let unit = if report.block_size >= 1024 { report.block_size / 1024 } else { 0 };
            output.line(&format!(
                "Creating filesystem with {} {unit}k blocks and {} inodes",
                report.blocks, report.inodes
            ))?;
        }
    }
    output.line(&format!("Filesystem UUID: {}", Uuid::from_bytes(report.uuid)))?;
    if !report.backups.is_empty() {
        output.line("Superblock backups stored on blocks: ")?;
        let backups: Vec<String> = report.backups.iter().map(u64::to_string).collect();
        output.line(&format!("\t{}", backups.join(", ")))?;
    }
    if report.journal_blocks != 0 {
        output.line(&format!("Journal: {} blocks", report.journal_blocks))?;
    }
    Ok(())
}

fn print_shape(report: &Report, options: &Options, output: &mut Output) -> Result<()> {
    let log = |size: u32| size.checked_ilog2().unwrap_or(10).saturating_sub(10);
    let (block, cluster) = (report.block_size, report.cluster_size);
    output.line(&format!("Filesystem label={}", options.label))?;
    output.line(&format!("Features: {}", report.features.join(" ")))?;
    output.line(&format!("Block size={block} (log={})", log(block)))?;
    if cluster != block {
        output.line(&format!("Cluster size={cluster} (log={})", log(cluster)))?;
    }
    let (stride, width) = (options.stride.unwrap_or(0), options.stripe_width.unwrap_or(0));
    output.line(&format!("Stride={stride} blocks, Stripe width={width} blocks"))?;
    let inode = report.inode_size;
    output.line(&format!("{} inodes of {inode} bytes, {} blocks", report.inodes, report.blocks))?;
    let percent = report.reserved_blocks as f64 * 100.0 / report.blocks.max(1) as f64;
    output.line(&format!(
        "{} blocks ({percent:.2}%) reserved for the super user",
        report.reserved_blocks
    ))?;
    output.line(&format!("{} block groups", report.groups))?;
    output.line(&format!("{} blocks per group", report.blocks_per_group))?;
    output.line(&format!("{} inodes per group", report.inodes_per_group))
}
