// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files about who may limit whom while links are congested: a router has the operator's public key, the
//! grants, and what was revoked; a server has its own key and its grant.

use crate::authority::{
    Bounds, Receiver, SignedGrant, SignedRevocations, SigningKey, VerifyingKey,
};
use crate::tls::{TlsError, read, wrong};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_model::SpiffeId;
use tidegate_units::Nanos;

/// Where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelegationFiles {
    /// Router: the operator's public key (PEM).
    pub operator: Option<PathBuf>,
    /// Router: grants, one a file.
    pub grants: Vec<PathBuf>,
    /// Router: the last list of revocations.
    pub revoked: Option<PathBuf>,
    /// Server: its private key (PEM).
    pub key: Option<PathBuf>,
    /// Server: its grant.
    pub grant: Option<PathBuf>,
}

impl DelegationFiles {
    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let one = [&self.operator, &self.revoked, &self.key, &self.grant];
        one.into_iter().flatten().chain(&self.grants)
    }
}

/// With what a server signs.
#[derive(Debug)]
pub(crate) struct Signer {
    /// Serial number of its grant.
    pub(crate) grant: u64,
    pub(crate) key: SigningKey,
}

/// What they say.
#[derive(Default)]
pub struct Delegation {
    operator: Option<VerifyingKey>,
    grants: Vec<SignedGrant>,
    revoked: Option<SignedRevocations>,
    signer: Option<Arc<Signer>>,
}

impl Delegation {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used, and what is wrong with it.
    pub fn load(files: &DelegationFiles) -> Result<Self, TlsError> {
        let mut found = Self::default();
        if let Some(path) = &files.operator {
            let key = VerifyingKey::from_pem(&read(path)?).map_err(|why| wrong(path, why))?;
            for path in &files.grants {
                found.grants.push(granted(path, Some(&key))?);
            }
            if let Some(path) = &files.revoked {
                let list = SignedRevocations::from_text(&text(path)?);
                let list = list.filter(|list| list.verified(&key));
                let why = "no list of revocations that the operator has signed";
                found.revoked = Some(list.ok_or_else(|| wrong(path, why))?);
            }
            found.operator = Some(key);
        }
        if let (Some(key), Some(grant)) = (&files.key, &files.grant) {
            let own = SigningKey::from_pem(&read(key)?).map_err(|why| wrong(key, why))?;
            let body = granted(grant, None)?.body().clone();
            if own.public() != body.key {
                return Err(wrong(grant, format!("it is for another key than {}", key.display())));
            }
            found.signer = Some(Arc::new(Signer { grant: body.serial, key: own }));
        }
        Ok(found)
    }

    /// Who checks limits at a router of this identity; `None`: it takes none.
    pub(crate) fn receiver(&self, name: &SpiffeId, now: Nanos) -> Option<Receiver> {
        let mut receiver = Receiver::new(&name.to_string(), self.operator?, Bounds::default());
        if let Some(list) = &self.revoked {
            // Verified when it was read, and nothing is newer.
            let _ = receiver.revoke(list);
        }
        for grant in &self.grants {
            // What is revoked is not taken.
            let _ = receiver.grant(now, grant);
        }
        Some(receiver)
    }

    pub(crate) fn signer(&self) -> Option<Arc<Signer>> {
        self.signer.clone()
    }
}

fn text(path: &Path) -> Result<String, TlsError> {
    String::from_utf8(read(path)?).map_err(|_| wrong(path, "it is no text"))
}

fn granted(path: &Path, operator: Option<&VerifyingKey>) -> Result<SignedGrant, TlsError> {
    let grant =
        SignedGrant::from_text(&text(path)?).ok_or_else(|| wrong(path, "it is no grant"))?;
    match operator {
        Some(operator) if !grant.verified(operator) => {
            Err(wrong(path, "the operator has not signed it"))
        }
        _ => Ok(grant),
    }
}
