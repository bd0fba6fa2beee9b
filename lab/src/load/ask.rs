// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What requests ask for where it is not always the same: files and programs drawn as SURGE does,
//! and sessions of several requests.

use super::conn::Request;
use super::plan::{LoadPlan, Stream};
use super::wire::{Transport, request_bytes};
use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tidegate_units::Nanos;
use tidegate_workload::{RequestKind, Rng, Surge, SurgeRequest, SurgeSpec};

/// Most requests of one session.
const SESSION_REQUESTS_MAX: u32 = 100;
/// Streams of random numbers that one arrival may use: one for each request of its session.
const STREAMS_EACH: u64 = 128;
/// Keeps the draws of requests apart from those of arrivals.
const ASK_SEED: u64 = 0x5355_5247_455f_0001;

/// The kinds of request in the order of their reports.
pub(crate) const KINDS: [(RequestKind, &str); 3] = [
    (RequestKind::Small, "small"),
    (RequestKind::Large, "large"),
    (RequestKind::Dynamic, "dynamic"),
];

/// Requests for files of a catalogue, drawn one by one: the same seed asks for the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// The files, and what is asked of them.
    pub files: SurgeSpec,
    /// Appended to the query of dynamic requests: their cost; empty or beginning with `&`.
    #[serde(default)]
    pub query: String,
}

/// Several requests of one client, one after the other, or in HTTP/2 several at once after the
/// first, as browsers do. The session ends with the first that is not answered by 200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// How many, 1 to 100.
    pub requests: u32,
    /// From an answer to the next request; from the last of several.
    pub think: Nanos,
    /// How many requests go out at once after the first, in HTTP/2; 1 (default) to 100.
    #[serde(default = "one")]
    pub streams: u32,
    /// Name of the cookie that all requests but the first carry; its value is the client's number.
    /// Empty for none.
    #[serde(default)]
    pub cookie: String,
}

const fn one() -> u32 {
    1
}

impl Mix {
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        let plain = self.query.bytes().all(|b| b.is_ascii_graphic());
        if plain && (self.query.is_empty() || self.query.starts_with('&')) {
            return Ok(());
        }
        Err("mix.query is empty or begins with '&', and holds no blanks")
    }
}

impl Session {
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        if !(1..=SESSION_REQUESTS_MAX).contains(&self.requests) {
            return Err("session.requests must be 1 to 100");
        }
        if !(1..=SESSION_REQUESTS_MAX).contains(&self.streams) {
            return Err("session.streams must be 1 to 100");
        }
        let token = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !self.cookie.bytes().all(token) {
            return Err("session.cookie must be a name of letters, digits, '_' and '-'");
        }
        Ok(())
    }

    /// How many requests go out beside the one of this place.
    pub(crate) fn beside(&self, place: u32) -> u32 {
        let most = if place == 0 { 1 } else { self.streams };
        most.min(self.requests.saturating_sub(place)).saturating_sub(1)
    }

    /// How long a session takes at most, if each request takes as long as a client waits.
    pub(crate) fn longest(&self, timeout: Nanos) -> Nanos {
        let each = self.think + timeout;
        Nanos(each.0.saturating_mul(u64::from(self.requests)))
    }
}

/// Makes the requests of one stream.
pub(crate) struct Asker {
    spec: Stream,
    same: Vec<u8>,
    files: Option<(Surge, String)>,
    seed: u64,
}

impl Asker {
    pub(crate) fn new(plan: &LoadPlan, index: usize, spec: &Stream) -> Self {
        let files = spec.mix.as_ref().map(|mix| (Surge::new(&mix.files), mix.query.clone()));
        let same = request_bytes(spec, &spec.path, None);
        let seed = plan.seed ^ ASK_SEED ^ ((index as u64) << 32);
        Self { spec: spec.clone(), same, files, seed }
    }

    /// What the `place`-th request of the arrival `number` asks for, where it is drawn. By number,
    /// not in turn: so it is the same whatever the number of processes.
    pub(crate) fn draw(&self, number: u64, place: u32) -> Option<SurgeRequest> {
        let (surge, _) = self.files.as_ref()?;
        let stream = number.wrapping_mul(STREAMS_EACH).wrapping_add(u64::from(place));
        Some(surge.sample(&mut Rng::new(self.seed, stream)))
    }

