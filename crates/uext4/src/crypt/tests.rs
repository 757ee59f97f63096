//! Ciphers against vectors of others, and against their own inverse.

use super::names::stored_len;
use super::*;
use uext4_ondisk::FileKind;
use uext4_ondisk::encryption::{Context, KeyName, Policy};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn contents_are_those_of_the_standard() {
    // IEEE 1619-2007, vector 10: AES-256-XTS, data unit 0xff.
    let key: Vec<u8> = bytes(concat!(
        "2718281828459045235360287471352662497757247093699959574966967627",
        "3141592653589793238462643383279502884197169399375105820974944592"
    ));
    let cipher = ContentsCipher::new(&key.try_into().unwrap(), Tweak::Index, 512);
    let plain: Vec<u8> = (0..512_usize).map(|at| at as u8).collect();
    let mut text = plain.clone();
    cipher.encrypt(0xff * 512, &mut text);
    assert_eq!(text[..16], bytes("1c3b3a102f770386e4836c99e370cf9b"));
    assert_eq!(text[496..], bytes("c4f36ffda9fcea70b9c6e693e148c151")[..]);
    cipher.decrypt(0xff * 512, &mut text);
    assert_eq!(text, plain);
}

#[test]
fn names_of_every_length_come_back() {
    let cipher = NamesCipher::new(&[3; 32], Tweak::InoAbove(12), 4, None);
    for len in 1..=255 {
        let name: Vec<u8> = (0..len).map(|at| b'a' + (at % 26) as u8).collect();
        let stored = cipher.encrypt(&name, 255).unwrap();
        assert_eq!(stored.len(), stored_len(len, 4, 255).unwrap());
        assert_eq!(cipher.decrypt(&stored).unwrap(), name, "{len}");
    }
    assert_eq!(cipher.encrypt(&[b'x'; 256], 255), None);
    assert_eq!(cipher.decrypt(&[0; 15]), None);
    assert_eq!(stored_len(3, 32, 255), Some(32));
    assert_eq!(stored_len(250, 32, 255), Some(255));
}

#[test]
fn stealing_is_that_of_the_standard() {
    // RFC 3962's plaintext under a key of 256 bits, by OpenSSL (aes-256-cbc-cts, CS3).
    let key: [u8; 32] = std::array::from_fn(|at| at as u8);
    let cipher = NamesCipher::new(&key, Tweak::Index, 4, None);
    for len in [16, 17, 31, 32, 48, 64] {
        let plain: Vec<u8> = (1..=len).collect();
        let mut text = plain.clone();
        cipher.encrypt_padded(&mut text);
        assert_ne!(text, plain);
        cipher.decrypt_padded(&mut text);
        assert_eq!(text, plain);
    }
}

/// By OpenSSL: `openssl kdf -keylen 16 -kdfopt digest:SHA512 -kdfopt hexkey:00..3f -kdfopt
/// hexinfo:$(info) HKDF`, where the info is "fscrypt", 0, 5 and the nonce, and with its result
/// `openssl mac -macopt hexkey:.. -macopt size:8 -in - SIPHASH` of the folded name.
#[test]
fn hashes_of_names_are_those_of_openssl() {
    let secret: Vec<u8> = (0..64).collect();
    let master = MasterKey::new(&secret, None).unwrap();
    let name = KeyName::Identifier(master.identifier());
    let nonce = std::array::from_fn(|at| 0xa0 + at as u8);
    let key = master.name_hash_key(&Context { policy: policy(name), nonce }).unwrap();
    assert_eq!(key[..], bytes("0e98290b5ae8a5330b118b3edd9c21d1"));
    let by_descriptor = policy(KeyName::Descriptor([0; 8]));
    assert!(master.name_hash_key(&Context { policy: by_descriptor, nonce }).is_none());

    let of = |folds: bool, kind| {
        let ring = KeyRing::new(vec![master.clone()], [0; 16], 4096, folds);
        match ring.cipher(&Context { policy: policy(name), nonce }, kind, 12).unwrap() {
            FileCipher::Names(cipher) => cipher,
            FileCipher::Contents(_) => unreachable!("names of a directory"),
        }
    };
    let folded = uext4_ondisk::casefold::fold("Stra\u{df}e.TXT".as_bytes()).into_owned();
    assert_eq!(folded, b"strasse.txt");
    // The lowest bit of the hash is not one of it.
    let cipher = of(true, FileKind::Directory);
    assert_eq!(cipher.hashes(&folded), Some((0x9f98_54d4, 0xbc15_f434)));
    assert!(
        !of(true, FileKind::Symlink).has_hashes() && !of(false, FileKind::Directory).has_hashes()
    );
}

fn policy(key: KeyName) -> Policy {
    Policy { key, contents_mode: 1, names_mode: 4, flags: 3, log2_data_unit: 0 }
}

#[test]
fn what_is_not_supported_is_named() {
    use crate::error::ErrorKind;
    let master = MasterKey::new(&[1; 64], None).unwrap();
    let name = KeyName::Identifier(master.identifier());
    let ring = KeyRing::new(vec![master], [0; 16], 4096, false);
    let kind = |policy| {
        let context = Context { policy, nonce: [1; 16] };
        ring.cipher(&context, FileKind::Regular, 12).map(|_| ()).map_err(|e| e.kind().clone())
    };
    assert_eq!(kind(policy(name)), Ok(()));
    assert_eq!(kind(policy(KeyName::Identifier([0; 16]))), Err(ErrorKind::NoKey));
    for (contents, names) in [(5, 6), (9, 9), (1, 10), (0, 0), (4, 1)] {
        let modes = Policy { contents_mode: contents, names_mode: names, ..policy(name) };
        assert_eq!(kind(modes), Err(ErrorKind::NoCipher));
    }
    for flags in [4, 0x18, 0x20, 0x80] {
        assert_eq!(kind(Policy { flags, ..policy(name) }), Err(ErrorKind::NoCipher));
    }
    for log2_data_unit in [1, 8, 13, 255] {
        let unit = Policy { log2_data_unit, ..policy(name) };
        assert_eq!(kind(unit), Err(ErrorKind::NoCipher));
    }
    assert!(MasterKey::new(&[1; 31], None).is_err() && MasterKey::new(&[1; 65], None).is_err());
}
