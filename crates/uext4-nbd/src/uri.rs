//! Names of exports: NBD URIs.
//!
//! Source: "The NBD URI format" (doc/uri.md of NetworkBlockDevice/nbd); `tls-certificates` is
//! libnbd's parameter.

use std::fmt;
use std::io;
use std::path::{self, PathBuf};
use std::str::FromStr;

use url::{Host, Url};

/// The port of the IANA.
const PORT: u16 = 10809;
/// Longest export name of the protocol, in bytes.
const NAME_MAX: usize = 4096;

/// What an NBD URI names.
///
/// # Examples
/// ```
/// use uext4_nbd::NbdUri;
///
/// let uri: NbdUri = "nbd+unix:///disk?socket=/run/nbd.sock".parse().unwrap();
/// assert_eq!(uri.to_string(), "nbd+unix:///disk?socket=/run/nbd.sock");
/// assert!("nbd+unix:///disk".parse::<NbdUri>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// As it was given.
    text: String,
    pub(crate) server: Server,
    pub(crate) export: String,
    pub(crate) tls: Option<Tls>,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// What the certificate of the server must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The name in its certificate.
    pub(crate) name: String,
    /// Folder with `ca-cert.pem`, and perhaps `client-cert.pem` and `client-key.pem`; otherwise the
    /// certificates of this host are trusted.
    pub(crate) certificates: Option<PathBuf>,
}

/// Why a text names no export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {why}")]
pub struct UriError {
    text: String,
    why: String,
}

impl NbdUri {
    /// The same with paths that do not depend on the working directory.
    ///
    /// # Errors
    /// The working directory is gone.
    pub fn absolute(&self) -> io::Result<Self> {
        let mut url = Url::parse(&self.text).map_err(io::Error::other)?;
        let query = url.query().unwrap_or_default().replace('+', "%2B");
        let (mut pairs, mut is_same) = (Vec::new(), true);
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let is_path = matches!(&*key, "socket" | "tls-certificates");
            let given = match is_path {
                true => path::absolute(&*value)?.to_string_lossy().into_owned(),
                false => value.to_string(),
            };
            is_same &= given == value;
            pairs.push((key.into_owned(), given));
        }
        if is_same {
            return Ok(self.clone());
        }
        url.query_pairs_mut().clear().extend_pairs(pairs);
        // A form has `+` for a space, which here is a plus.
        let query = url.query().map(|query| query.replace('+', "%20"));
        url.set_query(query.as_deref());
        url.as_str().parse().map_err(io::Error::other)
    }

    /// What tells it from others in a few bytes: its export, or its server if that has no name.
    pub(crate) fn short_name(&self) -> String {
        match &self.server {
            _ if !self.export.is_empty() => self.export.clone(),
            Server::Tcp { host, .. } => host.clone(),
            Server::Unix(path) => path.file_name().unwrap_or_default().to_string_lossy().into(),
        }
    }

    /// The port of the server; `None` for a socket of this host.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match &self.server {
            Server::Tcp { port, .. } => Some(*port),
            Server::Unix(_) => None,
        }
    }

    /// Whether a text is meant as an NBD URI, good or bad.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let scheme = scheme.to_ascii_lowercase();
        scheme == "nbd"
            || scheme == "nbds"
            || scheme.starts_with("nbd+")
            || scheme.starts_with("nbds+")
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let wrong = |why: &str| UriError { text: text.to_owned(), why: why.to_owned() };
        let url = Url::parse(text).map_err(|error| wrong(&format!("is no URI: {error}")))?;
        let (tls, unix) = match url.scheme() {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            other => {
                return Err(wrong(&format!("{other} is none of nbd, nbds, nbd+unix, nbds+unix")));
            }
        };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(wrong("has a user or a fragment, which no server asks for"));
        }
        let mut asked = Query::default();
        // In a query of a form `+` would be a space.
        let query = url.query().unwrap_or_default().replace('+', "%2B");
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            asked.take(&key, &value).map_err(|why| wrong(&why))?;
        }
        let host = url.host().map(|host| match host {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        });
        let host = host.filter(|host| !host.is_empty());
        let server = match (unix, host, asked.socket) {
            (true, None, Some(path)) => Server::Unix(path),
            (true, None, None) => return Err(wrong("names no socket: add ?socket=PATH")),
            (true, Some(_), _) => {
                return Err(wrong("has a host, but a socket is meant: nbd+unix:///"));
            }
            (false, _, Some(_)) => {
                return Err(wrong("has a socket, but a host is meant: nbd+unix:///"));
            }
            (false, None, None) => return Err(wrong("names no host")),
            (false, Some(host), None) => Server::Tcp { host, port: url.port().unwrap_or(PORT) },
        };
        let export = url.path().strip_prefix('/').unwrap_or(url.path());
        let export = decoded(export).ok_or_else(|| wrong("its export name is not UTF-8"))?;
        if export.len() > NAME_MAX || export.contains('\0') {
            return Err(wrong("no server has an export of that name"));
        }
        let tls = match (tls, &server) {
            (true, Server::Tcp { host, .. }) => Some(asked.name.unwrap_or_else(|| host.clone())),
            (true, Server::Unix(_)) => Some(asked.name.unwrap_or_else(|| "localhost".to_owned())),
            (false, _) if asked.name.is_some() || asked.certificates.is_some() => {
                return Err(wrong("has options of TLS, which nbds:// or nbds+unix:// asks for"));
            }
            (false, _) => None,
        };
        let tls = tls.map(|name| Tls { name, certificates: asked.certificates });
        Ok(Self { text: text.to_owned(), server, export, tls })
    }
}

