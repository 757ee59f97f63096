//! What uext4 does with an image, on the host, and what of it must be as in the guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::PYTHON;
use super::cases::Case;
use super::found::{hexadecimal, read, same_lines, sealed, usage_of_kernel, usage_of_uext4, write};
use crate::machine;

/// The seed of uext4's changes.
const SEED: &str = "1";
/// Mounts, runs `$WORK`, unmounts whatever came of it. The namespace takes the rest with it.
const MOUNTED: &str = r#""$UEXT4" mount -o "$OPTIONS" "$IMAGE" "$POINT" || exit 90
eval "$WORK"; status=$?
"$UEXT4" umount "$POINT" || exit 91
exit $status
"#;

/// After whose changes the image is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The first guest's.
    Filled,
    /// uext4's.
    Changed,
    /// The second guest's.
    Again,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Filled => "filled",
            Self::Changed => "changed",
            Self::Again => "again",
        }
    }
}

/// A case's image on the host.
pub(super) struct Host<'a> {
    pub(super) case: &'a Case,
    pub(super) folder: &'a Path,
    pub(super) image: PathBuf,
    pub(super) command: &'a Path,
}

impl Host<'_> {
    /// After the first guest: uext4 shows what the kernel did, and changes it.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn turn(&self) -> Result<String, String> {
        if self.case.copy_of.is_some() {
            return Ok("left to the kernel".to_owned());
        }
        if !self.case.rough {
            self.check().map_err(|why| format!("filled by the kernel: {why}"))?;
        }
        self.look(Step::Filled)?;
        let same = self.compare(Step::Filled)?;
        self.check().map_err(|why| format!("opened by uext4: {why}"))?;
        let changes = self.change()?;
        self.check().map_err(|why| format!("changed by uext4: {why}"))?;
        self.look(Step::Changed)?;
        Ok(format!("{same}, {changes} changes"))
    }

    /// After the second guest: what the kernel saw, and uext4 of the kernel's changes.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn last(&self) -> Result<String, String> {
        if let Some(name) = &self.case.copy_of {
            // The kernel's replay of what uext4 replayed as well.
            let kernel = self.file(Step::Changed, "kernel");
            let other = self.folder.join(format!("{name}.filled.uext4"));
            let count = same_lines(&kernel, &other)?;
            return Ok(format!("{count} lines of the kernel's replay the same"));
        }
        let mut said = format!("uext4's changes: {}", self.compare(Step::Changed)?);
        self.check_of_kernel().map_err(|why| format!("after the second guest: {why}"))?;
        if !self.case.rough {
            self.look(Step::Again)?;
            said = format!("{said}; the kernel's: {}", self.compare(Step::Again)?);
            self.check_of_kernel().map_err(|why| format!("after the last mount: {why}"))?;
        }
        Ok(said)
    }

    fn file(&self, step: Step, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{}.{what}", self.case.name, step.name()))
    }

    /// Writes down what uext4 shows.
    fn look(&self, step: Step) -> Result<(), String> {
        let list = |keys: bool, mode: &str, file: PathBuf| {
            let work = r#""$PYTHON" "$FOLDER/shown.py" "$POINT" "$FILE" "$MODE""#;
            self.mounted(work, keys, &[("FILE", file.as_os_str()), ("MODE", mode.as_ref())])
        };
        if self.case.has("encrypt") {
            list(false, "locked", self.file(step, "locked.uext4"))?;
        }
        let mode = if self.case.rough { "rough" } else { "full" };
        list(true, mode, self.file(step, "uext4"))?;
        if self.case.has("quota") {
            let usage = self.verb(&["quota", "--json", &self.image.display().to_string()])?;
            write(&self.file(step, "quota.uext4"), &usage)?;
        }
        if self.case.has("verity") {
            let mut digests = String::new();
            for path in sealed(&read(&self.file(step, "uext4"))?) {
                let said = self.verb(&["verity", "--key", &self.key(), &self.inside(&path)])?;
                let digest = said.split(' ').next().unwrap_or("");
                digests.push_str(&format!("{} {digest}\n", hexadecimal(&path)));
            }
            write(&self.file(step, "digests.uext4"), &digests)?;
        }
        Ok(())
    }

    /// Changes the tree; how many changes.
    fn change(&self) -> Result<String, String> {
        if self.case.has("encrypt") {
            let folder = self.inside(&format!("/secret {SEED}"));
            self.verb(&["mkdir", &folder])?;
            self.verb(&["encrypt", "--key", &self.key(), &folder])?;
        }
        let features = self.case.features.join(",");
        let work = r#""$PYTHON" "$FOLDER/tree.py" "$POINT" "$FEATURES" "$SEED""#;
        let words = [("FEATURES", features.as_ref()), ("SEED", SEED.as_ref())];
        let changes = self.mounted(work, true, &words)?;
        if self.case.has("verity") {
            let path = |name: &str| self.inside(&format!("/sealed/{name}of {SEED}"));
            let key = self.key();
            let enable = ["verity", "--key", &key, "--enable"];
            self.verb(&[&enable[..], &["--salt", "", &path("sha256--")]].concat())?;
            let more = ["--hash-alg", "sha512", "--salt", "aa55", &path("sha512-aa55-")];
            self.verb(&[&enable[..], &more].concat())?;
        }
        if self.case.has("quota") {
            let image = self.image.display().to_string();
            self.verb(&["quota", "-g", "--set", "1001:500000:600000:3000:4000", &image])?;
        }
        Ok(changes.trim().to_owned())
    }

    /// What the kernel and uext4 show after a step; a remark.
    fn compare(&self, step: Step) -> Result<String, String> {
        let lines = same_lines(&self.file(step, "kernel"), &self.file(step, "uext4"))?;
        let mut said = format!("{lines} lines the same");
        if self.case.has("encrypt") {
            let [kernel, own] = ["locked.kernel", "locked.uext4"].map(|what| self.file(step, what));
            let lines =
                same_lines(&kernel, &own).map_err(|why| format!("without the key: {why}"))?;
            said = format!("{said}, {lines} without the key");
        }
        if self.case.has("quota") {
            said = format!("{said}, {} owners", self.compare_quota(step)?);
        }
        if self.case.has("verity") {
            said = format!(
                "{said}, {} digests",
                same_lines(&self.file(step, "digests.kernel"), &self.file(step, "digests.uext4"))?
            );
        }
        Ok(said)
    }

    fn compare_quota(&self, step: Step) -> Result<usize, String> {
        let kernel = usage_of_kernel(&read(&self.file(step, "quota.kernel"))?)?;
        let own = usage_of_uext4(&read(&self.file(step, "quota.uext4"))?)?;
        match kernel.iter().find(|(owner, counts)| own.get(*owner) != Some(counts)) {
            Some((owner, counts)) => {
                Err(format!("{owner:?}: the kernel counts {counts:?}, uext4 {:?}", own.get(owner)))
            }
            None if kernel.len() != own.len() => Err(format!(
                "the kernel counts for {} owners, uext4 for {}",
                kernel.len(),
                own.len()
            )),
            None => Ok(own.len()),
        }
    }

    /// `e2fsck -fn`, which must find nothing.
    fn check(&self) -> Result<(), String> {
        call(Command::new("e2fsck").arg("-fn").arg(&self.image)).map(drop)
    }

    /// The same after changes of Linux 6.1, which may count a reference to a value in an inode too
    /// many.
    fn check_of_kernel(&self) -> Result<(), String> {
        let findings = |why: &str| -> Vec<String> {
            why.lines().filter(|line| line.ends_with("? no")).map(str::to_owned).collect()
        };
        let is_count = |line: &String| line.starts_with("Extended attribute inode ");
        match self.check() {
            Err(why) if !findings(&why).is_empty() && findings(&why).iter().all(is_count) => Ok(()),
            other => other,
        }
    }

    fn inside(&self, path: &str) -> String {
        format!("{}:{path}", self.image.display())
    }

    fn key(&self) -> String {
        self.folder.join("key").display().to_string()
    }

    fn verb(&self, words: &[&str]) -> Result<String, String> {
        call(Command::new(self.command).args(words))
    }

    /// Runs a line of sh(1) while uext4 has the image mounted; what it printed.
    fn mounted(
        &self,
        work: &str,
        keys: bool,
        words: &[(&str, &std::ffi::OsStr)],
    ) -> Result<String, String> {
        let point = self.folder.join("mnt");
        fs::create_dir_all(&point).map_err(|error| format!("{}: {error}", point.display()))?;
        let mut options = "noatime".to_owned();
        if keys && self.case.has("encrypt") {
            options = format!("{options},key={}", self.key());
        }
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "600", "unshare", "--mount", "sh", "-c", MOUNTED])
            .env("UEXT4", self.command)
            .env("IMAGE", &self.image)
            .env("POINT", &point)
            .env("OPTIONS", options)
            .env("FOLDER", self.folder)
            .env("PYTHON", PYTHON)
            .env("WORK", work)
            .envs(words.iter().copied());
        call(&mut command)
    }
}

fn call(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("PATH", machine::search_path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{name}: {}\n{said}{complained}", output.status))
}
