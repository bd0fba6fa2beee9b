// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The codec: what is written is read, and nothing else is.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use proptest::prelude::*;
use tidegate_peer::Refusal;
use tidegate_peer::frame::{
    BODY_MAX, Bye, Frame, FrameError, HEAD, Hello, Refused, VERSION, Welcome,
};
use tidegate_peer::report::{
    AGE_MAX_MS, Aged, COUNT_MAX, Levels, Report, SHARE_ONE, VALIDITY_MAX_MS, is_name,
};

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

fn frame() -> impl Strategy<Value = Frame> {
    let why = || (0..Refusal::COUNT).prop_map(|i| Refusal::ALL[i]);
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
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(frame in frame(), behind in proptest::collection::vec(any::<u8>(), 0..8)) {
        let mut bytes = frame.encode().unwrap();
        let length = bytes.len();
        prop_assert!(length <= HEAD + BODY_MAX);
        for end in 0..length {
            prop_assert_eq!(Frame::decode(&bytes[..end]), Ok(None), "{} of {} bytes", end, length);
        }
        bytes.extend(behind);
        prop_assert_eq!(Frame::decode(&bytes), Ok(Some((frame, length))));
    }

    #[test]
    fn a_frame_has_one_spelling(frame in frame(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let bytes = frame.encode().unwrap();
        let mut other = bytes.clone();
        let at = at.index(bytes.len());
        other[at] = to;
        if let Ok(Some((read, length))) = Frame::decode(&other) {
            prop_assert_eq!(read.encode().unwrap(), &other[..length]);
            prop_assert!(other == bytes || read != frame);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(Some((frame, length))) = Frame::decode(&bytes) {
            prop_assert_eq!(frame.encode().unwrap(), &bytes[..length]);
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
        Frame::decode(&[high, low, version, kind])
    };
    assert_eq!(head(1, VERSION + 1, 3), Err(FrameError::Version(VERSION + 1)));
    assert_eq!(head(0, VERSION, 3), Err(FrameError::Length(0)));
    assert_eq!(head(BODY_MAX as u16, VERSION, 3), Ok(None));
    assert_eq!(head(BODY_MAX as u16 + 1, VERSION, 3), Err(FrameError::Length(BODY_MAX + 1)));
    for kind in [0, 6, 255] {
        assert_eq!(head(1, VERSION, kind), Err(FrameError::Kind(kind)));
    }
    assert_eq!(head(1, 0, 0).unwrap_err().refusal(), Refusal::Version);
    assert_eq!(head(0, VERSION, 3).unwrap_err().refusal(), Refusal::Malformed);
}

#[test]
fn a_longer_or_shorter_content_is_another_version() {
    let bytes = Frame::Welcome(Welcome { session: 7, epoch: 2 }).encode().unwrap();
    for change in [-1_i32, 1] {
        let mut other = bytes.clone();
        other.resize((bytes.len() as i32 + change) as usize, 0);
        other[1] = (i32::from(other[1]) + change) as u8;
        assert_eq!(Frame::decode(&other), Err(FrameError::Body("welcome")), "{change:+} byte");
    }
    let padded = [0, 4, VERSION, 1, 0x87, 0x00, 0x02, 0x00];
    assert_eq!(Frame::decode(&padded), Err(FrameError::Body("welcome")), "a padded number");
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
