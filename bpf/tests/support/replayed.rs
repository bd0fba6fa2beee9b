// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's side of a replay: batches of events through a function of policy/ (tests/replay.bpf.c).

use super::object::Loaded;
use std::ops::Deref;
use tidegate_policy::Event;

const SOURCE: &str = "bpf/tests/replay.bpf.c";
/// Events in one run of a program; `REPLAY_BATCH` in replay.bpf.c.
pub const REPLAY_BATCH: usize = 16384;
/// Sizes of `struct tg_event` and `struct tg_verdict`.
const EVENT: usize = size_of::<Event>();
pub const VERDICT: usize = 8;

/// The object, whose maps have parameters and state.
pub struct Replayed(Loaded);

impl Replayed {
    pub fn compile(compiler: &str) -> Self {
        Self(Loaded::compile(SOURCE, compiler))
    }

    /// The verdicts of a program about these events, [`VERDICT`] bytes each.
    pub fn evaluate(&self, program: &str, events: &[Event]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REPLAY_BATCH * EVENT);
        for e in events {
            bytes.extend_from_slice(&e.now_ns.to_ne_bytes());
            bytes.extend_from_slice(&e.key.to_ne_bytes());
            bytes.extend_from_slice(&e.random.to_ne_bytes());
            bytes.extend_from_slice(&[e.priority, 0, 0, 0]);
            bytes.extend_from_slice(&e.level.to_ne_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes.resize(REPLAY_BATCH * EVENT, 0);
        self.write("events", &bytes);
        let count = events.len() as u32;
        let mut args = [count.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(self.run(program, &mut args), 0);
        assert_eq!(args[4..], args[..4], "all were evaluated");
        let mut verdicts = self.read("verdicts");
        verdicts.truncate(events.len() * VERDICT);
        verdicts
    }
}

impl Deref for Replayed {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.0
    }
}
