//! Where an image lies: on this machine, or behind servers that run while it is measured.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Stage;
use crate::machine;

/// Length of the image in bytes.
const LEN: u64 = 4 << 30;
/// How long a server may take to begin.
const START: Duration = Duration::from_secs(10);

/// A place, and who has the file system.
pub(super) struct Place {
    pub(super) name: &'static str,
    /// Of the kernel, on a loop device.
    pub(super) is_kernel: bool,
    /// The server in between; an image file if there is none.
    pub(super) export: Option<Export>,
}

pub(super) struct Export {
    /// How much later answers arrive, in microseconds.
    latency: u32,
    fua: bool,
}

const fn export(latency: u32, fua: bool) -> Option<Export> {
    Some(Export { latency, fua })
}

/// What a server keeps the image in.
#[derive(Clone, Copy)]
pub(super) enum Store {
    Disk,
    /// Its requests take no time but the way.
    Memory,
}

/// The order of the tables.
pub(super) const ALL: &[Place] = &[
    Place { name: "local image", is_kernel: false, export: None },
    Place { name: "server at once", is_kernel: false, export: export(0, true) },
    Place { name: "server at 1 ms", is_kernel: false, export: export(1000, true) },
    Place { name: "server at 1 ms, no FUA", is_kernel: false, export: export(1000, false) },
    Place { name: "server at 5 ms", is_kernel: false, export: export(5000, true) },
    Place { name: "server at 5 ms, no FUA", is_kernel: false, export: export(5000, false) },
    Place { name: "kernel: local image", is_kernel: true, export: None },
    Place { name: "kernel: server at once", is_kernel: true, export: export(0, true) },
    Place { name: "kernel: server at 1 ms", is_kernel: true, export: export(1000, true) },
];

impl Place {
    /// Whether its syncs are counted against round trips.
    pub(super) fn counts_syncs(&self) -> bool {
        !self.is_kernel && self.export.as_ref().is_some_and(|export| export.latency > 0)
    }

    /// An empty image there, on the disk or in the memory of the server.
    pub(super) fn begin(
        &self,
        stage: &Stage,
        folder: &Path,
        store: Store,
    ) -> Result<Served, String> {
        let image = folder.join("image");
        let mut served = Served { image: image.clone(), socket: None, servers: Vec::new() };
        if let Store::Disk = store {
            let file = File::create(&image).and_then(|file| file.set_len(LEN));
            file.map_err(|error| format!("{}: {error}", image.display()))?;
        }
        let Some(export) = &self.export else { return Ok(served) };
        let near = folder.join("near");
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.args(["--foreground", "--threads=32", "--unix"]).arg(&near);
        if !export.fua {
            // It hides FUA, without a word more.
            nbdkit.arg("--filter=fua");
        }
        match store {
            Store::Disk => nbdkit.arg("file").arg(&image),
            Store::Memory => nbdkit.args(["memory", &LEN.to_string()]),
        };
        served.start(&mut nbdkit, &near)?;
        if export.latency > 0 {
            let far = folder.join("far");
            let mut proxy = Command::new(stage.programs.join("examples/far_server"));
            proxy.arg(&far).arg(&near).arg(export.latency.to_string());
            served.start(&mut proxy, &far)?;
        }
        Ok(served)
    }
}

/// An image and its servers, which end with it.
pub(super) struct Served {
    pub(super) image: PathBuf,
    /// Of the last server.
    pub(super) socket: Option<PathBuf>,
    servers: Vec<Child>,
}

impl Served {
    /// Starts a server and waits for what it makes: its socket, or its file.
    pub(super) fn start(&mut self, command: &mut Command, made: &Path) -> Result<(), String> {
        let name = Path::new(command.get_program()).display().to_string();
        let child = command.env("PATH", machine::search_path()).stdin(Stdio::null()).spawn();
        self.servers.push(child.map_err(|error| format!("far: {name}: {error}"))?);
        self.socket = Some(made.to_owned());
        let begun = Instant::now();
        while !made.exists() {
            if begun.elapsed() > START {
                return Err(format!("far: {name} has not begun"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What `uext4` opens.
    pub(super) fn name(&self) -> String {
        match &self.socket {
            None => self.image.display().to_string(),
            Some(socket) => format!("nbd+unix:///?socket={}", socket.display()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().rev() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
