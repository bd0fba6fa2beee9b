// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one daemon leaves to the next, by the product's rules: written once a second and whenever
//! shedding begins or ends, read once, and worth nothing when it is too old
//! (docs/decisions/0010-kept-state.md).

use serde_json::Value;
use tidegate_units::Nanos;

/// Time between two writes while nothing happens, as in the product.
const SAVE_EVERY: Nanos = Nanos::SECOND;
/// What was learned counts for so long, as in the product.
const LEARNED_AGE_MAX: Nanos = Nanos::from_secs(3600);

/// The file of one service.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// When it was written last; before that, when this daemon began.
    saved_at: Option<Nanos>,
    /// Whether the service was shed then; `None` before this daemon's first write.
    shedding: Option<bool>,
    state: Option<(Nanos, Value)>,
}

impl Kept {
    /// Writes, if it is time to.
    pub(super) fn tick(
        &mut self,
        now: Nanos,
        shedding: bool,
        save: impl FnOnce() -> Option<Value>,
    ) {
        let since = now.since(*self.saved_at.get_or_insert(now));
        let changed = self.shedding.is_some_and(|before| before != shedding);
        if since < SAVE_EVERY && !changed {
            return;
        }
        (self.saved_at, self.shedding) = (Some(now), Some(shedding));
        self.state = save().map(|value| (now, value));
    }

    /// The next daemon begins: it takes what was left, with its age, and the file is gone.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Value, Nanos)> {
        let (at, value) = std::mem::take(self).state?;
        let age = now.since(at);
        (age <= LEARNED_AGE_MAX).then_some((value, age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What the next daemon is given of writes at these milliseconds, and its age.
    fn given(writes: &[(u64, bool)], at_ms: u64) -> Option<(Value, Nanos)> {
        let mut kept = Kept::default();
        for (ms, shedding) in writes {
            kept.tick(Nanos::from_millis(*ms), *shedding, || Some(json!(ms)));
        }
        let given = kept.take(Nanos::from_millis(at_ms));
        assert_eq!(kept.take(Nanos::from_millis(at_ms)), None, "it is read once");
        given
    }

    #[test]
    fn it_is_written_each_second_and_at_turns_and_is_read_while_it_is_young() {
        let calm: Vec<_> = (0..=19).map(|tick| (tick * 100, false)).collect();
        let s = Nanos::from_millis;
        assert_eq!(given(&calm, 2000), Some((json!(1000), s(1000))), "each second");
        assert_eq!(given(&calm[..10], 2000), None, "not in the first second");
        let turned = [&calm[..], &[(1950, true)]].concat();
        assert_eq!(given(&turned, 2000), Some((json!(1950), s(50))), "when shedding begins");
        let late = 1000 + 3_600_000;
        assert!(given(&calm, late).is_some());
        assert_eq!(given(&calm, late + 1), None, "older than an hour");
    }
}
