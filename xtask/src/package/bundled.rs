//! What is linked into the command and is no crate: C libraries that crates bring along, the
//! standard library of Rust, and the C library of the static binary.

use std::fs;
use std::path::Path;

/// A library that is linked in and is no crate.
pub(super) struct Bundled {
    pub(super) name: &'static str,
    pub(super) version: String,
    pub(super) licence: &'static str,
    /// Text of the licence, if it is not one that the crates come with.
    pub(super) text: String,
}

/// What a crate in `folder` brings along.
pub(super) fn of_crate(name: &str, version: &str, folder: &Path) -> Option<Bundled> {
    match name {
        "liblzma-sys" => Some(Bundled {
            name: "xz",
            version: xz_version(&read(&folder.join("xz/src/liblzma/api/lzma/version.h"))),
            licence: "0BSD",
            text: read(&folder.join("xz/COPYING.0BSD")),
        }),
        "zstd-sys" => Some(Bundled {
            name: "zstd",
            version: version.split_once("+zstd.").map_or("", |(_, of_zstd)| of_zstd).to_owned(),
            licence: "BSD-3-Clause",
            text: read(&folder.join("zstd/LICENSE")),
        }),
        _ => None,
    }
}

/// What comes with the compiler.
pub(super) fn of_compiler() -> [Bundled; 2] {
    let rustc = super::output(std::process::Command::new("rustc").arg("--version"));
    let version = rustc.unwrap_or_default();
    let version = version.split_whitespace().nth(1).unwrap_or_default().to_owned();
    [
        Bundled {
            name: "rust-std",
            version: version.clone(),
            licence: "MIT OR Apache-2.0",
            text: String::new(),
        },
        Bundled {
            name: "musl",
            version: format!("of Rust {version}"),
            licence: "MIT",
            text: "musl, in the static binary only, is under the MIT licence:\n\
                   Copyright (c) 2005-2020 Rich Felker, et al.\n\n"
                .to_owned()
                + MIT,
        },
    ]
}

const MIT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining
a copy of this software and associated documentation files (the
\"Software\"), to deal in the Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to
permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be
included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND,
EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.
IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,
TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The version that the header of liblzma defines, part by part.
fn xz_version(header: &str) -> String {
    let part = |name: &str| {
        let start = format!("#define LZMA_VERSION_{name} ");
        header.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default().trim()
    };
    [part("MAJOR"), part("MINOR"), part("PATCH")].join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_xz_is_that_of_its_header() {
        let header = "/** a */\n#define LZMA_VERSION_MAJOR 5\n\n#define LZMA_VERSION_MINOR 8\n\
                      #define LZMA_VERSION_PATCH 4\n#define LZMA_VERSION (LZMA_VERSION_MAJOR)\n";
        assert_eq!(xz_version(header), "5.8.4");
    }
}
