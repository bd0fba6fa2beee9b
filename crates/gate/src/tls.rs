// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates of listeners, from their files: TLS 1.2 and 1.3, since proxies do not all speak 1.3 by
//! default. Where there is an authority, who connects has to show a certificate of it, anew for each
//! connection: a session that is resumed would outlive the certificate that began it.

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, server::NoClientAuth};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_config::GatewayTls;

/// Longest PEM file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Most certificates in a file.
const CERTIFICATES_MAX: usize = 64;

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for TlsError {}

/// Files that can be used.
#[derive(Clone)]
pub struct Loaded {
    /// What a listener does with each connection.
    pub server: Arc<ServerConfig>,
    /// Whose certificates are taken; empty: none is asked for.
    pub authority: Vec<CertificateDer<'static>>,
}

/// Whether the files can be used.
///
/// # Errors
/// When one cannot be read, or they do not belong together.
pub fn examine_tls(files: &GatewayTls) -> Result<(), TlsError> {
    load_tls(files, &[]).map(drop)
}

/// Reads the files of a listener that speaks these protocols (ALPN), the preferred first; none: it asks
/// nobody for one.
///
/// # Errors
/// When one cannot be read, or they do not belong together.
pub fn load_tls(files: &GatewayTls, alpn: &[&[u8]]) -> Result<Loaded, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|error| fault(&files.key, format!("there is no key in it: {error}")))?;
    let authority = files.ca_file.as_deref().map(certificates).transpose()?.unwrap_or_default();
    let verifier = match &files.ca_file {
        Some(path) => verifier(path, &authority, &provider)?,
        None => Arc::new(NoClientAuth),
    };
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| fault(&files.certificate, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| fault(&files.key, key_fault(&error)))?;
    server.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    if files.ca_file.is_some() {
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
    } else {
        // Tickets need no memory here, so that resumption cannot be used up.
        server.ticketer =
            ring::Ticketer::new().map_err(|error| fault(&files.certificate, error))?;
    }
    Ok(Loaded { server: Arc::new(server), authority })
}

fn verifier(
    path: &Path,
    authority: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authority {
        roots.add(certificate.clone()).map_err(|error| fault(path, error))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| fault(path, error))
}

/// The library's words for two files that do not belong together help nobody.
fn key_fault(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "it is not the key of the certificate".into(),
        error => error.to_string(),
    }
}

fn fault(path: &Path, why: impl ToString) -> TlsError {
    TlsError { path: path.to_owned(), why: why.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&bytes).take(CERTIFICATES_MAX + 1).collect();
    let found = found.map_err(|error| fault(path, error))?;
    match found.len() {
        0 => Err(fault(path, "there is no certificate in it")),
        1..=CERTIFICATES_MAX => Ok(found),
        _ => Err(fault(path, format!("there are more than {CERTIFICATES_MAX} certificates in it"))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let file = File::open(path).map_err(|error| fault(path, error))?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|error| fault(path, error))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(fault(path, format!("it is longer than {FILE_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::generate_simple_self_signed;

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let [one, two] = [(); 2].map(|()| generate_simple_self_signed(["shop".into()]).unwrap());
        std::fs::write(path("cert"), one.cert.pem()).unwrap();
        std::fs::write(path("key"), one.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("other"), two.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(path("many"), one.cert.pem().repeat(65)).unwrap();
        let files = |cert: &str, key: &str, authority: Option<&str>| GatewayTls {
            certificate: path(cert),
            key: path(key),
            ca_file: authority.map(path),
        };
        assert_eq!(examine_tls(&files("cert", "key", None)), Ok(()));
        assert_eq!(examine_tls(&files("cert", "key", Some("cert"))), Ok(()));
        for (cert, key, authority, named) in [
            ("none", "key", None, "none"),
            ("cert", "none", None, "none"),
            ("empty", "key", None, "empty"),
            ("key", "key", None, "key"),
            ("many", "key", None, "many"),
            ("cert", "empty", None, "empty"),
            ("cert", "other", None, "other"),
            ("cert", "key", Some("none"), "none"),
            ("cert", "key", Some("empty"), "empty"),
            ("cert", "key", Some("key"), "key"),
        ] {
            let found = examine_tls(&files(cert, key, authority)).unwrap_err();
            assert_eq!(found.path, path(named), "{cert} {key} {authority:?}: {found}");
        }
    }
}
