//! Encrypted directories: what uext4 writes the kernel reads with the key, and both show the same
//! names without it. A wrong key, a missing one and a directory that is not empty are refused.
//!
//! Fault model: a key, a vector or a padding that is derived in another way than fscrypt does (both
//! directions would agree with each other, so the kernel judges); names shown in another form; a
//! removal that needs the key. The kernel is asked as root, with keys given by python3.

#[macro_use]
mod common;

use common::kernel::Kernel;
use common::{Mounted, Scratch, assert_clean, at, no_mount, run_fails, run_ok, system};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// `FS_IOC_ADD_ENCRYPTION_KEY` of a key for policies of version 2, or by a descriptor.
const ADD_KEY: &str = r#"
import fcntl, os, struct, sys
key = open(sys.argv[2], 'rb').read()
name = bytes.fromhex(sys.argv[3])
argument = struct.pack('<II32sII32s', 1 if name else 2, 0, name, len(key), 0, b'')
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0xc0506617, bytearray(argument + key))
"#;
/// An unused record that has no room for hashes.
const UNUSED: [u8; 12] = [0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0];
const DESCRIPTOR: &str = "0123456789abcdef";

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Names of all lengths of a base64 digit, and one too long to be shown whole.
fn names() -> Vec<String> {
    (1..=40).chain([100, 150, 200, 255]).map(|len| "n".repeat(len)).collect()
}

fn content(n: usize) -> Vec<u8> {
    (0..n * 977).map(|at| (at * 31 + n) as u8).collect()
}

/// An image with one directory of each version of a policy.
fn encrypted(scratch: &Scratch) -> Option<std::path::PathBuf> {
    let image = scratch.image("image", 32, &["-b", "4096", "-O", "encrypt"])?;
    let key = scratch.path("key");
    // The kernel refuses a key of XTS whose halves are the same.
    fs::write(&key, (0..64).collect::<Vec<u8>>()).unwrap();
    let tree = scratch.path("tree");
    fs::create_dir_all(&tree).unwrap();
    for (n, name) in names().iter().enumerate() {
        fs::write(tree.join(name), content(n)).unwrap();
    }
    let target = "target/".repeat(30);
    std::os::unix::fs::symlink("short", tree.join("short link")).unwrap();
    std::os::unix::fs::symlink(&target, tree.join("long link")).unwrap();
    let (v1, v2) = (by_descriptor(&key), key.to_str().unwrap().to_owned());
    for (dir, key, more) in [("v1", &v1, &["--v1", "--padding", "4"][..]), ("v2", &v2, &[])] {
        run_ok([OsString::from("mkdir"), at(&image, &format!("/{dir}"))]);
        let mut encrypt = words(&["encrypt", "--key", key]);
        encrypt.extend(words(more));
        encrypt.push(at(&image, &format!("/{dir}")));
        run_ok(encrypt);
        let mut copy = words(&["cp", "-r", "--key", key]);
        copy.extend([tree.clone().into(), at(&image, &format!("/{dir}/tree"))]);
        run_ok(copy);
    }
    Some(image)
}

fn by_descriptor(key: &Path) -> String {
    format!("{DESCRIPTOR}:{}", key.display())
}

