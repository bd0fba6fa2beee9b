// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was refused in the last minute: the filter of `policy/chain/lately.h`, which the kernel's hooks
//! have too, in slices of time.
//!
//! A slice is 2^33 ns, 8.6 s. Eight of them, the present one included, reach back for 60 to 69 s. A
//! client that was refused is found, whoever else was; another one is found by chance, at 10,000
//! refusals of 10,000 clients per second in 1 of 1,000 questions about 32 services. Hashes are keyed
//! by a seed of the process, so that nobody can make himself look like somebody else.

use crate::gate::mapped;
use std::array;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use tidegate_policy::{LatelyHash, LatelyLine};
use tidegate_units::Nanos;

/// A slice has 2 to the power of this nanoseconds.
const SPAN_BITS: u32 = 33;
/// Slices of which something is known.
const SLICES: u64 = 8;
/// Lines of a slice; with all slices 4 MiB, which are there from the first refusal on.
const LINES: u32 = 8192;

struct Slice {
    /// One more than the number of the span that is in it; 0: none.
    holds: AtomicU64,
    clearing: Mutex<()>,
    lines: Box<[LatelyLine]>,
}

impl Default for Slice {
    fn default() -> Self {
        let lines = (0..LINES).map(|_| LatelyLine::default()).collect();
        Self { holds: AtomicU64::new(0), clearing: Mutex::new(()), lines }
    }
}

impl Slice {
    /// Whether it holds this span now; what it held before is forgotten.
    fn begin(&self, span: u64) -> bool {
        let wanted = span + 1;
        if self.holds.load(Ordering::Acquire) == wanted {
            return true;
        }
        let _one = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.holds.load(Ordering::Acquire) < wanted {
            self.lines.iter().for_each(LatelyLine::clear);
            self.holds.store(wanted, Ordering::Release);
        }
        // Whoever comes with a time that has passed is too late.
        self.holds.load(Ordering::Acquire) == wanted
    }

    fn has(&self, span: u64, hash: LatelyHash) -> bool {
        self.holds.load(Ordering::Acquire) == span + 1 && self.lines[hash.line(LINES)].has(hash)
    }
}

/// Of one process: words that nobody can guess.
struct Keys {
    names: RandomState,
    words: [u64; LatelyHash::KEYS],
}

