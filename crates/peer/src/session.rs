// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One session, both roles, without I/O.
//!
//! ```text
//!  receiver                        sender
//!  begun ── Welcome ─────────────► waiting
//!    │                                │
//!    ▼ ◄───────────────── Hello ──────┘
//!  open  ◄────────── Report, Limit ── up  (any number; Refused ──► says what was not taken,
//!    │                                │   Hits ──► what came to the scope of a limit,
//!    │                                │   Notice ──► it is congested; Pushback ◄── a signed limit;
//!    │                                │   Destinations ◄── what another router sees)
//!    └── Bye, or its end ─── over ────┘
//! ```

use crate::authority::{SignedLimit, SigningKey};
use crate::destinations::{DestinationsMessage, packed};
use crate::frame::{Bye, Frame, FrameError, Hello, Refused, SERVICES_MAX, VERSION, Welcome};
use crate::limit::{HitsMessage, LimitMessage};
use crate::notice::NoticeMessage;
use crate::quota::{Allowance, Quota};
use crate::refusal::Refusal;
use crate::report::{Report, is_name};
use crate::table::Table;
use tidegate_model::remote::{Hits, Notice, RemoteLimit};
use tidegate_model::sharing::DestinationReport;
use tidegate_model::{NAME_MAX, SpiffeId};
use tidegate_units::{Nanos, Rate};

/// How long a receiver waits for the first word of a session, and a sender for its welcome.
pub const FIRST_WORD_MAX: Nanos = Nanos::from_secs(5);
/// How long an open session may be silent.
pub const SILENCE_MAX: Nanos = Nanos::from_secs(15);
/// A session lasts so long; then it begins anew, with a new look at the certificates.
pub const SESSION_MAX: Nanos = Nanos::from_secs(3600);
/// The shortest time between two answers that something was refused.
const ANSWER_EVERY: Nanos = Nanos::SECOND;

/// What a receiver does after a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Go,
    /// Says this and goes on.
    Say(Frame),
    /// Says this and ends; counted already.
    End(Frame, Refusal),
    /// The peer took its leave.
    Over,
}

/// The receiver's side of a session of a peer whose identity was verified.
#[derive(Clone, Debug)]
pub struct Session {
    identity: SpiffeId,
    version: u8,
    welcome: Welcome,
    open: bool,
    quota: Quota,
    begun: Nanos,
    heard: Nanos,
    answered: Option<Nanos>,
}

impl Session {
    /// Begins a session of the newest version; `number` is random.
    ///
    /// # Errors
    /// [`Refusal::UnknownPeer`] or [`Refusal::Busy`], counted: say it and end.
    pub fn begin(
        table: &mut Table,
        identity: SpiffeId,
        number: u64,
        now: Nanos,
    ) -> Result<Self, Refusal> {
        let why = Refusal::UnknownPeer;
        let Some(subjects) = table.granted(&identity) else {
            table.refuse(None, why, &format!("{identity} is not among the configured peers"));
            return Err(why);
        };
        let welcome = match table.open(now, &identity, number) {
            Ok(welcome) => welcome,
            Err(why) => {
                table.refuse(Some(&identity), why, why.text());
                return Err(why);
            }
        };
        let quota = Quota::new(subjects, now);
        let version = VERSION;
        table.speaks(&identity, version);
        let (begun, heard, answered) = (now, now, None);
        Ok(Self { identity, version, welcome, open: false, quota, begun, heard, answered })
    }

    /// The same session, in this version.
    #[must_use]
    pub fn speaking(mut self, table: &mut Table, version: u8) -> Self {
        table.speaks(&self.identity, version);
        self.version = version;
        self
    }

    /// The version of the protocol that it speaks.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// The first word.
    #[must_use]
    pub fn welcome(&self) -> Frame {
        Frame::Welcome(self.welcome)
    }

