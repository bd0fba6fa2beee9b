// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The codec: what is written is read, and nothing else is.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use proptest::prelude::*;
use tidegate_model::remote::{Hits, RemoteLimit, Restriction, Scope, Unit};
use tidegate_model::sharing::DestinationReport;
use tidegate_peer::authority::SignedLimit;
use tidegate_peer::destinations::DestinationsMessage;
use tidegate_peer::frame::{
    BODY_MAX, Bye, Frame, FrameError, HEAD, Hello, Refused, VERSION, VERSIONS, Welcome,
};
use tidegate_peer::limit::{HitsMessage, LimitMessage};
use tidegate_peer::notice::NoticeMessage;
use tidegate_peer::report::{
    AGE_MAX_MS, Aged, COUNT_MAX, Levels, Report, SHARE_ONE, VALIDITY_MAX_MS, is_name,
};
use tidegate_peer::{Code, Refusal};
use tidegate_units::{Nanos, Rate, Share};

fn aged<T: std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Aged<T>>> {
    proptest::option::of((value, 0..=AGE_MAX_MS).prop_map(|(value, age_ms)| Aged { value, age_ms }))
}

fn levels() -> impl Strategy<Value = Levels> {
    let share = || aged(0..=SHARE_ONE);
    let shares = (share(), share(), share(), share());
    let queues =
        (aged((0..=COUNT_MAX, 0..=COUNT_MAX)), aged((0..=COUNT_MAX * 1000, 0..=COUNT_MAX * 1000)));
    (shares, aged(0_u64..1_000_000), queues, aged(0..=COUNT_MAX)).prop_map(
        |(
            (cpu, cpu_pressure, memory_pressure, io_pressure),
            bandwidth,
            (accept, interface),
            waiting,
        )| {
            Levels {
                cpu,
                cpu_pressure,
                memory_pressure,
                io_pressure,
                bandwidth,
                accept,
                interface,
                waiting,
            }
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<Option<u64>>());
    (numbers, "[a-z0-9][a-zA-Z0-9_-]{0,62}", 0..=VALIDITY_MAX_MS, levels()).prop_map(
        |((session, epoch, sequence, sent_ms, completed), service, validity_ms, levels)| Report {
            session,
            epoch,
            sequence,
            sent_ms,
            service,
            validity_ms,
            levels,
            completed,
        },
    )
}

fn limit() -> impl Strategy<Value = Frame> {
    let position = (any::<u64>(), any::<u64>(), any::<u64>());
    let what = ("[ -~]{0,63}", any::<u8>(), any::<u64>(), any::<u32>(), any::<u8>());
    (position, what).prop_map(
        |((session, epoch, sequence), (scope, kind, value, validity_ms, priority))| {
            let position = LimitMessage { session, epoch, sequence, ..LimitMessage::default() };
            Frame::Limit(LimitMessage { scope, kind, value, validity_ms, priority, ..position })
        },
    )
}

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![Just(Unit::Connections), Just(Unit::Datagrams)]
}

fn hits() -> impl Strategy<Value = Frame> {
    let counts = (any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>());
    let unit = prop_oneof![2 => unit(), 1 => Just(Unit::Requests)];
    (unit, any::<u64>(), "[ -~]{0,63}", counts).prop_map(
        |(unit, session, scope, (span_ms, offered, refused, probe))| {
            Frame::Hits(unit, HitsMessage { session, scope, span_ms, offered, refused, probe })
        },
    )
}

fn notice() -> impl Strategy<Value = Frame> {
    let listens = proptest::collection::vec("[ -~]{0,45}", 0..64);
    let counts = (any::<u32>(), any::<u64>(), any::<u64>());
    ((unit(), any::<u64>(), any::<u64>()), "[ -~]{0,63}", listens, counts).prop_map(
        |((unit, session, number), service, listens, (episode, offered_milli, refused_milli))| {
            let of =
                NoticeMessage { session, number, episode, service, ..NoticeMessage::default() };
            let of = NoticeMessage { listens, offered_milli, refused_milli, ..of };
            Frame::Notice(unit, Box::new(of))
        },
    )
}

fn pushback() -> impl Strategy<Value = Frame> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    let signature = proptest::collection::vec(any::<u8>(), 0..70);
    (numbers, "[ -~]{0,63}", limit(), signature).prop_map(
        |((grant, whole_milli, notice), receiver, limit, signature)| {
            let Frame::Limit(limit) = limit else { unreachable!() };
            let signed = SignedLimit { grant, receiver, limit, whole_milli, notice, signature };
            Frame::Pushback(Box::new(signed))
        },
    )
}

