// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The routers of a bus, without I/O: what is taken of a message, and what is published.
//!
//! A session over a bus begins as one over a connection does: with a random number of the receiver that the sender
//! gives back. It has another number every few seconds. So what was recorded before that is of another session, and of
//! what was recorded since every message is an old one.
//!
//! ```text
//!  r1 ── numbers: 17 for r2 ──────────────────► r2   (r2 has not been heard: no report is taken of r1)
//!  r1 ◄─ numbers: 23 for r1, heard 17 from r1 ─ r2   r1 begins a session with r2, and has another number for r2
//!  r1 ── numbers: 42 for r2, heard 23 from r2 ► r2   r2 begins one with r1
//! ```

use super::member::{Bucket, Member, Session};
use super::message::{Body, Envelope, Known};
use crate::destinations::{DestinationsMessage, packed};
use crate::frame::{Frame, VERSION};
use crate::refusal::Refusal;
use crate::table::Table;
use crate::tls::{self, Credentials};
use std::collections::BTreeMap;
use tidegate_model::SpiffeId;
use tidegate_model::sharing::DestinationReport;
use tidegate_units::Nanos;

/// Certificates a second, and at once, that are read: of whoever is on the subject.
const CERTIFICATES: (f64, f64) = (1000.0, 2000.0);
/// A certificate is in its time for so long after it was looked at.
const TRUSTED_FOR: Nanos = Nanos::from_secs(60);

/// What a message was that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A report.
    Report,
    /// The first word of a router that has not heard this one.
    Greeting,
}

/// A message that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Who signed it, where that is known.
    pub identity: Option<SpiffeId>,
    /// Why.
    pub why: Refusal,
    /// What an operator reads.
    pub problem: String,
}

/// A message that a router has signed. Whether it is new is not known yet.
#[derive(Clone, Debug)]
pub struct Signed {
    identity: SpiffeId,
    body: Body,
    message: DestinationsMessage,
}

/// The routers of a bus.
#[derive(Debug)]
pub struct Members {
    subject: String,
    /// This host's own number, and that of its last message.
    number: u64,
    sequence: u64,
    members: BTreeMap<SpiffeId, Member>,
    certificates: Bucket,
}

impl Members {
    /// Those routers, on this subject. `random` makes numbers that nobody guesses.
    pub fn new(subject: &str, routers: &[SpiffeId], random: &mut dyn FnMut() -> u64) -> Self {
        let (subject, certificates) = (subject.to_owned(), Bucket::new(CERTIFICATES));
        let (number, sequence, members) = (random(), 0, BTreeMap::new());
        let mut new = Self { subject, number, sequence, members, certificates };
        for router in routers {
            new.members.insert(router.clone(), Member::new(random()));
        }
        new
    }

    /// What this router sees of destinations, as messages: one at least, but of a key that cannot sign, or certificates
    /// that are too long.
    pub fn messages(
        &mut self,
        credentials: &Credentials,
        now: Nanos,
        reports: &[DestinationReport],
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<Vec<u8>> {
        let mut known = Vec::with_capacity(self.members.len());
        for (router, member) in &mut self.members {
            member.given.renew(now, random);
            let (router, given, told) = (router.to_string(), member.given.number, member.told());
            known.push(Known { router, given, told });
        }
        let (number, sent_ms) = (self.number, now.0 / 1_000_000);
        let message = |part: &[DestinationReport]| {
            self.sequence = self.sequence.saturating_add(1);
            let (sequence, reports) = (self.sequence, part.to_vec());
            let message =
                DestinationsMessage { session: number, epoch: 0, sequence, sent_ms, reports };
            let frame = Frame::Destinations(Box::new(message)).encode(VERSION)?;
            let body = Body { known: known.clone(), frame }.encode()?;
            Envelope::seal(credentials, &self.subject, body)?.encode()
        };
        packed(reports).into_iter().filter_map(message).collect()
    }

    /// Whose a message is, and whether it is signed. What is old costs no look at its signature.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn open(
        &mut self,
        credentials: &Credentials,
        now: Nanos,
        bytes: &[u8],
    ) -> Result<Signed, Refused> {
        let refused =
            |why: Refusal| Refused { identity: None, why, problem: why.text().to_owned() };
        let envelope = Envelope::decode(bytes).map_err(refused)?;
        let identity = self.sender(now, &envelope)?;
        let (body, message) = Body::decode(&envelope.body).map_err(refused)?;
        let member =
            self.members.get_mut(&identity).ok_or_else(|| refused(Refusal::UnknownPeer))?;
        let is_old = |session: Session| {
            session.number == message.session && message.sequence <= session.sequence
        };
        if member.session.is_some_and(is_old) {
            return Err(refused(Refusal::Stale));
        }
        let known = member.chain == envelope.certificates;
        let bucket = if known { &mut member.verified } else { &mut member.chains };
        if !bucket.takes(now) {
            return Err(refused(Refusal::Quota));
        }
        let looks = !known || now.since(member.looked) >= TRUSTED_FOR;
        if looks && !credentials.trusts(&envelope.certificates) {
            let problem = format!(
                "{identity}: no certificate of the configured authority, or not in its time"
            );
            return Err(Refused { problem, ..refused(Refusal::Untrusted) });
        }
        let signature = (envelope.scheme, envelope.signature.as_slice());
        let said = (self.subject.as_str(), envelope.body.as_slice());
        if !credentials.verifies(&envelope.certificates[0], signature, said) {
            let problem = format!("{identity} has not signed what is said in its name");
            return Err(Refused { problem, ..refused(Refusal::Signature) });
        }
        if looks {
            (member.chain, member.looked) = (envelope.certificates, now);
        }
        Ok(Signed { identity, body, message })
    }

