//! Traces made by hand, and the states of them.

#![allow(dead_code)] // Each test uses its part.

use std::sync::Arc;
use std::time::Duration;

use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_crashtest::model::{Explorer, Guarantees, StateSpec, Tree};
use uext4_crashtest::trace::{Attributes, Call, FileId, Name, NewFile, Step, Trace};
use uext4_device::MemoryDevice;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A trace under construction: each call returns before the next one begins.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) trace: Trace,
}

/// An empty file system with these files, which get the identities 1, 2, ...
pub(crate) fn base(files: &[(&str, &[u8])]) -> (MemoryDevice, Vec<(FileId, u32)>) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = uext4_mkfs::Options {
        block_size: Some(BLOCK as u32),
        journal_mib: Some(4),
        ..Default::default()
    };
    uext4_mkfs::format(&*device, &options).unwrap();
    let shared = Arc::clone(&device);
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let mut before = Vec::new();
    for (index, (name, content)) in files.iter().enumerate() {
        let (kind, owner) = (FileKind::Regular, Owner { uid: 0, gid: 0 });
        let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
        let inode = volume.create(&root, name.as_bytes(), &new).unwrap();
        volume.open_file(&inode).unwrap().write_at(0, content).unwrap();
        before.push((FileId(index as u32 + 1), inode.ino().get()));
    }
    drop(root);
    volume.close().unwrap();
    (device.snapshot(), before)
}

pub(crate) fn in_root(name: &str) -> Name {
    Name { parent: FileId::ROOT, name: name.as_bytes().to_vec() }
}

impl Script {
    pub(crate) fn call(&mut self, call: Call) -> &mut Self {
        let at = self.trace.steps.len() as u64 * 10;
        let (started, returned) = (Duration::from_micros(at), Duration::from_micros(at + 5));
        self.trace.steps.push(Step { started, returned, pid: 1, call });
        self
    }

    pub(crate) fn create(&mut self, file: u32, name: &str) -> &mut Self {
        let attributes = Attributes { mode: Some(0o644), uid: Some(0), gid: Some(0) };
        let (name, kind) = (Some(in_root(name)), NewFile::Regular);
        self.call(Call::Create { file: FileId(file), name, kind, attributes })
    }

    pub(crate) fn write(&mut self, file: u32, offset: u64, data: &[u8]) -> &mut Self {
        self.call(Call::Write { file: FileId(file), offset, data: data.into(), direct: false })
    }

    pub(crate) fn direct(&mut self, file: u32, offset: u64, data: &[u8]) -> &mut Self {
        self.call(Call::Write { file: FileId(file), offset, data: data.into(), direct: true })
    }

    pub(crate) fn sync(&mut self, file: u32) -> &mut Self {
        self.call(Call::Sync { file: FileId(file), data_only: false, range: None })
    }

    pub(crate) fn sync_data(&mut self, file: u32) -> &mut Self {
        self.call(Call::Sync { file: FileId(file), data_only: true, range: None })
    }

    /// A write that syncs its own range.
    pub(crate) fn write_synced(&mut self, file: u32, offset: u64, data: &[u8]) -> &mut Self {
        let range = Some(offset..offset + data.len() as u64);
        self.write(file, offset, data);
        self.call(Call::Sync { file: FileId(file), data_only: true, range })
    }

    pub(crate) fn rename(
        &mut self,
        file: u32,
        from: &str,
        to: &str,
        over: Option<u32>,
    ) -> &mut Self {
        let (from, to, replaced) = (in_root(from), in_root(to), over.map(FileId));
        self.call(Call::Rename { file: FileId(file), from, to, replaced, exchange: false })
    }

    pub(crate) fn remove(&mut self, file: u32, name: &str) -> &mut Self {
        self.call(Call::Remove { file: FileId(file), name: in_root(name) })
    }

    pub(crate) fn truncate(&mut self, file: u32, before: u64, size: u64) -> &mut Self {
        self.call(Call::Truncate { file: FileId(file), before, size })
    }

    pub(crate) fn allocate(&mut self, file: u32, mode: u32, offset: u64, len: u64) -> &mut Self {
        self.call(Call::Allocate { file: FileId(file), mode, offset, len })
    }

    pub(crate) fn close(&mut self, file: u32) -> &mut Self {
        self.call(Call::Close { file: FileId(file) })
    }

    pub(crate) fn print(&mut self, text: &str) -> &mut Self {
        self.call(Call::Output(text.as_bytes().into()))
    }

    pub(crate) fn explorer(
        &self,
        (device, before): &(MemoryDevice, Vec<(FileId, u32)>),
        mode: &str,
        options: &str,
    ) -> Explorer {
        let mut guarantees = Guarantees::of_mode(mode).unwrap();
        guarantees.set(options).unwrap();
        let trace = Trace { before: before.clone(), ..self.trace.clone() };
        Explorer::new(device, &trace, guarantees).unwrap()
    }
}

/// A state, what had been printed, and what it shows.
pub(crate) struct Shown {
    pub(crate) spec: StateSpec,
    pub(crate) printed: String,
    pub(crate) tree: Tree,
}

/// At most `count` states. Each must be one that the model itself allows.
pub(crate) fn shown(explorer: &Explorer, count: usize) -> Vec<Shown> {
    let specs = explorer.states(1).take(count);
    specs
        .map(|spec| {
            let tree = Tree::read(&explorer.image(&spec).unwrap()).unwrap();
            let allowed = explorer.allows(&tree, spec.crash..=spec.crash).unwrap();
            assert_eq!(allowed, Ok(()), "{spec:?}");
            let printed = String::from_utf8(explorer.acknowledged(&spec)).unwrap();
            Shown { spec, printed, tree }
        })
        .collect()
}

/// What some file holds in the states, each once, with what had been printed.
pub(crate) fn contents(shown: &[Shown], path: &str) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all: Vec<_> = shown
        .iter()
        .map(|state| (state.printed.clone(), state.tree.file(path).map(<[u8]>::to_vec)))
        .collect();
    all.sort();
    all.dedup();
    all
}
