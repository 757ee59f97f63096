//! Parts of an OCI image: files that are named by their digests.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256, Sha512};

use super::layout::Descriptor;
use crate::failure::Why;

/// Bytes that are read at once.
const STEP_BYTES: usize = 128 << 10;

/// A part that has the size it should have; its digest is known when all has been read.
pub(super) struct Blob {
    pub(super) file: File,
    hash: Hash,
    want: Vec<u8>,
    /// As the layout has it.
    pub(super) name: String,
}

#[derive(Clone)]
enum Hash {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hash {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha256(hash) => hash.finalize().to_vec(),
            Self::Sha512(hash) => hash.finalize().to_vec(),
        }
    }
}

impl Blob {
    /// Opens the part that a descriptor is of.
    pub(super) fn open(layout: &Path, descriptor: &Descriptor) -> Result<Self, Why> {
        let digest = &descriptor.digest;
        let parsed = parse(digest).ok_or_else(|| {
            Why::new(format!("digest {}: want sha256 or sha512", digest.escape_debug()))
        })?;
        let (algorithm, hash, want) = parsed;
        let hex = digest.rsplit(':').next().unwrap_or_default();
        let name = format!("blobs/{algorithm}/{hex}");
        let path = layout.join(&name);
        let bad = |why: Why| why.of(path.display());
        let file = open(&path).map_err(bad)?;
        let len = file.metadata().map_err(|error| bad(error.into()))?.len();
        if len != descriptor.size {
            let why = format!("has {len} bytes, and is named as one of {}", descriptor.size);
            return Err(bad(Why::new(why)));
        }
        Ok(Self { file, hash, want, name: path.display().to_string() })
    }

    /// All of a small one, checked.
    pub(super) fn whole(self, most: u64) -> Result<Vec<u8>, Why> {
        let mut bytes = Vec::new();
        let read = self.file.take(most + 1).read_to_end(&mut bytes);
        read.map_err(|error| Why::from(error).of(&self.name))?;
        if bytes.len() as u64 > most {
            return Err(Why::new(format!("has more than {most} bytes")).of(&self.name));
        }
        let mut hash = self.hash;
        hash.update(&bytes);
        checked(hash, &self.want).map_err(|why| why.of(&self.name))?;
        Ok(bytes)
    }

    /// Has it read by `read`, and checks all of it. What is wrong with a part that is not the one
    /// that was meant is told of its digest.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(Box<dyn Read + Send>) -> Result<T, Why>,
    ) -> Result<T, Why> {
        let file = self.file.try_clone().map_err(|error| Why::from(error).of(&self.name))?;
        let stream = Hashed(Arc::new(Mutex::new((file, self.hash.clone()))));
        let mut rest = Hashed(Arc::clone(&stream.0));
        let outcome = read(Box::new(stream));
        let mut buffer = vec![0; STEP_BYTES];
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Why::from(error).of(&self.name)),
            }
        }
        let hash = rest.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
        checked(hash, &self.want).map_err(|why| why.of(&self.name))?;
        outcome.map_err(|why| why.of(&self.name))
    }
}

/// Opens a regular file; others, such as pipes, could block.
pub(super) fn open(path: &Path) -> Result<File, Why> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Why::new("is no regular file")),
    }
}

fn checked(hash: Hash, want: &[u8]) -> Result<(), Why> {
    match hash.finish() == want {
        true => Ok(()),
        false => Err(Why::new("is damaged: its digest is another")),
    }
}

/// Algorithm and bytes of a digest: lower-case digits alone, which lead to no other folder.
fn parse(digest: &str) -> Option<(&'static str, Hash, Vec<u8>)> {
    let (algorithm, hex) = digest.split_once(':')?;
    let (algorithm, hash, len) = match algorithm {
        "sha256" => ("sha256", Hash::Sha256(Sha256::new()), 32),
        "sha512" => ("sha512", Hash::Sha512(Sha512::new()), 64),
        _ => return None,
    };
    let value = |digit: &u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let digits: Vec<u8> = hex.as_bytes().iter().map(value).collect::<Option<_>>()?;
    let bytes = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 2 * len).then_some((algorithm, hash, bytes))
}

/// A file whose bytes are hashed as they are read.
struct Hashed(Arc<Mutex<(File, Hash)>>);

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, hash) = &mut *inner;
        let count = file.read(buffer)?;
        hash.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a digest that names a file elsewhere, or one of which a part is not compared.
    #[test]
    fn digests_are_whole_and_lead_nowhere_else() {
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(parse(&format!("sha256:{hex}")).unwrap().2.len(), 32);
        assert_eq!(parse(&format!("sha512:{hex}{hex}")).unwrap().2[..2], [1, 0x23]);
        for wrong in [
            format!("sha256:{}", &hex[1..]),
            format!("sha256:{hex}00"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:../{}", &hex[3..]),
            format!("md5:{}", &hex[..32]),
            format!("../sha256:{hex}"),
            hex,
        ] {
            assert!(parse(&wrong).is_none(), "{wrong}");
        }
    }
}
