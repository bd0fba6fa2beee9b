// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routers that share over a bus, without one: what is taken of a message, and what is not.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{Authority, grant, id, report};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tidegate_model::SpiffeId;
use tidegate_model::sharing::{DestinationReport, RouterReports};
use tidegate_peer::bus::members::{Members, Taken};
use tidegate_peer::bus::message::{BUS_VERSION, Body, CHAIN_MAX, Envelope, MESSAGE_MAX};
use tidegate_peer::frame::{Frame, VERSION};
use tidegate_peer::tls::{Credentials, Files};
use tidegate_peer::{BusConfig, Refusal, Table};
use tidegate_units::Nanos;

const SUBJECT: &str = "tidegate.routers";

/// A router of the bus.
struct Router {
    credentials: Credentials,
    members: Members,
    table: Table,
    others: Vec<SpiffeId>,
    numbers: u64,
    now: Nanos,
}

impl Router {
    fn new(files: &Files, others: &[&str], seed: u64) -> Self {
        let credentials = Credentials::load(files).unwrap();
        let others: Vec<SpiffeId> = others.iter().map(|name| id(name)).collect();
        let mut table = Table::new(&others.iter().map(grant).collect::<Vec<_>>());
        table.share_with(&others);
        table.hear_by_bus(true);
        let mut numbers = seed << 32;
        let members = Members::new(SUBJECT, &others, &mut || next(&mut numbers));
        Self { credentials, members, table, others, numbers, now: Nanos::from_secs(100 * seed) }
    }

    /// The same host with a new process.
    fn restart(&mut self, seed: u64) {
        self.numbers = seed << 32;
        let numbers = &mut self.numbers;
        self.members = Members::new(SUBJECT, &self.others, &mut || next(numbers));
        self.table = Table::new(&self.others.iter().map(grant).collect::<Vec<_>>());
        self.table.share_with(&self.others);
        self.table.hear_by_bus(true);
    }

    fn tell(&mut self, reports: &[DestinationReport]) -> Vec<Vec<u8>> {
        self.now += Nanos::SECOND;
        let numbers = &mut self.numbers;
        let random = &mut || next(numbers);
        self.members.messages(&self.credentials, self.now, reports, random)
    }

    fn hear(&mut self, bytes: &[u8]) -> Result<Taken, Refusal> {
        let signed = self.members.open(&self.credentials, self.now, bytes);
        let (numbers, own) = (&mut self.numbers, self.credentials.identity());
        let random = &mut || next(numbers);
        let taken = signed
            .and_then(|signed| self.members.take(&mut self.table, (self.now, own), signed, random));
        taken.map_err(|refused| refused.why)
    }

    fn told(&mut self) -> Vec<RouterReports> {
        self.table.take_destinations()
    }

    fn is_heard(&self, name: &str) -> bool {
        let states = self.table.states(self.now);
        states.iter().any(|state| state.name == name && state.up)
    }
}

fn next(numbers: &mut u64) -> u64 {
    *numbers += 1;
    *numbers
}

/// Two routers that have heard each other.
struct Pair {
    authority: Authority,
    r1: Router,
    r2: Router,
}

impl Pair {
    fn new() -> Self {
        let authority = Authority::new();
        let r1 = Router::new(&authority.host("r1"), &["r2"], 1);
        let r2 = Router::new(&authority.host("r2"), &["r1"], 2);
        let mut pair = Self { authority, r1, r2 };
        pair.meet();
        pair
    }

    /// Two rounds are enough.
    fn meet(&mut self) {
        for _ in 0..2 {
            let (first, second) = (self.r1.tell(&[]), self.r2.tell(&[]));
            for message in first {
                let _ = self.r2.hear(&message);
            }
            for message in second {
                let _ = self.r1.hear(&message);
            }
        }
        let mut said = self.r1.tell(&[]);
        assert_eq!(self.r2.hear(&said.remove(0)), Ok(Taken::Report));
        self.r1.told();
        self.r2.told();
    }

    /// A good message of r2.
    fn good(&mut self) -> Vec<u8> {
        self.r2.tell(&[report(80, 3)]).remove(0)
    }
}

