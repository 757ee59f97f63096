//! The target `rust-fs-ext4`: another ext4 in user space, by the calls of its library.
//!
//! What: M4 to M6 on one thread, which is what its calls are made for. Files of a directory are
//! named by the directory's inode, as the library of uext4 names them. It commits each call by
//! itself. In no build but with the feature `peer-rust-fs-ext4`.

use std::path::Path;
use std::sync::Arc;

use fs_ext4::Filesystem;
use fs_ext4::block_io::FileDevice;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::evidence::RunName;
use crate::explain::Subject;
use crate::laps::{figures, small_laps};
use crate::load::{SMALL_FILE_BYTES, SmallFiles, Work};
use crate::plan::Figure;
use crate::stage;
use crate::tree_loads::Runner;
use crate::worker::{dir_name, file_name};

/// Inode of the root directory.
const ROOT: u32 = 2;

impl Runner<'_> {
    /// A run of M4 to M6 on an image, to a checked one.
    pub(crate) fn on_rust_fs_ext4(
        &self,
        name: RunName<'_>,
        (work, files): (Work, SmallFiles),
        image: &Path,
    ) -> Result<Vec<Figure>> {
        let peer = Peer::mount(image)?;
        if work == Work::Create {
            peer.make_dirs(files)?;
        }
        let clock = Clock::start();
        let mut pass = || peer.pass(work, files);
        let load_itself = || small_laps(work, u64::from(files.count()), &mut pass);
        let mut laps = self.looking.at(Subject::default(), load_itself)?;
        peer.0.finish().map_err(failed)?;
        stage::sync_file(image)?;
        let cpu = self.stop(&clock, &mut laps);
        let distance = self.judge(name, (work, files), image)?;
        Ok(figures(name.run.load, &laps, [cpu, None, distance]))
    }
}

fn failed(error: fs_ext4::Error) -> Error {
    Error::new(format!("rust-fs-ext4: {error}"))
}

/// Its file system.
struct Peer(Filesystem);

impl Peer {
    fn mount(image: &Path) -> Result<Self> {
        let device = FileDevice::open_path_rw(image).map_err(failed)?;
        Filesystem::mount(Arc::new(device)).map(Self).map_err(failed)
    }

    fn make_dirs(&self, files: SmallFiles) -> Result<()> {
        (0..files.dirs).try_for_each(|number| {
            let name = dir_name(number);
            self.0.apply_mkdir_at(ROOT, name.as_bytes(), 0o755).map(|_| ()).map_err(failed)
        })
    }

    /// Does what a load does with each small file.
    fn pass(&self, work: Work, files: SmallFiles) -> Result<()> {
        for (number, part) in files.part(0, 1) {
            let dir = self.0.lookup_at(ROOT, dir_name(number).as_bytes()).map_err(failed)?;
            for file in part {
                let name = file_name(file);
                let done = match work {
                    Work::Create => self.create(dir, name.as_bytes()),
                    Work::Stat => self.stat(dir, name.as_bytes()),
                    _ => self.0.apply_unlink_at(dir, name.as_bytes()),
                };
                done.map_err(failed)?;
            }
        }
        Ok(())
    }

    fn create(&self, dir: u32, name: &[u8]) -> fs_ext4::Result<()> {
        let file = self.0.apply_create_at(dir, name, 0o644)?;
        let written = self.0.apply_pwrite_ino(file, 0, &[0x5a; SMALL_FILE_BYTES])?;
        // What it returns is the size of the file.
        match written == SMALL_FILE_BYTES as u64 {
            true => Ok(()),
            false => Err(fs_ext4::Error::InvalidArgument("short write")),
        }
    }

    fn stat(&self, dir: u32, name: &[u8]) -> fs_ext4::Result<()> {
        let found = self.0.stat_ino(self.0.lookup_at(dir, name)?)?;
        match found.size == SMALL_FILE_BYTES as u64 {
            true => Ok(()),
            false => Err(fs_ext4::Error::InvalidArgument("a small file has another size")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::load::Load;
    use crate::plan::{Event, Plan, run};
    use crate::target::Target;

    /// Fault model: calls that do nothing, told as fast ones: every image is looked at.
    #[test]
    fn small_files_are_made_and_removed() {
        let plan = Plan {
            loads: ["M4", "M5", "M6"].into_iter().filter_map(Load::find).collect(),
            targets: vec![Target::RustFsExt4],
            rounds: 1,
            scale: 0.001,
            ..Plan::default()
        };
        let (mut measured, mut failed) = (Vec::new(), Vec::new());
        run(&plan, &mut |event| match event {
            Event::Measured(figure) if figure.metric == "ops_per_s" => {
                measured.push((figure.experiment, figure.threads, figure.variant.clone()));
            }
            Event::Failed(name, error) => failed.push(format!("{name}: {error}")),
            _ => {}
        })
        .unwrap();
        assert!(failed.is_empty(), "{failed:?}");
        let wanted = [("M4", "default"), ("M5", "fresh"), ("M5", "default"), ("M6", "default")];
        let wanted = wanted.map(|(load, variant)| (load, 1, variant.to_owned()));
        assert_eq!(measured, wanted);
    }
}