/// Parameters of a URI.
#[derive(Default)]
struct Query {
    socket: Option<PathBuf>,
    name: Option<String>,
    certificates: Option<PathBuf>,
}

impl Query {
    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        let twice = match key {
            _ if value.is_empty() || value.contains('\0') => {
                return Err(format!("{key}= has no value"));
            }
            "socket" => self.socket.replace(value.into()).is_some(),
            "tls-hostname" => self.name.replace(value.to_owned()).is_some(),
            "tls-certificates" => self.certificates.replace(value.into()).is_some(),
            "tls-type" if value == "x509" => false,
            "tls-verify-peer" if value == "1" => false,
            "tls-type" => return Err(format!("tls-type={value}: only x509 is served")),
            "tls-verify-peer" => return Err("a server is always verified".to_owned()),
            _ => return Err(format!("{key} is an unknown parameter")),
        };
        if twice { Err(format!("{key} is given twice")) } else { Ok(()) }
    }
}

/// A part of a URI with its percent signs decoded; `None` if that is no UTF-8.
fn decoded(part: &str) -> Option<String> {
    // The path as the value of a form's field, in which only `+` would mean something else.
    let field = format!("x={}", part.replace('+', "%2B").replace('&', "%26"));
    let (_, value) = url::form_urlencoded::parse(field.as_bytes()).next()?;
    (!value.contains(char::REPLACEMENT_CHARACTER)).then(|| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> NbdUri {
        text.parse().unwrap()
    }

    /// The table of the format's document, and what it says of ports, sockets and TLS.
    #[test]
    fn uris_of_the_format_are_read() {
        for (text, export) in [
            ("nbd://example.com/disk", "disk"),
            ("nbd+unix:///disk?socket=sock", "disk"),
            ("nbd://example.com/", ""),
            ("nbd://example.com", ""),
            ("nbd://example.com//disk", "/disk"),
            ("nbd://example.com/hello%20world", "hello world"),
            ("nbd://example.com/a+b&c=d", "a+b&c=d"),
        ] {
            assert_eq!(uri(text).export, export, "{text}");
            assert!(NbdUri::is_meant(text));
        }
        let tcp = |host: &str, port| Server::Tcp { host: host.to_owned(), port };
        assert_eq!(uri("nbd://example.com").server, tcp("example.com", 10809));
        assert_eq!(uri("nbd://[::1]:7/x").server, tcp("::1", 7));
        assert_eq!(uri("nbd+unix:///?socket=/a+b").server, Server::Unix("/a+b".into()));
        assert_eq!(uri("nbd+unix:///?socket=/a%20b").server, Server::Unix("/a b".into()));
        let tls = uri("nbds+unix:///?socket=s&tls-hostname=h&tls-certificates=/c").tls;
        assert_eq!(tls, Some(Tls { name: "h".into(), certificates: Some("/c".into()) }));
        assert_eq!(uri("nbds://h").tls, Some(Tls { name: "h".into(), certificates: None }));
        assert_eq!(uri("nbd://h").tls, None);
        for (text, name) in [
            ("nbd://h/disk", "disk"),
            ("nbd://h:9", "h"),
            ("nbd+unix:///?socket=/run/s.sock", "s.sock"),
        ] {
            assert_eq!(uri(text).short_name(), name);
        }
        let here = std::env::current_dir().unwrap();
        let absolute = uri("nbd+unix:///d?socket=a%20b").absolute().unwrap();
        assert_eq!(absolute.server, Server::Unix(here.join("a b")));
        assert_eq!(absolute.export, "d");
        for text in ["nbd://h/x", "nbd+unix:///d?socket=/run/a+b"] {
            assert_eq!(uri(text).absolute().unwrap(), uri(text));
        }
    }

    /// Fault model: a typing error is taken for something else, or is answered by more than a line.
    #[test]
    fn other_texts_are_refused_by_a_line() {
        for text in [
            "nbd+unix:///disk",
            "nbd+unix:///disk?socket=",
            "nbd+unix://host/disk?socket=s",
            "nbd://host/disk?socket=s",
            "nbd://",
            "nbd:///disk",
            "nbd://user@host/",
            "nbd://host/#x",
            "nbd://host:99999/",
            "nbd://host/?tls-hostname=x",
            "nbds://host/?tls-type=psk",
            "nbds://host/?tls-verify-peer=0",
            "nbd://host/?speed=9",
            "nbd+unix:///?socket=a&socket=b",
            "nbd+vsock:///x",
            "nbd://host/%ff",
            "nbd://host/a%00b",
        ] {
            let error = text.parse::<NbdUri>().unwrap_err().to_string();
            assert!(error.starts_with(text) && !error.contains('\n'), "{error}");
        }
        assert!(!NbdUri::is_meant("/images/nbd") && !NbdUri::is_meant("http://nbd"));
        assert!(NbdUri::is_meant("nbd+vsock:///x") && NbdUri::is_meant("NBD://h"));
    }
}