fn destinations() -> impl Strategy<Value = Frame> {
    let address = (any::<std::net::IpAddr>(), any::<u16>()).prop_map(std::net::SocketAddr::from);
    let took = proptest::collection::vec((any::<u16>(), any::<u32>()), 0..20);
    let counts = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<Option<u32>>());
    let one = (address, any::<bool>(), counts, took).prop_map(
        |(destination, fast, (span_ms, started, first_milli, sent_bytes, crowd_ms), took)| {
            let empty = DestinationReport::empty(destination, span_ms, 1);
            let counted = DestinationReport { started, first_milli, sent_bytes, ..empty };
            DestinationReport { fast, crowd_ms, took, ..counted }
        },
    );
    let position = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (position, proptest::collection::vec(one, 0..12)).prop_map(
        |((session, epoch, sequence, sent_ms), reports)| {
            let message = DestinationsMessage { session, epoch, sequence, sent_ms, reports };
            Frame::Destinations(Box::new(message))
        },
    )
}

fn frame() -> impl Strategy<Value = Frame> {
    let why = || any::<u32>().prop_map(Code);
    prop_oneof![
        (any::<u64>(), any::<u64>())
            .prop_map(|(session, epoch)| Frame::Welcome(Welcome { session, epoch })),
        (any::<u64>(), proptest::collection::vec("[ -~]{0,63}", 0..32))
            .prop_map(|(session, services)| Frame::Hello(Hello { session, services })),
        report().prop_map(|report| Frame::Report(Box::new(report))),
        (any::<u64>(), "[ -~]{0,63}", why()).prop_map(|(sequence, service, why)| Frame::Refused(
            Refused { sequence, service, why }
        )),
        why().prop_map(|why| Frame::Bye(Bye { why })),
        limit(),
        hits(),
        notice(),
        pushback(),
        destinations(),
    ]
}

fn is_unknown(frame: &Frame) -> bool {
    matches!(frame, Frame::Unknown(_))
}

