//! Real fio on the ioengine of `integrations/fio`, as a part of `cargo xtask test`.
//!
//! # What
//! Fault model: what fio wrote through the engine is lost, torn or misplaced (fio verifies each
//! block by CRC-32C and by the offset in its header), the volume is damaged or left dirty (`e2fsck
//! -fn` and `uext4 fsck` after every case), a bad call ends without one clear line. Mutation check:
//! a byte is changed behind fio's back, and its verification must fail.
//!
//! Not covered: crashes (the crash harness); writes that race on one block.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::Trouble;
use super::ioengine::{self, Profile};
use crate::{machine, workspace};

const IMAGE_MIB: u64 = 256;

/// Verified loads: name, words for fio. Each starts on a fresh image.
const CASES: &[(&str, &str)] = &[
    (
        "buffered, 4 threads",
        "--name=a --rw=randrw --bssplit=512/20:4k/40:12k/20:64k/20 --size=8M --numjobs=4",
    ),
    (
        "buffered, one file, 4 parts, fsync",
        "--name=a --rw=randwrite --bs=4k --filename=one --size=4M --offset_increment=4M \
         --numjobs=4 --fsync=16 --fdatasync=5",
    ),
    (
        "sync=1, directories, create_on_open",
        "--name=a --rw=write --bs=8k --filename=some/where/file --size=1M --sync=1 \
         --create_on_open=1",
    ),
    (
        "many files, fallocate=keep",
        "--name=a --rw=randwrite --bs=4k --size=8M --nrfiles=64 --numjobs=2 --fallocate=keep \
         --file_service_type=random",
    ),
    (
        "holes: trims before writes",
        "--name=a --rw=trimwrite --bs=4k --size=4M --overwrite=1 --numjobs=2",
    ),
    (
        "direct, 4 threads",
        "--name=a --rw=randrw --direct=1 --bssplit=512/20:4k/40:12k/20:64k/20 --size=8M \
         --numjobs=4 --fsync=50",
    ),
    (
        "direct, overwrites, O_DSYNC",
        "--name=a --rw=randwrite --direct=1 --bs=4k --size=8M \
      --overwrite=1 --sync=dsync",
    ),
    (
        "queued, 64 deep, into nothing",
        "--name=a --rw=randwrite --direct=1 --iodepth=64 --bs=4k --size=16M --fallocate=none \
         --numjobs=2",
    ),
    (
        "queued, 32 deep, one file, overwrites, fsync, trims",
        "--name=a --rw=randtrimwrite --direct=1 --iodepth=32 --bsrange=4k-16k --bs_unaligned=0 \
         --filename=one --size=8M --offset_increment=8M --numjobs=3 --overwrite=1 --fsync=64",
    ),
    (
        "queued, polled and in batches, O_DSYNC",
        "--name=a --rw=randwrite --direct=1 --iodepth=16 --iodepth_batch=4 \
         --iodepth_batch_complete_min=0 --iodepth_batch_complete_max=8 --bs=8k --size=4M \
         --sync=dsync --verify_async=1",
    ),
    (
        "buffered, direct and queued jobs, each on its part of one file",
        "--size=8M --filename=one --overwrite=1 --bs=4k --rw=randwrite --name=buffered --offset=0 \
         --fsync=100 --name=direct --offset=8M --direct=1 --name=queued --offset=16M --direct=1 \
         --iodepth=16",
    ),
    ("data=journal", "--name=a --rw=randwrite --bs=4k --size=4M --mount_opts=data=journal"),
];

