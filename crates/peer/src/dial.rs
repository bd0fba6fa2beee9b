// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sender's socket: connects, reports, and connects again with a growing, jittered pause.

use crate::delegation::Signer;
use crate::frame::{Bye, Frame, WITH_LIMITS};
use crate::io::{Reader, say, write};
use crate::node::{Outgoing, OutgoingLimit, Shared, Target};
use crate::quota::{Allowance, Quota};
use crate::refusal::Refusal;
use crate::report::Report;
use crate::session::{FIRST_WORD_MAX, Heard, Sender};
use crate::tls::{self, Credentials};
use rustls::pki_types::ServerName;
use socket2::SockRef;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::remote::REMOTE_SCOPES_MAX;
use tidegate_model::sharing::DestinationReport;
use tidegate_model::snapshot::ReasonCount;
use tidegate_units::Nanos;
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The pause after the first failure, before jitter.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest pause, before jitter: after a partition heals, all is as before within 5 s.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a connection may take to come up, handshake included.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// What is not acknowledged for so long is lost, and the connection with it: a retransmission that
/// backs off for a minute would bring nothing but old reports.
const UNHEARD_MAX: Duration = Duration::from_secs(2);
/// A session that lasted so long was none that is ended at once.
pub(crate) const LASTED: Nanos = Nanos::from_secs(10);
/// Reports of a service are at least this far apart: the receiver's quota is twice that.
const REPORT_EVERY: Nanos = Nanos::from_millis(95);

/// What a dialer watches.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) credentials: watch::Receiver<Option<Arc<Credentials>>>,
    pub(crate) outgoing: watch::Receiver<Arc<Vec<Outgoing>>>,
    pub(crate) limits: watch::Receiver<Arc<Vec<OutgoingLimit>>>,
    pub(crate) destinations: watch::Receiver<Arc<Vec<DestinationReport>>>,
    /// Becomes true when the host stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// Reports to `target` until the host stops, or it is dropped.
pub(crate) async fn report(shared: Arc<Shared>, target: Target, mut sources: Sources) {
    let mut failures = 0_u32;
    while !*sources.stopping.borrow() {
        let Some(credentials) = sources.credentials.borrow().clone() else {
            if sources.credentials.changed().await.is_err() {
                return;
            }
            continue;
        };
        let begun = shared.clock.now();
        let end = attempt(&shared, &target, &credentials, &mut sources).await;
        shared.target(&target, |state| state.up = false);
        match end {
            Ok(Refusal::Stopping) if *sources.stopping.borrow() => return,
            Ok(Refusal::Expired) => failures = 0,
            Ok(why) => fail(&shared, &target, why.name(), &format!("the session ended: {why}")),
            Err(error) if tls::refusal(&error) == Refusal::Version => {
                let why = Refusal::Version.name();
                fail(&shared, &target, why, &tls::in_words(error).to_string());
            }
            Err(error) => fail(&shared, &target, "lost", &tls::in_words(error).to_string()),
        }
        let lasted = shared.clock.now().since(begun) >= LASTED;
        failures = if lasted { 0 } else { failures.saturating_add(1) };
        let random = credentials.random();
        tokio::select! {
            () = sleep(pause(failures, random)) => {}
            _ = sources.stopping.changed() => {}
        }
    }
}

fn fail(shared: &Shared, target: &Target, reason: &str, text: &str) {
    shared.target(target, |state| {
        if state.problem != text {
            tracing::warn!(peer = target.name, why = text, "no reports");
        }
        text.clone_into(&mut state.problem);
        count(&mut state.refused, reason);
    });
}

fn count(counts: &mut Vec<ReasonCount>, reason: &str) {
    match counts.iter_mut().find(|count| count.reason == reason) {
        Some(count) => count.count = count.count.saturating_add(1),
        // Reasons are of one list, so there are not many.
        None => counts.push(ReasonCount { reason: reason.into(), count: 1 }),
    }
}

/// From half to one and a half of a pause that doubles: a thousand that lost one peer do not come
/// back in step.
pub(crate) fn pause(failures: u32, random: u64) -> Duration {
    let doubled = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(PAUSE_MAX);
    let half = doubled / 2;
    half + doubled.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64)
}