#[test]
fn routers_begin_a_session_by_each_others_numbers() {
    let authority = Authority::new();
    let mut r1 = Router::new(&authority.host("r1"), &["r2"], 1);
    let mut r2 = Router::new(&authority.host("r2"), &["r1"], 2);
    let first = r1.tell(&[report(80, 3)]).remove(0);
    assert_eq!(r2.hear(&first), Ok(Taken::Greeting), "it may be a recording");
    let second = r2.tell(&[report(80, 4)]).remove(0);
    assert_eq!(r1.hear(&second), Ok(Taken::Report));
    assert!(r1.is_heard("r2") && !r2.is_heard("r1"));
    let third = r1.tell(&[report(80, 5)]).remove(0);
    assert_eq!(r2.hear(&third), Ok(Taken::Report));
    let told = r2.told();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].router.as_str(), &told[0].reports[..]), ("r1", &[report(80, 5)][..]));
    // One that is silent is not there; its session goes on when it is heard again.
    r1.now += Nanos::from_secs(11);
    assert!(!r1.is_heard("r2"));
    let again = r2.tell(&[]).remove(0);
    assert_eq!(r1.hear(&again), Ok(Taken::Report));
    assert!(r1.is_heard("r2"));
    assert_eq!(r1.table.states(r1.now)[0].epoch, 1);
}

#[test]
fn three_routers_hear_all_others() {
    let authority = Authority::new();
    let names = ["r1", "r2", "r3"];
    let router = |(seed, name): (u64, &&str)| {
        let others: Vec<&str> = names.iter().filter(|other| *other != name).copied().collect();
        Router::new(&authority.host(name), &others, seed)
    };
    let mut routers: Vec<Router> = (1..).zip(&names).map(router).collect();
    for _ in 0..3 {
        for from in 0..3 {
            let said = routers[from].tell(&[report(80, from as u32 + 1)]);
            for to in (0..3).filter(|to| *to != from) {
                for message in &said {
                    let _ = routers[to].hear(message);
                }
            }
        }
    }
    for router in &mut routers {
        let told = router.told();
        assert!(told.len() == 2 && told.iter().all(|of| of.reports.len() == 1), "{told:?}");
    }
}

/// The bytes of the report are those of the frame of a session.
#[test]
fn the_frame_of_a_session_goes_over_the_bus() {
    let mut pair = Pair::new();
    let message = pair.good();
    let envelope = Envelope::decode(&message).unwrap();
    let (body, said) = Body::decode(&envelope.body).unwrap();
    let frame = Frame::Destinations(Box::new(said)).encode(VERSION).unwrap();
    assert_eq!(body.frame, frame);
    assert_eq!(envelope.encode().unwrap(), message);
    // All of the largest reports that there are.
    let mut all: Vec<_> = (1..=64).map(|port| report(port, 9)).collect();
    for report in &mut all {
        report.took = (0..256).map(|place| (place + 300, 70_000)).collect();
    }
    for _ in 0..5 {
        let said = pair.r2.tell(&all);
        assert!(said.len() > 16 && said.iter().all(|message| message.len() <= MESSAGE_MAX));
        pair.r1.now += Nanos::SECOND;
        for message in said {
            assert_eq!(pair.r1.hear(&message), Ok(Taken::Report));
        }
        assert_eq!(pair.r1.told()[0].reports.len(), 64);
    }
}

#[test]
fn what_was_recorded_is_refused() {
    let mut pair = Pair::new();
    let (first, second) = (pair.good(), pair.good());
    assert_eq!(pair.r1.hear(&second), Ok(Taken::Report));
    assert_eq!(pair.r1.hear(&second), Err(Refusal::Stale), "repeated");
    assert_eq!(pair.r1.hear(&first), Err(Refusal::Stale), "overtaken");
    pair.r1.told();
    // The receiver begins anew: nothing from before counts, whoever repeats it.
    let recorded = pair.good();
    pair.r1.restart(3);
    for message in [&first, &second, &recorded] {
        assert_eq!(pair.r1.hear(message), Err(Refusal::OtherSession));
    }
    assert_eq!(pair.r1.told(), []);
    pair.meet();
    assert_eq!(pair.r1.hear(&recorded), Err(Refusal::Stale));
    // The sender begins anew: what it said before is of another session.
    let last = pair.good();
    pair.r2.restart(4);
    pair.meet();
    for message in [&first, &second, &recorded, &last] {
        assert_eq!(pair.r1.hear(message), Err(Refusal::OtherSession));
    }
    assert_eq!(pair.r1.told(), []);
    let good = pair.good();
    assert_eq!(pair.r1.hear(&good), Ok(Taken::Report), "and nothing was lost by it");
}