    /// The router whose certificate a message has.
    fn sender(&mut self, now: Nanos, envelope: &Envelope) -> Result<SpiffeId, Refused> {
        let first = &envelope.certificates[0];
        let shown = |member: &Member| member.chain.first() == Some(first);
        if let Some((identity, _)) = self.members.iter().find(|(_, member)| shown(member)) {
            return Ok(identity.clone());
        }
        let refused = |why: Refusal, problem: String| Refused { identity: None, why, problem };
        if !self.certificates.takes(now) {
            return Err(refused(Refusal::Quota, "too many certificates that nobody knows".into()));
        }
        let identity =
            tls::identity(first).map_err(|error| refused(Refusal::Identity, error.to_string()))?;
        if self.members.contains_key(&identity) {
            Ok(identity)
        } else {
            let problem = format!("{identity} is not among the routers that share");
            Err(refused(Refusal::UnknownPeer, problem))
        }
    }

    /// Takes a signed message in that has arrived now. `own` is the identity of this host.
    ///
    /// # Errors
    /// Why not; then nothing is taken of its report.
    pub fn take(
        &mut self,
        table: &mut Table,
        (now, own): (Nanos, &SpiffeId),
        signed: Signed,
        random: &mut dyn FnMut() -> u64,
    ) -> Result<Taken, Refused> {
        let Signed { identity, body, message } = signed;
        let refused = |why: Refusal, problem: &str| Refused {
            identity: Some(identity.clone()),
            why,
            problem: problem.to_owned(),
        };
        let Some(member) = self.members.get_mut(&identity) else {
            return Err(refused(Refusal::UnknownPeer, Refusal::UnknownPeer.text()));
        };
        let Some(about) = body.of(own.as_str()) else {
            return Err(refused(Refusal::NotGranted, "it does not share with this router"));
        };
        let (number, sequence) = (message.session, message.sequence);
        if member.session.is_none_or(|session| session.number != number) {
            let is_first = member.session.is_none() && about.told.is_empty();
            // Also of one that has not heard this host: else neither would begin.
            member.hear((number, sequence), about.given);
            if !member.given.is_in(&about.told) {
                let why = Refusal::OtherSession;
                return if is_first { Ok(Taken::Greeting) } else { Err(refused(why, why.text())) };
            }
            let begun = table.open(now, &identity, number);
            let welcome = begun.map_err(|why| refused(why, why.text()))?;
            table.speaks(&identity, VERSION);
            member.session = Some(Session { number, epoch: welcome.epoch, sequence: 0 });
            member.given.void(random);
        }
        let Some(session) = &mut member.session else { return Ok(Taken::Greeting) };
        let message = DestinationsMessage { epoch: session.epoch, ..message };
        let taken = table.accept_destinations(now, &identity, message);
        taken.map_err(|why| refused(why, why.text()))?;
        session.sequence = sequence;
        member.hear((number, sequence), about.given);
        Ok(Taken::Report)
    }
}