/// One session, from its connection to its end.
async fn attempt(
    shared: &Shared,
    target: &Target,
    credentials: &Credentials,
    sources: &mut Sources,
) -> io::Result<Refusal> {
    let stream = timeout(CONNECT_MAX, connect(target, credentials))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let version = tls::version(stream.get_ref().1.alpn_protocol());
    let (input, output) = split(stream);
    let sender = Sender::new(target.services.clone());
    let reader = Reader::new(input, version);
    let quota = Quota::new(REMOTE_SCOPES_MAX, shared.clock.now());
    let mut line = Line { reader, output, version, sender, quota, last: None };
    let welcome = timeout(FIRST_WORD_MAX.into(), line.reader.next());
    let (welcome, _) = welcome.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    match line.sender.receive(welcome) {
        Heard::Up(hello) => say(&mut line.output, version, &hello).await?,
        Heard::Over(why) | Heard::Wrong(why) => return Ok(why),
        Heard::Refused(_) | Heard::Skipped(_) | Heard::Hits(_) | Heard::Notice(..) => {
            return Ok(Refusal::Unexpected);
        }
    }
    tracing::info!(peer = target.name, version, "session up");
    shared.target(target, |state| {
        state.up = true;
        state.version = version;
        state.problem.clear();
        (state.epoch, state.sequence) = line.sender.position();
    });
    line.hold(shared, target, sources).await
}

async fn connect(target: &Target, credentials: &Credentials) -> io::Result<TlsStream<TcpStream>> {
    let config = credentials.client(&target.identity).map_err(io::Error::other)?;
    let stream = TcpStream::connect(target.address).await?;
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNHEARD_MAX));
    let name = ServerName::IpAddress(target.address.ip().into());
    TlsConnector::from(config).connect(name, stream).await
}

/// A session that is up.
struct Line {
    reader: Reader<ReadHalf<TlsStream<TcpStream>>>,
    output: WriteHalf<TlsStream<TcpStream>>,
    version: u8,
    sender: Sender,
    /// What the receiver may say: hit counters of each scope, and notices.
    quota: Quota,
    last: Option<Nanos>,
}

impl Line {
    async fn hold(
        &mut self,
        shared: &Shared,
        target: &Target,
        sources: &mut Sources,
    ) -> io::Result<Refusal> {
        loop {
            tokio::select! {
                next = self.reader.next() => {
                    if let Some(why) = self.hear(shared, target, next?) {
                        return Ok(why);
                    }
                }
                changed = sources.outgoing.changed() => {
                    if changed.is_err() {
                        return self.farewell().await;
                    }
                    let outgoing = Arc::clone(&sources.outgoing.borrow_and_update());
                    self.send(shared, target, &outgoing).await?;
                }
                changed = sources.limits.changed() => {
                    if changed.is_err() {
                        return self.farewell().await;
                    }
                    let limits = Arc::clone(&sources.limits.borrow_and_update());
                    let signer = shared.signer();
                    self.limit(shared, target, (&limits, signer.as_deref())).await?;
                }
                changed = sources.destinations.changed() => {
                    if changed.is_err() {
                        return self.farewell().await;
                    }
                    let reports = Arc::clone(&sources.destinations.borrow_and_update());
                    self.share(shared, target, &reports).await?;
                }
                _ = sources.stopping.changed() => return self.farewell().await,
            }
        }
    }

    /// Takes a message; why it ends the session, if it does.
    fn hear(
        &mut self,
        shared: &Shared,
        target: &Target,
        (frame, length): (Frame, usize),
    ) -> Option<Refusal> {
        match self.quota.charge(shared.clock.now(), length) {
            Allowance::Within => {}
            Allowance::Above => {
                shared.target(target, |state| count(&mut state.refused, Refusal::Quota.name()));
                return None;
            }
            Allowance::Flood => return Some(Refusal::Quota),
        }
        match self.sender.receive(frame) {
            Heard::Refused(refused) => shared.target(target, |state| {
                let why = refused.why.refusal();
                state.problem = format!("{:?}: {why}", refused.service);
                count(&mut state.refused, why.name());
            }),
            Heard::Skipped(_) => shared.target(target, |state| {
                count(&mut state.refused, Refusal::UnknownKind.name());
            }),
            Heard::Hits(hits) => shared.target(target, |state| state.said.hits(hits)),
            Heard::Notice(number, notice) => {
                shared.target(target, |state| state.said.notice(number, notice));
            }
            Heard::Over(why) | Heard::Wrong(why) => return Some(why),
            Heard::Up(_) => return Some(Refusal::Unexpected),
        }
        None
    }