/// What was held back before the receiver had heard anything begins no session when it is old.
#[test]
fn what_was_held_back_is_refused() {
    let authority = Authority::new();
    let mut r1 = Router::new(&authority.host("r1"), &["r2"], 1);
    let mut r2 = Router::new(&authority.host("r2"), &["r1"], 2);
    let first = r1.tell(&[]).remove(0);
    assert_eq!(r2.hear(&first), Ok(Taken::Greeting));
    let held: Vec<_> = (0..3).map(|_| r2.tell(&[report(80, 7)]).remove(0)).collect();
    // Two numbers later: what gives the first one back has been under way for ten seconds at least.
    let mut last = Vec::new();
    for _ in 0..12 {
        last = r1.tell(&[]).remove(0);
    }
    for message in &held {
        assert_eq!(r1.hear(message), Err(Refusal::OtherSession));
    }
    assert_eq!(r1.told(), []);
    let _ = r2.hear(&last);
    let message = r2.tell(&[report(80, 8)]).remove(0);
    assert_eq!(r1.hear(&message), Ok(Taken::Report));
}

/// What is repeated of earlier processes keeps a new one from nothing.
#[test]
fn repeated_messages_do_not_keep_a_new_process_away() {
    let mut pair = Pair::new();
    let mut recorded = vec![pair.good()];
    for seed in [4, 5] {
        pair.r2.restart(seed);
        pair.meet();
        recorded.push(pair.good());
    }
    pair.r2.restart(6);
    for _ in 0..3 {
        let said = pair.r2.tell(&[]).remove(0);
        let _ = pair.r1.hear(&said);
        // The last word before each answer is a recording.
        for message in &recorded[..2] {
            assert!(pair.r1.hear(message).is_err());
        }
        let said = pair.r1.tell(&[]).remove(0);
        let _ = pair.r2.hear(&said);
    }
    let said = pair.r1.tell(&[report(80, 1)]).remove(0);
    assert_eq!(pair.r2.hear(&said), Ok(Taken::Report));
    let good = pair.good();
    assert_eq!(pair.r1.hear(&good), Ok(Taken::Report));
}

/// Its own words come back to a router.
#[test]
fn a_router_does_not_share_with_itself() {
    let mut pair = Pair::new();
    let own = pair.r1.tell(&[report(80, 1)]).remove(0);
    assert_eq!(pair.r1.hear(&own), Err(Refusal::UnknownPeer));
}

