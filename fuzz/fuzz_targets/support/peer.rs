// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fuzz targets of peers do with their bytes. Also run, bounded, by
//! crates/peer/tests/fuzz_smoke.rs.

use tidegate_model::SpiffeId;
use tidegate_model::remote::{Arrived, RemoteLimit, Restriction, Scope, Unit};
use tidegate_model::sharing::DestinationReport;
use tidegate_peer::frame::{BODY_MAX, Frame, HEAD, VERSION};
use tidegate_peer::limit::HitsMessage;
use tidegate_peer::session::{Heard, Sender, Session, Step};
use tidegate_peer::{Grant, Report, Table};
use tidegate_units::{Nanos, Rate, Share};

/// Any bytes: read, or refused; what is read has one spelling, and the rest makes no difference.
pub(crate) fn frame(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((frame, length))) = Frame::decode(VERSION, rest) {
        assert!(length > HEAD && length <= HEAD + BODY_MAX);
        if !matches!(frame, Frame::Unknown(_)) {
            assert_eq!(frame.encode(VERSION).as_deref(), Some(&rest[..length]));
        }
        assert_eq!(Frame::decode(VERSION, &rest[..length]), Ok(Some((frame, length))));
        rest = &rest[length..];
    }
}

/// Any bytes as a certificate: an identity, in its one form, or an error.
pub(crate) fn identity(bytes: &[u8]) {
    if let Ok(id) = tidegate_peer::tls::identity(bytes) {
        assert_eq!(id.as_str().parse::<SpiffeId>().as_ref(), Ok(&id));
    }
}

/// A limit of one of several scopes and kinds.
fn limit(value: u8) -> RemoteLimit {
    let name = ["shop", "api", "other", "192.0.2.1:80"][usize::from(value) % 4].to_owned();
    let rate = Rate::per_second(f64::from(value));
    let share = Share::new(f64::from(value) / 255.0);
    let gap = Nanos::from_millis(5 * u64::from(value));
    let restriction = match value % 7 {
        0 => Restriction::Rate(rate),
        1 => Restriction::Loss(share),
        2 => Restriction::Gap(gap),
        3 => Restriction::Datagrams(rate),
        4 => Restriction::Requests(rate),
        5 => Restriction::RequestLoss(share),
        _ => Restriction::RequestGap(gap),
    };
    let validity = Nanos::from_millis(97 * u64::from(value));
    let scope = match value % 5 {
        0 => Scope::Bucket { service: name, bucket: "search".into() },
        _ => Scope::Service(name),
    };
    RemoteLimit { scope, restriction, validity, sequence: 0, priority: value % 9 }
}

/// Reports of so many destinations, some of them with a count that none has.
fn destinations(value: u8) -> Vec<DestinationReport> {
    let one = |port: u8| {
        let address = std::net::SocketAddr::from(([192, 0, 2, 1], u16::from(port)));
        let mut report = DestinationReport::empty(address, 1000, u32::from(value % 7));
        report.took = vec![(u16::from(value) * 5, u32::from(port))];
        report
    };
    (0..value % 80).map(|port| one(port.saturating_add(value % 3))).collect()
}

/// The time that a session needs: no run takes longer than its bytes.
const STEP_MS: u64 = 7;

struct World {
    table: Table,
    session: Option<Session>,
    sender: Sender,
    now: Nanos,
    number: u64,
    last: Option<Frame>,
    /// Who may share, and whether it does.
    router: [SpiffeId; 1],
    shares: bool,
}

fn id(name: &str) -> SpiffeId {
    format!("spiffe://example.org/{name}").parse().expect("an identity")
}

fn grants(services: &[&str]) -> Vec<Grant> {
    let grant = |name: &str, services: &[&str]| Grant {
        name: name.into(),
        identity: id(name),
        services: services.iter().map(|service| (*service).to_owned()).collect(),
        limits: services.iter().filter_map(|service| service.parse().ok()).collect(),
        when_congested: Vec::new(),
        targets: 0,
    };
    vec![grant("b1", services), grant("b2", &["shop"])]
}

/// A sequence of what may happen to both roles: messages, well made and not, repeated, at any time,
/// also one that goes back; sessions that begin and end; grants that change.
pub(crate) fn session(bytes: &[u8]) {
    let mut world = World {
        table: Table::new(&grants(&["shop", "api"])),
        session: None,
        sender: Sender::new(vec!["shop".into()]),
        now: Nanos::from_secs(100),
        number: 0,
        last: None,
        router: [id("b1")],
        shares: false,
    };
    let mut rest = bytes;
    while let Some((&what, more)) = rest.split_first() {
        rest = world.act(what, more);
        world.holds();
    }
}