impl Default for Keys {
    fn default() -> Self {
        let names = RandomState::new();
        let words = array::from_fn(|n| names.hash_one(n));
        Self { names, words }
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Sketch {
    keys: Keys,
    slices: OnceLock<[Slice; SLICES as usize]>,
}

impl Sketch {
    fn hash(&self, (service, client, shadow): (&str, IpAddr, bool)) -> LatelyHash {
        let identity = self.keys.names.hash_one(service);
        LatelyHash::new(&self.keys.words, mapped(client), (identity, shadow))
    }

    /// A client was refused by a service, or would have been (shadow).
    pub(crate) fn note(&self, now: Nanos, whom: (&str, IpAddr, bool)) {
        let slices = self.slices.get_or_init(|| array::from_fn(|_| Slice::default()));
        let span = now.0 >> SPAN_BITS;
        let slice = &slices[(span % SLICES) as usize];
        if slice.begin(span) {
            let hash = self.hash(whom);
            slice.lines[hash.line(LINES)].note(hash);
        }
    }

    /// How long ago it was last refused, at least and at most, if that was within the last minute.
    pub(crate) fn find(&self, now: Nanos, whom: (&str, IpAddr, bool)) -> Option<(Nanos, Nanos)> {
        let slices = self.slices.get()?;
        self.find_hash(slices, now, self.hash(whom))
    }

    fn find_hash(
        &self,
        slices: &[Slice; SLICES as usize],
        now: Nanos,
        hash: LatelyHash,
    ) -> Option<(Nanos, Nanos)> {
        let last = now.0 >> SPAN_BITS;
        let spans = (last.saturating_sub(SLICES - 1)..=last).rev();
        let mut found = spans.filter(|span| slices[(*span % SLICES) as usize].has(*span, hash));
        let span = found.next()?;
        let (begin, end) = (Nanos(span << SPAN_BITS), Nanos((span + 1) << SPAN_BITS));
        Some((now.since(end), now.since(begin)))
    }

    /// Of so many questions about nobody, how many find somebody: the share of wrong answers.
    pub(crate) fn wrong(&self, now: Nanos, questions: u32) -> u32 {
        let Some(slices) = self.slices.get() else { return 0 };
        let nobody = |n| LatelyHash::of_nobody(self.keys.names.hash_one((now.0, n)));
        let found = (0..questions).filter(|n| self.find_hash(slices, now, nobody(*n)).is_some());
        found.count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const START: Nanos = Nanos::from_secs(100_000);

    fn client(number: u32) -> (&'static str, IpAddr, bool) {
        ("shop", Ipv4Addr::from(number).into(), false)
    }

    /// A minute of 10,000 refusals per second, each of another client.
    #[test]
    fn whoever_was_refused_in_the_last_minute_is_found_and_hardly_anyone_else() {
        let sketch = Sketch::default();
        let each = Nanos::SECOND.0 / 10_000;
        // Longer than the slices are, so that each was used before.
        let all = 1_000_000_u32;
        for number in 0..all {
            sketch.note(START + Nanos(u64::from(number) * each), client(number));
        }
        let now = START + Nanos(u64::from(all) * each);
        for number in all - 600_000..all {
            let ago = now.since(START + Nanos(u64::from(number) * each));
            let found = sketch.find(now, client(number));
            // It may also look as if it were refused later, by chance.
            assert!(found.is_some_and(|(least, _)| least <= ago), "{number}: {found:?} of {ago}");
        }
        let first = sketch.find(now, client(all - 600_000));
        assert!(first.is_some_and(|(least, most)| least < most && most < Nanos::from_secs(70)));
        let others = 100_000_u32;
        let wrong = (0..others).filter(|n| sketch.find(now, client(1 << 30 | n)).is_some()).count();
        // So that of 32 services one in a hundred is wrong at most.
        let share = wrong as f64 / f64::from(others);
        assert!(share < 0.01 / 32.0, "{share}");
        let old = (0..200_000).filter(|n| sketch.find(now, client(*n)).is_some()).count();
        assert!(old < 200, "{old} of those who were refused more than 80 s ago");
    }

    #[test]
    fn after_a_minute_without_refusals_nobody_is_found() {
        let sketch = Sketch::default();
        assert_eq!(sketch.find(START, client(1)), None, "nothing was noted yet");
        sketch.note(START, client(1));
        assert_eq!(sketch.find(START + Nanos::from_secs(60), client(1)).map(|_| ()), Some(()));
        assert_eq!(sketch.find(START + Nanos::from_secs(70), client(1)), None);
        // Times that come late are no reason to forget what is newer.
        sketch.note(START + Nanos::from_secs(200), client(2));
        let turn = Nanos((SLICES << SPAN_BITS).wrapping_mul(1));
        sketch.note((START + Nanos::from_secs(200)).since(turn), client(3));
        assert!(sketch.find(START + Nanos::from_secs(201), client(2)).is_some());
        assert!(sketch.find(START + Nanos::from_secs(201), client(3)).is_none());
    }

    #[test]
    fn another_process_has_another_seed() {
        let (a, b) = (Sketch::default(), Sketch::default());
        let same = (0..1000).filter(|n| a.hash(client(*n)) == b.hash(client(*n)));
        assert_eq!(same.count(), 0);
    }

    /// More clients than there is room for: then it says how much it is wrong.
    #[test]
    fn a_flood_that_fills_it_is_seen() {
        let sketch = Sketch::default();
        assert_eq!(sketch.wrong(START, 1000), 0);
        sketch.note(START, client(0));
        assert_eq!(sketch.wrong(START, 1000), 0);
        (0..1_000_000).for_each(|number| sketch.note(START, client(number)));
        let wrong = sketch.wrong(START, 1000);
        let others = (0..1000).filter(|n| sketch.find(START, client(1 << 30 | n)).is_some());
        let found = others.count() as u32;
        assert!(wrong > 50 && wrong.abs_diff(found) < 100, "{wrong} and {found} of 1000");
    }
}
