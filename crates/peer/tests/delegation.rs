// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files about limits for congested routers, while both hosts run: each counts by itself, and a revocation
//! always does.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{Authority, id, wait_for};
use rcgen::{KeyPair, PKCS_ED25519};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use tidegate_model::remote::{Arrived, Notice, RemoteLimit, Restriction};
use tidegate_peer::authority::{
    GrantBody, Kinds, Revocations, SignedGrant, SignedRevocations, SigningKey, VerifyingKey,
};
use tidegate_peer::tls::Files;
use tidegate_peer::{DelegationFiles, Grant, Node, NodeConfig, OutgoingLimit, Plain, Target};
use tidegate_units::{Clock, DayClock, MonotonicClock, Nanos, Rate};

const SCOPE: &str = "192.0.2.5:80";

/// A router, a server that may limit it, and where their files are.
struct World {
    authority: Authority,
    operator: SigningKey,
    holder: VerifyingKey,
    certificate: PathBuf,
    front: Node,
    back: Node,
}

impl World {
    /// `broken` are names of files that do not say what they should, from the beginning.
    fn new(broken: &[&str]) -> Self {
        let authority = Authority::new();
        let file = |name: &str| authority.dir().join(name);
        let mut keys = Vec::new();
        for name in ["operator", "holder"] {
            let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            fs::write(file(&format!("{name}.key")), pair.serialize_pem()).unwrap();
            fs::write(file(&format!("{name}.pub")), pair.public_key_pem()).unwrap();
            keys.push(SigningKey::from_pem(pair.serialize_pem().as_bytes()).unwrap());
        }
        let holder = keys.pop().unwrap().public();
        let operator = keys.pop().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let files = authority.host("front");
        let certificate = files.certificate.clone();
        let nodes = [(); 2].map(|()| Node::start(Arc::new(MonotonicClock)).unwrap());
        let [front, back] = nodes;
        let world = Self { authority, operator, holder, certificate, front, back };
        world.grant("grant", 1);
        world.grant("other", 2);
        world.revoke(1, &[99]);
        broken.iter().for_each(|name| world.spoil(name));
        world.front.follow(Some(world.router(files, address))).unwrap();
        let files = world.authority.host("b1");
        world.back.follow(Some(world.server(files, address))).unwrap();
        world
    }

    fn file(&self, name: &str) -> PathBuf {
        self.authority.dir().join(name)
    }

    fn grant(&self, file: &str, serial: u64) {
        let now = DayClock.now().0 / Nanos::SECOND.0;
        let body = GrantBody {
            serial,
            holder: id("b1").to_string(),
            key: self.holder,
            scopes: vec![SCOPE.into()],
            kinds: Kinds { rate: true, ..Kinds::default() },
            limits: 4,
            changes: 60_000,
            staged: false,
            from_s: now - 1_000,
            until_s: now + 1_000,
        };
        let grant = SignedGrant::sign(body, &self.operator).unwrap();
        fs::write(self.file(file), grant.to_text()).unwrap();
    }

    fn revoke(&self, sequence: u64, serials: &[u64]) {
        let list = Revocations { sequence, serials: serials.to_vec() };
        let list = SignedRevocations::sign(list, &self.operator).unwrap();
        fs::write(self.file("revoked"), list.to_text()).unwrap();
    }

    fn spoil(&self, file: &str) {
        fs::write(self.file(file), "half of a file\n").unwrap();
    }

    fn router(&self, files: Files, address: SocketAddr) -> NodeConfig {
        let b1 = Grant {
            name: "b1".into(),
            identity: id("b1"),
            services: vec!["shop".into()],
            limits: Vec::new(),
            when_congested: vec![SCOPE.parse().unwrap()],
            targets: 0,
        };
        let delegation = DelegationFiles {
            operator: Some(self.file("operator.pub")),
            grants: vec![self.file("other"), self.file("grant")],
            revoked: Some(self.file("revoked")),
            ..DelegationFiles::default()
        };
        let (listen, targets, routers) = (Some(address), Vec::new(), Vec::new());
        NodeConfig { files, listen, grants: vec![b1], targets, delegation, routers, bus: None }
    }

