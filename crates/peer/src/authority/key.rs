// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ed25519 keys. Each kind of message is signed with a name of its own in front: a signature on one kind is
//! none on another.

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use std::fmt;

/// The DER of an Ed25519 public key in front of its 32 bytes (RFC 8410).
const PUBLIC_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A file that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No PEM block of this kind.
    #[error("no PEM block of an Ed25519 key")]
    Pem,
    /// A key of another kind.
    #[error("the key is not Ed25519")]
    Kind,
}

/// A private key.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {})", self.public())
    }
}

impl SigningKey {
    /// From PEM, as `openssl genpkey -algorithm ed25519` writes it.
    ///
    /// # Errors
    /// When there is no such key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| KeyError::Pem)?;
        // OpenSSL leaves the public half out.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.map(Self).map_err(|_| KeyError::Kind)
    }

    /// From its 32 secret bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn from_seed(seed: &[u8; 32]) -> Result<Self, KeyError> {
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(|_| KeyError::Kind)
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> VerifyingKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        VerifyingKey(bytes)
    }

    pub(super) fn sign(&self, kind: &str, body: &[u8]) -> Vec<u8> {
        self.0.sign(&named(kind, body)).as_ref().to_vec()
    }
}

/// A public key. As text: 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VerifyingKey(pub(super) [u8; 32]);

impl VerifyingKey {
    /// From PEM, as `openssl pkey -pubout` writes it.
    ///
    /// # Errors
    /// When there is no such key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|_| KeyError::Pem)?;
        let key = der.strip_prefix(&PUBLIC_HEAD[..]).ok_or(KeyError::Kind)?;
        key.try_into().map(Self).map_err(|_| KeyError::Kind)
    }

    /// From its text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        unhex(text)?.try_into().ok().map(Self)
    }

    pub(super) fn verifies(&self, kind: &str, body: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(&named(kind, body), signature).is_ok()
    }
}

impl fmt::Display for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

fn named(kind: &str, body: &[u8]) -> Vec<u8> {
    [b"tidegate ", kind.as_bytes(), b" 1\0", body].concat()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let both = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    bytes.iter().flat_map(both).map(char::from).collect()
}

/// Bytes from small hexadecimal digits: one spelling.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}
