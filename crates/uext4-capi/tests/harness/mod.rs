//! What builds and runs the programs.

#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

// The library is built because this test needs the crate.
use uext4_capi as _;

/// Where the header, the sources and the examples are.
pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder of programs, with the library under the name that it is installed by.
pub(crate) struct Programs {
    scratch: tempfile::TempDir,
}

impl Programs {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let library = test.with_file_name("libuext4_capi.so");
        assert!(library.exists(), "{} is not built", library.display());
        symlink(library, scratch.path().join("libuext4.so")).unwrap();
        Self { scratch }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Compiles a program; every warning is an error.
    pub(crate) fn build(&self, source: &str, flags: &[&str]) -> PathBuf {
        let program = self.path("program");
        let mut cc = Command::new("cc");
        if !source.ends_with(".cpp") {
            cc.args(["-std=c99", "-D_DEFAULT_SOURCE"]);
        }
        cc.args(["-Wall", "-Wextra", "-Werror", "-g", "-O1"]).args(flags);
        cc.arg("-I").arg(folder().join("include")).arg(folder().join(source)).arg("-o");
        cc.arg(&program).arg("-L").arg(self.scratch.path()).args(["-luext4", "-lpthread"]);
        ok(&mut cc);
        program
    }

    /// A command that finds the library.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.scratch.path());
        command.env("ASAN_OPTIONS", "detect_leaks=1");
        command
    }

    /// An image of 16 MiB with a file, made by mke2fs.
    pub(crate) fn image(&self, name: &str) -> PathBuf {
        let image = self.path(name);
        let root = self.path("root");
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("file"), "content").unwrap();
        let mut mke2fs = Command::new("/sbin/mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&root).arg(&image).arg("16M");
        ok(&mut mke2fs);
        image
    }

    /// An image of 16 MiB without files but lost+found, made by mke2fs.
    pub(crate) fn empty_image(&self, name: &str) -> PathBuf {
        let image = self.path(name);
        ok(Command::new("/sbin/mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image).arg("16M"));
        image
    }

    /// What cgo needs to find header and library, and nothing of the network.
    pub(crate) fn for_go(&self, command: &mut Command) {
        let flags = |option: &str, path: &Path| format!("{option}{}", path.display());
        command.env("CGO_CFLAGS", flags("-I", &folder().join("include")));
        command.env("CGO_LDFLAGS", flags("-L", self.scratch.path()));
        command.env("CGO_ENABLED", "1").env("GOPROXY", "off").env("GOFLAGS", "");
        command.env("GOTOOLCHAIN", "local").env("GO111MODULE", "on").env("GOWORK", "off");
        for (name, folder) in [("HOME", "home"), ("GOPATH", "go"), ("GOCACHE", "go-cache")] {
            command.env(name, self.scratch.path().join(folder));
        }
    }
}

/// The output of a command that succeeds.
pub(crate) fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}{failed}", output.status);
    said
}

/// Asserts that e2fsck finds nothing.
pub(crate) fn e2fsck(image: &Path) {
    ok(Command::new("/sbin/e2fsck").arg("-fn").arg(image));
}

/// The names and inodes of the root directory, as another program sees them.
pub(crate) fn debugfs_tree(image: &Path) -> String {
    ok(Command::new("/sbin/debugfs").args(["-R", "ls -l /"]).arg(image))
}

/// Where go is, if it is installed.
pub(crate) fn go() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|folder| folder.join("go"));
    let known = ["/usr/bin/go", "/usr/local/go/bin/go"].map(PathBuf::from);
    places.chain(known).find(|go| go.is_file())
}
