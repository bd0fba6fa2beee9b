// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files about who may limit whom while links are congested: a router has the operator's public key, the
//! grants, and what was revoked; a server has its own key and its grant.

use crate::authority::{
    Bounds, Receiver, SignedGrant, SignedRevocations, SigningKey, VerifyingKey,
};
use crate::tls::{TlsError, read, wrong};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_model::SpiffeId;
use tidegate_units::Nanos;

/// Keys of the configuration.
pub(crate) const GRANTS: &str = "cluster.grants";
pub(crate) const SIGNING: &str = "cluster.signing";

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

/// What they say, and what those said that cannot be read at the moment.
#[derive(Clone, Default)]
pub struct Delegation {
    operator: Option<VerifyingKey>,
    grants: BTreeMap<PathBuf, SignedGrant>,
    revoked: Option<SignedRevocations>,
    /// There is a list of revocations, and nobody knows what is in it.
    unknown: bool,
    signer: Option<Arc<Signer>>,
}

/// The key of the configuration whose files cannot be used, and why.
pub(crate) type Fault = (&'static str, TlsError);

impl Delegation {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that cannot be used, and what is wrong with it.
    pub fn load(files: &DelegationFiles) -> Result<Self, TlsError> {
        let (found, faults) = Self::default().renewed(files);
        match faults.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(found),
        }
    }

    /// Reads the files again, each by itself: where one cannot be used its last content stays, and all others
    /// count. So nobody keeps a revocation away by making another file unreadable.
    pub(crate) fn renewed(&self, files: &DelegationFiles) -> (Self, Vec<Fault>) {
        let (mut found, mut faults) = (Self::default(), Vec::new());
        if let Some(path) = &files.operator {
            found.operator = kept(operator(path), self.operator.as_ref(), (GRANTS, &mut faults));
        }
        if let Some(key) = found.operator {
            for path in &files.grants {
                let before = self.grants.get(path);
                let grant = kept(granted(path, Some(&key)), before, (GRANTS, &mut faults));
                found.grants.extend(grant.map(|grant| (path.clone(), grant)));
            }
            if let Some(path) = &files.revoked {
                let read = revocations(path, &key);
                // The list of another operator says nothing of this one's grants.
                let before = self.revoked.as_ref().filter(|list| list.verified(&key));
                found.revoked = kept(read, before, (GRANTS, &mut faults));
            }
        }
        found.unknown = files.revoked.is_some() && found.revoked.is_none();
        if let (Some(key), Some(grant)) = (&files.key, &files.grant) {
            found.signer = kept(signer(key, grant), self.signer.as_ref(), (SIGNING, &mut faults));
        }
        (found, faults)
    }

    /// Who checks limits at a router of this identity; `None`: it takes none. Without the list of revocations
    /// nobody knows which grants still hold.
    pub(crate) fn receiver(&self, name: &SpiffeId, now: Nanos) -> Option<Receiver> {
        let operator = self.operator.filter(|_| !self.unknown)?;
        let mut receiver = Receiver::new(&name.to_string(), operator, Bounds::default());
        if let Some(list) = &self.revoked {
            // The last one may be of another operator; then it revokes nothing of this one.
            let _ = receiver.revoke(list);
        }
        for grant in self.grants.values() {
            // What is revoked is not taken.
            let _ = receiver.grant(now, grant);
        }
        Some(receiver)
    }

    /// The list of revocations.
    pub(crate) const fn revoked(&self) -> Option<&SignedRevocations> {
        self.revoked.as_ref()
    }

    pub(crate) fn signer(&self) -> Option<Arc<Signer>> {
        self.signer.clone()
    }
}

/// What was read, else what it was before.
fn kept<T: Clone>(
    read: Result<T, TlsError>,
    before: Option<&T>,
    (key, faults): (&'static str, &mut Vec<Fault>),
) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(error) => {
            faults.push((key, error));
            before.cloned()
        }
    }
}

fn operator(path: &Path) -> Result<VerifyingKey, TlsError> {
    VerifyingKey::from_pem(&read(path)?).map_err(|why| wrong(path, why))
}

fn revocations(path: &Path, operator: &VerifyingKey) -> Result<SignedRevocations, TlsError> {
    let list = SignedRevocations::from_text(&text(path)?).filter(|list| list.verified(operator));
    list.ok_or_else(|| wrong(path, "no list of revocations that the operator has signed"))
}

