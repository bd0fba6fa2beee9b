// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load of one run: streams, phases and how many processes make it.

use super::Lab as Section;
use super::bench::Scales;
use super::product::SESSION_COOKIE;
use super::rows::{LARGE, MEASURED, SURGE};
use crate::dual::Setting;
use tidegate_lab::{Arrive, KeepAlive, LoadPlan, Phase, Server, Session, Stream};
use tidegate_units::Nanos;
use tidegate_workload::{LARGE_PREFIX, Profile, Segment, Surge};

/// Arrivals that a single process starts per second without being late.
const SHARD_RATE: f64 = 4_000.0;

/// What the load is for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) setting: &'a Setting,
    pub(super) scales: &'a Scales,
    pub(super) server: &'a Server,
    pub(super) seed: u64,
}

/// The plan of one run.
pub(super) fn of(section: &Section, quick: bool, wanted: &Wanted<'_>) -> LoadPlan {
    let Wanted { setting, scales, server, seed } = *wanted;
    let (warm, until) = section.span(setting, quick);
    let shorter = section.shorter(quick);
    let clients = f64::from(setting.session_requests.max(1));
    let piece = |seconds: f64, (from, to): (f64, f64)| Segment {
        lasts: Nanos::from_secs_f64(seconds),
        from: from * scales.unit / clients,
        to: to * scales.unit / clients,
    };
    let rest = rest_of_sessions(setting);
    let (load, ramp) = (setting.load, section.ramp(setting, quick));
    let segments: Vec<Segment> = if setting.steps.is_empty() {
        let pieces = [piece(ramp, (load.min(0.5), load)), piece(until + rest - ramp, (load, load))];
        pieces.into_iter().filter(|piece| piece.lasts > Nanos::ZERO).collect()
    } else {
        setting.steps.iter().map(|(s, load)| piece(s * shorter, (*load, *load))).collect()
    };
    let open = |segments: &[Segment]| Arrive::Open {
        process: setting.arrivals,
        profile: Profile::new(segments),
    };
    let surge = server.stream(SURGE, open(&segments));
    let mut streams = vec![with_sessions(surge, setting, section.keep_alive)];
    let large = scales.large_rate(setting);
    if large > 0.0 {
        let all = [Segment::constant(Nanos::from_secs_f64(until), large)];
        streams.push(large_file(server.stream(LARGE, open(&all)), setting));
    }
    let peak = segments.iter().map(|s| s.from.max(s.to)).fold(0.0, f64::max);
    LoadPlan {
        seed,
        streams,
        phases: vec![Phase {
            name: MEASURED.into(),
            start: Nanos::from_secs_f64(warm),
            end: Nanos::from_secs_f64(until),
        }],
        timeout: Nanos::from_secs_f64(setting.timeout_s),
        connect_timeout: Nanos::from_secs_f64(setting.connect_timeout_s),
        shards: shards(peak * clients, setting),
        ..LoadPlan::default()
    }
}

/// Processes of a load: by what waits at once at most, and by what one of them starts.
fn shards(rate: f64, setting: &Setting) -> u32 {
    let waiting = rate * setting.timeout_s / 15_000.0;
    waiting.max(rate / SHARD_RATE).ceil().clamp(1.0, 8.0) as u32
}

/// Seconds for which the load goes on after its measured part: a session that began in it must not
/// find the server at rest at its end.
fn rest_of_sessions(setting: &Setting) -> f64 {
    match setting.session_requests {
        0 | 1 => 0.0,
        requests => f64::from(requests) * setting.think_s + setting.timeout_s,
    }
}

fn with_sessions(mut stream: Stream, setting: &Setting, keep_alive: bool) -> Stream {
    if setting.session_requests > 1 {
        stream.session = Some(Session {
            requests: setting.session_requests,
            think: Nanos::from_secs_f64(setting.think_s),
            streams: 1,
            cookie: SESSION_COOKIE.into(),
        });
        stream.keep_alive = keep_alive.then_some(KeepAlive::of(setting.session_requests));
    }
    stream
}

/// Requests for the file of the catalogue whose size is nearest to the wanted one.
fn large_file(mut stream: Stream, setting: &Setting) -> Stream {
    stream.mix = None;
    let surge = Surge::new(&setting.files);
    let large = surge.files().iter().filter(|file| file.large);
    let nearest = large.min_by_key(|file| file.size.abs_diff(setting.large_size));
    stream.path = nearest.map_or_else(|| LARGE_PREFIX.to_owned(), |file| file.path());
    stream
}
