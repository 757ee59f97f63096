//! `uext4 verity`: files whose every read is verified (fs-verity).
//!
//! Without an option each file is read whole, which verifies it, and its digest is printed as
//! `fsverity digest` prints it. `--enable` gives a file its Merkle tree first.

use std::ffi::OsString;
use std::ops::RangeInclusive;

use uext4::{FileKind, Volume};
use uext4_ondisk::verity::{Algorithm, Parameters};

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::output::Output;
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 verity disk.img:/bin/init", "the digest of a file that has a tree"),
    ("uext4 verity --enable disk.img:/bin/init", "give it a tree: it never changes again"),
    ("uext4 verity --enable --hash-alg sha512 disk.img:/bin/init", "with another hash function"),
];

/// Verify files that have a Merkle tree (fs-verity), or give them one
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Give the files a tree: their content never changes again
    #[arg(long)]
    enable: bool,
    /// Hash function: sha256 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = parse_algorithm)]
    hash_alg: Algorithm,
    /// Bytes per block of the tree: a power of two from 1024 to 4096, at most a block of the file
    /// system, which it is by default
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Salt of at most 32 bytes, in hexadecimal digits
    #[arg(long, value_name = "HEX", default_value = "", value_parser = parse_salt)]
    salt: Salt,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Sizes of a tree's blocks, in bytes.
const TREE_BLOCKS: RangeInclusive<u32> = 1024..=4096;

#[derive(Clone, Debug)]
struct Salt(Vec<u8>);

fn parse_algorithm(name: &str) -> std::result::Result<Algorithm, &'static str> {
    let all = [Algorithm::Sha256, Algorithm::Sha512];
    all.into_iter().find(|algorithm| algorithm.name() == name).ok_or("sha256 or sha512")
}

fn parse_salt(text: &str) -> std::result::Result<Salt, &'static str> {
    const WRONG: &str = "pairs of hexadecimal digits, at most 32";
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let salt: Vec<u8> = pairs.collect::<Option<_>>().ok_or(WRONG)?;
    if salt.len() > 32 { Err(WRONG) } else { Ok(Salt(salt)) }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let is_sound = |size: &u32| size.is_power_of_two() && TREE_BLOCKS.contains(size);
    if let Some(size) = args.block_size.filter(|size| !is_sound(size)) {
        let why = "want a power of two from 1024 to 4096";
        return Err(Why::new(why).at("verity", format!("--block-size {size}")));
    }
    let mut outcome = Outcome::default();
    let mut output = Output::new();
    for name in &args.paths {
        match one(args, &spec::in_image("verity", name)?) {
            Ok(line) => {
                output.bytes(line.as_bytes())?;
                output.bytes(b" ")?;
                output.name(name.as_encoded_bytes())?;
                output.line("")?;
            }
            Err(failure) => outcome.note(failure),
        }
    }
    output.finish()?;
    outcome.finish()
}

/// The digest of one file, which has been read.
fn one(args: &Args, path: &ImagePath) -> Result<String> {
    let access = if args.enable { Access::Write } else { Access::Read };
    let volume = image::volume("verity", &path.image, access)?;
    let digest = digest(args, &volume, path).at("verity", path);
    image::close("verity", &path.image, volume)?;
    digest
}

fn digest(args: &Args, volume: &Volume, path: &ImagePath) -> std::result::Result<String, Why> {
    let found = resolve(volume, &path.path, Last::Follow)?;
    let inode = found.inode();
    if volume.attr(inode).kind != FileKind::Regular {
        return Err(Why::new("not a regular file"));
    }
    if args.enable {
        let (algorithm, largest) = (args.hash_alg, volume.layout().block_size);
        let block_size = args.block_size.unwrap_or(largest.min(*TREE_BLOCKS.end()));
        let parameters = Parameters { algorithm, block_size, salt: args.salt.0.clone() };
        volume.enable_verity(inode, parameters)?;
    }
    let (parameters, digest) = volume.verity_digest(inode)?;
    let file = volume.open_file(inode)?;
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match file.read_at(at, &mut bytes)? {
            0 => break,
            count => at += count as u64,
        }
    }
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}:{hex}", parameters.algorithm.name()))
}
