// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attackers that are servers, or say that they are: they give limits to routers.

use super::line::Line;
use super::{AGAIN, Attack, FORGE_EVERY, Said};
use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
use std::io::{self, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;
use tidegate_model::SpiffeId;
use tidegate_model::remote::Unit;
use tidegate_peer::authority::{SignedLimit, SigningKey};
use tidegate_peer::frame::{Frame, Hello, Welcome};
use tidegate_peer::limit::LimitMessage;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Kinds of limits, as they are sent.
const RATE: u8 = 1;
const DATAGRAMS: u8 = 4;
/// What a victim would be left with: 1/s.
const ALMOST_NOTHING_MILLI: u64 = 1_000;
/// What it gives to itself: so much that nothing is refused.
const PLENTY_MILLI: u64 = 10_000_000;
/// As long as all steps of a limit take, and no longer than one may be.
const VALIDITY_MS: u32 = 10_000;
/// Whose network the servers are in.
const ALL: &str = "10.64.0.0/16:80";
/// A notice that was never sent.
const NO_NOTICE: u64 = 1_000_000;
/// A session of replays lasts so long; then the next one repeats what was said in it.
const REPLAYED_IN: Nanos = Nanos::from_secs(5);
/// How many limits are remembered.
const REMEMBERED: usize = 16;
/// How long a greeting may take.
const GREETING: Nanos = Nanos::from_secs(3);

/// A session at a router.
struct Session<'a> {
    attack: &'a Attack,
    line: Line,
    receiver: &'a str,
    welcome: Welcome,
    sequence: u64,
    /// The last notice about its own service.
    notice: u64,
    key: SigningKey,
}

impl<'a> Session<'a> {
    /// The session of the server whose keys it has; `None`: the router says nothing.
    fn begin(attack: &'a Attack, router: usize) -> io::Result<Option<Self>> {
        let to = &attack.routers[router];
        let credentials = attack.credentials(&attack.name, &attack.keys)?;
        let identity: SpiffeId = to.identity.parse().map_err(io::Error::other)?;
        let config = credentials.client(&identity).map_err(io::Error::other)?;
        let mut line = Line::dial(to.address, config)?;
        let Some(welcome) = greeted(&mut line)? else { return Ok(None) };
        let key = std::fs::read(&attack.own.key)?;
        let key = SigningKey::from_pem(&key).map_err(io::Error::other)?;
        let receiver = to.identity.as_str();
        Ok(Some(Self { attack, line, receiver, welcome, sequence: 0, notice: 0, key }))
    }

