//! Network block devices by TCP and by TLS.
//!
//! Fault model: a server that nobody vouches for is talked to, or one with another name; data goes
//! without TLS where the URI asks for it; a client is let in without its certificate; the refusal
//! is no line that says why. Not covered: keys that are shared (PSK), which are refused as a URI.

#[macro_use]
mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use common::nbd::{LEN, Real, all_verbs, copied};
use common::{Scratch, assert_clean, has, run_fails, run_ok, shell};

/// Makes an authority in `dir/ca`, and a server's folder, a client's with a certificate of its own,
/// one without, and one that trusts another authority. All names are those that nbdkit and libnbd
/// look for.
const CERTIFICATES: &str = "
key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
mkdir server client bare stranger
authority() {
  openssl req -x509 $key -keyout $1/ca-key.pem -out $1/ca-cert.pem -subj /CN=authority
}
signed() { # FOLDER ROLE EXTENSION
  openssl req $key -keyout $1/$2-key.pem -out $1/$2.csr -subj /CN=$2
  echo $3 >$1/ext
  openssl x509 -req -in $1/$2.csr -CA server/ca-cert.pem -CAkey server/ca-key.pem \
    -CAcreateserial -extfile $1/ext -out $1/$2-cert.pem
}
authority server
authority stranger
signed server server subjectAltName=DNS:localhost
signed client client extendedKeyUsage=clientAuth
cp server/ca-cert.pem client
cp server/ca-cert.pem bare
";

/// A folder with certificates, and a file for a server; `None`: a program is missing.
fn prepared(scratch: &Scratch) -> Option<PathBuf> {
    if !has("nbdkit") || !has("openssl") {
        return None;
    }
    shell(CERTIFICATES, scratch.dir.path());
    let file = scratch.path("disk");
    File::create(&file).unwrap().set_len(LEN).unwrap();
    Some(file)
}

fn server(scratch: &Scratch, file: &Path, words: &[&str]) -> Real {
    let certificates = format!("--tls-certificates={}", scratch.path("server").display());
    Real::nbdkit(scratch, file, &[&["--tls=require", &certificates], words].concat()).unwrap()
}

/// A URI of the server with TLS, for a client with that folder.
fn trusting(scratch: &Scratch, server: &Real, folder: &str) -> OsString {
    let folder = scratch.path(folder);
    server.uri_of("nbds+unix", &format!("&tls-certificates={}", folder.display()))
}

#[test]
fn verbs_work_by_tls() {
    let scratch = Scratch::new();
    let Some(file) = prepared(&scratch) else { skip!("no nbdkit or openssl") };
    let server = server(&scratch, &file, &[]);
    let uri = trusting(&scratch, &server, "bare");
    all_verbs(&scratch, &uri);
    if let Some(copy) = copied(&scratch, &uri) {
        assert_clean(&copy);
    }
    drop(server);
    assert_clean(&file);
}

#[test]
fn verbs_work_by_tcp() {
    let scratch = Scratch::new();
    let file = scratch.path("disk");
    File::create(&file).unwrap().set_len(LEN).unwrap();
    let Some(server) = Real::nbdkit_by_tcp(&file, &[]) else { skip!("no nbdkit") };
    all_verbs(&scratch, &server.uri());
    drop(server);
    assert_clean(&file);
}

#[test]
fn what_is_not_trusted_is_refused_by_a_line() {
    let scratch = Scratch::new();
    let Some(file) = prepared(&scratch) else { skip!("no nbdkit or openssl") };
    let before = fs::read(&file).unwrap();
    let refused = |uri: &OsString, what: &str| {
        run_fails(["-q".into(), "mkfs".into(), uri.clone()], what);
        run_fails(["info".into(), uri.clone()], what);
    };

    let asks = server(&scratch, &file, &[]);
    refused(&asks.uri_of("nbd+unix", ""), "asks for TLS: nbds");
    refused(&trusting(&scratch, &asks, "stranger"), "TLS: invalid peer certificate");
    let certificates = format!("&tls-certificates={}", scratch.path("bare").display());
    let other = asks.uri_of("nbds+unix", &format!("{certificates}&tls-hostname=else.example"));
    refused(&other, "not valid for name \"else.example\"");
    refused(&trusting(&scratch, &asks, "nothing"), "ca-cert.pem");
    drop(asks);

    let has_none = Real::nbdkit(&scratch, &file, &[]).unwrap();
    refused(&trusting(&scratch, &has_none, "bare"), "does not allow TLS here");
    drop(has_none);

    let verifies = server(&scratch, &file, &["--tls-verify-peer"]);
    refused(&trusting(&scratch, &verifies, "bare"), "TLS: ");
    assert!(fs::read(&file).unwrap() == before, "a refused client has written");
    let known = trusting(&scratch, &verifies, "client");
    run_ok(["-q".into(), "mkfs".into(), known.clone()]);
    run_ok(["-q".into(), "fsck".into(), known]);
}