fn listed(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn listed_by_us(image: &Path, dir: &str) -> Vec<String> {
    let text = String::from_utf8(run_ok([OsString::from("ls"), at(image, dir)])).unwrap();
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_the_kernel_decrypts() {
    let scratch = Scratch::new();
    let Some(image) = encrypted(&scratch) else { skip!("no mke2fs") };
    assert_clean(&image);
    let dir = scratch.path("kernel");
    let shown: Vec<String> = ["/v1", "/v2"].map(|dir| listed_by_us(&image, dir)).concat();
    let Some(_kernel) = Kernel::mount(&image, &dir) else { skip!("no kernel mount") };
    let by_kernel = [listed(&dir.join("v1")), listed(&dir.join("v2"))].concat();
    assert_eq!(shown, by_kernel);
    for (version, name) in [("v1", DESCRIPTOR), ("v2", "")] {
        let hidden = dir.join(version).join(&listed(&dir.join(version))[0]);
        let of_us = format!("/{version}/{}", hidden.file_name().unwrap().to_str().unwrap());
        assert_eq!(listed_by_us(&image, &of_us), listed(&hidden));
        let mut add = system("python3");
        let add = add.args(["-c", ADD_KEY]).arg(&dir).arg(scratch.path("key")).arg(name);
        let added = add.status();
        if !added.is_ok_and(|status| status.success()) {
            skip!("no python3, or no encryption in the kernel");
        }
        let tree = dir.join(version).join("tree");
        for (n, name) in names().iter().enumerate() {
            assert!(fs::read(tree.join(name)).unwrap() == content(n), "{version}/{name}");
        }
        assert_eq!(fs::read_link(tree.join("short link")).unwrap().to_str(), Some("short"));
        let target = fs::read_link(tree.join("long link")).unwrap();
        assert_eq!(target.to_str().unwrap(), "target/".repeat(30));
    }
}

/// `--key` of the command, and `-o key=`; a key that is too short for version 1 is refused.
#[test]
fn a_mount_takes_the_key_of_the_command() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let Some(image) = encrypted(&scratch) else { skip!("no mke2fs") };
    let (key, dir) = (scratch.path("key"), scratch.path("mnt"));
    fs::create_dir_all(&dir).unwrap();
    let mut mount = words(&["mount", "--key"]);
    mount.extend([key.clone().into(), image.clone().into(), dir.clone().into()]);
    run_ok(mount);
    let mounted = Mounted::of(&dir);
    let shown = listed(&mounted.path("v2/tree"));
    mounted.end();
    let mut wanted = names();
    wanted.extend(["short link", "long link"].map(str::to_owned));
    wanted.sort();
    assert_eq!(shown, wanted);

    fs::write(&key, [1; 32]).unwrap();
    run_ok([OsString::from("mkdir"), at(&image, "/short")]);
    let mut encrypt = words(&["encrypt", "--v1", "--key"]);
    encrypt.extend([key.into(), at(&image, "/short")]);
    run_fails(encrypt, "needs a key of 64 bytes");
    assert_clean(&image);
}

#[test]
fn without_the_key_names_can_be_removed_and_nothing_read() {
    let scratch = Scratch::new();
    let Some(image) = encrypted(&scratch) else { skip!("no mke2fs") };
    let tree = format!("/v2/{}", listed_by_us(&image, "/v2")[0]);
    let hidden = listed_by_us(&image, &tree);
    assert_eq!(hidden.len(), names().len() + 2);
    let longest = hidden.iter().max_by_key(|name| name.len()).unwrap();
    let inside = |name: &str| at(&image, &format!("{tree}/{name}"));
    run_fails([OsString::from("cat"), inside(longest)], "the key was not given");
    let out = scratch.path("out");
    run_fails([OsString::from("cp"), inside(longest), out.clone().into()], "the key was not given");
    assert!(!out.exists(), "a file was made of one that cannot be read");
    run_fails([OsString::from("mkdir"), inside("new")], "the key was not given");
    run_fails([OsString::from("cat"), inside("no such name")], "not found");
    let wrong = scratch.path("wrong");
    fs::write(&wrong, [8; 64]).unwrap();
    let with = |verb: &str, key: &Path, path: &str| {
        let mut all = words(&[verb, "--key", key.to_str().unwrap()]);
        all.push(at(&image, path));
        all
    };
    run_fails(with("cat", &wrong, &format!("{tree}/{longest}")), "the key was not given");
    run_fails(with("encrypt", &wrong, "/v2"), "exists already");
    run_fails(with("encrypt", &wrong, "/"), "the root is not encrypted");
    fs::write(&wrong, [8; 31]).unwrap();
    run_fails(with("ls", &wrong, "/"), "a key of 31 bytes; it must have 32 to 64");
    run_ok([OsString::from("rm"), inside(longest)]);
    assert_eq!(listed_by_us(&image, &tree).len(), hidden.len() - 1);
    let left = String::from_utf8(run_ok(with("ls", &scratch.path("key"), "/v2/tree"))).unwrap();
    assert_eq!(left.lines().count(), hidden.len() - 1);
    run_ok([OsString::from("rm"), "-r".into(), at(&image, &tree)]);
    assert_clean(&image);
}

/// A descriptor says nothing of its key, so another key may be given by it. Names that it makes
/// impossible are shown as without a key.
#[test]
fn a_wrong_key_by_the_right_descriptor() {
    let scratch = Scratch::new();
    let Some(image) = encrypted(&scratch) else { skip!("no mke2fs") };
    let wrong = scratch.path("wrong");
    fs::write(&wrong, (1..65).collect::<Vec<u8>>()).unwrap();
    let many = scratch.path("many");
    fs::create_dir_all(&many).unwrap();
    let mut copy = words(&["cp", "--key", &by_descriptor(&scratch.path("key"))]);
    for n in 0..400 {
        let file = many.join(format!("{n} {}", "n".repeat(40)));
        fs::write(&file, "").unwrap();
        copy.push(file.into());
    }
    copy.push(at(&image, "/v1"));
    run_ok(copy);
    // Of so many names some have a slash in the wrong plaintext, whatever the nonce is.
    let mut ls = words(&["ls", "--key", &by_descriptor(&wrong)]);
    ls.push(at(&image, "/v1"));
    run_ok(ls);
    assert_eq!(listed_by_us(&image, "/v1").len(), 401);
}

/// An image whose directory `/d` is encrypted and folds case, with many names.
fn folded(scratch: &Scratch) -> std::path::PathBuf {
    let image = scratch.path("folded");
    let (key, tree) = (scratch.path("key"), scratch.path("tree"));
    fs::write(&key, [9; 40]).unwrap();
    fs::create_dir_all(&tree).unwrap();
    for n in 0..200 {
        fs::write(tree.join(format!("Name{n}")), content(n % 3)).unwrap();
    }
    let mut make = words(&["mkfs", "-q", "-b", "1024", "-O", "encrypt,casefold,^metadata_csum"]);
    make.extend([image.clone().into(), "32M".into()]);
    run_ok(make);
    run_ok([OsString::from("mkdir"), at(&image, "/d")]);
    run_ok([words(&["chattr", "+F"]), vec![at(&image, "/d")]].concat());
    let with_key = |verb: &[&str], operands: &[OsString]| {
        let key = words(&["--key", key.to_str().unwrap()]);
        run_ok([words(verb), key, operands.to_vec()].concat())
    };
    with_key(&["encrypt"], &[at(&image, "/d")]);
    with_key(&["cp", "-r"], &[tree.join(".").into(), at(&image, "/d")]);
    let shown = with_key(&["cat"], &[at(&image, "/d/nAME7")]);
    assert!(shown == content(1));
    image
}

/// The hashes in a name that is shown without the key, and the length of what is stored.
fn taken_apart(shown: &str) -> ([u8; 8], usize) {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        _ => 63,
    };
    let bits = shown.bytes().take(11).fold(0_u128, |bits, byte| (bits << 6) | digit(byte) as u128);
    (((bits >> 2) as u64).to_be_bytes(), shown.len() * 6 / 8 - 8)
}