#[test]
fn what_a_router_has_not_signed_is_refused() {
    let mut pair = Pair::new();
    let good = pair.good();
    let envelope = Envelope::decode(&good).unwrap();
    let sealed = |files: &Files, subject: &str| {
        let credentials = Credentials::load(files).unwrap();
        Envelope::seal(&credentials, subject, envelope.body.clone()).unwrap()
    };
    let shown = |files: &Files| {
        let pem = std::fs::read(&files.certificate).unwrap();
        let certificates = vec![CertificateDer::from_pem_slice(&pem).unwrap().to_vec()];
        Envelope { certificates, ..envelope.clone() }
    };
    let other = Authority::new();
    let (r2, r3) = (pair.authority.host("r2"), pair.authority.host("r3"));
    let twice = ["spiffe://example.org/r2", "spiffe://example.org/x"];
    let stolen = Envelope { certificates: envelope.certificates.clone(), ..sealed(&r3, SUBJECT) };
    let altered = Envelope { body: body_of(&envelope, 9), ..envelope.clone() };
    let scheme = Envelope { scheme: 0x0401, ..envelope.clone() };
    for (message, why) in [
        (stolen, Refusal::Signature),
        (altered, Refusal::Signature),
        (scheme, Refusal::Signature),
        // Made for another bus.
        (sealed(&r2, "other.routers"), Refusal::Signature),
        (sealed(&other.host("r2"), SUBJECT), Refusal::Untrusted),
        (
            sealed(&pair.authority.sign_until(2020, "old", (&twice[..1], &[])), SUBJECT),
            Refusal::Untrusted,
        ),
        (sealed(&r3, SUBJECT), Refusal::UnknownPeer),
        (shown(&pair.authority.sign("two", &twice, &[])), Refusal::Identity),
        (shown(&pair.authority.sign("none", &[], &["r2"])), Refusal::Identity),
    ] {
        let bytes = message.encode().unwrap();
        assert_eq!(pair.r1.hear(&bytes), Err(why));
    }
    assert_eq!(pair.r1.told(), []);
    // A renewed certificate of the same router is as good.
    let renewed = sealed(&pair.authority.host("r2"), SUBJECT).encode().unwrap();
    assert_eq!(pair.r1.hear(&renewed), Ok(Taken::Report));
}

/// The same body with another sequence.
fn body_of(envelope: &Envelope, more: u64) -> Vec<u8> {
    let (body, mut message) = Body::decode(&envelope.body).unwrap();
    message.sequence += more;
    let frame = Frame::Destinations(Box::new(message)).encode(VERSION).unwrap();
    Body { frame, ..body }.encode().unwrap()
}

#[test]
fn messages_of_other_forms_are_refused() {
    let mut pair = Pair::new();
    let good = pair.good();
    let mut newer = good.clone();
    newer[0] = BUS_VERSION + 1;
    let long = [&good[..1], &vec![0; MESSAGE_MAX][..]].concat();
    for (bytes, why) in [
        (&b""[..], Refusal::Malformed),
        (&b"\x01"[..], Refusal::Malformed),
        (&b"PUB tidegate.routers 3"[..], Refusal::Version),
        (&newer[..], Refusal::Version),
        (&long[..], Refusal::Malformed),
        (&good[..good.len() - 1], Refusal::Malformed),
    ] {
        assert_eq!(pair.r1.hear(bytes), Err(why), "{bytes:02x?}");
    }
    // Whatever byte is changed: none of it is taken.
    for at in 0..good.len() {
        for change in [0x01, 0x80] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            pair.r1.now += Nanos::SECOND;
            assert!(pair.r1.hear(&bytes).is_err(), "byte {at}");
        }
    }
    assert_eq!(pair.r1.told(), []);
    assert_eq!(pair.r1.hear(&good), Ok(Taken::Report));
}

/// A body that is signed by a router, and is no report.
#[test]
fn only_reports_of_destinations_are_taken() {
    let mut pair = Pair::new();
    let envelope = Envelope::decode(&pair.good()).unwrap();
    let (body, message) = Body::decode(&envelope.body).unwrap();
    let frame = |frame: Frame| frame.encode(VERSION).unwrap();
    let unknown = [&[0, 1, VERSION, 99][..], &[0]].concat();
    let older = [&[0, 1, 1, 5][..], &[0]].concat();
    let two = frame(Frame::Destinations(Box::new(message.clone()))).repeat(2);
    let hello = frame(Frame::Bye(tidegate_peer::frame::Bye { why: Refusal::Stopping.into() }));
    let unsound = DestinationReport { sample: 0, ..report(80, 3) };
    let mut message = message;
    message.sequence += 1;
    message.reports = vec![unsound];
    for (frame, why) in [
        (unknown, Refusal::UnknownKind),
        (older, Refusal::Version),
        (two, Refusal::Unexpected),
        (hello, Refusal::Unexpected),
        (Vec::new(), Refusal::Malformed),
        (frame(Frame::Destinations(Box::new(message))), Refusal::OutOfRange),
    ] {
        let body = Body { frame, ..body.clone() }.encode().unwrap();
        let message = Envelope::seal(&pair.r2.credentials, SUBJECT, body).unwrap();
        assert_eq!(pair.r1.hear(&message.encode().unwrap()), Err(why));
    }
    let nobody = Body { known: Vec::new(), ..body };
    let sealed = |body: &Body| {
        let body = body.encode().unwrap();
        Envelope::seal(&pair.r2.credentials, SUBJECT, body).unwrap().encode().unwrap()
    };
    let message = sealed(&nobody);
    assert_eq!(pair.r1.hear(&message), Err(Refusal::NotGranted), "it does not name this router");
    assert_eq!(pair.r1.told(), []);
}