impl World {
    fn act<'a>(&mut self, what: u8, rest: &'a [u8]) -> &'a [u8] {
        self.now += Nanos::from_millis(STEP_MS);
        let (&value, after) = rest.split_first().unwrap_or((&0, rest));
        match what % 11 {
            0 => self.now += Nanos::from_millis(16 * u64::from(value)),
            1 => self.now = self.now - Nanos::from_millis(u64::from(value)),
            2 => {
                let cut = after.len().min(usize::from(value) + HEAD);
                if let Ok(Some((frame, length))) = Frame::decode(VERSION, &after[..cut]) {
                    self.take(frame, length);
                }
                return &after[cut..];
            }
            3 => {
                let service = ["shop", "api", "other"][usize::from(value) % 3].to_owned();
                let validity_ms = 97 * u32::from(value);
                let report = Report { service, validity_ms, ..Report::default() };
                if let Some(frame) = self.sender.report(self.now, report) {
                    self.last = Some(frame.clone());
                    self.take(frame, 100);
                }
            }
            4 => {
                if let Some(frame) = self.last.clone() {
                    self.take(frame, 100);
                }
            }
            5 => self.begin(),
            6 => {
                if let Ok(Some((frame, _))) = Frame::decode(VERSION, after) {
                    let _ = self.sender.receive(frame);
                }
            }
            7 => {
                let limit = limit(value);
                if let Some(frame) = self.sender.limit(&limit) {
                    self.last = Some(frame.clone());
                    self.take(frame, 100);
                }
            }
            8 => {
                let unit =
                    [Unit::Connections, Unit::Datagrams, Unit::Requests][usize::from(value) % 3];
                let refused = u64::from(value);
                let hits = HitsMessage { session: self.number, refused, ..HitsMessage::default() };
                let _ = self.sender.receive(Frame::Hits(unit, hits));
            }
            9 => {
                self.shares = value.is_multiple_of(2);
                self.table.share_with(if self.shares { &self.router } else { &[] });
                let frames = self.sender.destinations(self.now, &destinations(value));
                for frame in frames {
                    self.last = Some(frame.clone());
                    self.take(frame, 100);
                }
            }
            _ => {
                let services: &[&str] = if value % 2 == 0 { &["shop", "api"] } else { &["shop"] };
                self.table.follow(&grants(services));
            }
        }
        after
    }

    fn begin(&mut self) {
        self.number += 1;
        let begun = Session::begin(&mut self.table, id("b1"), self.number, self.now);
        self.session = begun.ok();
        self.sender = Sender::new(vec!["shop".into(), "api".into()]);
        if let Some(session) = &self.session
            && let Heard::Up(hello) = self.sender.receive(session.welcome())
        {
            self.take(hello, 100);
        }
    }

    fn take(&mut self, frame: Frame, length: usize) {
        let Some(session) = &mut self.session else { return };
        let step = session
            .charge(&mut self.table, self.now, length)
            .unwrap_or_else(|| session.receive(&mut self.table, self.now, frame));
        match step {
            Step::Go => {}
            Step::Say(frame) => {
                assert!(frame.encode(VERSION).is_some(), "what is answered can be sent");
                assert!(matches!(self.sender.receive(frame), Heard::Refused(_)));
            }
            Step::End(..) | Step::Over => {
                let number = session.number();
                self.table.close(&id("b1"), number, step == Step::Over);
                self.session = None;
            }
        }
    }

    /// What must be true after every step.
    fn holds(&mut self) {
        for taken in self.table.take_limits() {
            let Arrived::Plain(taken) = taken else { panic!("nobody has a grant: {taken:?}") };
            let scope = taken.limit.scope.to_string();
            let own = ["shop", "api", "shop/search", "api/search"].contains(&scope.as_str());
            assert_ne!(
                taken.limit.restriction.unit(),
                Unit::Datagrams,
                "without a notice: {taken:?}"
            );
            assert!(taken.peer == "b1" && own && taken.limit.check().is_ok(), "{taken:?}");
            assert!(taken.session == self.number, "of the session that is up");
        }
        for told in self.table.take_destinations() {
            assert!(told.router == "b1" && told.at <= self.now, "{told:?}");
            assert!(self.shares || told.reports.is_empty(), "{told:?}");
            assert!(told.reports.iter().all(DestinationReport::is_sound), "{told:?}");
        }
        for service in ["shop", "api"] {
            let known = self.table.backend(self.now, "b1", service);
            let queue = known.queue.accept.is_some() || known.resource.cpu.is_some();
            assert!(known.valid || !queue, "nothing is told that is not valid");
            assert!(!known.valid || known.age < Some(Nanos::from_secs(10)));
        }
        assert!(!self.table.backend(self.now, "b1", "other").valid);
        assert!(!self.table.backend(self.now, "b2", "shop").valid, "nobody speaks for another");
        let states = self.table.states(self.now);
        assert!(states.len() <= 3 && states.iter().all(|state| state.epoch <= self.number));
    }
}