    /// The number of the session.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.welcome.session
    }

    /// Whether it is still the session of its peer.
    ///
    /// # Errors
    /// Why not.
    pub fn current(&self, table: &Table) -> Result<(), Refusal> {
        table.current(&self.identity, self.welcome.session)
    }

    /// When it is over if nothing is heard.
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.heard + if self.open { SILENCE_MAX } else { FIRST_WORD_MAX }
    }

    /// Charges a message before it is looked at.
    pub fn charge(&mut self, table: &mut Table, now: Nanos, bytes: usize) -> Option<Step> {
        if let Some(subjects) = table.granted(&self.identity) {
            self.quota.follow(subjects);
        }
        match self.quota.charge(now, bytes) {
            Allowance::Within => None,
            Allowance::Above => {
                let why = Refusal::Quota;
                table.refuse(Some(&self.identity), why, why.text());
                Some(Step::Go)
            }
            Allowance::Flood => Some(self.end(table, Refusal::Quota, Refusal::Quota.text())),
        }
    }

    /// Takes a message that is within the quota.
    pub fn receive(&mut self, table: &mut Table, now: Nanos, frame: Frame) -> Step {
        if let Err(why) = self.current(table) {
            return self.end(table, why, why.text());
        }
        self.heard = self.heard.max(now);
        match (frame, self.open) {
            (Frame::Hello(hello), false) => self.hello(table, now, &hello),
            (Frame::Report(report), true) => self.report(table, now, *report),
            (Frame::Limit(limit), true) => self.limit(table, now, &limit),
            (Frame::Pushback(signed), true) => self.pushback(table, now, &signed),
            (Frame::Destinations(message), true) => self.destinations(table, now, *message),
            (Frame::Bye(_), _) => Step::Over,
            (Frame::Unknown(kind), _) => self.skip(table, kind),
            _ => self.end(table, Refusal::Unexpected, Refusal::Unexpected.text()),
        }
    }

    /// Ends it after bytes that are no frame.
    pub fn end_with(&self, table: &mut Table, error: FrameError) -> Step {
        self.end(table, error.refusal(), &error.to_string())
    }

    /// What ends it without a word of the peer: a newer session, silence, its time.
    pub fn look(&self, table: &mut Table, now: Nanos) -> Step {
        if let Err(why) = self.current(table) {
            return self.end(table, why, why.text());
        }
        if now >= self.deadline() {
            return self.end(table, Refusal::Silent, Refusal::Silent.text());
        }
        if now.since(self.begun) >= SESSION_MAX {
            // Nothing was wrong, so nothing is counted.
            let why = Refusal::Expired;
            return Step::End(Bye::of(why), why);
        }
        Step::Go
    }

    fn end(&self, table: &mut Table, why: Refusal, problem: &str) -> Step {
        table.refuse(Some(&self.identity), why, problem);
        Step::End(Bye::of(why), why)
    }

    /// A newer peer may say more than this host knows of.
    fn skip(&self, table: &mut Table, kind: u8) -> Step {
        let why = Refusal::UnknownKind;
        table.refuse(Some(&self.identity), why, &format!("skipped a message of kind {kind}"));
        Step::Go
    }

    fn hello(&mut self, table: &mut Table, now: Nanos, hello: &Hello) -> Step {
        if hello.session != self.welcome.session {
            return self.end(table, Refusal::OtherSession, Refusal::OtherSession.text());
        }
        self.open = true;
        let mut refused = None;
        for service in &hello.services {
            if table.may_report(&self.identity, service) {
                continue;
            }
            let why = if is_name(service) { Refusal::NotGranted } else { Refusal::OutOfRange };
            table.refuse(Some(&self.identity), why, &problem(service, why));
            refused.get_or_insert((service.clone(), why));
        }
        match refused {
            Some((service, why)) => {
                self.answer(now, Refused { sequence: 0, service, why: why.into() })
            }
            None => Step::Go,
        }
    }

    fn report(&mut self, table: &mut Table, now: Nanos, report: Report) -> Step {
        let (sequence, service) = (report.sequence, report.service.clone());
        let range = report.check().err();
        let Err(why) = table.accept(now, &self.identity, report) else { return Step::Go };
        let text = match (why, range) {
            (Refusal::OutOfRange, Some(range)) => range.to_string(),
            _ => problem(&service, why),
        };
        table.refuse(Some(&self.identity), why, &text);
        self.answer(now, Refused { sequence, service, why: why.into() })
    }

    fn limit(&mut self, table: &mut Table, now: Nanos, message: &LimitMessage) -> Step {
        let Err(why) = table.accept_limit(now, &self.identity, message) else { return Step::Go };
        let (sequence, service) = (message.sequence, message.scope.clone());
        table.refuse(Some(&self.identity), why, &problem(&service, why));
        self.answer(now, Refused { sequence, service, why: why.into() })
    }

    fn pushback(&mut self, table: &mut Table, now: Nanos, signed: &SignedLimit) -> Step {
        let Err((why, text)) = table.accept_pushed(now, &self.identity, signed) else {
            return Step::Go;
        };
        let (sequence, service) = (signed.limit.sequence, signed.limit.scope.clone());
        let shown: String = service.chars().take(NAME_MAX).collect();
        table.refuse(Some(&self.identity), why, &format!("{shown:?}: {text}"));
        self.answer(now, Refused { sequence, service, why: why.into() })
    }

    fn destinations(
        &mut self,
        table: &mut Table,
        now: Nanos,
        message: DestinationsMessage,
    ) -> Step {
        let sequence = message.sequence;
        let first = message.reports.first().map(|report| report.destination.to_string());
        let Err(why) = table.accept_destinations(now, &self.identity, message) else {
            return Step::Go;
        };
        let service = first.unwrap_or_default();
        table.refuse(Some(&self.identity), why, &problem(&service, why));
        self.answer(now, Refused { sequence, service, why: why.into() })
    }

    /// A notice for the holder of a grant; `None` for others, and of a service that no notice can be about: a
    /// server ends the session of a router that sends what is out of range.
    pub fn notice(&self, table: &mut Table, now: Nanos, notice: &Notice) -> Option<Frame> {
        NoticeMessage::of((self.welcome.session, u64::MAX), notice).notice(notice.unit)?;
        let number = table.notice(now, &self.identity, notice)?;
        let message = NoticeMessage::of((self.welcome.session, number), notice);
        Some(Frame::Notice(notice.unit, Box::new(message)))
    }

    /// Hit counters for the sender of a limit.
    #[must_use]
    pub fn hits(&self, hits: &Hits) -> Frame {
        Frame::Hits(hits.unit, HitsMessage::of(self.welcome.session, hits))
    }

    /// Who the peer is.
    #[must_use]
    pub const fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// Tells what was refused, once a second at most: an answer must not cost more than its cause.
    fn answer(&mut self, now: Nanos, refused: Refused) -> Step {
        let service = refused.service.chars().take(NAME_MAX).collect();
        let refused = Refused { service, ..refused };
        if self.answered.is_some_and(|at| now.since(at) < ANSWER_EVERY) {
            return Step::Go;
        }
        self.answered = Some(now);
        Step::Say(Frame::Refused(refused))
    }
}

