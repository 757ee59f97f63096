//! A cluster of Ceph on this host: a monitor, a manager and a store, in a folder.
//!
//! It needs no root, asks nobody for keys, and listens on the loopback device only. Its store is a
//! sparse file (bluestore). All of it ends with its value.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{has, system};

/// What is needed of Debian's packages ceph-mon, ceph-mgr, ceph-osd and ceph-common.
const PROGRAMS: [&str; 6] = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rbd", "monmaptool"];
/// The store, in bytes of a sparse file.
const STORE_BYTES: u64 = 12 << 30;
/// Where clients look for a cluster before they look at their arguments: one of this host's is
/// nobody's to test on.
const ENVIRONMENT: [&str; 3] = ["CEPH_ARGS", "CEPH_CONF", "CEPH_KEYRING"];
/// Longest wait for a command of the cluster, in seconds.
const PATIENCE: &str = "90";

/// A program that knows no cluster but the one that its arguments name.
pub(crate) fn without_cluster(program: &str) -> Command {
    let mut command = system(program);
    for name in ENVIRONMENT {
        command.env_remove(name);
    }
    command
}

/// A cluster. Its processes end when it is dropped.
pub(crate) struct Cluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts one in an empty folder, with a pool `rbd`.
    ///
    /// # Errors
    /// A program is missing, or fails.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        if let Some(missing) = PROGRAMS.iter().find(|program| !has(program)) {
            return Err(format!("{missing} is missing"));
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.map_err(|error| format!("no port: {error}"))?.port();
        let (id, store) = (uuid()?, uuid()?);
        let at = |name: &str| folder.join(name).display().to_string();
        for name in ["mon", "mgr", "osd", "run"] {
            fs::create_dir_all(folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        }
        let mut cluster = Self { folder: folder.to_owned(), daemons: Vec::new() };
        let settings = settings(folder, &id, port);
        fs::write(cluster.conf(), settings).map_err(|error| format!("ceph.conf: {error}"))?;
        let monitor = format!("[v2:127.0.0.1:{port}]");
        let map = at("monmap");
        cluster.run("monmaptool", &["--create", "--fsid", &id, "--addv", "a", &monitor, &map])?;
        cluster.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map])?;
        cluster.spawn("ceph-mon", &["-f", "-i", "a"])?;
        cluster.run("ceph", &["mon", "stat"])?;
        cluster.spawn("ceph-mgr", &["-f", "-i", "x"])?;
        cluster.run("ceph", &["osd", "new", &store, "0"])?;
        cluster.run("ceph-osd", &["--mkfs", "-i", "0", "--osd-uuid", &store])?;
        cluster.spawn("ceph-osd", &["-f", "-i", "0"])?;
        cluster.run("ceph", &["osd", "pool", "create", "rbd", "8", "8"])?;
        // This waits until the store serves the pool.
        cluster.run("rbd", &["pool", "init", "rbd"])?;
        Ok(cluster)
    }

    /// The settings with which clients find it.
    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Runs a program on it; what it printed.
    ///
    /// # Errors
    /// What it said.
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Result<String, String> {
        let mut command = without_cluster("timeout");
        command.args(["-k", "5", PATIENCE, program]).args(words).stdin(Stdio::null());
        if program != "monmaptool" {
            command.arg("--conf").arg(self.conf());
        }
        let output = command.output().map_err(|error| format!("{program}: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(format!("{program} {}: {}: {said}", words.join(" "), output.status))
            }
        }
    }

    fn spawn(&mut self, program: &str, words: &[&str]) -> Result<(), String> {
        // The shell becomes the program, so that the number is the daemon's.
        let mut command = without_cluster(program);
        command.args(words).arg("--conf").arg(self.conf()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(command.spawn().map_err(|error| format!("{program}: {error}"))?);
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The store first, while the others are there.
        for daemon in self.daemons.iter_mut().rev() {
            let pid = i32::try_from(daemon.id()).ok().and_then(rustix::process::Pid::from_raw);
            let term = rustix::process::Signal::TERM;
            let _ = pid.map(|pid| rustix::process::kill_process(pid, term));
            let end = Instant::now() + Duration::from_secs(10);
            while daemon.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn uuid() -> Result<String, String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid");
    text.map(|text| text.trim().to_owned()).map_err(|error| format!("no UUID: {error}"))
}

fn settings(folder: &Path, id: &str, port: u16) -> String {
    let at = folder.display();
    format!(
        "[global]
fsid = {id}
mon host = [v2:127.0.0.1:{port}]
auth cluster required = none
auth service required = none
auth client required = none
ms bind ipv6 = false
run dir = {at}/run
admin socket = {at}/run/$name.$pid.asok
log file = {at}/$name.log
mon cluster log file = {at}/cluster.log
pid file =
mon data = {at}/mon
mgr data = {at}/mgr
osd data = {at}/osd
mgr initial modules =
mon allow pool size one = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = {STORE_BYTES}
osd memory target = 939524096
# A client that was killed holds its lock until it is missed.
osd client watch timeout = 5
"
    )
}
