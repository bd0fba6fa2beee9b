// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a host signs with the key of its certificate: messages over a bus, where no session says whose they are.

use super::Credentials;
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// In front of what is signed, as in TLS 1.3 (RFC 8446, section 4.4.3), with a name of our own: a signature of TLS is
/// none on a message, and none on a message is one of TLS.
const PADDING: [u8; 64] = [0x20; 64];
const NAME: &[u8] = b"tidegate bus 1\0";

/// How messages are signed: what TLS 1.3 allows, and keys of certificates are made for.
const SCHEMES: [SignatureScheme; 4] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
];

/// A message on one subject: elsewhere its signature is none.
fn named(subject: &str, body: &[u8]) -> Vec<u8> {
    [&PADDING, NAME, subject.as_bytes(), b"\0", body].concat()
}

impl Credentials {
    /// This host's certificate, and what leads to the authority.
    pub(crate) fn chain(&self) -> Vec<Vec<u8>> {
        self.chain.iter().map(|certificate| certificate.to_vec()).collect()
    }

    /// Scheme and signature of a message; `None` where the key has none of [`SCHEMES`].
    pub(crate) fn sign(&self, subject: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
        let signer = self.signing.choose_scheme(&SCHEMES)?;
        let signature = signer.sign(&named(subject, body)).ok()?;
        Some((signer.scheme().into(), signature))
    }

    /// Whether the authority has signed this certificate, the first one, and it is in its time.
    pub(crate) fn trusts(&self, chain: &[Vec<u8>]) -> bool {
        let chain: Vec<CertificateDer<'_>> =
            chain.iter().map(|one| CertificateDer::from(one.as_slice())).collect();
        let Some((first, others)) = chain.split_first() else { return false };
        let Ok(certificate) = EndEntityCert::try_from(first) else { return false };
        let (usage, now) = (KeyUsage::client_auth(), UnixTime::now());
        let all = self.provider.signature_verification_algorithms.all;
        certificate.verify_for_usage(all, &self.roots.roots, others, now, usage, None, None).is_ok()
    }

    /// Whether the key of this certificate has signed a message.
    pub(crate) fn verifies(
        &self,
        certificate: &[u8],
        (scheme, signature): (u16, &[u8]),
        (subject, body): (&str, &[u8]),
    ) -> bool {
        let certificate = CertificateDer::from(certificate);
        let Ok(certificate) = EndEntityCert::try_from(&certificate) else { return false };
        let scheme = SignatureScheme::from(scheme);
        if !SCHEMES.contains(&scheme) {
            return false;
        }
        let message = named(subject, body);
        let known = self.provider.signature_verification_algorithms.mapping.iter();
        let of_scheme = known.filter(|(of, _)| *of == scheme).flat_map(|(_, all)| all.iter());
        let mut signed =
            of_scheme.map(|one| certificate.verify_signature(*one, &message, signature));
        signed.any(|verified| verified.is_ok())
    }
}
