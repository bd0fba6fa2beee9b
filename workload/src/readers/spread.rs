// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From entries of a trace to times of arrivals.

use super::Entry;
use crate::arrivals::Slot;
use crate::rng::Rng;
use tidegate_units::Nanos;

/// Arrivals of the entries: a request at its time, a period's count uniform within the period.
/// They never fall; errors are passed on. Bounded memory, however large the counts.
pub fn spread<E, I: Iterator<Item = Result<Entry, E>>>(entries: I, rng: Rng) -> Spreader<I> {
    Spreader { entries, slot: Slot::default(), latest: Nanos::ZERO, rng }
}

/// See [`spread`].
#[derive(Clone, Debug)]
pub struct Spreader<I> {
    entries: I,
    slot: Slot,
    latest: Nanos,
    rng: Rng,
}

impl<E, I: Iterator<Item = Result<Entry, E>>> Iterator for Spreader<I> {
    type Item = Result<Nanos, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(time) = self.slot.next(&mut self.rng) {
                // Periods may overlap where a file has rows closer together than it says.
                self.latest = self.latest.max(time);
                return Some(Ok(self.latest));
            }
            match self.entries.next()? {
                Ok(entry) => self.slot.fill(entry.count, (entry.at, entry.lasts), &mut self.rng),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
