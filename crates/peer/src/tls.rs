// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates: TLS 1.3 and nothing else, both sides verified, no resumption, no early data.
//!
//! Whether a certificate is in its time is the one thing here for which the wall clock is asked, by
//! the TLS library: at the beginning of a session, and to warn of our own certificate.

mod signed;

use crate::frame::VERSIONS;
use crate::refusal::Refusal;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SigningKey;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, OtherError,
    RootCertStore, ServerConfig, SignatureScheme,
};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_model::SpiffeId;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The name of the protocol in the TLS handshake (ALPN), before its version: what was meant for
/// something else is not taken. The caller offers all of its versions, and the listener takes the
/// newest that it speaks, too: inside the handshake, so that nobody on the way can lower it.
pub const ALPN: &str = "tidegate-peer/";
/// Longest PEM file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Most certificates in a file.
const CERTIFICATES_MAX: usize = 64;

/// The names of the versions that this host speaks, newest first.
fn versions() -> Vec<Vec<u8>> {
    VERSIONS.rev().map(|version| format!("{ALPN}{version}").into_bytes()).collect()
}

/// The version that was negotiated. A peer that names none is one of version 1.
pub(crate) fn version(negotiated: Option<&[u8]>) -> u8 {
    let version = |name: &[u8]| std::str::from_utf8(name).ok()?.strip_prefix(ALPN)?.parse().ok();
    negotiated.and_then(version).unwrap_or(*VERSIONS.start())
}

/// The reason under which a handshake that failed is counted.
pub(crate) fn refusal(error: &io::Error) -> Refusal {
    use rustls::Error::{AlertReceived, NoApplicationProtocol};
    match of_library(error) {
        Some(NoApplicationProtocol | AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            Refusal::Version
        }
        _ => Refusal::Untrusted,
    }
}

/// What went wrong in a handshake, where the words of the library help nobody.
pub(crate) fn in_words(error: io::Error) -> io::Error {
    match of_library(&error) {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why))) => {
            io::Error::other(format!("its certificate: {}", why.0))
        }
        _ if refusal(&error) == Refusal::Version => {
            let (from, to) = (VERSIONS.start(), VERSIONS.end());
            let spoken = format!("this host speaks versions {from} to {to}");
            io::Error::other(format!("no version of the protocol in common: {spoken}"))
        }
        _ => error,
    }
}

fn of_library(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
}

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// This host's certificate and what leads to the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificates of whoever signs those of peers.
    pub authority: PathBuf,
}

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", .path.display())]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// A certificate without exactly one identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Its names cannot be read.
    #[error("its names cannot be read")]
    Unreadable,
    /// No URI name.
    #[error("it names no URI; a peer's certificate names exactly one, its SPIFFE identity")]
    None,
    /// More than one.
    #[error("it names {0} URIs; a peer's certificate names exactly one, its SPIFFE identity")]
    Many(usize),
    /// A URI that is no identity.
    #[error("it names {uri:?}, which is no identity: {why}")]
    Wrong {
        /// What it names.
        uri: String,
        /// Why that is none.
        why: String,
    },
    /// Somebody else.
    #[error("it names {found}; expected is {expected}")]
    Other {
        /// Who it is.
        found: SpiffeId,
        /// Who it should be.
        expected: SpiffeId,
    },
}

/// The identity in a certificate: its one URI name. Common name and DNS names do not count.
///
/// # Errors
/// When there is not exactly one, or it is no SPIFFE identity.
pub fn identity(certificate: &[u8]) -> Result<SpiffeId, IdentityError> {
    let parsed =
        x509_cert::Certificate::from_der(certificate).map_err(|_| IdentityError::Unreadable)?;
    let names = parsed
        .tbs_certificate
        .get::<SubjectAltName>()
        .map_err(|_| IdentityError::Unreadable)?
        .map_or_else(Vec::new, |(_critical, names)| names.0);
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str()),
        _ => None,
    });
    let uri = uris.next().ok_or(IdentityError::None)?;
    let more = uris.count();
    if more > 0 {
        return Err(IdentityError::Many(1 + more));
    }
    uri.parse().map_err(|why| {
        let uri = uri.chars().take(tidegate_model::SPIFFE_MAX).collect();
        IdentityError::Wrong { uri, why }
    })
}

/// When the end of a certificate is told: 7 days before, in seconds.
const SOON_SECONDS: u64 = 7 * 86_400;

/// How far the end of a certificate is, in words where it is near.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Over(String),
    Soon(String),
    Later,
}

fn end(last: u64, now: u64) -> End {
    let span = |seconds: u64| match (seconds / 86_400, seconds / 3600) {
        (0, 0) => "less than an hour".to_owned(),
        (0, hours) => format!("{hours} h"),
        (days, _) => format!("{days} d"),
    };
    match last.checked_sub(now) {
        None => End::Over(format!("it has expired, {} ago: no peer takes it", span(now - last))),
        Some(left) if left <= SOON_SECONDS => End::Soon(format!("it expires in {}", span(left))),
        Some(_) => End::Later,
    }
}

