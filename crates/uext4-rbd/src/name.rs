//! Names of images: `rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][:KEY=VALUE...]`.
//!
//! Source: "rbd" in qemu-block-drivers(7) and Ceph's page "QEMU and block devices". A backslash
//! takes the meaning from the character behind it. `conf` is a file of settings, `id` a user
//! without `client.`; every other key is a setting of Ceph. A `key` is refused: a name is in
//! /proc/mounts, logs and errors.

use std::fmt;
use std::io;
use std::path;
use std::str::FromStr;

const SCHEME: &str = "rbd:";

/// What a name means.
///
/// # Examples
/// ```
/// use uext4_rbd::RbdName;
///
/// let name: RbdName = "rbd:pool/image@monday:id=admin".parse().unwrap();
/// assert_eq!(name.snapshot(), Some("monday"));
/// assert!("rbd:pool".parse::<RbdName>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdName {
    /// As it was given.
    text: String,
    pool: String,
    /// Of the pool; empty: none.
    namespace: String,
    image: String,
    snapshot: Option<String>,
    settings: Vec<(String, String)>,
}

/// Why a text names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {why}")]
pub struct NameError {
    text: String,
    why: String,
}

impl RbdName {
    /// Whether a text is meant as the name of an image of Ceph, good or bad.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The namespace of the pool; empty for its own one.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The image's own name.
    #[must_use]
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The snapshot, which can only be read.
    #[must_use]
    pub fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }

    /// The value of a key behind the image's name, the last one that was given.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().rev().find(|(of, _)| of == key).map(|(_, value)| value.as_str())
    }

    /// Keys and values that are settings of Ceph.
    pub fn ceph_settings(&self) -> impl Iterator<Item = (&str, &str)> {
        let ours = |key: &str| matches!(key, "conf" | "id");
        self.settings
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .filter(move |(key, _)| !ours(key))
    }

    /// The same with a path that does not depend on the working directory.
    ///
    /// # Errors
    /// The working directory is gone.
    pub fn absolute(&self) -> io::Result<Self> {
        let Some(conf) = self.setting("conf") else { return Ok(self.clone()) };
        let absolute = path::absolute(conf)?.to_string_lossy().into_owned();
        if absolute == conf {
            return Ok(self.clone());
        }
        let text = format!("{}:conf={}", self.text, escaped(&absolute));
        text.parse().map_err(io::Error::other)
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for RbdName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = |why: &str| NameError { text: text.to_owned(), why: why.to_owned() };
        let rest = text.strip_prefix(SCHEME).filter(|rest| !rest.contains('\0'));
        let form = || wrong("is not of the form rbd:POOL/IMAGE[@SNAPSHOT][:KEY=VALUE]");
        let mut parts = parts(rest.ok_or_else(form)?, ':').into_iter();
        let whole = parts.next().unwrap_or_default();
        let is_secret = |part: &str| plain(part.split('=').next().unwrap_or(part)).trim() == "key";
        if parts.clone().any(is_secret) {
            // Not even this line may have it.
            let text = format!("{SCHEME}{whole}:key=...");
            let why = "a name is seen by everybody: say keyring=FILE or keyfile=FILE instead";
            return Err(NameError { text, why: why.to_owned() });
        }
        let mut place = self::parts(whole, '@').into_iter();
        let (names, snapshot) = (place.next().unwrap_or_default(), place.next());
        let names: Vec<String> = self::parts(names, '/').into_iter().map(plain).collect();
        let (pool, namespace, image) = match &names[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, &**namespace, image),
            _ => return Err(form()),
        };
        if pool.is_empty() || image.is_empty() || place.next().is_some() {
            return Err(form());
        }
        let snapshot = snapshot.map(plain);
        if snapshot.as_deref() == Some("") {
            return Err(wrong("has no snapshot behind @"));
        }
        let setting = |part: &str| {
            let (key, value) = part.split_once('=').filter(|(key, _)| !key.is_empty())?;
            Some((plain(key), plain(value)))
        };
        let settings: Option<Vec<_>> = parts.map(setting).collect();
        Ok(Self {
            text: text.to_owned(),
            pool: pool.clone(),
            namespace: namespace.to_owned(),
            image: image.clone(),
            snapshot,
            settings: settings.ok_or_else(|| wrong("has no KEY=VALUE behind :"))?,
        })
    }
}

