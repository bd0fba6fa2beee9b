// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates of the lab's servers, made anew for each, and of hosts that tell each other limits.

use crate::error::{LabError, Result};
use crate::os;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519, SanType,
};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

/// The name that the lab's clients ask for.
pub(super) const NAME: &str = "lab.test";

/// A certificate that signs itself, and its key (ECDSA with P-256, what most sites use).
#[derive(Debug)]
pub(crate) struct Certificate {
    /// PEM.
    pub(crate) certificate: PathBuf,
    /// PEM.
    pub(crate) key: PathBuf,
}

/// Makes one, as two files in a server's directory.
pub(crate) fn make(dir: &Path) -> Result<Certificate> {
    let wrong = |e: rcgen::Error| LabError::Missing(format!("a certificate: {e}"));
    let key = KeyPair::generate().map_err(wrong)?;
    let params = CertificateParams::new(vec![NAME.to_owned()]).map_err(wrong)?;
    let signed = params.self_signed(&key).map_err(wrong)?;
    let files = Certificate { certificate: dir.join("cert.pem"), key: dir.join("key.pem") };
    os::write(&files.certificate, signed.pem())?;
    os::write(&files.key, key.serialize_pem())?;
    Ok(files)
}

/// Certificates of hosts of a cluster, as docs/cluster.md makes them: `NAME.pem` and `NAME.key`, which
/// belongs to this user, and `authority.pem`. A host's identity is `spiffe://example.org/NAME`.
pub(crate) fn make_peers(dir: &Path, hosts: &[(&str, u32)]) -> Result<()> {
    let wrong = |e: rcgen::Error| LabError::Missing(format!("a certificate: {e}"));
    let mut params = CertificateParams::new(Vec::new()).map_err(wrong)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().map_err(wrong)?;
    let issuer = CertifiedIssuer::self_signed(params, key).map_err(wrong)?;
    os::write(&dir.join("authority.pem"), issuer.pem())?;
    for (host, user) in hosts {
        let identity = format!("spiffe://example.org/{host}");
        let mut params = CertificateParams::new(Vec::new()).map_err(wrong)?;
        params.subject_alt_names = vec![SanType::URI(identity.try_into().map_err(wrong)?)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(wrong)?;
        let signed = params.signed_by(&key, &issuer).map_err(wrong)?;
        os::write(&dir.join(format!("{host}.pem")), signed.pem())?;
        let file = dir.join(format!("{host}.key"));
        os::write(&file, key.serialize_pem())?;
        chown(&file, Some(*user), None).map_err(LabError::io(os::text(&file)))?;
    }
    Ok(())
}

/// A pair of keys that signs grants or limits (Ed25519): `NAME.key` and `NAME.pub`.
pub(crate) fn make_signer(dir: &Path, name: &str) -> Result<()> {
    let wrong = |e: rcgen::Error| LabError::Missing(format!("a key: {e}"));
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(wrong)?;
    os::write(&dir.join(format!("{name}.key")), key.serialize_pem())?;
    os::write(&dir.join(format!("{name}.pub")), key.public_key_pem())
}