fn signer(key: &Path, grant: &Path) -> Result<Arc<Signer>, TlsError> {
    let own = SigningKey::from_pem(&read(key)?).map_err(|why| wrong(key, why))?;
    let body = granted(grant, None)?.body().clone();
    if own.public() != body.key {
        return Err(wrong(grant, format!("it is for another key than {}", key.display())));
    }
    Ok(Arc::new(Signer { grant: body.serial, key: own }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{GrantBody, Kinds, Revocations};
    use rcgen::{KeyPair, PKCS_ED25519};
    use std::fs;

    const HOLDER: &str = "spiffe://example.org/s";
    const TODAY: u64 = 1_000;

    struct World {
        dir: tempfile::TempDir,
        operator: SigningKey,
        files: DelegationFiles,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = |name: &str| dir.path().join(name);
            let files = DelegationFiles {
                operator: Some(file("operator")),
                grants: vec![file("1"), file("2")],
                revoked: Some(file("revoked")),
                ..DelegationFiles::default()
            };
            let mut world = Self { dir, operator: SigningKey::from_seed(&[4; 32]).unwrap(), files };
            world.change_operator();
            world
        }

        /// Another operator signs everything anew, and has revoked nothing.
        fn change_operator(&mut self) {
            let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            self.write("operator", &pair.public_key_pem());
            self.operator = SigningKey::from_pem(pair.serialize_pem().as_bytes()).unwrap();
            self.grant(1);
            self.grant(2);
            self.revoke(1, &[]);
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.dir.path().join(name), text).unwrap();
        }

        fn grant(&self, serial: u64) {
            let body = GrantBody {
                serial,
                holder: HOLDER.into(),
                key: SigningKey::from_seed(&[3; 32]).unwrap().public(),
                scopes: vec!["192.0.2.1:80".into()],
                kinds: Kinds { rate: true, ..Kinds::default() },
                limits: 1,
                changes: 1,
                staged: false,
                from_s: 0,
                until_s: 2 * TODAY,
            };
            let grant = SignedGrant::sign(body, &self.operator).unwrap();
            self.write(&serial.to_string(), &grant.to_text());
        }

        fn revoke(&self, sequence: u64, serials: &[u64]) {
            let list = Revocations { sequence, serials: serials.to_vec() };
            let list = SignedRevocations::sign(list, &self.operator).unwrap();
            self.write("revoked", &list.to_text());
        }

        /// Which grants hold, as a router sees it.
        fn held(&self, found: &Delegation) -> Option<Vec<u64>> {
            let receiver = found.receiver(&"spiffe://example.org/r".parse().unwrap(), Nanos(0))?;
            let holds = |serial: &u64| receiver.is_of((*serial, HOLDER), TODAY);
            Some((1..=2).filter(holds).collect())
        }
    }

    #[test]
    fn each_file_counts_by_itself() {
        let world = World::new();
        let first = Delegation::load(&world.files).unwrap();
        assert_eq!(world.held(&first), Some(vec![1, 2]));
        for bad in ["operator", "1", "2", "revoked"] {
            let world = World::new();
            let before = Delegation::load(&world.files).unwrap();
            world.revoke(2, &[2]);
            world.write(bad, "garbage");
            let why = Delegation::load(&world.files).err().unwrap().to_string();
            assert!(why.contains(&format!("/{bad}")), "{why}");
            let (found, faults) = before.renewed(&world.files);
            assert!(faults.iter().all(|(key, _)| *key == GRANTS) && faults.len() == 1, "{bad}");
            let expected = if bad == "revoked" { vec![1, 2] } else { vec![1] };
            assert_eq!(world.held(&found), Some(expected), "{bad}");
            // And without anything that was read before.
            let (found, _) = Delegation::default().renewed(&world.files);
            let expected = match bad {
                // Nobody knows what was taken back, or by whom anything is signed.
                "operator" | "revoked" => None,
                "1" => Some(vec![]),
                _ => Some(vec![1]),
            };
            assert_eq!(world.held(&found), expected, "{bad} from the beginning");
        }
    }

    /// Nobody knows what the operator of now has revoked: nothing holds, whatever the one before has said.
    #[test]
    fn a_list_of_another_operator_stands_in_for_none() {
        let mut world = World::new();
        let before = Delegation::load(&world.files).unwrap();
        world.write("revoked", "garbage");
        let (found, _) = before.renewed(&world.files);
        assert_eq!(world.held(&found), Some(vec![1, 2]), "the same operator: its last list counts");
        world.change_operator();
        world.write("revoked", "garbage");
        let (found, faults) = found.renewed(&world.files);
        assert_eq!((faults.len(), world.held(&found)), (1, None));
        world.revoke(2, &[2]);
        let (found, faults) = found.renewed(&world.files);
        assert_eq!((faults.len(), world.held(&found)), (0, Some(vec![1])));
    }
}
