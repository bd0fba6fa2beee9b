// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attackers in the place of a router: they send notices to servers.

use super::line::Line;
use super::{AGAIN, Attack, Said};
use rustls::ServerConfig;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use tidegate_model::remote::Unit;
use tidegate_peer::frame::{Frame, Welcome};
use tidegate_peer::notice::NoticeMessage;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Between two notices about one service, as of a router.
const NOTICE_EVERY: Nanos = Nanos::SECOND;
/// What it says that comes, and that it refuses: a million and 0.9 million a second.
const OFFERED_MILLI: u64 = 1_000_000_000;
const REFUSED_MILLI: u64 = 900_000_000;
/// How long it waits for a server that has connected.
const GREETING: Nanos = Nanos::from_secs(2);

/// The certificate of another host, or one of an authority that nobody trusts.
pub(super) fn impostor(attack: &Attack, said: &mut Said) -> io::Result<()> {
    let other = attack.credentials(&attack.own.service, &attack.keys)?.server();
    let foreign = attack.credentials(&attack.name, &attack.foreign)?.server();
    let listener = listen(attack)?;
    // Ends with the process: the lab kills it.
    loop {
        said.now_and_then()?;
        let Some(stream) = next(&listener)? else { continue };
        let config = if said.counts.sent.is_multiple_of(2) { &other } else { &foreign };
        said.counts.sent += 1;
        let begun = Session::begin(stream, config, said.counts.sent);
        if let Ok(Some(mut session)) = begun {
            said.counts.taken += 1;
            let _ = lie(attack, &mut session, said);
        }
    }
}

/// The certificate that it should have.
pub(super) fn liar(attack: &Attack, said: &mut Said) -> io::Result<()> {
    let own = attack.credentials(&attack.name, &attack.keys)?.server();
    let listener = listen(attack)?;
    let mut epoch = 0;
    // Ends with the process: the lab kills it.
    loop {
        said.now_and_then()?;
        let Some(stream) = next(&listener)? else { continue };
        epoch += 1;
        if let Ok(Some(mut session)) = Session::begin(stream, &own, epoch) {
            let _ = lie(attack, &mut session, said);
        }
    }
}

fn listen(attack: &Attack) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(attack.listen)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The next server that connects; `None` after a while without.
fn next(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            std::thread::sleep(AGAIN.into());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A server has taken it for the router.
struct Session {
    line: Line,
    number: u64,
    notices: u64,
}

impl Session {
    /// Greets the server; `None`: it says no hello.
    fn begin(
        stream: TcpStream,
        config: &Arc<ServerConfig>,
        epoch: u64,
    ) -> io::Result<Option<Self>> {
        let mut line = Line::taken(stream, Arc::clone(config))?;
        let welcome = Welcome { session: epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15), epoch };
        line.say(&Frame::Welcome(welcome))?;
        let end = MonotonicClock.now() + GREETING;
        while MonotonicClock.now() < end {
            match line.hear()? {
                Some(Frame::Hello(_)) => {
                    return Ok(Some(Self { line, number: welcome.session, notices: 0 }));
                }
                Some(_) => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    fn notice(&mut self, (service, scope): (&str, &str)) -> io::Result<()> {
        self.notices += 1;
        let notice = NoticeMessage {
            session: self.number,
            number: self.notices,
            episode: 1,
            service: service.to_owned(),
            listens: vec![scope.to_owned()],
            offered_milli: OFFERED_MILLI,
            refused_milli: REFUSED_MILLI,
        };
        self.line.say(&Frame::Notice(Unit::Connections, Box::new(notice)))
    }
}

/// Notices about the server and about its neighbour, and what it answers.
fn lie(attack: &Attack, session: &mut Session, said: &mut Said) -> io::Result<()> {
    let mut next = MonotonicClock.now();
    // Ends with the session.
    loop {
        if let Some(frame) = session.line.hear()? {
            heard(attack, &frame, said)?;
        }
        said.now_and_then()?;
        if MonotonicClock.now() < next {
            continue;
        }
        next = MonotonicClock.now() + NOTICE_EVERY;
        for of in [&attack.victim, &attack.own] {
            session.notice((&of.service, &of.scope))?;
            said.counts.sent += 1;
        }
    }
}

fn heard(attack: &Attack, frame: &Frame, said: &mut Said) -> io::Result<()> {
    let limit = match frame {
        Frame::Bye(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Frame::Pushback(signed) => &signed.limit,
        Frame::Limit(limit) => limit,
        _ => return Ok(()),
    };
    // A server may limit what comes to itself, and nothing else.
    if limit.scope == attack.victim.scope {
        said.counts.answers += 1;
    } else {
        said.counts.taken += 1;
    }
    Ok(())
}