    /// What was said ends now, and not only when its validity is over.
    async fn farewell(&mut self) -> io::Result<Refusal> {
        say(&mut self.output, self.version, &Bye::of(Refusal::Stopping)).await?;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.output).await;
        Ok(Refusal::Stopping)
    }

    /// A receiver of an older version is sent no limits: it would end the session.
    async fn limit(
        &mut self,
        shared: &Shared,
        target: &Target,
        (limits, signer): (&[OutgoingLimit], Option<&Signer>),
    ) -> io::Result<()> {
        if self.version < WITH_LIMITS {
            return Ok(());
        }
        let (mut bytes, mut sent) = (Vec::new(), 0);
        for limit in limits.iter().filter(|limit| limit.target == target.name) {
            let Some(said) = limit.within(self.version) else { continue };
            let frame = match (limit.answers, signer) {
                (None, _) => self.sender.limit(&said),
                (Some(answers), Some(signer)) => {
                    let grant = (signer.grant, &target.identity);
                    self.sender.pushback(grant, &said, answers, &signer.key)
                }
                // Whoever has no key has no grant.
                (Some(_), None) => None,
            };
            if let Some(frame) = frame.and_then(|frame| frame.encode(self.version)) {
                bytes.extend(frame);
                sent += 1;
            }
        }
        if sent > 0 {
            write(&mut self.output, &bytes).await?;
            shared.target(target, |state| {
                (state.epoch, state.sequence) = self.sender.position();
                state.limits += sent;
            });
        }
        Ok(())
    }

    /// What this router sees of destinations, where the receiver is a router that shares.
    async fn share(
        &mut self,
        shared: &Shared,
        target: &Target,
        reports: &[DestinationReport],
    ) -> io::Result<()> {
        if self.version < WITH_LIMITS || !shared.table().shares(&target.identity) {
            return Ok(());
        }
        let now = shared.clock.now();
        let frames = self.sender.destinations(now, reports);
        let bytes = frames.iter().filter_map(|frame| frame.encode(self.version));
        write(&mut self.output, &bytes.collect::<Vec<_>>().concat()).await?;
        shared.target(target, |state| {
            (state.epoch, state.sequence) = self.sender.position();
            state.reports += frames.len() as u64;
            state.sent = Some(now);
        });
        Ok(())
    }

    async fn send(
        &mut self,
        shared: &Shared,
        target: &Target,
        outgoing: &[Outgoing],
    ) -> io::Result<()> {
        let now = shared.clock.now();
        if self.last.is_some_and(|last| now.since(last) < REPORT_EVERY) {
            return Ok(());
        }
        self.last = Some(now);
        let mut bytes = Vec::new();
        let mut sent = 0;
        for service in outgoing.iter().filter(|out| target.services.contains(&out.service)) {
            let report = Report::of(&service.service, &service.signals, target.validity);
            let report = Report { completed: service.completed, ..report };
            let frame = self.sender.report(now, report);
            if let Some(frame) = frame.and_then(|frame| frame.encode(self.version)) {
                bytes.extend(frame);
                sent += 1;
            }
        }
        write(&mut self.output, &bytes).await?;
        shared.target(target, |state| {
            (state.epoch, state.sequence) = self.sender.position();
            state.reports += sent;
            state.sent = Some(now);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_have_a_bound_and_differ() {
        for (failures, base) in
            [(0, 250), (1, 250), (2, 500), (3, 1_000), (4, 2_000), (5, 2_000), (99, 2_000)]
        {
            let base = Duration::from_millis(base);
            assert_eq!(pause(failures, 0), base / 2, "{failures} failures");
            let most = pause(failures, u64::MAX);
            assert!(most <= base + base / 2 && most > base, "{failures} failures: {most:?}");
        }
    }
}
