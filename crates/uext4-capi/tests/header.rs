//! `include/uext4.h` is what the functions of the crate give.
//!
//! Fault model: a function, structure or comment that changed without its header.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::generate_with_config(folder, config).unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = folder.join("include/uext4.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert!(
        committed == made,
        "include/uext4.h is not what the source gives: \
         UPDATE_HEADER=1 cargo test -p uext4-capi --test header"
    );
}
