// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routers that share over a NATS server in place of sessions with each other.
//!
//! ```text
//!  share() ─► reports ─► members ─► signed messages ─► client ═NATS═► the clients of other routers
//!  shared() ◄── table ◄── members ◄── signature, session, number ◄── client ◄═NATS═
//! ```
//!
//! [`message`] and [`members`] are pure, as a session is. The client has a thread of its own, so neither a server that is
//! slow nor a flood on its subject costs the sessions or the control loop anything.
//!
//! - The server is trusted with nothing but to pass messages on: each is signed with the key of its sender's certificate.
//! - Whatever becomes of the server, each router goes on by itself, as when a session is lost.

mod book;
mod client;
mod member;
pub mod members;
pub mod message;

pub(crate) use book::Book;
pub(crate) use client::{Running, Wires, start};

use crate::frame::{BODY_MAX, HEAD};
use crate::tls::{Credentials, TlsError, read, roots, wrong};
use message::Envelope;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusConfig {
    /// Its servers: names or addresses, with ports.
    pub servers: Vec<String>,
    /// Where reports are published.
    pub subject: String,
    /// Who signs certificates of the servers; `None`: no TLS.
    pub authority: Option<PathBuf>,
    /// What this host shows the server, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A credentials file of NATS.
    pub credentials: Option<PathBuf>,
}

impl BusConfig {
    /// Whether this host can sign what it says: a key of a kind that TLS 1.3 has, and certificates that are not too long.
    #[must_use]
    pub fn can_sign(&self, credentials: &Credentials) -> bool {
        let longest = vec![0; HEAD + BODY_MAX + message::KNOWN_MAX];
        let sealed = Envelope::seal(credentials, &self.subject, longest);
        sealed.and_then(|sealed| sealed.encode()).is_some()
    }

    /// Whether its files can be used.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn examine(&self) -> Result<(), TlsError> {
        if let Some(path) = &self.authority {
            let roots = roots(path)?;
            if let Some((certificate, key)) = &self.certificate {
                let chain = crate::tls::certificates(certificate)?;
                let own = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|error| wrong(key, format!("no private key in it: {error}")))?;
                ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                    .with_safe_default_protocol_versions()
                    .map_err(|error| wrong(certificate, error))?
                    .with_root_certificates(roots)
                    .with_client_auth_cert(chain, own)
                    .map_err(|error| wrong(key, crate::tls::key_fault(&error)))?;
            }
        }
        self.credentials.as_deref().map_or(Ok(()), |path| credentials(path).map(drop))
    }
}

/// The text of a credentials file that can be used.
fn credentials(path: &Path) -> Result<String, TlsError> {
    let text = String::from_utf8(read(path)?).map_err(|_| wrong(path, "it is no text"))?;
    // The library's own words may contain what is in the file.
    match async_nats::ConnectOptions::with_credentials(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err(wrong(path, "it is no credentials file of NATS (a JWT and a seed)")),
    }
}
