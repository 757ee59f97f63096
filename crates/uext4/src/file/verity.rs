//! Reading files with a Merkle tree (fs-verity): every block is verified before a caller sees it.
//!
//! What: [`PageReader::read_verified`] fills pages of such a file. It reads whole blocks of the
//! tree's size, and checks each against its hash, that hash's block against the level above, and so
//! on to the root in the descriptor. A few blocks of trees that have
//! been verified are kept (`verified_blocks.rs`).
//! Invariants: a page of such a file in memory has been verified. The file never changes.
//! Errors: a block that does not fit its hash is `Corrupt` (EIO), and so is a descriptor that is
//! damaged; the rest of the file can be read.
//! Kernel counterpart: `fs/verity/verify.c`, `fs/ext4/verity.c`.

use super::FileContext;
use super::read::PageReader;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, list, lookup};
use crate::inode::{Inode, VerityInfo};
use std::sync::Arc;
use uext4_ondisk::verity::{DESCRIPTOR_MAX, Parameters, RawVerityDescriptor, descriptor_len};
use uext4_ondisk::{CorruptKind, FileBlock, Place};

/// Bytes of the page of most machines.
const PAGE_BYTES: u64 = 4096;

fn damaged(inode: &Inode, why: &'static str) -> Error {
    CorruptKind::Rule { what: "verity", why }.at(Place::Inode(inode.ino())).into()
}

impl FileContext {
    /// Checks the size of a tree's blocks: at most a block of the file system, and a page of most
    /// machines, as in the kernel.
    pub(super) fn check_tree_block(&self, parameters: &Parameters) -> Result<()> {
        let most = self.block_size().min(PAGE_BYTES);
        if u64::from(parameters.block_size) <= most {
            return Ok(());
        }
        let found = parameters.block_size;
        let why = format!("a Merkle tree with blocks of {found} bytes, more than {most}");
        Err(Error::new(ErrorKind::Unsupported, why))
    }
}