    /// The bytes of a request.
    pub(crate) fn bytes(&self, request: &Request) -> Cow<'_, [u8]> {
        let session =
            self.spec.session.as_ref().filter(|s| request.place > 0 && !s.cookie.is_empty());
        let cookie = session.map(|s| format!("{}={}", s.cookie, request.number));
        let path = match (&self.files, request.asked) {
            (Some((surge, query)), Some(asked)) => {
                let more = if asked.kind == RequestKind::Dynamic { query.as_str() } else { "" };
                surge.path(&asked) + more
            }
            _ if cookie.is_none() => return Cow::Borrowed(&self.same),
            _ => self.spec.path.clone(),
        };
        Cow::Owned(request_bytes(&self.spec, &path, cookie.as_deref()))
    }
}

/// For a plan's check: names the stream.
pub(crate) fn check(stream: &Stream) -> Result<()> {
    let mix = stream.mix.as_ref().map_or(Ok(()), Mix::check);
    let session = stream.session.as_ref().map_or(Ok(()), Session::check);
    let several = stream.session.as_ref().is_some_and(|s| s.streams > 1);
    let alone = stream.transport == Transport::H2 && stream.mix.is_none();
    let streams =
        if several && !alone { Err("session.streams needs HTTP/2, and no mix") } else { Ok(()) };
    mix.and(session)
        .and(streams)
        .map_err(|what| LabError::Plan(format!("stream {}: {what}", stream.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;
    use crate::load::{Arrive, Manner, Sources};
    use tidegate_workload::Profile;

    fn asker(session: Option<Session>) -> Asker {
        let files = SurgeSpec { dynamic: 0.5, ..SurgeSpec::default() };
        let spec = Stream {
            name: "all".into(),
            arrive: Arrive::poisson(Profile::constant(Nanos::SECOND, 1.0)),
            target: "10.2.0.2:80".parse().unwrap(),
            sources: Sources { first: "10.16.0.0".parse().unwrap(), count: 1 },
            path: "/".into(),
            host: "lab.test".into(),
            dscp: 0,
            keep_alive: None,
            transport: Transport::Clear,
            manner: Manner::Plain,
            ports: None,
            abortive: false,
            mix: Some(Mix { files, query: "&mean_us=7".into() }),
            session,
            throttle: None,
        };
        Asker::new(&LoadPlan::default(), 0, &spec)
    }

    fn text(asker: &Asker, number: u64, place: u32) -> String {
        let asked = asker.draw(number, place);
        let request = Request { number, place, asked, ..Request::default() };
        String::from_utf8(asker.bytes(&request).into_owned()).unwrap()
    }

    /// A request depends on its number alone, and only programs are told their cost.
    #[test]
    fn requests_are_drawn_by_number() {
        let (one, two) = (asker(None), asker(None));
        let mut dynamic = 0;
        for number in 0..200 {
            let request = text(&one, number, 0);
            assert_eq!(request, text(&two, number, 0));
            let path = request.split(' ').nth(1).unwrap();
            assert_eq!(path.starts_with("/cgi-bin/"), path.ends_with("&mean_us=7"), "{path}");
            dynamic += u32::from(path.starts_with("/cgi-bin/"));
        }
        assert!((60..140).contains(&dynamic), "{dynamic} of 200");
    }

    /// All but the first request of a session carry its cookie.
    #[test]
    fn a_session_has_a_cookie_from_its_second_request_on() {
        let session =
            Session { requests: 3, think: Nanos::SECOND, streams: 1, cookie: "session".into() };
        let asker = asker(Some(session.clone()));
        assert!(!text(&asker, 7, 0).contains("Cookie"));
        assert!(text(&asker, 7, 1).contains("\r\nCookie: session=7\r\n"));
        assert_ne!(asker.draw(7, 0), asker.draw(7, 1));
        assert!(Session { requests: 0, ..session.clone() }.check().is_err());
        assert!(Session { cookie: "a b".into(), ..session }.check().is_err());
    }

    /// The first request goes alone, then as many at once as allowed, at last what is left.
    #[test]
    fn several_requests_go_out_together_after_the_first() {
        let think = Nanos::ZERO;
        let session = Session { requests: 20, think, streams: 8, cookie: String::new() };
        let mut sizes = Vec::new();
        let mut place = 0;
        while place < session.requests {
            sizes.push(1 + session.beside(place));
            place += 1 + session.beside(place);
        }
        assert_eq!(sizes, [1, 8, 8, 3]);
        assert_eq!(Session { streams: 1, ..session.clone() }.beside(5), 0);
        assert!(Session { streams: 0, ..session.clone() }.check().is_err());
        let mut spec = plan(1.0).streams.remove(0);
        spec.session = Some(session);
        assert!(check(&spec).is_err(), "HTTP/1.1 has one request at a time");
        spec.transport = Transport::H2;
        assert!(check(&spec).is_ok());
    }
}