/// The last second in which a certificate may be used, since the Unix epoch.
fn last_second(certificate: &[u8]) -> Result<u64, IdentityError> {
    let parsed =
        x509_cert::Certificate::from_der(certificate).map_err(|_| IdentityError::Unreadable)?;
    Ok(parsed.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
}

/// What this host shows and whom it trusts.
pub struct Credentials {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    signing: Arc<dyn SigningKey>,
    key_path: PathBuf,
    certificate_path: PathBuf,
    identity: SpiffeId,
    last_second: u64,
    server: Arc<ServerConfig>,
}

impl Credentials {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used, and what is wrong with it.
    pub fn load(files: &Files) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots(&files.authority)?);
        let chain = certificates(&files.certificate)?;
        let own = identity(&chain[0]).map_err(|e| wrong(&files.certificate, e))?;
        let last_second = last_second(&chain[0]).map_err(|e| wrong(&files.certificate, e))?;
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|e| wrong(&files.key, format!("no private key in it: {e}")))?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|e| wrong(&files.authority, e))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| wrong(&files.certificate, e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|e| wrong(&files.key, key_fault(&e)))?;
        server.alpn_protocols = versions();
        server.send_tls13_tickets = 0;
        let signing = provider.key_provider.load_private_key(key.clone_key());
        let signing = signing.map_err(|e| wrong(&files.key, key_fault(&e)))?;
        Ok(Self {
            provider,
            roots,
            chain,
            key,
            signing,
            key_path: files.key.clone(),
            certificate_path: files.certificate.clone(),
            identity: own,
            last_second,
            server: Arc::new(server),
        })
    }

    /// Whether this host's certificate is still in its time, by the wall clock: for people only.
    /// Peers decide by themselves, at each session.
    ///
    /// # Errors
    /// When it has expired.
    pub fn in_time(&self) -> Result<(), TlsError> {
        match end(self.last_second, UnixTime::now().as_secs()) {
            End::Over(why) => Err(wrong(&self.certificate_path, why)),
            End::Soon(_) | End::Later => Ok(()),
        }
    }

    /// What an operator should know of the end of this host's certificate.
    pub(crate) fn ends_soon(&self) -> Option<String> {
        match end(self.last_second, UnixTime::now().as_secs()) {
            End::Over(why) | End::Soon(why) => Some(why),
            End::Later => None,
        }
    }

    /// Who this host is.
    #[must_use]
    pub const fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// To take sessions.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// To begin a session with exactly this peer.
    ///
    /// # Errors
    /// When certificate and key cannot be used.
    pub fn client(&self, expected: &SpiffeId) -> Result<Arc<ClientConfig>, TlsError> {
        let verifier = Expect {
            roots: Arc::clone(&self.roots),
            algorithms: self.provider.signature_verification_algorithms,
            identity: expected.clone(),
        };
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| wrong(&self.key_path, e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|e| wrong(&self.key_path, e))?;
        client.alpn_protocols = versions();
        client.resumption = Resumption::disabled();
        Ok(Arc::new(client))
    }

    /// Random bits of the TLS library; zero where it has none, which only makes a session's number
    /// less surprising: it is inside the TLS session all the same.
    pub(crate) fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        let _ = self.provider.secure_random.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// A server whose certificate leads to our authority and names exactly this identity. Nothing is
/// left out: what "custom" replaces is the check of a DNS name, which nobody has here.
#[derive(Debug)]
struct Expect {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    identity: SpiffeId,
}

impl ServerCertVerifier for Expect {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        let refused = |error: IdentityError| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
        };
        let found = identity(end_entity).map_err(refused)?;
        if found != self.identity {
            return Err(refused(IdentityError::Other { found, expected: self.identity.clone() }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The library's words for two files that do not belong together help nobody.
pub(crate) fn key_fault(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "it is not the key of the certificate".into(),
        error => error.to_string(),
    }
}

pub(crate) fn wrong(path: &Path, why: impl ToString) -> TlsError {
    TlsError { path: path.to_path_buf(), why: why.to_string() }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| wrong(path, e))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|e| wrong(path, e))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(wrong(path, format!("it is longer than {FILE_MAX} bytes")));
    }
    Ok(bytes)
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&bytes).take(CERTIFICATES_MAX).collect();
    let found = found.map_err(|e| wrong(path, format!("it is no PEM file: {e}")))?;
    if found.is_empty() {
        return Err(wrong(path, "there is no certificate in it"));
    }
    Ok(found)
}

pub(crate) fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| wrong(path, e))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_told_seven_days_before() {
        const DAY: u64 = 86_400;
        let end = |now| end(100 * DAY, now);
        assert_eq!((end(0), end(93 * DAY - 1)), (End::Later, End::Later));
        assert_eq!(end(93 * DAY), End::Soon("it expires in 7 d".into()));
        assert_eq!(end(100 * DAY - 7200), End::Soon("it expires in 2 h".into()));
        assert_eq!(end(100 * DAY), End::Soon("it expires in less than an hour".into()));
        let over = |ago: &str| End::Over(format!("it has expired, {ago} ago: no peer takes it"));
        assert_eq!(end(100 * DAY + 1), over("less than an hour"));
        assert_eq!(end(103 * DAY), over("3 d"));
    }
}