    /// Hears what there is; whether a new notice about its own service came.
    fn hear(&mut self) -> io::Result<bool> {
        match self.line.hear()? {
            Some(Frame::Notice(Unit::Connections, said))
                if said.service == self.attack.own.service =>
            {
                self.notice = said.number;
                Ok(true)
            }
            Some(Frame::Bye(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(false),
        }
    }

    fn limit(&mut self, scope: &str, (kind, value): (u8, u64)) -> LimitMessage {
        self.sequence += 1;
        LimitMessage {
            session: self.welcome.session,
            epoch: self.welcome.epoch,
            sequence: self.sequence,
            scope: scope.to_owned(),
            kind,
            value,
            validity_ms: VALIDITY_MS,
            priority: 0,
        }
    }

    fn signed(&self, grant: u64, receiver: &str, limit: LimitMessage, notice: u64) -> SignedLimit {
        let whole = limit.value.max(ALMOST_NOTHING_MILLI);
        SignedLimit::sign((grant, receiver), limit, (whole, notice), &self.key)
    }

    /// A limit on its own service, in answer to a notice: it may give that.
    fn own(&mut self) -> SignedLimit {
        let scope = self.attack.own.scope.clone();
        let limit = self.limit(&scope, (RATE, PLENTY_MILLI));
        self.signed(self.attack.own.grant, self.receiver, limit, self.notice)
    }

    /// One of the ways in which a limit may not be given.
    fn forged(&mut self, number: u64) -> Frame {
        let Attack { own, victim, routers, .. } = self.attack;
        let (receiver, notice) = (self.receiver, self.notice);
        let to_nothing = (RATE, ALMOST_NOTHING_MILLI);
        let pushed = |signed: SignedLimit| Frame::Pushback(Box::new(signed));
        match number % 8 {
            // Without a signature.
            0 => Frame::Limit(self.limit(&victim.scope, to_nothing)),
            // With the grant of its own, which is not about the victim; nor about everybody; nor of datagrams.
            1 => {
                let limit = self.limit(&victim.scope, to_nothing);
                pushed(self.signed(own.grant, receiver, limit, notice))
            }
            2 => {
                let limit = self.limit(ALL, to_nothing);
                pushed(self.signed(own.grant, receiver, limit, notice))
            }
            3 => {
                let limit = self.limit(&victim.scope, (DATAGRAMS, ALMOST_NOTHING_MILLI));
                pushed(self.signed(own.grant, receiver, limit, notice))
            }
            // With the grant of the victim, and the wrong key.
            4 => {
                let limit = self.limit(&victim.scope, to_nothing);
                pushed(self.signed(victim.grant, receiver, limit, notice))
            }
            // On itself, but for another router; in answer to nothing; changed on its way.
            5 => {
                let limit = self.limit(&own.scope, to_nothing);
                let other = &routers[routers.len() - 1].identity;
                pushed(self.signed(own.grant, other, limit, notice))
            }
            6 => {
                let limit = self.limit(&own.scope, to_nothing);
                pushed(self.signed(own.grant, receiver, limit, NO_NOTICE + notice))
            }
            _ => {
                let limit = self.limit(&own.scope, to_nothing);
                let mut signed = self.signed(own.grant, receiver, limit, notice);
                signed.limit.value += 1;
                pushed(signed)
            }
        }
    }
}

/// Answers a welcome.
fn greeted(line: &mut Line) -> io::Result<Option<Welcome>> {
    let end = MonotonicClock.now() + GREETING;
    while MonotonicClock.now() < end {
        match line.hear()? {
            Some(Frame::Welcome(welcome)) => {
                let hello = Hello { session: welcome.session, services: Vec::new() };
                line.say(&Frame::Hello(hello))?;
                return Ok(Some(welcome));
            }
            Some(_) => return Ok(None),
            None => {}
        }
    }
    Ok(None)
}

/// Sends what no router may take, in a session of its own.
pub(super) fn forged(attack: &Attack, said: &mut Said) -> io::Result<()> {
    // Ends with the process: the lab kills it.
    loop {
        if let Ok(Some(mut session)) = Session::begin(attack, 0) {
            let _ = forge(&mut session, said);
        }
        said.now_and_then()?;
        std::thread::sleep(AGAIN.into());
    }
}

fn forge(session: &mut Session<'_>, said: &mut Said) -> io::Result<()> {
    let mut next = MonotonicClock.now();
    // Ends with the session.
    loop {
        session.hear()?;
        said.now_and_then()?;
        if MonotonicClock.now() >= next {
            next = MonotonicClock.now() + FORGE_EVERY;
            let frame = session.forged(said.counts.sent);
            session.line.say(&frame)?;
            said.counts.sent += 1;
        }
    }
}

/// Gives limits on itself, and repeats them: in this session, in later ones, and at another router.
pub(super) fn replays(attack: &Attack, said: &mut Said) -> io::Result<()> {
    let mut seen: Vec<SignedLimit> = Vec::new();
    // Ends with the process: the lab kills it.
    loop {
        if let (Ok(Some(one)), Ok(Some(other))) =
            (Session::begin(attack, 0), Session::begin(attack, attack.routers.len() - 1))
        {
            let _ = replay((one, other), &mut seen, said);
        }
        said.now_and_then()?;
        std::thread::sleep(AGAIN.into());
    }
}

fn replay(
    (mut one, mut other): (Session<'_>, Session<'_>),
    seen: &mut Vec<SignedLimit>,
    said: &mut Said,
) -> io::Result<()> {
    let end = MonotonicClock.now() + REPLAYED_IN;
    let mut next = MonotonicClock.now();
    while MonotonicClock.now() < end {
        other.hear()?;
        let noticed = one.hear()?;
        said.now_and_then()?;
        if noticed {
            let own = one.own();
            one.line.say(&Frame::Pushback(Box::new(own.clone())))?;
            said.counts.allowed += 1;
            seen.push(own);
            seen.drain(..seen.len().saturating_sub(REMEMBERED));
        }
        if MonotonicClock.now() < next || seen.is_empty() {
            continue;
        }
        next = MonotonicClock.now() + FORGE_EVERY;
        let number = said.counts.sent as usize;
        let old = Frame::Pushback(Box::new(seen[number % seen.len()].clone()));
        let line = if number.is_multiple_of(2) { &mut one.line } else { &mut other.line };
        line.say(&old)?;
        said.counts.sent += 1;
    }
    Ok(())
}

/// Connects with certificates that nobody trusts, or says nothing that is TLS.
pub(super) fn strangers(attack: &Attack, said: &mut Said) -> io::Result<()> {
    // Ends with the process: the lab kills it.
    for tried in 0_u64.. {
        let to = &attack.routers[0];
        let greeted = if tried.is_multiple_of(2) {
            noise(to.address, tried).map(|()| false)
        } else {
            stranger(attack)
        };
        // Where nothing listens, nothing was attacked.
        let met = !greeted.as_ref().is_err_and(|error| {
            matches!(
                error.kind(),
                ConnectionRefused | TimedOut | HostUnreachable | NetworkUnreachable
            )
        });
        said.counts.sent += u64::from(met);
        said.counts.taken += u64::from(greeted.unwrap_or(false));
        said.now_and_then()?;
        std::thread::sleep(AGAIN.into());
    }
    Ok(())
}

/// Whether the router greets it.
fn stranger(attack: &Attack) -> io::Result<bool> {
    let to = &attack.routers[0];
    let credentials = attack.credentials(&attack.name, &attack.foreign)?;
    let identity: SpiffeId = to.identity.parse().map_err(io::Error::other)?;
    let config = credentials.client(&identity).map_err(io::Error::other)?;
    Ok(greeted(&mut Line::dial(to.address, config)?)?.is_some())
}

fn noise(to: SocketAddrV4, number: u64) -> io::Result<()> {
    const CONNECT: Duration = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::V4(to), CONNECT)?;
    let byte = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    stream.write_all(&byte.repeat(16))
}
