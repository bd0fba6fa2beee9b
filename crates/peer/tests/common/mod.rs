// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates for tests.
#![allow(clippy::unwrap_used, reason = "helpers of tests: to panic is to fail")]

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_peer::tls::Files;

/// An authority, and a folder for what it signs.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("authority.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// A certificate with these URI and DNS names, and its key.
    pub(crate) fn sign(&self, file: &str, uris: &[&str], dns: &[&str]) -> Files {
        self.sign_until(4000, file, (uris, dns))
    }

    /// The same, for one that ends with the beginning of this year.
    pub(crate) fn sign_until(
        &self,
        year: i32,
        file: &str,
        (uris, dns): (&[&str], &[&str]),
    ) -> Files {
        let names = dns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        for uri in uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
        }
        params.distinguished_name.push(DnType::CommonName, "spiffe://example.org/b1");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.dir.path().join(format!("{file}.{end}"));
        fs::write(path("pem"), signed.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        Files { certificate: path("pem"), key: path("key"), authority: self.authority() }
    }

    /// The certificate of a host.
    pub(crate) fn host(&self, name: &str) -> Files {
        self.sign(name, &[&format!("spiffe://example.org/{name}")], &[])
    }
}
