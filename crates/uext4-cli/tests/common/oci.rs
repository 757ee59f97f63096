//! OCI image layouts as tests need them.

#![allow(dead_code)] // every test file uses a part

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uext4_archive::{Content, Encoder, Entry, Format, Kind, TarPath, Time, Writer};

/// A file of a layer: its path, with a slash at the end that of a directory, with ` -> TARGET` a
/// symbolic link, with ` == PATH` a hard link; else a file with that text.
pub(crate) type Member<'a> = (&'a str, &'a str);

/// A tar archive of those files, `mode` and time of each from its place in the list.
pub(crate) fn tar(members: &[Member<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for (index, (name, text)) in members.iter().enumerate() {
        let (name, kind) = match (name.split_once(" -> "), name.split_once(" == ")) {
            (Some((name, target)), _) => (name, Kind::Symlink(target.into())),
            (_, Some((name, target))) => {
                (name, Kind::HardLink(TarPath::parse(target.as_bytes()).unwrap()))
            }
            _ if name.ends_with('/') => (*name, Kind::Directory),
            _ => (*name, Kind::File(Content::whole(text.len() as u64))),
        };
        let mut entry = Entry::new(TarPath::parse(name.as_bytes()).unwrap(), kind);
        let number = u32::try_from(index).unwrap();
        entry.mode = 0o755;
        (entry.uid, entry.gid) = (number, 100 + number);
        entry.mtime = Time { secs: 1_000_000_000 + i64::from(number), nanos: 0 };
        let has_data = matches!(entry.kind, Kind::File(_));
        writer.entry(&entry).unwrap();
        if has_data {
            writer.data(text.as_bytes()).unwrap();
        }
    }
    writer.finish().unwrap()
}

pub(crate) fn compressed(bytes: &[u8], format: Format) -> Vec<u8> {
    let mut encoder = Encoder::new(format, Vec::new()).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A layout on disk.
pub(crate) struct Layout {
    pub(crate) path: PathBuf,
    manifests: Vec<Value>,
}

impl Layout {
    pub(crate) fn new(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
        let layout = Self { path, manifests: Vec::new() };
        layout.write_index();
        layout
    }

    pub(crate) fn blob_path(&self, descriptor: &Value) -> PathBuf {
        blob_path(&self.path, descriptor["digest"].as_str().unwrap())
    }

    /// Stores a part and returns its descriptor.
    pub(crate) fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        File::create(blob_path(&self.path, &digest)).unwrap().write_all(bytes).unwrap();
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    }

    /// Stores a layer: its descriptor, and the digest of what is not compressed.
    pub(crate) fn layer(&self, members: &[Member<'_>], format: Format) -> (Value, String) {
        let bytes = tar(members);
        let (kind, stored) = match format {
            Format::Plain => ("", bytes.clone()),
            Format::Gzip => ("+gzip", compressed(&bytes, format)),
            _ => ("+zstd", compressed(&bytes, format)),
        };
        let kind = format!("application/vnd.oci.image.layer.v1.tar{kind}");
        (self.blob(&kind, &stored), digest(&bytes))
    }

    /// Stores an image for linux/amd64; its descriptor.
    pub(crate) fn image(&self, layers: &[(Value, String)]) -> Value {
        self.image_for("amd64", layers)
    }

    /// Stores an image for an architecture; its descriptor, which says nothing of that.
    pub(crate) fn image_for(&self, architecture: &str, layers: &[(Value, String)]) -> Value {
        let (layers, diffs): (Vec<_>, Vec<_>) = layers.iter().cloned().unzip();
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": diffs},
        });
        let config =
            self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        self.document("manifest", &manifest)
    }

    /// Stores an index or a manifest; its descriptor.
    pub(crate) fn document(&self, kind: &str, document: &Value) -> Value {
        let kind = format!("application/vnd.oci.image.{kind}.v1+json");
        self.blob(&kind, document.to_string().as_bytes())
    }

    /// Has the layout's own index name a part.
    pub(crate) fn name(&mut self, name: &str, mut descriptor: Value) {
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        self.manifests.push(descriptor);
        self.write_index();
    }

    fn write_index(&self) {
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }
}

fn blob_path(layout: &Path, digest: &str) -> PathBuf {
    layout.join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
}
