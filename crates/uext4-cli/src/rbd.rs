//! Images of Ceph's block device by their names: `rbd:POOL/IMAGE[@SNAPSHOT]`.
//!
//! They are reached by an NBD server that knows them; see docs/rbd.md.

/// What Ceph's and qemu's names begin with.
const SCHEME: &str = "rbd:";

/// Whether a text is meant as such a name, good or bad.
pub(crate) fn is_meant(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// Whether it names an image: what follows the image's own name are settings of qemu.
pub(crate) fn is_name(text: &str) -> bool {
    let name = text.strip_prefix(SCHEME).and_then(|name| name.split(':').next());
    let parts = name.and_then(|name| name.split_once('/'));
    parts.is_some_and(|(pool, image)| !pool.is_empty() && !image.is_empty())
}

/// How an image is reached that was given to a verb by such a name.
pub(crate) fn way(verb: &str, text: &str) -> String {
    if !is_name(text) {
        return format!("{verb}: {text}: is not of the form rbd:POOL/IMAGE[@SNAPSHOT]");
    }
    format!(
        "{verb}: {text}: is reached by two commands: `qemu-nbd --persistent --shared=8 \
         --socket=SOCKET --format=raw {text}`, and then `uext4 {verb} \
         nbd+unix:///?socket=SOCKET` (docs/rbd.md)"
    )
}
