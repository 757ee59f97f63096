//! Exports of real servers that are killed and started again, and copied by a client of libnbd.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use uext4_sim::remote::Export;

use crate::HANG;
use crate::ceph::without_cluster;
use crate::common::{system, wait_within};

/// An export, and the command that serves it on a socket.
pub(crate) struct Served {
    socket: PathBuf,
    command: Vec<String>,
    child: Option<Child>,
}

impl Served {
    /// Starts a server: the words of its command, in which SOCKET is the socket's path.
    pub(crate) fn new(folder: &Path, words: &[&str]) -> Self {
        let socket = folder.join("served.sock");
        let path = socket.display().to_string();
        let command = words.iter().map(|word| word.replace("SOCKET", &path)).collect();
        let mut served = Self { socket, command, child: None };
        served.start().unwrap();
        served
    }

    /// nbdkit on a new file of that many bytes.
    pub(crate) fn nbdkit(folder: &Path, len: u64) -> Self {
        let file = folder.join("disk");
        File::create(&file).unwrap().set_len(len).unwrap();
        let file = file.display().to_string();
        Self::new(folder, &["nbdkit", "--foreground", "--unix", "SOCKET", "file", &file])
    }

    /// qemu-nbd on a new qcow2 image.
    pub(crate) fn qcow2(folder: &Path, len: u64) -> Self {
        let image = folder.join("disk.qcow2").display().to_string();
        let len = len.to_string();
        let made = system("qemu-img").args(["create", "-q", "-f", "qcow2", &image, &len]).status();
        assert!(made.unwrap().success());
        Self::qemu_nbd(folder, &["--format=qcow2", "--discard=unmap", &image])
    }

    /// qemu-nbd, as docs/nbd.md has it.
    pub(crate) fn qemu_nbd(folder: &Path, words: &[&str]) -> Self {
        let all = ["qemu-nbd", "--persistent", "--shared=8", "--socket=SOCKET"];
        Self::new(folder, &[&all[..], words].concat())
    }

    /// Starts a server again that has ended by itself, and tells so. nbdkit 1.32 may: a thread of a
    /// connection answers while another one has closed it because the client is gone
    /// (`raw_send_socket: Assertion`).
    fn revive(&mut self) -> Result<(), String> {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        let Some(status) = ended else { return Ok(()) };
        println!("{} ended by itself ({status}), and is started again", self.command[0]);
        self.start()
    }

    fn copy(
        from: impl AsRef<std::ffi::OsStr>,
        to: impl AsRef<std::ffi::OsStr>,
    ) -> Result<(), String> {
        let output = system("nbdcopy").arg(from).arg(to).output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("nbdcopy: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

impl Export for Served {
    fn name(&self) -> PathBuf {
        format!("nbd+unix:///?socket={}", self.socket.display()).into()
    }

    fn copy_from(&mut self, image: &Path) -> Result<(), String> {
        self.revive()?;
        Self::copy(image, self.name())
    }

    fn copy_to(&mut self, image: &Path) -> Result<(), String> {
        let _ = fs::remove_file(image);
        self.revive()?;
        Self::copy(self.name(), image)
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let _ = fs::remove_file(&self.socket);
        // `env` becomes the server, so that what is killed is it.
        let mut command = without_cluster(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.command[0]))?;
        self.child = Some(child);
        wait_within(HANG, "the server listens", || self.socket.exists());
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
