//! `uext4 encrypt`: give an empty directory an encryption policy.

use std::ffi::OsString;

use uext4::MasterKey;
use uext4_ondisk::encryption::{KeyName, MODE_AES_256_CTS, MODE_AES_256_XTS, Policy};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::{keys, spec};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 encrypt --key key.bin disk.img:/home/alice", "encrypt what is made in it"),
    ("uext4 encrypt --padding 16 --key key.bin disk.img:/safe", "with names padded less"),
    (
        "uext4 encrypt --v1 --key 0123456789abcdef:key.bin disk.img:/old",
        "for systems before Linux 5.4",
    ),
];

/// Encrypt what will be made in an empty directory of an image
///
/// Contents are encrypted by AES-256-XTS, names by AES-256-CTS. The key is the one of --key.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// An empty directory, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    dir: OsString,
    /// A policy of version 1, which names the key by a descriptor
    #[arg(long)]
    v1: bool,
    /// Names are padded to a multiple of so many bytes
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = ["4", "8", "16", "32"])]
    padding: String,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = spec::in_image("encrypt", &args.dir)?;
    let given = keys::given();
    let [key] = &given[..] else {
        return Err(Why::new("needs one key: --key FILE").at("encrypt", &dir));
    };
    if args.v1 && !key.fits_version_1() {
        let why = "a policy of version 1 needs a key of 64 bytes";
        return Err(Why::new(why).at("encrypt", &dir));
    }
    let volume = image::volume("encrypt", &dir.image, Access::Write)?;
    let set = resolve(&volume, &dir.path, Last::Follow)
        .and_then(|found| Ok(volume.set_encryption_policy(found.inode(), &policy(args, key))?));
    image::close("encrypt", &dir.image, volume)?;
    set.at("encrypt", &dir)
}

fn policy(args: &Args, key: &MasterKey) -> Policy {
    let key = match args.v1 {
        true => KeyName::Descriptor(key.descriptor()),
        false => KeyName::Identifier(key.identifier()),
    };
    let flags = match &args.padding[..] {
        "4" => 0,
        "8" => 1,
        "16" => 2,
        _ => 3,
    };
    Policy {
        key,
        contents_mode: MODE_AES_256_XTS,
        names_mode: MODE_AES_256_CTS,
        flags,
        log2_data_unit: 0,
    }
}