impl PageReader {
    /// The tree of a file that has one.
    ///
    /// # Errors
    /// `Corrupt` for a descriptor that is damaged; a device failure.
    pub(crate) fn verity_info<'i>(&self, inode: &'i Inode) -> Result<&'i VerityInfo> {
        if let Some(info) = inode.verity.get() {
            return Ok(info);
        }
        if inode.is_encrypted() {
            let why = "a Merkle tree of an encrypted file";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let descriptor = self.read_descriptor(inode)?;
        let tree = descriptor
            .tree(inode.size())
            .ok_or_else(|| damaged(inode, "descriptor is damaged or unknown"))?;
        self.context.check_tree_block(&tree.parameters)?;
        let id = self.verified.new_tree();
        Ok(inode.verity.get_or_init(|| Box::new(VerityInfo { descriptor, tree, id })))
    }

    fn read_descriptor(&self, inode: &Inode) -> Result<RawVerityDescriptor> {
        let mut last = None;
        list(inode, FileBlock(0), &mut |extent| {
            last = Some(extent);
            true
        })?;
        let end = last
            .filter(|extent| !extent.unwritten)
            .map(|extent| u64::from(extent.end().get()) * self.context.block_size())
            .ok_or_else(|| damaged(inode, "descriptor is missing"))?;
        let mut len = [0; 4];
        self.read_raw(inode, end - 4, &mut len)?;
        let len = descriptor_len(len);
        let size = size_of::<RawVerityDescriptor>() as u32;
        let block_size = self.context.block_size();
        let at = (end - 4)
            .checked_sub(len.into())
            .map(|at| at - at % block_size)
            .filter(|&at| (size..=DESCRIPTOR_MAX).contains(&len) && at >= inode.size())
            .ok_or_else(|| damaged(inode, "descriptor has no place"))?;
        let mut bytes = [0; 256];
        self.read_raw(inode, at, &mut bytes)?;
        let descriptor = RawVerityDescriptor::from_prefix(&bytes)
            .ok_or_else(|| damaged(inode, "descriptor is too short"))?;
        if descriptor.sig_size.get() > len - size {
            return Err(damaged(inode, "signature is longer than what follows the descriptor"));
        }
        Ok(descriptor)
    }

    /// Reads bytes of the file's blocks, past the end of the file too. Holes read as zeroes.
    fn read_raw(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block_size = self.context.block_size();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let mapping = lookup(inode, self.context.block_at(at))?;
            let run_end = self.context.offset_of(mapping.end());
            let count = usize::try_from(run_end - at).unwrap_or(usize::MAX).min(buf.len() - done);
            let part = &mut buf[done..done + count];
            match mapping.state {
                State::Written(start) => {
                    let within = at - self.context.offset_of(mapping.first);
                    let from = start.get() * block_size + within;
                    let device = self.context.cache().device();
                    let read = device.read_at(from, part);
                    read.map_err(|e| Error::io(format!("reading block {start}"), e))?;
                }
                State::Hole | State::Unwritten(_) => part.fill(0),
            }
            done += count;
        }
        Ok(())
    }

    /// Reads and verifies the blocks around `at`, up to `until` if they are many, and puts their
    /// pages in.
    pub(super) fn read_verified(
        &self,
        inode: &Inode,
        at: FileBlock,
        until: FileBlock,
    ) -> Result<()> {
        let info = self.verity_info(inode)?;
        let (size, unit) = (inode.size(), u64::from(info.tree.parameters.block_size));
        let block_size = self.context.block_size();
        let step = unit.max(block_size);
        let start = self.context.offset_of(at) / step * step;
        let most = start + super::read::READ_CHUNK_BYTES;
        let end = self.context.offset_of(until).min(most).max(start + 1).next_multiple_of(step);
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        self.read_raw(inode, start, &mut bytes)?;
        if let Some(behind) = usize::try_from(size.saturating_sub(start)).ok()
            && let Some(tail) = bytes.get_mut(behind..)
        {
            // The last block is hashed with zeroes behind the end.
            tail.fill(0);
        }
        for (index, block) in bytes.chunks(unit as usize).enumerate() {
            let number = start / unit + index as u64;
            if number * unit < size {
                self.verify(inode, info, number, block)?;
            }
        }
        inode.disable_direct_fast_path();
        let budget = self.context.table.budget();
        let first = self.context.block_at(start);
        for (block, page) in bytes.chunks_exact(block_size as usize).enumerate() {
            let at = first.plus(block as u32);
            if self.context.offset_of(at) >= size {
                break;
            }
            let image = budget.spare.page_of(page);
            let mut pages = inode.pages();
            if pages.map.peek(at).is_none() {
                pages.map.insert_clean(at, image);
            }
        }
        Ok(())
    }

    /// Verifies a block of the data.
    fn verify(&self, inode: &Inode, info: &VerityInfo, number: u64, block: &[u8]) -> Result<()> {
        let mut hash = info.tree.hash(block);
        let mut number = number;
        // What has been read and not verified yet: it is kept once the level above has agreed.
        let mut pending: Vec<(usize, u64, Arc<[u8]>)> = Vec::new();
        for level in 0..=info.tree.levels.len() {
            let wrong = || damaged(inode, "a block does not fit its hash");
            let Some((at, above, within)) = info.tree.place_of_hash(level, number) else {
                // The hash of the root.
                let root = &info.descriptor.root_hash[..hash.len()];
                if level != info.tree.levels.len() || hash != root {
                    return Err(wrong());
                }
                break;
            };
            let known = self.verified.find((info.id, level, above));
            let is_known = known.is_some();
            let bytes = match known {
                Some(bytes) => bytes,
                None => {
                    let mut bytes = vec![0; info.tree.parameters.block_size as usize];
                    self.read_raw(inode, at, &mut bytes)?;
                    Arc::from(bytes)
                }
            };
            if bytes.get(within..within + hash.len()) != Some(&hash[..]) {
                return Err(wrong());
            }
            if is_known {
                break;
            }
            hash = info.tree.hash(&bytes);
            number = above;
            pending.push((level, above, bytes));
        }
        for (level, number, bytes) in pending.iter().rev() {
            self.verified.keep((info.id, *level, *number), bytes);
        }
        Ok(())
    }

    /// The digest of a file that has a tree, and what it is made with.
    ///
    /// # Errors
    /// `NoXattr` for a file without a tree; `Corrupt`; a device failure.
    pub(crate) fn verity_digest(&self, inode: &Inode) -> Result<(Parameters, Vec<u8>)> {
        let _shared = inode.lock().read();
        if !inode.is_verity() {
            return Err(Error::new(ErrorKind::NoXattr, "the file has no Merkle tree"));
        }
        let info = self.verity_info(inode)?;
        let digest =
            info.descriptor.digest().ok_or_else(|| damaged(inode, "hash function is not known"))?;
        Ok((info.tree.parameters.clone(), digest))
    }
}
