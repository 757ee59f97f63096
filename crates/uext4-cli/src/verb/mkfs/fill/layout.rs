//! OCI image layouts: a folder with images of containers, as skopeo and buildah write it.
//!
//! Format: "OCI Image Format Specification", image-layout, image-index and manifest.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::blob::{self, Blob};
use crate::failure::Why;

/// Most bytes of an index or manifest.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Most indexes in one another.
const DEPTH_MAX: u32 = 4;
const MARK: &str = "oci-layout";
const INDEX: &str = "index.json";

const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// What buildx adds to an index besides images: statements on them.
const DOCKER_REFERENCE: &str = "vnd.docker.reference.type";
const INDEX_TYPES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFEST_TYPES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// Layers are tar archives: of these kinds, with these ends.
const LAYER_TYPES: [&str; 2] =
    ["application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs."];
const LAYER_FORMS: [&str; 5] = [".tar", ".tar+gzip", ".tar+zstd", ".tar.gzip", ".tar.zstd"];

/// Which image of a layout is meant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice<'a> {
    /// Its name.
    pub(super) reference: Option<&'a str>,
    /// What it is for: OS/ARCHITECTURE, or with /VARIANT.
    pub(super) platform: Option<&'a str>,
}

/// A part, by what refers to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
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
    let mut chosen = choose(index.manifests, choice)?;
    for _ in 0..DEPTH_MAX {
        let kind = chosen.media_type.as_str();
        if MANIFEST_TYPES.contains(&kind) {
            let manifest: Manifest = parse(&Blob::open(path, &chosen)?.whole(DOCUMENT_MAX)?)?;
            manifest.layers.iter().try_for_each(check)?;
            return Ok(manifest.layers);
        }
        if !INDEX_TYPES.contains(&kind) {
            return Err(Why::new(format!("{} is no image, but {kind}", chosen.digest)));
        }
        let index: Index = parse(&Blob::open(path, &chosen)?.whole(DOCUMENT_MAX)?)?;
        chosen = choose(index.manifests, Choice { reference: None, ..choice })?;
    }
    Err(Why::new(format!("has more than {DEPTH_MAX} indexes in one another")))
}

/// The one image that is meant.
fn choose(manifests: Vec<Descriptor>, choice: Choice<'_>) -> Result<Descriptor, Why> {
    let is_meant = |one: &Descriptor| {
        !one.is_statement()
            && choice.reference.is_none_or(|name| one.name() == Some(name))
            && choice.platform.is_none_or(|name| one.is_for(name))
    };
    let shown: Vec<String> =
        manifests.iter().filter(|one| !one.is_statement()).map(Descriptor::shown).collect();
    let shown = shown.join(", ");
    let mut meant: Vec<Descriptor> = manifests.into_iter().filter(is_meant).collect();
    match (meant.len(), meant.pop()) {
        (1, Some(one)) => Ok(one),
        (0, _) if shown.is_empty() => Err(Why::new("has no image")),
        (0, _) => Err(Why::new(format!("has no such image; it has {shown}"))),
        _ => Err(Why::new(format!("has several images; choose by --ref or --platform: {shown}"))),
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

impl Descriptor {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn name(&self) -> Option<&str> {
        self.annotation(REF_NAME)
    }

    fn is_statement(&self) -> bool {
        self.annotation(DOCKER_REFERENCE).is_some()
    }

    /// What says nothing of it is for all.
    fn is_for(&self, wanted: &str) -> bool {
        let Some(platform) = &self.platform else { return true };
        let (own, short) = (platform.shown(), format!("{}/{}", platform.os, platform.architecture));
        own == wanted || short == wanted
    }

    fn shown(&self) -> String {
        let name = self.name().unwrap_or("(no name)").escape_debug();
        match &self.platform {
            Some(platform) => format!("{name} {}", platform.shown().escape_debug()),
            None => name.to_string(),
        }
    }
}

impl Platform {
    fn shown(&self) -> String {
        let variant = self.variant.iter().map(|variant| format!("/{variant}"));
        format!("{}/{}", self.os, self.architecture) + &variant.collect::<String>()
    }
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
