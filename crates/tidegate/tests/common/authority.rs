// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates of the peers of a test.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use std::fs;
use std::path::Path;

/// Signs certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("authority.pem"), issuer.pem()).unwrap();
        Self { issuer }
    }

    /// Files of `host` in which stands `name`.
    pub(crate) fn sign(&self, folder: &Path, host: &str, name: &str) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let name = format!("spiffe://example.org/{name}");
        params.subject_alt_names = vec![SanType::URI(name.as_str().try_into().unwrap())];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(folder.join(format!("{host}.pem")), signed.pem()).unwrap();
        fs::write(folder.join(format!("{host}.key")), key.serialize_pem()).unwrap();
    }
}