    fn server(&self, files: Files, address: SocketAddr) -> NodeConfig {
        let target = Target {
            name: "front".into(),
            address,
            identity: id("front"),
            services: vec!["shop".into()],
            validity: Nanos::from_secs(2),
        };
        let delegation = DelegationFiles {
            key: Some(self.file("holder.key")),
            grant: Some(self.file("grant")),
            ..DelegationFiles::default()
        };
        let (listen, grants, routers) = (None, Vec::new(), Vec::new());
        NodeConfig { files, listen, grants, targets: vec![target], delegation, routers, bus: None }
    }

    /// The router says that it is congested, the server answers what it heard. Whether a limit was taken.
    fn round(&self) -> bool {
        let said = Notice {
            service: "shop-1".into(),
            listens: vec![SCOPE.parse().unwrap()],
            offered: Rate::per_second(100.0),
            ..Notice::default()
        };
        self.front.notify(vec![("b1".into(), said)]);
        let limit = RemoteLimit {
            scope: SCOPE.parse().unwrap(),
            restriction: Restriction::Rate(Rate::per_second(40.0)),
            validity: Nanos::from_secs(10),
            sequence: 0,
            priority: 0,
        };
        if let Some((target, number, _)) = self.back.notices().pop() {
            let answers = Some((Rate::per_second(40.0), number));
            self.back.limit(vec![OutgoingLimit { target, limit, answers, plain: Plain::Same }]);
        }
        let (taken, ..) = self.front.take_limits();
        taken.iter().any(|arrived| matches!(arrived, Arrived::Pushed(_)))
    }

    fn problems(&self, of: &str) -> String {
        let mut own = self.front.problems().into_iter();
        own.find(|(subject, _)| *subject == of).map(|(_, text)| text).unwrap_or_default()
    }

    fn refused(&self) -> u64 {
        let states = self.front.states(MonotonicClock.now());
        let counts = states.iter().flat_map(|state| &state.refused);
        counts.filter(|count| count.reason == "not-granted").map(|count| count.count).sum()
    }
}

#[test]
fn a_revocation_counts_whatever_else_is_wrong() {
    let world = World::new(&[]);
    wait_for("a limit is taken", || world.round().then_some(()));
    assert_eq!((world.front.problems(), world.refused()), (Vec::new(), 0));
    // Somebody renews everything at once, and only the list is written to its end.
    ["operator.pub", "grant", "other"].iter().for_each(|name| world.spoil(name));
    fs::write(&world.certificate, "half of a file\n").unwrap();
    world.revoke(2, &[1]);
    // A notice that was sent before may still be answered; the server's own grant stays as well.
    wait_for("nothing more is taken", || {
        world.round();
        (world.refused() > 0).then_some(())
    });
    let grants = world.problems("cluster.grants");
    assert!(grants.contains("operator.pub") && grants.contains("other"), "{grants}");
    assert!(!world.problems("cluster.certificate").is_empty());
    // Everything is whole again; what was taken back stays so, also by an older list.
    world.revoke(1, &[99]);
    world.grant("grant", 1);
    let before = world.refused();
    wait_for("still nothing is taken", || {
        assert!(!world.round(), "it was taken back");
        (world.refused() > before + 3 && world.problems("cluster.grants").len() < grants.len())
            .then_some(())
    });
}

#[test]
fn a_file_that_is_bad_from_the_beginning_costs_nothing_but_itself() {
    let world = World::new(&["other"]);
    wait_for("a limit is taken", || world.round().then_some(()));
    assert!(world.problems("cluster.grants").contains("other"), "{:?}", world.front.problems());
    // It is looked at again, also where nothing says that it was written.
    let written = fs::metadata(world.file("other")).unwrap().modified().unwrap();
    world.grant("other", 2);
    let file = fs::File::options().write(true).open(world.file("other")).unwrap();
    file.set_modified(written).unwrap();
    wait_for("it is read", || world.problems("cluster.grants").is_empty().then_some(()));
}
