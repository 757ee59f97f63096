//! Which image of an OCI layout is meant.
//!
//! An index also names what is no image: signatures, lists of contents, statements on images. What
//! a descriptor leaves out, the image's own manifest and configuration tell.

use std::path::Path;

use super::layout::{CONFIG_TYPES, Descriptor, INDEX_TYPES, MANIFEST_TYPES, Platform, platform};
use crate::failure::Why;

const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// What buildx adds to an index besides images: statements on them.
const DOCKER_REFERENCE: &str = "vnd.docker.reference.type";
/// Most images of an index whose manifests are read to choose among them.
const READ_MAX: usize = 64;
/// What buildx has for a platform where there is none.
const UNKNOWN: &str = "unknown";

/// What is known of the image that is meant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice<'a> {
    /// Its name.
    pub(super) reference: Option<&'a str>,
    /// What it is for: OS/ARCHITECTURE, or with /VARIANT.
    pub(super) platform: Option<&'a str>,
}

/// The one image of an index, or index of images, that is meant.
pub(super) fn choose(
    layout: &Path,
    manifests: Vec<Descriptor>,
    choice: Choice<'_>,
) -> Result<Descriptor, Why> {
    let mut there: Vec<Descriptor> =
        manifests.into_iter().filter(|one| !one.is_statement()).collect();
    if there.is_empty() {
        return Err(Why::new("has no image"));
    }
    if let Some(name) = choice.reference {
        let shown = shown(&there);
        there.retain(|one| one.name() == Some(name));
        if there.is_empty() {
            return Err(Why::new(format!("has no such image; it has {shown}")));
        }
    }
    if there.len() > 1 || choice.platform.is_some() {
        there = images(layout, there)?;
    }
    let shown = shown(&there);
    let is_any = !there.is_empty();
    there.retain(|one| choice.platform.is_none_or(|wanted| one.is_for(wanted)));
    match (there.len(), there.pop()) {
        (1, Some(one)) => Ok(one),
        (0, _) if is_any => Err(Why::new(format!("has no such image; it has {shown}"))),
        (0, _) => Err(Why::new("has no image")),
        _ => Err(Why::new(format!("has several images; choose by --ref or --platform: {shown}"))),
    }
}

/// Those that are images, each with its platform, and indexes of images.
fn images(layout: &Path, descriptors: Vec<Descriptor>) -> Result<Vec<Descriptor>, Why> {
    let (mut images, mut read) = (Vec::new(), 0);
    for mut one in descriptors {
        let kind = &*one.media_type;
        if !MANIFEST_TYPES.contains(&kind) && !INDEX_TYPES.contains(&kind) {
            continue;
        }
        if MANIFEST_TYPES.contains(&kind) && one.platform.as_ref().is_none_or(Platform::is_unknown)
        {
            read += 1;
            if read > READ_MAX {
                let why = format!("has more than {READ_MAX} images; choose by --ref");
                return Err(Why::new(why));
            }
            let Some(platform) = platform(layout, &one)? else { continue };
            one.platform = Some(platform);
        }
        images.push(one);
    }
    Ok(images)
}

fn shown(descriptors: &[Descriptor]) -> String {
    let shown: Vec<String> = descriptors.iter().map(Descriptor::shown).collect();
    shown.join(", ")
}

impl Descriptor {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn name(&self) -> Option<&str> {
        self.annotation(REF_NAME)
    }

    /// Whether it says itself that it is no image.
    fn is_statement(&self) -> bool {
        let is_artifact = self
            .artifact_type
            .as_deref()
            .is_some_and(|kind| !kind.is_empty() && !CONFIG_TYPES.contains(&kind));
        is_artifact || self.annotation(DOCKER_REFERENCE).is_some()
    }

    /// An index may have images for all platforms.
    fn is_for(&self, wanted: &str) -> bool {
        self.platform.as_ref().is_none_or(|platform| platform.is(wanted))
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
    fn is_unknown(&self) -> bool {
        self.os == UNKNOWN || self.os.is_empty()
    }

    fn is(&self, wanted: &str) -> bool {
        let mut parts = wanted.splitn(3, '/');
        let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
        // All of arm64 is v8 where nothing else is said.
        let default = if self.architecture == "arm64" { "v8" } else { "" };
        let own = self.variant.as_deref().filter(|variant| !variant.is_empty());
        os == Some(&self.os)
            && architecture == Some(&self.architecture)
            && variant.is_none_or(|variant| variant == own.unwrap_or(default))
    }

    fn shown(&self) -> String {
        let variant = self.variant.iter().map(|variant| format!("/{variant}"));
        format!("{}/{}", self.os, self.architecture) + &variant.collect::<String>()
    }
}