/// Certificates that no receiver takes are told by the sender's own check.
#[test]
fn a_host_knows_whether_it_can_sign() {
    let authority = Authority::new();
    let bus = BusConfig {
        servers: Vec::new(),
        subject: SUBJECT.into(),
        authority: None,
        certificate: None,
        credentials: None,
    };
    let files = authority.host("r1");
    let own = std::fs::read_to_string(&files.certificate).unwrap();
    let other = std::fs::read_to_string(authority.authority()).unwrap();
    for (more, can) in [(0, true), (CHAIN_MAX - 1, true), (CHAIN_MAX, false)] {
        std::fs::write(&files.certificate, own.clone() + &other.repeat(more)).unwrap();
        let mut router = Router::new(&files, &["r2"], 1);
        assert_eq!(bus.can_sign(&router.credentials), can, "{more} more certificates");
        assert_eq!(router.tell(&[]).len(), usize::from(can));
    }
}

/// Garbage with certificates keeps no router away that begins.
#[test]
fn a_flood_of_certificates_keeps_nobody_away() {
    let mut pair = Pair::new();
    let other = Authority::new();
    let envelope = Envelope::decode(&pair.good()).unwrap();
    let credentials = Credentials::load(&other.host("x")).unwrap();
    let garbage = Envelope::seal(&credentials, SUBJECT, envelope.body).unwrap().encode().unwrap();
    pair.r1.restart(3);
    for _ in 0..1000 {
        assert_eq!(pair.r1.hear(&garbage), Err(Refusal::UnknownPeer));
    }
    pair.meet();
    let good = pair.good();
    assert_eq!(pair.r1.hear(&good), Ok(Taken::Report));
}

/// A flood in the name of a router costs so many looks at signatures and no more, and of no other router.
#[test]
fn a_flood_is_bounded() {
    let authority = Authority::new();
    let mut r1 = Router::new(&authority.host("r1"), &["r2", "r3"], 1);
    let mut r2 = Router::new(&authority.host("r2"), &["r1"], 2);
    let mut r3 = Router::new(&authority.host("r3"), &["r1"], 3);
    for _ in 0..2 {
        let said = r1.tell(&[]).remove(0);
        for other in [&mut r2, &mut r3] {
            let _ = other.hear(&said);
            let message = other.tell(&[]).remove(0);
            let _ = r1.hear(&message);
        }
    }
    let forged = Envelope::decode(&r2.tell(&[report(80, 1)])[0]).unwrap();
    let mut counts = std::collections::BTreeMap::new();
    for more in 1..=10_000 {
        let message = Envelope { body: body_of(&forged, more), ..forged.clone() };
        let why = r1.hear(&message.encode().unwrap()).unwrap_err();
        *counts.entry(why).or_insert(0) += 1;
    }
    assert!(counts[&Refusal::Signature] <= 192 && counts.len() == 2, "{counts:?}");
    let message = r3.tell(&[report(80, 1)]).remove(0);
    assert_eq!(r1.hear(&message), Ok(Taken::Report));
    // And a flood of recordings costs none.
    r1.now += Nanos::from_secs(10);
    let message = r2.tell(&[report(80, 1)]).remove(0);
    assert_eq!(r1.hear(&message), Ok(Taken::Report));
    for _ in 0..10_000 {
        assert_eq!(r1.hear(&message), Err(Refusal::Stale));
    }
    let message = r2.tell(&[report(80, 1)]).remove(0);
    assert_eq!(r1.hear(&message), Ok(Taken::Report));
}