/// The parts of a text between marks that have no backslash before them; at least one.
fn parts(text: &str, mark: char) -> Vec<&str> {
    let (mut parts, mut from, mut is_escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == mark {
            parts.push(&text[from..at]);
            from = at + c.len_utf8();
        }
    }
    parts.push(&text[from..]);
    parts
}

/// A part without its backslashes.
fn plain(part: &str) -> String {
    let mut plain = String::with_capacity(part.len());
    let mut chars = part.chars();
    while let Some(c) = chars.next() {
        plain.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
    }
    plain
}

fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ':' | '@') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> RbdName {
        text.parse().unwrap()
    }

    #[test]
    fn names_of_qemu_are_read() {
        for (text, pool, namespace, image, snapshot) in [
            ("rbd:p/i", "p", "", "i", None),
            ("rbd:p/i@s", "p", "", "i", Some("s")),
            ("rbd:p/n/i@s:id=x", "p", "n", "i", Some("s")),
            (r"rbd:p\/q/i\@j\:k@s\\", "p/q", "", "i@j:k", Some(r"s\")),
        ] {
            let found = name(text);
            let parts = (found.pool(), found.namespace(), found.image(), found.snapshot());
            assert_eq!(parts, (pool, namespace, image, snapshot), "{text}");
            assert_eq!(found.to_string(), text);
        }
        let found = name(r"rbd:p/i:conf=/etc/c.conf:id=me:mon_host=h\:3300:keyring=a=b");
        assert_eq!((found.setting("conf"), found.setting("id")), (Some("/etc/c.conf"), Some("me")));
        let settings: Vec<_> = found.ceph_settings().collect();
        assert_eq!(settings, [("mon_host", "h:3300"), ("keyring", "a=b")]);
    }

    /// Fault model: a secret that gets into the table of mounts, a log or an error.
    #[test]
    fn a_secret_is_not_taken_and_not_shown() {
        for text in [
            "rbd:p/i:key=SECRET",
            r"rbd:p/i:id=a:k\ey=SECRET",
            "rbd:p/i: key =SECRET:id=a",
            "rbd:p:key=SECRET",
        ] {
            let error = text.parse::<RbdName>().unwrap_err().to_string();
            assert!(error.contains("keyring=FILE") && !error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_relative_path_is_made_absolute() {
        let here = std::env::current_dir().unwrap();
        let found = name("rbd:p/i:conf=a:id=x").absolute().unwrap();
        assert_eq!(found.setting("conf"), here.join("a").to_str());
        assert_eq!(found.setting("id"), Some("x"));
        for text in ["rbd:p/i", "rbd:p/i:conf=/etc/c"] {
            assert_eq!(name(text).absolute().unwrap(), name(text));
        }
        let odd = escaped(r"/a:b@c\d");
        assert_eq!(plain(&odd), r"/a:b@c\d");
        assert_eq!(parts(&odd, ':').len(), 1);
    }

    /// Fault model: a typing error is taken for another image, or is answered by more than a line.
    #[test]
    fn other_texts_are_refused_by_a_line() {
        for text in [
            "rbd:",
            "rbd:p",
            "rbd:/i",
            "rbd:p/",
            "rbd:p//i",
            "rbd:p/i@",
            "rbd:p/i@s@t",
            "rbd:p/i:x",
            "rbd:p/n/i/j",
            "rbd:p/i:=x",
            "rbd:p/i\0",
            "nbd:p/i",
        ] {
            let error = text.parse::<RbdName>().unwrap_err().to_string();
            assert!(error.starts_with(text) && !error.contains('\n'), "{error}");
        }
        assert!(RbdName::is_meant("rbd:x") && !RbdName::is_meant("/images/rbd:x"));
    }
}
