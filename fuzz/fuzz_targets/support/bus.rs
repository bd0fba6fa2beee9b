// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fuzz target of the bus does with its bytes. Also run, bounded, by crates/peer/tests/fuzz_smoke.rs.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use std::collections::HashSet;
use std::sync::OnceLock;
use tidegate_model::SpiffeId;
use tidegate_model::sharing::DestinationReport;
use tidegate_peer::bus::members::{Members, Taken};
use tidegate_peer::bus::message::{Body, Envelope, MESSAGE_MAX};
use tidegate_peer::tls::{Credentials, Files};
use tidegate_peer::{Grant, Refusal, Table};
use tidegate_units::Nanos;

const SUBJECT: &str = "tidegate.routers";
/// Messages that are kept to be repeated.
const KEPT_MAX: usize = 64;

/// Certificates of two routers, made once.
struct Hosts([Credentials; 2]);

fn hosts() -> &'static Hosts {
    static HOSTS: OnceLock<Hosts> = OnceLock::new();
    HOSTS.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let authority = dir.path().join("authority");
        std::fs::write(&authority, issuer.pem()).expect("written");
        Hosts(["r1", "r2"].map(|name| {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            let uri = format!("spiffe://example.org/{name}");
            params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a name"))];
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().expect("a key");
            let signed = params.signed_by(&key, &issuer).expect("signed");
            let file = |end: &str| dir.path().join(format!("{name}.{end}"));
            std::fs::write(file("pem"), signed.pem()).expect("written");
            std::fs::write(file("key"), key.serialize_pem()).expect("written");
            let authority = authority.clone();
            let files = Files { certificate: file("pem"), key: file("key"), authority };
            Credentials::load(&files).expect("a host")
        }))
    })
}

/// Any bytes: read, or refused; what is read has one spelling.
pub(crate) fn message(bytes: &[u8]) {
    if let Ok(envelope) = Envelope::decode(bytes) {
        assert!(bytes.len() <= MESSAGE_MAX);
        assert_eq!(envelope.encode().as_deref(), Some(bytes));
    }
    if let Ok((body, _)) = Body::decode(bytes) {
        assert_eq!(body.encode().as_deref(), Some(bytes));
    }
}

/// A router.
struct Router {
    own: &'static Credentials,
    other: SpiffeId,
    members: Members,
    table: Table,
}

impl Router {
    fn new(at: usize, numbers: &mut u64) -> Self {
        let hosts = &hosts().0;
        let (own, other) = (&hosts[at], hosts[1 - at].identity().clone());
        let grant = Grant {
            name: "other".into(),
            identity: other.clone(),
            services: Vec::new(),
            limits: Vec::new(),
            when_congested: Vec::new(),
            targets: 0,
        };
        let mut table = Table::new(&[grant]);
        table.share_with(std::slice::from_ref(&other));
        table.hear_by_bus(true);
        let members = Members::new(SUBJECT, std::slice::from_ref(&other), &mut || next(numbers));
        Self { own, other, members, table }
    }
}

fn next(numbers: &mut u64) -> u64 {
    *numbers += 1;
    *numbers
}

struct World {
    routers: [Router; 2],
    now: Nanos,
    numbers: u64,
    /// What was said, and what was taken of it by each.
    kept: Vec<Vec<u8>>,
    taken: [HashSet<Vec<u8>>; 2],
}

/// A sequence of what may happen on a bus: messages, well made and not, repeated, changed, lost; routers that begin anew;
/// time, also backwards.
pub(crate) fn bus(bytes: &[u8]) {
    let mut numbers = 0;
    let routers = [0, 1].map(|at| Router::new(at, &mut numbers));
    let (now, kept, taken) = (Nanos::from_secs(100), Vec::new(), <[HashSet<_>; 2]>::default());
    let mut world = World { routers, now, numbers, kept, taken };
    let mut rest = bytes;
    while let Some((&what, more)) = rest.split_first() {
        rest = world.act(what, more);
        world.holds();
    }
}

impl World {
    fn act<'a>(&mut self, what: u8, rest: &'a [u8]) -> &'a [u8] {
        let (&value, after) = rest.split_first().unwrap_or((&0, rest));
        let at = usize::from(what / 16) % 2;
        let cut = after.len().min(usize::from(value));
        match what % 8 {
            0 => self.now += Nanos::from_millis(97 * u64::from(value)),
            1 => self.now = self.now - Nanos::from_millis(u64::from(value)),
            2 | 3 => self.say(at, value),
            4 => {
                if let Some(message) = self.kept.get(usize::from(value) % KEPT_MAX).cloned() {
                    self.hear(at, &message);
                }
            }
            5 => {
                // What a router signs that does not speak as it should.
                let body = after[..cut].to_vec();
                let sealed = Envelope::seal(self.routers[1 - at].own, SUBJECT, body);
                if let Some(message) = sealed.and_then(|sealed| sealed.encode()) {
                    self.hear(at, &message);
                }
                return &after[cut..];
            }
            6 if value < 128 => self.routers[at] = Router::new(at, &mut self.numbers),
            6 => {
                let changed = self.kept.last().cloned().map(|mut message| {
                    let place = usize::from(value) * message.len() / 256;
                    message[place] ^= 1 << (what % 7);
                    message
                });
                if let Some(message) = changed {
                    assert!(!self.hear(at, &message), "nobody has said that");
                }
            }
            _ => {
                message(&after[..cut]);
                assert!(!self.hear(at, &after[..cut]), "nobody has signed that");
                return &after[cut..];
            }
        }
        after
    }

    /// A router says something, and the other one hears it, but of some.
    fn say(&mut self, at: usize, value: u8) {
        let address = std::net::SocketAddr::from(([192, 0, 2, 1], 80));
        let mut report = DestinationReport::empty(address, 1000, 1);
        report.took = vec![(u16::from(value), 1)];
        let numbers = &mut self.numbers;
        let Router { own, members, .. } = &mut self.routers[at];
        let random = &mut || next(numbers);
        for message in members.messages(own, self.now, &[report], random) {
            if !value.is_multiple_of(4) {
                self.hear(1 - at, &message);
            }
            if self.kept.len() >= KEPT_MAX {
                self.kept.remove(0);
            }
            self.kept.push(message);
        }
    }

    /// Whether a report was taken.
    fn hear(&mut self, at: usize, bytes: &[u8]) -> bool {
        let numbers = &mut self.numbers;
        let Router { own, members, table, .. } = &mut self.routers[at];
        let opened = members.open(own, self.now, bytes);
        let taken = opened.and_then(|signed| {
            let random = &mut || next(numbers);
            members.take(table, (self.now, own.identity()), signed, random)
        });
        match taken {
            Ok(Taken::Report) => {
                assert!(self.taken[at].insert(bytes.to_vec()), "a message counts once");
                true
            }
            Ok(Taken::Greeting) => false,
            Err(refused) => {
                let named = refused.identity.is_none_or(|who| who == self.routers[at].other);
                assert!(named && refused.why != Refusal::Other && !refused.problem.is_empty());
                false
            }
        }
    }

    fn holds(&mut self) {
        for router in &mut self.routers {
            for told in router.table.take_destinations() {
                assert!(told.router == "other" && told.at <= self.now, "{told:?}");
                assert!(told.reports.iter().all(DestinationReport::is_sound), "{told:?}");
            }
        }
    }
}
