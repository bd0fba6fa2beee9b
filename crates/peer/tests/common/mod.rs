// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates for tests, names, and patience.
#![allow(clippy::unwrap_used, reason = "helpers of tests: to panic is to fail")]
#![allow(dead_code, reason = "no file of tests uses all of it")]

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_model::SpiffeId;
use tidegate_model::sharing::DestinationReport;
use tidegate_peer::Grant;
use tidegate_peer::tls::Files;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Longest wait for anything that shall happen: files are looked at every 5 s.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Waits until `done` gives something.
pub(crate) fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = MonotonicClock.now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(MonotonicClock.now().since(begin) < PATIENCE, "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A host that may report, and limit nothing.
pub(crate) fn grant(identity: &SpiffeId) -> Grant {
    Grant {
        name: identity.as_str().rsplit('/').next().unwrap().into(),
        identity: identity.clone(),
        services: Vec::new(),
        limits: Vec::new(),
        when_congested: Vec::new(),
        targets: 0,
    }
}

/// What a router saw in a second of a destination at this port.
pub(crate) fn report(port: u16, started: u32) -> DestinationReport {
    let address = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), port));
    let empty = DestinationReport::empty(address, 1000, 1);
    DestinationReport { started, took: vec![(70, started.max(1))], ..empty }
}

/// The identity of a host.
pub(crate) fn id(name: &str) -> SpiffeId {
    format!("spiffe://example.org/{name}").parse().unwrap()
}

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