/// A job file of the founding threads.
struct Job {
    name: &'static str,
    /// Lines by which it is made small, and what takes their place.
    smaller: &'static [(&'static str, &'static str)],
    /// Words of each of its runs.
    runs: &'static [&'static [&'static str]],
}

const JOBS: &[Job] = &[
    Job {
        name: "e0-fsync-storm",
        smaller: &[("numjobs=2048", "numjobs=64"), ("filesize=28800000", "filesize=288000")],
        runs: &[&["--create_only=1"], &["--runtime=2", "--time_based"]],
    },
    Job {
        name: "e1b-append-frag",
        smaller: &[("size=1G", "size=2M"), ("numjobs=64", "numjobs=16")],
        runs: &[&[]],
    },
    Job {
        name: "e2-dax-overwrite",
        smaller: &[
            ("size=16G", "size=32M"),
            ("numjobs=1", "numjobs=2"),
            ("ramp_time=30", "ramp_time=0"),
            ("runtime=60", "runtime=1"),
        ],
        runs: &[&[]],
    },
    Job { name: "e3-fsync-batch", smaller: &[("runtime=60", "runtime=1")], runs: &[&[]] },
    Job {
        name: "e4-aio-dio",
        smaller: &[("size=2G", "size=32M"), ("runtime=60", "runtime=1")],
        runs: &[&[]],
    },
];

/// Builds the engine and runs everything with it; `command` is the built uext4.
pub(crate) fn run(command: &Path) -> Result<String, Trouble> {
    for program in ["mke2fs", "e2fsck", "debugfs"] {
        if machine::program(program).is_none() {
            return Err(Trouble::Missing(format!("{program} is not installed")));
        }
    }
    let engine = ioengine::build(Profile::Debug, None)?;
    let bench = Bench::set_up(command, &engine).map_err(Trouble::Fault)?;
    bench.all().map_err(Trouble::Fault)?;
    let count = CASES.len() + JOBS.len();
    Ok(format!("{count} loads clean, a changed byte found"))
}

/// The suite as a verb.
pub(crate) fn verb(command: &Path) -> Result<(), String> {
    run(command).map(|remark| println!("{remark}")).map_err(Trouble::into_error)
}

/// A folder with an image.
struct Bench {
    folder: PathBuf,
    image: PathBuf,
    command: PathBuf,
    engine: PathBuf,
}

impl Bench {
    fn set_up(command: &Path, engine: &Path) -> Result<Bench, String> {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base.to_path_buf() } else { workspace::target() };
        let folder = base.join(format!("uext4-fio-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let image = folder.join("image");
        Ok(Bench { folder, image, command: command.to_owned(), engine: engine.to_owned() })
    }

    fn all(&self) -> Result<(), String> {
        for (name, words) in CASES {
            self.format()?;
            let words: Vec<&str> = words.split_whitespace().collect();
            self.verified(&words).map_err(|why| format!("{name}: {why}"))?;
            println!("{name}: verified, clean");
        }
        for job in JOBS {
            self.format()?;
            self.job(job).map_err(|why| format!("{}: {why}", job.name))?;
            println!("{}: clean", job.name);
        }
        self.mutation_check()?;
        self.lab_job()?;
        self.bad_calls()
    }

    /// A job file by `uext4 lab fio`: the library is one of its targets.
    fn lab_job(&self) -> Result<(), String> {
        let job = self.folder.join("lab.fio");
        let text = "[global]\nrw=randwrite\nbs=4k\nsize=1m\nioengine=libaio\niodepth=4\n\
                    [one]\nnumjobs=2\nfsync=4\n";
        fs::write(&job, text).map_err(|error| format!("{}: {error}", job.display()))?;
        let output = Command::new(&self.command)
            .args(["lab", "fio", "--targets", "uext4", "--image-size", "64M", "--rounds", "1"])
            .args(["--variant", "nodelalloc", "--json", "--engine"])
            .args([&self.engine, &job])
            .output()
            .map_err(|error| format!("uext4 lab fio: {error}"))?;
        succeeded(&output)?;
        let said = text_of(&output.stdout);
        let rates = said.lines().filter(|line| line.contains(r#""metric":"iops""#)).count();
        if rates != 2 {
            return Err(format!("uext4 lab fio: {rates} rates of two variants: {said}"));
        }
        println!("a job file in the lab: two variants of the library, clean");
        Ok(())
    }

    fn format(&self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.image.display());
        let _ = fs::remove_file(&self.image);
        let file = fs::File::create(&self.image).map_err(failed)?;
        file.set_len(IMAGE_MIB << 20).map_err(failed)?;
        drop(file);
        self.tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096"])
    }

    /// A load whose every block fio reads back, at once and again from a fresh mount.
    fn verified(&self, words: &[&str]) -> Result<(), String> {
        // Before the first --name: for every job.
        let verify = ["--verify=crc32c", "--randrepeat=1"];
        let output = self.fio(&[&verify, words].concat())?;
        succeeded(&output)?;
        self.check()
    }

    fn job(&self, job: &Job) -> Result<(), String> {
        let name = job.name;
        let path = workspace::root().join("integrations/fio/jobs").join(format!("{name}.fio"));
        let mut text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for (from, to) in job.smaller {
            let (from, to) = (format!("\n{from}\n"), format!("\n{to}\n"));
            if !text.contains(&from) {
                return Err(format!("the job has no line '{}'", from.trim()));
            }
            text = text.replace(&from, &to);
        }
        let small = self.folder.join(format!("{name}.fio"));
        fs::write(&small, text).map_err(|error| format!("{}: {error}", small.display()))?;
        let small = small.to_str().ok_or("a path that is not UTF-8")?;
        for words in job.runs {
            succeeded(&self.call(&[words, &[small][..]].concat())?)?;
            self.check()?;
        }
        Ok(())
    }

    /// A byte of a file is changed in the image: fio must object, where it did not before.
    fn mutation_check(&self) -> Result<(), String> {
        let words = ["--name=a", "--bs=4k", "--size=1M", "--filename=f", "--verify=crc32c"];
        let write = [&words[..], &["--rw=write", "--do_verify=0"]].concat();
        let read = [&words[..], &["--rw=read"]].concat();
        self.format()?;
        succeeded(&self.fio(&write)?)?;
        succeeded(&self.fio(&read)?)?;
        let blocks = self.said("debugfs", &["-R", "blocks /f"])?;
        let number = |block: &str| block.parse::<u64>().ok();
        let block = blocks.split_whitespace().filter_map(number).nth(100);
        let block = block.ok_or_else(|| format!("debugfs: no blocks in '{blocks}'"))?;
        flip(&self.image, block * 4096 + 2000)
            .map_err(|error| format!("{}: {error}", self.image.display()))?;
        let output = self.fio(&read)?;
        if output.status.success() || !text(&output).contains("verify") {
            return Err(format!("a changed byte was not found:\n{}", text(&output)));
        }
        self.check()
    }

    /// Each ends with one line that says what is wrong.
    fn bad_calls(&self) -> Result<(), String> {
        let words = ["--name=a", "--rw=write", "--bs=4k", "--size=64k", "--numjobs=3"];
        let image = self.image.display().to_string();
        let none = format!("--image={image}.none");
        let own = format!("--image={image}");
        let broken = self.folder.join("broken");
        let made = fs::write(&broken, vec![0; 1 << 20]);
        made.map_err(|error| format!("{}: {error}", broken.display()))?;
        let broken = format!("--image={}", broken.display());
        let calls: &[(&[&str], &str)] = &[
            (&["--thread", &none], "no such file"),
            (&["--thread", &broken], "no ext4 superblock"),
            (&["--thread"], "image= names no image"),
            (&[&own], "set thread=1"),
            (&["--thread", &own, "--mount_opts=frob"], "mount option 'frob': unknown"),
            (&["--thread", &own, "--filename=../a"], "Invalid argument"),
            (&["--thread", &own, "--fsync_on_close=1"], "end_fsync"),
        ];
        for (call, line) in calls {
            let output = self.call(&[&[&*self.engine_word()], &words[..], call].concat())?;
            one_line(&output, line)?;
        }
        let held = fs::File::open(&self.image).and_then(|file| file.lock().map(|()| file));
        let held = held.map_err(|error| format!("{image}: {error}"))?;
        one_line(&self.fio(&words)?, "in use")?;
        drop(held);
        self.check()
    }

    fn engine_word(&self) -> String {
        format!("--ioengine=external:{}", self.engine.display())
    }

    /// fio with threads on the image.
    fn fio(&self, words: &[&str]) -> Result<Output, String> {
        let image = format!("--image={}", self.image.display());
        self.call(&[&[&*self.engine_word(), &image, "--thread"], words].concat())
    }

    fn call(&self, words: &[&str]) -> Result<Output, String> {
        Command::new("fio")
            .args(words)
            .env("UEXT4_FIO", &self.engine)
            .env("IMAGE", &self.image)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("fio: {error}"))
    }

    /// Both checkers, which must find nothing.
    fn check(&self) -> Result<(), String> {
        self.tool("e2fsck", &["-fn"])?;
        let uext4 = self.command.to_str().ok_or("a path that is not UTF-8")?;
        self.tool(uext4, &["fsck"])
    }

    fn tool(&self, program: &str, words: &[&str]) -> Result<(), String> {
        self.said(program, words).map(|_| ())
    }

    fn said(&self, program: &str, words: &[&str]) -> Result<String, String> {
        let output = Command::new(program)
            .args(words)
            .arg(&self.image)
            .env("PATH", machine::search_path())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{program}: {}\n{}", output.status, text(&output)))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn flip(image: &Path, offset: u64) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(image)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[!byte[0]], offset)
}

fn text(output: &Output) -> String {
    text_of(&output.stdout) + &text_of(&output.stderr)
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) -> Result<(), String> {
    if output.status.success() {
        return Ok(());
    }
    Err(format!("fio: {}\n{}", output.status, text(output)))
}

/// fio failed, and the engine said so once, in words that contain `wanted`.
fn one_line(output: &Output, wanted: &str) -> Result<(), String> {
    let said = text(output);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("fio: uext4:")).collect();
    if !output.status.success() && lines.len() == 1 && lines[0].contains(wanted) {
        return Ok(());
    }
    Err(format!("one line with '{wanted}' was wanted:\n{said}"))
}
