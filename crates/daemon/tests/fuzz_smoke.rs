// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harness of the fuzz target `kept_state`, bounded, without a fuzzer: bytes at random, and a
//! state that was kept, changed in a few places.
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../../../fuzz/fuzz_targets/support/state.rs"]
mod state;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use tidegate_control::crowd::{Crowd, CrowdTick};
use tidegate_control::{Controller, DefaultController, DefaultSpec, Mode};
use tidegate_daemon::state::{Kept, KeptCrowd, State, encode};
use tidegate_units::Nanos;

/// Calm ticks, in which the controller learns, and those until it sheds.
const CALM: u64 = 400;
const TICKS: u64 = 440;
/// What a byte of JSON may become and the rest still be JSON, more often than by chance.
const LETTERS: &[u8] = b"0123456789-.eE\"{}[],: ntf";

/// What a controller keeps in an overload, the detector of a flash crowd, and the body of a state with both.
fn kept() -> [Vec<u8>; 3] {
    static KEPT: OnceLock<[Vec<u8>; 3]> = OnceLock::new();
    KEPT.get_or_init(keep).clone()
}

fn crowd() -> serde_json::Value {
    let mut crowd = Crowd::default();
    for tick in 0..400 {
        let (took, busy) = (state::took(tick >= 320), tick >= 300);
        let come = if busy { 75 } else { 15 };
        let (first_attempts, refused) = (f64::from(come), f64::from(come - 15));
        let tick = state::busy(&took);
        let (connected, started) = (come, come);
        crowd.tick(&CrowdTick { first_attempts, connected, started, refused, ..tick }, true);
    }
    let kept = crowd.kept().unwrap();
    assert_eq!(kept["limit"]["on"], true);
    kept
}

fn keep() -> [Vec<u8>; 3] {
    let mut controller = DefaultController::new(DefaultSpec::default());
    let limits =
        (0..TICKS).map(|n| controller.tick(&state::signals(n, CALM), Mode::Enforce)).last();
    let learned = controller.save();
    let detector = crowd();
    let crowd = KeptCrowd {
        destination: ([192, 0, 2, 1], 80).into(),
        lasted: Nanos::from_secs(30),
        age: Nanos::ZERO,
        carried: false,
        had_limit: Some(Nanos::ZERO),
        refused: 17,
        would_refuse: 0,
        why: "its server".into(),
        told: true,
        limited: true,
        sample: 1,
        detector: detector.clone(),
    };
    let body = State {
        crowds: vec![crowd],
        boot: "b1".into(),
        at: Nanos::from_secs(990),
        version: "0.1.0".into(),
        services: BTreeMap::from([(
            "shop".to_owned(),
            Kept { identity: 42, limits: limits.unwrap(), controller: learned.clone() },
        )]),
    };
    let bytes = encode(&body).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let [learned, crowd] = [learned.unwrap(), detector].map(|it| serde_json::to_vec(&it).unwrap());
    [learned, crowd, bytes[end + 1..].to_vec()]
}

#[test]
fn what_was_kept_is_read() {
    let all = kept();
    assert!(all.iter().all(|bytes| bytes.len() > 20), "{all:?}");
    all.iter().for_each(|bytes| state::state(bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        state::state(&bytes);
    }

    #[test]
    fn a_state_that_was_changed(
        which in 0..3_usize,
        cut in proptest::option::weighted(0.1, any::<proptest::sample::Index>()),
        changes in proptest::collection::vec(
            (any::<proptest::sample::Index>(), proptest::sample::select(LETTERS)),
            0..6,
        ),
    ) {
        let mut bytes = kept()[which].clone();
        for (at, letter) in changes {
            let at = at.index(bytes.len());
            bytes[at] = letter;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        state::state(&bytes);
    }

    #[test]
    fn numbers_that_were_changed(
        numbers in proptest::collection::vec(
            prop_oneof![any::<f64>(), Just(0.0), Just(1e300), Just(-1.0), Just(5e-324)],
            1..4,
        ),
        from in any::<proptest::sample::Index>(),
    ) {
        let [learned, ..] = kept();
        let mut value: serde_json::Value = serde_json::from_slice(&learned).unwrap();
        let fields = value.as_object_mut().unwrap();
        let names: Vec<String> = fields.keys().cloned().collect();
        for (n, number) in numbers.iter().enumerate() {
            let name = &names[(from.index(names.len()) + n) % names.len()];
            fields.insert(name.clone(), serde_json::json!(number));
        }
        state::state(&serde_json::to_vec(&value).unwrap());
    }
}
