// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxy's certificate, from its files.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_config::ProxyTls;

/// Longest PEM file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// What is offered to clients, the preferred first.
pub(crate) const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// Whether the files can be used.
///
/// # Errors
/// When one cannot be read, or they do not belong together.
pub fn examine(files: &ProxyTls) -> Result<(), TlsError> {
    load(files).map(drop)
}

pub(crate) fn load(files: &ProxyTls) -> Result<Arc<ServerConfig>, TlsError> {
    let fault = |path: &Path, why: String| TlsError { path: path.to_owned(), why };
    let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
    let chain = chain.map_err(|error| fault(&files.certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(fault(&files.certificate, "there is no certificate in it".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|error| fault(&files.key, format!("there is no key in it: {error}")))?;
    let of_certificate = |error: rustls::Error| fault(&files.certificate, error.to_string());
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(of_certificate)?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| fault(&files.key, error.to_string()))?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    // Tickets need no memory here, so that resumption cannot be used up.
    config.ticketer = ring::Ticketer::new().map_err(of_certificate)?;
    Ok(Arc::new(config))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let fault = |why: String| TlsError { path: path.to_owned(), why };
    let file = File::open(path).map_err(|error| fault(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|error| fault(error.to_string()))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(fault(format!("it is longer than {FILE_MAX} bytes")));
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
        let files = |cert: &str, key: &str| ProxyTls { certificate: path(cert), key: path(key) };
        assert_eq!(examine(&files("cert", "key")), Ok(()));
        for (cert, key, named) in [
            ("none", "key", "none"),
            ("cert", "none", "none"),
            ("empty", "key", "empty"),
            ("key", "key", "key"),
            ("cert", "empty", "empty"),
            ("cert", "other", "other"),
        ] {
            assert_eq!(examine(&files(cert, key)).unwrap_err().path, path(named), "{cert} {key}");
        }
    }
}