/// A change of an image.
type Damage<'a> = &'a dyn Fn(&mut [u8]);

/// Each damage is one to e2fsck too, and the sound image is sound to both.
#[test]
fn directories_that_fold_case_are_judged_as_by_e2fsck() {
    let scratch = Scratch::new();
    let image = folded(&scratch);
    if !common::has("e2fsck") {
        skip!("no e2fsck");
    }
    let names = listed_by_us(&image, "/d");
    assert_eq!(names.len(), 200);
    run_ok([OsString::from("rm"), at(&image, &format!("/d/{}", names[0]))]);
    let names = listed_by_us(&image, "/d");
    assert_eq!(names.len(), 199);
    let sound = fs::read(&image).unwrap();
    // The bytes of a name's hashes, and where its record begins, in the directory and in the log.
    let places = |name: &str| -> Vec<(usize, usize)> {
        let (hashes, len) = taken_apart(name);
        let all = (0..sound.len() - 8).step_by(4);
        let all = all.filter(|at| sound[*at..*at + 8] == hashes);
        all.map(|at| (at, at - (8 + len).next_multiple_of(4))).collect()
    };
    let len =
        |record: usize| usize::from(u16::from_le_bytes([sound[record + 4], sound[record + 5]]));
    let hash = |name: &String| {
        let ([a, b, c, d, ..], _) = taken_apart(name);
        u32::from_le_bytes([a, b, c, d])
    };
    let least = places(names.iter().min_by_key(|name| hash(name)).unwrap());
    // A record with a gap for an unused one of 12 bytes, which has room for no hashes.
    let has_gap = |places: &[(usize, usize)]| {
        places.iter().all(|(at, record)| record + len(*record) >= at + 8 + 12)
    };
    let roomy = names.iter().map(|name| places(name)).find(|places| has_gap(places)).unwrap();
    let is_root = |at: &usize| sound[at + 24..at + 30] == [0, 0, 0, 0, 6, 8];
    let roots: Vec<usize> = (0..sound.len()).step_by(1024).filter(is_root).collect();
    assert!(!roots.is_empty(), "no tree with SipHash");
    let unused = |bytes: &mut [u8], places: &[(usize, usize)]| {
        for &(_, record) in places {
            let len = len(record);
            let rest = u16::try_from(len - 12).unwrap().to_le_bytes();
            bytes[record + 4..record + 6].copy_from_slice(&rest);
            bytes[record + len - 12..record + len].copy_from_slice(&UNUSED);
        }
    };
    let damages: [(&str, bool, Damage<'_>); 6] = [
        ("none", true, &|_| {}),
        ("a hash of another leaf", false, &|bytes| {
            least.iter().for_each(|&(at, _)| bytes[at..at + 4].fill(0xf0));
        }),
        ("a minor hash", true, &|bytes| least.iter().for_each(|&(at, _)| bytes[at + 4] ^= 1)),
        ("another function", false, &|bytes| roots.iter().for_each(|at| bytes[at + 28] = 1)),
        ("no room for hashes", false, &|bytes| unused(bytes, &least)),
        ("a short unused record", false, &|bytes| unused(bytes, &roomy)),
    ];
    for (damage, is_sound, apply) in damages {
        let mut bytes = sound.clone();
        apply(&mut bytes);
        fs::write(&image, bytes).unwrap();
        let theirs = system("e2fsck").args(["-fn"]).arg(&image).output().unwrap();
        let ours = common::run([words(&["fsck", "-n"]), vec![image.clone().into()]].concat());
        let text = String::from_utf8_lossy(&theirs.stdout);
        let verdicts = (theirs.status.success(), ours.status.success());
        println!("{damage}: {verdicts:?}");
        assert_eq!(verdicts, (is_sound, is_sound), "{damage}: e2fsck, uext4 fsck\n{text}");
    }
}
