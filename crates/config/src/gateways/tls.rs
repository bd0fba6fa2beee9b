// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key `tls` of a gateway: with what its listener speaks TLS, and whose certificates it takes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Certificates of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayTls {
    /// Absolute path of a PEM file: the certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// Absolute path of a PEM file: its key.
    pub key: PathBuf,
    /// Absolute path of a PEM file: who signs the certificates that proxies have to show. Whoever has
    /// such a certificate may ask and report. Required, but with the adapter `proxy`, which has none:
    /// its clients show no certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

impl GatewayTls {
    /// Its files, with their keys.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let ca_file = self.ca_file.as_deref().map(|file| ("ca_file", file));
        [("certificate", self.certificate.as_path()), ("key", self.key.as_path())]
            .into_iter()
            .chain(ca_file)
    }
}
