// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates of the lab's servers, made anew for each.

use crate::error::{LabError, Result};
use crate::os;
use rcgen::{CertificateParams, KeyPair};
use std::path::{Path, PathBuf};

/// The name that the lab's clients ask for.
const NAME: &str = "lab.test";

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
