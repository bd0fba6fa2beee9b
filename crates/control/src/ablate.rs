// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each number of this crate is good for: with the feature `ablate`, one of them is changed for
//! all that a thread computes. The copy of the sources that asks here is made by build.rs.

use std::cell::Cell;
use tidegate_units::Nanos;

/// A number of the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its place in [`numbers`].
    pub index: usize,
    /// The file below src/.
    pub file: &'static str,
    /// The name.
    pub name: &'static str,
    /// The value as it is written there.
    pub value: &'static str,
}

/// All that can be changed, in the order of the sources.
pub fn numbers() -> impl Iterator<Item = Number> {
    super::NUMBERS.iter().enumerate().map(|(index, &(file, name, value))| Number {
        index,
        file,
        name,
        value,
    })
}

thread_local! {
    static CHANGED: Cell<Option<(usize, f64)>> = const { Cell::new(None) };
}

/// Multiplies the number of this index, and none other, while `run` computes in this thread. Integers
/// are rounded; what is multiplied beyond their range is the largest.
pub fn with<R>(changed: Option<(usize, f64)>, run: impl FnOnce() -> R) -> R {
    let before = CHANGED.replace(changed);
    let result = run();
    CHANGED.set(before);
    result
}

/// The number of this index, changed or not.
pub(crate) fn asked<T: Scaled>(index: usize, value: T) -> T {
    match CHANGED.get() {
        Some((changed, factor)) if changed == index => value.scaled(factor),
        _ => value,
    }
}

/// What can be multiplied.
pub(crate) trait Scaled {
    /// The product.
    fn scaled(self, factor: f64) -> Self;
}

impl Scaled for f64 {
    fn scaled(self, factor: f64) -> Self {
        self * factor
    }
}

impl Scaled for u32 {
    fn scaled(self, factor: f64) -> Self {
        (f64::from(self) * factor).round() as Self
    }
}

impl Scaled for u64 {
    fn scaled(self, factor: f64) -> Self {
        (self as f64 * factor).round() as Self
    }
}

impl Scaled for usize {
    fn scaled(self, factor: f64) -> Self {
        (self as f64 * factor).round() as Self
    }
}

impl Scaled for Nanos {
    fn scaled(self, factor: f64) -> Self {
        Self(self.0.scaled(factor))
    }
}

impl Scaled for (f64, f64) {
    fn scaled(self, factor: f64) -> Self {
        (self.0 * factor, self.1 * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::{numbers, with};
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
    use tidegate_model::signals::{Counts, Reading, Signals, Times};
    use tidegate_units::Nanos;

    /// The limit in flight of a server of 200/s that has been calm for 40 s.
    fn limit() -> Option<u64> {
        let period = Nanos::from_millis(100);
        let mut controller = DefaultController::new(DefaultSpec::default());
        let mut limit = None;
        for n in 0..400 {
            let mut s = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
            let counts = Counts { offered: 20, admitted: 20, completed: 20, ..Counts::default() };
            let took = Nanos::from_millis(10);
            let times = Times { count: 20, sum: Nanos(took.0 * 20), p50: took, p99: took };
            s.balance.counts = Some(Reading::fresh(counts));
            s.time.waiting = Some(Reading::fresh(2));
            s.time.first_byte = Some(Reading::fresh(times));
            limit = controller.tick(&s, Mode::Enforce).waiting_max;
        }
        limit
    }

    #[test]
    fn one_number_is_changed_for_as_long_as_it_is_asked_for() {
        let found = numbers().find(|number| number.name == "HEADROOM_MIN").expect("a number");
        assert_eq!((found.file, found.value), ("detect/headroom.rs", "256.0"));
        let before = limit().expect("a limit in flight");
        let changed = with(Some((found.index, 2.0)), limit).expect("a limit in flight");
        assert_eq!(changed - before, 256);
        assert_eq!(limit(), Some(before));
    }
}