/// A sentence with a name that came from outside: bounded, and quoted.
fn problem(service: &str, why: Refusal) -> String {
    let shown: String = service.chars().take(NAME_MAX).collect();
    format!("{shown:?}: {}", why.text())
}

/// What a sender learns from a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// The session is up: say this first.
    Up(Frame),
    /// Something was not taken; the session goes on.
    Refused(Refused),
    /// A message of a kind that this host does not know; the session goes on.
    Skipped(u8),
    /// What came to the scope of a limit.
    Hits(Hits),
    /// The receiver is congested. The answer names this number.
    Notice(u64, Notice),
    /// The receiver ended it.
    Over(Refusal),
    /// It does not speak as it should: end.
    Wrong(Refusal),
}

/// The sender's side.
#[derive(Clone, Debug)]
pub struct Sender {
    services: Vec<String>,
    welcome: Option<Welcome>,
    sequence: u64,
}

impl Sender {
    /// Before the welcome.
    #[must_use]
    pub fn new(services: Vec<String>) -> Self {
        Self { services, welcome: None, sequence: 0 }
    }

    /// Takes a message of the receiver.
    pub fn receive(&mut self, frame: Frame) -> Heard {
        match (frame, self.welcome) {
            (Frame::Welcome(welcome), None) => {
                self.welcome = Some(welcome);
                let mut services = self.services.clone();
                services.truncate(SERVICES_MAX);
                Heard::Up(Frame::Hello(Hello { session: welcome.session, services }))
            }
            (Frame::Refused(refused), Some(_)) => Heard::Refused(refused),
            (Frame::Hits(unit, hits), Some(welcome)) => match hits.hits(unit) {
                _ if hits.session != welcome.session => Heard::Wrong(Refusal::OtherSession),
                Some(hits) => Heard::Hits(hits),
                None => Heard::Wrong(Refusal::OutOfRange),
            },
            (Frame::Notice(unit, notice), Some(welcome)) => match notice.notice(unit) {
                _ if notice.session != welcome.session => Heard::Wrong(Refusal::OtherSession),
                Some(said) => Heard::Notice(notice.number, said),
                None => Heard::Wrong(Refusal::OutOfRange),
            },
            (Frame::Bye(bye), _) => Heard::Over(bye.why.refusal()),
            (Frame::Unknown(kind), _) => Heard::Skipped(kind),
            _ => Heard::Wrong(Refusal::Unexpected),
        }
    }

