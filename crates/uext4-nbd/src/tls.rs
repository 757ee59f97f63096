//! TLS of a connection: certificates, and the client's side.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::{Fault, Result};
use crate::uri::Tls;

/// File names that libnbd, nbdkit and qemu have in such a folder.
const AUTHORITY: &str = "ca-cert.pem";
const OWN: &str = "client-cert.pem";
const OWN_KEY: &str = "client-key.pem";

/// Whom to trust and what to show, read once: a daemon may have given up to read files by the time
/// that it connects again.
#[derive(Debug)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Trust {
    /// The client's side of a new connection.
    pub(crate) fn client(&self) -> Result<ClientConnection> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(|error| refused("TLS", error))
    }
}

/// What the URI says of TLS.
///
/// # Errors
/// Certificates that cannot be read, a name that is none.
pub(crate) fn trust(tls: &Tls) -> Result<Trust> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("TLS", error))?
        .with_root_certificates(authorities(tls.certificates.as_deref())?);
    let own = tls.certificates.as_deref().filter(|folder| folder.join(OWN).exists());
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(folder) => {
            let chain = certificates(&folder.join(OWN))?;
            let path = folder.join(OWN_KEY);
            let key = PrivateKeyDer::from_pem_file(&path)
                .map_err(|error| refused(path.display(), error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| refused(folder.display(), error))?
        }
    };
    let name = ServerName::try_from(tls.name.clone())
        .map_err(|error| refused(format_args!("tls-hostname={}", tls.name), error))?;
    Ok(Trust { config: Arc::new(config), name })
}

fn refused(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Fault {
    Fault::no_tls(format!("{what}: {error}"))
}

fn authorities(folder: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match folder {
        Some(folder) => {
            let path = folder.join(AUTHORITY);
            for one in certificates(&path)? {
                store.add(one).map_err(|error| refused(path.display(), error))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if store.is_empty() {
        return Err(Fault::no_tls("this host trusts nobody: tls-certificates=DIR"));
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| refused(path.display(), error))
}