proptest! {
    #[test]
    fn what_is_written_is_read(frame in frame(), behind in proptest::collection::vec(any::<u8>(), 0..8)) {
        let mut bytes = frame.encode(VERSION).unwrap();
        let length = bytes.len();
        prop_assert!(length <= HEAD + BODY_MAX);
        for end in 0..length {
            prop_assert_eq!(Frame::decode(VERSION, &bytes[..end]), Ok(None), "{} of {} bytes", end, length);
        }
        bytes.extend(behind);
        prop_assert_eq!(Frame::decode(VERSION, &bytes), Ok(Some((frame, length))));
    }

    #[test]
    fn a_frame_has_one_spelling(frame in frame(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let bytes = frame.encode(VERSION).unwrap();
        let mut other = bytes.clone();
        let at = at.index(bytes.len());
        other[at] = to;
        if let Ok(Some((read, length))) = Frame::decode(VERSION, &other) {
            prop_assert!(is_unknown(&read) || read.encode(VERSION).unwrap() == other[..length]);
            prop_assert!(other == bytes || read != frame);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(Some((frame, length))) = Frame::decode(VERSION, &bytes) {
            prop_assert!(is_unknown(&frame) || frame.encode(VERSION).unwrap() == bytes[..length]);
        }
    }

    #[test]
    fn reports_within_their_bounds_pass_their_check(report in report()) {
        prop_assert_eq!(report.check(), Ok(()));
    }
}

#[test]
fn heads_that_no_frame_has_are_refused_at_once() {
    let head = |length: u16, version, kind| {
        let [high, low] = length.to_be_bytes();
        Frame::decode(VERSION, &[high, low, version, kind])
    };
    assert_eq!(
        head(1, VERSION + 1, 3),
        Err(FrameError::Version { found: VERSION + 1, spoken: VERSION })
    );
    assert_eq!(head(0, VERSION, 3), Err(FrameError::Length(0)));
    assert_eq!(head(BODY_MAX as u16, VERSION, 3), Ok(None));
    assert_eq!(head(BODY_MAX as u16 + 1, VERSION, 3), Err(FrameError::Length(BODY_MAX + 1)));
    assert_eq!(head(1, VERSION, 0), Err(FrameError::Kind(0)));
    assert_eq!(head(1, 0, 0).unwrap_err().refusal(), Refusal::Version);
    assert_eq!(head(0, VERSION, 3).unwrap_err().refusal(), Refusal::Malformed);
}

/// What a limit says is what is read, but for what a step of its unit is.
#[test]
fn limits_and_hit_counters_keep_their_meaning() {
    let scope: Scope = "192.0.2.0/24:80".parse().unwrap();
    let limit = |restriction| RemoteLimit {
        scope: scope.clone(),
        restriction,
        validity: Nanos::from_millis(500),
        sequence: 9,
        priority: 3,
    };
    for (restriction, read) in [
        (Restriction::Rate(Rate::per_second(33.3339)), Restriction::Rate(Rate::per_second(33.333))),
        (Restriction::Loss(Share::new(0.25)), Restriction::Loss(Share::new(0.25))),
        (
            Restriction::Gap(Nanos::from_micros(12_345)),
            Restriction::Gap(Nanos::from_micros(12_345)),
        ),
        (
            Restriction::Datagrams(Rate::per_second(33.3339)),
            Restriction::Datagrams(Rate::per_second(33.333)),
        ),
        (
            Restriction::Requests(Rate::per_second(33.3339)),
            Restriction::Requests(Rate::per_second(33.333)),
        ),
        (Restriction::RequestLoss(Share::new(0.25)), Restriction::RequestLoss(Share::new(0.25))),
        (
            Restriction::RequestGap(Nanos(12_344_001)),
            Restriction::RequestGap(Nanos::from_micros(12_345)),
        ),
    ] {
        assert_eq!(LimitMessage::of(&limit(restriction)).limit(VERSION), Ok(limit(read)));
    }
    let good = LimitMessage::of(&limit(Restriction::Gap(Nanos::from_millis(1))));
    let with = |change: fn(&mut LimitMessage)| {
        let mut message = good.clone();
        change(&mut message);
        message.limit(VERSION).unwrap_err()
    };
    assert_eq!(with(|message| message.kind = 8), Refusal::Unsupported);
    assert_eq!(with(|message| message.value = 1_000_001), Refusal::OutOfRange);
    assert_eq!(with(|message| message.validity_ms = 10_001), Refusal::OutOfRange);
    assert_eq!(with(|message| message.priority = 8), Refusal::OutOfRange);
    // The same prefix, written otherwise.
    assert_eq!(with(|message| message.scope = "192.0.2.0/24:080".into()), Refusal::OutOfRange);
    assert_eq!(with(|message| message.scope = "192.0.2.7/24:80".into()), Refusal::OutOfRange);
    for unit in [Unit::Connections, Unit::Datagrams, Unit::Requests] {
        let (scope, span) = (scope.clone(), Nanos::from_millis(200));
        let hits = Hits { scope, unit, span, offered: 20, refused: 20, probe: true };
        let message = HitsMessage::of(5, &hits);
        assert_eq!(message.hits(unit), Some(hits));
        assert_eq!(HitsMessage { refused: 21, ..message }.hits(unit), None);
    }
}

/// What is sent to a peer of version 1 is what that version sent itself, byte by byte.
#[test]
fn frames_of_version_1_stay_what_they_were() {
    let refused = |code| Refused { sequence: 3, service: "x".into(), why: Code(code) };
    let report = Report { session: 7, service: "shop".into(), ..Report::default() };
    let known: [(Frame, &[u8]); 6] = [
        (Frame::Welcome(Welcome { session: 7, epoch: 2 }), &[0, 2, 1, 1, 7, 2]),
        (
            Frame::Hello(Hello { session: 7, services: vec!["a".into()] }),
            &[0, 4, 1, 2, 7, 1, 1, b'a'],
        ),
        (
            Frame::Report(Box::new(report)),
            &[0, 19, 1, 3, 7, 0, 0, 0, 4, b's', b'h', b'o', b'p', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (Frame::Refused(refused(11)), &[0, 4, 1, 4, 3, 1, b'x', 11]),
        // Reasons that came later are no words of version 1.
        (Frame::Refused(refused(16)), &[0, 4, 1, 4, 3, 1, b'x', 7]),
        (Bye::of(Refusal::Stopping), &[0, 1, 1, 5, 15]),
    ];
    for (frame, bytes) in known {
        assert_eq!(frame.encode(1).as_deref(), Some(bytes), "{frame:?}");
        assert!(Frame::decode(1, bytes).unwrap().is_some(), "{frame:?}");
        let error = FrameError::Version { found: 1, spoken: 2 };
        assert_eq!(Frame::decode(2, bytes), Err(error), "{frame:?}");
    }
    for kind in 6..=13 {
        let bytes = [0, 1, 1, kind, 0];
        assert_eq!(Frame::decode(1, &bytes), Ok(Some((Frame::Unknown(kind), 5))));
    }
    assert_eq!(Frame::Limit(LimitMessage::default()).encode(1), None);
    for unit in [Unit::Connections, Unit::Datagrams] {
        assert_eq!(Frame::Hits(unit, HitsMessage::default()).encode(1), None);
        assert_eq!(Frame::Notice(unit, Box::default()).encode(1), None);
    }
    assert_eq!(Frame::Destinations(Box::default()).encode(1), None);
    // Hit counters of requests came with version 3; of notices there are none.
    let requests = Frame::Hits(Unit::Requests, HitsMessage::default());
    assert_eq!((requests.encode(1), requests.encode(2)), (None, None));
    assert_eq!(Frame::decode(2, &[0, 1, 2, 13, 0]), Ok(Some((Frame::Unknown(13), 5))));
    assert!(requests.encode(VERSION).is_some());
    assert_eq!(Frame::Notice(Unit::Requests, Box::default()).encode(VERSION), None);
    assert_eq!(Code(16).refusal(), Refusal::UnknownKind);
    assert_eq!(Code(u32::MAX).refusal(), Refusal::Other);
}

#[test]
fn a_message_of_an_unknown_kind_is_skipped_as_a_whole() {
    for version in VERSIONS {
        let mut bytes = vec![0, 3, version, 200, 1, 2, 3];
        assert_eq!(Frame::decode(version, &bytes[..6]), Ok(None), "not complete");
        bytes.extend(Bye::of(Refusal::Stopping).encode(version).unwrap());
        let (frame, length) = Frame::decode(version, &bytes).unwrap().unwrap();
        assert_eq!((&frame, length), (&Frame::Unknown(200), 7));
        assert_eq!(frame.encode(version), None, "nobody sends what it does not know");
        let next = Frame::decode(version, &bytes[length..]).unwrap().unwrap().0;
        assert_eq!(next, Bye::of(Refusal::Stopping));
    }
}

#[test]
fn a_longer_or_shorter_content_is_another_version() {
    let bytes = Frame::Welcome(Welcome { session: 7, epoch: 2 }).encode(VERSION).unwrap();
    for change in [-1_i32, 1] {
        let mut other = bytes.clone();
        other.resize((bytes.len() as i32 + change) as usize, 0);
        other[1] = (i32::from(other[1]) + change) as u8;
        assert_eq!(
            Frame::decode(VERSION, &other),
            Err(FrameError::Body("welcome")),
            "{change:+} byte"
        );
    }
    let padded = [0, 4, VERSION, 1, 0x87, 0x00, 0x02, 0x00];
    assert_eq!(
        Frame::decode(VERSION, &padded),
        Err(FrameError::Body("welcome")),
        "a padded number"
    );
}

#[test]
fn every_bound_of_a_report_on_both_sides() {
    let good = || Report { service: "shop".into(), ..Report::default() };
    let with = |change: fn(&mut Report)| {
        let mut report = good();
        change(&mut report);
        report.check().map_err(|error| error.field)
    };
    assert_eq!(with(|r| r.validity_ms = VALIDITY_MAX_MS), Ok(()));
    assert_eq!(with(|r| r.validity_ms = VALIDITY_MAX_MS + 1), Err("validity"));
    assert_eq!(
        with(|r| r.levels.cpu = Some(Aged { value: SHARE_ONE, age_ms: AGE_MAX_MS })),
        Ok(())
    );
    assert_eq!(with(|r| r.levels.cpu = Some(Aged { value: SHARE_ONE + 1, age_ms: 0 })), Err("cpu"));
    assert_eq!(
        with(|r| r.levels.cpu = Some(Aged { value: 0, age_ms: AGE_MAX_MS + 1 })),
        Err("cpu")
    );
    let queue = |length, limit| Some(Aged { value: (length, limit), age_ms: 0 });
    let accept = |length, limit| {
        let report = Report {
            levels: Levels { accept: queue(length, limit), ..Levels::default() },
            ..good()
        };
        report.check().is_ok()
    };
    assert!(accept(COUNT_MAX, COUNT_MAX) && !accept(COUNT_MAX + 1, 0) && !accept(0, COUNT_MAX + 1));
    let long = "x".repeat(63);
    for (name, good) in [("a", true), (long.as_str(), true), ("A-_9", true)] {
        assert_eq!(is_name(name), good, "{name}");
    }
    let longer = "x".repeat(64);
    for name in ["", "-a", "a b", "a\n", "ä", "a/b", longer.as_str()] {
        assert!(!is_name(name), "{name:?}");
    }
}