    /// The next report as a frame; `None` before the welcome.
    pub fn report(&mut self, now: Nanos, report: Report) -> Option<Frame> {
        let welcome = self.welcome?;
        self.sequence = self.sequence.saturating_add(1);
        Some(Frame::Report(Box::new(Report {
            session: welcome.session,
            epoch: welcome.epoch,
            sequence: self.sequence,
            sent_ms: now.0 / 1_000_000,
            ..report
        })))
    }

    /// A remote limit as a frame; `None` before the welcome. Its sequence is the session's.
    pub fn limit(&mut self, limit: &RemoteLimit) -> Option<Frame> {
        let welcome = self.welcome?;
        self.sequence = self.sequence.saturating_add(1);
        Some(Frame::Limit(LimitMessage {
            session: welcome.session,
            epoch: welcome.epoch,
            sequence: self.sequence,
            ..LimitMessage::of(limit)
        }))
    }

    /// A limit in answer to a notice, signed, as a frame; `None` before the welcome.
    pub fn pushback(
        &mut self,
        (grant, receiver): (u64, &SpiffeId),
        limit: &RemoteLimit,
        (whole, notice): (Rate, u64),
        key: &SigningKey,
    ) -> Option<Frame> {
        let Frame::Limit(message) = self.limit(limit)? else { return None };
        let receiver = receiver.to_string();
        let whole = (whole.as_milli().max(message.value), notice);
        let signed = SignedLimit::sign((grant, &receiver), message, whole, key);
        Some(Frame::Pushback(Box::new(signed)))
    }

    /// What a router sees of destinations, as frames: one at least; none before the welcome.
    pub fn destinations(&mut self, now: Nanos, reports: &[DestinationReport]) -> Vec<Frame> {
        let Some(welcome) = self.welcome else { return Vec::new() };
        let message = |part: &[DestinationReport]| {
            self.sequence = self.sequence.saturating_add(1);
            Frame::Destinations(Box::new(DestinationsMessage {
                session: welcome.session,
                epoch: welcome.epoch,
                sequence: self.sequence,
                sent_ms: now.0 / 1_000_000,
                reports: part.to_vec(),
            }))
        };
        packed(reports).into_iter().map(message).collect()
    }

    /// Epoch of the session and sequence of the last report.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.welcome.map_or(0, |welcome| welcome.epoch), self.sequence)
    }
}
