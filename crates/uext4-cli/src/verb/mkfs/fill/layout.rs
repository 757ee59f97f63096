//! OCI image layouts: a folder with images of containers, as skopeo and buildah write it.
//!
//! Format: "OCI Image Format Specification", image-layout, image-index and manifest.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::blob::{self, Blob};
use super::choice::{Choice, choose};
use crate::failure::Why;

/// Most bytes of an index or manifest.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Most indexes in one another.
const DEPTH_MAX: u32 = 4;
/// Most layers of an image; tools that make them know 127.
const LAYERS_MAX: usize = 500;
const MARK: &str = "oci-layout";
const INDEX: &str = "index.json";

pub(super) const INDEX_TYPES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
pub(super) const MANIFEST_TYPES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
pub(super) const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// Layers are tar archives: of these kinds, with these ends.
const LAYER_TYPES: [&str; 2] =
    ["application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs."];
const LAYER_FORMS: [&str; 5] = [".tar", ".tar+gzip", ".tar+zstd", ".tar.gzip", ".tar.zstd"];

/// A part, by what refers to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) artifact_type: Option<String>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
}

/// What an image is for, as a descriptor or the configuration of the image says.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Platform {
    pub(super) os: String,
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    image_layout_version: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
}

/// Whether a directory is a layout.
pub(super) fn is_one(path: &Path) -> bool {
    path.join(MARK).is_file() && path.join(INDEX).is_file()
}

/// The layers of an image, the lowest first.
pub(super) fn layers(path: &Path, choice: Choice<'_>) -> Result<Vec<Descriptor>, Why> {
    let mark: Mark = document(path, MARK)?;
    if !mark.image_layout_version.starts_with("1.") {
        let version = mark.image_layout_version.escape_debug();
        return Err(Why::new(format!("is a layout of version {version}, and 1 is read")));
    }
    let index: Index = document(path, INDEX)?;
    let mut chosen = choose(path, index.manifests, choice)?;
    for _ in 0..DEPTH_MAX {
        let kind = chosen.media_type.as_str();
        if MANIFEST_TYPES.contains(&kind) {
            let manifest: Manifest = part(path, &chosen)?;
            let count = manifest.layers.len();
            if count > LAYERS_MAX {
                return Err(Why::new(format!("has {count} layers, and {LAYERS_MAX} are read")));
            }
            manifest.layers.iter().try_for_each(check)?;
            return Ok(manifest.layers);
        }
        if !INDEX_TYPES.contains(&kind) {
            return Err(Why::new(format!("{} is no image, but {kind}", chosen.digest)));
        }
        let index: Index = part(path, &chosen)?;
        chosen = choose(path, index.manifests, Choice { reference: None, ..choice })?;
    }
    Err(Why::new(format!("has more than {DEPTH_MAX} indexes in one another")))
}

/// What an image is for by its configuration; `None` for what is no image, such as a signature.
pub(super) fn platform(path: &Path, descriptor: &Descriptor) -> Result<Option<Platform>, Why> {
    let manifest: Manifest = part(path, descriptor)?;
    let is_layer =
        |one: &Descriptor| LAYER_TYPES.iter().any(|start| one.media_type.starts_with(start));
    match manifest.config {
        Some(config)
            if CONFIG_TYPES.contains(&&*config.media_type)
                && manifest.layers.iter().all(is_layer) =>
        {
            part(path, &config).map(Some)
        }
        _ => Ok(None),
    }
}

/// A layer must be one that can be read.
fn check(layer: &Descriptor) -> Result<(), Why> {
    let kind = &layer.media_type;
    let is_layer = LAYER_TYPES.iter().any(|start| kind.starts_with(start))
        && LAYER_FORMS.iter().any(|end| kind.ends_with(end));
    match is_layer {
        true => Ok(()),
        false => Err(Why::new(format!("has a layer that cannot be read: {}", kind.escape_debug()))),
    }
}

/// A document among the parts.
fn part<T: for<'a> Deserialize<'a>>(path: &Path, descriptor: &Descriptor) -> Result<T, Why> {
    let blob = Blob::open(path, descriptor)?;
    let name = blob.name.clone();
    parse(&blob.whole(DOCUMENT_MAX)?).map_err(|why| why.of(name))
}

fn document<T: for<'a> Deserialize<'a>>(layout: &Path, name: &str) -> Result<T, Why> {
    let path = layout.join(name);
    let mut bytes = Vec::new();
    let file = blob::open(&path).map_err(|why| why.of(path.display()))?;
    let read =
        std::io::Read::read_to_end(&mut std::io::Read::take(file, DOCUMENT_MAX + 1), &mut bytes);
    read.map_err(|error| Why::from(error).of(path.display()))?;
    if bytes.len() as u64 > DOCUMENT_MAX {
        return Err(Why::new(format!("has more than {DOCUMENT_MAX} bytes")).of(path.display()));
    }
    parse(&bytes).map_err(|why| why.of(path.display()))
}

fn parse<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, Why> {
    serde_json::from_slice(bytes).map_err(|error| Why::new(format!("cannot be read: {error}")))
}
